"""Parentheses of generated expressions: g++ reads what was meant, and none is there for nothing."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from fusiond.model.codegen.code import name
from fusiond.model.codegen.operators import PRECEDENCE, Term, atom, binary, cast, choice, prefix

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
