"""YAML as a checked tree: whatever the text, a tree or one line that says where it is wrong."""

import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond.model.errors import RequestError
from fusiond.model.inputs import documents
from fusiond.model.inputs.documents import Node

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def assert_one_line(problem: Exception, start: str = "") -> None:
    assert len(str(problem).splitlines()) == 1
    assert str(problem).startswith(start)


def parse(text: str) -> Node:
    return documents.parse(text, "f.yaml")


@given(PLAIN)
def test_a_dumped_value_comes_back(value: object) -> None:
    text = yaml.safe_dump(value)
    assert parse(text).plain() == yaml.safe_load(text) == value


def test_every_value_knows_its_line_and_key() -> None:
    root = parse("a:\n  b: 1\n  c:\n    - 2\n    - {d: 3}\n")
    lines = dict(root.lines())
    assert lines == {"": 1, "a": 1, "a.b": 2, "a.c": 3, "a.c[0]": 4, "a.c[1]": 5, "a.c[1].d": 5}
    d = root.mapping()["a"].mapping()["c"].sequence()[1].mapping()["d"]
    assert str(d.fail("is wrong")) == "f.yaml:5: a.c[1].d: is wrong"
    assert parse("5").where == "f.yaml:1"


def test_dates_are_texts_and_keys_are_as_written() -> None:
    assert parse("{2020-01-02: 2020-01-02, on: yes, 1: 0x1F, 1.5: ~}").plain() == {
        "2020-01-02": "2020-01-02", "on": True, "1": 31, "1.5": None,
    }  # fmt: skip


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{right}: &{right} [{', '.join(['*' + left] * 9)}]\n" for left, right in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"), ("# only a comment", "is empty"), ("a: [1", "not YAML"), ("a: b: c", "not YAML"),
        ("\ta: 1", "not YAML"), ("a: 1\n---\nb: 2\n", "f.yaml:2: a second document begins here"),
        ("a: \x00", "not YAML"), ("a: *nobody", "not YAML"), ("a: 'open", "not YAML"),
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: the key 'a' stands twice"), ("a: {b: 1, b: 1}", "stands twice"),
        ("a: !!python/object/apply:os.system [ls]", "tag"), ("a: !mine 1", "tag"), ("a: !!set {x, y}", "tag"),
        ("a: !!omap [x: 1]", "tag"), ("a: !!binary aGk=", "tag"), ("!mine a: 1", "tag"), ("a: =", "tag"),
        ("a: &a {b: 1}\nc: {<<: *a, d: 2}\n", "merge"), ("a: <<", "tag"), ("? [a]\n: 1", "a key must be a text"),
        ("? {a: 1}\n: 1", "a key must be a text"), ("a: !!int x", "not a value"), ("a: !!int ''", "not a value"),
        ("a: !!float ''", "not a value"), ("a: !!bool perhaps", "not a value"), ("a: 0b_", "not a value"),
        ("a: " + "9" * 5000, "not a value"), ("a: &a [*a]", "too deep"), ("a: " + "[" * 60 + "]" * 60, "too deep"),
        ("a: " + "[" * 100_000, "too deep"), ("a: " + "{a: " * 5000, "too deep"),
        ("- " * 3000 + "x", "too deep|not YAML"), (BOMB, "more than 50000 values"),
        ("x" * 1_000_001, "larger than 1000 kB"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, problem: str) -> None:
    begun = time.monotonic()
    with pytest.raises(RequestError, match=problem) as caught:
        parse(text).plain()
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith("f.yaml")
    assert time.monotonic() - begun < 10


@given(st.text(max_size=60) | st.text(alphabet="ab:-[]{}&*!?|>'\"\n #<%@`,0123.~=", max_size=60))
@settings(max_examples=300)
def test_any_text_is_a_tree_or_one_line(text: str) -> None:
    try:
        root = parse(text)
        root.plain()
        list(root.lines())
    except RequestError as problem:
        assert_one_line(problem)


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML was built without libyaml")
@given(st.text(alphabet="ab:-[]{}&*?|>'\"\n #<%@`,0123.~=", max_size=60) | PLAIN.map(yaml.safe_dump))
@settings(max_examples=100)
def test_what_both_parsers_read_is_the_same(text: str) -> None:
    """But for a lone `!`: libyaml has it as YAML does, a text; PyYAML's own parser as nothing."""
    try:
        slow = documents._Converter("f.yaml").convert(yaml.compose(text, Loader=yaml.SafeLoader), "", 0)
        quick = documents._Converter("f.yaml").convert(documents._Quick(text).get_single_node(), "", 0)
    except (yaml.YAMLError, RequestError, AttributeError):  # AttributeError: an empty text
        return
    assert quick == slow


@given(PLAIN)
def test_typed_values_are_the_value_or_one_line(value: object) -> None:
    node = parse(yaml.safe_dump({"k": value})).mapping()["k"]
    for read, kind in (
        (node.text, str),
        (node.integer, int),
        (node.number, float),
        (node.mapping, dict),
        (node.sequence, tuple),
    ):
        try:
            assert type(read()) is kind  # type: ignore[operator]
        except RequestError as problem:
            assert_one_line(problem, "f.yaml:1: k: ")


def test_bounds() -> None:
    node = parse("5")
    assert node.integer(least=5, most=5) == 5
    with pytest.raises(RequestError, match="is 5; it must be at least 6"):
        node.integer(least=6)
    with pytest.raises(RequestError, match="it must be from 0 to 1"):
        node.number(least=0, most=1)
    for text in (".nan", ".inf", "-.inf"):
        with pytest.raises(RequestError, match="must be from"):
            parse(text).number(least=-1e300, most=1e300)
    with pytest.raises(RequestError, match="many digits"):
        parse("9" * 400).integer()
    with pytest.raises(RequestError, match="too large"):
        parse("9" * 400).number()
    with pytest.raises(RequestError, match="whole number"):
        parse("true").integer()


def test_mapping_and_choice() -> None:
    root = parse("trails: 3\nb: 1")
    with pytest.raises(RequestError, match=r"f.yaml:1: unknown key 'trails'; did you mean 'trials'\?"):
        root.mapping(known=("trials", "b"))
    with pytest.raises(RequestError, match="the key 'c' is missing"):
        root.mapping(required=("c",))
    with pytest.raises(RequestError, match="is 1; a text is wanted"):
        root.mapping()["b"].text()
    with pytest.raises(
        RequestError, match=r"f.yaml:1: is true or false, as on, off, yes and no are in YAML; .* in quotes"
    ):
        parse("on").text()
    with pytest.raises(RequestError, match="it can be x, y, z"):
        parse("w").choice("x", "y", "z")


def test_a_key_with_a_line_break_stays_on_one_line() -> None:
    node = parse('"a\\nb": x').mapping()["a\nb"]
    assert len(str(node.fail("is wrong")).splitlines()) == 1


def test_a_place_in_a_literal_block_has_its_own_line() -> None:
    text = "a: 1\nbody: |\n  x +\n    y * $\nplain: x + $\n"
    root = documents.parse(text, "f.yaml").mapping()
    column = root["body"].text().index("$") + 1
    problem = root["body"].fail_in("no such sign", column)
    assert str(problem) == "f.yaml:4: body: column 7: no such sign"
    assert str(root["plain"].fail_in("no such sign", 5)) == "f.yaml:5: plain: column 5: no such sign"
    assert root["body"].line == 2
