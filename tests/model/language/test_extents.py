"""Extents: their arithmetic is that of ints, and their expressions say the same at every size."""

from __future__ import annotations

import dataclasses
import json
import operator
import pickle
from collections.abc import Callable, Mapping
from typing import TypeAlias

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fusiond.model.language import expressions
from fusiond.model.language.extents import Extent, ceil_div, least, most, size, text_of
from fusiond.model.program import (
    Buffer,
    Bytes,
    Fill,
    Launch,
    Pointer,
    Program,
    Role,
    Scalar,
    SizeError,
    Source,
    decode,
    encode,
    problems,
    sized,
    unsized,
)

NAMES = ("n", "hist.n", "a.bins", "width_2")
VALUES = st.fixed_dictionaries({name: st.integers(1, 10_000) for name in NAMES})
Tree: TypeAlias = Callable[[Mapping[str, int]], int]
OPERATORS: Mapping[str, Callable[..., int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "ceil_div": ceil_div, "least": least, "most": most,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Node:
    """A random expression, to be worked out with ints or with Extents."""

    operator: str
    operands: tuple[Node | str | int, ...]

    def value(self, names: Mapping[str, int]) -> int:
        values = [_value(each, names) for each in self.operands]
        return -values[0] if self.operator == "negate" else OPERATORS[self.operator](*values)


def _value(node: Node | str | int, names: Mapping[str, int]) -> int:
    if isinstance(node, Node):
        return node.value(names)
    return names[node] if isinstance(node, str) else node


def nodes() -> st.SearchStrategy[Node]:
    leaves = st.one_of(st.sampled_from(NAMES), st.integers(-300, 300))

    def larger(inner: st.SearchStrategy[Node | str | int]) -> st.SearchStrategy[Node | str | int]:
        two = st.builds(Node, st.sampled_from([each for each in OPERATORS if each not in ("least", "most")]),
                        st.tuples(inner, inner))  # fmt: skip
        some = st.builds(Node, st.sampled_from(["least", "most"]), st.lists(inner, min_size=1, max_size=3).map(tuple))
        return st.one_of(two, some, st.builds(lambda each: Node("negate", (each,)), inner))

    return st.recursive(leaves, larger, max_leaves=12).filter(lambda each: isinstance(each, Node))  # type: ignore[return-value]


def extents(values: Mapping[str, int]) -> dict[str, int]:
    return {name: size(name, value) for name, value in values.items()}


def worked_out(node: Node, names: Mapping[str, int]) -> int | None:
    """None where it is nothing: a division by zero."""
    try:
        return node.value(names)
    except ZeroDivisionError:
        return None


@given(nodes(), VALUES, VALUES)
def test_an_expression_of_extents_says_what_ints_are_at_other_sizes(node, here, there):
    plain, other = worked_out(node, here), worked_out(node, there)
    assume(plain is not None and other is not None and abs(plain) < 2**60 and abs(other) < 2**60)
    found = worked_out(node, extents(here))
    assert found == plain
    try:
        parsed = expressions.parse_formula(text_of(found))
        moved = parsed.integer(there)
        again = parsed.integer(extents(there))
    except expressions.ExpressionError as problem:  # a number on the way that is too large
        assume("64 bits" not in str(problem) and "at most" not in str(problem) and "deeply" not in str(problem))
        raise
    assert moved == other
    assert again == other
    assert expressions.parse_formula(text_of(again)).integer(here) == plain


@given(nodes(), VALUES)
def test_what_has_no_size_in_it_is_a_plain_number(node, values):
    plain = worked_out(node, values)
    assume(plain is not None)
    assert type(node.value(values)) is int
    found = node.value(extents(values))
    if not isinstance(found, Extent):
        assert worked_out(node, dict.fromkeys(NAMES, 7)) in (found, None)


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(-5, 5)), max_size=30), VALUES)
def test_terms_fold(terms, values):
    """A sum of many multiples is as long as there are names in it."""
    names = extents(values)
    total = 0
    for name, count in terms:
        total = total + count * names[name]
    assert total == sum(count * values[name] for name, count in terms)
    left = {name for name in NAMES if sum(count for each, count in terms if each == name)}
    assert len(total.terms if isinstance(total, Extent) else ()) == len(left)
    assert text_of(total - total) == "0"


def test_it_is_an_int_for_everybody_else():
    n = 2 * size("n", 5) + 1
    assert (n, hash(n), f"{n}", json.dumps([n]), {11: "x"}[n]) == (11, hash(11), "11", "[11]", "x")
    copied = pickle.loads(pickle.dumps(n))
    assert (copied, text_of(copied)) == (11, "2 * n + 1")


# --- Programs -------------------------------------------------------------------------------------------


def program(n: int = 1000, m: int = 3, *, fixed: tuple[str, ...] = ()) -> Program:
    a, b = size("k.n", n), size("m", m)
    made = Program(
        name="p",
        buffers=(
            Buffer(name="x", dtype="float32", elements=a, role=Role.INPUT, fill=Fill(kind="iota"), arena="all"),
            Buffer(name="y", dtype="float32", elements=a * b, role=Role.OUTPUT, arena="all",
                   offset_bytes=ceil_div(4 * a, 256) * 256),
        ),
        sources=(Source(name="s", text="...", entries=("k",)),),
        steps=(
            Launch(
                name="k", source="s", entry="k", grid=(ceil_div(a, 128), b, 1), block=(128, 1, 1), shared_bytes=4 * b,
                arguments=(Pointer(buffer="x"), Pointer(buffer="y"), Scalar(dtype="int32", value=a - 1),
                           Scalar(dtype="float32", value=b),
                           Bytes(hex="00" * 16, numbers=((0, "int32", a), (8, "float64", b + 1)))),
            ),
        ),
    )  # fmt: skip
    return sized(made, {"k.n": n, "m": m}, fixed)


@given(st.integers(1, 10**6), st.integers(1, 50), st.sampled_from([(), ("m",), ("k.n",), ("m", "k.n")]))
def test_a_program_at_other_sizes_is_the_one_that_is_made_there(n, m, fixed):
    here = program(fixed=fixed)
    assert problems(here) == ()
    sizes = {"k.n": 1000 if "k.n" in fixed else n, "m": 3 if "m" in fixed else m}
    there = here.at(sizes)
    assert there.key == program(sizes["k.n"], sizes["m"], fixed=fixed).key
    assert there.at({"k.n": 1000, "m": 3}).key == here.key
    assert unsized(there).work_key == there.work_key


def test_it_comes_back_from_its_json_with_its_formulas():
    here = program()
    again = decode(json.loads(json.dumps(encode(here))))
    assert again.key == here.key
    assert encode(again)["formulas"] == encode(here)["formulas"] != {}
    assert again.at({"k.n": 77}).key == here.at({"k.n": 77}).key == program(77).key


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"n": 5}, "there is no size 'n'; there are k.n, m"),
        ({"m": 4}, "m is 3 in the source itself; it cannot be 4"),
        ({"k.n": 0}, "k.n is 0; a size is from 1"),
        ({"k.n": 2**40}, "not of type int32 at k.n=1099511627776, m=3"),
        ({"k.n": 2**62}, "does not fit 64 bits at k.n=4611686018427387904, m=3"),
    ],
)
def test_why_a_program_cannot_be_moved(sizes, said):
    with pytest.raises(SizeError) as caught:
        program(fixed=("m",)).at(sizes)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_formula_too_long_to_be_read_again_fixes_its_sizes():
    n, m, rest = size("n", 10), size("m", 4), size("rest", 5)
    long = n
    for _ in range(30):
        long = (long // 3 + m) * (n % 7 + 2)
    base = program()
    buffers = (dataclasses.replace(base.buffers[0], elements=n * 0 + 9, arena=None),
               dataclasses.replace(base.buffers[1], elements=rest, arena=None, offset_bytes=0))  # fmt: skip
    launch = dataclasses.replace(
        base.steps[0], grid=(1, 1, 1), shared_bytes=0,
        arguments=(Scalar(dtype="int64", value=long % 1000), Scalar(dtype="int32", value=m),
                   Scalar(dtype="int32", value=rest)),
    )  # fmt: skip
    made = dataclasses.replace(base, buffers=buffers, steps=(launch,), sizes=(), fixed=())
    found = sized(made, {"n": 10, "m": 4, "rest": 5, "mm": 1})
    assert found.fixed == ("m", "n")
    assert problems(found) == ()
    assert found.at({"rest": 8, "mm": 2}).buffer("y").elements == 8
