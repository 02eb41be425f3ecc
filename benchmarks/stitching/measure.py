"""Figure 8 on a device: the whole module and its fusable portion, one kernel per instruction, XLA's rules, stitched.

Every plan is checked against one kernel per instruction, then sampled in pairs with it. The library calls by themselves
(the same plain kernels in every plan) are timed in the same run; the fusable time of a plan is its whole time without
them. From both come the paper's fusable ratio, its fusion speed-up, and the end-to-end gain that its formula predicts,
beside the one that was measured.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.stitching import modules, paper
from fusiond.devices.base import DeviceProvider
from fusiond.devices.lock import device_lock
from fusiond.devices.supervisor import Supervisor
from fusiond.devices.timing import Sampling
from fusiond.measuring import Measurer, References
from fusiond.model import DeviceInfo, MeasureFailed, Purpose, Rejection, frozen
from fusiond.program import Launch, Program
from fusiond_stitching import emit, fills, planner
from fusiond_stitching.graph import Instruction, Module
from fusiond_stitching.plan import LibraryCall, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    provider: DeviceProvider
    device: DeviceInfo
    pairs: int = 25
    say: Callable[[str], None] = field(default=lambda line: None, repr=False)


def table(bench: Bench, names: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each module."""
    found = []
    with (
        tempfile.TemporaryDirectory(prefix="fusiond-stitching-") as folder,
        device_lock(bench.device, stop=lambda: False, waiting=lambda: bench.say("another fusiond uses the device")),
    ):
        runner = Supervisor(bench.provider, bench.device)
        measurer = Measurer(bench.provider, runner, Path(folder) / "bundles", Path(folder) / "work")
        try:
            for name in names:
                row = _row(bench, measurer, modules.module(name))
                found.append({"module": name, **row})
                times = {plan: each.get("whole_us", each.get("problem")) for plan, each in row["plans"].items()}
                bench.say(f"{name}: " + ", ".join(f"{plan} {each}" for plan, each in times.items()))
        finally:
            measurer.close()
            runner.close()
    return found


def _row(bench: Bench, measurer: Measurer, module: Module) -> dict[str, Any]:
    limits = bench.device.limits
    given = fills.read(module, None, _no_file)
    programs: dict[str, Program | Rejection] = {}
    for name, policy in modules.policies(limits).items():
        planned = planner.plan(module, policy, limits)
        found = emit.program(module, planned.plan, fills=given, name=f"{module.name}, {name}")
        programs[name] = found if isinstance(found, Rejection) else bench.provider.normalise(found)
    unfused = programs["unfused"]
    if isinstance(unfused, Rejection):
        return {"problem": unfused.detail, "plans": {}}
    references = measurer.references(unfused, f"{module.name}-{unfused.key}")
    if isinstance(references, MeasureFailed):
        return {"problem": references.reason, "plans": {}}
    row: dict[str, Any] = {"library_us": _library(bench, measurer, module), "plans": {}}
    for name, program in programs.items():
        if isinstance(program, Rejection):
            row["plans"][name] = {"problem": program.detail}
        else:
            row["plans"][name] = _measured(bench, measurer, program, unfused, references)
    return row | gains(row)


def _no_file(node: Any) -> tuple[str, str]:
    raise AssertionError("no fill of the catalogue is a file")


def _measured(
    bench: Bench, measurer: Measurer, program: Program, unfused: Program, references: References
) -> dict[str, Any]:
    launches = [each for each in program.steps if isinstance(each, Launch)]
    row: dict[str, Any] = {"kernels": sum(1 for each in launches if each.counted)}
    worst = measurer.check(program, references)
    if isinstance(worst, MeasureFailed):
        return row | {"problem": f"{worst.outcome.value}: {worst.reason}"}
    plan = Sampling(purpose=Purpose.BASELINE, pairs=bench.pairs)
    measured = measurer.sample(program, None if program is unfused else unfused, plan, references)
    if isinstance(measured, MeasureFailed):
        return row | {"problem": f"{measured.outcome.value}: {measured.reason}"}
    ratio = 1.0 if measured.ratio is None else round(measured.ratio, 4)
    return row | {"whole_us": round(measured.time_us, 2), "over_unfused": ratio, "clock": measured.clock}


def _alone(bench: Bench, measurer: Measurer, program: Program) -> float | str:
    """Microseconds of a program by itself, or why there are none."""
    references = measurer.references(program, f"{program.name}-{program.key}")
    if isinstance(references, MeasureFailed):
        return references.reason
    measured = measurer.sample(program, None, Sampling(purpose=Purpose.PROBE), references)
    return measured.reason if isinstance(measured, MeasureFailed) else round(measured.time_us, 2)


def library_only(module: Module) -> Module | None:
    """The library calls of a module and nothing else: what they read of the rest is a parameter, what they make an
    output. None when there are none."""
    calls = [each.name for each in module.instructions if module.library(each)]
    if not calls:
        return None
    kept: dict[str, Instruction] = {}
    stack = list(calls)
    while stack:
        each = module[stack.pop()]
        if each.name in kept:
            continue
        if module.library(each) or each.opcode in ("constant", "reshape"):
            kept[each.name] = each
            stack += each.operands
        else:
            kept[each.name] = dataclasses.replace(each, opcode="parameter", operands=(), attributes=frozen({}))
    parameters = [name for name in module.by_name if name in kept and kept[name].opcode == "parameter"]
    for number, name in enumerate(parameters):
        kept[name] = dataclasses.replace(kept[name], attributes=frozen({"number": number}))
    return Module(
        name=f"{module.name}_library",
        instructions=tuple(kept[name] for name in module.by_name if name in kept),
        parameters=tuple(parameters),
        outputs=tuple(calls),
        foreign=module.foreign,
    )


def _library(bench: Bench, measurer: Measurer, module: Module) -> float | str:
    """Microseconds of the library calls by themselves, or why there are none."""
    calls = library_only(module)
    if calls is None:
        return 0.0
    steps = tuple(LibraryCall(instruction=name) for name in calls.outputs)
    program = emit.program(calls, Plan(steps=steps), fills={})
    if isinstance(program, Rejection):
        return program.detail
    return _alone(bench, measurer, bench.provider.normalise(program))


def gains(row: dict[str, Any]) -> dict[str, Any]:
    """Fusable times, the fastest stitched plan, and the paper's three numbers for it over one kernel per instruction
    and over XLA's rules."""
    library = row["library_us"]
    plans = {name: each for name, each in row["plans"].items() if "whole_us" in each}
    if not isinstance(library, float) or "unfused" not in plans:
        return {}
    for each in plans.values():
        each["fusable_us"] = round(max(0.0, each["whole_us"] - library), 2)
    stitched = {name: each for name, each in plans.items() if name not in ("unfused", "xla_rules")}
    if not stitched:
        return {}
    best = min(stitched, key=lambda name: stitched[name]["whole_us"])
    found: dict[str, Any] = {"best": best}
    for base in ("unfused", "xla_rules"):
        if base not in plans or not stitched[best]["fusable_us"]:
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
