"""The one home of rich: tables on standard output, progress on standard error.

Where the output is no terminal, progress is one plain line an event, and tables are not cut to a width.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Protocol

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from fusiond.cli.answer import microseconds
from fusiond.progress import Progress

UNCUT = 10_000
"""Columns of a table that goes into a pipe, or to a terminal that is too narrow for one: it wraps the lines."""
NARROW = 72


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Whoever read the output is gone; `fusiond.cli.main` knows what to do then, and rich would exit with 1."""
        raise BrokenPipeError


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; None is shown as nothing."""
    wide = sys.stdout.isatty() and shutil.get_terminal_size().columns >= NARROW
    console = _Console(width=None if wide else UNCUT, highlight=False, soft_wrap=not wide)
    grid = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for name in columns:
        grid.add_column(name, overflow="fold")
    for row in rows:
        grid.add_row(*("" if each is None else escape(str(each)) for each in row))
    console.print(grid)


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
    return Lines() if plain or not sys.stderr.isatty() else Live()


class Lines:
    """One plain line an event."""

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        self._say = say

    def __enter__(self) -> Lines:
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
                print(text, file=sys.stderr, flush=True)

    def show(self, progress: Progress) -> None:
        text = line(progress)
        if text:
            self.say(text)


class Live:
    """A bar with phase, trials done, best so far and time left; what matters scrolls by above it."""

    def __init__(self) -> None:
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.fields[phase]}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[best]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True, highlight=False),
            transient=True,
        )
        self._task: TaskID = self._bar.add_task("", total=None, phase="starting", best="")

    def __enter__(self) -> Live:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self._bar.console.print(escape(text))

    def show(self, progress: Progress) -> None:
        if progress.phase:
            shown = f"{progress.phase}: {progress.detail}" if progress.detail else progress.phase
            self._bar.update(self._task, phase=escape(shown))
        if progress.done is not None:
            self._bar.update(self._task, completed=progress.done)
        if progress.budget is not None:
            self._bar.update(self._task, total=progress.budget)
        if progress.best is not None:
            self._bar.update(self._task, best=f"best {progress.best:.2f}x")
        if progress.event in ("job", "baseline", "record", "ended"):
            self.say(line(progress))


def line(progress: Progress) -> str:
    """One event in words."""
    match progress.event:
        case "job":
            text = f"job {progress.job} is {progress.state}"
            if progress.workload:
                text += f": {progress.workload} on {progress.device}, {progress.done} of {progress.budget} trials"
            return text
        case "phase":
            return f"{progress.phase}: {progress.detail}" if progress.detail else f"{progress.phase}"
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
