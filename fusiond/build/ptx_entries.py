"""The kernels of a PTX text and their parameters, read from their headers."""

import functools
from collections.abc import Mapping

from fusiond.model.gpu.entry_table import EntryParameter
from fusiond.model.ptx import parser
from fusiond.model.ptx.tree import Function, Module


@functools.lru_cache(maxsize=4)
def module(text: str) -> Module:
    """The tree of a text. PtxError where it is not understood."""
    return parser.parse(text)


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
