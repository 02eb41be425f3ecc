"""The progress of a job in words and bars, for terminals and for plain output."""

from collections.abc import Sequence
from dataclasses import dataclass

from fusiond.cli.answer_text import microseconds
from fusiond.service.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOf:
    """A table that is drawn again and again."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def ratio(value: float | None) -> str | None:
    """`1.234x`, or None."""
    return None if value is None else f"{value:.3f}x"


def bar(done: int, of: int | None, width: int = 16) -> str:
    """`####........  12/64`, in characters that every terminal has."""
    if not of:
        return str(done) if done else ""
    full = min(width, round(width * done / of))
    return f"{'#' * full}{'.' * (width - full)} {done}/{of}"


def phase(progress: Progress) -> str:
    """`search: 12 candidates`; `waiting for pid 4711 of anna` needs no other word."""
    phase, detail = progress.phase or "", progress.detail or ""
    if progress.number is not None:
        phase += f" {progress.number} of {progress.of}"
    return detail if detail.startswith(phase) and detail else f"{phase}: {detail}" if detail else phase


def quiet(progress: Progress) -> bool:
    """What moves a bar, and is not a line: the processes of the finals one by one, what a search will cost."""
    return not progress.detail and (progress.number is not None or progress.then_secs is not None)


def line(progress: Progress) -> str:
    """One event in words."""
    match progress.event:
        case "job":
            text = f"job {progress.job} is {progress.state}"
            if progress.workload:
                text += f": {progress.workload} on {progress.device}, {progress.done} of {progress.budget} trials"
            return f"{text}: {progress.problem}" if progress.state == "waiting" and progress.problem else text
        case "phase":
            return "" if quiet(progress) else phase(progress)
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
