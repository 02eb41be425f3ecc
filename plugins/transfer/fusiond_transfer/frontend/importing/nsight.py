"""What a program copied, from Nsight Systems' export: `nsys export --type sqlite report.nsys-rep`.

The tables (SQLite Export Schema Reference of Nsight Systems; kinds are CUPTI's CUpti_ActivityMemcpyKind and
CUpti_ActivityMemoryKind): CUPTI_ACTIVITY_KIND_MEMCPY (start, end in ns, bytes, copyKind, srcKind, dstKind, streamId,
deviceId), CUPTI_ACTIVITY_KIND_KERNEL (start, end, streamId, shortName or demangledName as an id of StringIds),
TARGET_INFO_GPU (id, name) and TARGET_INFO_CUDA_DEVICE (cudaId, gpuId), which name the devices. Tables and columns that
a release lacks are done without. The trace has no addresses: it does not say what a kernel read.

A *sequence* is a maximal run of copies on one device, stream and direction between the same kinds of memory, with no
kernel on that stream between them: as far as the trace tells, they could be one message. Whether host code needs what
came down before it sends more up it does not tell, so what fusing would save is an upper bound.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusiond.errors import RequestError

UP, DOWN = 1, 2
DIRECTIONS = {1: "up", 2: "down", 8: "on the device", 10: "to a peer", 9: "on the host"}
"""CUPTI_ACTIVITY_MEMCPY_KIND_HTOD, _DTOH, _DTOD, _PTOP, _HTOH."""
MEMORIES = {1: "pageable", 2: "pinned", 3: "device", 4: "array", 5: "managed", 6: "device static", 7: "managed static"}
"""CUPTI_ACTIVITY_MEMORY_KIND_*."""
MOST_COPIES = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCopy:
    """One copy: times in ns, since the trace began."""

    start: int
    end: int
    bytes: int
    kind: int
    memory: str
    """Of the host; empty where the trace does not say, or the host is not concerned."""
    device: int
    stream: int

    @property
    def crosses(self) -> bool:
        return self.kind in (UP, DOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One launch."""

    start: int
    end: int
    name: str
    device: int
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """In order of their starts."""

    copies: tuple[TracedCopy, ...]
    kernels: tuple[Ran, ...]
    model: str = ""
    """Of the device that copied, as the driver calls it; empty where the trace does not say, or has several."""


def read(path: str) -> Trace:
    """The copies and kernels of an export. RequestError for what is none."""
    try:
        with contextlib.closing(sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not tables & {_MEMCPY, _KERNEL}:
                raise RequestError(
                    f"neither {_MEMCPY} nor {_KERNEL} is in it; `nsys profile --trace cuda`, then "
                    "`nsys export --type sqlite`, writes them",
                    where=path,
                )
            copies = tuple(_copies(database, tables, path))
            return Trace(
                copies=copies,
                kernels=tuple(_kernels(database, tables, path)),
                model=_model(database, tables, {each.device for each in copies if each.crosses}),
            )
    except sqlite3.Error as problem:
        raise RequestError(f"is not an SQLite export of Nsight Systems: {problem}", where=path) from None


_MEMCPY, _KERNEL = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_KERNEL"
_GPU, _CUDA_DEVICE = "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE"


def _columns(database: sqlite3.Connection, table: str, needed: Sequence[str], path: str = "") -> set[str]:
    found = {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
    missing = [each for each in needed if each not in found]
    if missing:
        raise RequestError(f"{table} has no column {missing[0]}; export it again with a newer nsys", where=path)
    return found


def _copies(database: sqlite3.Connection, tables: set[str], path: str) -> Iterator[TracedCopy]:
    if _MEMCPY not in tables:
        return
    there = _columns(database, _MEMCPY, ("start", "end", "bytes", "copyKind"), path)
    more = [each if each in there else "0" for each in ("srcKind", "dstKind", "deviceId", "streamId")]
    (count,) = database.execute(f"SELECT count(*) FROM {_MEMCPY}").fetchone()
    if count > MOST_COPIES:
        raise RequestError(f"{count} copies are in it; {MOST_COPIES} are read: trace a shorter time", where=path)
    rows = database.execute(f'SELECT start, "end", bytes, copyKind, {", ".join(more)} FROM {_MEMCPY} ORDER BY start')
    for start, end, size, kind, source, target, device, stream in rows:
        host = MEMORIES.get(source if kind == UP else target if kind == DOWN else 0, "")
        yield TracedCopy(start=start, end=end, bytes=size, kind=kind, memory=host, device=device, stream=stream)


def _kernels(database: sqlite3.Connection, tables: set[str], path: str) -> Iterator[Ran]:
    if _KERNEL not in tables:
        return
    there = _columns(database, _KERNEL, ("start", "end"), path)
    more = [each if each in there else "0" for each in ("deviceId", "streamId")]
    name = next((each for each in ("shortName", "demangledName") if each in there), None)
    named = name is not None and "StringIds" in tables
    text = f"(SELECT value FROM StringIds WHERE id = {name})" if named else "''"
    for start, end, device, stream, said in database.execute(
        f'SELECT start, "end", {", ".join(more)}, {text} FROM {_KERNEL} ORDER BY start'
    ):
        yield Ran(start=start, end=end, name=said or "", device=device, stream=stream)


def _model(database: sqlite3.Connection, tables: set[str], devices: set[int]) -> str:
    """What the devices are called, where it is one name; a GPU's id is the device's where nothing else is said."""
    if _GPU not in tables or not {"id", "name"} <= _columns(database, _GPU, ()):
        return ""
    names = {number: str(name).strip() for number, name in database.execute(f"SELECT id, name FROM {_GPU}")}
    gpus = {each: each for each in devices}
    if _CUDA_DEVICE in tables and {"cudaId", "gpuId"} <= _columns(database, _CUDA_DEVICE, ()):
        gpus |= dict(database.execute(f"SELECT cudaId, gpuId FROM {_CUDA_DEVICE}"))
    found = {names.get(gpus[each], "") for each in devices}
    return found.pop() if len(found) == 1 else ""


# --- sequences ------------------------------------------------------------------------------------------


def sequences(trace: Trace) -> tuple[tuple[TracedCopy, ...], ...]:
    """Runs of two or more copies that could be one message, in order of their starts."""
    events: list[tuple[int, int, TracedCopy | Ran]] = [(each.start, 0, each) for each in trace.kernels]
    events += [(each.start, 1, each) for each in trace.copies]
    events.sort(key=lambda each: each[:2])
    runs: dict[tuple[int, int], list[TracedCopy]] = {}
    found: list[tuple[TracedCopy, ...]] = []
    for _, _, event in events:
        lane = event.device, event.stream
        run = runs.setdefault(lane, [])
        if isinstance(event, TracedCopy) and event.crosses and run and _alike(run[-1], event):
            run.append(event)
            continue
        found += [tuple(run)] if len(run) > 1 else []
        runs[lane] = [event] if isinstance(event, TracedCopy) and event.crosses else []
    found += [tuple(run) for run in runs.values() if len(run) > 1]
    return tuple(sorted(found, key=lambda each: each[0].start))


def _alike(one: TracedCopy, other: TracedCopy) -> bool:
    return (one.kind, one.memory) == (other.kind, other.memory)
