"""The entry table inside a binary that fusiond built: which kernel or variable of the source has which
mangled name, and how a kernel's parameters lie.

A source names its kernels as people do (`ns::maxpool<float, 5>`); a cubin knows only `_ZN2ns7maxpoolIfLi5EEvPT_`,
and the driver takes arguments as bytes at offsets. The builder knows both, so it writes a table into the binary, as
a constant array that no kernel refers to. A binary is then enough by itself: in a bundle, in an export, where there
is no compiler.

Only the standard library is imported here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SYMBOL = "fusiond_entries"
_HEAD = b"fusiond entry table 1:"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryParameter:
    """Where one parameter lies in a kernel's argument buffer."""

    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryName:
    """One kernel: its mangled name and its parameters in order."""

    mangled: str
    parameters: tuple[EntryParameter, ...]

    @property
    def argument_bytes(self) -> int:
        """The length of the packed arguments."""
        return max((each.offset_bytes + each.size_bytes for each in self.parameters), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryTable:
    """What a binary holds, by the names of its source."""

    entries: Mapping[str, EntryName]
    symbols: Mapping[str, str]  #: Variable -> mangled name


def table_bytes(table: EntryTable) -> bytes:
    """The table as it is written into a binary."""
    rows = {
        name: [entry.mangled, [[each.offset_bytes, each.size_bytes] for each in entry.parameters]]
        for name, entry in table.entries.items()
    }
    text = json.dumps([rows, dict(table.symbols)], sort_keys=True, separators=(",", ":"))
    return _HEAD + text.encode() + b"\0"


def read_table(binary: Path) -> EntryTable:
    """The table of a binary. ValueError when fusiond did not build it."""
    data = binary.read_bytes()
    start = data.find(_HEAD)
    if start < 0:
        raise ValueError(f"{binary.name} has no entry table; it was not built by fusiond")
    start += len(_HEAD)
    rows, symbols = json.loads(data[start : data.index(b"\0", start)])
    entries = {
        name: EntryName(
            mangled=mangled,
            parameters=tuple(EntryParameter(offset_bytes=offset, size_bytes=size) for offset, size in parameters),
        )
        for name, (mangled, parameters) in rows.items()
    }
    return EntryTable(entries=entries, symbols=symbols)
