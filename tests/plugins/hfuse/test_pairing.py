"""Whom to fuse with whom: the matching against every matching there is."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.model import Config
from fusiond_hfuse.analysis import pairing

LETTERS = "abcdefg"
SAVINGS = st.dictionaries(
    st.sampled_from(list(itertools.combinations(LETTERS, 2))), st.floats(-50, 200, allow_nan=False), max_size=21
)


def all_matchings(savings):
    """Every set of pairs of which no two share a letter."""
    pairs = list(savings)
    found = [()]
    for pair in pairs:
        found += [(*each, pair) for each in found if not set(pair) & set(itertools.chain(*each))]
    return found


def total(savings, pairs):
    return sum(round(savings[pair] * 1000) for pair in pairs)


@given(savings=SAVINGS)
def test_no_matching_saves_more(savings):
    chosen = pairing.matching(savings)
    assert len(set(itertools.chain(*chosen))) == 2 * len(chosen)
    assert all(savings[pair] > 0 for pair in chosen)
    assert total(savings, chosen) == max(total(savings, each) for each in all_matchings(savings))


@given(savings=SAVINGS, seed=st.integers(0, 5))
def test_the_order_of_the_savings_does_not_matter(savings, seed):
    shuffled = list(savings.items())
    random.Random(seed).shuffle(shuffled)
    assert pairing.matching(dict(shuffled)) == pairing.matching(savings)


def test_two_good_pairs_beat_the_best_one():
    savings = {("a", "b"): 30.0, ("b", "c"): 50.0, ("c", "d"): 40.0}
    assert pairing.matching(savings) == (("a", "b"), ("c", "d"))
    assert pairing.matching({**savings, ("b", "c"): 71.0}) == (("b", "c"),)
    assert pairing.matching({("a", "b"): 0.0, ("a", "c"): -3.0}) == ()


def test_groupings_are_written_one_way():
    assert pairing.written(["ca", "b"]) == "a+c|b"
    assert pairing.read("a+c|b", "abc") == ("ac", "b")
    assert pairing.with_rest([("c", "a")], "abcd") == "a+c|b|d"
    for wrong in ("c+a|b", "b|a+c", "a+c", "a+c|b|b", "a+c|b|d", "ac|b", "", "a+c||b"):
        with pytest.raises(ValueError, match="no grouping"):
            pairing.read(wrong, "abc")


def test_a_pairs_config_in_the_letters_of_the_group():
    config = Config.of({"kind": "horizontal", "threads.a": 512, "threads.b": 128, "order": "ba", "cap": 40})
    assert pairing.translated(config, ("d", "b")) == Config.of(
        {"kind": "horizontal", "threads.d": 512, "threads.b": 128, "order": "bd", "cap": 40}
    )
