"""Figure 8 on a device: the whole module and its fusable portion, one kernel per instruction, XLA's rules, stitched.

Every plan is checked against one kernel per instruction, then sampled in pairs with it, twice: the counted kernels (the
fusable portion), and everything with the library calls in the span. Those are the same plain kernels in every plan.
From both come the paper's fusable ratio, its fusion speed-up, and the end-to-end gain that its formula predicts,
beside the one that was measured. Where jax sees the same GPU, XLA's own executable is timed in turn with the fastest of
the plans (`beside`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import benches
from benchmarks.rivals import named_rivals, rival_rows
from benchmarks.stitching import beside, modules, paper, xla
from fusiond.model.keys import plain
from fusiond.model.nouns import Rejection
from fusiond.model.outcomes import MeasureFailed
from fusiond.model.program import Launch, Program
from fusiond.tuning.measuring import Measurer, References
from fusiond_stitching.analysis import planner
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import fills

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench(benches.Bench):
    pairs: int = 25
    quick: bool = False
    xla: xla.Backend | None = None  #: The device as XLA sees it; None where it cannot be asked


def table(bench: Bench, names: Sequence[str], known: Iterable[Row] = ()) -> Iterator[Row]:
    """A row for each module. `known`: rows of an earlier run, which stay as far as they go."""
    earlier = {each["module"]: each for each in known if "best" in each}
    with bench.measurer() as measurer:
        for name in names:
            yield earlier.get(name) or _plans(bench, measurer, name)


def _plans(bench: Bench, measurer: Measurer, name: str) -> Row:
    """A module's row."""
    row = _row(bench, measurer, name)
    times = {plan: each.get("fusable_us", each.get("problem")) for plan, each in row["plans"].items()}
    theirs = row.get("xla", {})
    times |= {"XLA": theirs.get("fusable_us", theirs.get("problem"))} if theirs else {}
    bench.say(f"{name}, us, {bench.device.evidence}: " + ", ".join(f"{plan} {each}" for plan, each in times.items()))
    why = "not timed in this run" if not bench.emulated else rival_rows.NO_GPU
    return {"module": name, **row, "rivals": named_rivals.stitching(row, why=why)}


def _programs(bench: Bench, name: str) -> dict[str, Program | Rejection]:
    """Plan -> Program, the counted kernels in its span."""
    limits = bench.device.limits
    module = modules.module(name)
    given = fills.read(module, None, _no_file)
    programs: dict[str, Program | Rejection] = {}
    for plan, policy in modules.policies(limits).items():
        planned = planner.plan(module, policy, limits)
        programs[plan] = emit.program(module, planned.plan, fills=given, name=f"{module.name}, {plan}")
    return programs


def _row(bench: Bench, measurer: Measurer, name: str) -> Row:
    programs = _programs(bench, name)
    unfused = programs["unfused"]
    if isinstance(unfused, Rejection):
        return {"problem": unfused.detail, "plans": {}}
    row: Row = {"plans": {}}
    references: References | MeasureFailed | None = None
    for key, span in (("fusable", _as_it_is), ("whole", emit.timed_whole)):
        base = bench.provider.normalise(span(unfused))
        references = measurer.references(base, f"{name}-{base.key}")
        if isinstance(references, MeasureFailed):
            return {"problem": references.reason, "plans": {}}
        for plan, program in programs.items():
            into = row["plans"].setdefault(plan, {})
            if isinstance(program, Rejection):
                into["problem"] = program.detail
            elif "problem" not in into:
                into |= _measured(bench, measurer, bench.provider.normalise(span(program)), base, references, key)
    row |= gains(row)
    fastest = programs.get(row.get("best", ""))
    if bench.xla is not None and isinstance(fastest, Program) and isinstance(references, References):
        fastest = bench.provider.normalise(fastest)
        row |= beside.row(bench.xla, measurer, name, fastest, references, quick=bench.quick)
    return row


def _as_it_is(program: Program) -> Program:
    return program


def _no_file(node: Any) -> tuple[str, str]:
    raise AssertionError("no fill of the catalogue is a file")


def _measured(
    bench: Bench, measurer: Measurer, program: Program, unfused: Program, references: References, key: str
) -> dict[str, Any]:
    """`fusable_us` or `whole_us`, and the same over one kernel per instruction."""
    measured = benches.beside(measurer, program, unfused, references, pairs=bench.pairs)
    if isinstance(measured, str):
        return {"problem": measured}
    counted = sum(1 for each in program.steps if isinstance(each, Launch) and each.counted)
    row = {f"{key}_us": round(measured.time_us, 2), "clock": measured.clock, f"{key}_samples": plain(measured)}
    if measured.ratio is not None:
        row[f"{key}_over_unfused"] = round(measured.ratio, 4)
    return row | ({"kernels": counted} if key == "fusable" else {})


def gains(row: dict[str, Any]) -> dict[str, Any]:
    """The stitched plan whose fusable portion is fastest, and the paper's three numbers for it over one kernel per
    instruction and over XLA's rules."""
    plans = {name: each for name, each in row["plans"].items() if each.get("whole_us") and each.get("fusable_us")}
    stitched = {name: each for name, each in plans.items() if name not in ("unfused", "xla_rules")}
    if not stitched:
        return {}
    best = min(stitched, key=lambda name: stitched[name]["fusable_us"])
    found: dict[str, Any] = {"best": best}
    for base in ("unfused", "xla_rules"):
        if base not in plans:
            continue
        before, after = plans[base], stitched[best]
        ratio, speedup = before["fusable_us"] / before["whole_us"], before["fusable_us"] / after["fusable_us"]
        found[f"over_{base}"] = {
            "fusable_ratio": round(ratio, 4),
            "fusion_speedup": round(speedup, 4),
            "end_to_end": round(before["whole_us"] / after["whole_us"], 4),
            "predicted_end_to_end": round(paper.predicted_end_to_end(ratio, speedup), 4),
        }
    return found
