"""What buffers hold: drawn from seed and name, within bounds, and never the poison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from fusiond.errors import RequestError
from fusiond.fills import fill, initial, poison
from fusiond.keys import text_key
from fusiond.program import DTYPES as ALL_DTYPES
from fusiond.program import Buffer, Fill, Role

FLOATS = ("float16", "float32", "float64")
DTYPES = tuple(name for name in ALL_DTYPES if name != "bfloat16")  # which has tests of its own
INTEGERS = tuple(name for name in DTYPES if "int" in name)


def buffer(dtype: str = "float32", elements: int = 1000, role: Role = Role.INPUT, **spec: object) -> Buffer:
    return Buffer(name="x", dtype=dtype, elements=elements, role=role, fill=Fill(**spec))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["zeros", "constant", "iota", "integers"])
def test_shape_and_dtype_are_the_buffers(dtype: str, kind: str) -> None:
    data = fill(buffer(dtype, 100, kind=kind, low=0, high=1), 0)
    assert data.shape == (100,)
    assert data.dtype == np.dtype(dtype)
    if kind == "zeros":
        assert not data.any()
    if kind == "iota":
        np.testing.assert_array_equal(data, np.arange(100).astype(dtype))


@given(st.sampled_from(FLOATS), st.floats(-100, 100), st.floats(0.01, 100), st.integers(0, 2**32))
def test_uniform_is_half_open_in_every_float(dtype: str, low: float, width: float, seed: int) -> None:
    least, most = np.dtype(dtype).type(low), np.dtype(dtype).type(low + width)
    assume(least < most)  # else no value of this type lies between
    data = fill(buffer(dtype, 2000, kind="uniform", low=low, high=low + width), seed)
    assert data.min() >= least
    assert data.max() < most


def test_uniform_float16_never_rounds_up_to_its_bound() -> None:
    data = fill(buffer("float16", 200_000, kind="uniform", low=0, high=1), 0)
    assert data.max() < 1.0
    assert fill(buffer("float16", 1000, kind="uniform", low=3, high=3), 0).max() == 3.0


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_include_both_ends(dtype: str) -> None:
    data = fill(buffer(dtype, 1000, kind="integers", low=3, high=6), 1)
    assert set(data.tolist()) == {3, 4, 5, 6}


def test_distributions_are_what_they_are_called() -> None:
    normal = fill(buffer(elements=20_000, kind="normal", low=2.0, high=0.5), 0)
    uniform = fill(buffer(elements=20_000, kind="uniform", low=-1.0, high=3.0), 0)
    assert stats.kstest(normal, stats.norm(2.0, 0.5).cdf).pvalue > 1e-3
    assert stats.kstest(uniform, stats.uniform(-1.0, 4.0).cdf).pvalue > 1e-3


def test_equal_name_and_seed_give_equal_data_whatever_the_role() -> None:
    one = buffer(kind="uniform")
    other = Buffer(name="x", dtype="float32", elements=1000, role=Role.INOUT, fill=Fill(kind="uniform"), arena="a")
    np.testing.assert_array_equal(fill(one, 3), fill(other, 3))
    assert not np.array_equal(fill(one, 3), fill(one, 4))
    renamed = Buffer(name="y", dtype="float32", elements=1000, role=Role.INPUT, fill=Fill(kind="uniform"))
    assert abs(np.corrcoef(fill(one, 3), fill(renamed, 3))[0, 1]) < 0.2


@pytest.mark.parametrize("role", Role)
def test_only_what_is_read_is_filled(role: Role) -> None:
    each = buffer("int32", role=role, kind="constant", low=7)
    data = initial(each, 0)
    assert bool((data == 7).all()) is (role in (Role.INPUT, Role.INOUT))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("role", [Role.OUTPUT, Role.SCRATCH])
def test_poison_is_nothing_that_a_kernel_would_write(dtype: str, role: Role) -> None:
    for seed in (0, 1):
        data = poison(buffer(dtype, 10, role), seed)
        assert data.shape == (10,)
        assert data.dtype == np.dtype(dtype)
        if dtype in FLOATS and seed == 0:
            assert np.isnan(data).all()
        elif dtype != "bool":
            assert not (data == 0).any()
    kinds = [poison(buffer(dtype, 10, role), kind) for kind in (0, 1)]
    assert not (kinds[0] == kinds[1]).any()


def test_scratch_has_a_poison_that_a_maximum_swallows_and_one_that_it_does_not() -> None:
    each = buffer("float32", 4, Role.SCRATCH)
    assert np.isnan(poison(each, 0)).all()
    assert (poison(each, 1) > 1e30).all()


def test_a_file_must_fit(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(6, dtype=np.float32).reshape(2, 3))
    digest = text_key(path.read_bytes())
    data = fill(buffer("float32", 6, kind="file", file=str(path), digest=digest), 0)
    np.testing.assert_array_equal(data, np.arange(6, dtype=np.float32))
    part = fill(buffer("float32", 4, kind="file", file=str(path), digest=digest), 0)  # at odd sizes
    np.testing.assert_array_equal(part, np.arange(4, dtype=np.float32))
    for wrong in (buffer("float32", 7, kind="file", file=str(path)), buffer("int32", 6, kind="file", file=str(path))):
        with pytest.raises(RequestError, match="are wanted"):
            fill(wrong, 0)
    path.write_bytes(b"not numpy")
    with pytest.raises(RequestError, match="cannot read"):
        fill(buffer("float32", 6, kind="file", file=str(path)), 0)
    with pytest.raises(RequestError, match="cannot read"):
        fill(buffer("float32", 6, kind="file", file=str(tmp_path / "none.npy")), 0)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(RequestError, match="cannot read"):
        fill(buffer("float32", 1, kind="file", file=str(path)), 0)


def test_an_unknown_fill() -> None:
    with pytest.raises(RequestError, match="unknown fill 'magic'"):
        fill(buffer(kind="magic"), 0)
