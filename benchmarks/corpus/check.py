"""The corpus at real size, right or wrong: `python -m benchmarks.corpus.check [NAME ...] [--secs 120]`.

Each function's program of the first seed runs on the processor, as the cpu device runs it, on random inputs; jax
computes the same in XLA on the processor; of every output a thousand elements are compared, the first and the last
among them, by the program's own tolerances; where large values cancel, both are held against float64. A process of
its own for each, so that one that takes too long, or more memory than there is, is a line. Written to
benchmarks/results/cpu/corpus-real.json after each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks import runs
from benchmarks.corpus.dims import REAL
from benchmarks.corpus.functions import FUNCTIONS
from fusiond.build import gxx
from fusiond.devices.compare import compare
from fusiond.devices.cpu.executor import CpuExecutor
from fusiond.devices.run import run_checked
from fusiond.language.narrow import numpy_dtype
from fusiond.model import Config
from fusiond.program import Program
from fusiond.requests.planning import target_for_arch
from fusiond_stitching import space
from fusiond_stitching.analysis import forms, planner
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import fills, importer
from fusiond_stitching.frontend.graph import HloModule

SAMPLED = 1000
KEPT = runs.RESULTS / "cpu" / "corpus-real.json"


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.corpus.check", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="these; default: all that are not kept yet")
    parser.add_argument("--secs", type=float, default=120.0, help="for each")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.one:
        json.dump(checked(given.one), sys.stdout)
        return 0
    kept: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else {"functions": {}}
    for name in given.names or [each for each in FUNCTIONS if each not in kept["functions"]]:
        kept["functions"][name] = found = _apart(name, given.secs)
        kept |= {"command": "python -m benchmarks.corpus.check", "date": time.strftime("%Y-%m-%d")}
        runs.write(KEPT, kept)
        sys.stdout.write(f"{name}: {found}\n")
        sys.stdout.flush()
    return 0


def _apart(name: str, secs: float) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.corpus.check", "--one", name],
            capture_output=True,
            text=True,
            timeout=secs,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"takes longer than {secs:.0f} s on a processor"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:200]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def checked(name: str) -> dict[str, Any]:
    """How far sampled outputs are from jax's: `worst`, as a part of what is allowed."""
    import jax

    function, shapes = FUNCTIONS[name](REAL)
    # Arguments that nobody reads stay parameters, so that those of the module are those of the function.
    lowered = jax.jit(function, keep_unused=True).lower(*shapes)
    asked = importer.read(str(lowered.as_text(dialect="hlo")), name)
    if asked.foreign or asked.library_calls:
        return {"failed": "a library's results are filled: there is nothing to compare"}
    limits = target_for_arch("sm_90").limits
    shaped = forms.forms(asked, limits.multiprocessors)
    offered = space.offered(limits, dots="library", large=True, scatters=shaped.scatters)
    _, config = space.seeds(limits, offered, dots="library", large=True, scatters=shaped.scatters)[0]
    module = shaped(forms.SPLIT, config.get("scatters", forms.UPDATES))
    planned = planner.plan(module, space.policy(Config.of(config), limits, dots="library"), limits)
    program = emit.program(module, planned.plan, name=name)
    if not isinstance(program, Program):
        return {"failed": program.detail}
    inputs = _inputs(asked)
    read = {each.name for each in program.buffers}
    got = _run(program, {f"in_{place}": each for place, each in enumerate(inputs) if f"in_{place}" in read})
    leaves, tree = jax.tree.flatten(shapes)
    given = [each.reshape(leaf.shape) for each, leaf in zip(inputs, leaves, strict=True)]
    wanted = jax.tree.leaves(jax.jit(function)(*jax.tree.unflatten(tree, given)))
    near = set(emit.near_ties(asked))
    worst, compared = 0.0, 0
    wrong: list[str] = []
    nearer: list[str] = []
    for place, each in enumerate(wanted):
        if f"out_{place}" in near:
            continue
        flat = np.asarray(each).reshape(-1)
        at = np.unique(np.linspace(0, flat.size - 1, SAMPLED).astype(np.int64))
        buffer = program.buffer(f"out_{place}")
        one, other = (values[at].view(numpy_dtype(buffer.dtype)) for values in (flat, got[f"out_{place}"]))
        result = compare(buffer, one, other)
        compared += at.size
        if not result.equal:
            exact = _exact(name, given, tree)[place].reshape(-1)[at]
            ours, theirs = (float(np.abs(_wide(values) - exact).max()) for values in (other, one))
            (nearer if ours <= theirs else wrong).append(f"out_{place}: {ours:.3g} from float64, XLA {theirs:.3g}")
            continue
        worst = max(worst, result.worst)
    found = {"failed": None, "compared": compared, "worst": round(float(worst), 4), "wrong": wrong}
    return {**found, **({"nearer_than_xla": nearer} if nearer else {})}


def _exact(name: str, given: Sequence[np.ndarray], tree: Any) -> list[np.ndarray]:
    """The results in float64, where large values cancel."""
    import jax

    with jax.enable_x64(True):
        wide = [each.astype(np.float64) if each.dtype.kind == "f" else each for each in given]
        return [
            np.asarray(each)
            for each in jax.tree.leaves(jax.jit(FUNCTIONS[name](REAL)[0])(*jax.tree.unflatten(tree, wide)))
        ]


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64)


def _inputs(asked: HloModule) -> list[np.ndarray]:
    random = np.random.default_rng(7)
    found = []
    for name in asked.parameters:
        each = asked[name]
        kind = np.dtype(ml_dtypes.bfloat16 if each.dtype == "bf16" else emit.TYPES[each.dtype].program)
        if emit.TYPES[each.dtype].kind == "float":
            found.append(random.uniform(0.1, 1.0, each.dims).astype(np.float32).astype(kind))
        else:
            fill = fills.default(asked, name)
            found.append(random.integers(int(fill.low), int(fill.high), each.dims, endpoint=True).astype(kind))
    return found


def _run(program: Program, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    binaries = {}
    for source in program.sources:
        built = gxx.build(source)
        if not isinstance(built, Path):
            raise SystemExit(built.reason)
        binaries[source.name] = built
    executor = CpuExecutor()
    loaded = executor.load(program, binaries)
    try:
        bits = {
            name: np.ascontiguousarray(each).reshape(-1).view(numpy_dtype(each.dtype.name))
            for name, each in inputs.items()
        }
        return dict(run_checked(loaded, executor.data, bits, 0))
    finally:
        loaded.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
