"""data.cu, run by the processor as any CUDA source is, against NumPy: the same bits, the same findings."""

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
from fusiond.devices.compare import by_tolerance, compare
from fusiond.devices.cpu import native
from fusiond.devices.cuda import kernels
from fusiond.devices.cuda.memory import GUARD_BYTE, GUARD_BYTES
from fusiond.model.inputs.fills import DRAWN, fill, quantiles
from fusiond.model.language.dtypes import DTYPES
from fusiond.model.language.narrow import NARROW, numpy_dtype
from fusiond.model.program import Buffer, Compare, Fill, Role, Source

Launch = Callable[..., None]
SHAPES = (((1, 1, 1), (1, 1, 1)), ((3, 1, 1), (32, 1, 1)))
NOTHING = bytes(8)


@pytest.fixture(scope="module")
def launch(shared_cache: Path) -> Launch:
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


def drawn(launch: Launch, buffer: Buffer, seed: int, shape: int = 1) -> Any:
    data = np.full(buffer.elements + 1, 0x55, np.uint8).repeat(numpy_dtype(buffer.dtype).itemsize)
    launch("draw", data, *kernels.draw_arguments(buffer, seed), quantiles(), NOTHING, shape=shape)
    size = buffer.size_bytes
    assert (data[size:] == 0x55).all()
    return data[:size].view(numpy_dtype(buffer.dtype))


def buffer(dtype: str, elements: int, spec: Fill, how: Compare | None = None) -> Buffer:
    return Buffer(
        name="x", dtype=dtype, elements=elements, role=Role.INOUT, fill=spec, compare=how or Compare(kind="equal")
    )


# --- drawing ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("shape", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [*DRAWN, "constant", "iota", "zeros"])
def test_every_fill_of_every_type_has_the_host_s_bits(launch: Launch, dtype: str, kind: str, shape: int) -> None:
    low, high = (-1.5, 2.25) if kind in ("uniform", "normal") and dtype.startswith(("float", "bfloat")) else (2, 100)
    if dtype == "bool":
        low, high = 0, 1
    for elements in (1, 7, 8, 33, 5003):
        each = buffer(dtype, elements, Fill(kind=kind, low=low, high=high))
        expected = fill(each, 3)
        np.testing.assert_array_equal(drawn(launch, each, 3, shape).view(np.uint8), expected.view(np.uint8))


@given(
    dtype=st.sampled_from([name for name in DTYPES if "int" in name]),
    bounds=st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1)),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None)
def test_any_range_of_integers(launch: Launch, dtype: str, bounds: tuple[int, int], seed: int) -> None:
    each = buffer(dtype, 40, Fill(kind="integers", low=min(bounds), high=max(bounds)))
    np.testing.assert_array_equal(drawn(launch, each, seed), fill(each, seed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_that_are_not_what_would_be_drawn_are_counted(launch: Launch, dtype: str) -> None:
    each = buffer(dtype, 1001, Fill(kind="integers", low=0, high=1))
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
    launch: Launch, case: tuple[str, Any], how: Compare, same: list[int], shape: int
) -> None:
    dtype, (reference, actual) = case
    reference, actual = reference.copy(), actual.copy()
    actual[same] = reference[same]
    each = buffer(dtype, 9, Fill(), how)
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


def test_many_threads_agree_on_the_first(launch: Launch) -> None:
    reference = np.zeros(10_000, np.float32)
    actual = reference.copy()
    actual[[77, 5000, 9999]] = 1e-3, 3.0, 2.0
    found = np.zeros(3, np.uint64)
    how = Compare(kind="close", atol=1e-2)
    launch("compare", reference, actual, *kernels.compare_arguments(10_000, "float32", how), found)
    assert (int(found[0]), ~int(found[1]) % 2**64, found[2:].view(np.float64)[0]) == (2, 5000, 300.0)


def test_bytes_in_guard_zones_are_counted(launch: Launch) -> None:
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
    each = buffer("float32", 5, Fill(kind="uniform"))
    place = (np.uint64(0),)
    for name, arguments in (
        ("draw", (*place, *kernels.draw_arguments(each, 0), *place, *place)),
        ("compare", (*place, *place, *kernels.compare_arguments(5, "int8", Compare()), *place)),
        ("guards", (*place, np.uint64(1), np.uint64(1), np.int32(1), *place)),
    ):
        (found,) = re.findall(rf"\.entry fusiond_{name}\((.*?)\)", text, re.S)
        assert [types[kind] for kind in re.findall(r"\.param \.(\w+)", found)] == [type(one) for one in arguments]
    assert "fma" not in text  # a contracted product would be rounded once where the host rounds twice
