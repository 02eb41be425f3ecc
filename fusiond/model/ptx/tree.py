"""The tree of a PTX text (grammar: the package). Statements hold the words of the text; `operands.parse` types them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

SIZES: Mapping[str, int] = {
    **{f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)},
    **{"f16": 2, "bf16": 2, "tf32": 4, "f32": 4, "f64": 8, "f16x2": 4, "bf16x2": 4, "pred": 0, "b128": 16},
    **{"e4m3": 1, "e5m2": 1, "e4m3x2": 2, "e5m2x2": 2, "e2m1x2": 1, "ue8m0x2": 2, "b1": 0, "u4": 0, "s4": 0},
    **{"texref": 8, "surfref": 8, "samplerref": 8, "f32x2": 8},
}
"""Bytes of one element of each type; 0 for predicates and for what is less than a byte."""
TOKEN = re.compile(r'"[^"\n]*"|[\w$%.]+(?:::[\w$.]+)*|\S')


class PtxError(Exception):
    """A text that is not understood; the message names the line."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {reason}")
        self.reason = reason
        self.line = line


@dataclass(frozen=True, slots=True)
class Instruction:
    line: int
    guard: str  #: `%p1`, `!%p1`, or empty
    opcode: str  #: With its modifiers: `ld.global.nc.v4.f32`
    text: str  #: The operands as they are written

    @property
    def words(self) -> tuple[str, ...]:
        """The operands as tokens, commas among them."""
        return tuple(TOKEN.findall(self.text))

    @property
    def base(self) -> str:
        """`ld` of `ld.global.nc.v4.f32`."""
        return self.opcode.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Label:
    line: int
    name: str


@dataclass(frozen=True, slots=True)
class Directive:
    """What begins with a dot and declares no variable: `.loc 1 5 3`, `.pragma "nounroll"`, `.branchtargets $L1, $L2`,
    `.callprototype ...`, `.file`, `.alias`, `.section` with the text of its body as the last word."""

    line: int
    words: tuple[str, ...]

    @property
    def kind(self) -> str:
        """`loc`."""
        return self.words[0][1:]


@dataclass(frozen=True, slots=True)
class PtxRegisters:
    """`.reg .b32 %r<5>, %x;`"""

    line: int
    type: str
    names: tuple[tuple[str, int | None], ...]  #: `%r`, 5 for `%r<5>`, which stands for %r0 to %r4; `%x`, None

    def each(self) -> Iterator[str]:
        for name, count in self.names:
            if count is None:
                yield name
            else:
                yield from (f"{name}{k}" for k in range(count))


@dataclass(frozen=True, slots=True)
class Variable:
    line: int
    linkage: tuple[str, ...]  #: `.visible`, `.extern`, `.weak`, ..
    space: str  #: `global`, `shared`, `const`, `local`, `param`, or `reg` for a parameter of a function
    attributes: tuple[str, ...]
    """What stands before the type: `.align`, `8`, `.v4`; behind it: `.ptr`, `.global`, `.align`, `4`."""
    type: str
    name: str
    extents: tuple[str, ...]  #: `4`, `` of `[4][]`
    initial: tuple[str, ...]  #: Words behind `=`

    @property
    def elements(self) -> int | None:
        """None: an array of no length (dynamic shared memory), or one whose initial values say it."""
        total = 1
        for at, word in enumerate(self.attributes):
            if word in (".v2", ".v4", ".v8") and ".ptr" not in self.attributes[:at]:
                total = int(word[2:])
        for extent in self.extents:
            if not extent:
                return None
            total *= int(extent, 0)
        return total

    @property
    def alignment(self) -> int:
        """Of its place in memory, in bytes; what a pointer's target is aligned to stands behind `.ptr` and is none."""
        size = SIZES.get(self.type, 1)
        for at, word in enumerate(self.attributes):
            if word == ".ptr":
                break
            if word == ".align":
                return int(self.attributes[at + 1])
            if word in (".v2", ".v4", ".v8"):
                size *= int(word[2:])
        return max(size, 1)

    @property
    def size_bytes(self) -> int:
        return SIZES[self.type] * (self.elements or 0)


@dataclass(frozen=True, slots=True)
class PtxBlock:
    line: int
    statements: tuple[Statement, ...]


Statement: TypeAlias = Instruction | Label | Directive | PtxRegisters | Variable | PtxBlock


@dataclass(frozen=True, slots=True)
class Function:
    line: int
    linkage: tuple[str, ...]
    kind: str  #: `entry` or `func`
    name: str
    returns: tuple[Variable, ...]
    parameters: tuple[Variable, ...]
    directives: tuple[tuple[str, ...], ...]  #: (`.maxntid`, `256`, `1`, `1`), each with its numbers and without commas
    body: PtxBlock | None  #: None: declared only

    def directive(self, name: str) -> tuple[int, ...] | None:
        """The numbers of `.maxntid 256, 1, 1`; None where there is no such directive."""
        for each in self.directives:
            if each[0] == f".{name}":
                return tuple(int(word, 0) for word in each[1:])
        return None


@dataclass(frozen=True, slots=True)
class Module:
    version: str  #: `8.0`
    target: tuple[str, ...]  #: `sm_90a`, and options: `debug`, `texmode_independent`
    address_size: int
    items: tuple[Item, ...]

    @property
    def variables(self) -> Iterator[Variable]:
        return (each for each in self.items if isinstance(each, Variable))

    @property
    def functions(self) -> Iterator[Function]:
        return (each for each in self.items if isinstance(each, Function))

    def function(self, name: str) -> Function:
        """The function of that name, the one with a body before a declaration. KeyError."""
        found = [each for each in self.functions if each.name == name]
        if not found:
            raise KeyError(name)
        return next((each for each in found if each.body is not None), found[0])

    @property
    def entries(self) -> Mapping[str, Function]:
        """The kernels that can be launched, by name."""
        return {each.name: each for each in self.functions if each.kind == "entry" and each.body is not None}


Item: TypeAlias = Function | Variable | Directive


def walk(block: PtxBlock) -> Iterator[Statement]:
    """All statements of a block and of those in it, in the order of the text; a block before what is in it."""
    for each in block.statements:
        yield each
        if isinstance(each, PtxBlock):
            yield from walk(each)


def instructions(block: PtxBlock) -> list[Instruction]:
    """Those of a block and of those in it, in the order of the text."""
    found: list[Instruction] = []
    for each in block.statements:
        if isinstance(each, Instruction):
            found.append(each)
        elif isinstance(each, PtxBlock):
            found += instructions(each)
    return found
