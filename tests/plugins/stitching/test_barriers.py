"""Where barriers stand between stages that use the same shared memory."""

from __future__ import annotations

import pytest

from fusiond_stitching.analysis.barriers import Barriers
from fusiond_stitching.analysis.shared_memory import SharedBuffer

A, B, C = SharedBuffer("a", 64, 0, 1), SharedBuffer("b", 64, 1, 2), SharedBuffer("c", 64, 2, 3)


@pytest.mark.parametrize(
    ("own", "offset_of_c", "expected"),
    [
        (False, 128, [False, True, True]),  # each reads what other threads wrote
        (True, 128, [False, False, False]),  # each reads what its own threads wrote
        (True, 0, [False, False, True]),  # c lies where a does, which others may still read
        (True, 32, [False, False, True]),  # and so it is where they only overlap
    ],
)
def test_a_barrier_stands_before_what_others_wrote_or_still_read(own, offset_of_c, expected):
    barriers = Barriers({each.name: each for each in (A, B, C)}, {"a": 0, "b": 64, "c": offset_of_c})
    found = [
        barriers.before({}, ["a"], ["a"]),
        barriers.before({"a": own}, ["b"], ["b"]),
        barriers.before({"b": own}, ["c"], ["c"]),
    ]
    assert found == expected
