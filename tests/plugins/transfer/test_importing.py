"""Drafts of graphs from traces of Nsight Systems, up to the plan of what was filled in. The files follow NVIDIA's
SQLite Export Schema Reference; they were not made on a GPU here.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond.errors import RequestError
from fusiond.inputs import documents
from fusiond.model import Job
from fusiond.requests.jobs import JobInputs
from fusiond_transfer.analysis.trace_costs import Basis, _fitted, lines, savings
from fusiond_transfer.frontend.importing import nsight
from fusiond_transfer.frontend.importing.nsight import Ran, Trace, TracedCopy


def _read(text: str) -> Any:
    return documents.drafted(text, "draft")[0].plain()


SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT NOT NULL, "end" INT NOT NULL, deviceId INT NOT NULL,
    contextId INT NOT NULL, streamId INT NOT NULL, correlationId INT, globalPid INT, bytes INT NOT NULL,
    copyKind INT NOT NULL, deprecatedSrcId INT, srcKind INT, dstKind INT, srcDeviceId INT, graphNodeId INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT NOT NULL, "end" INT NOT NULL, deviceId INT NOT NULL,
    contextId INT NOT NULL, streamId INT NOT NULL, correlationId INT, globalPid INT, demangledName INT NOT NULL,
    shortName INT NOT NULL, mangledName INT, gridX INT NOT NULL, blockX INT NOT NULL);
"""
HTOD, DTOH, DTOD = 1, 2, 8
PAGEABLE, PINNED, DEVICE = 1, 2, 3


def _export(path: Path, copies: Sequence[tuple[int, ...]], kernels: Sequence[tuple[int, int, int, str]] = ()) -> Path:
    """copies: (start, end, stream, bytes, kind, source, target); kernels: (start, end, stream, name)."""
    database = sqlite3.connect(path)
    database.executescript(SCHEMA)
    for start, end, stream, size, kind, source, target in copies:
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (start, \"end\", deviceId, contextId, streamId, bytes, copyKind, "
            "srcKind, dstKind) VALUES (?, ?, 0, 1, ?, ?, ?, ?, ?)", (start, end, stream, size, kind, source, target),
        )  # fmt: skip
    for number, (start, end, stream, name) in enumerate(kernels):
        database.execute("INSERT INTO StringIds VALUES (?, ?)", (number + 1, name))
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 1, ?, 0, 0, ?, ?, 0, 1, 32)",
            (start, end, stream, number + 1, number + 1),
        )
    database.commit()
    database.close()
    return path


@pytest.fixture
def draft(strategy: Any, registry: Any) -> Callable[..., str]:
    def draft(path: Path, name: str = "") -> str:
        job = Job(strategy=strategy.name, request={}, sizes={}, path=str(path))
        found: str = strategy.draft(str(path), name, JobInputs(registry, job))
        return found

    return draft


def _us(*numbers: float) -> list[int]:
    return [int(1000 * each) for each in numbers]


def test_a_trace_is_reported_and_drafted(draft: Callable[..., str], tmp_path: Path) -> None:
    """Three small copies up, a kernel, one down, on a link of which each message takes 2 us and a us for 4000 bytes."""
    copies = [
        (*_us(10, 13), 7, 4000, HTOD, PINNED, DEVICE),
        (*_us(15, 18), 7, 4000, HTOD, PINNED, DEVICE),
        (*_us(22, 26), 7, 8000, HTOD, PINNED, DEVICE),
        (*_us(30, 31), 7, 100, DTOD, DEVICE, DEVICE),
        (*_us(60, 63), 7, 4000, DTOH, DEVICE, PAGEABLE),
    ]
    path = _export(tmp_path / "my run.sqlite", copies, [(*_us(40, 50), 7, "blend")])
    text = draft(path)
    said = [line[2:] for line in text.splitlines() if line.startswith("# ")]
    assert "5 copies, 1 launch" in said
    assert "  3 up, pinned: 16000 bytes in 10.0 us, from 4000 to 8000, half of them below 4001" in said
    assert "  1 down, pageable: 4000 bytes in 3.0 us, from 4000 to 4000, half of them below 4001" in said
    assert "  a message up, pinned: 8.00 us and 12.00 GB/s (assumed, not measured)" in said
    assert "  at 0.0 us, stream 7: 3 copies up, pinned, 16000 bytes: 16.0 us of startups, 6.0 us between them" in said
    assert "1 sequence of copies with no kernel of their stream between: 3 messages" in said
    root = _read(text)
    assert (root["graph"], root["inputs"], root["outputs"]) == ("my_run", ["up", "up_2", "up_3"], ["down"])
    assert root["vectors"]["up_3"] == {"dtype": "uint8", "elements": 8000}
    assert root["kernels"] == [{"name": "blend", "on": "device", "reads": "?", "writes": "?"}]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_sequences_are_what_brute_force_finds(seed: int) -> None:
    """Two copies are of one sequence where none of the stream's events between them is a kernel or another kind."""
    draw = random.Random(seed)
    copies, kernels = [], []
    for start in range(draw.randrange(2, 14)):
        stream = draw.randrange(2)
        if draw.random() < 0.3:
            kernels.append(Ran(start=start, end=start + 1, name="k", device=0, stream=stream))
        else:
            kind, memory = draw.choice([1, 2, 8]), draw.choice(["pinned", "pageable"])
            copies.append(
                TracedCopy(start=start, end=start + 1, bytes=8, kind=kind, memory=memory, device=0, stream=stream)
            )
    trace = Trace(copies=tuple(copies), kernels=tuple(kernels))
    events = sorted([*copies, *kernels], key=lambda each: each.start)

    def together(one: TracedCopy, other: TracedCopy) -> bool:
        between = [each for each in events if one.start <= each.start <= other.start and each.stream == one.stream]
        same = {(each.kind, each.memory) if isinstance(each, TracedCopy) else None for each in between}
        return one.stream == other.stream and same == {(one.kind, one.memory)} and one.kind in (1, 2)

    found = {frozenset(each.start for each in run) for run in nsight.sequences(trace)}
    expected = {frozenset(other.start for other in copies if together(*sorted((one, other), key=lambda c: c.start)))
                for one in copies if one.kind in (1, 2)}  # fmt: skip
    assert found == {each for each in expected if len(each) > 1}


@pytest.mark.parametrize(("startup", "speed"), [(2.5, 11_000.0), (0.0, 25_000.0), (9.0, 3_000.0)])
def test_costs_are_fitted_to_the_traces_own_copies(startup: float, speed: float) -> None:
    draw = np.random.default_rng(3)
    copies, at = [], 0
    for size in (1 << draw.integers(8, 24, 60)).tolist():
        ns = int(1000 * (startup + size / speed) * draw.uniform(0.99, 1.01))
        copies.append(TracedCopy(start=at, end=at + ns, bytes=size, kind=HTOD, memory="pinned", device=0, stream=1))
        at += ns + 500
    (line,) = lines(copies).values()
    assert line.basis is Basis.FITTED
    assert line.startup_us == pytest.approx(startup, abs=0.15)
    assert line.bytes_per_us == pytest.approx(speed, rel=0.05)
    ((run, saving),) = savings(Trace(copies=tuple(copies), kernels=()))
    assert (len(run), saving.copies, saving.basis) == (60, 60, Basis.FITTED)
    assert saving.startups_us == pytest.approx(59 * line.startup_us)
    assert saving.idle_us == pytest.approx(59 * 0.5)


def _copy(at: int, size: int, kind: int = HTOD, memory: str = "pinned") -> TracedCopy:
    return TracedCopy(start=at, end=at + 100, bytes=size, kind=kind, memory=memory, device=0, stream=1)


def test_what_fusiond_has_measured_on_the_device_comes_first() -> None:
    """Probes of 5 us and 10 GB/s up to 64 KiB, of 20 GB/s behind; downloads have one point, which is not a line."""
    answers = {"transfer: up pinned 4096 bytes": 5 + 0.4096, "transfer: up pinned 65536 bytes": 5 + 6.5536,
               "transfer: up pinned 1048576 bytes": 11.5536 + (1048576 - 65536) / 20_000,
               "transfer: down pinned 65536 bytes": 9.0}  # fmt: skip
    copies = [_copy(0, 4096), _copy(1000, 36_864), _copy(2000, 65_536), _copy(3000, 4096, DTOH)]
    known = lines(copies, answers)
    up, down = known[HTOD, "pinned"], known[DTOH, "pinned"]
    assert (up.basis, down.basis) == (Basis.PROBED, Basis.ASSUMED)
    assert (up.startup_us, up.bytes_per_us) == (pytest.approx(5), pytest.approx(20_000))
    ((_, saving),) = savings(Trace(copies=tuple(copies[:3]), kernels=()), answers)
    # Three messages of 5 us each and their bytes at 10 GB/s; one whose last 40,960 bytes go at 20 GB/s.
    assert saving.startups_us == pytest.approx(10 + 40_960 / 10_000 - 40_960 / 20_000)
    # Kinds of memory that no probe is of, such as managed memory, are not answered by one.
    managed = lines([_copy(0, 4096, memory="managed")], answers)
    assert managed[HTOD, "managed"].basis is Basis.ASSUMED


@pytest.mark.parametrize(
    ("tables", "model"),
    [
        ("", ""),
        ("CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT); INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA A'), "
         "(1, 'NVIDIA B');", "NVIDIA A"),
        ("CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT); INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA A'), "
         "(1, 'NVIDIA B'); CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INT, cudaId INT); "
         "INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (1, 0), (0, 1);", "NVIDIA B"),
        ("CREATE TABLE TARGET_INFO_GPU (id INT, label TEXT);", ""),
        ("CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT);", ""),
    ],
)  # fmt: skip
def test_the_device_of_a_trace(tables: str, model: str, tmp_path: Path) -> None:
    path = _export(tmp_path / "trace.sqlite", [(*_us(10, 13), 7, 4000, HTOD, PINNED, DEVICE)])
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(tables)
    assert nsight.read(str(path)).model == model


@pytest.mark.parametrize("seed", range(20))
def test_the_fit_is_scipys(seed: int) -> None:
    draw = np.random.default_rng(seed)
    us = draw.uniform(1, 50, 30)
    ones, sizes = 1 / us, draw.uniform(1, 9, 30) * (us if seed % 2 else 1) / us
    (startup, slope), _ = scipy.optimize.nnls(np.stack([ones, sizes], axis=1), np.ones(30))
    assert _fitted(ones, sizes) == pytest.approx((startup, slope), rel=1e-6, abs=1e-9)


def test_what_is_no_trace_is_refused_in_one_line(draft: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(b"no database, but long enough for its header" * 40)
    with pytest.raises(RequestError, match="is not an SQLite export of Nsight Systems: file is not a database"):
        draft(path)
    path.unlink()
    sqlite3.connect(path).execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(RequestError, match="neither CUPTI_ACTIVITY_KIND_MEMCPY nor CUPTI_ACTIVITY_KIND_KERNEL"):
        draft(path)
    path.unlink()
    sqlite3.connect(path).execute('CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, "end", bytes)').connection.close()
    with pytest.raises(RequestError, match="CUPTI_ACTIVITY_KIND_MEMCPY has no column copyKind"):
        draft(path)
    with pytest.raises(RequestError, match="there is no file"):
        draft(tmp_path / "gone.sqlite")
