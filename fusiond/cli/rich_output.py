"""Draws progress on a terminal, and tables again and again. The only module that imports rich."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich import box
from rich.console import Console, Group
from rich.live import Live as Drawn
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from fusiond.cli.job_texts import TableOf, line, phase, quiet
from fusiond.model.english import shortened, shown
from fusiond.service.progress import Progress
from fusiond.service.remaining import Standing, Standings, duration


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Whoever read the output is gone; `fusiond.cli.main` knows what to do then, and rich would exit with 1."""
        raise BrokenPipeError


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
            if progress.phase and not quiet(progress) and progress.phase != "part":
                self._phase = phase(progress)
            if standing.final is not None:
                self._phase = f"final {standing.final} of {standing.finals}"
            text = escape(shortened(shown(part + self._phase), 200))
            self._bar.update(self._task, phase=text, completed=standing.done, total=standing.budget)
        if progress.event in ("job", "baseline", "record", "ended") or progress.phase == "part":
            self.say(line(progress))


def watching(draw: Callable[[], Sequence[TableOf]], secs: float) -> None:
    """Tables that are drawn anew on a terminal until Ctrl-C ends it."""
    console = _Console(emoji=False, highlight=False)
    with Drawn(console=console, auto_refresh=False, screen=True, vertical_overflow="crop") as screen:
        while True:
            screen.update(Group(*map(_grid, draw())), refresh=True)
            time.sleep(secs)


def _grid(each: TableOf) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, title=each.title or None, title_justify="left", pad_edge=False)
    for name in each.columns:
        grid.add_column(name, overflow="ellipsis", no_wrap=True)
    for row in each.rows:
        grid.add_row(*("" if cell is None else Text(shown(str(cell))) for cell in row))
    return grid
