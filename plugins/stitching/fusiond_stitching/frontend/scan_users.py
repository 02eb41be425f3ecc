"""What comes behind a loop joins it: it is laid down at once, and what nobody else reads is never stored.

    z = convert(ys * gate + x)                 element by element of what the loop's trips lay down
      -->  z = scan of convert(y * gate[i] + x[i])

It joins only where less is moved: a value that is stored anyway is not stored twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from fusiond.model import frozen
from fusiond_stitching.frontend.graph import ELEMENTWISE, Instruction, Module, replaced, topological


def with_users(
    instructions: Mapping[str, Instruction], foreign: Mapping[str, str], outputs: Sequence[str]
) -> Mapping[str, Instruction]:
    """The graph with what is computed element by element of loops' results inside these loops, where less is moved."""
    found = dict(instructions)
    for name in dict.fromkeys(each.attributes["loop"].name for each in instructions.values() if each.opcode == "scan"):
        _Users(found, foreign, frozenset(outputs), name).join()
    return found


class _Users:
    def __init__(
        self, found: dict[str, Instruction], foreign: Mapping[str, str], outputs: frozenset[str], name: str
    ) -> None:
        self.found = found
        self.foreign = foreign
        self.outputs = outputs
        self.results = [
            each for each in found.values() if each.opcode == "scan" and each.attributes["loop"].name == name
        ]
        self.loop = self.results[0].attributes["loop"]
        self.stacked = {
            each.name: self.loop.body[each.attributes["result"]]
            for each in self.results
            if each.attributes["result"] in self.loop.stacked
        }

    def join(self) -> None:
        """Takes in what lies behind the results of each kind: laid down in pieces of equal dims at equal places."""
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
            if each.opcode == "scan" and each.name in behind:
                continue
            if not any(name in behind for name in each.operands):
                continue
            behind.add(each.name)
            alike = each.opcode in ELEMENTWISE and each.dims == dims and each.name not in self.foreign
            if alike and all(name not in behind or name in own or name in found for name in each.operands):
                found[each.name] = None
        return list(found)

    def _users(self) -> dict[str, list[str]]:
        users: dict[str, list[str]] = {}
        for each in self.found.values():
            for name in each.operands:
                users.setdefault(name, []).append(each.name)
        return users

    def _stored(self, own: set[str], joined: Sequence[str]) -> list[str]:
        """What others need of the results and the instructions that have joined them."""
        users, inside = self._users(), set(joined)
        return [
            name
            for name in (*sorted(own), *joined)
            if name in self.outputs or any(each not in inside for each in users.get(name, ()))
        ]

    def _moves_less(self, own: set[str], joined: Sequence[str]) -> bool:
        users = self._users()

        def read_again(name: str, inside: Iterable[str]) -> bool:
            return any(each not in inside for each in users.get(name, ()))

        size = {name: self.found[name].size_bytes for name in (*own, *joined)}
        before = sum(size[name] * (1 + read_again(name, ())) for name in own)
        before += sum(size[name] for name in joined if name in self.outputs)
        after = sum(size[name] * (1 + read_again(name, set(joined))) for name in self._stored(own, joined))
        return after < before

    def _take(self, own: set[str], joined: Sequence[str]) -> None:
        loop, body = self.loop, self.loop.body
        first = self.stacked[min(own)]
        update, starts = body[first.operands[1]], first.operands[2:]
        added: dict[str, Instruction] = {}
        inside = {name: body[self.stacked[name].operands[1]].name for name in own}
        operand_of = dict(zip(loop.inputs, self.results[0].operands, strict=True))
        inputs, operands = list(loop.inputs), list(self.results[0].operands)
        parameters, pieces = list(body.parameters), list[str]()

        def parameter(name: str, like: Instruction) -> str:
            added[name] = replaced(
                like, name=name, opcode="parameter", operands=(), attributes=frozen({"number": len(parameters)})
            )
            parameters.append(name)
            return name

        def part(name: str) -> str:
            """A trip's piece of a value outside of the loop."""
            source = self.found[name]
            known = next((each for each, operand in operand_of.items()
                          if operand == name and each not in loop.carries), None)  # fmt: skip
            if known is None:
                known = parameter(f"{loop.name}@+{name}", source)
                operand_of[known] = name
                inputs.append(known)
                operands.append(name)
            if source.dims != first.dims:
                return known
            for each in (*body.instructions, *added.values()):
                same = each.opcode == "dynamic-slice" and each.dims == update.dims
                if same and each.operands == (known, *starts):
                    return str(each.name)
            piece = f"{known}/part"
            pieces.append(piece)
            added[piece] = replaced(
                source, name=piece, opcode="dynamic-slice", dims=update.dims, operands=(known, *starts),
                attributes=frozen({"sizes": update.dims}),
            )  # fmt: skip
            return piece

        for name in joined:
            each = self.found[name]
            values = tuple(inside[one] if one in inside else part(one) for one in each.operands)
            inside[name] = f"{loop.name}@+{name}"
            added[inside[name]] = replaced(each, name=inside[name], dims=update.dims, operands=values)
        stored = self._stored(own, joined)
        labels: dict[str, str] = {}
        for name in stored:
            if name in own:
                labels[name] = self.stacked[name].name
                continue
            labels[name] = f"{loop.name}@+{name}/laid"
            before = parameter(f"{labels[name]}/before", self.found[name])
            added[labels[name]] = replaced(
                self.found[name], name=labels[name], opcode="dynamic-update-slice",
                operands=(before, inside[name], *starts), attributes=frozen({}),
            )  # fmt: skip
        whole = dataclasses.replace(
            body,
            instructions=topological((*body.instructions, *added.values())),
            parameters=tuple(parameters),
            outputs=(*body.outputs, *parameters[len(body.parameters) :]),
        )
        others = [name for name in loop.stacked if name not in {self.stacked[each].name for each in own}]
        axes = loop.axis_of[update.name]
        alone = all(axis is not None or dim == 1 for axis, dim in zip(axes, update.dims, strict=True))
        alone = alone and all(start in loop.numbers for start in starts)
        made = dataclasses.replace(
            loop,
            body=whole,
            inputs=tuple(inputs),
            stacked=(*others, *labels.values()),
            reads=(*loop.reads, *(pieces if alone else ())),
            axis_of=frozen({**loop.axis_of, **dict.fromkeys((*pieces, *(inside[each] for each in joined)), axes)}),
        )
        for each in self.results:
            if each.name in own and each.name not in labels:
                del self.found[each.name]
            else:
                attributes = frozen({**each.attributes, "loop": made})
                self.found[each.name] = replaced(each, operands=tuple(operands), attributes=attributes)
        for name in joined:
            if name in labels:
                attributes = frozen({"loop": made, "result": labels[name]})
                self.found[name] = replaced(
                    self.found[name], opcode="scan", operands=tuple(operands), attributes=attributes
                )
            else:
                del self.found[name]


def _kind(body: Module, laid: Instruction) -> tuple[object, ...]:
    return (laid.dims, body[laid.operands[1]].dims, laid.operands[2:])
