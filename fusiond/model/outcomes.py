"""The nouns of an answer: outcomes, measurements, trials, records and verdicts, all of them frozen values.

Times are what the named clock of the device said; ratios are baseline / candidate, so above 1 the candidate is faster.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fusiond.model.nouns import Config, Value, frozen


class Outcome(enum.StrEnum):
    """How a trial ended. Only `measured` has a value; every other is told to the sampler as pruned."""

    MEASURED = "measured"
    REFUSED = "refused"  #: The strategy or a static limit said no; nothing was built
    BUILD_FAILED = "build_failed"
    LAUNCH_REFUSED = "launch_refused"
    """It built, and the device would not launch it (registers, shared memory, block size)."""
    WRONG_RESULT = "wrong_result"
    WRONG_UNFUSED = "wrong_unfused"
    """The unfused kernels themselves are wrong at these block shapes: not the fusion's fault."""
    CRASHED = "crashed"  #: An illegal access, an abort, a deadlock that the device reported
    TIMED_OUT = "timed_out"
    WORKER_DIED = "worker_died"
    """The child vanished without a fault of the candidate's that we can name (twice, alone)."""
    TOO_NOISY = "too_noisy"
    PRUNED = "pruned"
    """A bound that was counted says that it cannot be as fast as what was measured before: it was not measured."""


class Verdict(enum.StrEnum):
    FUSE = "fuse"
    KEEP = "keep"
    UNDECIDED = "undecided"
    TUNED = "tuned"  #: Of a workload that is one kernel: a better shape of it wins
    PROMISING = "promising"
    """Counted, not measured: a candidate's lower bound in time is below every unfused way's by more than the margin."""
    UNPROMISING = "unpromising"

    @property
    def wins(self) -> bool:
        """A candidate is surely faster than every unfused way; where nothing is measured, its bound is lower."""
        return self in (Verdict.FUSE, Verdict.TUNED, Verdict.PROMISING)


class Purpose(enum.StrEnum):
    """Why something was measured. Search samples never enter a verdict."""

    SEARCH = "search"
    BASELINE = "baseline"
    PROBE = "probe"
    FINAL = "final"


class JobState(enum.StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"  #: The machine could not go on with it (`MachineFault`); it is tried again by itself
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFailed:
    """A compiler or linker said no. `reason` is one line, `log` is what it printed."""

    reason: str
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureFailed:
    """Running, checking or timing a Program failed; `outcome` says how."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """The device round a batch of samples; None where the device has no such sensor."""

    clock_mhz: float | None = None
    temperature_c: float | None = None
    throttle: str = ""  #: Reasons, comma separated; empty when none is active
    others: int = 0  #: Other processes with work on the device
    power_w: float | None = None  #: What the board draws
    canary_mhz: float | None = None
    """The clock of the multiprocessors as a kernel counted it, by the device's own timer."""

    @property
    def sm_mhz(self) -> float | None:
        """The clock of the multiprocessors: as it was counted, else as the driver says."""
        return self.clock_mhz if self.canary_mhz is None else self.canary_mhz


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What it took to get the samples of a Measurement."""

    runs: int = 1  #: Runs in each sample
    warm_up_secs: float = 0.0
    steady: bool | None = None
    """Whether the device's clock stood still when the samples began; None where it is not known."""
    half_width: float | None = None
    """Half of the 95 % interval of the median log ratio (of the log span, where nothing is compared)."""
    gate_failures: int = 0
    """Runs that were thrown away and taken again because the device began before all was enqueued."""
    retries: int = 0  #: Samples that were taken again because the clock could not tell them from nothing
    thrown_away: tuple[str, ...] = ()  #: Why each of the batches before this one was thrown away


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Paired samples of a candidate (A) and the program it is compared with (B), in the order ABBA.

    `span_us` are A's samples, `baseline_us` B's; both empty lists never occur. For a program measured alone (a probe,
    the first baseline) `baseline_us` is empty."""

    span_us: tuple[float, ...]
    baseline_us: tuple[float, ...] = ()
    wall_us: tuple[float, ...] = ()
    clock: str
    """`device` (events), `wall` (a C loop), `emulated` (the processor running the kernel),
    `counted` (a lower bound for a GPU that is not here)."""
    cache: str = "warm"
    purpose: Purpose
    before: DeviceState = field(default_factory=DeviceState)
    after: DeviceState = field(default_factory=DeviceState)
    dropped: bool = False  #: Stopped early because it was clearly slower than the best so far
    effort: Effort = field(default_factory=Effort)

    @property
    def time_us(self) -> float:
        """The median of A's samples."""
        return median(self.span_us)

    @property
    def ratio(self) -> float | None:
        """Median over the pairs of baseline / candidate; None for a program measured alone."""
        if not self.baseline_us:
            return None
        return median(tuple(b / a for a, b in zip(self.span_us, self.baseline_us, strict=False)))


def median(values: tuple[float, ...]) -> float:
    """The median; ValueError for no values."""
    if not values:
        raise ValueError("no samples")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A config and what became of it. `sequence` numbers the trials of a job and role from 0, as they were asked."""

    sequence: int
    config: Config
    role: str = "candidate"
    """`candidate`, or `baseline:NAME`: a point of that baseline's own small space (numbered apart)."""
    origin: str
    """`seed:NAME`, `grid`, `prior` (drawn by what was counted), `sampler`;
    a baseline's is `given` or `tuned`."""
    outcome: Outcome
    reason: str = ""  #: One line; empty for `measured`
    ratio: float | None = None  #: Baseline / candidate, median over pairs; None unless measured
    time_us: float | None = None
    program_key: str | None = None
    resolved: Mapping[str, Value] = field(default_factory=frozen)  #: What labels such as `paper` came to
    measurement: Measurement | None = None
    worst_error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The answer for a workload on a device."""

    strategy: str
    workload_name: str
    workload_key: str
    sizes: Mapping[str, int]
    device_name: str
    device_key: str
    env_key: str
    verdict: Verdict
    config: Config | None  #: The winner's; None for `keep` and `undecided` when no candidate was measured
    program_key: str | None
    time_us: float | None
    baseline: str  #: The name of the fastest unfused way
    baseline_us: float
    baseline_program_key: str | None = None
    baseline_config: Config | None = None  #: Its own knobs as they were tuned; None in records of earlier versions
    speedup: float | None
    ci95: tuple[float, float] | None
    verified: bool  #: The winner's outputs were compared with the unfused ones in this very job
    checks: tuple[str, ...] = ()  #: What was compared, one line each: seeds, sizes, tolerance, worst error
    figures: Mapping[str, float] = field(default_factory=frozen)
    """What the strategy makes of the answer (`Strategy.figures`): name -> number, the unit in the name."""
    counted: tuple[Mapping[str, Any], ...] = ()
    """Rows of `fusiond.devices.counting` for the unfused way (`native`) and the best fused one (`fused`); empty where
    nobody counted."""
    evidence: str
    cache: str = "warm"
    trials: int
    processes: int = 0  #: Fresh processes that measured all that the verdict compares
    ended: str = ""  #: Why the search ended before its budget was spent; empty when it did not
    replaced: str | None = None  #: Why the record before this one went; None when there was none
    strategy_version: int = 0
    content_key: str = ""  #: The workload's: of the question alone
    found_at: str  #: UTC, ISO 8601
    source: str | None = None  #: Path of the generated source, in the artifacts beside the store


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A config that the study chose, written down before anything is done with it, so that an interrupted study can be
    rebuilt exactly. `origin` is the trial's."""

    sequence: int
    config: Config
    origin: str
