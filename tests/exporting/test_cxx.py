"""Formulas, names and numbers as C++."""

import dataclasses
from pathlib import Path

from fusiond.build.exporting import cxx
from fusiond.model.language.expressions import parse_formula
from fusiond.model.language.extents import Extent
from fusiond.model.program import Buffer, Program, Role
from tests.exporting import programs
from tests.exporting.test_launch_cxx import run

SIZES = {"n": 1234, "a.n": 7, "class": 5, "a_n": 11}
FORMULAS = (
    "ceil_div(4 * a.n, 256)", "-n // 7", "-n % 7", "n // -7", "n % -7", "min(n, a.n, -3) + max(2, class)",
    "(n - 1) // (a.n * 2)", "class * a_n - -n", "ceil_div(-n, a.n)", "65536 * 65536 * a.n", "n - a.n - class",
)  # fmt: skip


def named(*buffers: str) -> Program:
    made = tuple(Buffer(name=each, dtype="float32", elements=1, role=Role.INPUT) for each in buffers)
    return dataclasses.replace(programs.one().program, buffers=made, sizes=tuple(SIZES.items()))


def test_formulas_round_as_they_do_in_a_plan(tmp_path: Path, gxx_here: None) -> None:
    names = cxx.CxxNames(named("x"))
    members = "".join(f"long long {names.sizes[name]} = {value}; " for name, value in SIZES.items())
    lines = ["#include <algorithm>", "#include <cstdio>", "#include <initializer_list>", cxx.HELPERS]
    lines += [f"struct {{ {members}}} sizes;", "int main() {"]
    for text in FORMULAS:
        value = cxx.number(Extent.of(parse_formula(text).integer(SIZES), text), names)
        lines.append(f'    std::printf("%lld\\n", static_cast<long long>({value}));')
    (tmp_path / "main.cpp").write_text("\n".join([*lines, "}", ""]))
    run(["g++", "-std=c++17", "-Wall", "-Werror", "main.cpp", "-o", "run"], tmp_path)
    assert [int(each) for each in run(["./run"], tmp_path).split()] == [
        parse_formula(t).integer(SIZES) for t in FORMULAS
    ]


def test_names_are_identifiers_and_unique() -> None:
    names = cxx.CxxNames(named("a.x", "a_x", "A@device", "class", "workspace", "1st", "größe"))
    assert list(names.buffers.values()) == ["a_x", "a_x_", "A_device", "class_", "workspace_", "_1st", "gr__e"]
    assert set(names.sizes) == set(SIZES)
    assert len(set(names.sizes.values())) == len(SIZES)


def test_numbers_have_their_types() -> None:
    names = cxx.CxxNames(named("x"))
    for dtype, value, text in (
        ("float32", 0.1, "static_cast<float>(0.1f)"),
        ("float64", 2, "static_cast<double>(2.0)"),
        ("float32", float("-inf"), "static_cast<float>(-INFINITY)"),
        ("float16", 0.5, "__half(0.5f)"),
        ("bool", 1, "static_cast<bool>(true)"),
        ("uint64", 2**64 - 1, "static_cast<unsigned long long>(18446744073709551615ULL)"),
        ("int64", -(2**63), "static_cast<long long>(-9223372036854775807LL - 1)"),
        ("int32", -3, "static_cast<int>(-3)"),
    ):
        assert cxx.typed(dtype, value, names) == text
