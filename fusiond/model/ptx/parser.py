"""PTX text -> `Module`. Most lines hold one instruction, and those go a short way: 5,000 lines take some 15 ms."""

import itertools
import re
from collections.abc import Sequence

from fusiond.model.ptx.tree import (
    SIZES,
    TOKEN,
    Directive,
    Function,
    Instruction,
    Item,
    Label,
    Module,
    PtxBlock,
    PtxError,
    PtxRegisters,
    Statement,
    Variable,
)

_INSTRUCTION = re.compile(r"\s*(?:@(!?[\w$%]+)\s+)?([a-z][\w.]*(?:::[\w.]+)*)(?:\s+((?!:)[^;]*[^;\s]))?\s*;\s*")
"""One on a line of its own."""
_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_SPACES = ("global", "shared", "const", "local", "param", "reg", "sreg", "tex")
_TO_THE_END_OF_THE_LINE = (".version", ".target", ".address_size", ".loc", ".file")
_LINKAGE = (".visible", ".extern", ".weak", ".common")
_SPACE_WORDS = frozenset(f".{each}" for each in _SPACES)
_NAME = re.compile(r"(?:[A-Za-z]|[_$%](?=[\w$]))[\w$]*|%?[_$]")


def parse(text: str) -> Module:
    """The module of a PTX text. PtxError where it is not understood."""
    return _Parser(without_comments(text)).module()


def without_comments(text: str) -> str:
    """A text whose lines are where they were."""
    if "//" not in text and "/*" not in text:
        return text
    return _COMMENT.sub(lambda match: match[0] if match[0][0] == '"' else "\n" * match[0].count("\n"), text)


class _Parser:
    """Words are collected up to what ends a statement: `;`, a brace, a label's colon, or the end of some lines."""

    def __init__(self, text: str) -> None:
        self._lines = text.rstrip().split("\n")
        self._line = 0
        self._begun = 0  #: The line where the words that are collected begin
        self._words: list[str] = []
        self._depth = 0  #: Of braces within a statement: an operand's or an initial value's
        self._version, self._address_size = "", 64
        self._items: list[Item] = []
        self._head: tuple[int, list[str]] | None = None  #: The function that the open blocks are of
        self._blocks: list[tuple[int, list[Statement]]] = []

    def module(self) -> Module:
        find, match, line = TOKEN.findall, _INSTRUCTION.fullmatch, 0
        skipping = False  # inside a .section, whose body is data
        targets: tuple[str, ...] = ()
        for line, text in enumerate(self._lines, 1):
            if self._blocks and not self._words and (found := match(text)):
                guard, opcode, operands = found.groups("")
                self._blocks[-1][1].append(Instruction(line, guard, opcode, operands))
                continue
            words = find(text)
            if not words:
                continue
            self._line = line
            first = words[0]
            if skipping:
                skipping = "}" not in words
                continue
            if not self._words:
                self._begun = line
                if first in _TO_THE_END_OF_THE_LINE:
                    if first == ".target":
                        targets = tuple(each for each in words[1:] if each != ",")
                    else:
                        self._line_directive(words)
                    continue
                if first == ".section":
                    skipping = "}" not in words
                    continue
            self._several(words)
        if self._words or self._blocks:
            raise PtxError("the text ends in the middle", line)
        if not targets:
            raise PtxError("it has no .target", max(line, 1))
        return Module(self._version, targets, self._address_size, tuple(self._items))

    @property
    def _statements(self) -> list[Statement]:
        return self._blocks[-1][1]

    def _line_directive(self, words: list[str]) -> None:
        if words[0] == ".version":
            self._version = words[1]
        elif words[0] == ".address_size":
            self._address_size = int(words[1])
        elif self._blocks:  # what a place was inlined from is said by names in debug sections
            self._statements.append(Directive(self._line, tuple(words[:4])))
        else:
            self._items.append(Directive(self._line, tuple(words)))

    def _several(self, words: Sequence[str]) -> None:
        """What is more or less than one instruction."""
        held = self._words
        for at, word in enumerate(words):
            if not held:
                self._begun = self._line
            if self._depth:
                self._depth += {"{": 1, "}": -1}.get(word, 0)
                held.append(word)
            elif word == ";":
                self._statement()
            elif word == "{":
                if not held or self._is_head():
                    self._open()
                else:
                    self._depth = 1
                    held.append(word)
            elif word == "}":
                if held:
                    raise PtxError(f"';' is missing behind {' '.join(held)[:60]!r}", self._begun)
                self._close()
            elif word == ":" and len(held) == 1:
                self._statements.append(Label(self._line, held.pop()))
            elif not held and word == ".loc":  # behind other statements on one line
                self._line_directive(list(words[at:]))
                return
            else:
                held.append(word)

    def _is_head(self) -> bool:
        return not self._blocks and (".entry" in self._words or ".func" in self._words)

    def _open(self) -> None:
        if not self._blocks:
            if not self._words:
                raise PtxError("a block outside of a function", self._line)
            self._head = self._begun, list(self._words)
            self._words.clear()
        self._blocks.append((self._line, []))

    def _close(self) -> None:
        if not self._blocks:
            raise PtxError("'}' closes nothing", self._line)
        line, statements = self._blocks.pop()
        block = PtxBlock(line, tuple(statements))
        if self._blocks:
            self._statements.append(block)
            return
        assert self._head is not None
        self._items.append(self._function(*self._head, block))

    # --- statements ---

    def _statement(self) -> None:
        words = self._words[:]
        self._words.clear()
        if not words:
            return
        first = words[0]
        if not self._blocks:
            self._items.append(self._item(words))
        elif first[0] == ".":
            self._statements.append(self._declaration(words))
        else:
            self._statements.append(self._instruction(words))

    def _instruction(self, words: Sequence[str]) -> Instruction:
        at = 0 if words[0] != "@" else 3 if words[1:2] == ["!"] else 2
        if at >= len(words):
            raise PtxError(f"an instruction is missing behind {' '.join(words)!r}", self._begun)
        return Instruction(self._begun, "".join(words[1:at]), words[at], "".join(words[at + 1 :]).replace(",", ", "))

    def _item(self, words: list[str]) -> Item:
        if ".entry" in words or ".func" in words:
            return self._function(self._begun, words, None)
        found = self._declaration(words)
        if isinstance(found, Directive | Variable):
            return found
        raise PtxError(f"{words[0]!r} outside of a function", self._begun)

    def _declaration(self, words: list[str]) -> Directive | PtxRegisters | Variable:
        # `.reg.b16 x;`, as the inline assembly of cuda_fp16.h has it
        words = [*(f".{each}" for each in words[0][1:].split(".")), *words[1:]]
        if words[0] == ".reg":
            return self._registers(words)
        at = next((k for k, word in enumerate(words) if word not in _LINKAGE), len(words))
        if at < len(words) and words[at] in _SPACE_WORDS:
            return self._variable(words, self._begun)
        if words[0] in (
            ".pragma",
            ".alias",
            ".branchtargets",
            ".calltargets",
            ".callprototype",
            ".maxnreg",
            ".noreturn",
        ):
            return Directive(self._begun, tuple(words))
        raise PtxError(f"{words[0]!r} is not known", self._begun)

    def _registers(self, words: list[str]) -> PtxRegisters:
        at = 2 if words[1] in (".v2", ".v4") else 1
        type_ = words[at][1:]
        if type_ not in SIZES:
            raise PtxError(f"registers of a type that is not known: {' '.join(words)!r}", self._begun)
        names: list[tuple[str, int | None]] = []
        at += 1
        while at < len(words):
            if at + 3 < len(words) and words[at + 1] == "<":
                names.append((words[at], int(words[at + 2])))
                at += 5
            else:
                names.append((words[at], None))
                at += 2
        return PtxRegisters(self._begun, type_, tuple(names))

    def _variable(self, words: Sequence[str], line: int) -> Variable:
        wanted = PtxError(f"a declaration that is not understood: {' '.join(words)[:80]!r}", line)
        linkage = tuple(itertools.takewhile(_LINKAGE.__contains__, words))
        space, *rest = words[len(linkage) :] or [""]
        attributes: list[str] = []
        type_ = name = ""
        while rest and not name:
            word, count = rest[0], 4 if rest[0] == ".attribute" else 1  # .attribute(.managed)
            if word[0] == "." and word[1:] in SIZES and not type_:
                type_ = word[1:]
            elif word[0] == "." or word.isdigit():
                attributes += rest[:count]
            else:
                name = word
            rest = rest[count:]
        extents: list[str] = []
        while rest[:1] == ["["] and "]" in rest:
            end = rest.index("]")
            extents.append("".join(rest[1:end]))
            rest = rest[end + 1 :]
        initial = tuple(rest[1:]) if rest[:1] == ["="] else ()
        if space not in _SPACE_WORDS or not type_ or not name or (rest and not initial):
            raise wanted
        return Variable(line, linkage, space[1:], tuple(attributes), type_, name, tuple(extents), initial)

    def _function(self, line: int, words: list[str], body: PtxBlock | None) -> Function:
        """`.visible .func (.param .b32 r) name (.param .b64 x) .noreturn`"""
        kind = "entry" if ".entry" in words else "func"
        at = words.index(f".{kind}")
        linkage = tuple(words[:at])
        at += 1
        attributes: list[tuple[str, ...]] = []
        if at < len(words) and words[at] == ".attribute":
            attributes.append(tuple(words[at : at + 4]))
            at += 4
        returns: tuple[Variable, ...] = ()
        if words[at : at + 1] == ["("]:
            returns, at = self._parameters(words, at, line)
        if at >= len(words) or not _NAME.fullmatch(words[at]):
            raise PtxError(f"a head that is not understood: {' '.join(words)[:60]!r}", line)
        name = words[at]
        at += 1
        parameters: tuple[Variable, ...] = ()
        if words[at : at + 1] == ["("]:
            parameters, at = self._parameters(words, at, line)
        directives = attributes
        for word in words[at:]:
            if word[0] == ".":
                directives.append((word,))
            elif word != ",":
                if not directives:
                    raise PtxError(f"{word!r} behind the parameters of {name}", line)
                directives[-1] = (*directives[-1], word)
        return Function(line, linkage, kind, name, returns, parameters, tuple(directives), body)

    def _parameters(self, words: list[str], at: int, line: int) -> tuple[tuple[Variable, ...], int]:
        """Those in the parentheses that open at a word, and the place behind them."""
        if ")" not in words[at:]:
            raise PtxError("')' is missing", line)
        end = words.index(")", at)
        found: list[Variable] = []
        part: list[str] = []
        for word in (*words[at + 1 : end], ","):
            if word == ",":
                if part:
                    found.append(self._variable(part, line))
                part = []
            else:
                part.append(word)
        return tuple(found), end + 1
