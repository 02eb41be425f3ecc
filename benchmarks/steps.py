"""Whole functions end to end: steps a second of configs/jax's scripts at the sizes of models, fused beside `jax.jit`.

    python -m benchmarks.steps --device cuda:0 --store FILE --out FILE [--minutes M]

Each function in a process of its own, which says what it found at each of these states:

    unknown    `fusiond.jax.fuse` with an empty store and no daemon: what asking costs when nothing is known
    tune       the function's regions are tuned in its own process, as `block=True` does, one after the other as long as
               there is time; the others are the next time's
    known      with the answers of that store: how many regions are fused, and how fast the function is

Both functions are called in turn (ABBA), so many times in a row that a round takes a sixth of a second; the
ratio's interval is Student's over the rounds. Their results are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import commands, runs
from benchmarks.commands import say
from fusiond.devices import check
from fusiond.devices.base import MORE
from fusiond.tuning import verdict

SCRIPTS = Path(__file__).parents[1] / "configs" / "jax"
LARGE: Mapping[str, Mapping[str, Any]] = {
    "optimizer_step": {
        "SHAPES": {"query": (4096, 4096), "up": (4096, 11008), "down": (11008, 4096), "scale": (4096,),
                   "shift": (4096,)},
    },
    "llama_layer": {"WIDTH": 4096, "HEADS": 32, "HIDDEN": 11008, "LENGTH": 2048},
}  # fmt: skip
"""Script -> what is different at the sizes of models."""
ROUNDS, ROUND_SECS = 7, 0.15
KNOWN_SECS = 8.0  #: Of a function's time, left for the last state
SEARCH = {"trials": 3, "timeout": "20s"}
CLOSE = 5e-3
STATES = ("unknown", "tune", "known")


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 done, 1 something failed, 2 the request was wrong, 75 some regions are not tuned yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0", help="or cpu, at the scripts' own sizes, to try it out")
    parser.add_argument("--store", type=Path, metavar="FILE", help="for the answers")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--one", metavar="SCRIPT", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.one:
        for found in one(given.one, store=given.store, secs=60 * given.minutes, tiny=given.device == "cpu"):
            print(json.dumps(found), flush=True)
        return 0
    ended: list[int] = []
    return commands.status(lambda: ended.append(_measure(given))) or ended[0]


def _measure(given: argparse.Namespace) -> int:
    end = time.monotonic() + 60 * given.minutes
    _, device = check.find(given.device)
    new = runs.new("steps", "", "python -m benchmarks.steps", device.evidence, runs.described(device))
    run = runs.kept_on(given.out, device) or {**new, "functions": {}}
    for number, name in enumerate(LARGE):
        share = (end - time.monotonic()) / (len(LARGE) - number)  # of the time that is left
        kept = run["functions"].setdefault(name, {})
        found = asked(name, given.store, given.device, share)
        for state in STATES:  # what an earlier go has measured is not lost to one that was cut
            if "problem" not in found[state] or state not in kept:
                kept[state] = found[state]
                say(f"{name}, {state}: {told(kept[state])}")
        runs.write(given.out, run)
    functions_ = run["functions"].values()
    failed = [each for each in functions_ if "ratio" not in each["known"]]
    return 1 if failed else 0 if all(each["tune"].get("tuned") for each in functions_) else MORE


def asked(name: str, store: Path, device: str, secs: float) -> dict[str, dict[str, Any]]:
    """What the process of a function says of each state; the `problem` where it says nothing."""
    command = [sys.executable, "-m", "benchmarks.steps", "--one", name, "--device", device, "--store", str(store),
               "--minutes", f"{secs / 60:.3f}"]  # fmt: skip
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "FUSIOND_DB": str(store)}
    if device == "cpu":
        environment["JAX_PLATFORMS"] = "cpu"
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=max(1.0, secs),
            check=False,
        )  # fmt: skip
        text, why = done.stdout, (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        why = f"ended with status {done.returncode}: {why}"[:300]
    except subprocess.TimeoutExpired as problem:
        text = problem.stdout.decode(errors="replace") if isinstance(problem.stdout, bytes) else problem.stdout or ""
        why = f"did not end within its {secs:.0f} s"
    found = {state: {"problem": why} for state in STATES}
    for line in text.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            document = json.loads(line)
            found[document.pop("state")] = document
    return found


def told(found: Mapping[str, Any]) -> str:
    if "problem" in found:
        return str(found["problem"])
    if "ratio" not in found:
        return f"{found['fused']} of {found['regions']} regions have answers"
    low, high = found["ci95"]
    return (
        f"{found['fused_steps_per_sec']:.1f} steps a second, {found['ratio']:.3f}x ({low:.3f} to {high:.3f}) jax.jit,"
        f" {found['fused']} of {found['regions']} regions are fused"
    )


# --- one process ----------------------------------------------------------------------------------------


def one(name: str, *, store: Path, secs: float, tiny: bool) -> Iterator[dict[str, Any]]:
    """The states of one function, in this process."""
    end = time.monotonic() + secs
    jax = importlib.import_module("jax")
    fusing = importlib.import_module("fusiond.jax")
    asking = importlib.import_module("fusiond.service.frameworks.region_answers")
    function, given, static = functions(name, tiny=tiny)
    plain = jax.jit(function, **static)
    wanted = jax.block_until_ready(plain(*given))

    def state(called: str, db: Path) -> dict[str, Any]:
        fused = fusing.fuse(function, db=db, search=SEARCH, always=tiny, **static)
        results = jax.block_until_ready(fused(*given))
        regions = [each for each in fusing.explain(fused, *given).regions if each.state != "library"]
        found = {
            "state": called,
            "regions": len(regions),
            "fused": sum(each.state == "fused" for each in regions),
            "states": [{"state": each.state, "reason": each.reason, "speedup": each.speedup} for each in regions],
            "difference": difference(jax, results, wanted),
        }
        if not found["difference"] <= CLOSE:
            return found | {"problem": f"its results are {found['difference']:.2g} from jax.jit's"}
        return found | beside(
            lambda: jax.block_until_ready(fused(*given)), lambda: jax.block_until_ready(plain(*given))
        )

    with tempfile.TemporaryDirectory() as empty:
        nothing = Path(empty) / "empty.sqlite"
        yield state("unknown", nothing)
        questions = asking.of(nothing).waiting()
    asker = asking.of(store)
    left = [each for each in questions if asker.look(each).state == "unknown"]
    while left and time.monotonic() < end - KNOWN_SECS:
        with stopped_at(end - KNOWN_SECS):
            asker.tune(left[-1], SEARCH)
            left.pop()
    yield {"state": "tune", "regions": len(questions), "fused": len(questions) - len(left), "tuned": not left}
    yield state("known", store)


@contextlib.contextmanager
def stopped_at(moment: float) -> Iterator[None]:
    """Ctrl-C at this moment, and again: tuning stops with what it has in the store, and goes on from there."""

    over = threading.Event()

    def press() -> None:
        for _ in range(2):  # the first one ends a search, and begins its finals
            if not over.is_set():
                os.kill(os.getpid(), signal.SIGINT)
            over.wait(0.5)

    timer = threading.Timer(max(0.1, moment - time.monotonic()), press)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
    timer.start()
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        over.set()
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGINT, before)


def functions(name: str, *, tiny: bool) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """(the function, its arguments, what jax.jit is told) of a script."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for constant, value in {} if tiny else LARGE[name].items():
        setattr(script, constant, value)
    function, given, static = script.example()
    return function, given, static


def difference(jax: Any, ours: Any, theirs: Any) -> float:
    """The largest difference of a leaf over its largest element."""
    worst = 0.0
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        far = float(abs(one - other).max()) / max(float(abs(other).max()), 1e-30)
        worst = max(worst, far if math.isfinite(far) else math.inf)
    return worst


def beside(fused: Callable[[], object], plain: Callable[[], object]) -> dict[str, Any]:
    """Steps a second of both, and the ratio with its 95 % interval."""
    for _ in range(2):
        fused(), plain()
    begun = time.perf_counter()
    plain()
    calls = max(1, min(1000, round(ROUND_SECS / (time.perf_counter() - begun))))
    secs: dict[str, list[float]] = {"fused": [], "jit": []}
    for number in range(ROUNDS):
        pair = (("fused", fused), ("jit", plain))
        for name, call in pair if number % 2 else reversed(pair):
            begun = time.perf_counter()
            for _ in range(calls):
                call()
            secs[name].append((time.perf_counter() - begun) / calls)
    estimate = verdict.estimate([math.log(b / a) for a, b in zip(secs["fused"], secs["jit"], strict=True)], 1)
    return {
        "fused_steps_per_sec": round(1 / statistics.median(secs["fused"]), 3),
        "jit_steps_per_sec": round(1 / statistics.median(secs["jit"]), 3),
        "ratio": round(estimate.speedup, 4),
        "ci95": [round(estimate.low, 4), round(estimate.high, 4)],
        "secs": {name: [round(each, 7) for each in values] for name, values in secs.items()},
    }


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
