"""The expression language against Python's own arithmetic."""

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from fusiond.model.language import expressions
from fusiond.model.language.expressions import ExpressionError

SIZES = {"n": 17, "block.x": 128, "a.b.c": -3, "zero": 0, "label": "paper", "flag": True}
NUMBERS = [name for name, value in SIZES.items() if type(value) is int]


def ceil_div(left: int, right: int) -> int:
    return -(-left // right)


def exactly(left: int, right: int) -> int:
    if left % right:
        raise ZeroDivisionError
    return left // right


@st.composite
def trees(draw: st.DrawFn, depth: int = 4) -> tuple[str, str]:
    """(our text, the same in Python with every operator in parentheses)."""
    kind = draw(st.sampled_from(["atom", "atom", "negate", "binary", "call", "paren"] if depth else ["atom"]))
    if kind == "atom":
        if draw(st.booleans()):
            name = draw(st.sampled_from(NUMBERS))
            return name, f"names[{name!r}]"
        number = draw(st.integers(0, 1000))
        return str(number), str(number)
    if kind == "negate":
        text, python = draw(trees(depth - 1))
        return f"-({text})", f"(-{python})"
    if kind == "paren":
        text, python = draw(trees(depth - 1))
        return f"( {text} )", python
    (left, python_left), (right, python_right) = draw(trees(depth - 1)), draw(trees(depth - 1))
    if kind == "call":
        function = draw(st.sampled_from(["min", "max", "ceil_div"]))
        return f"{function}({left}, {right})", f"{function}({python_left}, {python_right})"
    operator = draw(st.sampled_from(["+", "-", "*", "/", "//", "%"]))
    if operator == "/":
        return f"({left}) / ({right})", f"exactly({python_left}, {python_right})"
    return f"({left}) {operator} ({right})", f"({python_left} {operator} {python_right})"


@pytest.mark.slow
@given(trees())
def test_agrees_with_python(tree: tuple[str, str]) -> None:
    text, python = tree
    expression = expressions.parse(text)
    scope = {"names": SIZES, "min": min, "max": max, "ceil_div": ceil_div, "exactly": exactly}
    try:
        wanted = eval(python, scope)
    except ZeroDivisionError:
        wanted = None
    try:
        found = expression.integer(SIZES)
    except ExpressionError as problem:
        text = str(problem)  # a value on the way may leave 64 bits, which Python does not mind
        event("no value")
    else:
        text = ""
        assert found == wanted
    assert (
        not text
        or "64 bits" in text
        or (wanted is None and ("division by zero" in text or "not a whole number" in text))
    )


@given(st.lists(st.tuples(st.sampled_from(["+", "-", "*", "//", "%"]), st.integers(1, 50)), min_size=1, max_size=12))
def test_precedence_and_associativity_are_pythons(parts: list[tuple[str, int]]) -> None:
    text = "7" + "".join(f" {operator} {number}" for operator, number in parts)
    assert expressions.parse(text).integer({}) == eval(text)


@pytest.mark.parametrize(
    "text",
    [
        "n < 18 and n > 16", "n <= 17 and not n == 18", "not n < 17 and not n > 17", "n == 18 or n != 18 and n == 17",
        "not (n == 17 and zero == 1)", "n == 1 or not zero == 1 and zero == 0", "- -n == 17", "n - 1 - 1 == 15",
        "-n // 2 == -9", "-(n) % 5 == 3", "16 < n <= 17 != 18", "16 < n < 17", "zero < 1 < n and not 1 < n < 2",
        "(n + 1) / 3 / 2 == 3",
    ],
)  # fmt: skip
def test_logic_is_pythons(text: str) -> None:
    assert expressions.parse(text).holds(SIZES) is eval(text, {}, {"n": 17, "zero": 0})


def test_and_does_not_look_at_what_cannot_matter() -> None:
    assert not expressions.parse("zero == 1 and 1 // zero == 1").holds(SIZES)
    assert expressions.parse("zero == 0 or 1 // zero == 1").holds(SIZES)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"), ("   ", "empty"), ("1 +", "ends too early"), ("(1", "missing"), ("1)", "unexpected"),
        ("1.5", "'1.' is not a number"), ("a..b", "unexpected"), ("a.", "unexpected"), ("'open", "unexpected"),
        ("x = 3", "unexpected"), ("1 < ", "ends too early"), ("pow(2, 3)", "unknown function"),
        ("ceil_div(1)", "takes 2 values, not 1"), ("ceil_div(1, 2, 3)", "takes 2 values, not 3"),
        ("min()", "unexpected"), ("and", "unexpected"), ("__import__('os')", "unknown function"),
        ("[1]", "unexpected"), ("a if b else c", "unexpected"), ("99999999999999999999", "64 bits"),
        ("\x00", "unexpected"),
        ("\u0663", "unexpected"),  # a digit, but not one of ours
        ("n" * 1001, "characters"), ("1" + "+1" * 400, "words and signs"), ("(" * 60 + "1" + ")" * 60, "too deep"),
        ("-" * 100 + "1", "too deep"), ("not " * 100 + "1", "too deep"),
    ],
)  # fmt: skip
def test_what_is_no_expression(text: str, problem: str) -> None:
    with pytest.raises(ExpressionError, match=problem) as caught:
        expressions.parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1 // zero", "division by zero"), ("1 % zero", "division by zero"),
        ("ceil_div(1, zero)", "division by zero"), ("missing + 1", "'missing' has no value"),
        ("label + 1", "not a whole number"), ("flag + 1", "not a whole number"), ("label < 1", "not a whole number"),
        ("n and flag", "not true or false"), ("not n", "not true or false"), ("9223372036854775807 + 1", "64 bits"),
        ("-9223372036854775807 - 2", "64 bits"), ("n == 17", "not an integer"),
        ("n / 2", "17 / 2 is not a whole number; use // to round down"), ("1 / zero", "division by zero"),
        ("label", "not an integer"),
    ],
)  # fmt: skip
def test_what_has_no_value(text: str, problem: str) -> None:
    with pytest.raises(ExpressionError, match=problem):
        expressions.parse(text).integer(SIZES)


def test_holds_wants_a_truth_value() -> None:
    with pytest.raises(ExpressionError, match="not true or false"):
        expressions.parse("n").holds(SIZES)


def test_the_largest_expression_does_not_exhaust_the_stack() -> None:
    chain = expressions.parse("+".join(["n"] * 125))
    assert chain.integer({"n": 2}) == 250
    assert chain.names == {"n"}
    nested = expressions.parse("(" * 50 + "+".join(["n"] * 75) + ")" * 50)
    assert nested.integer({"n": 1}) == 75


@given(st.text(alphabet="n1 +-*/%()<>=!,.'\"\n\tandornotmix", max_size=40) | st.text(max_size=40))
def test_any_text_is_an_expression_or_an_error_of_one_line(text: str) -> None:
    message = "a value"
    try:
        expressions.parse(text).value({"n": 3, "a": "x"})
    except ExpressionError as problem:
        message = str(problem)
    assert len(message.splitlines()) == 1


@given(
    st.lists(st.integers(-3, 3), min_size=2, max_size=5),
    st.lists(st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), min_size=4, max_size=4),
)
def test_chains_of_comparisons_are_pythons(numbers: list[int], signs: list[str]) -> None:
    text = str(numbers[0]) + "".join(f" {sign} {number}" for sign, number in zip(signs, numbers[1:], strict=False))
    assert expressions.parse(text).holds({}) is eval(text)
