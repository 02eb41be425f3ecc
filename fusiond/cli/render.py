"""Tables on standard output, progress on standard error. `drawn` draws them on a terminal.

Where the output is not a terminal, progress is one plain line an event, and tables are not cut to a width.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Protocol

from rich.cells import cell_len

from fusiond.cli import output
from fusiond.cli.job_texts import UNCUT, TableOf, line
from fusiond.model.english import shown
from fusiond.service.progress import Progress

LONGEST_WORD = 24
"""Words up to this length are never broken in a table."""
_BETWEEN, _AROUND = 3, 2
"""What rich puts between two columns, and around all."""


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; None is shown as nothing. Where the terminal is too narrow for it, each row is a paragraph."""
    cells = [["" if each is None else shown(str(each)) for each in row] for row in rows]
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNCUT
    widths = _widths([columns, *cells], wide)
    if widths is None:  # what is empty throughout is the first to go
        used = [at for at in range(len(columns)) if any(row[at] for row in cells)]
        columns, cells = [columns[at] for at in used], [[row[at] for at in used] for row in cells]
        widths = _widths([columns, *cells], wide)
    if widths is None:
        _paragraphs(title, columns, cells, wide)
        return
    if not plainly(title, widths, wide):
        from fusiond.cli import rich_output  # rich, which takes a tenth of a second

        rich_output.table(title, columns, widths, cells, wide)
        return
    rule, gap = "\u2500" * (sum(widths) + _BETWEEN * (len(widths) - 1)), " " * _BETWEEN
    heads, *lines = (
        gap.join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        for row in (columns, *cells)
    )
    blank = " " * len(rule)
    output.say(*([title] if title else []), *(f" {each} " for each in (blank, heads, rule, *lines, blank)))


def plainly(title: str, widths: Sequence[int], wide: int) -> bool:
    """Whether rich would write a table without colours, in the same characters, and its title on a line."""
    forced = wide != UNCUT or any(map(os.environ.get, ("FORCE_COLOR", "TTY_COMPATIBLE")))
    whole = _BETWEEN * (len(widths) - 1) + sum(widths)
    return (
        not forced
        and (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
        and cell_len(title) <= whole + _AROUND
    )


def _widths(lines: Sequence[Sequence[str]], wide: int) -> list[int] | None:
    """The columns' widths: what each needs, or at least its longest word; None where that does not fit."""
    columns = list(zip(*lines, strict=True))
    wanted = [max(map(cell_len, each)) for each in columns]
    widths = [
        min(most, max(min(LONGEST_WORD, cell_len(word)) for cell in each for word in cell.split() or [""]))
        for each, most in zip(columns, wanted, strict=True)
    ]
    left = wide - _AROUND - _BETWEEN * (len(widths) - 1) - sum(widths)
    if left < 0:
        return None
    order = sorted(range(len(widths)), key=lambda at: wanted[at] - widths[at])
    for done, at in enumerate(order):  # those that need little get it, the others share the rest
        more = min(wanted[at] - widths[at], left // (len(order) - done))
        widths[at] += more
        left -= more
    return widths


def _paragraphs(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], wide: int) -> None:
    """The first cell of a row, and below it the others with their names."""
    if title:
        output.say(f"{title}: {', '.join(columns)}")
    for first, *others in rows:
        output.say(first)
        told = "; ".join(f"{name} {cell}" for name, cell in zip(columns[1:], others, strict=True) if cell)
        output.say(
            *textwrap.wrap(
                told,
                max(wide, 20),
                initial_indent="    ",
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        )


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
        ...


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
