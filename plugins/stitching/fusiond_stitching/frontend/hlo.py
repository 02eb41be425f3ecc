"""The text of an HLO module as raw instructions: the lexer and the parser, with a line for every message.

    HloModule NAME, ...                      computations follow, in any order; one of them is the ENTRY
    region_0.1 { ... }                       as jax prints (`lowered.as_text(dialect="hlo")`)
    %region_0.1 (a: f32[]) -> f32[] { ... }  as XLA dumps

    instruction := [ROOT] NAME = SHAPE OPCODE(OPERANDS or PAYLOAD), attribute=value, ...
    SHAPE       := dtype[dims]{layout} | (SHAPE, ...)

Operands may carry their shapes. Attributes are kept as texts and read by those who know them (`Raw.integers`, ...);
metadata, sharding and the other notes of a compiler are kept too, and nobody reads them. What cannot be understood is
a RequestError with file and line, never a guess.
"""

from __future__ import annotations

import itertools
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fusiond.model.errors import RequestError
from fusiond.model.nouns import frozen

Number: TypeAlias = bool | int | float

MAX_ELEMENTS = 2**40  #: A tensor with more is a misprint
MAX_DEPTH = 100  #: Of tuples in each other
MAX_CALLS = 200  #: Of computations in each other: one with more calls itself


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """The shape of one tensor. `layout` lists the dimensions from the fastest to the slowest; () when none stands there
    (row-major then)."""

    dtype: str
    dims: tuple[int, ...]
    layout: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def plain(self) -> bool:
        """Row-major, said or unsaid."""
        return self.layout in ((), tuple(reversed(range(len(self.dims)))))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclass(frozen=True, slots=True)
class Several:
    """The shape of a tuple."""

    members: tuple[RawShape, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.members))})"


RawShape: TypeAlias = ArrayShape | Several


def arrays(shape: RawShape) -> Iterator[ArrayShape]:
    """The arrays of a tuple, and of tuples in it, in order."""
    if isinstance(shape, ArrayShape):
        yield shape
    else:
        for each in shape.members:
            yield from arrays(each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """One instruction as written. `payload` is the text in the brackets of a constant or a parameter."""

    name: str
    opcode: str
    shape: RawShape
    operands: tuple[str, ...]
    attributes: Mapping[str, str] = field(default_factory=frozen)
    payload: str = ""
    where: str = ""  #: `file:line`, for messages

    def fail(self, problem: str) -> RequestError:
        """An error about this instruction, to be raised."""
        return RequestError(f"{self.opcode} {self.name!r}: {problem}", where=self.where)

    def text(self, name: str) -> str:
        """An attribute as written; RequestError when it is missing."""
        if name not in self.attributes:
            raise self.fail(f"the attribute {name} is missing")
        return self.attributes[name]

    def integers(self, name: str, *, missing: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """`{1,2}` as (1, 2). `missing` is what a missing attribute means (None: it must be there)."""
        if name not in self.attributes and missing is not None:
            return missing
        text = self.text(name).strip()
        if not (text.startswith("{") and text.endswith("}")):
            raise self.fail(f"{name}={text[:40]}: expected a list such as {{0,1}}")
        return tuple(self._integer(each, name) for each in text[1:-1].split(",") if each.strip())

    def flag(self, name: str) -> bool:
        """`true` or `false`; a missing attribute is false."""
        return self.attributes.get(name, "false").strip() == "true"

    def integer(self, name: str) -> int:
        return self._integer(self.text(name), name)

    def _integer(self, text: str, name: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise self.fail(f"{name}: {text.strip()[:40]!r} is not a whole number") from None

    def slices(self) -> tuple[tuple[int, int, int], ...]:
        """`slice={[a:b:s], ...}` as (start, limit, stride) per dimension."""
        found = []
        for each in re.findall(r"\[([^\]]*)\]", self.text("slice")):
            parts = [self._integer(part, "slice") for part in each.split(":")]
            if len(parts) not in (2, 3):
                raise self.fail(f"slice: [{each}] is not [start:limit] or [start:limit:stride]")
            found.append((parts[0], parts[1], parts[2] if len(parts) == 3 else 1))
        return tuple(found)

    def padding(self) -> tuple[tuple[int, int, int], ...]:
        """`padding=0_1x2_0_1` as (low, high, interior) per dimension; () for a scalar."""
        text = self.text("padding").strip()
        if not text:
            return ()
        found = []
        for each in text.split("x"):
            parts = [self._integer(part, "padding") for part in each.split("_")]
            if len(parts) not in (2, 3):
                raise self.fail(f"padding: {each!r} is not low_high or low_high_interior")
            found.append((parts[0], parts[1], parts[2] if len(parts) == 3 else 0))
        return tuple(found)

    def called(self, name: str) -> str:
        """The name of a computation."""
        return self.text(name).strip().lstrip("%")

    def branches(self) -> tuple[str, ...]:
        """The computations of a conditional."""
        if "branch_computations" in self.attributes:
            return tuple(each.strip().lstrip("%") for each in self.text("branch_computations").strip("{} ").split(","))
        return (self.called("true_computation"), self.called("false_computation"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RawComputation:
    name: str
    instructions: tuple[Raw, ...]
    root: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RawModule:
    name: str
    computations: Mapping[str, RawComputation]
    entry: str
    path: str

    def inside(self, computation: RawComputation, most: int) -> list[tuple[RawComputation, Raw]]:
        """Each instruction with the computation that it stands in, through calls and branches; at most so many."""
        return list(itertools.islice(self._inside(computation), most))

    def _inside(self, computation: RawComputation, depth: int = 0) -> Iterator[tuple[RawComputation, Raw]]:
        for each in computation.instructions:
            yield computation, each
            called = (each.called("to_apply"),) if each.opcode == "call" else ()
            for name in each.branches() if each.opcode == "conditional" else called:
                if name in self.computations and depth < MAX_CALLS:
                    yield from self._inside(self.computations[name], depth + 1)


def parse(text: str, path: str) -> RawModule:
    """Read a module; `path` is for messages. RequestError for everything that is not HLO text."""
    return _Parser(text, path).module()


# --- constants ------------------------------------------------------------------------------------------

_ELIDED = (
    "its values are not printed: print large constants too (XLA's dumps: --xla_dump_large_constants;"
    " jax: lowered.as_text(dialect='hlo') has them)"
)
_SCALAR = re.compile(r"[^\s{},]+")


def literal(raw: Raw) -> tuple[Number, ...]:
    """The values of a constant, row-major. RequestError when they are elided, too few, or no numbers."""
    shape = raw.shape
    if isinstance(shape, Several):
        raise raw.fail("is a tuple; expected an array")
    if "..." in raw.payload:
        raise raw.fail(_ELIDED)
    if shape.elements == 0:
        return ()
    values = tuple(_number(raw, each, shape.dtype) for each in _SCALAR.findall(raw.payload))
    if len(values) != shape.elements:
        raise raw.fail(f"{len(values)} values for {shape}, which has {shape.elements}")
    return values


def _number(raw: Raw, text: str, dtype: str) -> Number:
    word = text.lower()
    if dtype == "pred":
        if word not in ("true", "false", "0", "1"):
            raise raw.fail(f"{text[:40]!r} is neither true nor false")
        return word in ("true", "1")
    try:
        if dtype[0] in "su" and dtype[1:].isdigit():
            return int(word, 0)
        if word.lstrip("+-").startswith("nan"):  # nan, -nan, nan(0x7fc00001): the payload of a NaN is not kept
            return math.nan
        if word.lstrip("+-").startswith("0x"):
            return float.fromhex(word)
        return _rounded(float(word), dtype)
    except (ValueError, OverflowError):
        raise raw.fail(f"{text[:40]!r} is not a value of type {dtype}") from None


def _rounded(value: float, dtype: str) -> float:
    """A decimal as the nearest float32: XLA prints nine digits, which name one float32 and many doubles."""
    if dtype != "f32" or not math.isfinite(value):
        return value
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


# --- the parser -----------------------------------------------------------------------------------------

_OPEN, _CLOSE = "({[", ")}]"
_BLANK = re.compile(r"\s*")
_NOTE = re.compile(r'("(?:[^"\\]|\\.)*")|/\*.*?\*/', re.S)  #: Or a string, in which there are none
_MARK = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\],]', re.S)
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[((?:\s*\d+\s*,)*\s*\d*\s*)\]\s*(\{[^{}]*\})?")
_COMPUTATION = re.compile(r"^\s*(ENTRY\s+)?%?([A-Za-z_][\w.\-$]*)\s*(\(.*\)\s*->[^=]*)?\{(.*)$")
_HEAD = re.compile(r"^\s*(ROOT\s+)?%?([^\s=%,(){}]+)\s*=\s*")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_ATTRIBUTE = re.compile(r"\s*,\s*([\w\-]+)=")


class _Parser:
    """Works line by line; an instruction goes on while a bracket is open."""

    def __init__(self, text: str, path: str) -> None:
        self.path = path
        self.lines = _NOTE.sub(lambda each: each[1] or " " + "\n" * each[0].count("\n"), text).splitlines()

    def fail(self, line: int, problem: str) -> RequestError:
        return RequestError(problem, where=f"{self.path}:{line}")

    def module(self) -> RawModule:
        name = ""
        computations: dict[str, RawComputation] = {}
        entry = ""
        at = 0
        while at < len(self.lines):
            line = self.lines[at]
            at += 1
            if line.startswith("HloModule"):
                name = re.split(r"[\s,]+", line)[1] if len(line.split()) > 1 else "module"
                continue
            if not name:
                if line.strip() and not line.lstrip().startswith("//"):
                    raise self.fail(at, "not HLO text: it begins with 'HloModule NAME' (jax: as_text(dialect='hlo'))")
                continue
            head = _COMPUTATION.match(line)
            if head is None:
                if _HEAD.match(line) and "(" in line:
                    raise self.fail(at, "an instruction outside a computation")
                continue  # the tables of files and frames that newer dumps have
            if head[4].strip():
                at -= 1
                self.lines[at] = head[4]
            computation, at = self._computation(head[2], at)
            if computation.name in computations:
                raise self.fail(at, f"two computations are called {computation.name!r}")
            computations[computation.name] = computation
            if head[1]:
                entry = computation.name
        if not name:
            raise RequestError("the file is empty; expected HLO text", where=self.path)
        if not entry:
            raise RequestError("there is no ENTRY computation", where=self.path)
        return RawModule(name=name, computations=frozen(computations), entry=entry, path=self.path)

    def _computation(self, name: str, at: int) -> tuple[RawComputation, int]:
        begun = at
        found: list[Raw] = []
        root = ""
        for text, line, after in self._statements(at):
            if text.strip().startswith("}"):
                if not found:
                    raise self.fail(begun, f"the computation {name!r} is empty")
                return (
                    RawComputation(
                        name=name, instructions=tuple(found), root=root or found[-1].name, where=f"{self.path}:{begun}"
                    ),
                    after,
                )
            raw, is_root = self._instruction(text, line)
            found.append(raw)
            if is_root:
                root = raw.name
        raise self.fail(begun, f"the computation {name!r} has no closing bracket")

    def _statements(self, at: int) -> Iterator[tuple[str, int, int]]:
        """(text, first line, lines read so far): lines joined while brackets are open."""
        while at < len(self.lines):
            line = at + 1
            text = self.lines[at]
            at += 1
            if not text.strip():
                continue
            if text.strip().startswith("}"):
                yield text, line, at
                return
            depth = _depth(text)
            while depth > 0 and at < len(self.lines):
                more = self.lines[at]
                at += 1
                depth += _depth(more)
                text += "\n" + more
            if depth != 0:
                raise self.fail(line, "brackets do not match")
            yield text, line, at

    def _instruction(self, text: str, line: int) -> tuple[Raw, bool]:
        head = _HEAD.match(text)
        if head is None:
            raise self.fail(line, f"{text.strip()[:60]!r} is not an instruction; expected NAME = SHAPE OPCODE(...)")
        shape, at = self._shape(text, head.end(), line)
        opcode = _OPCODE.match(text, at)
        if opcode is None:
            raise self.fail(line, f"the opcode behind the shape of {head[2]!r} is missing")
        end = _matching(text, opcode.end() - 1)
        if end < 0:
            raise self.fail(line, "brackets do not match")
        inside = text[opcode.end() : end]
        attributes = self._attributes(text, end + 1, line)
        payload = opcode[1] in ("constant", "parameter")
        operands = () if payload else tuple(self._operands(inside, line))
        raw = Raw(
            name=head[2],
            opcode=opcode[1],
            shape=shape,
            operands=operands,
            attributes=frozen(attributes),
            payload=inside if payload else "",
            where=f"{self.path}:{line}",
        )
        return raw, bool(head[1])

    def _shape(self, text: str, at: int, line: int, depth: int = 0) -> tuple[RawShape, int]:
        if depth > MAX_DEPTH:
            raise self.fail(line, f"tuples lie in each other more than {MAX_DEPTH} deep")
        at = _skip(text, at)
        if at < len(text) and text[at] == "(":
            members: list[RawShape] = []
            at = _skip(text, at + 1)
            while at < len(text) and text[at] != ")":
                member, at = self._shape(text, at, line, depth + 1)
                members.append(member)
                at = _skip(text, at)
                if at < len(text) and text[at] == ",":
                    at = _skip(text, at + 1)
            return Several(tuple(members)), at + 1
        found = _ARRAY.match(text, at)
        if found is None:
            shown = text[at : at + 40].split(" ")[0]
            raise self.fail(line, f"{shown!r} is not a shape with fixed sizes, such as f32[8,64]{{1,0}}")
        dims = tuple(int(each) for each in found[2].split(",") if each.strip())
        if math.prod(dims) > MAX_ELEMENTS:
            raise self.fail(line, f"{found[0]!r} has more than 2**40 elements")
        return ArrayShape(found[1], dims, self._layout(found[3], len(dims), line)), found.end()

    def _layout(self, text: str | None, rank: int, line: int) -> tuple[int, ...]:
        if not text:
            return ()
        order, _, rest = text.strip("{}").partition(":")
        if "T(" in rest:
            raise self.fail(line, f"the layout {text} is tiled; expected a plain layout such as {{1,0}}")
        layout = tuple(int(each) for each in order.split(",") if each.strip().isdigit())
        if layout and sorted(layout) != list(range(rank)):
            raise self.fail(line, f"the layout {text} does not fit {rank} dimensions")
        return layout

    def _operands(self, text: str, line: int) -> Iterator[str]:
        for each in _split(text):
            words = each.split()
            if not words:
                continue
            name = words[-1].lstrip("%")
            if not name or any(mark in name for mark in "(){}[]"):
                raise self.fail(line, f"{each.strip()[:60]!r} is not an operand")
            yield name

    def _attributes(self, text: str, at: int, line: int) -> dict[str, str]:
        found: dict[str, str] = {}
        while True:
            head = _ATTRIBUTE.match(text, at)
            if head is None:
                rest = text[at:].strip()
                if rest and not rest.startswith("//"):
                    raise self.fail(line, f"{rest[:60]!r} is not understood; expected ', name=value'")
                return found
            end = _value_end(text, head.end())
            found[head[1]] = text[head.end() : end].strip()
            at = end


def _skip(text: str, at: int) -> int:
    """Past blanks."""
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _marks(text: str, at: int = 0) -> Iterator[tuple[str, int]]:
    """(bracket or comma, position), outside strings."""
    for found in _MARK.finditer(text, at):
        if len(found[0]) == 1:
            yield found[0], found.start()


def _depth(text: str) -> int:
    """Brackets opened minus brackets closed."""
    if '"' not in text:
        return sum(map(text.count, _OPEN)) - sum(map(text.count, _CLOSE))
    return sum(1 if mark in _OPEN else -1 for mark, _ in _marks(text) if mark != ",")


def _matching(text: str, at: int) -> int:
    """The position of the bracket that closes the one at `at`; -1 when there is none."""
    depth = 0
    for mark, position in _marks(text, at):
        if mark in _OPEN:
            depth += 1
        elif mark in _CLOSE:
            depth -= 1
            if depth == 0:
                return position
    return -1


def _value_end(text: str, at: int) -> int:
    """Where the value of an attribute ends: at a comma outside all brackets, or at the end."""
    depth = 0
    for mark, position in _marks(text, at):
        if mark == "," and depth == 0:
            return position
        depth += (mark in _OPEN) - (mark in _CLOSE)
    return len(text)


def _split(text: str) -> Sequence[str]:
    """Split at the commas outside all brackets."""
    found = []
    depth = begun = 0
    for mark, position in _marks(text):
        if mark == "," and depth == 0:
            found.append(text[begun:position])
            begun = position + 1
        depth += (mark in _OPEN) - (mark in _CLOSE)
    return [*found, text[begun:]]
