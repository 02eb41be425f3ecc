"""Bodies as CUDA functions: C's arithmetic, and what C leaves open, against NumPy on awkward numbers."""

import re

import numpy as np
import pytest

from fusiond_mincut.codegen import emit, stages

from .running import compare, emitted, pipeline, wanted, wanted_of, whole

INTEGERS = [0, 1, -1, 2, -2, 3, 7, -7, 31, 32, 33, 255, 256, -128, 65535, 46341, 2**30, 2**31 - 1, 1 - 2**31, -(2**31)]
REALS = [
    0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.5, 1e-40, 255.7, -256.3, 1e10, -1e10, 2147483520.0, -2147483648.0, 2147483648.0,
    3e38, np.inf, -np.inf, np.nan, 0.1,
]  # fmt: skip

OF_INTEGERS = [
    *(f"a {op} b" for op in ("+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "<", "<=", "==", "!=", ">", ">=")),
    "a && b || !a", "-a", "~a", "!a", "a ? b : 3", "abs(a)", "min(a, b)", "max(a, b)", "clamp(a, -5, b)",
    "(a + 1) * 2 - -b", "a - (b - 1)", "a / (b / 2)", "uchar(a)", "uchar(a) * uchar(b)", "0x7fffffff + 1 - a",
    "-2147483647 - 1 - a", "2147483647 * a + (3 + 2147483647)", "min(2147483647, 1) + 2147483647 - a", "a * 2 / 2",
    "(a < b) + (a == b) * 2", "a < b ? a < 3 : b > 3", "1 - (a != b)", "a % 7 + a / -7", "(a + b) >> 33 % 32",
    "a == 0 || 10 / a > 1", "uchar(a) << 24", "5 - -7 - a", "~-a", "- -a", "!(a > b) && !b",
]  # fmt: skip
OF_REALS = [
    *(f"a {op} b" for op in ("+", "-", "*", "/", "<", "<=", "==", "!=", ">", ">=")), "a && b || !a", "-a",
    "a ? b : 3.0f", "abs(a)", "min(a, b)", "max(a, b)", "clamp(a, -5.0f, b)", "a * 0.1f - b * 0.3f + a", "int(a)",
    "uchar(b)", "a * 0.1", "float(a * 0.1) + 1e-3f", "floor(a)", "ceil(a)", "trunc(b)", "rint(a)", "sqrt(abs(a))",
    "int(a * 0.5) + 3", "double(a) + b * 1e300", "1.0f / a", "-0.5f - -1.5f * a", "uchar(a) + a", "a - -0.0f",
    "1e10f + 3.0f * b", "(a > b) + 0.25f", "double(b) < 0.1 ? a : -a",
]  # fmt: skip
FUNCTIONS = [
    "rsqrt(a)", "exp(a)", "exp2(a)", "log(a)", "log2(a)", "log10(a)", "sin(a)", "cos(a)", "tan(a)", "atan(a)",
    "atan2(a, b)", "tanh(a)", "pow(a, b)", "exp(double(a))", "pow(double(a), double(b))",
    "sin(double(a)) + sqrt(double(b))",
]  # fmt: skip


def of(texts, dtype, results):
    """One kernel for each text, over all pairs of numbers."""
    lines = []
    for number, text in enumerate(texts):
        names = ", ".join(sorted(set(re.findall(r"\b(?:[ab]|k\d+)\b", text))))
        lines.append(f'  k{number}: {{pattern: point, dtype: {results}, reads: [{names}], body: "{text}"}}')
    outputs = ", ".join(f"k{number}" for number in range(len(texts)))
    head = [
        "pipeline: p", f"image: {{width: 20, height: 20, dtype: {dtype}}}", "inputs: [a, b]", f"outputs: [{outputs}]",
    ]  # fmt: skip
    return pipeline("\n".join([*head, "kernels:", *lines]), 20, 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("texts", "dtype", "results"),
    [
        pytest.param(OF_INTEGERS, "int32", "int32", id="integers"),
        pytest.param(OF_INTEGERS, "int32", "uint8", id="integers-to-bytes"),
        pytest.param(OF_REALS, "float32", "float32", id="reals"),
        pytest.param(OF_REALS, "float32", "int32", id="reals-to-integers"),
        pytest.param(FUNCTIONS, "float32", "float32", id="functions"),
    ],
)
def test_arithmetic_is_what_the_tree_means(runner, texts, dtype, results):
    given = of(texts, dtype, results)
    values = np.array(INTEGERS if dtype == "int32" else REALS, dtype)
    a, b = np.meshgrid(values, values)
    inputs = {"a": a.reshape(-1), "b": b.reshape(-1)}
    got = runner.run(emitted(given, whole(given)), inputs)
    compare(given, got, wanted_of(given, inputs))


LETS = """
pipeline: lets
image: {width: 5, height: 4, dtype: int32}
inputs: [a, while]
outputs: [k, a_let]
masks: {box: [[1, 1, 1]]}
kernels:
  k: {pattern: local, mask: [3, 1], border: clamp, reads: [a, while], let: {a_0: a * 2, twice: a_0 + a_0},
    body: "sum(box, a * twice) + while"}
  a_let: {pattern: point, reads: [k], let: {k_0: k + 1}, body: "k_0 * k"}
"""


def test_names_of_the_user_clash_with_nothing(runner):
    """Not with each other, with what is written round them, nor with words of C++."""
    given = pipeline(LETS, 5, 4)
    text = emit.block_kernel(given, whole(given).blocks[0]).text
    assert "const Int a_0_let = a_0 * 2;" in text
    compare(given, runner.run(emitted(given, whole(given))), wanted(given))


def test_a_channel_has_a_letter_only_where_several_are_read():
    given = pipeline(
        "pipeline: p\nimage: {width: 4, height: 4, dtype: uint8, channels: 3}\ninputs: [s]\noutputs: [t, u]\nkernels:\n"
        '  t: {pattern: point, reads: [s], body: "s + 1"}\n'
        '  u: {pattern: point, reads: [s], body: {r: "s.g", g: "s.b + s", b: "s.b * s.b"}}\n'
    )
    one, three = (stages.stages(each) for each in given.kernels)
    assert re.findall(r"\w+_stage\w*", one) == ["t_stage"]
    assert re.findall(r"\w+_stage\w*", three) == ["u_stager", "u_stageg", "u_stageb"]
    assert "t_stage(uchar s_0)" in one
    assert "u_stageg(uchar s_0b, uchar s_0)" in three
