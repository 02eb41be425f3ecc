"""Tables on standard output, progress on standard error. `rich_output` draws them on a terminal.

Where the output is not a terminal, progress is one plain line an event, and tables are not cut to a width.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol

from rich.cells import cell_len

from fusiond.cli import options, output
from fusiond.cli.job_texts import TableOf, line
from fusiond.model.english import shown
from fusiond.service.progress import Progress

UNCUT = 10_000  #: Columns of a table that goes into a pipe
_BETWEEN, _AROUND = 3, 2  #: Columns of blanks between two cells, and around a line


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; None is shown as nothing. Where the terminal is too narrow for it, each row is a paragraph."""
    cells = [["" if each is None else shown(str(each)) for each in row] for row in rows]
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNCUT
    widths = _widths([columns, *cells])
    if _width(widths) > wide:  # what is empty throughout is the first to go
        used = [at for at in range(len(columns)) if any(row[at] for row in cells)]
        columns, cells = [columns[at] for at in used], [[row[at] for at in used] for row in cells]
        widths = _widths([columns, *cells])
    if _width(widths) > wide:
        _paragraphs(title, columns, cells, wide)
        return
    heads, *lines = (
        (" " * _BETWEEN).join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        for row in (columns, *cells)
    )
    rule, blank = "\u2500" * len(heads), " " * len(heads)
    output.say(*([title] if title else []), *(f" {each} " for each in (blank, heads, rule, *lines, blank)))


def listing(
    arguments: argparse.Namespace,
    document: Any,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    none: str = "",
) -> int:
    """A command's answer, as a document with `--json`, else as a table, or `none` where that has no rows; the exit
    status 0."""
    if arguments.json:
        options.say_json(document)
    elif (lines := list(rows)) or not none:
        table("", columns, lines)
    else:
        output.say(none)
    return 0


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(cell_len, each)) for each in zip(*lines, strict=True)]


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + _BETWEEN * (len(widths) - 1) + _AROUND


def _paragraphs(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], wide: int) -> None:
    """The first cell of a row, and below it the others with their names."""
    if title:
        output.say(f"{title}: {', '.join(columns)}")
    for first, *others in rows:
        output.say(first)
        told = "; ".join(f"{name} {cell}" for name, cell in zip(columns[1:], others, strict=True) if cell)
        lines = textwrap.wrap(told, max(wide, 20) - 4, break_long_words=False, break_on_hyphens=False)
        output.say(*(f"    {each}" for each in lines))


def when(text: str | None) -> str | None:
    """A stored time without its fraction and zone (all are UTC)."""
    return text[:19].replace("T", " ") if text else None


class Display(Protocol):
    """Shows what a job does; a context manager."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, progress: Progress) -> None: ...

    def say(self, text: str) -> None:
        """A line of its own."""


def display(*, plain: bool) -> Display:
    """Live bars on a terminal, plain lines elsewhere or when `plain` is asked for."""
    if plain or not sys.stderr.isatty():
        return ProgressLines()
    from fusiond.cli.rich_output import Live

    return Live()


class ProgressLines:
    """One plain line an event."""

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        self._say = say

    def __enter__(self) -> ProgressLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def say(self, text: str) -> None:
        if self._say is not None:
            self._say(text)
        else:
            with contextlib.suppress(OSError):  # nobody reads the progress any more: no reason to stop the work
                output.complain(text)

    def show(self, progress: Progress) -> None:
        text = line(progress)
        if text:
            self.say(text)


def watching(draw: Callable[[], Sequence[TableOf]], secs: float) -> None:
    """Tables that are drawn anew until Ctrl-C ends it; where the output is not a terminal, one after the other."""
    if sys.stdout.isatty():
        from fusiond.cli import rich_output

        rich_output.watching(draw, secs)
    while True:
        for each in draw():
            table(each.title, each.columns, each.rows)
        sys.stdout.flush()
        time.sleep(secs)
