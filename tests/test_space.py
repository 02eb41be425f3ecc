"""Space against brute force: the product of all values, filtered."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.model.nouns import Config
from fusiond.strategy import space as space_module
from fusiond.strategy.space import Parameter, Space

CONDITIONS = ("a == 1", "a > 0 and b == 'x'", "b != 'y'", "c == 2")
RESTRICTIONS = ("a + c <= 3", "b == 'x' or a == 0", "d >= c", "not (a == 2 and c == 1)")


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    whens = [None, None, draw(st.sampled_from([None, *CONDITIONS[:3]])), draw(st.sampled_from([None, *CONDITIONS]))]
    values: list[tuple[Any, ...]] = [
        tuple(range(draw(st.integers(1, 3)))),
        draw(st.sampled_from([("x",), ("x", "y"), ("y", "x", "z")])),
        tuple(range(draw(st.integers(1, 3)))),
        tuple(range(draw(st.integers(1, 4)))),
    ]
    return Space(
        parameters=tuple(
            Parameter(name=name, values=each, when=when) for name, each, when in zip("abcd", values, whens, strict=True)
        ),
        restrictions=tuple(draw(st.sets(st.sampled_from(RESTRICTIONS)))),
    )


def evaluate(text: str, chosen: dict[str, Any]) -> bool:
    return bool(eval(text, {}, chosen))


def mentioned(text: str) -> set[str]:
    return set("abcd") & set(compile(text, "", "eval").co_names)


def brute_force(space: Space) -> list[dict[str, Any]]:
    """Every combination; a parameter whose condition fails, or speaks of an absent one, falls away."""
    found = []
    for values in itertools.product(*(each.values for each in space.parameters)):
        chosen: dict[str, Any] = {}
        for parameter, value in zip(space.parameters, values, strict=True):
            when = parameter.when
            if when is None or (mentioned(when) <= set(chosen) and evaluate(when, chosen)):
                chosen[parameter.name] = value
        applies = [text for text in space.restrictions if mentioned(text) <= set(chosen)]
        if all(evaluate(text, chosen) for text in applies) and chosen not in found:
            found.append(chosen)
    return found


@given(spaces())
def test_points_are_the_filtered_product_in_its_order(space: Space) -> None:
    points = [dict(each) for each in space.points()]
    assert points == [dict(sorted(each.items())) for each in brute_force(space)]
    assert len({Config.of(each).key for each in points}) == len(points)
    for merged in (space_module.MERGED, 1, 0):  # then more and more is walked
        with mock.patch.object(space_module, "MERGED", merged):
            assert space.count() == len(points)
            assert space.count(limit=2) == min(2, len(points))


@given(spaces(), st.data())
def test_problems_knows_exactly_the_points(space: Space, data: st.DataObject) -> None:
    points = brute_force(space)
    for point in points:
        assert space.problems(point) == ()
    names = data.draw(st.sets(st.sampled_from("abcde")))
    values = {name: data.draw(st.sampled_from([0, 1, 2, 3, "x", "y", "z", True, 1.0, None])) for name in names}
    strictly = [{name: (type(value), value) for name, value in point.items()} for point in points]
    assert (space.problems(values) == ()) == ({n: (type(v), v) for n, v in values.items()} in strictly)


def test_count_merges_beginnings_that_differ_in_nothing_that_is_named_later() -> None:
    """2^59 beginnings, half of which go on in two ways; and True is no 1, 1 no 1.0."""
    free = tuple(Parameter(name=f"p{k:02}", values=(0, 1)) for k in range(59))
    late = Parameter(name="z", values=(0, 1), when="p00 + p58 == 1")
    assert Space(parameters=(*free, late)).count(limit=2**70) == 2**58 + 2 * 2**58
    mixed = Parameter(name="a", values=(True, 1, 1.0, "1"))
    tied = Space(parameters=(mixed, Parameter(name="b", values=(1, 2))), restrictions=("a == 1 or b == 2",))
    assert tied.count() == len(list(tied.points()))


@pytest.mark.slow
def test_two_thousand_parameters_are_no_deeper_than_two() -> None:
    """A pipeline of a thousand kernels has as many."""
    parameters = tuple(Parameter(name=f"p{k:04}", values=("first", "second")) for k in range(2000))
    space = Space(parameters=parameters, restrictions=("p0001 == p1999",))
    one, two = itertools.islice(space.points(), 2)
    assert len(one) == 2000
    assert set(one.values()) == {"first"}
    assert [name for name in one if one[name] != two[name]] == ["p1998"]
    assert space.count(limit=1000) == 1000
    assert Space(parameters=parameters[:9], restrictions=("p0001 == p0008",)).count() == 2**8


def test_problems_are_explained() -> None:
    space = Space(
        parameters=(
            Parameter(name="kind", values=("tiled", "plain")),
            Parameter(name="tile", values=(8, 16), when="kind == 'tiled'"),
            Parameter(name="cap", values=("none", 32)),
        ),
        restrictions=("tile <= 8",),
    )
    assert space.problems({"kind": "plain", "cap": 32}) == ()
    assert space.problems({"kind": "plain", "tile": 8, "cap": 32}) == ("tile does not apply unless kind == 'tiled'",)
    assert space.problems({"kind": "tiled", "tile": 16, "cap": "none"}) == ("tile <= 8 does not hold",)
    assert space.problems({"kind": "tiled", "tile": 8}) == ("cap is missing",)
    assert space.problems({"kind": "tiled", "tile": 8, "cap": "32"}) == ("cap is '32'; it can be none, 32",)
    assert space.problems({"kind": "plain", "cap": 32, "zzz": 1}) == ("there is no parameter 'zzz'",)


def test_hash_is_of_the_content() -> None:
    one = Space(parameters=(Parameter(name="a", values=(1, 2)),))
    same = Space(parameters=(Parameter(name="a", values=(1, 2)),))
    assert one.hash == same.hash
    others = [
        Space(parameters=(Parameter(name="a", values=(2, 1)),)),
        Space(parameters=(Parameter(name="a", values=(1, 2), when="b == 1"),)),
        Space(parameters=(Parameter(name="a", values=(1, 2)),), restrictions=("a == 1",)),
    ]
    assert len({one.hash, *(each.hash for each in others)}) == 4


@pytest.mark.timeout(20)
def test_a_restriction_prunes_as_soon_as_its_names_are_chosen() -> None:
    names = [f"p{number}" for number in range(40)]
    space = Space(
        parameters=tuple(Parameter(name=name, values=(0, 1)) for name in names),
        restrictions=tuple(f"{name} == 0" for name in names),
    )
    assert space.count() == 1
