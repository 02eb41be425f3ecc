"""Content keys: equal content, equal key, in every process."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.model.keys import canonical, content_key, plain, text_key
from fusiond.model.nouns import Config
from fusiond.model.outcomes import Outcome

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_a_json_value_is_its_own_plain_form(value: object) -> None:
    assert plain(value) == value
    assert json.loads(canonical(value)) == value


def test_types_are_told_apart() -> None:
    values = [1, 1.0, True, "1", None, [1], {"1": 1}]
    assert len({content_key(each) for each in values}) == len(values)


def test_enums_dataclasses_tuples_and_sets() -> None:
    class Number(enum.Enum):
        ONE = 1

    @dataclass(frozen=True)
    class Point:
        x: int
        kind: Outcome

    assert plain(Number.ONE) == 1
    assert plain(Point(3, Outcome.MEASURED)) == {"x": 3, "kind": "measured"}
    assert type(plain(Outcome.MEASURED)) is str
    assert plain((1, (2, 3))) == [1, [2, 3]]
    assert plain({3, 1, 2}) == [1, 2, 3]
    assert canonical(frozenset({"b", "a"})) == '["a","b"]'


@pytest.mark.parametrize("value", [object(), b"bytes", 1j, Outcome, lambda: 0])
def test_what_has_no_one_form_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="no canonical form"):
        content_key(value)


def test_text_key_is_blake2b() -> None:
    assert text_key("") == "cae66941d9efbd404e4d88758ea67670"
    assert text_key("é") == text_key("é".encode())
    assert len(content_key([1, 2])) == 32


def test_keys_are_equal_in_another_process() -> None:
    code = (
        "from fusiond.model.nouns import Config; from fusiond.model.keys import content_key;"
        "print(Config.of({'b': 1, 'a': 'x', 'c': None}).key, content_key({'s': {'q', 'w', 'e', 'r', 't', 'y'}}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == [Config.of({"c": None, "a": "x", "b": 1}).key, content_key({"s": {"y", "t", "r", "e", "w", "q"}})]
