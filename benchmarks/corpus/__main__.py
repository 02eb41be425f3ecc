"""The corpus, counted for an H100 that is not here: `python -m benchmarks.corpus [--only NAME ...] [--without-xla]`.

Each function of `functions` is lowered by jax at its real size and planned as the first seed plans it; its kernels are
counted (docs/counting.md), but for those that stand in for a library's. Beside it stands what XLA's GPU compiler makes
of the same function: its kernels, and what these move, counted from their PTX (see `xla_kernels`).
The least of all is what inputs read once and outputs written once come to. Nothing is measured on a GPU. The run is
written after each function and goes on where it was; flax, optax and equinox are needed for theirs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import runs
from benchmarks.corpus import xla, xla_kernels
from benchmarks.corpus.dims import REAL
from benchmarks.corpus.functions import FUNCTIONS, text
from benchmarks.counting import summed
from benchmarks.pages import DOCS, table
from fusiond.cli.counts import size
from fusiond.devices.counting import child_process
from fusiond.devices.counting.kernels import CountError
from fusiond.model.errors import RequestError
from fusiond.model.nouns import Config, DeviceLimits, Rejection
from fusiond.model.program import Fill, Program, Role
from fusiond.requests.planning import target_for_arch
from fusiond_stitching import space
from fusiond_stitching.analysis import forms, planner, traffic, verify
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import fills, importer
from fusiond_stitching.frontend.graph import HloModule

GPU = "h100"
MODEL_OFF = 0.05
SECS = 120.0  #: For counting a module
KEPT = runs.RESULTS / "static" / f"corpus-{GPU}.json"
PAGE = DOCS / "results-corpus.md"
WANTED = "pip install flax optax equinox"
RIGHT = (
    "Once, on 2026-11-24, 75 functions without library calls were emulated on a processor at these sizes and compared",
    "with jax's results, a thousand elements of each output: 0 wrong. In 2 of them large values cancel in an output,",
    "which is nearer to float64 than XLA's. (`python -m benchmarks.corpus.check`, which is no longer in the tree.)",
)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these, whether or not they are kept")
    parser.add_argument("--without-xla", action="store_true", help="what is kept of XLA stays as it is")
    parser.add_argument("--page", action="store_true", help="write the page from what is kept, and run nothing")
    given = parser.parse_args(argv)
    run = runs.new(
        "corpus", "Long et al., 2018", "python -m benchmarks.corpus", "static", {"name": GPU, "arch": "sm_90"}
    )
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else run
    run["functions"] = kept.get("functions", {})
    if unknown := [name for name in given.only if name not in FUNCTIONS]:
        parser.error(f"there is no function {unknown[0]!r} in the corpus")
    if not given.page:
        try:
            compiled = None if given.without_xla else xla.compiler()
        except xla.Unavailable as problem:
            parser.error(str(problem))
        limits = target_for_arch("sm_90").limits
        for name in given.only or [name for name in FUNCTIONS if name not in run["functions"]]:
            try:
                found = counted(text(name, REAL), name, limits)
            except ModuleNotFoundError as problem:
                parser.error(f"{name}: {problem}: {WANTED}")
            before = run["functions"].get(name, {}).get("xla")
            run["functions"][name] = {**found, "xla": before if compiled is None else rival(compiled, name)}
            run["functions"] = {each: run["functions"][each] for each in FUNCTIONS if each in run["functions"]}
            runs.write(KEPT, run)
            sys.stdout.write(f"{name}: {run['functions'][name]}\n")
    PAGE.write_text(page(run if not given.page else kept), encoding="utf-8")
    return 0


def rival(compiled: Any, name: str) -> dict[str, Any]:
    """What XLA makes of a function, and what that moves."""
    function, shapes = FUNCTIONS[name](REAL)
    asked = importer.read(text(name, REAL), name)
    held = {asked[each].attributes["number"]: fills.default(asked, each) for each in asked.parameters}
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = {"failed": None, **dataclasses.asdict(xla.counted(compiled(function, shapes, Path(folder))))}
        except (RuntimeError, RequestError) as problem:
            return {"failed": str(problem).splitlines()[0][:200]}
        try:
            return {**found, "uncounted": None, **xla_kernels.counted(Path(folder), held)}
        except (xla_kernels.Unmatched, CountError) as problem:
            return {**found, "uncounted": str(problem)}


def counted(module_text: str, name: str, limits: DeviceLimits) -> dict[str, Any]:
    """The plan of the first seed, its kernels counted; or why there is none."""
    began = time.process_time()
    asked = importer.read(module_text, name)
    module, planned = first_plan(asked, limits)
    held = {asked.buffer_of(each): fills.default(asked, each) for each in (*asked.parameters, *asked.stand_ins)}
    program = emit.program(module, planned.plan, fills=held, name=name) if planned.plan.steps else None
    found: dict[str, Any] = {
        "size": len(asked.instructions),
        "calls": asked.library_calls,
        "foreign": list(asked.foreign.values()),
        "least_bytes": traffic.ideal_bytes(asked),
        "planned_bytes": traffic.moved(module, planned.plan),
        "plan_secs": round(time.process_time() - began, 3),
        "problems": [*planned.problems, *verify.problems(module, planned.plan)],
    }
    if not isinstance(program, Program):
        why = program.detail if isinstance(program, Rejection) else "there is nothing to fuse"
        return {**found, "failed": why, "kernels": 0}
    rows = child_process.counted(
        {name: without_library(program)}, model=GPU, whole=bool(module.in_place), timeout_secs=SECS
    )
    figures = summed(rows)
    return {**found, "kernels": len(planned.plan.kernels), **figures}


def first_plan(asked: HloModule, limits: DeviceLimits) -> tuple[HloModule, planner.PlannedModule]:
    """The form of a module that the first seed takes, and its plan."""
    shaped = forms.forms(asked, limits.multiprocessors)
    offered = space.offered(limits, dots="library", large=True, scatters=shaped.scatters)
    _, config = space.seeds(limits, offered, dots="library", large=True, scatters=shaped.scatters)[0]
    module = shaped(forms.SPLIT, config.get("scatters", forms.UPDATES))
    return module, planner.plan(module, space.policy(Config.of(config), limits, dots="library"), limits)


def without_library(program: Program) -> Program:
    """The program without the plain kernels that stand in for a library's: what these would compute is filled."""
    given = {each for seam in program.seams if seam.stand_in is not None for each in seam.writes}
    outputs = {each.name for each in program.buffers if each.role is Role.OUTPUT}
    return dataclasses.replace(
        program,
        buffers=tuple(
            dataclasses.replace(each, role=Role.INPUT, fill=Fill(kind="uniform", low=-1.0, high=1.0))
            if each.name in given and each.name not in outputs
            else each
            for each in program.buffers
        ),
        steps=tuple(each for each in program.launches if not emit.is_library(each)),
        seams=(),
    )


# --- the page -------------------------------------------------------------------------------------------


def page(run: Mapping[str, Any]) -> str:
    """docs/results-corpus.md."""
    functions: Mapping[str, Any] = run["functions"]
    lines, least, kernels = [], [], []
    ahead: list[str] = []
    off: list[str] = []
    for name, found in functions.items():
        other = found["xla"] or {"failed": "not compiled"}
        moved, theirs = _moved_by_xla(other, found["least_bytes"])
        shown = name + (" *" if found["calls"] else "")
        xla_kernels = "" if other["failed"] else str(other["kernels"])
        if found["failed"]:
            lines.append((shown, found["failed"], xla_kernels, size(found["least_bytes"]), "", theirs, ""))
            continue
        ratio = found["dram_bytes"] / max(1, found["least_bytes"])
        model = found["planned_bytes"] / found["dram_bytes"]
        if abs(model - 1) > MODEL_OFF:
            off.append(f"{name} ({model:.2f})")
        if not found["calls"]:
            least.append((ratio, None if moved is None else moved / found["least_bytes"]))
        if moved is not None and other["kernels"]:
            kernels.append(found["kernels"] / other["kernels"])
            if found["dram_bytes"] > 1.01 * moved:
                ahead.append(f"{name} ({found['dram_bytes'] / moved:.2f})")
        lines.append((
            shown, str(found["kernels"]), xla_kernels, size(found["least_bytes"]), f"{ratio:.2f}", theirs,
            f"{found['plan_secs']:.2f} s",
        ))  # fmt: skip
    ours = _mean([each for each, _ in least])
    both = _mean([each for _, each in least if each is not None])
    return "\n".join([
        "# A corpus of today's functions, counted",
        "",
        f"{len(functions)} public functions of jax, flax, optax and equinox at real sizes (a llama-3-8B layer,",
        "16,384 tokens, 128k logits, a ResNet stage, a graph of a million edges), planned by the first seed. DRAM is",
        "what an H100 would move to and from its memory, counted without one ([counting.md](counting.md)), beside the",
        "least: all inputs read once, all outputs written once. XLA's kernels are those of its own GPU compiler, their",
        "bytes counted by the same counter from its PTX; `by operands` is the least that they can move (each operand",
        "that they name, once), where that could not be. What libraries compute (marked *) is left out on both sides.",
        "",
        f"Geometric means without library calls: ours {ours:.2f} times the least, XLA {both:.2f}; kernels over XLA's:",
        f"{_mean(kernels):.2f}.",
        "",
        f"XLA may move fewer bytes: {', '.join(ahead) or 'nowhere'}.",
        "",
        f"What the planner itself reckons with is within {MODEL_OFF:.0%} of these counts, but for:",
        f"{', '.join(off) or 'none'}.",
        "",
        *RIGHT,
        "",
        f"Made by `{run['command']}` on {run['date'][:10]}; not yet measured on a GPU.",
        "",
        table(("function", "kernels", "XLA", "least", "DRAM / least", "XLA / least", "planning"), lines),
        "",
    ])  # fmt: skip


def _moved_by_xla(other: Mapping[str, Any], least: int) -> tuple[float | None, str]:
    """(the bytes that XLA's kernels move, None where it was not compiled; their share of the least as it is shown)."""
    if other["failed"]:
        return None, ""
    counted = other.get("dram_bytes")
    moved = counted or other["operand_bytes"]
    return moved, f"{moved / max(1, least):.2f}" + ("" if counted else " by operands")


def _mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(each) for each in values)) if values else 0.0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
