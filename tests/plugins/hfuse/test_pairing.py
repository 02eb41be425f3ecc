"""Groupings of kernels, and pairs out of a group."""

import pytest

from fusiond.model.nouns import Config
from fusiond_hfuse.analysis import pairing


def test_groupings_are_written_one_way():
    assert pairing.written(["ca", "b"]) == "a+c|b"
    assert pairing.read("a+c|b", "abc") == ("ac", "b")
    assert pairing.with_rest([("c", "a")], "abcd") == "a+c|b|d"
    for wrong in ("c+a|b", "b|a+c", "a+c", "a+c|b|b", "a+c|b|d", "ac|b", "", "a+c||b"):
        with pytest.raises(ValueError, match="is not a grouping"):
            pairing.read(wrong, "abc")


def test_a_pairs_config_in_the_letters_of_the_group():
    config = Config.of({"kind": "horizontal", "threads.a": 512, "threads.b": 128, "order": "ba", "cap": 40})
    assert pairing.translated(config, ("d", "b")) == Config.of(
        {"kind": "horizontal", "threads.d": 512, "threads.b": 128, "order": "bd", "cap": 40}
    )
    for pair, taker in ((("c", "b"), "c"), (("b", "a"), "b")):
        traded = Config.of({"taker": "a", "kept": 40, "threads.a": 128})
        assert pairing.translated(traded, pair) == Config.of({"taker": taker, "kept": 40, f"threads.{taker}": 128})
    assert pairing.translated(Config.of({"taker": "none"}), ("c", "b")) == Config.of({"taker": "none"})
