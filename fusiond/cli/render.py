"""The one home of rich: tables on standard output, progress on standard error.

Where the output is not a terminal, progress is one plain line an event, and tables are not cut to a width.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live as Drawn
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from fusiond.cli import output
from fusiond.cli.answer import microseconds
from fusiond.progress import Progress
from fusiond.standing import Standing, Standings
from fusiond.words import shortened, shown

UNCUT = 10_000
"""Columns of a table that goes into a pipe."""
LONGEST_WORD = 24
"""Words up to this length are never broken in a table."""
_BETWEEN, _AROUND = 3, 2
"""What rich puts between two columns, and around all."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Whoever read the output is gone; `fusiond.cli.main` knows what to do then, and rich would exit with 1."""
        raise BrokenPipeError


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
    console = _Console(width=wide, emoji=False, highlight=False, soft_wrap=wide == UNCUT)
    grid = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for name, width in zip(columns, widths, strict=True):
        grid.add_column(name, overflow="fold", width=width)
    for row in cells:
        grid.add_row(*map(escape, row))
    console.print(grid)


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


def ratio(value: float | None) -> str | None:
    """`1.234x`, or None."""
    return None if value is None else f"{value:.3f}x"


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
    return ProgressLines() if plain or not sys.stderr.isatty() else Live()


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


class _About(ProgressColumn):
    """A text that is looked at each time that the bar is drawn."""

    def __init__(self, text: Callable[[Standing], str], standing: Callable[[], Standing | None]) -> None:
        super().__init__()
        self._text, self._standing = text, standing

    def render(self, task: Task) -> Text:
        standing = self._standing()
        return Text("" if standing is None else shown(self._text(standing)))


class Live:
    """A bar with phase, part, trials done, best so far and time left; what matters scrolls by above it."""

    def __init__(self) -> None:
        self._standings = Standings()
        self._job = ""
        self._phase = "starting"

        def standing() -> Standing | None:
            return self._standings.of(self._job)

        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.fields[phase]}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            _About(lambda each: "" if each.best is None else f"best {each.best:.2f}x", standing),
            _About(lambda each: "" if each.left_secs is None else f"about {duration(each.left_secs)} left", standing),
            console=Console(stderr=True, emoji=False, highlight=False),
            transient=True,
        )
        self._task: TaskID = self._bar.add_task("", total=None, phase="starting")

    def __enter__(self) -> Live:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self._bar.console.print(escape(shortened(shown(text))))

    def show(self, progress: Progress) -> None:
        if progress.parent is None and progress.event == "job":
            self._job = progress.job
        self._standings.tell(progress)
        standing = self._standings.of(self._job)
        if standing is not None:
            part = f"part {standing.part} of {standing.parts}, " if standing.part is not None else ""
            if progress.phase and not _quiet(progress) and progress.phase != "part":
                self._phase = _phase(progress)
            if standing.final is not None:
                self._phase = f"final {standing.final} of {standing.finals}"
            text = escape(shortened(shown(part + self._phase), 200))
            self._bar.update(self._task, phase=text, completed=standing.done, total=standing.budget)
        if progress.event in ("job", "baseline", "record", "ended") or progress.phase == "part":
            self.say(line(progress))


def watching(draw: Callable[[], Sequence[TableOf]], secs: float) -> None:
    """Tables that are drawn anew until Ctrl-C ends it; where the output is not a terminal, one after the other."""
    if not sys.stdout.isatty():
        while True:
            for each in draw():
                table(each.title, each.columns, each.rows)
            sys.stdout.flush()
            time.sleep(secs)
    console = _Console(emoji=False, highlight=False)
    with Drawn(console=console, auto_refresh=False, screen=True, vertical_overflow="crop") as screen:
        while True:
            screen.update(Group(*map(_grid, draw())), refresh=True)
            time.sleep(secs)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOf:
    """A table that is drawn again and again."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def _grid(each: TableOf) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, title=each.title or None, title_justify="left", pad_edge=False)
    for name in each.columns:
        grid.add_column(name, overflow="ellipsis", no_wrap=True)
    for row in each.rows:
        grid.add_row(*("" if cell is None else escape(shown(str(cell))) for cell in row))
    return grid


def bar(done: int, of: int | None, width: int = 16) -> str:
    """`####........  12/64`, in characters that every terminal has."""
    if not of:
        return str(done) if done else ""
    full = min(width, round(width * done / of))
    return f"{'#' * full}{'.' * (width - full)} {done}/{of}"


def _phase(progress: Progress) -> str:
    """`search: 12 candidates`; `waiting for pid 4711 of anna` needs no other word."""
    phase, detail = progress.phase or "", progress.detail or ""
    if progress.number is not None:
        phase += f" {progress.number} of {progress.of}"
    return detail if detail.startswith(phase) and detail else f"{phase}: {detail}" if detail else phase


def _quiet(progress: Progress) -> bool:
    """What moves a bar, and is not a line: the processes of the finals one by one, what a search will cost."""
    return not progress.detail and (progress.number is not None or progress.then_secs is not None)


def duration(secs: float | None) -> str:
    """`2 min`, `40 s`: about how long; nothing where that is not known."""
    if secs is None:
        return ""
    if secs >= 5400:
        return f"{secs / 3600:.1f} h"
    return f"{secs / 60:.0f} min" if secs >= 90 else f"{secs:.0f} s"


def line(progress: Progress) -> str:
    """One event in words."""
    match progress.event:
        case "job":
            text = f"job {progress.job} is {progress.state}"
            if progress.workload:
                text += f": {progress.workload} on {progress.device}, {progress.done} of {progress.budget} trials"
            return f"{text}: {progress.problem}" if progress.state == "waiting" and progress.problem else text
        case "phase":
            return "" if _quiet(progress) else _phase(progress)
        case "baseline":
            return f"unfused, {progress.detail}: {microseconds(progress.time_us or 0.0)}"
        case "trial":
            best = f", best {progress.best:.3f}x" if progress.best is not None else ""
            value = ratio(progress.ratio) or f"{progress.outcome}: {progress.reason}"
            return f"trial {progress.done}/{progress.budget}: {value}  {progress.detail}{best}"
        case "record":
            return f"the answer is now: {progress.detail}"
        case "ended":
            text = f"job {progress.job} is {progress.state}" + (f": {progress.problem}" if progress.problem else "")
            if progress.wall_secs and progress.device_share is not None:
                text += f" ({progress.wall_secs:.1f} s; the device measured for {progress.device_share:.0%} of it)"
            return text
        case _:
            return ""
