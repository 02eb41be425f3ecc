"""Joins users of a loop to it: results are stored directly, and unused values are not stored.

    z = convert(ys * gate + x)                 element by element of what the loop's trips store
      -->  z = scan of convert(y * gate[i] + x[i])

It joins only where less is moved: a value that is stored anyway is not stored twice.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fusiond.model.nouns import frozen
from fusiond_stitching.frontend.graph import ELEMENTWISE, HloInstruction, HloModule, topological
from fusiond_stitching.frontend.scan_loop import Loop


def with_users(
    instructions: Mapping[str, HloInstruction], foreign: Mapping[str, str], outputs: Sequence[str]
) -> Mapping[str, HloInstruction]:
    """The graph with what is computed element by element of loops' results inside these loops, where less is moved."""
    found = dict(instructions)
    for name in dict.fromkeys(each.attributes["loop"].name for each in instructions.values() if each.opcode == "scan"):
        _Users(found, foreign, frozenset(outputs), name).join()
    return found


@dataclass
class _Users:
    found: dict[str, HloInstruction]
    foreign: Mapping[str, str]
    outputs: frozenset[str]
    name: str  #: The loop's

    def __post_init__(self) -> None:
        scans = (each for each in self.found.values() if each.opcode == "scan")
        self.results = [each for each in scans if each.attributes["loop"].name == self.name]
        self.loop = self.results[0].attributes["loop"]
        self.stacked = {
            each.name: self.loop.body[each.attributes["result"]]
            for each in self.results
            if each.attributes["result"] in self.loop.stacked and each.attributes["result"] not in self.loop.groups
        }

    def join(self) -> None:
        """Takes in what lies behind the results of each kind: stored in pieces of equal dims at equal places."""
        kinds = {_kind(self.loop.body, each): None for each in self.stacked.values()}
        for kind in kinds:
            own = {name for name, each in self.stacked.items() if _kind(self.loop.body, each) == kind}
            joined = self._joined(own)
            if joined and self._moves_less(own, joined):
                self._take(own, joined)
                return  # what else there is sees another loop

    def _joined(self, own: set[str]) -> list[str]:
        """The instructions behind the results that only need them and what the loop has no part in, in order."""
        dims = self.found[next(iter(own))].dims
        behind = {each.name for each in self.results}
        found: dict[str, None] = {}
        for each in topological(self.found.values()):
            if (each.opcode == "scan" and each.name in behind) or behind.isdisjoint(each.operands):
                continue
            behind.add(each.name)
            alike = each.opcode in ELEMENTWISE and each.dims == dims and each.name not in self.foreign
            if alike and all(name not in behind or name in own or name in found for name in each.operands):
                found[each.name] = None
        return list(found)

    def _read(self, besides: Collection[str] = ()) -> set[str]:
        """What is read by others than these."""
        return {name for each in self.found.values() if each.name not in besides for name in each.operands}

    def _stored(self, own: set[str], joined: Sequence[str]) -> list[str]:
        """What others need of the results and the instructions that have joined them."""
        needed = self.outputs | self._read(set(joined))
        return [name for name in (*sorted(own), *joined) if name in needed]

    def _moves_less(self, own: set[str], joined: Sequence[str]) -> bool:
        size = {name: self.found[name].size_bytes for name in (*own, *joined)}
        read, read_besides = self._read(), self._read(set(joined))
        before = sum(size[name] * (1 + (name in read)) for name in own)
        before += sum(size[name] for name in joined if name in self.outputs)
        return sum(size[name] * (1 + (name in read_besides)) for name in self._stored(own, joined)) < before

    def _take(self, own: set[str], joined: Sequence[str]) -> None:
        grown = _GrownBody(self.loop, self.results[0], self.found, self.stacked[min(own)])
        body, update = self.loop.body, grown.update
        inside = {name: body[self.stacked[name].operands[1]].name for name in own}
        for name in joined:
            inside[name] = grown.piecewise(self.found[name], inside)
        labels = {
            name: self.stacked[name].name if name in own else grown.laid(self.found[name], inside[name])
            for name in self._stored(own, joined)
        }
        others = [name for name in self.loop.stacked if name not in {self.stacked[each].name for each in own}]
        axes = self.loop.axis_of[update.name]
        alone = all(axis is not None or dim == 1 for axis, dim in zip(axes, update.dims, strict=True))
        alone = alone and all(start in self.loop.numbers for start in grown.starts)
        axis_of = {**self.loop.axis_of, **dict.fromkeys((*grown.pieces, *(inside[each] for each in joined)), axes)}
        made = dataclasses.replace(
            self.loop, body=grown.body(), inputs=tuple(grown.inputs), stacked=(*others, *labels.values()),
            reads=(*self.loop.reads, *(grown.pieces if alone else ())), axis_of=frozen(axis_of),
        )  # fmt: skip
        results = {each.name: each.attributes["result"] for each in self.results} | labels
        for name in {*results, *joined}:
            if name in labels or name not in {*own, *joined}:
                new = self.found[name].becoming("scan", *grown.operands, loop=made, result=results[name])
                self.found[name] = new
            else:
                del self.found[name]  # nobody needs it


class _GrownBody:
    """The body of a loop with more in it: pieces of values outside, what is computed of them, what is stored.
    `first`: the dynamic-update-slice at whose places all of it is."""

    def __init__(
        self, loop: Loop, result: HloInstruction, outside: Mapping[str, HloInstruction], first: HloInstruction
    ) -> None:
        self.loop = loop
        self.outside = outside
        self.whole_dims = first.dims
        self.update = loop.body[first.operands[1]]
        self.starts = first.operands[2:]
        self.added: dict[str, HloInstruction] = {}
        self.operand_of = dict(zip(loop.inputs, result.operands, strict=True))
        self.inputs = list(loop.inputs)
        self.operands = list(result.operands)
        self.parameters = list(loop.body.parameters)
        self.pieces: list[str] = []  #: A trip's pieces of values outside

    def piecewise(self, each: HloInstruction, inside: Mapping[str, str]) -> str:
        """A trip's piece of an instruction outside, some of whose operands are inside."""
        values = tuple(inside[one] if one in inside else self._piece(one) for one in each.operands)
        name = f"{self.loop.name}@+{each.name}"
        return self._add(each.becoming(each.opcode, *values, name=name, dims=self.update.dims, **each.attributes))

    def laid(self, each: HloInstruction, piece: str) -> str:
        """The whole of it, of which each trip stores a piece."""
        label = f"{self.loop.name}@+{each.name}/laid"
        before = self._parameter(f"{label}/before", each)
        return self._add(each.becoming("dynamic-update-slice", before, piece, *self.starts, name=label))

    def body(self) -> HloModule:
        body = self.loop.body
        return dataclasses.replace(
            body,
            instructions=topological((*body.instructions, *self.added.values())),
            parameters=tuple(self.parameters),
            outputs=(*body.outputs, *self.parameters[len(body.parameters) :]),
        )

    def _add(self, made: HloInstruction) -> str:
        self.added[made.name] = made
        return made.name

    def _parameter(self, name: str, like: HloInstruction) -> str:
        self.parameters.append(self._add(like.becoming("parameter", name=name, number=len(self.parameters))))
        return name

    def _piece(self, name: str) -> str:
        """A trip's piece of a value outside of the loop; all of it where it has other dims."""
        source, given = self.outside[name], self._given(name)
        if source.dims != self.whole_dims:
            return given
        for each in (*self.loop.body.instructions, *self.added.values()):
            same = each.opcode == "dynamic-slice" and each.dims == self.update.dims
            if same and each.operands == (given, *self.starts):
                return str(each.name)
        piece = f"{given}/part"
        self.pieces.append(piece)
        sizes = self.update.dims
        return self._add(
            source.becoming("dynamic-slice", given, *self.starts, name=piece, dims=sizes, sizes=sizes)
        )  # fmt: skip

    def _given(self, name: str) -> str:
        """The parameter that a value outside is in all trips."""
        for each, operand in self.operand_of.items():
            if operand == name and each not in self.loop.carries:
                return each
        given = self._parameter(f"{self.loop.name}@+{name}", self.outside[name])
        self.operand_of[given] = name
        self.inputs.append(given)
        self.operands.append(name)
        return given


def _kind(body: HloModule, laid: HloInstruction) -> tuple[object, ...]:
    return (laid.dims, body[laid.operands[1]].dims, laid.operands[2:])
