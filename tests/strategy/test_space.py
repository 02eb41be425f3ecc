"""Space against brute force: the product of all values, filtered."""

import itertools
import math
import time
from collections import Counter
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fusiond.model.language import expressions
from fusiond.model.nouns import Config
from fusiond.strategy import space as space_module
from fusiond.strategy.space import Parameter, Space
from fusiond.tuning.search.columns import column, holds
from fusiond.tuning.search.points import Points

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
        parameters=(Parameter(name="kind", values=("tiled", "plain")),
                    Parameter(name="tile", values=(8, 16), when="kind == 'tiled'"),
                    Parameter(name="cap", values=("none", 32))),
        restrictions=("tile <= 8",),
    )  # fmt: skip
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


# --- the arrays of points against the space's own generator, which is against brute force (test_space) ---


SIX = Space(
    parameters=tuple(Parameter(name=name, values=tuple(range(1, 11))) for name in "abcdef"),
    restrictions=("a * b * c * d * e * f == 720",),
)


@given(spaces())
def test_all_points_are_those_of_the_space(space: Space) -> None:
    points = Points(space)
    found = [points.config(each) for each in points.all()]
    wanted = list(space.points())
    assert Counter(found) == Counter(wanted)
    assert points.count == len(wanted)
    assert [points.more_than(limit) for limit in (0, 1, 5, 100)] == [len(wanted) > limit for limit in (0, 1, 5, 100)]
    for row, config in zip(points.all(), found, strict=True):
        assert points.levels(config).tolist() == row.tolist()


@given(spaces(), st.integers(0, 3))
def test_neighbours_differ_in_one_parameter_that_both_have(space: Space, held: int) -> None:
    """Held and not: of what is not held, what is switched on is drawn, so that not all come."""
    everything = Points(space)
    points = Points(space, held=2 if held == 0 else 10**6)
    wanted = list(space.points())
    for point, config in zip(everything.all(), map(everything.config, everything.all()), strict=True):
        near = {points.config(each) for each in points.neighbours(point, np.random.default_rng(held), 10**6)}
        far = {
            other
            for other in wanted
            if sum(config[name] != other[name] for name in set(config) & set(other)) == 1
            and _block_alone(everything, config, other)
        }
        assert near <= far
        if held:
            assert near == far


def _block_alone(points: Points, one: Config, two: Config) -> bool:
    """Only one block differs."""
    rows = points.levels(one) != points.levels(two)
    return sum(rows[list(each.places)].any() for each in points._blocks) == 1


@pytest.mark.parametrize("held", [1, 10**6])
def test_draws_are_uniform(held: int) -> None:
    """Chi-square over the points of a conditional space with two blocks; the seed is fixed, so this cannot flake."""
    space = Space(
        parameters=(Parameter(name="kind", values=("tiled", "plain")),
                    Parameter(name="tile", values=(8, 16, 32), when="kind == 'tiled'"),
                    Parameter(name="unroll", values=(1, 2, 4, 8), when="tile > 8"),
                    Parameter(name="x", values=(1, 2, 3)), Parameter(name="y", values=(1, 2, 3))),
        restrictions=("unroll * tile <= 128", "x + y != 4"),
    )  # fmt: skip
    points = Points(space, held=held)
    assert points.held == (held > 1)
    drawn = Counter(points.config(each) for each in points.draw(20_000, np.random.default_rng(5)))
    assert set(drawn) == set(space.points())
    assert stats.chisquare(list(drawn.values())).pvalue > 0.01


def test_a_restriction_that_binds_late_is_enumerated_at_once() -> None:
    """product == 720 of 10^6, counted by the divisors of 720."""
    ways = {1: 1}
    for _ in range(6):
        longer: Counter[int] = Counter()
        for product, count in ways.items():
            for factor in range(1, 11):
                longer[product * factor] += count
        ways = longer
    begun = time.process_time()
    points = Points(SIX)
    assert points.count == ways[720]
    assert time.process_time() - begun < 1.0


def test_what_hangs_together_in_nothing_is_never_multiplied_out() -> None:
    names = [f"p{number}" for number in range(40)]
    space = Space(
        parameters=tuple(Parameter(name=name, values=(0, 1, 2)) for name in names),
        restrictions=tuple(f"{names[k]} != {names[k + 1]}" for k in range(0, 40, 2)),
    )
    points = Points(space)
    assert points.count == 6**20
    drawn = points.draw(1000, np.random.default_rng(1))
    assert all(space.problems(points.config(each)) == () for each in drawn[:50])
    assert len(points.neighbours(drawn[0], np.random.default_rng(1), 1000)) == 40


def test_a_block_that_is_not_held_is_drawn_from_all_the_same() -> None:
    points = Points(SIX, held=100)
    assert points.count is None
    drawn = points.draw(300, np.random.default_rng(1))
    assert all(math.prod(points.config(each).values()) == 720 for each in drawn)  # type: ignore[arg-type]
    with pytest.raises(MemoryError):
        points.all()


def test_listed_points_are_the_points() -> None:
    rows = ((0, 1), (1, -1), (1, 0))
    space = Space(parameters=(Parameter(name="a", values=(1, 2)), Parameter(name="b", values=("x", "y"))), listed=rows)
    configs = [{"a": 1, "b": "y"}, {"a": 2}, {"a": 2, "b": "x"}]
    assert [dict(each) for each in space.points()] == configs
    points = Points(space)
    assert sorted(map(str, map(points.config, points.all()))) == sorted(str(Config.of(each)) for each in configs)
    assert space.problems({"a": 1, "b": "y"}) == ()
    assert space.problems({"a": 1, "b": "x"}) == ("it is not one of the points that are listed",)


ATOMS = st.sampled_from(["a", "b", "c", "d", "e", "0", "1", "7", "'x'", "3000000000"])
TEXTS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(
            inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "<", "<=", "==", "!=", "and", "or"]), inner
        ).map(lambda each: f"({each[0]} {each[1]} {each[2]})"),
        inner.map(lambda each: f"(not ({each}))"),
        st.tuples(st.sampled_from(["min", "max", "ceil_div"]), inner, inner).map(
            lambda each: f"{each[0]}({each[1]}, {each[2]})"
        ),
    ),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.slow
@given(TEXTS)
@settings(max_examples=300)
def test_columns_say_what_the_scalar_evaluator_says(text: str) -> None:
    """Errors included: the message of the first row that is one."""
    expression = expressions.parse(text)
    values: dict[str, tuple[Any, ...]] = {
        "a": (0, 1, 5), "b": (-3, 2, 4_000_000_000), "c": ("x", 3, None), "d": (True, False, True), "e": (1, 1.5, 2),
    }  # fmt: skip
    rows = list(itertools.product(range(3), repeat=5))
    scalars = [
        {name: (str(v) if isinstance(v := values[name][k], float) else v) for name, k in zip("abcde", row, strict=True)}
        for row in rows
    ]
    wanted: list[bool] | str = []
    for each in scalars:
        try:
            wanted.append(expression.holds(each))  # type: ignore[union-attr]
        except expressions.ExpressionError as problem:
            wanted = str(problem)
            break
    chosen = np.array(rows)
    columns = {name: column(values[name])[chosen[:, k]] for k, name in enumerate("abcde") if name in expression.names}
    try:
        found: list[bool] | str = holds(expression, columns, len(rows)).tolist()
    except expressions.ExpressionError as problem:
        found = str(problem)
    assert found == wanted
