"""Where lanes meet: immediate post-dominators against networkx, over random programs."""

import random

import networkx
import pytest

from fusiond.model.ptx import flow


@pytest.mark.parametrize("seed", range(40))
def test_meeting_points_are_immediate_post_dominators(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 14)
    targets = [rng.randrange(count) if rng.random() < 0.4 else None for _ in range(count)]
    falls = [rng.random() < 0.85 for _ in range(count)]
    graph = networkx.DiGraph()  # of single instructions, backwards
    graph.add_node(count)
    for at in range(count):
        after = [] if targets[at] is None else [targets[at]]
        if falls[at] and at + 1 < count:
            after.append(at + 1)
        for each in after or [count]:
            graph.add_edge(each, at)
    expected = dict(networkx.immediate_dominators(graph, count))
    found = flow.meeting_points(targets, falls)
    for at in range(count):
        parts = targets[at] is not None and falls[at]
        meets = expected.get(at, count) if parts else count
        assert found[at] == (-1 if meets == count else meets)
