"""Comparison of outputs against NumPy's allclose and array_equal."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fusiond.devices.compare import compare
from fusiond.model.program import EQUAL, Buffer, Compare, Role

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, 1.0 + 1e-5, -1.0, 65504.0, 6e-8]


def buffer(dtype: str, elements: int, rule: Compare) -> Buffer:
    return Buffer(name="out", dtype=dtype, elements=elements, role=Role.OUTPUT, compare=rule)


@given(
    st.sampled_from(["float16", "float32", "float64"]).flatmap(
        lambda dtype: hnp.arrays(
            dtype, (2, 6), elements=st.sampled_from(SPECIAL).map(lambda each: float(np.float16(each)))
            | st.floats(-1e4, 1e4, width=16),
        )
    ),
    st.sampled_from([0.0, 1e-6, 1e-2]),
    st.sampled_from([0.0, 1e-6, 1e-1]),
)  # fmt: skip
def test_close_is_allclose(arrays: np.ndarray, rtol: float, atol: float) -> None:
    reference, actual = arrays
    found = compare(buffer(str(arrays.dtype), 6, Compare(kind="close", rtol=rtol, atol=atol)), reference, actual)
    wanted = np.allclose(actual.astype(float), reference.astype(float), rtol=rtol, atol=atol, equal_nan=True)
    assert found.equal is bool(wanted)
    assert (found.worst <= 1.0) is found.equal
    assert (found.detail == "") is found.equal


@given(
    st.sampled_from(["bool", "int8", "uint32", "int64", "uint64", "float32"]).flatmap(
        lambda dtype: hnp.arrays(dtype, (2, 5), elements=st.sampled_from([0, 1, 100]) if dtype != "bool" else None)
    )
)
def test_equal_counts_what_differs(arrays: np.ndarray) -> None:
    reference, actual = arrays
    found = compare(buffer(str(arrays.dtype), 5, EQUAL), reference, actual)
    assert found.equal is np.array_equal(reference, actual)
    assert found.worst == np.count_nonzero(reference != actual)


def test_large_integers_are_not_compared_as_doubles() -> None:
    reference = np.array([2**62], np.int64)
    for rule in (EQUAL, Compare(kind="close", rtol=1e-3)):
        assert not compare(buffer("int64", 1, rule), reference, reference + 1).equal


def test_nan_equals_nan_and_nothing_else() -> None:
    nan, one = np.array([np.nan], np.float32), np.array([1.0], np.float32)
    for rule in (EQUAL, Compare(kind="close", rtol=1e30, atol=1e30)):
        assert compare(buffer("float32", 1, rule), nan, nan).equal
        assert not compare(buffer("float32", 1, rule), nan, one).equal
        assert not compare(buffer("float32", 1, rule), one, nan).equal


def test_an_infinity_equals_only_itself() -> None:
    rule = Compare(kind="close", rtol=1e30)
    inf, large = np.array([np.inf]), np.array([1e300])
    assert compare(buffer("float64", 1, rule), inf, inf).equal
    assert not compare(buffer("float64", 1, rule), inf, -inf).equal
    assert not compare(buffer("float64", 1, rule), inf, large).equal
    assert not compare(buffer("float64", 1, rule), large, inf).equal


def test_the_detail_names_buffer_place_and_both_values() -> None:
    reference = np.arange(5, dtype=np.int32)
    actual = reference.copy()
    actual[[2, 4]] = 9
    detail = compare(buffer("int32", 5, EQUAL), reference, actual).detail
    assert detail == "out: 2 of 5 differ, first at [2]: 9 instead of 2"


@pytest.mark.parametrize("other", [np.zeros(4, np.float32), np.zeros(5, np.float64)])
def test_another_shape_or_dtype_is_never_equal(other: np.ndarray) -> None:
    found = compare(buffer("float32", 5, EQUAL), np.zeros(5, np.float32), other)
    assert not found.equal
    assert found.worst == math.inf
