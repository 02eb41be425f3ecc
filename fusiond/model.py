"""The nouns that flow through fusiond (docs/decisions.md has the picture). All of them are frozen values.

They are in one file, although it is long, because they speak of each other: who looks for one reads its neighbours.

Units stand in the names: `_us` microseconds, `_bytes` bytes. Times are what the named clock of the device
said; ratios are baseline / candidate, so above 1 the candidate is faster.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeAlias

from typing_extensions import TypeVar

from fusiond.keys import GENERATOR, content_key

Value: TypeAlias = bool | int | float | str | None
"""What a parameter can be: exactly what Optuna can store as a categorical choice."""

Request = TypeVar("Request", default=Any)
"""What a strategy makes of a job."""
Analysed = TypeVar("Analysed", default=Any)
"""What it makes of that for a target."""


MEASURED = "measured"
"""The evidence of a GPU that is here."""
COUNTED = "counted"
"""The evidence of devices that are not here: nothing of it is measured, and it is given only to those who name them."""


REPLAYED = "replayed"
"""The evidence of a device that takes its times from what was recorded elsewhere; it, too, has to be named."""
NAMED_ONLY = frozenset({COUNTED, REPLAYED})


def frozen(mapping: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """A read-only copy of a mapping."""
    return MappingProxyType(dict(mapping or {}))


# --- what was asked -------------------------------------------------------------------------------------


SAMPLER = "sampler"
"""Of the orders in which configs are tried, the one that every strategy has."""

GP, TPE = SAMPLERS = ("gp", "tpe")
"""What a sampler chooses by: a Gaussian process over the valid points, or Optuna's tree of Parzen estimators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The budget of a job."""

    trials: int = 64
    timeout_secs: float = 600.0
    seed: int = 0
    least_gain: float = 1.02
    """A fused candidate must beat the fastest baseline by this factor to be called `fuse`."""
    sanitize: bool = False
    """The winner is run under the device's own checker as well (compute-sanitizer), where there is one."""
    patience: int | None = None
    """The search ends after so many trials in a row without a gain; None: only when the budget is spent."""
    cache: str = "warm"
    """`warm`, or `cold`: the caches are flushed before each sample."""
    order: str = SAMPLER
    """Who says what is tried next: the sampler, or one of the strategy's own `orders`."""
    sampler: str = GP
    """Which one, of SAMPLERS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What was asked for, read from a YAML file and checked as far as the core can.

    `request` holds the keys that belong to the strategy (`pair`, `module`, ...), as plain YAML values; `files` is a
    snapshot of every file that the job refers to (path as written in messages -> text), so that a job goes on
    unchanged when somebody edits a kernel while it is queued.
    """

    strategy: str
    request: Mapping[str, Any]
    sizes: Mapping[str, int]
    device: str = "auto"
    search: Search = field(default_factory=Search)
    accept_constant: bool = False
    """Outputs of the unfused program that are constant, or left as they were, may be compared with."""
    path: str = "<job>"
    """Where the job came from, for messages and for resolving relative paths."""
    lines: Mapping[str, int] = field(default_factory=frozen)
    """Key (dotted) -> line in `path`, for messages."""
    files: Mapping[str, str] = field(default_factory=frozen)
    within: Mapping[str, str] = field(default_factory=frozen)
    """Of a part: its inputs -> the buffers of the whole that they read; empty where the names are the same."""

    def where(self, key: str) -> str:
        """`file:line: key`, for a message about one key."""
        line = self.lines.get(key)
        return f"{self.path}:{line}: {key}" if line else f"{self.path}: {key}"

    @property
    def device_where(self) -> str:
        """Who named the device: the file, or the command line, which overrules it."""
        return self.where("device") if "device" in self.lines else "--device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(Generic[Request]):
    """What is tuned, with all its sizes.

    `content` is everything that decides the result of a measurement (sources, fills, flags) as plain JSON values,
    without sizes; `payload` is the strategy's own frozen value (never stored, rebuilt by `Strategy.parse`).
    """

    strategy: str
    strategy_version: int
    name: str
    """As `best` looks it up: for a pair, the two names sorted and joined by a comma."""
    members: tuple[str, ...]
    sizes: Mapping[str, int]
    content: Any
    payload: Request = field(compare=False, repr=False)
    source_hashes: Mapping[str, str] = field(default_factory=frozen)
    """File -> text_key of its content when it was parsed; `best` compares it with the file of today."""

    @property
    def key(self) -> str:
        """`workload_key`: strategy, version, members' content, sizes, fills, and what draws them."""
        said = [self.strategy, self.strategy_version, self.name, self.content, dict(self.sizes), GENERATOR]
        return content_key(said)

    @property
    def family_key(self) -> str:
        """The same without sizes."""
        return content_key([self.strategy, self.strategy_version, self.name, self.content, GENERATOR])

    @property
    def content_key(self) -> str:
        """Of the question alone: what is asked about, at which sizes; not what it is called, nor who answers."""
        return content_key([self.strategy, self.content, dict(self.sizes), GENERATOR])

    @property
    def content_family_key(self) -> str:
        """The same without sizes."""
        return content_key([self.strategy, self.content, GENERATOR])


# --- devices --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """A multiprocessor's limits (registers are 32-bit). Defaults are those common to sm_75 and later."""

    multiprocessors: int
    registers_per_sm: int = 65536
    registers_per_block: int = 65536
    register_granularity: int = 256
    """Registers are handed out per warp in units of this many."""
    registers_per_thread: int = 255
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    """With the opt-in attribute."""
    shared_bytes_reserved: int = 1024
    """Taken by the system in every resident block (compute capability 8.0 and later)."""
    shared_granularity_bytes: int = 128
    threads_per_sm: int
    threads_per_block: int = 1024
    blocks_per_sm: int
    warp_size: int = 32
    barriers: int = 16
    """Per block."""
    barriers_per_sm: int = 0
    """Shared by the resident blocks; 0 where it is not known (then it limits nothing)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """What a device is (`key`) and what may change about it (`env_key`)."""

    name: str
    """As asked for: `cpu`, `cuda:0`."""
    model: str
    """As the driver calls it: `NVIDIA H200`."""
    arch: str
    """`sm_90`; for the processor `cpu`."""
    memory_bytes: int
    mig: str = ""
    uuid: str = ""
    evidence: str = MEASURED
    """`measured` on a GPU, `emulated` on the processor, `counted` for a GPU that is not here, `replayed` where
    times are taken from a record."""
    env: Mapping[str, str] = field(default_factory=frozen)
    limits: DeviceLimits

    @property
    def key(self) -> str:
        """`device_key`: equal for two boards of one model."""
        return content_key(
            [self.model, self.arch, self.limits.multiprocessors, self.memory_bytes >> 30, self.mig, self.evidence]
        )

    @property
    def env_key(self) -> str:
        return content_key(dict(self.env))


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPtx:
    """A source's PTX, without register caps and without anything that fusiond appended."""

    text: str
    names: Mapping[str, str]
    """Entry as written in the source -> mangled name."""
    symbols: Mapping[str, str]
    """Variable -> mangled name."""
    log: str = ""
    """Warnings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFacts:
    """What ptxas reports for one entry of one source on one architecture (never a measurement)."""

    arch: str
    entry: str
    registers: int
    shared_bytes: int
    """Static shared memory as asked for by the source."""
    barriers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    constant_bytes: int = 0


# --- what is known without running ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A "no" with its reason: the rule that said it, what it is about, and a sentence for people."""

    rule: str
    nodes: tuple[str, ...]
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceFunction:
    """A function of a Python file whose results are right by definition. It runs on the processor and is not timed."""

    path: str
    text: str
    """The whole file, as it was when the job was submitted."""
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrutiny:
    """That nobody vouches for the candidates (a program may have written them): they are tried on data that they cannot
    know, every sample has other data, what it wrote is compared, and a winner is looked at by every means there is."""

    function: ReferenceFunction | None = None
    """In place of the first baseline's outputs."""
    numbers: Mapping[str, int | float] = field(default_factory=frozen)
    """The reference's scalars by name, for the function; Extents are worked out at the sizes that it is run at."""
    precision: bool = True
    """Whether results may be no less accurate than the reference's own, beside the tolerances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis(Generic[Request, Analysed]):
    """What a strategy knows without running anything.

    `report` is what `plan --json` shows as `analysis`, plain JSON of the strategy's own shape; `payload` is the
    strategy's own value.
    """

    workload: Workload[Request]
    report: Mapping[str, Any]
    rejections: tuple[Rejection, ...] = ()
    alone: bool = False
    """The workload is one kernel by itself: there is nothing to fuse, and a better shape of it is `tuned`."""
    scrutiny: Scrutiny | None = None
    """Set where candidates are not the strategy's own writing."""
    payload: Analysed = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Config(Mapping[str, Value]):
    """One point of a space, in canonical form: parameters in name order, inactive ones absent."""

    items_: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> Config:
        return cls(tuple(sorted(values.items())))

    def __getitem__(self, name: str) -> Value:
        for key, value in self.items_:
            if key == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.items_)

    def __len__(self) -> int:
        return len(self.items_)

    @property
    def key(self) -> str:
        return content_key(dict(self.items_))

    def integer(self, name: str) -> int:
        """The value of a parameter that is an integer; TypeError when it is not."""
        value = self[name]
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}, not an integer")
        return value

    def text(self, name: str) -> str:
        """The value of a parameter that is a label; TypeError when it is not."""
        value = self[name]
        if not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}, not a label")
        return value

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.items_)


# --- what comes back ------------------------------------------------------------------------------------


class Outcome(enum.StrEnum):
    """How a trial ended. Only `measured` has a value; every other is told to the sampler as pruned."""

    MEASURED = "measured"
    REFUSED = "refused"
    """The strategy or a static limit said no; nothing was built."""
    BUILD_FAILED = "build_failed"
    LAUNCH_REFUSED = "launch_refused"
    """It built, and the device would not launch it (registers, shared memory, block size)."""
    WRONG_RESULT = "wrong_result"
    WRONG_UNFUSED = "wrong_unfused"
    """The unfused kernels themselves are wrong at these block shapes: not the fusion's fault."""
    CRASHED = "crashed"
    """An illegal access, an abort, a deadlock that the device reported."""
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
    TUNED = "tuned"
    """Of a workload that is one kernel: a better shape of it wins."""
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
    WAITING = "waiting"
    """The machine could not go on with it (`MachineFault`); it is tried again by itself."""
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
    throttle: str = ""
    """Reasons, comma separated; empty when none is active."""
    others: int = 0
    """Other processes with work on the device."""
    power_w: float | None = None
    """What the board draws."""
    canary_mhz: float | None = None
    """The clock of the multiprocessors as a kernel counted it, by the device's own timer."""

    @property
    def sm_mhz(self) -> float | None:
        """The clock of the multiprocessors: as it was counted, else as the driver says."""
        return self.clock_mhz if self.canary_mhz is None else self.canary_mhz


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What it took to get the samples of a Measurement."""

    runs: int = 1
    """Runs in each sample."""
    warm_up_secs: float = 0.0
    steady: bool | None = None
    """Whether the device's clock stood still when the samples began; None where it is not known."""
    half_width: float | None = None
    """Half of the 95 % interval of the median log ratio (of the log span, where nothing is compared)."""
    gate_failures: int = 0
    """Runs that were thrown away and taken again because the device began before all was enqueued."""
    retries: int = 0
    """Samples that were taken again because the clock could not tell them from nothing."""
    thrown_away: tuple[str, ...] = ()
    """Why each of the batches before this one was thrown away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Paired samples of a candidate (A) and the program it is compared with (B), in the order ABBA.

    `span_us` are A's samples, `baseline_us` B's; both empty lists never occur. For a program measured alone (a probe,
    the first baseline) `baseline_us` is empty.
    """

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
    dropped: bool = False
    """Stopped early because it was clearly slower than the best so far."""
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
    """`seed:NAME`, `grid`, `prior` (drawn by what was counted), `sampler`, `neighbour` (of what the sampler asked for);
    a baseline's is `given` or `tuned`."""
    outcome: Outcome
    reason: str = ""
    """One line; empty for `measured`."""
    ratio: float | None = None
    """Baseline / candidate, median over pairs; None unless measured."""
    time_us: float | None = None
    program_key: str | None = None
    resolved: Mapping[str, Value] = field(default_factory=frozen)
    """What labels such as `paper` came to."""
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
    config: Config | None
    """The winner's; None for `keep` and `undecided` when no candidate was measured."""
    program_key: str | None
    time_us: float | None
    baseline: str
    """The name of the fastest unfused way."""
    baseline_us: float
    baseline_program_key: str | None = None
    baseline_config: Config | None = None
    """Its own knobs as they were tuned; None in records of earlier versions."""
    speedup: float | None
    ci95: tuple[float, float] | None
    verified: bool
    """The winner's outputs were compared with the unfused ones in this very job."""
    checks: tuple[str, ...] = ()
    """What was compared, one line each: seeds, sizes, tolerance, worst error."""
    figures: Mapping[str, float] = field(default_factory=frozen)
    """What the strategy makes of the answer (`Strategy.figures`): name -> number, the unit in the name."""
    counted: tuple[Mapping[str, Any], ...] = ()
    """Rows of `fusiond.counting` for the unfused way (`native`) and the best fused one (`fused`); empty where nobody
    counted."""
    evidence: str
    cache: str = "warm"
    trials: int
    processes: int = 0
    """Fresh processes that measured all that the verdict compares."""
    ended: str = ""
    """Why the search ended before its budget was spent; empty when it did not."""
    replaced: str | None = None
    """Why the record before this one went; None when there was none."""
    strategy_version: int = 0
    content_key: str = ""
    """The workload's: of the question alone."""
    found_at: str
    """UTC, ISO 8601."""
    source: str | None = None
    """Path of the generated source, in the artifacts beside the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A config that the study chose, written down before anything is done with it, so that an interrupted study can be
    rebuilt exactly. `origin` is the trial's, or `invalid` for what the sampler asked in vain."""

    sequence: int
    config: Config
    origin: str
