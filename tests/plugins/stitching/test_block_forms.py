"""Forms of the block number against their values, block by block."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond_stitching.analysis import block_forms
from fusiond_stitching.analysis.block_forms import Digit, Form, coordinate

MANY = settings(max_examples=200, deadline=None)


@st.composite
def forms(draw: st.DrawFn, blocks: int) -> Form:
    """A sum of a few coordinates: strides and parts that divide each other, and some that do not."""
    found = Form(draw(st.integers(-5, 5)))
    for _ in range(draw(st.integers(0, 3))):
        stride, parts = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12])), draw(st.sampled_from([1, 2, 3, 4, 6, 12]))
        found = found.plus(coordinate(stride, parts, blocks), draw(st.integers(-4, 12)))
    return found


@st.composite
def pairs(draw: st.DrawFn) -> tuple[int, Form, Form]:
    blocks = draw(st.integers(1, 50))
    return blocks, draw(forms(blocks)), draw(forms(blocks))


def values(form: Form, blocks: int) -> list[int]:
    return [form.at(block) for block in range(blocks)]


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 50))
@MANY
def test_a_coordinate_is_a_digit(stride, parts, blocks):
    assert values(coordinate(stride, parts, blocks), blocks) == [block // stride % parts for block in range(blocks)]


@pytest.mark.slow
@given(pairs(), st.integers(-6, 6))
@MANY
def test_sums_and_multiples(drawn, factor):
    blocks, first, second = drawn
    both = [mine + factor * yours for mine, yours in zip(values(first, blocks), values(second, blocks), strict=True)]
    assert values(first.plus(second, factor), blocks) == both
    assert values(first.times(factor), blocks) == [factor * each for each in values(first, blocks)]


@given(pairs())
@MANY
def test_bounds_hold(drawn):
    blocks, first, second = drawn
    for form in (first, first.plus(second)):
        assert form.low <= min(values(form, blocks))
        assert form.high >= max(values(form, blocks))
    lower, upper = block_forms.lower(first, second), block_forms.upper(first, second)
    for block in range(blocks):
        assert lower.at(block) <= min(first.at(block), second.at(block))
        assert upper.at(block) >= max(first.at(block), second.at(block))


@given(st.lists(st.integers(2, 5), min_size=1, max_size=4), st.data())
@MANY
def test_bounds_are_reached_in_a_mixed_radix_numbering(radices, data):
    blocks = math.prod(radices)
    form, stride = block_forms.ZERO, 1
    for parts in radices:
        form = form.plus(coordinate(stride, parts, blocks), data.draw(st.integers(-9, 9)))
        stride *= parts
    assert (form.low, form.high) == (min(values(form, blocks)), max(values(form, blocks)))


@given(st.lists(st.integers(2, 5), min_size=1, max_size=4), st.data())
@MANY
def test_equal_functions_are_equal_forms(radices, data):
    """Whichever way a numbering is cut into digits."""
    blocks = math.prod(radices)
    size = data.draw(st.integers(1, 7))
    whole, form, stride = block_forms.number(blocks).times(size), block_forms.ZERO, 1
    for parts in radices:
        form = form.plus(coordinate(stride, parts, blocks), size * stride)
        stride *= parts
    assert form == whole


@given(pairs(), st.integers(1, 12))
@MANY
def test_a_quotient_and_its_rest(drawn, divisor):
    blocks, dividend, _ = drawn
    quotient, rest = block_forms.divided(dividend, divisor)
    assert 0 <= rest.low < divisor
    for block in range(blocks):
        assert divisor * quotient.at(block) + rest.at(block) == dividend.at(block)
        if rest.high < divisor:
            assert quotient.at(block) == dividend.at(block) // divisor


def test_a_quotient_is_exact_where_parts_fall_into_rows():
    """24 elements in 12 parts, as rows of 4: two parts a row."""
    quotient, rest = block_forms.divided(coordinate(1, 12, 12).times(2), 4)
    assert quotient == coordinate(2, 6, 12)
    assert rest == coordinate(1, 2, 12).times(2)


def test_a_digit_is_cut_where_its_numbers_divide():
    assert Digit(2, 24, False).cut(8) == (Digit(2, 8, False), Digit(8, 24, False))
    assert Digit(2, 24, False).cut(10) is None  # 10 does not divide 24
    assert Digit(2, 24, True).cut(10) == (Digit(2, 10, False), Digit(10, 24, True))  # and need not at the top
    assert Digit(2, 24, True).cut(9) is None
