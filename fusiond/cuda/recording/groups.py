"""Groups of launches that come together, identified by their kernels and shapes.

    key = for each launch: kernel, grid, block, shared bytes, arrays by type and bytes, numbers as they are asked for

A number does not decide how kernels are fused, so not each is asked for: of a float the power of two below it is, and
so it is of a whole number that has had several values where nothing else changed (a step, a seed). What is launched
has the numbers that it was called with.
"""

import logging
import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusiond.cuda.recording import group_job
from fusiond.cuda.recording.arguments import Argument, Array, overlap
from fusiond.cuda.recording.fused import FusedLaunch, LaidOutLaunch, NotNow, built
from fusiond.cuda.recording.group_job import Unaskable
from fusiond.cuda.recording.launches import RecordedLaunch
from fusiond.cuda.recording.machines import PROCESSOR
from fusiond.service.frameworks import region_answers
from fusiond.service.frameworks.launching import Unusable
from fusiond.service.frameworks.region_answers import Asker, Found, FusionOptions
from fusiond.service.frameworks.running import LaunchFailed

log = logging.getLogger("fusiond.cuda")

MOST_GROUPS = 256  #: That are asked for in a process; launches beyond them run as they are
VARIES = 3  #: Values of a whole number after which it is no longer asked for by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What became of launches that came together."""

    name: str
    state: str  #: `fused`; `kept` (measured, and apart they are as fast), `unknown` (asked for), or `refused`
    reason: str = ""
    speedup: float | None = None  #: Over the fastest way without fusing that was measured
    evidence: str = ""
    launches: int = 0  #: Times that they ran as one

    def __str__(self) -> str:
        gain = f", {self.speedup:.2f}x" if self.speedup and self.state == "fused" else ""
        gain += f" ({self.evidence})" if gain and self.evidence != "measured" else ""
        count = f", {self.launches} times" if self.launches else ""
        return f"{self.name}  {self.state}{gain}{count}{f': {self.reason}' if self.reason else ''}"


class LaunchGroup:
    """Launches of one key: what is known of them."""

    def __init__(
        self, launches: Sequence[RecordedLaunch], values: Sequence[Sequence[Any]], options: FusionOptions
    ) -> None:
        self._launches = [replace(each, run=_nothing) for each in launches]  # what they are handed may be let go
        self._values, self._options = values, options
        self.name = " + ".join(each.origin.plain for each in launches)
        self._state, self._reason = "unknown", ""
        self._found: Found | None = None
        self._asked: group_job.KernelsQuestion | None = None
        self._fused: FusedLaunch | None = None
        self._writes: list[list[bool]] = []
        self._passing = ""  #: Why the launches of the last time ran as they are, though they could be fused
        self._count = 0

    @property
    def asker(self) -> Asker:
        return region_answers.of(self._options.db)

    def explained(self) -> Explained:
        state, reason = self._state, self._reason
        if self._passing:
            state, reason = "refused", self._passing
        elif state == "unknown" and not reason:
            unasked = region_answers.silent() or "not asked for yet"
            reason = unasked if self._asked is None else self.asker.standing(self._asked)
        found = self._found
        return Explained(
            name=self.name,
            state=state,
            reason=reason,
            speedup=found.speedup if found else None,
            evidence=found.evidence if found else "",
            launches=self._count,
        )

    # --- launching ---

    @property
    def ready(self) -> bool:
        """Whether its launches run as one from now on."""
        return self._fused is not None

    def load(self, device: int, stream: int) -> None:
        """Load what its launches run as into the current context, so that it can be captured. NotNow, LaunchFailed."""
        if self._fused is not None:
            self._fused.loaded(device, stream)

    def start(self, launches: Sequence[RecordedLaunch]) -> list[int]:
        """Launch them as one where that is known and right; the numbers of those that are still to be launched."""
        fused, first = self._fused, launches[0]
        if fused is not None:
            self._passing = self._conflict(launches)
        if fused is None or self._passing:
            return list(range(len(launches)))
        return self._started(fused, lambda: fused.start(launches, first.device, first.stream))

    def laid_out(self, launches: Sequence[RecordedLaunch]) -> LaidOutLaunch | None:
        """For launches that are as these but for their addresses; None where that cannot be, or not yet."""
        fused, first = self._fused, launches[0]
        try:
            return fused.laid_out(launches, first.device, first.stream) if fused is not None else None
        except (Unusable, NotNow, LaunchFailed):
            return None

    def start_again(self, laid_out: LaidOutLaunch, addresses: Sequence[int], stream: int) -> list[int]:
        """As `start`, of launches whose arrays lie at these addresses, and do not overlap more than theirs did."""
        fused = self._fused
        if fused is None:
            return list(range(len(self._launches)))
        return self._started(fused, lambda: laid_out.start(addresses, stream))

    def _started(self, fused: FusedLaunch, start: Callable[[], None]) -> list[int]:
        try:
            start()
        except NotNow as why:
            self._passing = str(why)
            return list(range(len(self._launches)))
        except LaunchFailed as problem:
            if self._launches[0].device == PROCESSOR:
                raise  # a fault of a kernel, which has begun
            self._fused, self._state, self._reason = None, "refused", str(problem)
            log.warning("%s is launched as it is from now on: %s", self.name, problem)
            return fused.left(problem)
        self._count += 1
        return []

    def _conflict(self, launches: Sequence[RecordedLaunch]) -> str:
        """Why they have to be launched one after the other, in one line."""
        spans = []
        for number, (launch, written) in enumerate(zip(launches, self._writes, strict=True)):
            spans += [
                (each, number, writes)
                for each, writes in zip(launch.arguments, written, strict=True)
                if isinstance(each, Array)
            ]
        found = overlap(spans)
        if found is None:
            return ""
        first, second = (launches[each].origin.plain for each in found)
        return f"{first} and {second} share memory that one of them may write; they run one after the other"

    # --- asking ---

    def prepare(self) -> None:
        """Put the question, and take up what is known. It parses, and may compile: in a thread of fusiond's, or where
        somebody asked to wait."""
        launches, options = self._launches, self._options
        try:
            number = launches[0].device
            device = options.device or ("cpu" if number == PROCESSOR else f"cuda:{number}")
            self._asked = group_job.asked(launches, self._values, device, options.search)
            drafts = [group_job.drafted(each.origin) for each in launches]
        except Unaskable as why:
            self._decide("refused", str(why))
            return
        except OSError as problem:
            self._decide("refused", f"the question cannot be written: {problem.strerror}")
            return
        self._writes = [[each.written for each in draft.parameters] for draft in drafts]
        found = self.asker.found(self._asked, options)
        if found.state == "unknown":
            reason = self.asker.problem(self._asked)
            if reason:
                self._decide("refused", reason)
                return
            self._decide("unknown", found.reason)
            self.asker.want(self._asked, self._changed)
            return
        self._take(found)

    def _changed(self) -> None:
        assert self._asked is not None
        self._take(self.asker.look(self._asked))

    def _take(self, found: Found) -> None:
        assert self._asked is not None
        if found.state not in ("unknown", "refused"):
            self._found = found
        if not found.usable(self._options):
            self._decide(*found.why_not(self._options, "apart they are"))
            return
        assert found.program is not None
        try:
            device = self._launches[0].device
            self._fused = built(found.program, self._asked, self._launches, self._values, device, found.arch)
        except Unusable as problem:
            self._decide("refused", str(problem))
            return
        self._decide("fused", "")

    def _decide(self, state: str, reason: str) -> None:
        self._state, self._reason = state, reason.replace(f"{group_job.folder()}{os.sep}", "")  # of nobody's own files
        if state != "unknown":
            log.info("%s: %s%s", self.name, state, f": {reason}" if reason else "")


def _nothing() -> None:
    """In the place of a launch that is only described."""


# --- which group ----------------------------------------------------------------------------------------

_lock = threading.Lock()
_groups: dict[Any, LaunchGroup] = {}
_sites: dict[Any, dict[int, set[int]]] = {}
"""Launch without its whole numbers -> place of such a number -> the values that it has had."""


_apart: dict[str, str] = {}  #: Launches that came together and that nobody asks for -> why


def apart(launches: Sequence[RecordedLaunch]) -> bool:
    """Whether these launches are not a group, whatever the kernels are; why, `explained` says."""
    here = launches[0].stream, launches[0].device
    several = "they go to several streams; one launch is in one stream"
    whys = (each.unseen or ("" if (each.stream, each.device) == here else several) for each in launches)
    why = next(filter(None, whys), "")
    if why and len(_apart) < MOST_GROUPS:
        _apart[" + ".join(each.origin.plain for each in launches)] = why
    return bool(why)


def of(launches: Sequence[RecordedLaunch], options: FusionOptions) -> LaunchGroup | None:
    """The group of these launches; None where there are too many."""
    described = [_described(each) for each in launches]
    key = options, tuple((site, tuple(values)) for site, values in described)
    found = _groups.get(key)
    if found is not None:
        return found
    with _lock:
        if key in _groups:
            return _groups[key]
        if len(_groups) >= MOST_GROUPS:
            return None
        made = _groups[key] = LaunchGroup(launches, [values for _, values in described], options)
    if options.always or options.block:
        made.prepare()
    else:
        made.asker.later(made.prepare)
    return made


def _described(launch: RecordedLaunch) -> tuple[Any, list[Any]]:
    """(what a launch is without its numbers, the number that is asked for of each argument)"""
    given = launch.arguments
    arrays = tuple(map(_without_numbers, given))
    site = launch.origin.key, launch.grid, launch.block, launch.shared_bytes, launch.device, arrays
    seen = _sites.get(site)
    if seen is None:
        seen = _sites.setdefault(site, {}) if len(_sites) < 16 * MOST_GROUPS else {}
    values: list[Any] = []
    for place, each in enumerate(given):
        value = None if isinstance(each, Array) else each.value
        if isinstance(value, float):
            value = _below(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            had = seen.setdefault(place, set())
            if len(had) <= VARIES:
                had.add(value)
            if len(had) > VARIES:
                value = _whole_below(value)
        values.append(value)
    return site, values


def _without_numbers(argument: Argument) -> tuple[Any, ...]:
    """The bytes of a struct, or of what is not a number, are asked for."""
    if isinstance(argument, Array):
        return argument.dtype, argument.size_bytes
    return argument.dtype, argument.data if argument.value is None else 0


def _below(value: float) -> float:
    """The power of two below a number, with its sign; what is not finite is left."""
    if value == 0 or not math.isfinite(value):
        return value
    return math.copysign(math.ldexp(0.5, math.frexp(value)[1]), value)


def _whole_below(value: int) -> int:
    return 0 if value == 0 else (1 if value > 0 else -1) << (abs(value).bit_length() - 1)


def explained() -> tuple[Explained, ...]:
    """What became of all that came together in this process."""
    refused = [Explained(name=name, state="refused", reason=why) for name, why in list(_apart.items())]
    return (*(each.explained() for each in list(_groups.values())), *refused)


def forget() -> None:
    """Of a forked child, which has none of its parent's threads; and for tests."""
    global _lock
    _lock = threading.Lock()
    _groups.clear()
    _sites.clear()
    _apart.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)
