"""The typed operands of an instruction."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fusiond.model.ptx.tree import Instruction, PtxError


@dataclass(frozen=True, slots=True)
class PtxName:
    """A register, a variable or a label, and a number of bytes behind it."""

    name: str
    offset: int = 0
    mask: int = 0  #: Of an initial value: the bits of the address that it is, shifted down; 0: all


@dataclass(frozen=True, slots=True)
class PtxNumber:
    """A constant, as the bits that it has in 64 bits; `float_bytes` is 4 or 8 for one written as a float's bits."""

    bits: int
    float_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PtxAddress:
    """`[base + offset]`."""

    base: PtxName | PtxNumber
    offset: int


@dataclass(frozen=True, slots=True)
class PtxVector:
    """`{a, b}`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class PtxTensorAddress:
    """`[map, {x, y}]`: a place in a tensor."""

    base: PtxName
    coordinates: PtxVector
    more: tuple[Operand, ...] = ()  #: Offsets of im2col, masks


@dataclass(frozen=True, slots=True)
class PtxGroup:
    """`(a, b)`: what a call hands over, or gets."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p`."""

    name: PtxName


@dataclass(frozen=True, slots=True)
class RegisterPair:
    """`r|p`: two results."""

    first: PtxName
    second: PtxName


Operand: TypeAlias = PtxName | PtxNumber | PtxAddress | PtxTensorAddress | PtxVector | PtxGroup | Negated | RegisterPair

_NAME = re.compile(r"[A-Za-z_$%][\w$%.]*")


def parse(instruction: Instruction) -> tuple[Operand, ...]:
    """The operands of an instruction. PtxError where they are not understood."""
    return of_words(instruction.words, instruction.line)


def of_words(words: Sequence[str], line: int) -> tuple[Operand, ...]:
    """The same, of an instruction's operands or a variable's initial values."""
    return _Operands(words, line).all()


class _Operands:
    def __init__(self, words: Sequence[str], line: int) -> None:
        self._words, self._line, self._at = words, line, 0

    def all(self) -> tuple[Operand, ...]:
        return self._list("") if self._words else ()

    def _peek(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def _next(self) -> str:
        word = self._peek()
        self._at += 1
        return word

    def _list(self, end: str) -> tuple[Operand, ...]:
        """Operands between commas, up to a word."""
        found: list[Operand] = []
        if self._peek() == end:
            self._at += 1
            return ()
        while True:
            found.append(self._one())
            word = self._next()
            if word == end:
                return tuple(found)
            if word != ",":
                raise self._error(word)

    def _one(self) -> Operand:
        word = self._next()
        if word == "{":
            return PtxVector(self._list("}"))
        if word == "(":
            return PtxGroup(self._list(")"))
        if word == "[":
            return self._address()
        if word == "!":
            return Negated(self._name(self._next()))
        if word == "-" or word[:1].isdigit():
            self._at -= 1
            number = self._number()
            return self._wrapped(number.bits) if self._peek() == "(" else number
        name = self._name(word)
        if self._peek() == "|":
            self._at += 1
            return RegisterPair(name, self._name(self._next()))
        offset = self._offset()
        if self._peek() == "(" and word == "generic":
            return self._wrapped()
        return PtxName(name.name, offset) if offset else name

    def _wrapped(self, mask: int = 0) -> PtxName:
        """Of initial values `generic(x)+8`, and bytes of an address in a packed struct, `0xFF00(generic(x))`."""
        self._at += 1
        inner = self._one()
        if self._next() != ")" or not isinstance(inner, PtxName):
            raise self._error("(")
        return PtxName(inner.name, inner.offset + self._offset(), mask)

    def _address(self) -> Operand:
        base = self._one()
        if not isinstance(base, PtxName | PtxNumber):
            raise self._error("[")
        if self._peek() == ",":
            self._at += 1
            rest = self._list("]")
            if not isinstance(base, PtxName) or not isinstance(rest[0], PtxVector):
                raise self._error(",")
            return PtxTensorAddress(base, rest[0], rest[1:])
        if self._next() != "]":
            raise self._error(self._words[self._at - 1])
        if isinstance(base, PtxName):
            return PtxAddress(PtxName(base.name), base.offset)
        return PtxAddress(base, 0)

    def _offset(self) -> int:
        """`+ 4`, `+ -4`, `- 4` behind a name."""
        if self._peek() not in ("+", "-"):
            return 0
        sign = -1 if self._next() == "-" else 1
        number = self._number()
        value = number.bits - (1 << 64) if number.bits >> 63 else number.bits
        return sign * value

    def _name(self, word: str) -> PtxName:
        if not _NAME.fullmatch(word):
            raise self._error(word)
        return PtxName(word)

    def _number(self) -> PtxNumber:
        negative = self._peek() == "-"
        self._at += negative
        return number(self._next(), self._line, negative=negative)

    def _error(self, word: str) -> PtxError:
        return PtxError(f"an operand that is not understood: {''.join(self._words)!r}, at {word!r}", self._line)


def number(word: str, line: int, *, negative: bool = False) -> PtxNumber:
    """A constant as written: `12`, `0x1F`, `0f3F800000`, `017`, `5U`, `0.5`. PtxError."""
    if word[:2] in ("0f", "0F") and len(word) == 10:
        return PtxNumber(int(word[2:], 16), 4)
    if word[:2] in ("0d", "0D") and len(word) == 18:
        return PtxNumber(int(word[2:], 16), 8)
    try:
        plain = word.rstrip("U")
        octal = len(plain) > 1 and plain[0] == "0" and plain.isdigit()
        value = int(plain, 8) if octal else int(plain, 0)
        return PtxNumber((-value if negative else value) & 0xFFFFFFFFFFFFFFFF)
    except ValueError:
        pass
    try:
        value = struct.unpack("<Q", struct.pack("<d", -float(word) if negative else float(word)))[0]
        return PtxNumber(value, 8)
    except ValueError:
        raise PtxError(f"a number that is not understood: {word!r}", line) from None


def float_value(number: PtxNumber) -> float:
    """What a number that was written as a float's bits stands for."""
    code, pattern = ("<f", "<I") if number.float_bytes == 4 else ("<d", "<Q")
    value: float = struct.unpack(code, struct.pack(pattern, number.bits))[0]
    return value
