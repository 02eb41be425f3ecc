"""The buffers of a Program, their contents and comparison, and the sources of its code."""

import enum
import re
from dataclasses import dataclass, field

from fusiond.model.keys import SILENT_DEFAULT
from fusiond.model.language.dtypes import DTYPES


class Role(enum.StrEnum):
    INPUT = "input"
    OUTPUT = "output"
    INOUT = "inout"  #: Read and written (or accumulated into): compared like an output, restored before every sample
    SCRATCH = "scratch"

    @property
    def compared(self) -> bool:
        return self in (Role.OUTPUT, Role.INOUT)


class Memory(enum.StrEnum):
    DEVICE = "device"
    PAGEABLE = "pageable"
    PINNED = "pinned"
    MANAGED = "managed"  #: One address for host and device; the driver moves its pages to the side that uses them


class SourceKind(enum.StrEnum):
    DEVICE = "device"  #: CUDA C++, built by nvcc for a GPU or by g++ for the cpu device
    HOST = "host"  #: C++ with `extern "C"` entry points, called on the host


class SourceLanguage(enum.StrEnum):
    """What the text of device code is written in."""

    CUDA = "cuda"
    PTX = "ptx"
    """Assembled as it stands. Entries and symbols are names of the PTX; there are no defines and no includes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """What a buffer holds at the start. `low`/`high` bound `uniform` (floats, half open) and `integers` (both ends
    included); they are mean and standard deviation for `normal`; `low` is the value of `constant`. `file` is an .npy
    file of exactly the buffer's elements and dtype, `digest` the text_key of its bytes. Whole numbers beyond 2**53 are
    given as int."""

    kind: str = "zeros"
    low: float = 0.0
    high: float = 1.0
    file: str | None = None
    digest: str | None = None

    @property
    def content(self) -> list[str | float | None]:
        """What of it is part of a key: not where a file lies, but what it holds."""
        return [self.kind, self.low, self.high, self.digest]


FILL_KINDS = ("zeros", "constant", "uniform", "normal", "integers", "iota", "file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """How an output is compared with the reference. `close` is ``|a - b| <= atol + rtol * |b|``; NaN equals NaN."""

    kind: str = "equal"
    rtol: float = 0.0
    atol: float = 0.0


EQUAL = Compare()


def default_compare(dtype: str) -> Compare:
    """Equal for integers; for floats a few units in the last place of a short sum."""
    tolerance = DTYPES[dtype].tolerance
    return EQUAL if tolerance is None else Compare(kind="close", rtol=tolerance[0], atol=tolerance[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A named array. Buffers with the same `arena` lie in one allocation, at `offset_bytes`; all others have their
    own. A part (`part_of`) is a name for some elements of another buffer of its arena."""

    name: str
    dtype: str
    elements: int
    role: Role
    fill: Fill = field(default_factory=Fill)
    reset: str = "each_run"  #: `each_run` or `never` (what it holds does not matter from run to run)
    memory: Memory = Memory.DEVICE
    arena: str | None = None
    offset_bytes: int = 0
    symbol: str | None = None
    """The `__constant__` or `__device__` variable that this buffer is, as `source:symbol`; no allocation then."""
    compare: Compare = EQUAL
    part_of: str | None = None
    """The buffer whose elements these are, so that a step can move or compute some of them. What fills, compares and
    hands over the whole does it for its parts; their role is scratch."""

    @property
    def size_bytes(self) -> int:
        return self.elements * DTYPES[self.dtype].bytes


_OWN_INSTRUCTIONS = re.compile(r"\b(setmaxnreg|wgmma|tcgen05)\b")
_PTX_TARGET = re.compile(r"^\s*\.target\s+(sm_\d+[af]?)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One translation unit. `entries` are the kernels (or host functions) that steps may name.

    An entry is written as in the source, template arguments and namespaces included: `maxpool<float, 5>`. The register
    cap belongs to the source (None: the compiler's choice); defines are (name, value) pairs, include_dirs absolute
    folders."""

    name: str
    kind: SourceKind = SourceKind.DEVICE
    text: str
    entries: tuple[str, ...]
    register_cap: int | None = None
    flags: tuple[str, ...] = ()
    defines: tuple[tuple[str, str], ...] = ()
    include_dirs: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()  #: The `__constant__` and `__device__` variables that buffers may be
    language: SourceLanguage = field(default=SourceLanguage.CUDA, metadata=SILENT_DEFAULT)

    @property
    def suffix(self) -> str:
        """What a file of it ends in: `.cu`, `.ptx`, or `.cpp` for code of the host."""
        if self.kind is SourceKind.HOST:
            return ".cpp"
        return ".ptx" if self.language is SourceLanguage.PTX else ".cu"

    @property
    def ptx_target(self) -> str:
        """What a PTX text says it is for: `sm_90a`; empty where it does not say."""
        found = _PTX_TARGET.search(self.text)
        return found[1] if found else ""

    def target(self, arch: str) -> str:
        """What it is built for: `sm_90a` where it has instructions that only the architecture itself has, and no later
        one; else `arch`. PTX says itself whether it is for one architecture (`a`) or one family of them (`f`)."""
        number = re.fullmatch(r"sm_(\d+)", arch)
        if self.language is SourceLanguage.PTX:
            suffix = self.ptx_target[-1:]
            return arch + suffix if number is not None and suffix in ("a", "f") else arch
        own = number is not None and int(number[1]) >= 90 and _OWN_INSTRUCTIONS.search(self.text) is not None
        return f"{arch}a" if own else arch
