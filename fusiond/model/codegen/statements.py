"""Statements with nested blocks, built in order and printed once.

    body = Statements()
    i = body.declare("int", "i", cpp("threadIdx.x"))
    inner = body.block(cpp("if ({} < {})", i, 100))
    inner.line(cpp("y[{}] = 0;", i))
    body.text()

A declared constant that nobody reads is not printed, nor what only it has read.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fusiond.model.codegen.code import Code, cpp, joined
from fusiond.model.codegen.code import name as named

INDENT = "    "
WIDTH = 116  #: Columns of a generated line, where it can be broken


@dataclass(frozen=True, slots=True)
class Line:
    """Anything that is printed as it is: an assignment, a call, a comment."""

    code: str


@dataclass(frozen=True, slots=True)
class Comment:
    """`// TEXT`: for people only."""

    text: str


@dataclass(frozen=True, slots=True)
class Declaration:
    """`const KIND NAME = VALUE;` It has no effect but its name, so it goes where nobody reads that."""

    name: str
    code: Code


@dataclass(frozen=True, slots=True)
class Block:
    """`HEAD {`, its statements, `END`. An empty head is a plain block; `end` None: another block goes on behind it, and
    its head closes this one."""

    head: str
    body: Statements
    end: str | None = "}"


@dataclass(slots=True)
class Statements:
    """A list of statements. The names that it declares must be unique in the function."""

    items: list[Line | Comment | Declaration | Block] = field(default_factory=list)

    def line(self, code: str) -> None:
        self.items.append(Line(code))

    def lines(self, *codes: str) -> None:
        self.items += [Line(each) for each in codes]

    def comment(self, text: str) -> None:
        self.items.append(Comment(text))

    def declare(self, kind: str, name: str, value: str) -> Code:
        """A constant; its name as Code."""
        self.items.append(Declaration(name, cpp("const {} {} = {};", kind, name, value)))
        return named(name)

    def block(self, head: str, *, end: str | None = "}") -> Statements:
        """A nested block: its statements, to be filled."""
        inner = Statements()
        self.items.append(Block(head, inner, end))
        return inner

    def nest(self, head: str, body: Statements, *, end: str | None = "}") -> None:
        """A nested block that was filled before its place was known."""
        self.items.append(Block(head, body, end))

    def used(self) -> Statements:
        """The same without the constants that nobody reads."""
        return _used(self, set())

    @property
    def headers(self) -> frozenset[str]:
        """What all of its code needs."""
        return frozenset[str]().union(*(_headers(each) for each in self.walk()))

    def walk(self) -> Iterator[str]:
        """The code of every statement and head, in order."""
        for each in self.items:
            if isinstance(each, Block):
                yield each.head
                yield from each.body.walk()
            elif not isinstance(each, Comment):
                yield each.code

    def printed(self, *, comments: bool = True) -> list[str]:
        """Its lines; those of blocks are indented."""
        found: list[str] = []
        for each in self.items:
            if isinstance(each, Comment):
                found += [f"// {each.text}"] if comments else []
            elif isinstance(each, Block):
                found += f"{each.head} {{".lstrip().split("\n")
                found += indented(each.body.printed(comments=comments))
                found += [] if each.end is None else [each.end]
            else:
                found += each.code.split("\n")
        return found

    def text(self) -> str:
        return "\n".join([*self.printed(), ""])


def function(head: str, parameters: Iterable[str], body: Statements, *, below: bool = False) -> str:
    """The text of a function: `HEAD(PARAMETERS)`, and its body in braces. `below`: its parameters begin a new line."""
    column = len(INDENT) if below else len(head.rpartition("\n")[2]) + 1
    first = f"\n{INDENT}" if below else ""
    signature = f"{head}({first}{wrapped(tuple(parameters), column)})"
    return "\n".join([signature, "{", *indented(body.printed()), "}", ""])


def indented(lines: Iterable[str]) -> list[str]:
    """Lines one step to the right; empty ones and directives stay."""
    return [f"{INDENT}{line}" if line and not line.startswith("#") else line for line in lines]


def wrapped(items: Iterable[str], column: int = 0, indent: str = INDENT, width: int = WIDTH) -> Code:
    """Items with commas between them, in lines that are not too long; the first begins at `column`."""
    given = tuple(items)
    text = ""
    for number, item in enumerate(given):
        comma = "" if number == len(given) - 1 else ","
        if text and column + len(item) + 2 > width:
            text, column = f"{text}\n{indent}", len(indent)
        elif text:
            text += " "
        text += item + comma
        column += len(item) + 2
    whole = joined("", given)
    return Code(text, whole.reads, whole.headers)


def folded(code: Code, column: int = 0, width: int = WIDTH - len(INDENT)) -> Code:
    """Code broken at spaces, into lines that are not too long; the first begins at `column`. For code without quoted
    texts."""
    lines = textwrap.wrap(code, width, initial_indent=" " * column, subsequent_indent=INDENT, break_long_words=False,
                          break_on_hyphens=False)  # fmt: skip
    return Code("\n".join(lines)[column:], code.reads, code.headers)


def _used(statements: Statements, read: set[str]) -> Statements:
    """`read` grows from behind: a constant is read behind its declaration only."""
    kept: list[Line | Comment | Declaration | Block] = []
    for each in reversed(statements.items):
        if isinstance(each, Block):
            kept.append(Block(each.head, _used(each.body, read), each.end))
            read |= _reads(each.head)
        elif isinstance(each, Comment):
            kept.append(each)
        elif isinstance(each, Line) or each.name in read:
            kept.append(each)
            read |= _reads(each.code)
    return Statements(kept[::-1])


def _reads(code: str) -> frozenset[str]:
    return code.reads if isinstance(code, Code) else frozenset()


def _headers(code: str) -> frozenset[str]:
    return code.headers if isinstance(code, Code) else frozenset()
