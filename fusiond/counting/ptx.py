"""PTX text -> what is in it: variables, kernels, instructions with their operands and the source lines they come from.

The text is nvcc's, with inline assembly of the user's in it. What is not known raises `PtxError` with its line.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

SIZES: Mapping[str, int] = {
    **{f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)},
    **{"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "f16x2": 4, "bf16x2": 4, "pred": 0, "b128": 16},
    **{"e4m3x2": 2, "e5m2x2": 2},
}
"""Bytes of one element of each type."""


class PtxError(Exception):
    """A text that is not understood; the message names the line."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {reason}")


@dataclass(frozen=True, slots=True)
class PtxName:
    """A register, a variable or a label, and a number of bytes behind it."""

    name: str
    offset: int = 0


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
class Negated:
    """`!p`."""

    name: PtxName


@dataclass(frozen=True, slots=True)
class RegisterPair:
    """`r|p`: two results."""

    first: PtxName
    second: PtxName


Operand: TypeAlias = PtxName | PtxNumber | PtxAddress | PtxVector | Negated | RegisterPair


@dataclass(frozen=True, slots=True)
class PtxInstruction:
    opcode: str
    """With its modifiers: `ld.global.nc.v4.f32`."""
    operands: tuple[Operand, ...]
    guard: PtxName | Negated | None
    line: int
    """In the PTX."""
    file: int
    source_line: int
    """The source file's number and line, as `.loc` has them; 0 where it was compiled without -lineinfo."""


@dataclass(frozen=True, slots=True)
class PtxVariable:
    name: str
    space: str
    """`global`, `shared`, `const`, `local` or `param`."""
    type: str
    elements: int | None
    """None: an array of no length (dynamic shared memory)."""
    alignment: int
    values: tuple[int | PtxName, ...] = ()
    """Its first elements' bits, or addresses; the others are 0."""

    @property
    def size_bytes(self) -> int:
        return SIZES[self.type] * (self.elements or 0)


@dataclass(frozen=True, slots=True)
class PtxKernel:
    name: str
    parameters: tuple[PtxVariable, ...]
    registers: Mapping[str, str]
    """Register -> type; `%r<5>` is written out."""
    variables: tuple[PtxVariable, ...]
    """Of the kernel's own: shared and local ones."""
    instructions: tuple[PtxInstruction, ...]
    labels: Mapping[str, int]
    """Label -> the number of the instruction that it stands before."""


@dataclass(frozen=True, slots=True)
class PtxModule:
    files: Mapping[int, str]
    variables: tuple[PtxVariable, ...]
    kernels: Mapping[str, PtxKernel]


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LINE_DIRECTIVE = re.compile(r"\s*\.(loc|file|version|target|address_size)\b([^\n]*)")
_DECLARATION = re.compile(
    r"((?:\.\w+\s+)*?)\.(global|shared|const|local|param)\s+((?:\.(?:align\s+\d+|ptr|global|shared|const|local|v[248])\s*)*)"
    r"\.(\w+)\s+((?:\.ptr\s*)?(?:\.(?:global|shared|const|local)\s*)?(?:\.align\s+\d+\s+)?)([\w$%.]+)\s*((?:\[[^\]]*\])*)\s*(?:=\s*(.*))?$",
    re.DOTALL,
)
_LABEL = re.compile(r"\s*([\w$%]+)\s*:(?!:)")
_ENTRY = re.compile(r"\.(entry|func)\s*(?:\([^)]*\)\s*)?([\w$]+)\s*(?:\((.*?)\))?([^{;]*)$", re.DOTALL)


def parse(text: str) -> PtxModule:
    """The module of a PTX text. PtxError where it is not understood."""
    return _Parser(_COMMENT.sub(lambda match: "\n" * match.group().count("\n"), text)).module()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._files: dict[int, str] = {}
        self._loc = (0, 0)

    def module(self) -> PtxModule:
        variables: list[PtxVariable] = []
        kernels: dict[str, PtxKernel] = {}
        while (found := self._statement()) is not None:
            words, end = found
            if re.match(r"\.section\b", words):
                self._skipped_body()
            elif re.search(r"\.(entry|func)\b", words):
                match = _ENTRY.search(words)
                if match is None:
                    raise PtxError(f"a head that is not understood: {words[:60]!r}", self._line)
                if end == "{":
                    kernel = self._kernel(match.group(2), match.group(3) or "")
                    if match.group(1) == "entry":
                        kernels[kernel.name] = kernel
            elif re.match(r"(\.\w+\s+)*\.(global|const|shared)\b", words):
                variables += self._variables(words)
            elif words and not words.startswith((".pragma", ".alias")):
                raise PtxError(f"{words.split()[0]!r} is not known", self._line)
        return PtxModule(files=self._files, variables=tuple(variables), kernels=kernels)

    # --- statements ---

    def _statement(self) -> tuple[str, str] | None:
        """The next statement, and what ended it: `;`, `{`, `}` or `:`. None at the end of the text."""
        self._directives()
        begin, text = self._at, self._text
        depth = 0
        while self._at < len(text):
            sign = text[self._at]
            words = text[begin : self._at]
            if sign == "{" and depth == 0 and not self._opens_vector(words):
                break
            if sign == "{":
                depth += 1
            elif sign == "}":
                if depth == 0:
                    break
                depth -= 1
            elif (sign == ":" and depth == 0 and _LABEL.fullmatch(words + ":")) or (sign == ";" and depth == 0):
                break
            self._at += 1
        else:
            if text[begin:].strip():
                raise PtxError("the text ends in the middle", self._line)
            return None
        words = text[begin : self._at]
        lead = len(words) - len(words.lstrip())
        self._line += words[:lead].count("\n")
        self._here = self._line
        self._line += words[lead:].count("\n")
        end = text[self._at]
        self._at += 1
        return words.strip(), end

    def _directives(self) -> None:
        while (match := _LINE_DIRECTIVE.match(self._text, self._at)) is not None:
            self._line += match.group().count("\n")
            self._at = match.end()
            kind, rest = match.groups()
            if kind == "loc":
                numbers = re.match(r"\s*(\d+)\s+(\d+)", rest)
                if numbers is not None:
                    self._loc = (int(numbers.group(1)), int(numbers.group(2)))
            elif kind == "file":
                named = re.match(r'\s*(\d+)\s+"([^"]*)"', rest)
                if named is not None:
                    self._files[int(named.group(1))] = named.group(2)

    @staticmethod
    def _opens_vector(words: str) -> bool:
        """Whether a brace behind these words is an operand's (or an initial value's), and no block's."""
        words = words.strip()
        return bool(words) and not re.search(r"\.(entry|func|section)\b", words)

    def _skipped_body(self) -> None:
        end = self._text.find("}", self._at)
        self._line += self._text.count("\n", self._at, end)
        self._at = end + 1

    # --- declarations ---

    def _variables(self, words: str) -> list[PtxVariable]:
        match = _DECLARATION.match(words)
        if match is None or match.group(4) not in SIZES:
            raise PtxError(f"a declaration that is not understood: {words[:80]!r}", self._here)
        _, space, qualifiers, type_, _, name, extents, values = match.groups()
        aligned = re.search(r"align\s+(\d+)", qualifiers)
        wide = re.search(r"\.v([248])", qualifiers)
        elements: int | None = int(wide.group(1)) if wide else 1
        for extent in re.findall(r"\[([^\]]*)\]", extents):
            elements = None if not extent.strip() or elements is None else elements * int(extent, 0)
        initial = tuple(self._initial(each) for each in re.split(r"[\s,{}]+", values) if each) if values else ()
        alignment = int(aligned.group(1)) if aligned else SIZES[type_] * (int(wide.group(1)) if wide else 1)
        if elements is None and initial:
            elements = len(initial)
        return [PtxVariable(name, space, type_, elements, alignment, initial)]

    def _initial(self, word: str) -> int | PtxName:
        generic = re.fullmatch(r"(?:generic\()?([A-Za-z_$%][\w$]*)(?:\+(\d+))?\)?", word)
        if generic is not None:
            return PtxName(generic.group(1), int(generic.group(2) or 0))
        return self._number(word).bits

    def _kernel(self, name: str, parameters: str) -> PtxKernel:
        body = _Body()
        given = [each for words in parameters.split(",") if words.strip() for each in self._variables(words.strip())]
        scopes: list[dict[str, str]] = [{}]
        while True:
            found = self._statement()
            if found is None:
                raise PtxError(f"{name} has no end", self._line)
            words, end = found
            if end == ":":
                body.labels[words] = len(body.instructions)
            elif words.startswith(".reg"):
                self._registers(words, body, scopes)
            elif re.match(r"\.(shared|local|param)\b", words):
                body.variables += self._variables(words)
            elif words and not words.startswith(".pragma"):
                if words.startswith("."):
                    raise PtxError(f"{words.split()[0]!r} is not known", self._here)
                body.instructions.append(self._instruction(words, scopes))
            if end == "{":
                scopes.append({})
            elif end == "}":
                scopes.pop()
                if not scopes:
                    break
        return PtxKernel(
            name, tuple(given), body.registers, tuple(body.variables), tuple(body.instructions), body.labels
        )

    def _registers(self, words: str, body: _Body, scopes: list[dict[str, str]]) -> None:
        match = re.match(r"\.reg\s+(?:\.v[24]\s+)?\.(\w+)\s+(.*)$", words, re.DOTALL)
        if match is None or match.group(1) not in SIZES:
            raise PtxError(f"registers that are not understood: {words!r}", self._here)
        for each in match.group(2).split(","):
            counted = re.fullmatch(r"\s*([\w$%]+)<(\d+)>\s*", each)
            names = [f"{counted.group(1)}{k}" for k in range(int(counted.group(2)))] if counted else [each.strip()]
            for name in names:
                known = name if name not in body.registers else f"{name}.{len(body.registers)}"
                scopes[-1][name] = known
                body.registers[known] = match.group(1)

    # --- instructions ---

    def _instruction(self, words: str, scopes: list[dict[str, str]]) -> PtxInstruction:
        guard: PtxName | Negated | None = None
        match = re.match(r"@(!?)([\w$%]+)\s+(.*)$", words, re.DOTALL)
        if match is not None:
            name = self._name(match.group(2), scopes)
            guard = Negated(name) if match.group(1) else name
            words = match.group(3)
        opcode, _, rest = words.partition(" ") if " " in words else words.partition("\t")
        opcode, tab, more = opcode.partition("\t")
        operands = [self._operand(each, scopes) for each in _split((more + " " + rest) if tab else rest)]
        return PtxInstruction(opcode, tuple(operands), guard, self._here, *self._loc)

    def _operand(self, text: str, scopes: list[dict[str, str]]) -> Operand:
        if text.startswith("{"):
            return PtxVector(tuple(self._operand(each, scopes) for each in _split(text[1:-1])))
        if text.startswith("["):
            inner = re.fullmatch(r"\[\s*([\w$%.]+)\s*(?:\+\s*(-?\w+))?\s*\]", text)
            if inner is None:
                raise PtxError(f"an address that is not understood: {text!r}", self._here)
            base = self._operand(inner.group(1), scopes)
            assert isinstance(base, PtxName | PtxNumber)
            return PtxAddress(base, int(inner.group(2), 0) if inner.group(2) else 0)
        if text.startswith("!"):
            return Negated(self._name(text[1:].strip(), scopes))
        if "|" in text:
            first, _, second = text.partition("|")
            return RegisterPair(self._name(first.strip(), scopes), self._name(second.strip(), scopes))
        behind = re.fullmatch(r"([A-Za-z_$%][\w$%.]*)\s*\+\s*(\d+)", text)
        if behind is not None:
            return PtxName(behind.group(1), int(behind.group(2)))
        if re.match(r"[-\d]", text):
            return self._number(text)
        return self._name(text, scopes)

    def _name(self, text: str, scopes: list[dict[str, str]]) -> PtxName:
        if not re.fullmatch(r"[A-Za-z_$%][\w$%.]*", text):
            raise PtxError(f"an operand that is not understood: {text!r}", self._here)
        for scope in reversed(scopes):
            if text in scope:
                return PtxName(scope[text])
        return PtxName(text)

    def _number(self, text: str) -> PtxNumber:
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
            return PtxNumber(int(text[2:], 16), 4)
        if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", text):
            return PtxNumber(int(text[2:], 16), 8)
        try:
            plain = text.rstrip("U")
            value = int(plain, 8) if re.fullmatch(r"-?0[0-7]+", plain) else int(plain, 0)
            return PtxNumber(value & 0xFFFFFFFFFFFFFFFF)
        except ValueError:
            raise PtxError(f"a number that is not understood: {text!r}", self._here) from None


class _Body:
    def __init__(self) -> None:
        self.registers: dict[str, str] = {}
        self.variables: list[PtxVariable] = []
        self.instructions: list[PtxInstruction] = []
        self.labels: dict[str, int] = {}


def _split(text: str) -> Iterator[str]:
    """At commas that are in no brackets."""
    depth, begin = 0, 0
    for at, sign in enumerate(text):
        if sign in "{[(":
            depth += 1
        elif sign in "}])":
            depth -= 1
        elif sign == "," and depth == 0:
            yield text[begin:at].strip()
            begin = at + 1
    if text[begin:].strip():
        yield text[begin:].strip()


def float_value(number: PtxNumber) -> float:
    """What a number that was written as a float's bits stands for."""
    code, pattern = ("<f", "<I") if number.float_bytes == 4 else ("<d", "<Q")
    value: float = struct.unpack(code, struct.pack(pattern, number.bits))[0]
    return value
