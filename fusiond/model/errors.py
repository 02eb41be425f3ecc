"""Every exception that fusiond raises on purpose.

    FusiondError
    ├── RequestError            the request is wrong: one line says what, where and what would be right
    │   ├── UnknownName         a name that is not in a catalogue (carries the nearest one)
    │   └── Ambiguous           a name that stands for several contents (carries what each is)
    ├── NothingKnown            the store has no answer for this workload yet
    ├── DeviceError             a device cannot be used at all (no driver, no compiler)
    │   └── DeviceSick          it failed on what is known to be good; jobs for it wait
    ├── StoreError              the store cannot be used (newer schema, network file system, damaged)
    ├── MachineFault            the machine cannot do it just now (system.faults); a job waits, and goes on by itself
    │   └── StoreUnavailable    the store's disk is full, its file locked or gone (a StoreError, too)
    ├── PluginError             a plugin broke its contract
    ├── DaemonError             the daemon cannot be reached, or answered something else than expected
    └── Interrupted             the user or the daemon asked a running job to stop

What goes wrong while tuning (a kernel that does not build, a wrong result, a hang) is not an exception but a
value: see `Outcome`, `BuildFailed` and `MeasureFailed` in `fusiond.model.nouns`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` alone would cost more than a lookup
    from typing import Any


class FusiondError(Exception):
    """The root; `exit_status` is what the command line ends with."""

    exit_status = 1

    def __reduce__(self) -> tuple[Callable[..., FusiondError], tuple[object, ...]]:
        """Errors of any signature cross from one process to another."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[FusiondError], arguments: tuple[object, ...], values: dict[str, object]) -> FusiondError:
    made = kind.__new__(kind)
    made.args = arguments
    made.__dict__.update(values)
    return made


class RequestError(FusiondError):
    """A user's mistake. `where` is a file, `file:line`, or an option; the text says what would be right."""

    exit_status = 2

    def __init__(self, problem: str, *, where: str = "") -> None:
        self.problem = " ".join(problem.split())
        self.where = " ".join(where.split())
        super().__init__(f"{self.where}: {self.problem}" if self.where else self.problem)


class UnknownName(RequestError):
    """A name that nobody knows; the text offers the nearest one that exists."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, where: str = "") -> None:
        names = sorted(known)
        import difflib  # 2 ms that an answer need not wait for

        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        if near:
            hint = f"did you mean {near[0]!r}?"
        elif names:
            shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
            hint = f"known: {shown}"
        else:
            hint = "none is known"
        super().__init__(f"unknown {kind} {name[:80]!r}; {hint}", where=where)


class Ambiguous(RequestError):
    """A name that stands for several contents, and nothing says which one is meant. `answers` has a mapping for each:
    path, strategy, content_key, found_at."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.answers: tuple[Mapping[str, Any], ...] = tuple(document["answers"])
        super().__init__(
            f"{document['name']} stands for {len(self.answers)} contents; ask with a job file, or in the folder of one"
        )


class NothingKnown(FusiondError):
    """No record answers this question."""

    exit_status = 3


class DeviceError(FusiondError):
    """A device that cannot be used; the text names the remedy."""


class DeviceSick(DeviceError):
    """A device that fails on programs known to be good. What was asked of it waits."""

    def __init__(self, device: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{device} is sick: {reason}; look after it, then `fusiond devices --reset {device}`")


class StoreError(FusiondError):
    """The SQLite file, its artifacts or the build cache cannot be used."""


class MachineFault(FusiondError):
    """Nothing is wrong with what was asked for: the machine lacks space, memory, descriptors or a file that was there,
    or something killed a process of ours. The text says what is lacking; `system.faults` decides what is one."""


class StoreUnavailable(StoreError, MachineFault):
    """A store that is in order as far as we know, and cannot be used just now."""


class PluginError(FusiondError):
    """A plugin that broke its contract, or lacks what it needs."""


class DaemonError(FusiondError):
    """No daemon answers on the socket, or it answered with an error of its own."""


class Interrupted(FusiondError):
    """Request to stop; everything measured so far is on disk."""

    exit_status = 130
    by_signal: int | None = None  #: The signal that this process was sent, where it was one
