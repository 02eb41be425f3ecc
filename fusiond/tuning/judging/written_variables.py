"""Finds the module variables that a kernel writes, in which it could keep state between launches.

An address flows from `mov.u64 %rd1, memo` through whatever is computed of it, and a store or an atomic through one of
these registers writes the variable. On the safe side: registers of all functions are one, and a call hands on.
"""

import re
from collections.abc import Iterable, Iterator

from fusiond.build import nvcc
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program, Source, SourceKind, SourceLanguage
from fusiond.model.ptx import parser, rewrite
from fusiond.model.ptx.tree import Instruction, PtxError, instructions

_WRITES = frozenset({"st", "red", "atom", "cp", "stmatrix"})
_NO_ADDRESS = frozenset({"ld", "ldu", "atom", "bra", "bar", "barrier", "setp", "ret"})
"""What such instructions make of an address is none."""
_MANGLED = re.compile(r"_ZN?L?(?=\d)")


def written_variables(program: Program) -> Iterator[str]:
    """The names of variables in global memory that a launch writes, beside those that are buffers of the Program, and
    so are restored. Nothing where no compiler makes PTX of a source."""
    entries: dict[str, list[str]] = {}
    for step in program.launches:
        entries.setdefault(step.source, []).append(step.entry)
    for source in program.sources:
        if source.kind is SourceKind.DEVICE and source.name in entries:
            yield from _of_source(source, entries[source.name])


def _of_source(source: Source, entries: Iterable[str]) -> Iterator[str]:
    text, names, declared = source.text, {each: each for each in entries}, set(source.symbols)
    if source.language is not SourceLanguage.PTX:
        built = nvcc.named_ptx(source, "sm_90") if nvcc.find() is not None else None
        if built is None or isinstance(built, BuildFailed):
            return
        text, names = built.text, {each: built.names[each] for each in entries}
        declared = {built.symbols[each] for each in source.symbols}
    try:
        module = parser.parse(text)
    except PtxError:
        return
    for entry in names.values():
        functions, variables, _ = rewrite.reached(module, module.entries[entry])
        own = {each.name for each in variables if each.space == "global"} - declared
        bodies = [each.body for each in (module.entries[entry], *functions) if each.body is not None]
        code = [each for body in bodies for each in instructions(body)]
        handed = {each.name for function in functions for each in function.parameters}
        elsewhere = {each.name for each in module.functions if each.body is None}
        yield from sorted(_plain(name) for name in own if _is_written(name, code, handed, elsewhere))


def _is_written(name: str, code: list[Instruction], handed: set[str], elsewhere: set[str]) -> bool:
    """`handed`: the parameters of functions. Those `elsewhere` (printf, an assertion) are given texts to read."""
    holds = {name}
    while True:
        found, passed = holds.copy(), False
        for each in code:
            words = each.words
            if each.base == "call":  # which is given what was stored to its parameters just before
                found |= handed if passed and elsewhere.isdisjoint(words) else set()
                passed = False
            if holds.isdisjoint(words):
                continue
            if each.opcode.startswith("st.param"):
                passed = True
                continue
            if each.base in _WRITES and not holds.isdisjoint(_addressed(words)):
                return True
            if each.base not in _NO_ADDRESS or "param" in each.opcode:
                found.update(_results(words))
        if found == holds:
            return False
        holds = found


def _addressed(words: tuple[str, ...]) -> tuple[str, ...]:
    """What stands in the first brackets."""
    if "[" not in words:
        return ()
    begin = words.index("[")
    return words[begin + 1 : words.index("]", begin)]


def _results(words: tuple[str, ...]) -> tuple[str, ...]:
    """The first operand, or all of `{a, b}`."""
    return words[1 : words.index("}")] if words[:1] == ("{",) else words[:1]


def _plain(name: str) -> str:
    """`memo` of `_ZL4memo`, and of `_ZN5space4memoE`."""
    found, rest = name, _MANGLED.match(name)
    at = 0 if rest is None else rest.end()
    while at and (length := re.match(r"\d+", name[at:])) is not None:
        begin = at + length.end()
        at = begin + int(length[0])
        found = name[begin:at]
    return found
