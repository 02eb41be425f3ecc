"""`python -m benchmarks.frameworks`: JSON on standard output, and benchmarks/results/cpu/frameworks.json.

- a call of a fused function beside one of the `jax.jit` function in whose place it stands, in turns: what the call
  costs more (the same computation, so that only the calls differ), with one array and with a tree of a hundred
- importing `fusiond.jax` and taking `fuse` out of it, after `import jax`, in fresh processes
- tracing a function with a known answer beside tracing it with `jax.jit`: the look-up in the store is in it

On JAX's processor platform: steps per second on a GPU are not yet measured. The answer comes from tuning here, on a
store of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import jax
import jax.numpy as jnp
import numpy as np

import fusiond.jax
from benchmarks import runs
from fusiond.build import gxx

ROUNDS, CALLS, TRACES, STARTS = 60, 200, 15, 9
KEPT = runs.RESULTS / "cpu" / "frameworks.json"
IMPORT = """
import time, jax, jax.numpy
began = time.perf_counter()
import fusiond.jax
fusiond.jax.fuse
print(time.perf_counter() - began)
"""


def layer(x: Any, scale: Any) -> Any:
    normed = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale
    return jax.nn.softmax(normed) * jax.nn.silu(normed)


def main() -> None:
    x, scale = jnp.linspace(-1.0, 1.0, 1024).reshape(16, 64), jnp.ones(64)
    tree = {f"parameter_{index}": jnp.ones(4) * index for index in range(100)}
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "store.sqlite"
        options: dict[str, Any] = {"always": True, "device": "cpu", "db": db}
        fused = fusiond.jax.fuse(layer, block=True, search={"trials": 2}, **options)
        fused(x, scale)
        report = fusiond.jax.explain(fused, x, scale)
        assert [each.state for each in report.regions] == ["fused"], str(report)
        result = {
            "date": time.strftime("%Y-%m-%d"),
            "command": "python -m benchmarks.frameworks",
            "jax": jax.__version__,
            # The same equations below both: XLA's, so that what is compared is the call.
            "call_two_arrays_us": _calls(fusiond.jax.fuse(layer, db=db), jax.jit(layer), x, scale),
            "call_tree_of_100_us": _calls(fusiond.jax.fuse(_moved, db=db), jax.jit(_moved), tree),
            # A region that launches nothing beside one sum by XLA: what the handler itself takes.
            "call_handler_us": _calls(jax.jit(_nothing(x, scale)), jax.jit(lambda x, scale: x + scale), x, scale),
            "import_ms": _imports(),
            "trace_ms": _traces(options, x, scale),
            "gpu_steps": "not yet measured on a GPU",
        }
    runs.write(KEPT, result)
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


def _nothing(*given: Any) -> Callable[..., Any]:
    """A function of one region whose plan has no steps; what it returns is what was in the memory."""
    from fusiond.frameworks.launching import VERSION, LaunchPlan
    from fusiond.jax import ffi

    ffi.register("cpu")
    words = np.asarray([VERSION, len(given), 1, 0, 0], np.int64)
    names = tuple(f"in_{i}" for i in range(len(given)))
    code = ffi.FfiAttributes("cpu", LaunchPlan(words, (), (), names, ("out_0",)), (), (), str(gxx.scheduler()))
    jaxpr = jax.make_jaxpr(lambda x, scale: x + scale)(*given)
    return lambda *arguments: ffi.region(jaxpr, code, arguments)[0]


def _moved(tree: Any) -> Any:
    return jax.tree.map(lambda each: each * 0.9 + 0.1, tree)


def _calls(fused: Callable[..., Any], plain: Callable[..., Any], *given: Any) -> dict[str, float]:
    """Microseconds of a call, medians of rounds in turns; `more` is the median of the differences in a round."""
    for _ in range(20):
        jax.block_until_ready((fused(*given), plain(*given)))
    found: dict[str, list[float]] = {"fused": [], "jit": []}
    for _ in range(ROUNDS):
        for name, function in (("fused", fused), ("jit", plain)):
            began = time.perf_counter()
            for _ in range(CALLS):
                made = function(*given)
            jax.block_until_ready(made)
            found[name].append((time.perf_counter() - began) / CALLS * 1e6)
    more = [one - other for one, other in zip(found["fused"], found["jit"], strict=True)]
    medians = {name: round(statistics.median(each), 2) for name, each in found.items()}
    return {**medians, "more": round(statistics.median(more), 2)}


def _imports() -> float:
    """Milliseconds, the median of fresh processes."""
    took = [float(subprocess.check_output([sys.executable, "-c", IMPORT], text=True)) for _ in range(STARTS)]
    return round(statistics.median(took) * 1e3, 1)


def _traces(options: dict[str, Any], *given: Any) -> dict[str, float]:
    """Milliseconds to trace and lower, without XLA's compilation; the first (which loads modules) is left out."""
    found: dict[str, list[float]] = {"fused": [], "jit": []}
    for _ in range(TRACES):
        for name, make in (("fused", lambda: fusiond.jax.fuse(layer, **options)), ("jit", lambda: jax.jit(layer))):
            jax.clear_caches()
            function = make()
            began = time.perf_counter()
            function.lower(*given)
            found[name].append((time.perf_counter() - began) * 1e3)
    return {name: round(statistics.median(each[1:]), 1) for name, each in found.items()}


if __name__ == "__main__":
    main()
