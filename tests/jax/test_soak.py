"""A fused function is called ten thousand times while the daemon beneath it comes, goes and changes, and then until all
of its shapes are answered by a daemon that stays."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="needs JAX: pip install 'fusiond[jax]'")

CALLS = 10_000
SHAPES = 8
KILLED = 8
PATIENCE_SECS = 480
"""For the answers that are not there after the ten thousand: on a busy machine, most."""
CALLER = """
import itertools, json, sys, time
import jax, jax.numpy as jnp, numpy as np
import fusiond.jax

def layer(x, scale):
    y = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale
    return jax.nn.softmax(y) * jax.nn.silu(y)

calls, shapes, patience_secs = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
function = fusiond.jax.fuse(layer, always=True, device="cpu", search={"trials": 2})
plain = jax.jit(layer)
raised, wrong, first, later, fused_at, ends = [], 0, [], [], {}, None
random = np.random.default_rng(0)
given = []
for number in itertools.count():
    if number >= calls:
        ends = ends or time.monotonic() + patience_secs
        if len(fused_at) == shapes or time.monotonic() > ends:
            break
    if len(given) < shapes and number * shapes * 2 >= len(given) * calls:  # all are there after half of the calls
        x = jnp.asarray(random.normal(size=(16, 64 + 16 * len(given))), jnp.float32)
        scale = jnp.ones(x.shape[1])
        given.append((x, scale, np.asarray(plain(x, scale))))
        which, fresh = len(given) - 1, True
    else:
        which, fresh = number % len(given), False
    x, scale, wanted = given[which]
    began = time.perf_counter()
    try:
        got = np.asarray(function(x, scale))
        wrong += not np.allclose(got, wanted, rtol=1e-5, atol=1e-7)
    except Exception as problem:
        raised.append(repr(problem))
    (first if fresh else later).append(time.perf_counter() - began)
    if which not in fused_at and number % 7 == 0:
        if fusiond.jax.explain(function, x, scale).regions[0].state == "fused":
            fused_at[which] = number
    time.sleep(0.006)
last = [fusiond.jax.explain(function, x, scale).regions[0].state for x, scale, _ in given]
print(json.dumps({"calls": number, "raised": raised, "wrong": wrong, "first_secs": max(first, default=0),
                  "later_secs": sorted(later)[-3:], "fused_at": fused_at, "last": last}))
"""
DAEMON = """
import sys, fusiond
fusiond.__version__ = sys.argv[1]
from fusiond.cli import main
sys.exit(main(["serve"]))
"""


def serve(version: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", DAEMON, version], env=environment, start_new_session=True, **quiet)


@pytest.mark.campaign
@pytest.mark.timeout(1500)
def test_ten_thousand_calls(tmp_path: Path) -> None:
    """Not one is wrong, and none raises. The first shape has an answer; those of the others arrive meanwhile, from
    daemons that are killed at their work and from the one that stays, and are taken up. (Times are printed:
    `pytest -s`.)"""
    environment = {**os.environ, "HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    environment = {name: value for name, value in environment.items() if not name.startswith(("FUSIOND", "XDG"))}
    tuned = CALLER.replace("always=True", "always=True, block=True")
    subprocess.run([sys.executable, "-c", tuned, "1", "1", "0"], env=environment, check=True, stdout=subprocess.DEVNULL)
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(CALLS), str(SHAPES), str(PATIENCE_SECS)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    daemon: subprocess.Popen[bytes] | None = None
    killed = locked = 0
    version = 0
    try:
        while caller.poll() is None and killed < KILLED:
            version += 1
            daemon = serve(f"{version}.0.0", environment)
            time.sleep(20)
            for store in tmp_path.rglob("fusiond.sqlite"):
                with sqlite3.connect(store, timeout=10, isolation_level=None) as held:
                    held.execute("BEGIN EXCLUSIVE")
                    time.sleep(3)
                    held.execute("ROLLBACK")
                locked += 1
            os.killpg(daemon.pid, signal.SIGKILL if version % 2 else signal.SIGTERM)
            daemon.wait(30)
            killed += 1
            time.sleep(2)
        daemon = serve(f"{version + 1}.0.0", environment)
        out = caller.communicate()[0]
    finally:
        for each in (caller, daemon):
            if each is not None and each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL) if each is daemon else each.kill()
                each.wait()
    assert caller.returncode == 0, out
    found = json.loads(out.splitlines()[-1])
    print(found, f"daemons killed {killed}, stores locked {locked}")
    assert found["calls"] >= CALLS
    assert (found["raised"], found["wrong"]) == ([], 0)
    assert found["last"] == ["fused"] * SHAPES
    assert min(killed, locked) >= 3
