"""Loops as PyTorch's users write them, through `torch.compile(backend="fusiond")`: launches, beside torch's.

    python -m benchmarks.models.loops_torch [--only scan ...] [--quick]

Nothing is executed on a GPU. Writes the second table of docs/results-loops.md (`python -m benchmarks.models.loops
--page` writes the page anew).
"""

from __future__ import annotations

import functools
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import commands, runs
from benchmarks.models import counted
from benchmarks.pages import table
from fusiond.errors import RequestError
from fusiond.torch.operators import MOVEMENT

KEPT = runs.RESULTS / "static" / f"loops-torch-{counted.GPU}.json"
HEAD = """## Loops of PyTorch

`python -m benchmarks.models.loops_torch`: one loop of each operator, and two that Python unrolls, through
`torch.compile(backend="fusiond")`. 1,024 steps, rows of 4,096 numbers; the cell has 256 units, for 8 sequences.
*Eager*: operators that compute something, of an unrolled loop. *Inductor's*: kernels and library calls of the code that
it generates (for a processor, since there is no GPU here), those of a body once a step; for unrolled loops at 64 steps,
since they take up to half a second a step to generate. *Rolled*: processor time to find the loop in Dynamo's graph and
write it anew. The other columns are as above.
"""


def scanned(x: Any, decay: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = decay * h + x
        return h, torch.tanh(h)

    return scan(step, torch.zeros_like(x[0]), x)[1]


def halved(x: Any, steps: int) -> Any:
    def step(i: Any, y: Any) -> Any:
        return i + 1, 0.5 * (y + x / y)

    return while_loop(lambda i, y: i < steps, step, (torch.zeros((), dtype=torch.int64), torch.ones_like(x)))[1]


def recurrence(a: Any, b: Any) -> Any:
    def combine(one: Any, other: Any) -> Any:
        return one[0] * other[0], other[0] * one[1] + other[1]

    return associative_scan(combine, (a, b), dim=0, combine_mode="generic")[1]


def advantages(rewards: Any, values: Any, done: Any) -> Any:
    found, last = torch.zeros_like(rewards), 0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + 0.99 * values[t + 1] * (1 - done[t]) - values[t]
        found[t] = last = delta + 0.99 * 0.95 * (1 - done[t]) * last
    return found


def cell(x: Any, w: Any, u: Any, b: Any) -> Any:
    h, every = torch.zeros(x.shape[1], u.shape[1]), []
    for each in x.unbind(0):
        h = torch.gru_cell(each, h, w, u, b, b)
        every.append(h)
    return torch.stack(every)


def cases(t: int, d: int, units: int) -> dict[str, tuple[Callable[..., Any], Sequence[Any]]]:
    """Name -> (function, arguments)."""

    def f(*dims: int) -> Any:
        return torch.rand(dims)

    weights = (f(3 * units, units), f(3 * units, units), f(3 * units))
    return {
        "scan": (scanned, (f(t, d), f(d))),
        "while_loop": (functools.partial(halved, steps=t), (f(d),)),
        "associative_scan": (recurrence, (f(t, d), f(t, d))),
        "unrolled advantages": (advantages, (f(t, d), f(t + 1, d), f(t, d))),
        "unrolled GRU cell": (cell, (f(t, 8, units), *weights)),
    }


REAL, SHORT, QUICK = (1024, 4096, 256), (64, 4096, 256), (33, 40, 24)


class _Eager(TorchDispatchMode):  # type: ignore[misc]
    """Counts operators that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        views = any(each.alias_info is not None and not each.alias_info.is_write for each in function._schema.returns)
        if not views and (str(function) not in MOVEMENT or "cat" in str(function)):
            self.calls[str(function)] += 1
        return function(*args, **(kwargs or {}))


def eager(function: Callable[..., Any], arguments: Sequence[Any]) -> int:
    with torch.no_grad(), _Eager() as found:
        function(*arguments)
    return found.calls.total()


class _Written(Exception):
    """Enough: the code is there."""


def inductor(function: Callable[..., Any], arguments: Sequence[Any], trips: int) -> int:
    """Kernels and library calls of Inductor's code, what is called in a loop once a trip."""
    from torch._inductor import graph

    texts: list[str] = []

    def stopped(self: Any) -> Any:
        code = self.codegen()[0]
        texts.append(getattr(code, "value", code))
        raise _Written

    torch._dynamo.reset()
    try:
        with mock.patch.object(graph.GraphLowering, "compile_to_module", stopped), torch.no_grad():
            torch.compile(function, dynamic=False)(*arguments)
    except Exception:
        if not texts:
            raise
    total, inside = 0, False
    for line in texts[0].splitlines():
        if line.lstrip().startswith("def "):
            inside = "while_loop_" in line
        if re.match(r"\s+(cpp_fused\w*|extern_kernels\.\w+)\(", line):
            total += trips if inside else 1
    return total


def row(
    function: Callable[..., Any], arguments: Sequence[Any], short: tuple[Callable[..., Any], Any], trips: int
) -> Any:
    from fusiond.torch import loop_products, rolling
    from fusiond.torch.backend import BackendOptions, Running, _by_inductor

    noting, left, steps, secs = counted.Noting({}), [], [], [0.0]

    def compiled(module: Any, part: str, default: Any, inner: Any) -> Any:
        options = BackendOptions(always=True, device=counted.DEVICE, db=noting.db)
        left.extend(each for each in Running(options, module, part, inner).regions() if each.state != "unknown")
        raise _Written

    def backend(graph: Any, inputs: Any) -> Any:
        began = time.process_time()
        module, found = rolling.rolled(graph)
        module, _ = loop_products.before(module)
        secs[0] = time.process_time() - began
        steps.extend(found)
        return _by_inductor(module, inputs, compiled)

    torch._dynamo.reset()
    with torch.no_grad():
        try:
            torch.compile(function, backend=backend, dynamic=False)(*arguments)
        except Exception as stopped:
            if not noting.questions:
                raise RuntimeError("nothing was asked") from stopped
        results = function(*arguments)
    regions = [counted.region(each)[1] for each in noting.questions]
    size = sum(math.prod(each.shape) * 4 for each in (*arguments, results))
    return {
        "refused": [each["refused"] for each in regions if each["refused"]],
        "kernels": sum(each["kernels"] for each in regions if not each["refused"]),
        "calls": sum("mm" in name or "scan" in name for each in left for name in each.operators),
        "left": sorted({each.reason for each in left if each.reason and each.reason != "too little to fuse"}),
        "moved": sum(each["planned_bytes"] for each in regions if not each["refused"]),
        "least": size,
        "eager": eager(function, arguments) if steps else None,
        "inductor": inductor(*short, trips),
        "unrolled": sum(steps),
        "rolled_secs": round(secs[0], 2),
    }


def section(run: runs.Run) -> str:
    lines = []
    for name, each in run["loops"].items():
        ours = f"{each['kernels']}" + (f" + {each['calls']}" if each["calls"] else "")
        theirs = f"{each['inductor']}" + (" (at 64)" if each["unrolled"] else "")
        secs = f"{each['rolled_secs']:.1f} s" if each["unrolled"] else ""
        why = "; ".join((*each["refused"], *each["left"]))
        lines.append(
            (name, f"**{ours}**", str(each["eager"] or ""), theirs, f"{each['moved'] / each['least']:.2f}", secs, why)
        )
    head = ("loop", "launches", "eager", "Inductor's", "DRAM over the least", "rolled", "left to torch")
    origin = f"`{run['command']}`, {run['date'][:10]}, torch {run['torch']}, nvcc {run['nvcc']}.\n"
    return "\n".join([HEAD, table(head, lines), origin])


def main(argv: Sequence[str] | None = None) -> int:
    made = commands.parser("models.loops_torch", __doc__, quick="few steps")
    made.set_defaults(device=None)
    commands.only(made, cases(*QUICK))

    def run() -> None:
        given = made.parse_args(argv)
        sizes = QUICK if given.quick else REAL
        known, short = cases(*sizes), cases(*(QUICK if given.quick else SHORT))
        commands.check_only(given, list(known), "loop")
        if given.quick and not given.out:
            raise RequestError("small sizes are not results: name a folder outside benchmarks/results", where="--out")
        torch._dynamo.config.capture_scalar_outputs = True  # else Inductor refuses `scan`
        torch._dynamo.config.recompile_limit = 1000
        where = (given.out / KEPT.name) if given.out else KEPT
        kept = json.loads(where.read_text(encoding="utf-8"))["loops"] if where.is_file() else {}
        run = runs.new("loops-torch", "", made.prog, "counted", {"name": counted.GPU, "arch": counted.ARCH})
        run |= {"torch": torch.__version__, "loops": kept}
        for name in given.only or known:
            unrolled = name.startswith("unrolled")
            kept[name] = row(*known[name], short[name] if unrolled else known[name], 1 if unrolled else sizes[0])
            run["section"] = section(run)
            runs.write(where, run)
            commands.say(f"{name}: {kept[name]}")

    return commands.status(functools.partial(run))


if __name__ == "__main__":
    raise SystemExit(main())
