"""Kernels whose warps run down the image, against the oracle: whole images, every pixel, on the cpu device."""

import pytest

from fusiond.model.nouns import Rejection
from fusiond_mincut.analysis import blocks
from fusiond_mincut.codegen import block_configs, emit, separation
from fusiond_mincut.codegen.emit import BlockParams
from fusiond_mincut.frontend import borders

from .running import APPLICATIONS, Case, application, check, compare, pipeline, rebordered, resized, wanted, whole
from .test_emit import COLOURS, DIAMOND, MIXED, ONE_SIDED, REPEATED, chain


def rows(rows: int, across: int, warps: int = 2) -> BlockParams:
    return BlockParams(block_x=32, block_y=warps, pixels=rows, local="rows", across=across)


SIZES = ((1, 1), (5, 7), (67, 41), (131, 40), (260, 64))
"""Some have whole strips inside, some widths are multiples of what a lane has."""


def fused_and_apart(given, *params):
    return [Case(given, part, each) for each in params for part in (whole(given), blocks.unfused(given))]


@pytest.mark.sampled(10)
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.campaign if each == "night" else ()) for each in APPLICATIONS]
)
def test_applications(runner, name):
    given = application(name, 8, 8)
    # NumPy's exponential has other last bits: at larger sizes a uint8 of night is one off, fused or not.
    check(runner, fused_and_apart(given, rows(8, 2)), SIZES[:3] if name == "night" else SIZES)


@pytest.mark.sampled(18)
@pytest.mark.slow
@pytest.mark.parametrize("across", [1, 2, 4])
@pytest.mark.parametrize("name", ["harris", "unsharp", "sobel"])
def test_applications_with_every_border(runner, name, across):
    given = application(name, 8, 8)
    every = [rebordered(given, mode) for mode in borders.MODES]
    check(runner, [Case(each, whole(each), rows(5, across)) for each in every], SIZES)


PAIRS = [
    ("clamp", "constant"), ("mirror", "clamp"), ("repeat", "mirror"), ("constant", "repeat"), ("reflect", "reflect"),
]  # fmt: skip


@pytest.mark.sampled(10)
@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
def test_chains(runner, pair):
    given = chain(*pair)
    check(runner, [Case(given, whole(given), each) for each in (rows(3, 2), rows(8, 4))], SIZES)


@pytest.mark.sampled(10)
@pytest.mark.slow
@pytest.mark.parametrize("text", [ONE_SIDED, MIXED, REPEATED, DIAMOND, COLOURS])
def test_graphs(runner, text):
    for old, new in (("BORDER", "mirror"), ("left: constant}", "left: {constant: 200}}")):
        text = text.replace(old, new)
    given = pipeline(text)
    check(runner, [Case(given, whole(given), each) for each in (rows(4, 2, 1), rows(3, 4, 3))], SIZES)


SHORTS = """
pipeline: shorts
image: {width: 8, height: 8, dtype: uint16, channels: 4}
inputs: [src, {name: other, dtype: int16, channels: 2}, {name: one, dtype: int16, channels: 1}]
outputs: [mean, least, halves, line, total]
masks: {box: [[1, 1, 1], [1, 1, 1], [1, 1, 1]]}
kernels:
  mean: {pattern: local, mask: [3, 3], border: mirror, reads: [src], body: "sum(box, src) / 9 - 7"}
  least: {pattern: local, mask: [3, 3], border: {constant: -5}, reads: [other], dtype: int16, channels: 2,
    body: "smallest(box, other) * 3 + ushort(other) / 2"}
  halves: {pattern: point, reads: [mean, least], dtype: int16, channels: 2,
    body: {r: "short(mean.r + least.g)", g: "mean.a * 0.75f - mean.b"}}
  line: {pattern: local, mask: [3, 3], border: reflect, reads: [one], dtype: int16, channels: 1,
    body: "one[1, 1] - one[-1, 0]"}
  total: {pattern: global, reads: [src], body: src, reduce: sum}
"""


@pytest.mark.slow
def test_integers_of_sixteen_bits_and_one_to_four_channels(runner):
    given = pipeline(SHORTS)
    part = blocks.partition(given, [["mean", "least", "halves"], ["line"], ["total"]])
    params = [rows(4, 2, 1), rows(4, 8, 1)]
    line = blocks.block(given, ["line"])
    assert "load_short8(" in emit.block_kernel(given, line, params[-1]).text
    for each in params:
        cut = part if each.across < 8 else blocks.unfused(given)
        fitting = {str(block): block_configs.fitted(given, block, each) for block in cut.blocks}
        for size in ((5, 7), (264, 24)):
            sized = resized(given, *size)
            compare(sized, runner.run(emit.program(sized, cut, fitting), order=4), wanted(sized), f"{size} {each}")


def test_a_strip_that_holds_too_much_is_refused():
    given = pipeline(
        "pipeline: wide\nimage: {width: 64, height: 64, dtype: int32}\ninputs: [src]\noutputs: [a]\nkernels:\n"
        '  a: {pattern: local, mask: [63, 63], border: clamp, reads: [src], body: "src[-31, -31] + src[31, 31]"}\n'
    )
    block = whole(given).blocks[0]
    found = emit.block_kernel(given, block, rows(8, 1))
    assert isinstance(found, Rejection)
    assert (found.rule, "lanes" in found.detail) == ("strip", True)
    assert "values" in emit.block_kernel(given, block, rows(8, 4)).detail
    assert isinstance(emit.block_kernel(given, block, rows(8, 3)), Rejection)


SEPARABLE = [
    ("sum(m, src)", "[[1, 2, 1], [2, 4, 2], [1, 2, 1]]", True),
    ("sum(m, src)", "[[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]", True),
    ("sum(m, src)", "[[2, 4, 2], [-1, -2, -1], [0, 0, 0]]", True),
    ("sum(m, src)", "[[2, 4, 2], [-1, -2, -2], [0, 0, 0]]", False),
    ("sum(m, src)", "[[0, 1, 0], [1, -4, 1], [0, 1, 0]]", False),
    ("smallest(m, src)", "[[1, 1, 1], [1, 1, 1], [1, 1, 1]]", True),
    ("largest(m, src)", "[[1, 0, 1], [1, 0, 1], [1, 0, 1]]", True),
    ("largest(m, src)", "[[1, 0, 1], [1, 1, 1], [1, 0, 1]]", False),
    ("sum(m, src) / 3 + src - sum(m, src) * 2", "[[1, 1, 1], [1, 1, 1], [1, 1, 1]]", True),
    ("sum(m, src * 3)", "[[1, 1, 1], [1, 1, 1], [1, 1, 1]]", True),
    ("sum(m, float(src))", "[[1, 1, 1], [1, 1, 1], [1, 1, 1]]", False),
    ("product(m, src)", "[[1, 1, 1], [1, 1, 1], [1, 1, 1]]", False),
]


def separable(body, mask):
    return pipeline(
        "pipeline: separable\nimage: {width: 64, height: 48, dtype: int32}\n"
        "inputs: [{name: src, fill: {integers: [-2000000000, 2000000000]}}]\n"
        f"outputs: [a]\nmasks: {{m: {mask}}}\nkernels:\n  a: {{pattern: local, mask: [3, 3], reads: [src],"
        f' border: clamp, body: "{body}"}}\n'
    )


@pytest.mark.parametrize(("body", "mask", "split"), SEPARABLE)
def test_what_is_a_row_behind_a_column(body, mask, split):
    given = separable(body, mask)
    made, block = separation.separated(given, whole(given).blocks[0])
    assert (len(block.kernels) == 2) == split
    assert len(block.kernels) == len(made.kernels)


@pytest.mark.slow
def test_separated_windows_are_exact(runner):
    """With wrap-round: the pixels fill 32 bits."""
    found = [separable(body, mask) for body, mask, split in SEPARABLE if split]
    check(runner, [Case(each, whole(each), rows(8, 2, 1)) for each in found], ((130, 20),))
