"""bfloat16 and floats of 8 bits as bits: conversions against ml_dtypes (JAX's), fills and comparisons."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.devices.compare import compare
from fusiond.model.inputs.fills import fill, initial, poison
from fusiond.model.language import narrow
from fusiond.model.program import Buffer, Compare, Fill, Role, default_compare

CLOSE = default_compare("bfloat16")
BFLOAT = narrow.NARROW["bfloat16"]
EIGHT = {"float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}


def buffer(kind: str = "zeros", elements: int = 1000, compare: Compare = CLOSE, **fill: float) -> Buffer:
    return Buffer(
        name="b",
        dtype="bfloat16",
        elements=elements,
        role=Role.OUTPUT,
        fill=Fill(kind=kind, **fill),  # type: ignore[arg-type]
        compare=compare,
    )


def test_every_value_there_and_back() -> None:
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    values = BFLOAT.values(bits)
    with np.errstate(invalid="ignore"):
        expected = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(values, expected)
    real = ~np.isnan(values)
    np.testing.assert_array_equal(BFLOAT.bits(values)[real], bits[real])
    assert set(BFLOAT.bits(values)[~real].tolist()) == {0x7FFF}


@given(st.lists(st.floats(width=32), max_size=50))
def test_floats_are_rounded_to_nearest_even(values: list[float]) -> None:
    x = np.array(values, np.float32)
    x = x[~np.isnan(x)]
    with np.errstate(over="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(BFLOAT.bits(x), expected)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 0.0), (0.99, 1.0), (-3.0, -2.0), (1.0, 1.004)])
def test_uniform_fills_stay_within_their_range(low: float, high: float) -> None:
    values = BFLOAT.values(fill(buffer("uniform", 20_000, low=low, high=high), 3))
    lowest = BFLOAT.values(BFLOAT.bits(np.array([low])))[0]
    assert values.min() >= min(lowest, low)
    assert values.max() < high
    assert values.mean() == pytest.approx((low + high) / 2, abs=0.01 * (high - low) + 0.004 * abs(high))


def test_other_fills() -> None:
    np.testing.assert_array_equal(fill(buffer(), 0), np.zeros(1000, np.uint16))
    np.testing.assert_array_equal(BFLOAT.values(fill(buffer("constant", 5, low=2.5), 0)), np.full(5, 2.5))
    np.testing.assert_array_equal(BFLOAT.values(fill(buffer("iota", 200), 0)), np.arange(200))
    drawn = BFLOAT.values(fill(buffer("integers", 5000, low=-3, high=4), 1))
    assert set(drawn.tolist()) == set(range(-3, 5))
    assert abs(BFLOAT.values(fill(buffer("normal", 20_000, low=1, high=2), 1)).mean() - 1) < 0.05


def test_poison_is_wrong_in_both_kinds() -> None:
    one, other = (BFLOAT.values(poison(buffer(), kind)) for kind in (0, 1))
    assert np.isnan(one).all()
    assert (other > 1e30).all()
    assert initial(buffer(), 0).dtype == np.uint16


def test_values_are_compared_and_not_bits() -> None:
    def bits(*values: float) -> np.ndarray:
        return BFLOAT.bits(np.array(values))

    def equal(a: np.ndarray, b: np.ndarray, how: Compare = CLOSE) -> bool:
        return compare(buffer(compare=how), a, b).equal

    assert equal(bits(1.0, np.nan, np.inf, 0.0), bits(1.0078125, np.nan, np.inf, -0.0))
    assert not equal(bits(1.0), bits(1.1))
    assert not equal(bits(1.0), bits(np.nan))
    assert not equal(bits(1.0), bits(1.0078125), Compare())
    assert equal(bits(0.0, np.nan), bits(-0.0, np.nan), Compare())
    found = compare(buffer(), bits(2.0, 1.0), bits(2.0, 3.0))
    assert found.detail == "b: 1 of 2 differ, first at [1]: 3.0 instead of 1.0"


# --- 8 bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", EIGHT)
def test_every_value_of_8_bits_there_and_back(dtype: str) -> None:
    bits = np.arange(256).astype(np.uint8)
    values = narrow.NARROW[dtype].values(bits)
    expected = bits.view(EIGHT[dtype]).astype(np.float32)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(np.signbit(values[~np.isnan(values)]), np.signbit(expected[~np.isnan(values)]))
    finite = np.isfinite(values)
    np.testing.assert_array_equal(narrow.NARROW[dtype].bits(values)[finite], bits[finite])


@pytest.mark.parametrize("dtype", EIGHT)
@given(
    st.lists(
        st.floats(width=32) | st.floats(-500, 500, width=32) | st.floats(-0.015625, 0.015625, width=32), max_size=50
    )
)
def test_8_bits_are_rounded_to_nearest_even_and_saturate(dtype: str, values: list[float]) -> None:
    x = np.array(values, np.float32)
    largest = float(ml_dtypes.finfo(EIGHT[dtype]).max)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = np.clip(x, -largest, largest).astype(EIGHT[dtype]).astype(np.float32)
    found = narrow.NARROW[dtype].values(narrow.NARROW[dtype].bits(x))
    np.testing.assert_array_equal(found, expected)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(expected[known]))


@pytest.mark.parametrize("dtype", EIGHT)
def test_8_bits_are_compared_as_what_they_are(dtype: str) -> None:
    made = Buffer(name="b", dtype=dtype, elements=4, role=Role.OUTPUT, compare=default_compare(dtype))
    of = narrow.NARROW[dtype].bits
    one = of(np.array([1.0, -0.0, np.nan, 100.0]))
    assert compare(made, one, of(np.array([1.0, 0.0, np.nan, 100.0]))).equal
    found = compare(made, one, of(np.array([1.0, 0.0, np.nan, 7.0])))
    assert not found.equal
    assert "first at [3]: 7.0 instead of" in found.detail
