"""The passes between a graph's text and its plan, as a literal list; the verifier runs after each.

    select_scatters      scatters of which at most one update falls on an element become selects
    place_windows        one window that is scattered is put in by its place; a slice whose place is known is cut there
    leave_scatters       scatters that nothing here would bring to an end are left to a library
    sink_gathers         a look-up in what is computed is computed of look-ups
    part_reduces         what was put side by side and is reduced again is taken as it was before
    simplify             what changes nothing in row-major order is dropped (`copy`, a broadcast, reshape or transpose
                         that gives what it takes), equal instructions are merged, a transpose in front of a dot goes
                         into its dimension numbers, one behind it that swaps its sides swaps the operands
    drop_unit_dims       dimensions of size 1 dropped where they only stand between values that belong together
    simplify             once more, of what that made
    own_outputs          each output a value of its own, neither a parameter nor a constant nor another output
    store_for_dots       dots read buffers: of a constant, a copy

Names that stay keep their meaning; every pass gives a graph that the text's other readers could have been given.
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fusiond.model.keys import content_key
from fusiond_stitching.frontend import drop_unit_dims as unit_dims
from fusiond_stitching.frontend import (
    scatter_updates,
    selected_scatters,
    shapes,
    short_reduces,
    static_windows,
    sunk_gathers,
)
from fusiond_stitching.frontend.graph import KNOWN, SOURCES, HloInstruction, behind, topological


@dataclass(frozen=True, slots=True, kw_only=True)
class HloGraph:
    """Instructions by name, the names of the results, and why some are left to a library. `state`: of the body of a
    loop, its parameters in order, which stay where they are when they are handed on."""

    instructions: Mapping[str, HloInstruction]
    outputs: tuple[str, ...]
    foreign: Mapping[str, str]
    state: tuple[str, ...] = ()


Pass: TypeAlias = Callable[[HloGraph], HloGraph]


def canonical(graph: HloGraph) -> HloGraph:
    """The graph behind all passes. AssertionError where one of them breaks the graph, which is a bug of this plugin."""
    return _behind(graph, PASSES)


def again(graph: HloGraph) -> HloGraph:
    """A canonical graph that has been changed since: equal values are merged, and what needs a buffer has one."""
    return _behind(graph, (simplify, own_outputs, store_for_dots))


def _behind(graph: HloGraph, passes: Sequence[Pass]) -> HloGraph:
    for each in passes:
        graph = each(graph)
        verify(graph, each.__name__)
    return graph


def verify(graph: HloGraph, after: str) -> None:
    """Raises AssertionError unless all operands and outputs are there and shapes follow from each other."""
    given = graph.instructions
    missing = [name for name in graph.outputs if name not in given]
    assert not missing, f"{after}: the output {missing[0]} is gone"
    for each in given.values():
        absent = [name for name in each.operands if name not in given]
        assert not absent, f"{after}: {each.name} reads {absent[0]}, which is gone"
        if each.name not in graph.foreign and each.opcode in KNOWN:
            problem = shapes.problem(each, [given[name] for name in each.operands])
            assert not problem, f"{after}: {each}: {problem}"


# --- scatters -------------------------------------------------------------------------------------------


Instructions: TypeAlias = Mapping[str, HloInstruction]


def _rewriting(name: str, rewritten: Callable[[Instructions, Mapping[str, str]], Instructions]) -> Pass:
    """A pass that gives other instructions, of these and of those that are left to a library."""

    def apply(graph: HloGraph) -> HloGraph:
        return dataclasses.replace(graph, instructions=rewritten(graph.instructions, graph.foreign))

    apply.__name__ = name
    return apply


select_scatters = _rewriting("select_scatters", selected_scatters.selected)
place_windows = _rewriting("place_windows", static_windows.placed)
sink_gathers = _rewriting("sink_gathers", sunk_gathers.sunk)
part_reduces = _rewriting("part_reduces", short_reduces.parted)
drop_unit_dims = _rewriting("drop_unit_dims", unit_dims.dropped)


def leave_scatters(graph: HloGraph) -> HloGraph:
    """Their updates cannot be applied one by one, nor sorted, and code that looks at all of them for each element of
    the result would not come to an end."""
    given = graph.instructions
    left = {
        name: f"scatter {name!r}: {count // given[name].elements} updates for each of {given[name].elements} elements "
        "would be looked at"
        for name, count in scatter_updates.endless(given, graph.foreign, deterministic=False).items()
    }
    return dataclasses.replace(graph, foreign={**graph.foreign, **left})


# --- identities, equal instructions, dots ---------------------------------------------------------------


def simplify(graph: HloGraph) -> HloGraph:
    given, foreign = graph.instructions, graph.foreign
    alias: dict[str, str] = {}
    kept: dict[str, HloInstruction] = {}
    seen: dict[str, str] = {}
    uses = collections.Counter(operand for each in given.values() for operand in each.operands)
    uses.update(graph.outputs)
    for instruction in topological(given.values()):
        operands = tuple(alias[each] for each in instruction.operands)
        new = dataclasses.replace(instruction, operands=operands) if operands != instruction.operands else instruction
        if new.opcode == "dot" and new.name not in foreign:
            new = _folded(new, kept, foreign)
        if new.opcode == "transpose" and new.name not in foreign and uses[instruction.operands[0]] == 1:
            new = _swapped(new, kept, foreign)
        same = _identity(new, kept, foreign) if new.name not in foreign else None
        if same is None and new.opcode != "parameter" and new.name not in foreign:
            key = value_key(new)
            same = seen.setdefault(key, new.name)
            same = None if same == new.name else same
        alias[new.name] = same or new.name
        if same is None:
            kept[new.name] = new
    return dataclasses.replace(graph, instructions=kept, outputs=tuple(alias[each] for each in graph.outputs))


def value_key(instruction: HloInstruction) -> str:
    values = instruction.attributes.get("values")
    attributes = {name: each for name, each in instruction.attributes.items() if name not in ("computation", "values")}
    computation = instruction.attributes.get("computation")
    shown = "" if computation is None else computation.text
    return content_key(
        [instruction.opcode, instruction.dtype, list(instruction.dims), list(instruction.operands), repr(attributes),
         repr(values), shown]
    )  # fmt: skip


def _identity(
    instruction: HloInstruction, kept: Mapping[str, HloInstruction], foreign: Mapping[str, str]
) -> str | None:
    """The operand that this instruction equals, when it changes nothing."""
    if len(instruction.operands) != 1:
        return None
    (operand,) = instruction.operands
    before = kept[operand]
    if before.dims != instruction.dims or before.dtype != instruction.dtype:
        twice = instruction.opcode == before.opcode == "reshape" and operand not in foreign
        return before.operands[0] if twice and kept[before.operands[0]].dims == instruction.dims else None
    if instruction.opcode in ("broadcast", "transpose"):
        return operand if instruction.attributes["dimensions"] == tuple(range(len(before.dims))) else None
    return operand if instruction.opcode in ("reshape", "copy", "convert", "bitcast-convert", "slice") else None


def _swapped(
    transpose: HloInstruction, kept: Mapping[str, HloInstruction], foreign: Mapping[str, str]
) -> HloInstruction:
    """A transpose that only puts the right side's dimensions of a dot in front of the left side's: the dot of the same
    operands in the other order."""
    dot = kept[transpose.operands[0]]
    if dot.opcode != "dot" or dot.name in foreign:
        return transpose
    numbers, rank, batch = dot.attributes, len(dot.dims), len(dot.attributes["lhs_batch"])
    right = len(kept[dot.operands[1]].dims) - batch - len(numbers["rhs_contracting"])
    split = rank - right  # where the right side's dimensions begin in the result
    if transpose.attributes["dimensions"] != (*range(batch), *range(split, rank), *range(batch, split)):
        return transpose
    other = {"lhs": "rhs", "rhs": "lhs"}
    swapped = {name: numbers[other[name[:3]] + name[3:]] for name in numbers}
    return transpose.becoming("dot", *reversed(dot.operands), **swapped)


def _folded(dot: HloInstruction, kept: Mapping[str, HloInstruction], foreign: Mapping[str, str]) -> HloInstruction:
    """A dot whose operands are read through their transposes, where the order of the result's dims stays."""
    operands = list(dot.operands)
    attributes = dict(dot.attributes)
    for place, side in enumerate(("lhs", "rhs")):
        source = kept[operands[place]]
        if source.opcode != "transpose" or source.name in foreign:
            continue
        order = source.attributes["dimensions"]
        used = attributes[f"{side}_batch"] + attributes[f"{side}_contracting"]
        free = [order[at] for at in range(len(order)) if at not in used]
        if free != sorted(free):
            continue
        operands[place] = source.operands[0]
        for name in (f"{side}_batch", f"{side}_contracting"):
            attributes[name] = tuple(order[at] for at in attributes[name])
    if operands == list(dot.operands):
        return dot
    return dot.becoming("dot", *operands, **attributes)


# --- buffers --------------------------------------------------------------------------------------------


def own_outputs(graph: HloGraph) -> HloGraph:
    kept = dict(graph.instructions)
    outputs = [unit_dims.bare(kept, each) for each in graph.outputs]
    for place, output in enumerate(outputs):
        if graph.state[place : place + 1] == (output,):
            continue  # the loop's state stays where it is
        source = kept[output]
        if source.opcode in SOURCES or output in outputs[:place]:
            own = next(each for each in (f"{output}~out{n}" for n in itertools.count(place)) if each not in kept)
            kept[own] = source.becoming("copy", output, name=own)
            outputs[place] = own
    return dataclasses.replace(graph, instructions=kept, outputs=tuple(outputs))


def store_for_dots(graph: HloGraph) -> HloGraph:
    """How a foreign instruction comes by its constants is not ours to say."""
    kept = dict(graph.instructions)
    for call in graph.instructions.values():
        if call.opcode != "dot" or call.name in graph.foreign:
            continue
        operands = list(call.operands)
        for place, name in enumerate(operands):
            if behind(kept, name, "reshape").opcode == "constant":
                operands[place] = f"{name}~stored"
                kept[operands[place]] = kept[name].becoming("copy", name, name=operands[place])
        if tuple(operands) != call.operands:
            kept[call.name] = dataclasses.replace(call, operands=tuple(operands))
    return dataclasses.replace(graph, instructions=kept)


PASSES: tuple[Pass, ...] = (
    select_scatters, place_windows, leave_scatters, sink_gathers, part_reduces, simplify, drop_unit_dims, simplify,
    own_outputs, store_for_dots,
)  # fmt: skip
