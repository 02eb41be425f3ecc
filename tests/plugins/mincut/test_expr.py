"""Bodies against the C compiler: types and values of random expressions; and what is not an expression."""

import random
import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend import masks, syntax
from fusiond_mincut.frontend.expr import TypeProblem
from fusiond_mincut.frontend.graph import ImageKernel, PipelineImage
from fusiond_mincut.frontend.syntax import BodyScope

from . import oracle

SCOPE = BodyScope(
    images={
        "a": PipelineImage(name="a", dtype="uint8", channels=1),
        "b": PipelineImage(name="b", dtype="int32", channels=1),
        "c": PipelineImage(name="c", dtype="float32", channels=1),
    },
    masks={"ones": masks.checked("ones", ((1, None, 1),)), "plus": masks.checked("plus", ((0.5, 1.0, -2.0),))},
)
RGB = BodyScope(
    images={
        "p": PipelineImage(name="p", dtype="uint8", channels=3),
        "mean": PipelineImage(name="mean", dtype="int32", channels=1, single=True),
    },
    channels=3,
)
TYPES = {"i": "int32", "f": "float32", "d": "float64"}
VALUES = [
    (0, 0, 0.0), (255, -1, 0.5), (7, 2**31 - 1, -3.25), (200, -(2**31), 1e10), (13, -977, 123.456), (128, 65536, -1e-3),
]  # fmt: skip


def parsed(text: str, scope: BodyScope = SCOPE) -> tree.Expr:
    return syntax.parse(text, scope)


def value_of(text: str, at: tuple[int, int, float]) -> np.generic:
    """An expression's value by the oracle, for one pixel."""
    expression = parsed(text)
    images = {
        name: np.full((1, 1, 1), value, dtype)
        for name, value, dtype in zip("abc", at, ("uint8", "int32", "float32"), strict=True)
    }
    kernel = ImageKernel(name="k", pattern="point", bodies=(expression,), dtype="float32")
    with np.errstate(all="ignore"):
        found = oracle._value(expression, kernel, images, {}, (1, 1))
    return np.broadcast_to(found, (1, 1))[0, 0]


# --- against a C compiler -------------------------------------------------------------------------------


def drawn(draw: random.Random, depth: int, *, whole: bool) -> str:
    """A random C expression without undefined behaviour (under -fwrapv). `whole`: it must be an integer."""

    def inner(integer: bool = whole) -> str:
        return drawn(draw, depth - 1, whole=integer)

    if depth == 0:
        leaves = ["a", "b", "3", "0x1f", "'"] if whole else ["a", "b", "c", "7", "2.5f", "0.1", "1e3f"]
        return draw.choice([each for each in leaves if each != "'"])
    if whole:
        kinds = ("binary", "divide", "shift", "unary", "compare", "select", "cast", "logic")
    else:
        kinds = ("real", "binary", "unary", "select", "real_divide", "to_float", "whole")
    match draw.choice(kinds):
        case "binary":
            return f"({inner()} {draw.choice('+-*&|^' if whole else '+-*')} {inner()})"
        case "divide":
            return f"({inner()} {draw.choice('/%')} (({inner()} & 15) + 1))"
        case "shift":
            return f"({inner()} {draw.choice(('<<', '>>'))} {draw.randint(0, 31)})"
        case "unary":
            return f"({draw.choice('-~!' if whole else '-!')}{inner()})"
        case "compare":
            return f"({inner(False)} {draw.choice(tree.COMPARISONS)} {inner(False)})"
        case "logic":
            return f"({inner(False)} {draw.choice(tree.LOGICAL)} {inner(False)})"
        case "select":
            return f"({inner(False)} ? {inner()} : {inner()})"
        case "cast":
            return f"(uchar){inner()}"
        case "real_divide":
            return f"({inner()} / (float)({inner()}))"
        case "to_float":
            return f"({draw.choice(('float', 'double'))}){inner()}"
        case "whole":
            return inner(True)
    return f"{inner()} + {inner()} * {inner()}"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc as the oracle of C's arithmetic")
def test_types_and_values_are_those_of_the_c_compiler(tmp_path: Path) -> None:
    draw = random.Random(20)
    texts = [drawn(draw, draw.randint(1, 4), whole=draw.random() < 0.5) for _ in range(250)]
    lines = ["#include <stdio.h>", "#include <string.h>", "typedef unsigned char uchar;"]
    lines += ["typedef struct { unsigned char a; int b; float c; } At;", "static const At at[] = {"]
    lines += [f"  {{{a}, (int){b}LL, (float){c!r}}}," for a, b, c in VALUES]
    lines += ["};", "int main(void) {", "  for (unsigned i = 0; i < sizeof at / sizeof *at; ++i) {",
              "    uchar a = at[i].a; int b = at[i].b; float c = at[i].c; (void)a; (void)b; (void)c;"]  # fmt: skip
    for text in texts:
        kind = f"_Generic(({text}), int: 'i', float: 'f', double: 'd', uchar: 'u')"
        lines.append(f'    {{ double v = (double)({text}); unsigned long long u; memcpy(&u, &v, 8); '
                     f'printf("%c %llx\\n", {kind}, u); }}')  # fmt: skip
    lines += ["  }", "}"]
    source = tmp_path / "all.c"
    source.write_text("\n".join(lines))
    program = tmp_path / "all"
    subprocess.run(
        ["gcc", "-std=c17", "-O0", "-w", "-fwrapv", "-ffp-contract=off", str(source), "-o", str(program)], check=True
    )
    found = iter(subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.split("\n"))
    for at in VALUES:
        for text in texts:
            kind, bits = next(found).split()
            dtype = parsed(text).dtype
            assert dtype == {**TYPES, "u": "uint8"}[kind], text
            expected = struct.unpack("d", struct.pack("Q", int(bits, 16)))[0]
            assert np.array_equal(np.float64(value_of(text, at)), np.float64(expected), equal_nan=True), (text, at)


# --- what C leaves open ---------------------------------------------------------------------------------

LEAST = -(2**31)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("b / a", 0), ("b % a", 0), ("b / (b - b - 1)", LEAST), ("b % (b - b - 1)", 0), ("-b", LEAST),
        ("abs(b)", LEAST), ("b - 1", 2**31 - 1), ("b << (b - b + 33)", 0), ("1 << (a + 33)", 2),
        ("b >> (a + 32)", LEAST),
        ("int(c)", 2**31 - 1), ("int(-c)", LEAST), ("int(c - c + 300.7f)", 300), ("uchar(c - c + 300.7f)", 44),
        ("int((c - c) / (c - c))", 0), ("min((c - c) / (c - c), 2.0f)", 2.0), ("max(2.0f, (c - c) / (c - c))", 2.0),
        ("clamp(300, 0, 255)", 255), ("clamp(-3.5f, 0.0f, 1.0f)", 0.0), ("rint(2.5f)", 2.0),
    ],
)  # fmt: skip
def test_what_c_leaves_open_is_defined(text: str, expected: float) -> None:
    assert value_of(text, (0, LEAST, 3e38)) == expected


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("a", "uint8"), ("a + a", "int32"), ("+a", "int32"), ("-a", "int32"), ("a < c", "int32"), ("!c", "int32"),
        ("b * 0.5", "float64"), ("b * 0.5f", "float32"), ("a ? a : c", "float32"), ("sqrt(b)", "float64"),
        ("sqrt(c)", "float32"), ("pow(c, 2)", "float64"), ("min(a, b)", "int32"), ("abs(a)", "int32"),
        ("uchar(b)", "uint8"), ("(float)a", "float32"), ("sum(ones, a)", "int32"), ("sum(plus, a)", "float32"),
        ("largest(ones, a)", "int32"),
    ],
)  # fmt: skip
def test_types(text: str, dtype: str) -> None:
    assert parsed(text).dtype == dtype


def test_a_hole_is_no_access_and_a_window_shifts_what_it_holds() -> None:
    assert [(each.dx, each.dy) for each in tree.accesses(parsed("sum(ones, a[0, 2] * b)"))] == [
        (-1, 2), (-1, 0), (1, 2), (1, 0),
    ]  # fmt: skip


def test_a_name_of_let_keeps_its_value_inside_a_window() -> None:
    scope = BodyScope(images=SCOPE.images, masks=SCOPE.masks, locals={"centre": "int32"})
    found = syntax.parse("sum(ones, a - centre)", scope)
    assert sum(isinstance(each, tree.Local) for each in tree.walk(found)) == 2


def test_channels() -> None:
    (own, red) = tree.accesses(parsed("p * 2 + p.r[1, 0]", RGB))
    assert (own.channel, red.channel, red.dx) == (None, 0, 1)
    kernel = ImageKernel(
        name="k", pattern="local", mask=(3, 1), bodies=(parsed("p - p.r[1, 0]", RGB),), dtype="uint8", channels=3
    )
    assert [each.channel for each in tree.accesses(kernel.body(2))] == [2, 0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "an empty expression"),
        ("a +", "column 4: ends too early"),
        ("a b", "column 3: unexpected 'b'"),
        ("(a", "a ')' is missing"),
        ("a @ b", "column 3: unexpected '@'"),
        ("bb + 1", "unknown name 'bb'; did you mean 'b'?"),
        ("sqr(c)", "unknown function 'sqr'; did you mean 'sqrt'?"),
        ("a[1]", "a ',' is missing before ']'"),
        ("a[b, 0]", "column 3: img[dx, dy] has constant whole numbers as offsets"),
        ("a.g", "it has one channel"),
        ("b / 0", "column 3: / by the constant 0"),
        ("b << 32", "a shift by 32"),
        ("c % 2", "% needs integers, not float32 and int32"),
        ("~c", "~ needs an integer"),
        ("min(a)", "min takes 2 values, not 1"),
        ("3000000000", "does not fit int32"),
        ("1f", "is not a number"),
        ("9" * 5000, "a number of 5000 digits"),
        ("b * \u0663", "unexpected"),
        ("1e99f", "does not fit float32"),
        ("sum(a, b)", "sum runs over a mask, and 'a' is not one (there are: ones, plus)"),
        ("__import__(a)", "unknown function '__import__'"),
        ("a = 1", "column 3: unexpected '='"),
        ("(" * 100 + "a" + ")" * 100, "nested too deeply"),
        ("+".join(["a"] * 300), "more than 200 operations inside each other"),
        ("a" * 30_000, "longer than 20000 characters"),
    ],
)  # fmt: skip
def test_what_is_no_expression_is_one_clear_line(text: str, said: str) -> None:
    with pytest.raises(TypeProblem) as found:
        parsed(text)
    assert said in f"column {found.value.column}: {found.value}"
    assert len(str(found.value).splitlines()) == 1


@pytest.mark.parametrize(("text", "said"), [("p.x", "r, g and b"), ("mean[0, 0]", "mean is a single value")])
def test_what_is_wrong_with_channels_and_single_values(text: str, said: str) -> None:
    with pytest.raises(TypeProblem, match=re.escape(said)):
        parsed(text, RGB)


@given(st.text(alphabet="ab1.0f+-*/%<>&|^~!?:,()[]  xe", max_size=40))
def test_any_text_is_an_expression_or_one_line(text: str) -> None:
    try:
        parsed(text)
    except TypeProblem as problem:
        assert str(problem)
        assert len(str(problem).splitlines()) == 1
