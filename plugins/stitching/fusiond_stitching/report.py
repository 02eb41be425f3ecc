"""The report of a module: the JSON of `plan --json` and the text below `plan`."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fusiond.model.english import counted
from fusiond.model.outcomes import Record
from fusiond_stitching.analysis import span as spans
from fusiond_stitching.analysis.composition import Composition
from fusiond_stitching.analysis.plan import BlockProgram, StitchedKernel
from fusiond_stitching.analysis.planner import PlannedModule
from fusiond_stitching.analysis.traffic import ideal_bytes, moved
from fusiond_stitching.codegen.tolerances import near_ties
from fusiond_stitching.frontend.graph import HloModule


def report(
    module: HloModule,
    plans: Mapping[str, PlannedModule],
    shown: str,
    frames: Mapping[str, PlannedModule] | None = None,
    modules: Mapping[str, HloModule] | None = None,
) -> dict[str, Any]:
    """The analysis: `plans` by name (`unfused`, `xla_rules`, `stitched`, ...); the groups are those of `shown`, a plan
    of `module`. `frames` are the plans of the bodies of while and conditional. `modules`: of plans whose module is
    another (one with its reductions split)."""
    frames, modules = frames or {}, modules or {}
    planned = plans[shown]
    span = spans.analyse(module)
    return {
        "instructions": len(module.instructions),
        "library_calls": module.library_calls,
        "span": span.length,
        "kernels": {name: kernels(each) for name, each in plans.items()},
        "bytes": {
            "ideal": ideal_bytes(module),
            **{name: moved(modules.get(name, module), each.plan) for name, each in plans.items()},
        },
        "groups": [_group(module, kernel, program) for kernel in planned.plan.kernels for program in kernel.programs],
        "apart": [{"root": root, "reason": reason} for root, reason in sorted(planned.plan.notes.items())],
        "library": [_boundary(module, name, reason) for name, reason in module.foreign.items()],
        "frames": [
            {
                "name": each.name,
                "instructions": len(each.instructions),
                "library_calls": each.library_calls,
                "kernels": kernels(frames[each.name]) if each.name in frames else None,
            }
            for each in module.all_frames
        ],
        "near_ties": list(near_ties(module)),
        "problems": [problem for each in plans.values() for problem in each.problems],
    }


def figures(record: Record | None, library_us: float | None) -> dict[str, float]:
    """Section 6.4, with times of the device: `fusable_ratio` is the fusable portion's part of the fastest unfused way,
    `predicted_end_to_end` what the whole module gains by the formula, `end_to_end` what the parts add up to. Nothing
    that was not measured is in it."""
    if library_us is None or record is None:
        return {} if library_us is None else {"library_us": library_us}
    whole_us = record.baseline_us + library_us
    ratio = record.baseline_us / whole_us
    found = {"library_us": library_us, "fusable_ratio": ratio}
    if record.speedup is not None and record.speedup > 0:
        found["predicted_end_to_end"] = 1 + ratio * (1 - 1 / record.speedup)
        found["end_to_end"] = whole_us / (record.baseline_us / record.speedup + library_us)
    return found


def composed(made: Composition, times_us: Mapping[str, float]) -> str:
    """What `schedules: measured` came to: how many groups run in their own way, what they take together by themselves
    (`times_us`: by part, where it is known), and the threads of the launches."""
    threads = Counter(each.threads for each in made.plan.kernels)
    shown = ", ".join(f"{count} at {each} threads" for each, count in sorted(threads.items()))
    known = [times_us[name] for name in made.taken if name in times_us]
    sum_ = f", {sum(known):.1f} us by themselves" if known and len(known) == len(made.taken) else ""
    return f"measured: {len(made.taken)} of {len(made.found.fusion.groups)} groups{sum_}; launches: {shown}"


def _boundary(module: HloModule, name: str, reason: str) -> dict[str, Any]:
    """A foreign instruction: why it is one, and the buffers round it. `call` is the same for the results of one call;
    `stand_in` is None where nobody here reads this one, `result` its place in the module's results, if it has one.
    `reads` names the buffers of its operands (those that have one: constants have none)."""
    instruction = module[name]
    bases = (module.base(each).name for each in instruction.operands)
    return {
        "name": name,
        "reason": reason,
        "call": instruction.attributes.get("call", name),
        "stand_in": module.stand_ins.get(name),
        "result": module.outputs.index(name) if name in module.is_output else None,
        "shape": instruction.shape,
        "reads": [
            module.stand_ins.get(each, f"what {each} gives") if each in module.foreign else module.buffer_of(each)
            for each in dict.fromkeys(bases)
            if module[each].opcode != "constant"
        ],
    }


def _framed(frame: Mapping[str, Any]) -> str:
    said = f"frame {frame['name']}: {counted(frame['instructions'], 'instruction')}, "
    if frame["kernels"] is None:
        return f"{said}no plan (a job with 'frame: {frame['name']}' says why)"
    said += f"{counted(frame['kernels'], 'kernel')} each time it runs"
    return f"{said} (a job of its own with 'frame: {frame['name']}')" if frame["kernels"] else said


def _filled(boundary: Mapping[str, Any]) -> str:
    said = [f"{boundary['stand_in']} is filled"] if boundary["stand_in"] else []
    said += [] if boundary["result"] is None else [f"result {boundary['result']} of the module, not compared"]
    return f"{boundary['name']} {boundary['shape']}: {', '.join(said)}"


def kernels(planned: PlannedModule) -> int | None:
    """How many launches are counted; None when there is no plan."""
    return None if planned.problems else len(planned.plan.kernels)


def _group(module: HloModule, kernel: StitchedKernel, program: BlockProgram) -> dict[str, Any]:
    return {
        "name": f"{kernel.name}.{program.name}",
        "kernel": kernel.name,
        "root": program.root,
        "instructions": [each.instruction for each in program.results],
        "shared_bytes": program.shared_bytes,
        "blocks": program.blocks,
        "threads": kernel.threads,
        "stages": len(program.stages),
        "kind": _kind(program),
        "trips": module[program.root].attributes["loop"].trips if program.scan else None,
        "schedule": {
            "split_dim": program.schedule.split_dim,
            "sword": program.schedule.sword,
            "sched_type": str(program.schedule.sched_type),
        },
    }


def _kind(program: BlockProgram) -> str:
    """How a block works: see `plan`."""
    if program.rows is not None:
        return "rows"
    if program.tile is not None:
        return "tiles"
    return "loop" if program.scan else "updates" if program.updates else "stages"


def described(report: Mapping[str, Any]) -> str:
    """The kernels of the shown plan, one line each, and why they are not fewer."""
    lines = [
        "kernels: " + ", ".join(f"{name} {count}" for name, count in report["kernels"].items()),
        f"library calls: {report['library_calls']}, critical path: {report['span']}",
    ]
    for name, groups in itertools.groupby(report["groups"], lambda each: each["kernel"]):
        lines.append(f"{name}:")
        lines += [
            f"  {each['root']}: {len(each['instructions'])} stored in {_work(each)},"
            f" {counted(each['blocks'], 'block')},"
            f" {each['schedule']['sched_type']} split_dim={each['schedule']['split_dim']}"
            f" sword={each['schedule']['sword']}, {each['shared_bytes']} bytes shared"
            for each in groups
        ]
    if report.get("parts"):
        lines.append("measured separately first:")
        lines += [
            f"  {', '.join(each['roots'])}: {each['bytes']} bytes{' each' if each['groups'] > 1 else ''},"
            f" as {each['name']}"
            for each in report["parts"]
        ]
    apart = [f"  {each['root']}: {each['reason']}" for each in report["apart"]]
    lines += ["kept apart from their readers:", *apart] if apart else []
    lines += [_framed(each) for each in report["frames"]]
    if report["near_ties"]:
        buffers = ", ".join(report["near_ties"])
        lines.append(
            f"{buffers}: decided by sums of floats, and compared exactly; whole numbers as inputs have no near ties"
        )
    return "\n".join([*lines, *_left(report["library"])])


def _left(library: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if library:
        yield "left to a library; its results are filled, not computed:"
    for call in dict.fromkeys(each["call"] for each in library):
        results = [each for each in library if each["call"] == call]
        read = f", which reads {', '.join(results[0]['reads'])}" if results[0]["reads"] else ""
        yield f"  {results[0]['reason']}{read}"
        yield from (f"    {_filled(each)}" for each in results if each["stand_in"] or each["result"] is not None)


def _work(group: Mapping[str, Any]) -> str:
    if group["kind"] == "loop":
        return f"a loop of {counted(group['trips'], 'trip')}"
    return "tiles" if group["kind"] == "tiles" else counted(group["stages"], "stage")
