"""What is known of arguments: spans by NumPy's own bounds, overlaps by brute force; and options of compilers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.array_utils import byte_bounds

from fusiond.cuda.recording import arguments, groups
from fusiond.cuda.recording.arguments import Array
from fusiond.cuda.recording.origins import CompilerOptions


@given(st.data())
def test_a_span_is_what_numpy_says(data: st.DataObject) -> None:
    whole = np.zeros((6, 7, 3), np.int16)
    view = whole[tuple(data.draw(st.slices(length)) for length in whole.shape)]
    view = view.transpose(data.draw(st.permutations(range(3))))
    found = arguments.read(view, widen=False)
    assert isinstance(found, Array)
    if view.size:
        assert (found.low, found.high) == byte_bounds(view)
    else:
        assert found.size_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=7))
def test_overlaps_by_brute_force(spans: list[tuple[int, int, int, bool]]) -> None:
    made = [(Array("int8", low, low, low + length, "cpu"), launch, writes) for low, length, launch, writes in spans]
    wanted = {
        (min(one, other), max(one, other))
        for a, one, writes in made
        for b, other, writes_too in made
        if one != other and (writes or writes_too) and set(range(a.low, a.high)) & set(range(b.low, b.high))
    }
    found = arguments.overlap(made)
    assert (found in wanted) if wanted else found is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_asked_for_as_the_power_of_two_below_it(value: float) -> None:
    below = groups._below(value)
    assert np.sign(below) == np.sign(value)
    assert abs(below) <= abs(value) <= 2 * abs(below)
    assert value == 0 or np.frexp(abs(below))[0] == 0.5


@given(st.integers(-(2**63), 2**64 - 1))
def test_and_so_is_a_whole_one(value: int) -> None:
    below = groups._whole_below(value)
    assert abs(below) <= abs(value) < 2 * max(abs(below), 1)
    assert (below > 0) == (value > 0)
    assert below & -below == abs(below)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("-DX", "-D", "Y=2", "--define-macro=Z=a b"),
            CompilerOptions((("X", "1"), ("Y", "2"), ("Z", "a b")), (), (), ()),
        ),
        (("-Iinc", "-I", "/usr", "--include-path=x"), CompilerOptions((), ("inc", "/usr", "x"), (), ())),
        (("-std=c++17", "--use_fast_math", "-arch=sm_90", "-w"), CompilerOptions((), (), ("--use_fast_math",), ())),
        (("-dc", "-fmad=false"), CompilerOptions((), (), ("-fmad=false",), ("-dc",))),
    ],
)
def test_options(options: tuple[str, ...], told: Any) -> None:
    assert CompilerOptions.of(options) == told
