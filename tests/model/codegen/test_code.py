"""Generated C++: what is read is known, what is unused goes, and numbers are exact, as g++ reads them."""

import ctypes
import math
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond.model.codegen.code import Code, bare, call, cpp, filled, hole, joined, name
from fusiond.model.codegen.literals import literal
from fusiond.model.codegen.operators import PRECEDENCE, Term, atom, binary, cast, choice, prefix
from fusiond.model.codegen.statements import Block, Declaration, Statements, folded, function, wrapped


def test_code_knows_what_it_reads_and_needs() -> None:
    x, y = name("x"), name("y")
    half = call("__half2float", cpp("{}[{}]", "in_0", y)).needing("cuda_fp16.h")
    whole = cpp("{} + {} * {}", x, 3, half)
    assert whole == "x + 3 * __half2float(in_0[y])"
    assert whole.reads == {"x", "y"}
    assert whole.headers == {"cuda_fp16.h"}
    assert joined(" && ", [x, "true"]).reads == {"x"}
    assert cpp("{{ {0}, {0} }}", x) == "{ x, x }"
    assert type(f"{x}") is str, "an f-string forgets what it reads"


def test_holes_are_filled_when_all_is_known() -> None:
    text = cpp("{}[{}] = {}[0];", hole("out"), name("i"), hole("in"))
    assert text.reads == {"out", "in", "i"}
    assert filled(text, {"out": "b1", "in": "b0"}.__getitem__) == "b1[i] = b0[0];"
    assert filled("nothing to fill", str) == "nothing to fill"


@pytest.mark.parametrize(
    ("text", "expected"), [("(a + b)", "a + b"), ("(a) + (b)", "(a) + (b)"), ("f(a)", "f(a)"), ("((a))", "(a)")]
)
def test_bare_takes_away_one_pair_that_encloses_all(text: str, expected: str) -> None:
    assert bare(Code(text, ("a",))) == expected
    assert bare(Code(text, ("a",))).reads == {"a"}


def test_statements_are_printed_with_their_blocks() -> None:
    body = Statements()
    i = body.declare("int", "i", "threadIdx.x")
    inner = body.block(cpp("if ({} < 7)", i), end=None)
    inner.line(cpp("y[{}] = 0;", i))
    inner.line("#pragma unroll")
    body.block("} else").comment("nothing")
    assert [line.strip() for line in body.printed(comments=False)][-2:] == ["} else {", "}"]
    text = function("__device__ void f", ["float* y", "int n"], body)
    assert text == (
        "__device__ void f(float* y, int n)\n{\n    const int i = threadIdx.x;\n    if (i < 7) {\n"
        "        y[i] = 0;\n#pragma unroll\n    } else {\n        // nothing\n    }\n}\n"
    )


def test_long_lists_are_broken() -> None:
    text = wrapped(tuple(f"int parameter_{k}" for k in range(30)), column=20)
    assert max(map(len, text.split("\n"))) <= 116
    assert " ".join(text.split()) == ", ".join(f"int parameter_{k}" for k in range(30))
    assert wrapped([name("x"), "1"]).reads == {"x"}


def test_parameters_may_begin_below() -> None:
    assert function("void f", ["int a", "int b"], Statements(), below=True) == "void f(\n    int a, int b)\n{\n}\n"


def test_long_expressions_are_broken_at_spaces() -> None:
    whole = joined(" + ", [name(f"value_{k}") for k in range(30)])
    text = folded(whole, column=20)
    first, *others = text.split("\n")
    assert len(first) <= 92
    assert all(len(each) <= 112 and each.startswith("    ") for each in others)
    assert " ".join(text.split()) == whole
    assert text.reads == whole.reads


# --- what nobody reads ----------------------------------------------------------------------------------


@st.composite
def _functions(draw: st.DrawFn) -> Statements:
    count = 0

    def statements(depth: int, known: list[Code]) -> Statements:
        nonlocal count
        found, known = Statements(), list(known)
        for _ in range(draw(st.integers(0, 5))):
            pieces = draw(st.lists(st.sampled_from(known), max_size=2)) if known else []
            kind = draw(st.sampled_from(["declare", "declare", "line", "block"]))
            if kind == "declare":
                count += 1
                known.append(found.declare("int", f"v{count}", joined(" + ", pieces or ["1"])))
            elif kind == "line":
                found.line(call("use", *pieces))
            elif depth:
                inner = statements(depth - 1, known)
                found.items.append(Block(cpp("if ({})", joined(" && ", pieces or ["true"])), inner))
        return found

    return statements(3, [])


def _one_less(statements: Statements, whole: Statements) -> bool:
    """Take one declaration away that stands in the text once, by looking at the text."""
    words = function("f", [], whole).replace("(", " ").replace(")", " ").replace(";", " ").replace(",", " ").split()
    for each in statements.items:
        if isinstance(each, Declaration) and words.count(each.name) == 1:
            statements.items.remove(each)
            return True
        if isinstance(each, Block) and _one_less(each.body, whole):
            return True
    return False


@given(_functions())
def test_unused_constants_go_until_there_are_none(body: Statements) -> None:
    used = body.used()
    while _one_less(body, body):
        pass
    assert function("f", [], used) == function("f", [], body)


# --- numbers --------------------------------------------------------------------------------------------

_TYPES = {"float32": "float", "float64": "double", "int32": "int", "int64": "long long", "uint32": "unsigned",
          "uint64": "unsigned long long", "int8": "signed char", "uint16": "unsigned short"}  # fmt: skip


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: apt install g++")
def test_literals_are_the_numbers_that_they_stand_for(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    cases: list[tuple[str, np.generic]] = []
    for dtype in _TYPES:
        bits = np.frombuffer(rng.bytes(200 * np.dtype(dtype).itemsize), np.uint8).view(dtype)
        if dtype.startswith("float"):
            info = np.finfo(dtype)
            edges = [0, 1, -1, 7, 1e6, 1e7, 123456789, 0.1, -0.0, math.inf, -math.inf, math.nan, info.max, info.tiny]
        else:
            edges = [0, 1, 7, np.iinfo(dtype).min, np.iinfo(dtype).max]
        given_edges = np.array(edges, dtype)
        cases += [(dtype, each) for each in (*bits, *given_edges)]
    lines = ["#include <cmath>"]
    for dtype, cuda in _TYPES.items():
        values = [literal(each.item(), of) for of, each in cases if of == dtype]
        lines.append(f'extern "C" const {cuda} values_{dtype}[] = {{ {", ".join(values)} }};')
    (tmp_path / "literals.cpp").write_text("\n".join(lines))
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wno-narrowing", "-shared", "-fPIC"]
    command = ["g++", *flags, str(tmp_path / "literals.cpp"), "-o", str(tmp_path / "literals.so")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    library = ctypes.CDLL(str(tmp_path / "literals.so"))
    for dtype in _TYPES:
        expected = np.array([each for of, each in cases if of == dtype])
        raw = (ctypes.c_char * expected.nbytes).in_dll(library, f"values_{dtype}")
        found = np.frombuffer(raw, dtype)
        np.testing.assert_array_equal(found, expected)
        known = ~np.isnan(expected) if dtype.startswith("float") else expected == expected
        np.testing.assert_array_equal(np.signbit(found[known].astype(float)), np.signbit(expected[known].astype(float)))


@given(st.integers(-(2**70), 2**70), st.sampled_from([each for each in _TYPES if not each.startswith("float")]))
@settings(max_examples=50)
def test_whole_numbers_wrap_into_the_range_of_their_type(value: int, dtype: str) -> None:
    bits = 8 * np.dtype(dtype).itemsize
    wrapped_value = np.array([value % 2**bits], np.uint64).astype(np.dtype(f"uint{bits}")).view(dtype)[0]
    assert literal(value, dtype) == literal(int(wrapped_value), dtype)


# --- parentheses of generated expressions ---------------------------------------------------------------


A, B, C = (Term(name(each)) for each in "abc")


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (binary("*", binary("+", A, B), prefix("-", C)), "(a + b) * -c"),
        (binary("-", binary("-", A, B), C), "a - b - c"),
        (binary("-", A, binary("-", B, C)), "a - (b - c)"),
        (binary("||", binary("&&", A, B), C), "a && b || c"),
        (prefix("-", prefix("-", A)), "-(-a)"),
        (prefix("!", binary("<", A, B)), "!(a < b)"),
        (prefix("-", cast("float", A)), "-(float)a"),
        (cast("float", prefix("-", A)), "(float)(-a)"),
        (cast("int", cast("float", A)), "(int)(float)a"),
        (choice(binary("<", A, B), A, choice(A, B, C)), "a < b ? a : (a ? b : c)"),
        (binary("+", choice(A, B, C), A), "(a ? b : c) + a"),
    ],
)
def test_parentheses_stand_where_they_must(term: Term, text: str) -> None:
    assert term.code == text
    assert term.code.reads == {each for each in "abc" if each in text}


def _tree(draw: random.Random, depth: int) -> tuple[Term, str]:
    """A random expression, and the same with all its parentheses. It divides by nothing: that might be zero."""
    if depth == 0:
        number = f"{draw.randrange(9)}u"
        return atom(number), number
    kind = draw.choice(["binary", "binary", "binary", "prefix", "cast", "choice"])
    (a, one), (b, two), (c, three) = (_tree(draw, draw.randrange(depth)) for _ in range(3))
    if kind == "binary":
        operator = draw.choice([each for each in PRECEDENCE if each not in ("/", "%", "<<", ">>")])
        return binary(operator, a, b), f"({one} {operator} {two})"
    if kind == "prefix":
        operator = draw.choice("-~!")
        return prefix(operator, a), f"({operator} {one})"
    if kind == "cast":
        return cast("unsigned", a), f"((unsigned) {one})"
    return choice(a, b, c), f"({one} ? {two} : {three})"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: apt install g++")
def test_a_compiler_reads_what_was_meant(tmp_path: Path) -> None:
    trees = [_tree(random.Random(seed), 5) for seed in range(400)]
    lines = [f'static_assert(unsigned({term.code}) == unsigned({whole}), "{term.code}");' for term, whole in trees]
    (tmp_path / "trees.cpp").write_text("\n".join([*lines, ""]))
    command = ["g++", "-std=c++17", "-fsyntax-only", str(tmp_path / "trees.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
