"""Minimum cuts against networkx and against all cuts there are."""

import itertools
import random

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond_mincut.analysis import cuts


def drawn(seed: int, count: int, edges: int, weights: tuple[float, ...]) -> dict[tuple[int, int], float]:
    """A connected graph."""
    draw = random.Random(seed)
    found = {(draw.randrange(vertex), vertex): draw.choice(weights) for vertex in range(1, count)}
    for _ in range(edges):
        first, second = sorted(draw.sample(range(count), 2))
        found[first, second] = draw.choice(weights)
    return found


def crossing(edges: dict[tuple[int, int], float], side: frozenset[int]) -> float:
    return sum(weight for (first, second), weight in edges.items() if (first in side) != (second in side))


@given(seed=st.integers(0, 10**6), count=st.integers(2, 8), extra=st.integers(0, 10))
def test_small_graphs_against_all_cuts(seed: int, count: int, extra: int) -> None:
    edges = drawn(seed, count, extra, (1.0, 1.0, 2.0, 328.0))
    cut = cuts.minimum_cut(cuts.graph(range(count), edges))
    sides = (frozenset(side) for size in range(1, count) for side in itertools.combinations(range(count), size))
    assert cut.weight == min(crossing(edges, side) for side in sides)
    assert crossing(edges, cut.side) == cut.weight
    assert 0 < len(cut.side) < count


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("weights", [(1.0,), (1.0, 1.0, 400.0), (1.0, 3.0, 5.0, 7.0)])
def test_larger_graphs_against_networkx(seed: int, weights: tuple[float, ...]) -> None:
    count = 26 + seed
    edges = drawn(seed, count, 3 * count, weights)
    given = cuts.graph(range(count), edges)
    graph = networkx.Graph()
    graph.add_weighted_edges_from((first, second, weight) for (first, second), weight in edges.items())
    expected, _ = networkx.stoer_wagner(graph)
    for cut in (cuts.minimum_cut(given), cuts.stoer_wagner(given)):
        assert cut.weight == expected
        assert crossing(edges, cut.side) == expected


@given(seed=st.integers(0, 10**6), count=st.integers(25, 60))
def test_large_trees_against_stoer_and_wagner(seed: int, count: int) -> None:
    edges = drawn(seed, count, 0, (1.0, 1.0, 2.0, 328.0))
    given = cuts.graph(range(count), edges)
    cut = cuts.minimum_cut(given)
    assert cut.weight == cuts.stoer_wagner(given).weight == crossing(edges, cut.side)
    assert 0 < len(cut.side) < count
