"""Index algebra against plain arithmetic, over all values of the variables."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond_stitching.analysis.indexing import Index, Quotient, Symbol, delinear, linear, number, symbol
from fusiond_stitching.codegen.scope import index_text

DIMS = st.lists(st.sampled_from([1, 2, 3, 4, 5, 6]), min_size=1, max_size=4).map(tuple)


def value(index: Index, of: dict[str, int]) -> int:
    total = index.constant
    for atom, coefficient in index.terms:
        if isinstance(atom, Symbol):
            total += coefficient * of[atom.name]
        else:
            inner = value(atom.of, of)
            total += coefficient * (inner // atom.divisor if isinstance(atom, Quotient) else inner % atom.divisor)
    return total


def shown(index: Index) -> str:
    def name(atom):
        return f"({shown(atom.of)} {'/' if isinstance(atom, Quotient) else '%'} {atom.divisor})"

    return index_text(index, name)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    factors=st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 9)),
    steps=st.lists(st.tuples(st.sampled_from("/%*+"), st.sampled_from([1, 2, 3, 4, 6, 12])), max_size=5),
)
def test_arithmetic(sizes, factors, steps):
    def run(a, b):
        found = first = a * factors[0] + b * factors[1] + factors[2]
        for operation, by in steps:
            if operation == "/":
                found = found // by
            elif operation == "%":
                found = found % by
            elif operation == "*":
                found = found * by + first % by
            else:
                found = (found // by) * by + found % by
        return found

    index = run(symbol("a", sizes[0]), symbol("b", sizes[1]))
    for a, b in itertools.product(range(sizes[0]), range(sizes[1])):
        wanted = run(a, b)
        assert value(index, {"a": a, "b": b}) == wanted, shown(index)
        assert index.low <= wanted <= index.high


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(dims=DIMS, seed=st.integers(0, 10**6))
def test_there_and_back(dims, seed):
    """An offset is itself again behind any chain of aligned reshapes; a shuffled one has the right value."""
    total = math.prod(dims)
    offset = symbol("t", total)
    assert linear(delinear(offset, dims), dims) == offset
    order = sorted(range(len(dims)), key=lambda at: hash((seed, at)))
    turned = tuple(dims[at] for at in order)
    indices = delinear(linear([delinear(offset, dims)[at] for at in order], turned), turned)
    for t in range(total):
        rest, wanted = t, []
        for size in reversed(dims):
            wanted.append(rest % size)
            rest //= size
        wanted.reverse()
        assert [value(each, {"t": t}) for each in indices] == [wanted[at] for at in order]


def test_what_is_read_stays_readable():
    block, t = symbol("block", 10), symbol("t", 50)
    row, column = delinear(block * 50 + t, (50, 10))
    assert shown(row) == "5 * block + (t / 10)"
    assert shown(column) == "(t % 10)"
    assert shown(row - block * 5) == "(t / 10)"
    assert shown(linear((row, column), (50, 10)) - block * 50) == "t"
    assert shown(number(3) - t) == "-t + 3"
    assert delinear(t, (5, 1, 10))[1] == number(0)
