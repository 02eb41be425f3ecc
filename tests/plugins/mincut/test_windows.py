"""Large windows: loops over factors in constant memory, staged inputs, rows behind columns; against the oracle."""

import dataclasses
import random

import numpy as np
import pytest
from scipy import ndimage

from fusiond_mincut.analysis import blocks
from fusiond_mincut.codegen import emit, separation, windows
from fusiond_mincut.codegen.emit import BlockParams
from fusiond_mincut.frontend import borders

from .running import Case, check, emitted, images, pipeline, rebordered, whole

PARAMS = BlockParams(block_x=8, block_y=4, pixels=2)
AGAIN = dataclasses.replace(PARAMS, local="recompute")
STRIP = BlockParams(block_x=32, block_y=2, pixels=4, local="rows", across=4)
SIZES = ((1, 1), (5, 7), (37, 23), (70, 41))


def matrix(width, height, *, whole_numbers, holes=0.0, seed=1):
    draw = random.Random(seed)
    return [
        [
            0 if draw.random() < holes else draw.randint(-9, 9) if whole_numbers else round(draw.uniform(-1, 1), 4)
            for _ in range(width)
        ]
        for _ in range(height)
    ]


def one(width, height, body, mask, *, dtype="int32", channels=1, border="clamp"):
    return pipeline(
        f"pipeline: one\nimage: {{width: 64, height: 48, dtype: {dtype}, channels: {channels}}}\n"
        f"inputs: [src]\noutputs: [big]\nmasks: {{m: {mask}}}\nkernels:\n"
        f'  big: {{pattern: local, mask: [{width}, {height}], reads: [src], border: {border}, body: "{body}"}}\n'
    )


LARGE = {
    "whole numbers": one(11, 11, "sum(m, src) / 7 + src", matrix(11, 11, whole_numbers=True, holes=0.1)),
    "floats": one(13, 11, "sum(m, src) * 0.5f", matrix(13, 11, whole_numbers=False, holes=0.1), dtype="float32"),
    "least": one(11, 11, "smallest(m, src) - src", matrix(11, 11, whole_numbers=True, holes=0.1)),
    "greatest": one(15, 9, "largest(m, src) + sum(m, src)", matrix(15, 9, whole_numbers=False), dtype="float32"),
    "bytes": one(11, 11, "sum(m, src) / 100", matrix(11, 11, whole_numbers=True), dtype="uint8", channels=3),
    "box": one(31, 31, "sum(m, src) / 961", [[1] * 31] * 31),
    "box of bytes": one(15, 15, "largest(m, src) - sum(m, src) / 225", [[1] * 15] * 15, dtype="uint8"),
}  # fmt: skip


@pytest.mark.sampled(14)
@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_windows_with_every_border(runner, name):
    every = [rebordered(LARGE[name], mode) for mode in borders.MODES]
    params = [PARAMS] if name == "box" else [PARAMS, AGAIN]
    check(runner, [Case(each, whole(each), way) for each in every for way in params], SIZES)


BEHIND = """
pipeline: behind
image: {width: 64, height: 48, dtype: int32}
inputs: [src]
outputs: [big, far]
masks: {box: [[1, 2, 1], [2, 4, 2], [1, 2, 1]], m: MATRIX, wide: WIDE}
kernels:
  soft: {pattern: local, mask: [3, 3], border: mirror, reads: [src], body: "sum(box, src)"}
  big: {pattern: local, mask: [11, 11], border: BORDER, reads: [soft, src], body: "sum(m, soft) / 3 + src[5, 5]"}
  far: {pattern: local, mask: [15, 9], border: BORDER, reads: [big], body: "sum(wide, big) / 9"}
"""


@pytest.mark.sampled(10)
@pytest.mark.slow
@pytest.mark.parametrize("border", [*borders.MAPPED, "{constant: 9}"])
def test_large_windows_over_stages(runner, border):
    text = BEHIND.replace("MATRIX", str(matrix(11, 11, whole_numbers=True))).replace("WIDE", str([[3] * 15] * 9))
    given = pipeline(text.replace("BORDER", border))
    assert emit.refused(given, whole(given).blocks[0], AGAIN).rule == "recompute"
    check(runner, [Case(given, whole(given), PARAMS), Case(given, blocks.unfused(given), PARAMS)], SIZES[1:])


def test_a_large_window_is_a_loop_over_a_staged_input():
    given = LARGE["floats"]
    text = emit.block_kernel(given, whole(given).blocks[0]).text
    assert "__constant__ float big_sum_factors[143]" in text
    assert "src_staged_tile" in text
    assert "big_stage(float big_sum_0)" in text
    assert len(text) < 12_000


def test_sums_of_floats_in_another_order_stay_as_they_are():
    body = " + ".join(f"src[{dx}, {dy}]" for dx in range(-5, 6) for dy in range(-5, 6))  # column by column
    given = one(11, 11, body, [[1]], dtype="float32")
    assert windows.extracted(given.kernels[0], ())[1] == {}
    assert windows.extracted(one(11, 11, body, [[1]]).kernels[0], ())[1]  # whole numbers may
    down = " + ".join(f"src[{dx}, {dy}]" for dy in range(-5, 6) for dx in range(-5, 6))
    flat = one(11, 11, down, [[1]], dtype="float32")  # ((a + b) + c) + ...: no rows
    assert windows.extracted(flat.kernels[0], ())[1] == {}


def test_a_window_split_with_borders(runner):
    """Both ways of a separable window outside the image: constants times the sum of a row's factors, wrapped round."""
    mask = [[7_000 * a * b for a in (1, 2, -4, 8, 16, 8, 1)] for b in (1, -2, 3, 4, 7, 2, 2)]
    given = one(7, 7, "sum(m, src)", mask, border="{constant: 77777}")
    made, block = separation.separated(given, whole(given).blocks[0])
    assert len(block.kernels) == 2
    assert made.kernel("big").border(block.kernels[0]).mode == "constant"
    check(runner, [Case(made, whole(made), PARAMS), Case(given, whole(given), STRIP)], SIZES)


def test_floats_are_split_and_contracted_where_that_is_allowed(runner):
    floats = [[0.5 * a * b for a in (1, 2, 3, 4, 5, 4, 3, 2, 1)] for b in (1, 3, 2, 7, 5, 4, 3, 2, 1)]
    strict = one(9, 9, "sum(m, src)", floats, dtype="float32", border="reflect")
    given = dataclasses.replace(strict, accuracy="relaxed")
    assert separation.separated(strict, whole(strict).blocks[0])[1] == whole(strict).blocks[0]
    assert len(separation.separated(given, whole(given).blocks[0])[1].kernels) == 2
    assert emit.block_kernel(given, whole(given).blocks[0]).flags == ()
    for params in (PARAMS, STRIP):
        for size in ((5, 7), (131, 40)):
            each = dataclasses.replace(given, width=size[0], height=size[1])
            program = emitted(each, whole(each), params)
            got = runner.run(program)
            source = next(iter(images(each, {k: v for k, v in got.items() if k == "src"}).values()))[..., 0]
            oracle = ndimage.correlate(source.astype(np.float64), np.asarray(floats), mode="reflect")
            np.testing.assert_allclose(images(each, got)["big"][..., 0], oracle, rtol=1e-5)


needs_nvcc = pytest.mark.needs_nvcc
