"""The kernels of a PTX text, by what stands at their heads: parameters, and the limits of their registers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fusiond.cuda.entries import EntryParameter

_ENTRY_HEAD = re.compile(r"^((?:\.\w+\s+)*)\.entry\s+([\w$]+)\s*\(([^)]*)\)([^{;]*)([{;])", re.MULTILINE)
_POINTER = re.compile(r"\.ptr\b[^,]*?(?=[\w$]+\s*(?:,|$))")
"""What newer compilers say about a pointer (`.ptr .global .align 4`) between its type and its name."""
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.[a-z](\d+)\s+[\w$]+(?:\[(\d+)\])?")


def with_register_cap(text: str, cap: int) -> str:
    """PTX in which every entry may use at most `cap` registers; a lower limit of the source's own stays, and so do the
    numbers of the lines.

    before  .entry k(...) .maxntid 256, 1, 1 {        after  .entry k(...) .maxntid 256, 1, 1 .maxnreg 40 {
    """

    def capped(match: re.Match[str]) -> str:
        linkage, name, parameters, directives, end = match.groups()
        if end == ";":  # a declaration has no directives
            return match.group(0)
        own = re.search(r"\.maxnreg\s+(\d+)", directives)
        limit = min(cap, int(own.group(1))) if own else cap
        if own:
            directives = directives.replace(own.group(0), "")
        kept = directives.rstrip()
        ending = "\n" * directives.count("\n", len(kept)) or " "
        return f"{linkage}.entry {name}({parameters}){kept} .maxnreg {limit}{ending}{{"

    return _ENTRY_HEAD.sub(capped, text)


def parameters(text: str) -> Mapping[str, tuple[EntryParameter, ...]]:
    """Mangled name -> the layout of its parameters, for every kernel of a PTX text."""
    return {match.group(2): _layout(match.group(3)) for match in _ENTRY_HEAD.finditer(text)}


def _layout(parameters: str) -> tuple[EntryParameter, ...]:
    """Offsets as the ABI lays parameters out: in order, each at the next multiple of its alignment."""
    found: list[EntryParameter] = []
    end = 0
    for alignment, bits, count in _PARAMETER.findall(_POINTER.sub("", parameters)):
        each = int(bits) // 8
        size = each * int(count) if count else each
        unit = int(alignment) if alignment else each
        offset = -(-end // unit) * unit
        found.append(EntryParameter(offset_bytes=offset, size_bytes=size))
        end = offset + size
    return tuple(found)
