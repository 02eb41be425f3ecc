"""A group of a plan as a module of its own, in the one form that all equal groups have.

    group of nmt_attn          HloModule divide_6c1f09e2a4
      sub.7, exp.3, ...  -->   p0 = f32[64,128] parameter(0), v0 = ..., ROOT results = (...) tuple(v9)

Its parameters are the values that other groups, library calls or the user give it; its outputs are what others read.
Names and the order of parameters and outputs follow from what is computed alone, so layers that repeat, in one module
or in several, are one text and one key.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusiond.model.errors import RequestError
from fusiond.model.keys import content_key, text_key
from fusiond.model.nouns import DeviceLimits, frozen
from fusiond.model.program import Fill
from fusiond_stitching.analysis import planner
from fusiond_stitching.analysis.fusion import Elsewhere, FusionGroup
from fusiond_stitching.analysis.plan import BlockProgram
from fusiond_stitching.analysis.planner import PlannedModule
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.frontend import fills as filling
from fusiond_stitching.frontend import importer, passes, printer
from fusiond_stitching.frontend.graph import MOVEMENT, HloInstruction, HloModule, reached

LEAST_BYTES = 1 << 14  #: A group that reads and writes less than this is not worth a job of its own
_SWEEPS = 2
"""How often an instruction's place among the others goes into its mark; twice tells apart all but what is alike."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A group by itself."""

    name: str  #: The first output's opcode, and a key of all that decides a measurement
    module: HloModule
    text: str  #: The module as HLO text
    names: Mapping[str, str]  #: Its instructions -> those of the whole module
    fills: Mapping[str, Fill]  #: What its inputs hold, by buffer: as the whole module's inputs do where it reads them
    bytes: int  #: What it reads and writes, each buffer once
    dots: str  #: `stitched` where dots are part of groups, else `library`


def of_plan(module: HloModule, planned: PlannedModule, fills: Mapping[str, Fill], *, dots: str) -> dict[str, Part]:
    """Root -> part, for each group of a plan that is worth measuring by itself and whose text says all of it. `fills`
    are the whole module's, by buffer."""
    found = {}
    given = {name: fills[module.buffer_of(name)] for name in (*module.parameters, *module.stand_ins)}
    alone = groups(module, planned)
    for group in planned.fusion.groups:
        own = alone[group.root]
        if not _trivial(module, group, own) and (made := part(own, given, dots=dots)) is not None:
            found[group.root] = made
    return found


def _trivial(module: HloModule, group: FusionGroup, alone: HloModule) -> bool:
    """Nothing to choose, or too little to measure."""
    single = len(group.members) == 1
    plain = all(module[each].elementwise or module[each].opcode in MOVEMENT for each in group.members)
    return (single and plain) or _bytes(alone) < LEAST_BYTES


def _bytes(module: HloModule) -> int:
    return sum(module[each].size_bytes for each in (*module.parameters, *module.outputs))


# --- a group out of a module ----------------------------------------------------------------------------


def groups(module: HloModule, planned: PlannedModule) -> dict[str, HloModule]:
    """Root -> the group as a module, under the names that its instructions have in the whole one."""
    fusion = planned.fusion
    stored = planner.stored_members(module, fusion)
    filled = {*module.parameters, *(name for group in fusion.groups for name in group.members), *fusion.calls}
    return {
        group.root: _alone(module, group, Elsewhere(filled, frozenset(group.members)), stored[place])
        for place, group in enumerate(fusion.groups)
    }


def _alone(module: HloModule, group: FusionGroup, elsewhere: Elsewhere, stored: Iterable[str]) -> HloModule:
    inner = reached(group.members, lambda name: () if name in elsewhere else module[name].operands)
    ordered = (module[name] for name in sorted(inner, key=module.number.__getitem__))
    own = [each.becoming("parameter") if each.name in elsewhere else each for each in ordered]
    return of_instructions(own, sorted(stored, key=module.number.__getitem__), group.root)


def of_instructions(ordered: Iterable[HloInstruction], outputs: Sequence[str], name: str) -> HloModule:
    """A module of these instructions (operands before users): its parameters first, numbered as they come."""
    given = list(ordered)
    parameters = [each for each in given if each.opcode == "parameter"]
    numbered = [each.becoming("parameter", number=number) for number, each in enumerate(parameters)]
    return HloModule(
        name=name,
        instructions=(*numbered, *(each for each in given if each.opcode != "parameter")),
        parameters=tuple(each.name for each in numbered),
        outputs=tuple(outputs),
    )


# --- the form that equal groups have in common ----------------------------------------------------------


def part(alone: HloModule, given: Mapping[str, Fill], *, dots: str) -> Part | None:
    """A group, as `groups` gives it, in its own names; None when its text, read again, is another module. `given`: what
    parameters hold (by name) that the whole module has too."""
    names, own = _renamed(alone, given)
    try:
        body = printer.written(own, "part")
        if importer.digest(importer.read(body, "part")) != importer.digest(own):
            return None
    except (ValueError, RequestError):
        return None
    filled = {
        own.buffer_of(name): given[names[name]] if names[name] in given else filling.default(own, name)
        for name in own.parameters
    }
    said = {name: each.content for name, each in filled.items()}
    opcode = own[own.outputs[0]].opcode.replace("-", "_")
    name = f"{opcode}_{text_key(body + content_key([said, dots]))[:10]}"
    return Part(
        name=name,
        module=dataclasses.replace(own, name=name),
        text=printer.written(own, name),
        names=frozen(names),
        fills=frozen(filled),
        bytes=_bytes(own),
        dots=dots,
    )


def _renamed(alone: HloModule, given: Mapping[str, Fill]) -> tuple[dict[str, str], HloModule]:
    """(new name -> old name, the module under the new names): `p0` for parameters, `v0` for the rest, in the order in
    which they are met from the outputs down; a copy is called as `lower` calls it."""
    marks = _marks(alone, given)
    copied = {name for name in alone.outputs if alone[name].opcode == "copy"}
    outputs = sorted(alone.outputs, key=lambda name: (name in copied, marks[name], alone.number[name]))
    order = _postorder(alone, outputs)
    order = [*(name for name in order if name not in copied), *(name for name in outputs if name in copied)]
    new: dict[str, str] = {}
    counts = {"p": itertools.count(), "v": itertools.count()}
    variadic: dict[tuple[object, ...], str] = {}
    for name in order:
        each = alone[name]
        if each.opcode == "copy":
            new[name] = f"{new[each.operands[0]]}~out{outputs.index(name)}"
        elif each.opcode == "reduce" and len(each.operands) > 2:
            key = (each.operands, each.attributes["dimensions"], id(each.attributes["computation"]))
            base = variadic.get(key) or variadic.setdefault(key, f"v{next(counts['v'])}")
            new[name] = f"{base}.{each.attributes['result']}"
        else:
            kind = "p" if each.opcode == "parameter" else "v"
            new[name] = f"{kind}{next(counts[kind])}"
    renamed = [
        dataclasses.replace(alone[name], name=new[name], operands=tuple(new[each] for each in alone[name].operands))
        for name in order
    ]
    own = of_instructions(renamed, [new[name] for name in outputs], "part")
    return {mine: name for name, mine in new.items()}, own


def _postorder(module: HloModule, outputs: Iterable[str]) -> list[str]:
    """Operands before users, from the outputs down; the results of one variadic reduce stand together."""
    done: dict[str, None] = {}
    for output in outputs:
        stack = [output]
        while stack:
            name = stack[-1]
            waiting = [each for each in module[name].operands if each not in done]
            if waiting:
                stack += reversed(waiting)
                continue
            stack.pop()
            for each in _together(module, module[name]):
                done.setdefault(each)
    return list(done)


def _together(module: HloModule, instruction: HloInstruction) -> list[str]:
    """The results of the variadic reduce that an instruction is one of; itself where it is none."""
    if instruction.opcode != "reduce" or len(instruction.operands) <= 2:
        return [instruction.name]
    same = [
        each
        for each in map(module.__getitem__, module.users[instruction.operands[0]])
        if each.opcode == "reduce"
        and each.operands == instruction.operands
        and each.attributes["dimensions"] == instruction.attributes["dimensions"]
        and each.attributes["computation"] is instruction.attributes["computation"]
    ]
    return [each.name for each in sorted(same, key=lambda each: each.attributes["result"])]


def _marks(module: HloModule, given: Mapping[str, Fill]) -> dict[str, str]:
    """A mark for each instruction: equal only where nothing tells two of them apart, not what they compute, not who
    reads it. It knows no names."""
    outputs = module.is_output
    marks = {}
    for each in module.instructions:
        if each.opcode == "parameter":
            key = content_key([each.dtype, list(each.dims), given.get(each.name)])
        else:
            key = passes.value_key(dataclasses.replace(each, name="", operands=()))
        marks[each.name] = f"{key}{each.name in outputs}"
    for _ in range(_SWEEPS):
        for each in module.instructions:
            marks[each.name] = text_key("|".join([marks[each.name], *(marks[name] for name in each.operands)]))
        for each in reversed(module.instructions):
            readers = sorted(
                f"{place}{marks[user]}"
                for user in module.users[each.name]
                for place, name in enumerate(module[user].operands)
                if name == each.name
            )
            marks[each.name] = text_key("|".join([marks[each.name], *readers]))
    return marks


# --- as one group ---------------------------------------------------------------------------------------


def planned(
    module: HloModule, policy: FusionPolicy, limits: DeviceLimits | None = None, library: Mapping[str, float] = frozen()
) -> PlannedModule:
    """The plan of a group by itself: nothing but its own schedule, storage and exchange is decided."""
    rules = dataclasses.replace(policy, packing=True, barriers=False, lift=False)
    return planner.plan(module, rules, limits, library)


def only(found: PlannedModule) -> BlockProgram | str:
    """The block program of a plan that has just one; else a text that says why not."""
    if found.problems:
        return found.problems[0]
    programs = [program for kernel in found.plan.kernels for program in kernel.programs]
    if len(programs) != 1 or len(found.plan.steps) != 1:
        apart = "; ".join(f"{root}: {reason}" for root, reason in sorted(found.plan.notes.items()))
        return f"this is {len(programs)} groups ({apart or 'they share nothing'})"
    return programs[0]
