"""The nouns of a question: jobs, workloads, devices, analyses and configs (`outcomes` has those of its answer).

All of them are frozen values. Units stand in the names: `_us` microseconds, `_bytes` bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, TypeAlias

from typing_extensions import TypeVar

from fusiond.model.keys import GENERATOR, content_key

Value: TypeAlias = bool | int | float | str | None
"""What a parameter can be: what JSON can say of one value."""

Request = TypeVar("Request", default=Any)  #: What a strategy makes of a job
Analysed = TypeVar("Analysed", default=Any)  #: What it makes of that for a target


MEASURED = "measured"  #: The evidence of a GPU that is here
COUNTED = "counted"
"""The evidence of devices that are not here: nothing of it is measured, and it is given only to those who name them."""


REPLAYED = "replayed"
"""The evidence of a device that takes its times from what was recorded elsewhere; it, too, has to be named."""
NAMED_ONLY = frozenset({COUNTED, REPLAYED})


def frozen(mapping: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """A read-only copy of a mapping."""
    return MappingProxyType(dict(mapping or {}))


# --- what was asked -------------------------------------------------------------------------------------


SAMPLER = "sampler"  #: Of the orders in which configs are tried, the one that every strategy has


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The budget of a job."""

    trials: int = 64
    timeout_secs: float = 600.0
    seed: int = 0
    least_gain: float = 1.02  #: A fused candidate must beat the fastest baseline by this factor to be called `fuse`
    sanitize: bool = False
    """The winner is run under the device's own checker as well (compute-sanitizer), where there is one."""
    patience: int | None = None
    """The search ends after so many trials in a row without a gain; None: only when the budget is spent."""
    cache: str = "warm"  #: `warm`, or `cold`: the caches are flushed before each sample
    order: str = SAMPLER  #: Who says what is tried next: the sampler, or one of the strategy's own `orders`


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What was asked for, read from a YAML file and checked as far as the core can.

    `request` holds the keys that belong to the strategy (`pair`, `module`, ...), as plain YAML values; `files` is a
    snapshot of every file that the job refers to (path as written in messages -> text), so that a job goes on
    unchanged when somebody edits a kernel while it is queued."""

    strategy: str
    request: Mapping[str, Any]
    sizes: Mapping[str, int]
    device: str = "auto"
    search: Search = field(default_factory=Search)
    accept_constant: bool = False
    """Outputs of the unfused program that are constant, or left as they were, may be compared with."""
    path: str = "<job>"  #: Where the job came from, for messages and for resolving relative paths
    lines: Mapping[str, int] = field(default_factory=frozen)  #: Key (dotted) -> line in `path`, for messages
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
    without sizes; `payload` is the strategy's own frozen value (never stored, rebuilt by `Strategy.parse`)."""

    strategy: str
    strategy_version: int
    name: str  #: As `best` looks it up: for a pair, the two names sorted and joined by a comma
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
    register_granularity: int = 256  #: Registers are handed out per warp in units of this many
    registers_per_thread: int = 255
    shared_bytes_per_sm: int
    shared_bytes_per_block: int  #: With the opt-in attribute
    shared_bytes_reserved: int = 1024  #: Taken by the system in every resident block (compute capability 8.0 and later)
    shared_granularity_bytes: int = 128
    threads_per_sm: int
    threads_per_block: int = 1024
    blocks_per_sm: int
    warp_size: int = 32
    barriers: int = 16  #: Per block
    barriers_per_sm: int = 0  #: Shared by the resident blocks; 0 where it is not known (then it limits nothing)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """What a device is (`key`) and what may change about it (`env_key`)."""

    name: str  #: As asked for: `cpu`, `cuda:0`
    model: str  #: As the driver calls it: `NVIDIA H200`
    arch: str  #: `sm_90`; for the processor `cpu`
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
    names: Mapping[str, str]  #: Entry as written in the source -> mangled name
    symbols: Mapping[str, str]  #: Variable -> mangled name
    log: str = ""  #: Warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFacts:
    """What ptxas reports for one entry of one source on one architecture (never a measurement)."""

    arch: str
    entry: str
    registers: int
    shared_bytes: int  #: Static shared memory as asked for by the source
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
    text: str  #: The whole file, as it was when the job was submitted
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrutiny:
    """That nobody vouches for the candidates (a program may have written them): they are tried on data that they cannot
    know, every sample has other data, what it wrote is compared, and a winner is looked at by every means there is."""

    function: ReferenceFunction | None = None  #: In place of the first baseline's outputs
    numbers: Mapping[str, int | float] = field(default_factory=frozen)
    """The reference's scalars by name, for the function; Extents are worked out at the sizes that it is run at."""
    precision: bool = True  #: Whether results may be no less accurate than the reference's own, beside the tolerances


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis(Generic[Request, Analysed]):
    """What a strategy knows without running anything.

    `report` is what `plan --json` shows as `analysis`, plain JSON of the strategy's own shape; `payload` is the
    strategy's own value."""

    workload: Workload[Request]
    report: Mapping[str, Any]
    rejections: tuple[Rejection, ...] = ()
    alone: bool = False
    """The workload is one kernel by itself: there is nothing to fuse, and a better shape of it is `tuned`."""
    scrutiny: Scrutiny | None = None  #: Set where candidates are not the strategy's own writing
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
