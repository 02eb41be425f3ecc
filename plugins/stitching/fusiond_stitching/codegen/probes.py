"""The performance library's probes (section 4.4): one instruction under one schedule as a Program of its own."""

import dataclasses

from fusiond.model.nouns import Rejection, frozen
from fusiond.model.program import Fill, Program
from fusiond_stitching.analysis import parts, plan
from fusiond_stitching.analysis.fusion import FusionCandidate, FusionGroup, GroupContext
from fusiond_stitching.analysis.performance_library import Key
from fusiond_stitching.analysis.plan import ChunkSchedule, LibraryCall, ScheduleKind, StitchingPlan
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.analysis.propagate import named
from fusiond_stitching.analysis.stages import block_program
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import fills
from fusiond_stitching.frontend.graph import HloInstruction, HloModule


def library_calls(module: HloModule) -> Program | None:
    """The dots of a module one after the other, each on operands of its own shape; None where there are none."""
    dots = [each for each in module.instructions if each.opcode == "dot" and each.name not in module.foreign]
    if not dots:
        return None
    names = {each.name for each in dots}
    sources = [name for name in dict.fromkeys(name for each in dots for name in each.operands) if name not in names]
    given = (module[name].becoming("parameter") for name in sources)
    alone = parts.of_instructions([*given, *dots], [each.name for each in dots], f"{module.name}:library")
    calls = StitchingPlan(steps=tuple(LibraryCall(instruction=each.name) for each in dots))
    filled = {alone.buffer_of(each): fills.default(alone, each) for each in alone.parameters}
    made = emit.program(alone, calls, fills=filled, name="probe library calls")
    return None if isinstance(made, Rejection) else emit.timed_whole(made)


def library_key(calls: Program) -> str:
    """The key of the time that library calls take."""
    return f"stitching-library:{calls.work_key}"


def program(module: HloModule, key: Key, policy: FusionPolicy) -> Program | None:
    """The Program that measures a key; `key.example` is one of the module's instructions. None where there is none."""
    alone = isolated(module, module[key.example])
    (name,) = alone.outputs
    schedule = named(key.dims, key.chunk) or ChunkSchedule(0, 1, ScheduleKind.ROW)
    candidate = FusionCandidate(schedule, key.blocks, frozen({name: key.chunk}))
    group = FusionGroup(place=(0, 0), root=name, members=(name,), candidates=(candidate,))
    found = block_program(GroupContext(alone, policy, group, frozenset({name}), ()), candidate, "probe")
    if isinstance(found, str):
        return None
    filled = {alone.buffer_of(each): _fill(alone, each) for each in alone.parameters}
    kernels = StitchingPlan(steps=(plan.alone(found, "probe", key.threads),))
    made = emit.program(alone, kernels, fills=filled, name=f"probe {key.opcode} {key.schedule}")
    return None if isinstance(made, Rejection) else made


def _fill(alone: HloModule, name: str) -> Fill:
    """Floats where roots, logarithms and powers are numbers: some devices are slower with NaN."""
    plain = fills.default(alone, name)
    floats = alone[name].dtype.startswith(("f", "bf"))
    return dataclasses.replace(plain, kind="uniform", low=0.25, high=0.75) if floats else plain


def isolated(module: HloModule, instruction: HloInstruction) -> HloModule:
    """A module of one instruction, whose operands are parameters (constants stay constants)."""
    operands = [module[name] for name in dict.fromkeys(instruction.operands)]
    sources = [each if each.opcode == "constant" else each.becoming("parameter") for each in operands]
    return parts.of_instructions([*sources, instruction], [instruction.name], f"{module.name}:{instruction.name}")
