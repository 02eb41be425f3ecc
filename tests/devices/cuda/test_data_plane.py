"""Data on a GPU that is not there: the same bits, findings and messages as on the host, and what crosses the bus."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fusiond.build import gxx, nvcc
from fusiond.build.cache import BuildCache
from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices.compare import by_tolerance, compare
from fusiond.devices.cpu import native
from fusiond.devices.cuda import kernels
from fusiond.devices.cuda.memory import GUARD_BYTE, GUARD_BYTES
from fusiond.devices.protocol import Checked, CheckRequest, Reference
from fusiond.devices.worker import ExecutorWorker
from fusiond.model.inputs.fills import DRAWN, fill, initial, quantiles
from fusiond.model.keys import text_key
from fusiond.model.language.dtypes import DTYPES
from fusiond.model.language.narrow import NARROW, numpy_dtype
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


# --- data.cu, run by the processor as any CUDA source is ------------------------------------------------


KernelLaunch = Callable[..., None]
SHAPES = (((1, 1, 1), (1, 1, 1)), ((3, 1, 1), (32, 1, 1)))
NOTHING = bytes(8)


@pytest.fixture(scope="module")
def launch(shared_cache: Path) -> KernelLaunch:
    """Launches a kernel of data.cu with arrays and numbers."""
    source = Source(name="data", text=kernels.SOURCE.read_text(), entries=kernels.ENTRIES)
    built = gxx.build(source, cache=BuildCache(shared_cache))
    assert isinstance(built, Path), built.reason
    runtime = native.Runtime(gxx.scheduler())
    module = runtime.load(built)

    def run(name: str, *arguments: Any, shape: int = 1) -> None:
        grid, block = SHAPES[shape]
        entry = module.entry(gxx.exported(source, f"fusiond_{name}"))
        done = runtime.launch(entry, native.NativeLaunch(grid=grid, block=block, seed=shape), arguments)
        assert isinstance(done, native.Finished), done

    return run


def drawn(launch: KernelLaunch, data_buffer: Buffer, seed: int, shape: int = 1) -> Any:
    data = np.full(data_buffer.elements + 1, 0x55, np.uint8).repeat(numpy_dtype(data_buffer.dtype).itemsize)
    launch("draw", data, *kernels.draw_arguments(data_buffer, seed), quantiles(), NOTHING, shape=shape)
    size = data_buffer.size_bytes
    assert (data[size:] == 0x55).all()
    return data[:size].view(numpy_dtype(data_buffer.dtype))


def data_buffer(dtype: str, elements: int, spec: Fill, how: Compare | None = None) -> Buffer:
    return Buffer(
        name="x", dtype=dtype, elements=elements, role=Role.INOUT, fill=spec, compare=how or Compare(kind="equal")
    )


# --- drawing ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("shape", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [*DRAWN, "constant", "iota", "zeros"])
def test_every_fill_of_every_type_has_the_host_s_bits(launch: KernelLaunch, dtype: str, kind: str, shape: int) -> None:
    low, high = (-1.5, 2.25) if kind in ("uniform", "normal") and dtype.startswith(("float", "bfloat")) else (2, 100)
    if dtype == "bool":
        low, high = 0, 1
    for elements in (1, 7, 8, 33, 5003):
        each = data_buffer(dtype, elements, Fill(kind=kind, low=low, high=high))
        expected = fill(each, 3)
        np.testing.assert_array_equal(drawn(launch, each, 3, shape).view(np.uint8), expected.view(np.uint8))


@given(
    dtype=st.sampled_from([name for name in DTYPES if "int" in name]),
    bounds=st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1)),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None)
def test_any_range_of_integers(launch: KernelLaunch, dtype: str, bounds: tuple[int, int], seed: int) -> None:
    each = data_buffer(dtype, 40, Fill(kind="integers", low=min(bounds), high=max(bounds)))
    np.testing.assert_array_equal(drawn(launch, each, seed), fill(each, seed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_that_are_not_what_would_be_drawn_are_counted(launch: KernelLaunch, dtype: str) -> None:
    each = data_buffer(dtype, 1001, Fill(kind="integers", low=0, high=1))
    data = fill(each, 5).copy()
    raw = data.view(np.uint8).reshape(1001, -1)
    for changed in ([], [0], [0, 500, 1000]):
        raw[changed, -1] ^= 4
        found = np.zeros(1, np.uint64)
        before = data.copy()
        launch("draw", data, *kernels.draw_arguments(each, 5), quantiles(), found)
        assert found[0] == len(changed)
        np.testing.assert_array_equal(data.view(np.uint8), before.view(np.uint8))
        raw[changed, -1] ^= 4


# --- comparing -------------------------------------------------------------------------------------------

VALUES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1.0009765625, -1.0, 65504.0, 6e-8, 1e-5]


def patterns(dtype: str) -> st.SearchStrategy[Any]:
    """Two arrays of a type: any bits, values that are apart by a little, and now and then the same."""
    kind = numpy_dtype(dtype)
    if dtype == "bool":
        return hnp.arrays(np.bool_, (2, 9))
    raw = hnp.arrays(f"uint{8 * kind.itemsize}", (2, 9)).map(lambda each: each.view(kind))
    if dtype.startswith("float") and dtype not in NARROW:
        near = hnp.arrays(kind, (2, 9), elements=st.sampled_from([float(np.float16(each)) for each in VALUES]))
        return raw | near
    few = [0, 1, 0x3F80, 0x3F81, 0x7F80, 0x7FC0] if kind.itemsize > 1 else [0, 1]  # in bfloat16: 1, infinity, NaN
    return raw | hnp.arrays(kind, (2, 9), elements=st.sampled_from(few))


@pytest.mark.slow
@given(
    case=st.sampled_from(list(DTYPES)).flatmap(lambda name: st.tuples(st.just(name), patterns(name))),
    how=st.builds(Compare, kind=st.sampled_from(["equal", "close"]), rtol=st.sampled_from([0.0, 1e-6, 1e-2, 1e30]),
                  atol=st.sampled_from([0.0, 1e-6, 1e-1, 1e30])),
    same=st.lists(st.integers(0, 8)), shape=st.sampled_from([0, 1]),
)  # fmt: skip
@settings(deadline=None, max_examples=200)
def test_what_is_found_is_what_numpy_finds(
    launch: KernelLaunch, case: tuple[str, Any], how: Compare, same: list[int], shape: int
) -> None:
    dtype, (reference, actual) = case
    reference, actual = reference.copy(), actual.copy()
    actual[same] = reference[same]
    each = data_buffer(dtype, 9, Fill(), how)
    expected = compare(each, reference, actual)
    found = np.zeros(3, np.uint64)
    launch("compare", reference, actual, *kernels.compare_arguments(9, dtype, how), found, shape=shape)
    count, first, worst = int(found[0]), ~int(found[1]) % 2**64, float(found[2:].view(np.float64)[0])
    assert (count == 0) is expected.equal
    assert (worst if by_tolerance(each) else float(count)) == expected.worst
    if count:
        said = re.search(r": (\d+) of 9 differ, first at \[(\d+)\]", expected.detail)
        assert said is not None
        assert (count, first) == (int(said[1]), int(said[2]))


def test_many_threads_agree_on_the_first(launch: KernelLaunch) -> None:
    reference = np.zeros(10_000, np.float32)
    actual = reference.copy()
    actual[[77, 5000, 9999]] = 1e-3, 3.0, 2.0
    found = np.zeros(3, np.uint64)
    how = Compare(kind="close", atol=1e-2)
    launch("compare", reference, actual, *kernels.compare_arguments(10_000, "float32", how), found)
    assert (int(found[0]), ~int(found[1]) % 2**64, found[2:].view(np.float64)[0]) == (2, 5000, 300.0)


def test_bytes_in_guard_zones_are_counted(launch: KernelLaunch) -> None:
    zones = np.full((3, GUARD_BYTES + 1), GUARD_BYTE, np.uint8)
    zones[:, -1] = 0  # beside them
    addresses = np.array([each.ctypes.data for each in zones], np.uint64)
    numbers = np.uint64(3), np.uint64(GUARD_BYTES), np.int32(GUARD_BYTE)
    for place, count in (((1, 0), 1), ((2, GUARD_BYTES - 1), 2), ((0, 7), 3)):
        zones[place] ^= 1
        found = np.zeros(3, np.uint64)
        launch("guards", addresses, *numbers, found)
        assert found[0] == count


# --- the PTX ---------------------------------------------------------------------------------------------


@pytest.mark.needs_nvcc
def test_the_ptx_is_that_of_the_source(tmp_path: Path) -> None:
    """Of the compiler's version that made it; another one's text may differ."""
    toolkit = nvcc.find()
    assert toolkit is not None
    if not toolkit.version.startswith("13.0."):
        pytest.skip(f"data.ptx was made by nvcc 13.0; here is {toolkit.version}")
    again = kernels.made(str(toolkit.nvcc), tmp_path / "data.ptx")
    assert again == kernels.PTX.read_text(), "run python -m fusiond.devices.cuda.kernels"


def test_the_ptx_has_the_entries_with_their_parameters() -> None:
    text = kernels.PTX.read_text()
    assert re.findall(r"^\.version (.*)\n\.target (.*)$", text, re.M) == [("6.4", "sm_75")]
    types = {"u64": np.uint64, "u32": np.int32, "f64": np.float64}
    each = data_buffer("float32", 5, Fill(kind="uniform"))
    place = (np.uint64(0),)
    for name, arguments in (
        ("draw", (*place, *kernels.draw_arguments(each, 0), *place, *place)),
        ("compare", (*place, *place, *kernels.compare_arguments(5, "int8", Compare()), *place)),
        ("guards", (*place, np.uint64(1), np.uint64(1), np.int32(1), *place)),
    ):
        (found,) = re.findall(rf"\.entry fusiond_{name}\((.*?)\)", text, re.S)
        assert [types[kind] for kind in re.findall(r"\.param \.(\w+)", found)] == [type(one) for one in arguments]
    assert "fma" not in text  # a contracted product would be rounded once where the host rounds twice
