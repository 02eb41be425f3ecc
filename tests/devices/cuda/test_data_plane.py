"""Data on a GPU that is not there: the same bits, findings and messages as on the host, and what crosses the bus."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices.compare import compare
from fusiond.devices.protocol import Checked, CheckRequest, Reference
from fusiond.devices.worker import ExecutorWorker
from fusiond.model.inputs.fills import initial
from fusiond.model.keys import text_key
from fusiond.model.language.dtypes import DTYPES
from fusiond.model.language.narrow import numpy_dtype
from fusiond.model.outcomes import MeasureFailed, Outcome
from fusiond.model.program import (
    Buffer,
    Compare,
    Fill,
    FillStep,
    Launch,
    Memory,
    Pointer,
    Program,
    Role,
    Scalar,
    Source,
)

N = 1000
UNIFORM = Fill(kind="uniform", low=1.0, high=2.0)
CLOSE = Compare(kind="close", rtol=1e-4, atol=1e-6)


def buffer(name: str, role: Role = Role.INPUT, **fields: Any) -> Buffer:
    return Buffer(**{"name": name, "dtype": "float32", "elements": N, "role": role, "fill": UNIFORM, **fields})


def program(*buffers: Buffer, kernel: str = "", name: str = "p") -> Program:
    """Adds y to x, unless another kernel is named, which gets x."""
    pointers = [Pointer(buffer=each) for each in ("x", "y")][: 1 if kernel else 2]
    step = Launch(
        name="step", source="k", entry=kernel or "add", grid=(1, 1, 1), block=(32, 1, 1),
        arguments=(*pointers, Scalar(dtype="int32", value=N)),
    )  # fmt: skip
    source = Source(name="k", text=f"// {name}", entries=("double_it", "overrun", "add"))
    return Program(name=name, buffers=buffers, sources=(source,), steps=(step,))


def idle(*buffers: Buffer) -> Program:
    """Does next to nothing with its buffers."""
    step = FillStep(name="step", buffer="nobody")
    nobody = Buffer(name="nobody", dtype="uint8", elements=1, role=Role.SCRATCH)
    return Program(name="idle", buffers=(*buffers, nobody), sources=(), steps=(step,))


XY = buffer("x", Role.INOUT, compare=CLOSE), buffer("y")


class Bus:
    """What crossed it: (direction, bytes), in order."""

    def __init__(self, cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.crossed: list[tuple[str, int]] = []
        for name, data in (("memcpy_htod", 1), ("memcpy_dtoh", 0)):
            monkeypatch.setattr(cuda, name, self._counted(name[-4:], getattr(cuda, name), data))

    def _counted(self, direction: str, then: Callable[..., None], data: int) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            self.crossed.append((direction, arguments[data].nbytes))
            then(*arguments)

        return call

    def bytes(self) -> int:
        """Since the last time."""
        total = sum(each for _, each in self.crossed)
        self.crossed.clear()
        return total


@pytest.fixture
def bus(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Bus:
    return Bus(gpu.cuda, monkeypatch)


def launches(gpu: Any, kernel: str) -> int:
    """Of one of the data's kernels since the last time."""
    return sum(line.startswith(f"launch fusiond_{kernel} ") for line in gpu.log())


# --- filling ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["uniform", "normal", "integers", "constant", "iota", "zeros"])
def test_a_buffer_holds_what_the_host_would_write(gpu: Any, bus: Bus, dtype: str, kind: str) -> None:
    each = buffer("x", Role.INOUT, dtype=dtype, fill=Fill(kind=kind, low=0, high=1))
    loaded, data = gpu.load(idle(each)), gpu.executor.data
    for _ in range(2):  # drawn, then kept
        data.fill(loaded, each, 3)
        assert data.intact(loaded, each, 3)
        assert bus.bytes() in (24, 24 + 4 * 1665)  # the table of quantiles, once
        np.testing.assert_array_equal(loaded.read("x").view(np.uint8), initial(each, 3).view(np.uint8))
        changed = loaded.read("x").view(np.uint8).copy()
        changed[-1] ^= 1
        loaded.write("x", changed.view(numpy_dtype(dtype)))
        assert not data.intact(loaded, each, 3)
        bus.bytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [0, 1])
def test_poison_does_not_cross_the_bus(gpu: Any, bus: Bus, dtype: str, kind: int) -> None:
    each = buffer("x", Role.OUTPUT, dtype=dtype)
    loaded = gpu.load(idle(each))
    gpu.executor.data.fill(loaded, each, 3, kind=kind)
    assert bus.bytes() == 0
    np.testing.assert_array_equal(loaded.read("x").view(np.uint8), initial(each, 3, kind=kind).view(np.uint8))


def test_a_content_is_drawn_once_for_all_programs(gpu: Any) -> None:
    data = gpu.executor.data
    for name in ("a", "b", "c"):
        loaded = gpu.load(program(*XY, name=name))
        for seed in (0, 1):
            for each in XY:
                data.fill(loaded, each, seed)
                np.testing.assert_array_equal(loaded.read(each.name), initial(each, seed))
        loaded.close()
    assert launches(gpu, "draw") == 4


def test_a_file_crosses_the_bus_once(gpu: Any, bus: Bus, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(N, dtype=np.float32))
    spec = Fill(kind="file", file=str(path), digest=text_key(path.read_bytes()))
    each = buffer("x", Role.INOUT, fill=spec)
    loaded, data = gpu.load(idle(each)), gpu.executor.data
    for crossed in (4 * N, 0):
        data.fill(loaded, each, 0)
        assert bus.bytes() == crossed
        np.testing.assert_array_equal(loaded.read("x"), np.arange(N, dtype=np.float32))
        bus.bytes()
        assert data.intact(loaded, each, 0)
        assert bus.bytes() == 24
    data.clear()
    assert data.intact(loaded, each, 0)  # by reading the file, and the buffer, again


@pytest.mark.parametrize("memory", [Memory.PINNED, Memory.PAGEABLE])
def test_host_memory_is_filled_and_compared_by_the_host(gpu: Any, bus: Bus, memory: Memory) -> None:
    each = buffer("x", Role.INOUT, memory=memory, compare=CLOSE)
    loaded, data = gpu.load(idle(each)), gpu.executor.data
    data.fill(loaded, each, 0)
    assert data.intact(loaded, each, 0)
    kept = data.keep(loaded, each, "r")
    np.testing.assert_array_equal(kept, initial(each, 0))
    assert data.compare(loaded, each, "r", list).equal
    assert bus.bytes() == 0


# --- memory ----------------------------------------------------------------------------------------------


def test_what_is_kept_is_a_share_of_what_is_free(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.cuda, "mem_get_info", lambda: (40 * N, 1 << 30))  # a quarter: ten bytes for each element
    data = gpu.executor.data
    buffers = [buffer(name) for name in ("a", "b", "c")]
    monkeypatch.setattr("fusiond.devices.cuda.executor.device_bytes", lambda of: 0)
    monkeypatch.setattr("fusiond.devices.cuda.loaded.refuse_too_much", lambda cuda, of: None)
    loaded = gpu.load(idle(*buffers, buffer("x")))
    for each in buffers:
        data.fill(loaded, each, 0)
    data.fill(loaded, buffers[0], 0)
    data.fill(loaded, buffer("x"), 0)
    assert [key[0] for key in data._kept] == ["c", "a", "x"]  # those that were used last
    assert 4 * N * 3 <= (40 * N + 4 * N * 3) / 4
    for each in (*buffers, buffer("x")):
        assert data.intact(loaded, each, 0)
    monkeypatch.setattr(gpu.cuda, "mem_get_info", lambda: (0, 1 << 30))
    data.clear()
    data.fill(loaded, buffers[0], 0)
    assert not data._kept
    assert data.intact(loaded, buffers[0], 0)


def test_a_program_gets_the_memory_that_was_kept(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = gpu.executor.data
    loaded = gpu.load(program(*XY))
    for each in XY:
        data.fill(loaded, each, 0)
    loaded.close()
    kept = len(data._kept)
    assert kept == 2
    monkeypatch.setattr(
        gpu.cuda, "mem_get_info", lambda: (30_000 + 8000 * (2 - len(data._kept)), 16_000)
    )  # x, its copy, y and their guard zones want 28384 bytes, 1000 are left to others
    gpu.load(program(*XY)).close()
    assert len(data._kept) == 2
    monkeypatch.setattr(gpu.cuda, "mem_get_info", lambda: (25_000 + 8000 * (2 - len(data._kept)), 16_000))
    gpu.load(program(*XY)).close()
    assert len(data._kept) == 1


@pytest.mark.slow
def test_nothing_is_left_when_the_context_goes(gpu: Any) -> None:
    before = gpu.live_allocations
    loaded = gpu.load(program(*XY))
    for each in XY:
        gpu.executor.data.fill(loaded, each, 0)
    assert gpu.executor.data.broken_guards(loaded) == ()
    loaded.close()
    assert gpu.live_allocations > before
    gpu.executor.data.close()
    assert gpu.live_allocations == before


# --- checking --------------------------------------------------------------------------------------------


@pytest.fixture
def bundle(gpu: Any, tmp_path: Path) -> Callable[[Program], str]:
    def write(of: Program) -> str:
        folder = tmp_path / f"bundle-{of.key}"
        if not folder.exists():
            write_bundle(folder, of, gpu.binaries(of))
        return str(folder)

    return write


def test_a_check_moves_no_buffer(gpu: Any, bus: Bus, bundle: Any, tmp_path: Path) -> None:
    worker = ExecutorWorker(gpu.executor)
    references = []
    for seed in (0, 1):
        path = str(tmp_path / f"{seed}.npz")
        assert worker.answer(Reference(bundle=bundle(program(*XY)), seed=seed, outputs=path)) == Checked(worst=0.0)
        references.append((seed, path))
        with np.load(path) as stored:
            np.testing.assert_array_equal(stored["x"], initial(XY[0], seed) + initial(XY[1], seed))
    assert [each for each in bus.crossed if each[1] >= 4 * N] == [("dtoh", 4 * N)] * 2
    bus.bytes()
    gpu.log()
    for name in ("first", "second"):
        check = CheckRequest(bundle=bundle(program(*XY, name=name)), references=tuple(references))
        assert worker.answer(check) == Checked(worst=0.0)
        # For each seed 24 bytes for the guard zones, for the input and for the output; the zones' addresses, if new.
        assert bus.bytes() - 2 * 3 * 24 in (0, 4 * 8)
    assert launches(gpu, "draw") == 0


def test_another_process_s_reference_crosses_the_bus_once(gpu: Any, bus: Bus, bundle: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "0.npz")
    ExecutorWorker(gpu.executor).answer(Reference(bundle=bundle(program(*XY)), seed=0, outputs=path))
    gpu.executor.data.clear()
    worker = ExecutorWorker(gpu.executor)
    bus.bytes()
    check = CheckRequest(bundle=bundle(program(*XY)), references=((0, path),))
    for uploads in (1, 0):
        assert worker.answer(check) == Checked(worst=0.0)
        assert [each for each in bus.crossed if each[1] >= 4 * N] == [("htod", 4 * N)] * uploads
        bus.bytes()


def test_what_differs_is_said_as_the_host_says_it(gpu: Any, bundle: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "0.npz")
    worker = ExecutorWorker(gpu.executor)
    worker.answer(Reference(bundle=bundle(program(*XY)), seed=0, outputs=path))
    other = program(*XY, kernel="double_it")
    answer = worker.answer(CheckRequest(bundle=bundle(other), references=((0, path),)))
    x, y = (initial(each, 0) for each in XY)
    said = compare(XY[0], x + y, 2 * x).detail
    assert answer == MeasureFailed(outcome=Outcome.WRONG_RESULT, reason=f"seed 0: {said}")


def test_a_reference_that_is_not_a_function_of_its_inputs_is_found(gpu: Any, bundle: Any, tmp_path: Path) -> None:
    out = buffer("x", Role.OUTPUT, compare=CLOSE)
    path = str(tmp_path / "0.npz")
    answer = ExecutorWorker(gpu.executor).answer(
        Reference(bundle=bundle(program(out, kernel="double_it")), seed=0, outputs=path)
    )
    assert isinstance(answer, MeasureFailed)
    assert "two runs on the same data differ: x: 1000 of 1000 differ, first at [0]" in answer.reason
