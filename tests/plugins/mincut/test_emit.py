"""Generated kernels against the oracle: whole images, every pixel, on the cpu device."""

import numpy as np
import pytest

from fusiond_mincut.analysis import blocks
from fusiond_mincut.codegen import emit
from fusiond_mincut.codegen.emit import BlockParams
from fusiond_mincut.frontend import borders

from .running import APPLICATIONS, Case, application, check, emitted, pipeline, rebordered, resized, whole

SMALL = BlockParams(block_x=8, block_y=4, pixels=2)
SIZES = ((1, 1), (2, 1), (1, 5), (3, 2), (5, 7), (17, 9), (67, 41))
SMALL_AGAIN = BlockParams(block_x=8, block_y=4, pixels=2, local="recompute")
SMALL_MIXED = BlockParams(block_x=8, block_y=4, pixels=2, local="mixed")


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", APPLICATIONS)
@pytest.mark.sampled(4)
def test_applications_are_exact_with_every_border(runner, name):
    given = application(name, 8, 8)
    modes = ("mirror", "constant") if name == "night" else borders.MODES
    every = [rebordered(given, mode) for mode in modes]
    found = []
    for each in every:
        found += [Case(each, whole(each), SMALL)]
        if "mixed" in emit.choices(each, whole(each).blocks[0]):
            found += [Case(each, whole(each), SMALL_MIXED)]
        if name != "night":  # it is refused
            found += [Case(each, whole(each), SMALL_AGAIN)]
    found += [Case(each, blocks.unfused(each), SMALL) for each in every[:2]]
    check(runner, found, SIZES)


CHAIN = """
pipeline: chain
image: {width: 8, height: 8, dtype: int32}
inputs: [{name: src, fill: {integers: [-1000, 1000]}}]
outputs: [second]
masks:
  lopsided: [[1, 2, 3], [4, 5, 6], [7, 8, -9]]
  wide: [[1, 0, 2, 3, -1], [1, 1, 4, 1, 1], [0, 9, 1, 0, 5]]
kernels:
  first: {pattern: local, mask: [3, 3], border: BORDER1, reads: [src], body: "sum(lopsided, src) / 7"}
  second: {pattern: local, mask: [5, 3], border: BORDER2, reads: [first], body: "sum(wide, first)"}
"""
WRITTEN = {"constant": "{constant: 77}"}


def chain(first, second):
    return pipeline(CHAIN.replace("BORDER1", WRITTEN.get(first, first)).replace("BORDER2", WRITTEN.get(second, second)))


SOME = [
    ("clamp", "constant"), ("mirror", "clamp"), ("repeat", "mirror"), ("constant", "repeat"), ("reflect", "reflect"),
]  # fmt: skip


@pytest.mark.slow
def test_the_consumers_border_decides_where_the_producer_is_evaluated(runner):
    check(
        runner, [Case(chain(*pair), whole(chain(*pair)), each) for pair in SOME for each in (SMALL, SMALL_AGAIN)], SIZES
    )


ONE_SIDED = """
pipeline: one_sided
image: {width: 8, height: 8, dtype: int32}
inputs: [src]
outputs: [third]
kernels:
  first: {pattern: local, mask: [3, 3], border: clamp, reads: [src], body: "src[1, 0] * 3 - src[-1, 1]"}
  second: {pattern: local, mask: [7, 7], border: mirror, reads: [first],
    body: "first[3, 0] - 2 * first[0, 3] + first[1, 0]"}
  third: {pattern: local, mask: [9, 1], border: BORDER, reads: [second], body: "second[-4, 0] + 5 * second"}
"""


@pytest.mark.parametrize(
    "border", ["mirror", *(pytest.param(each, marks=pytest.mark.slow) for each in ("reflect", "repeat"))]
)
def test_what_lies_in_no_tile_is_computed_anew(runner, border):
    """Windows to one side: a mirrored index leaves the tile, and a tile is as large as what is read and no larger."""
    given = pipeline(ONE_SIDED.replace("BORDER", border))
    params = BlockParams(block_x=2, block_y=2, pixels=1)
    block = blocks.block(given, ["first", "second", "third"])
    assert emit.shared_bytes(given, block, params) == 4 * ((2 + 3 + 4) * (2 + 3) + (2 + 4) * 2)
    check(runner, [Case(given, whole(given), params)], SIZES)


REPEATED = """
pipeline: repeated
image: {width: 8, height: 8, dtype: int32}
inputs: [src, other]
outputs: [e, g]
kernels:
  a: {pattern: local, mask: [3, 3], border: repeat, reads: [src], body: "src[1, 1] * 3 - src[-1, 0]"}
  b: {pattern: point, reads: [a, other], body: "a * 2 + other"}
  c: {pattern: local, mask: [5, 3], border: repeat, reads: [b, a, src], body: "b[-2, 1] + a - src[2, 0]"}
  d: {pattern: local, mask: [3, 3], border: clamp, reads: [c], body: "c[1, 1] - 5 * c[-1, -1]"}
  e: {pattern: local, mask: [3, 5], border: repeat, reads: [c, d, b], body: "c[1, -2] + d[-1, 0] * 7 + b[0, 1]"}
  f: {pattern: local, mask: [1, 3], border: {b: mirror}, reads: [b], body: "b[0, 1] + b[0, -1]"}
  g: {pattern: local, mask: [7, 1], border: repeat, reads: [f, c], body: "f[3, 0] - f[-3, 0] + c[1, 0] * f"}
"""


MIXED = """
pipeline: mixed
image: {width: 8, height: 8, dtype: int32}
inputs: [src, other]
outputs: [out, end]
kernels:
  a: {pattern: local, mask: [3, 3], border: mirror, reads: [src], body: "src[1, 1] * 3 - src[-1, 0]"}
  b: {pattern: point, reads: [a, other], body: "a * 2 + other"}
  c: {pattern: point, reads: [b, a], body: "b - a / 3"}
  d: {pattern: local, mask: [5, 3], border: {c: BORDER, src: clamp}, reads: [c, src],
    body: "c[-2, 1] + c[1, 0] - src[2, 0]"}
  e: {pattern: point, reads: [d], body: "d * d"}
  out: {pattern: local, mask: [3, 5], border: BORDER, reads: [e, c], body: "e[1, -2] - c[-1, 0] * 7 + e"}
  end: {pattern: local, mask: [3, 1], border: BORDER, reads: [b], body: "b[1, 0] - b[-1, 0]"}
"""


DIAMOND = """
pipeline: diamond
image: {width: 8, height: 8, dtype: uint8}
inputs: [src, other]
outputs: [left, top, join]
masks: {box: [[1, 1, 1], [1, 1, 1], [1, 1, 1]], cross: [[0, 0, 1, 0, 0], [0, 0, 2, 0, 0], [1, 2, 3, 2, 1],
  [0, 0, 2, 0, 0], [0, 0, 1, 0, 0]]}
kernels:
  root: {pattern: local, mask: [3, 3], border: {src: reflect}, reads: [src], body: "sum(box, src) / 9"}
  left: {pattern: local, mask: [5, 5], border: {root: mirror}, reads: [root, other], body: "sum(cross, root) * other"}
  right: {pattern: point, reads: [root, src], body: "root * 3 - src", dtype: int32}
  top: {pattern: point, reads: [right, left], body: "right * 0.37f + left", dtype: float32}
  bent: {pattern: local, mask: [3, 1], border: {right: {constant: -5}, top: repeat}, reads: [right, top],
    dtype: float32, body: "right[-1, 0] - top[1, 0] / 3"}
  join: {pattern: local, mask: [1, 3], border: {bent: clamp, left: constant}, dtype: int32, reads: [bent, left, other],
    body: "int(bent[0, -1] + bent[0, 1]) + left[0, 1] + other"}
"""


COLOURS = """
pipeline: colours
image: {width: 8, height: 8, dtype: uint8, channels: 3}
inputs: [src]
outputs: [swapped, blurred]
masks: {box: [[1, 1, 1], [1, 1, 1], [1, 1, 1]]}
kernels:
  gray: {pattern: point, channels: 1, reads: [src], body: "(77 * src.r + 150 * src.g + 29 * src.b) >> 8"}
  smooth: {pattern: local, mask: [3, 3], channels: 1, border: mirror, reads: [gray], body: "sum(box, gray) / 9.0f",
    dtype: float32}
  blurred: {pattern: local, mask: [3, 3], border: repeat, reads: [src, smooth],
    body: "sum(box, src) / 9 + smooth[1, 1]"}
  swapped: {pattern: local, mask: [3, 3], border: clamp, reads: [blurred],
    body: {r: "blurred.b[1, 0]", g: "blurred.g * 2", b: "blurred.r[-1, -1] - blurred.r"}}
"""


def test_threads_in_any_order_give_the_same(runner):
    given = chain("repeat", "reflect")
    program = emitted(resized(given, 37, 23), whole(given), SMALL)
    first = runner.run(program)
    for order in (1, 2, 3):
        np.testing.assert_array_equal(runner.run(program, order=order)["second"], first["second"])
