"""Changes to a tree: names, single instructions, what a kernel may use. Each shows what it does, before --> after."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

from fusiond.ptx import parser
from fusiond.ptx.tree import (
    Directive,
    Function,
    Instruction,
    Module,
    PtxBlock,
    Statement,
    Variable,
    instructions,
    walk,
)

_HEAD = re.compile(r"(\.entry\b[^{;]*?)(\s*)\{")
_CAP = re.compile(r"\s*\.maxnreg\s+(\d+)")
Change = Callable[[Instruction], Sequence[Statement]]


def mapped(
    block: PtxBlock, names: Mapping[str, str], changes: Mapping[str, Change], touched: Mapping[str, Change]
) -> PtxBlock:
    """A block with other names, and other statements in the place of some instructions.

    before  mov.u32 %r1, %tid.x;  bar.sync 0;  mov.u32 %r2, smem;
    after   mov.u32 %r1, %a_tid_x;  bar.sync 1, 128;  mov.u32 %r2, %a_arena;

    `names` are replaced wherever they stand; `changes` are by the first word of an opcode (`bar`), `touched` by a name
    among the operands. A change gets the instruction with its old names, and gives what stands instead.
    """
    known: Set[str] = {*names, *touched}
    found: list[Statement] = []
    for each in block.statements:
        if isinstance(each, Instruction):
            change = changes.get(each.opcode.partition(".")[0])
            if change is not None:
                found += change(each)
            elif known.isdisjoint(each.words):
                found.append(each)
            else:
                by_name = next((touched[word] for word in each.words if word in touched), None)
                found += [renamed(each, names)] if by_name is None else by_name(each)
        elif isinstance(each, PtxBlock):
            found.append(mapped(each, names, changes, touched))
        elif isinstance(each, Variable) and each.name in names:
            found.append(dataclasses.replace(each, name=names[each.name]))
        else:
            found.append(each)
    return PtxBlock(block.line, tuple(found))


def renamed(instruction: Instruction, names: Mapping[str, str]) -> Instruction:
    """`ld.param.u64 %rd1, [k_param_0];` --> `ld.param.u64 %rd1, [a_x];`"""
    words = tuple([names.get(word, word) for word in instruction.words])
    return Instruction(instruction.line, instruction.guard, instruction.opcode, words)


def renamed_variable(variable: Variable, names: Mapping[str, str], *, linkage: tuple[str, ...] = ()) -> Variable:
    """`.visible .global .u64 table = f;` --> `.global .u64 a_table = a_f;`"""
    initial = tuple(names.get(word, word) for word in variable.initial)
    name = names.get(variable.name, variable.name)
    return dataclasses.replace(variable, linkage=linkage, name=name, initial=initial)


def without_lines(block: PtxBlock) -> PtxBlock:
    """`.loc 1 5 3` goes: the files that it counts on are those of another text."""
    kept = (
        without_lines(each) if isinstance(each, PtxBlock) else each
        for each in block.statements
        if not (isinstance(each, Directive) and each.kind == "loc")
    )
    return PtxBlock(block.line, tuple(kept))


def with_register_cap(text: str, cap: int) -> str:
    """PTX in which every entry may use at most `cap` registers; a lower limit of the source's own stays. The text is
    changed and not printed from its tree: ptxas and nvdisasm speak of its lines.

    before  .entry k(...) .maxntid 256, 1, 1 {        after  .entry k(...) .maxntid 256, 1, 1 .maxnreg 40 {
    """

    def capped(match: re.Match[str]) -> str:
        own = _CAP.search(match[1])
        kept = _CAP.sub(lambda gone: "\n" * gone[0].count("\n"), match[1])
        return f"{kept} .maxnreg {min(cap, int(own[1])) if own else cap}{match[2] or ' '}{{"

    return _HEAD.sub(capped, parser.without_comments(text))


# --- what a kernel reaches ------------------------------------------------------------------------------


def words_of(block: PtxBlock) -> Iterator[str]:
    for each in walk(block):
        if isinstance(each, Instruction):
            yield from each.words


def called(block: PtxBlock) -> Iterator[tuple[Instruction, str]]:
    """The calls of a block, each with the name of what is called (a register, where that is a pointer)."""
    for each in instructions(block):
        if each.base == "call":
            yield each, call_target(each)


def call_target(call: Instruction) -> str:
    """`f` of `call.uni (r), f, (p0, p1);`, and of `call f;`"""
    words = call.words
    at = words.index(")") + 2 if words[0] == "(" else 0
    return words[at]


def reached(module: Module, entry: Function) -> tuple[tuple[Function, ...], tuple[Variable, ...]]:
    """The functions with a body that a kernel calls, directly or not or by a table of pointers, and the variables of
    the module that all of them use, in the order of the text."""
    functions = {each.name: each for each in module.functions if each.body is not None and each.kind == "func"}
    variables = {each.name: each for each in module.variables}
    known: set[str] = set()
    waiting: list[Iterable[str]] = [words_of(entry.body)] if entry.body is not None else []
    while waiting:
        for word in waiting.pop():
            if word in known:
                continue
            if word in variables:
                known.add(word)
                waiting.append(variables[word].initial)
            elif word in functions:
                known.add(word)
                body = functions[word].body
                assert body is not None
                waiting.append(words_of(body))
    return (
        tuple(each for name, each in functions.items() if name in known),
        tuple(each for name, each in variables.items() if name in known),
    )


def variables_in(block: PtxBlock) -> Iterator[Variable]:
    """What a block and those in it declare in memory."""
    return (each for each in walk(block) if isinstance(each, Variable))
