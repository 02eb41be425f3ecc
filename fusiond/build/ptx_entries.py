"""The kernels of a PTX text, by what stands at their heads: parameters, and the limits of their registers."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from fusiond.cuda.entries import EntryParameter
from fusiond.ptx import parser
from fusiond.ptx.tree import Function, Module

_HEAD = re.compile(r"(\.entry\b[^{;]*?)(\s*)\{")
_CAP = re.compile(r"\s*\.maxnreg\s+(\d+)")


@functools.lru_cache(maxsize=4)
def module(text: str) -> Module:
    """The tree of a text. PtxError where it is not understood."""
    return parser.parse(text)


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


def parameters(text: str) -> Mapping[str, tuple[EntryParameter, ...]]:
    """Mangled name -> the layout of its parameters, for every kernel of a PTX text."""
    return {name: _layout(entry) for name, entry in module(text).entries.items()}


def _layout(entry: Function) -> tuple[EntryParameter, ...]:
    """Offsets as the ABI lays parameters out: in order, each at the next multiple of its alignment."""
    found: list[EntryParameter] = []
    end = 0
    for each in entry.parameters:
        offset = -(-end // each.alignment) * each.alignment
        found.append(EntryParameter(offset_bytes=offset, size_bytes=each.size_bytes))
        end = offset + each.size_bytes
    return tuple(found)
