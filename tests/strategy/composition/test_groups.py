"""Which nodes become one: against all choices, with cycles looked for by networkx."""

import dataclasses
import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.model.language.extents import ceil_div, size, text_of
from fusiond.model.program import Buffer, Bytes, FillStep, Launch, Pointer, Program, Role, Scalar, Seam, Source
from fusiond.strategy.composition.fragments import Unfit, fragment
from fusiond.strategy.composition.groups import GroupCandidate, Pair, chosen, closes_cycle, independent, matching

NODES = "abcdefg"


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[str, str]]:
    return [pair for pair in itertools.combinations(NODES, 2) if draw(st.integers(0, 3)) == 0]


def contracted(groups: Iterable[frozenset[str]], edges: Sequence[tuple[str, str]]) -> networkx.DiGraph:
    home = {node: min(group) for group in groups for node in group}
    graph = networkx.DiGraph()
    graph.add_edges_from((home.get(a, a), home.get(b, b)) for a, b in edges)
    graph.remove_edges_from(list(networkx.selfloop_edges(graph)))
    return graph


def disjoint(groups: Sequence[frozenset[str]]) -> bool:
    return sum(map(len, groups)) == len(frozenset().union(*groups))


GROUPS = st.sets(st.frozensets(st.sampled_from(NODES), min_size=2, max_size=3), max_size=6).map(sorted)


@given(graphs(), st.lists(st.frozensets(st.sampled_from(NODES), min_size=2, max_size=3), max_size=3).filter(disjoint))
def test_a_cycle_is_a_cycle(edges: list[tuple[str, str]], groups: list[frozenset[str]]) -> None:
    cyclic = not networkx.is_directed_acyclic_graph(contracted(groups, edges))
    assert closes_cycle(groups, edges) is cyclic


@given(graphs(), st.permutations(NODES))
def test_independent_nodes_have_no_path(edges: list[tuple[str, str]], order: list[str]) -> None:
    graph = networkx.DiGraph(edges)
    graph.add_nodes_from(NODES)
    first, second = order[:2]
    apart = not networkx.has_path(graph, first, second) and not networkx.has_path(graph, second, first)
    assert independent(first, second, edges) is apart


@given(
    graphs(), st.lists(st.tuples(st.frozensets(st.sampled_from(NODES), min_size=2, max_size=3), st.integers(-5, 50)))
)
def test_what_is_chosen_can_be_done(edges: list[tuple[str, str]], given_: list[tuple[frozenset[str], int]]) -> None:
    candidates = [GroupCandidate(name=f"c{n}", nodes=nodes, saves=saves) for n, (nodes, saves) in enumerate(given_)]
    kept, cyclic = chosen(candidates, edges)
    assert disjoint([each.nodes for each in kept])
    assert all(each.saves > 0 for each in (*kept, *cyclic))
    assert networkx.is_directed_acyclic_graph(contracted([each.nodes for each in kept], edges))
    for each in cyclic:
        assert not networkx.is_directed_acyclic_graph(
            contracted([*(other.nodes for other in kept), each.nodes], edges)
        ) or not disjoint([each.nodes, *(other.nodes for other in kept)])
    assert chosen(reversed(candidates), edges) == (kept, cyclic)


@given(
    st.lists(st.tuples(st.frozensets(st.sampled_from(NODES), min_size=2, max_size=2), st.integers(1, 50)), max_size=7)
)
def test_pairs_save_most_together(given_: list[tuple[frozenset[str], int]]) -> None:
    """Against all sets of pairs."""
    candidates = [GroupCandidate(name=f"c{n}", nodes=nodes, saves=saves) for n, (nodes, saves) in enumerate(given_)]
    best = max(
        sum(each.saves for each in some)
        for count in range(len(candidates) + 1)
        for some in itertools.combinations(candidates, count)
        if disjoint([each.nodes for each in some])
    ) if candidates else 0  # fmt: skip
    kept, cyclic = chosen(candidates, ())
    assert sum(each.saves for each in kept) == best
    assert not cyclic


def test_two_pairs_that_wait_for_each_other() -> None:
    """With a before d and c before b, {a, b} and {c, d} cannot both be one: the better one is."""
    pairs = [
        GroupCandidate(name="ab", nodes=frozenset("ab"), saves=3),
        GroupCandidate(name="cd", nodes=frozenset("cd"), saves=5),
    ]
    kept, cyclic = chosen(pairs, [("a", "d"), ("c", "b")])
    assert [each.name for each in kept] == ["cd"]
    assert [each.name for each in cyclic] == ["ab"]


# --- pairs: the matching against every matching there is ---

LETTERS = "abcdefg"
SAVINGS = st.dictionaries(
    st.sampled_from(list(itertools.combinations(LETTERS, 2))), st.floats(-50, 200, allow_nan=False), max_size=21
)


def all_matchings(savings: Mapping[Pair, float]) -> list[tuple[Pair, ...]]:
    """Every set of pairs of which no two share a letter."""
    pairs = list(savings)
    found: list[tuple[Pair, ...]] = [()]
    for pair in pairs:
        found += [(*each, pair) for each in found if not set(pair) & set(itertools.chain(*each))]
    return found


def total(savings: Mapping[Pair, float], pairs: Iterable[Pair]) -> int:
    return sum(round(savings[pair] * 1000) for pair in pairs)


@given(savings=SAVINGS)
def test_no_matching_saves_more(savings: dict[Pair, float]) -> None:
    pairs = matching(savings)
    assert len(set(itertools.chain(*pairs))) == 2 * len(pairs)
    assert all(savings[pair] > 0 for pair in pairs)
    assert total(savings, pairs) == max(total(savings, each) for each in all_matchings(savings))


@given(savings=SAVINGS, seed=st.integers(0, 5))
def test_the_order_of_the_savings_does_not_matter(savings: dict[Pair, float], seed: int) -> None:
    shuffled = list(savings.items())
    random.Random(seed).shuffle(shuffled)
    assert matching(dict(shuffled)) == matching(savings)


def test_two_good_pairs_beat_the_best_one() -> None:
    savings = {("a", "b"): 30.0, ("b", "c"): 50.0, ("c", "d"): 40.0}
    assert matching(savings) == (("a", "b"), ("c", "d"))
    assert matching({**savings, ("b", "c"): 71.0}) == (("b", "c"),)
    assert matching({("a", "b"): 0.0, ("a", "c"): -3.0}) == ()


# --- A Program of one launch in somebody else's words, and every reason why one cannot be it ------------


X = Buffer(name="a.x", dtype="float32", elements=8, role=Role.INPUT)
Y = Buffer(name="a.y", dtype="float32", elements=8, role=Role.OUTPUT)
LAUNCH = Launch(
    name="k", source="s", entry="k", grid=(2, 1, 1), block=(4, 1, 1), stream=3,
    arguments=(Pointer(buffer="a.x"), Scalar(dtype="int32", value=8), Pointer(buffer="a.y"), Pointer(buffer="a.x")),
)  # fmt: skip
PROGRAM = Program(
    name="p", buffers=(X, Y), sources=(Source(name="s", text="...", entries=("k",)),), steps=(LAUNCH,)
)  # fmt: skip
NAMES = {"x": "photo", "y": "light"}
BYTES = {"photo": 32, "light": 32}


def test_a_launch_in_other_words() -> None:
    found = fragment(PROGRAM, NAMES, BYTES)
    assert (found.reads, found.writes) == (("photo",), ("light",))
    assert found.launch.arguments == (
        Pointer(buffer="photo"), Scalar(dtype="int32", value=8), Pointer(buffer="light"), Pointer(buffer="photo"),
    )  # fmt: skip
    assert (found.launch.grid, found.launch.stream, found.launch.after) == ((2, 1, 1), 0, ())
    assert fragment(PROGRAM, {"a.x": "photo", "a.y": "light"}, BYTES) == found


def test_numbers_follow_from_the_callers_sizes() -> None:
    """Of two sizes one is twice the caller's n, the other stands in the text."""
    rows, depth = size("a.rows", 8), size("a.depth", 3)
    launch = dataclasses.replace(
        LAUNCH, grid=(ceil_div(rows, 4), depth, 1), arguments=(*LAUNCH.arguments, Scalar(dtype="int32", value=rows + 1))
    )
    buffers = tuple(dataclasses.replace(each, elements=rows) for each in (X, Y))
    program = dataclasses.replace(
        PROGRAM, buffers=buffers, steps=(launch,), sizes=(("a.rows", 8), ("a.depth", 3)), fixed=("a.depth",)
    )
    n, d = size("n", 4), size("d", 3)
    found = fragment(program, NAMES, {"photo": 8 * n, "light": 8 * n}, {"a.rows": 2 * n, "a.depth": d})
    assert [text_of(each) for each in found.launch.grid] == ["ceil_div(2 * n, 4)", "d", "1"]
    last = found.launch.arguments[-1]
    assert isinstance(last, Scalar)
    assert isinstance(last.value, int)
    assert text_of(last.value) == "2 * n + 1"
    assert found.fixed == {"d"}
    assert fragment(program, NAMES, {"photo": 32, "light": 8 * n}, {"a.rows": 2 * n}).fixed == {"n"}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"steps": (LAUNCH, dataclasses.replace(LAUNCH, name="again"))}, "2 steps"),
        ({"steps": (FillStep(name="f", buffer="a.y", byte=0),)}, "1 steps"),
        ({"seams": (Seam(name="dot", operation="dot", reads=("a.x",), writes=("a.y",)),)}, "leaves dot to a library"),
        ({"buffers": (X, dataclasses.replace(Y, role=Role.INOUT))}, "uses a.y as inout"),
        ({"buffers": (X, dataclasses.replace(Y, role=Role.SCRATCH))}, "uses a.y as scratch"),
        ({"buffers": (X, dataclasses.replace(Y, elements=9))}, "a.y has 36 bytes, and light 32"),
        ({"buffers": (X, dataclasses.replace(Y, symbol="s:v"))}, "not plain device memory"),
        ({"steps": (dataclasses.replace(LAUNCH, arguments=(Bytes(hex="00"),)),)}, "passes a struct"),
    ],
)
def test_what_cannot_stand_for_kernels(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(Unfit, match=why):
        fragment(dataclasses.replace(PROGRAM, **changed), NAMES, BYTES)


def test_names_that_stand_for_nothing_and_for_both_sides() -> None:
    with pytest.raises(Unfit, match=r"a\.y, which stands for nothing"):
        fragment(PROGRAM, {"x": "photo"}, BYTES)
    with pytest.raises(Unfit, match="reads and writes photo"):
        fragment(PROGRAM, {"x": "photo", "y": "photo"}, BYTES)
