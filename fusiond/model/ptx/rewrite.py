"""Changes to a tree: names, single instructions, resources of a kernel. Each shows its effect, before --> after."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from fusiond.model.ptx import parser
from fusiond.model.ptx.tree import (
    TOKEN,
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
_PLAIN = re.compile(r"(?:%[a-z]{1,2}\d+|[, \[\]{}()+|!-]+|0[DFXdfx][\dA-Fa-f]+|\d+)*+")
"""Operands that are numbers and registers with a number: most."""
Change = Callable[[Instruction], Sequence[Statement]]


def mapped(
    block: PtxBlock, names: Mapping[str, str], changes: Mapping[str, Change], touched: Mapping[str, Change]
) -> PtxBlock:
    """A block with other names, and other statements in the place of some instructions.

    before  mov.u32 %r1, %tid.x;  bar.sync 0;  mov.u32 %r2, smem;
    after   mov.u32 %r1, %a_tid_x;  bar.sync 1, 128;  mov.u32 %r2, %a_arena;

    `names` are replaced wherever they stand; `changes` are by the first word of an opcode (`bar`), `touched` by a name
    among the operands. A change gets the instruction with its old names, and gives what stands instead. `.loc 1 5 3`
    goes: the files that it counts on are those of another text."""
    known = {*names, *touched}
    plain = is_plain if not any(map(is_plain, known)) else lambda text: not text

    def inside(block: PtxBlock) -> PtxBlock:
        found: list[Statement] = []
        for each in block.statements:
            if isinstance(each, Instruction):
                change = changes.get(each.opcode.partition(".")[0])
                if change is not None:
                    found += change(each)
                elif plain(each.text) or known.isdisjoint(words := each.words):
                    found.append(each)
                else:
                    by_name = next((touched[word] for word in words if word in touched), None)
                    found += [renamed(each, names)] if by_name is None else by_name(each)
            elif isinstance(each, PtxBlock):
                found.append(inside(each))
            elif isinstance(each, Variable) and each.name in names:
                found.append(dataclasses.replace(each, name=names[each.name]))
            elif not isinstance(each, Directive) or each.kind != "loc":
                found.append(each)
        return PtxBlock(block.line, tuple(found))

    return inside(block)


def renamed(instruction: Instruction, names: Mapping[str, str]) -> Instruction:
    """`ld.param.u64 %rd1, [k_param_0];` --> `ld.param.u64 %rd1, [a_x];`"""
    text = TOKEN.sub(lambda word: names.get(word[0], word[0]), instruction.text)
    return Instruction(instruction.line, instruction.guard, instruction.opcode, text)


def renamed_variable(variable: Variable, names: Mapping[str, str], *, linkage: tuple[str, ...] = ()) -> Variable:
    """`.visible .global .u64 table = f;` --> `.global .u64 a_table = a_f;`"""
    initial = tuple(names.get(word, word) for word in variable.initial)
    name = names.get(variable.name, variable.name)
    return dataclasses.replace(variable, linkage=linkage, name=name, initial=initial)


def with_register_cap(text: str, cap: int) -> str:
    """PTX in which every entry may use at most `cap` registers; a lower limit of the source's own stays. The text is
    changed and not printed from its tree: ptxas and nvdisasm speak of its lines.

    before  .entry k(...) .maxntid 256, 1, 1 {        after  .entry k(...) .maxntid 256, 1, 1 .maxnreg 40 {"""

    def capped(match: re.Match[str]) -> str:
        own = _CAP.search(match[1])
        kept = _CAP.sub(lambda gone: "\n" * gone[0].count("\n"), match[1])
        return f"{kept} .maxnreg {min(cap, int(own[1])) if own else cap}{match[2] or ' '}{{"

    return _HEAD.sub(capped, parser.without_comments(text))


# --- what a kernel reaches ------------------------------------------------------------------------------


def is_plain(operands: str) -> bool:
    """Whether they are only numbers and registers with a number, as nearly all are."""
    return _PLAIN.fullmatch(operands) is not None


def words_of(block: PtxBlock) -> frozenset[str]:
    """The words of a block's operands, as far as they are not plain."""
    return frozenset(word for each in instructions(block) if not is_plain(each.text) for word in each.words)


def call_target(call: Instruction) -> str:
    """`f` of `call.uni (r), f, (p0, p1);`, and of `call f;`"""
    words = call.words
    at = words.index(")") + 2 if words[0] == "(" else 0
    return words[at]


def reached(
    module: Module, entry: Function
) -> tuple[tuple[Function, ...], tuple[Variable, ...], Mapping[str, frozenset[str]]]:
    """The functions with a body that a kernel calls, directly or not or by a table of pointers, and the variables of
    the module that all of them use, in the order of the text; `words_of` the kernel and each function, by name."""
    functions = {each.name: each for each in module.functions if each.body is not None and each.kind == "func"}
    variables = {each.name: each for each in module.variables}
    known: set[str] = set()
    assert entry.body is not None
    words = {entry.name: words_of(entry.body)}
    waiting: list[Iterable[str]] = [words[entry.name]]
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
                words[word] = words_of(body)
                waiting.append(words[word])
    return (
        tuple(each for name, each in functions.items() if name in known),
        tuple(each for name, each in variables.items() if name in known),
        words,
    )


def variables_in(block: PtxBlock) -> Iterator[Variable]:
    """What a block and those in it declare in memory."""
    return (each for each in walk(block) if isinstance(each, Variable))
