"""Data races in the generated kernels, found with ThreadSanitizer: two accesses that no barrier orders."""

import dataclasses

import pytest

from fusiond_mincut.analysis import blocks
from fusiond_mincut.codegen.emit import BlockParams
from tests.plugins.races import races

from .running import application, edited, emitted, pipeline, whole

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("gxx_here")]

PARAMS = BlockParams(block_x=8, block_y=4, pixels=2)
SMALL = (19, 21)
BARRIER = "__syncthreads();"
ROUNDS = 3


LADDER = """
pipeline: ladder
image: {width: 19, height: 21, dtype: int32}
inputs: [src]
outputs: [d, c]
kernels:
  a: {pattern: local, mask: [3, 3], border: clamp, reads: [src], body: "src[1, 1] - src[-1, 0]"}
  b: {pattern: local, mask: [3, 3], border: repeat, reads: [a], body: "a[1, 1] + a[-1, -1]"}
  c: {pattern: local, mask: [3, 3], border: mirror, reads: [b, a], body: "b[0, 1] + b[1, 0] + a[0, -1]"}
  p: {pattern: point, reads: [c], body: "c * 3"}
  d: {pattern: local, mask: [5, 1], border: clamp, reads: [p, b], body: "p[2, 0] - p[-2, 0] + b"}
"""


@pytest.mark.parametrize("local", ["tile", "mixed"])
def test_rounds_of_tiles_have_no_race(local):
    given = pipeline(LADDER, *SMALL)
    assert races(emitted(given, whole(given), dataclasses.replace(PARAMS, local=local))) == []


def test_a_missing_barrier_is_a_race():
    given = pipeline(LADDER, *SMALL)
    right = emitted(given, whole(given), PARAMS)
    parts = right.sources[0].text.split(BARRIER)
    assert len(parts) == 1 + 2 * ROUNDS
    for number in range(ROUNDS + 1, 2 * ROUNDS + 1):  # of the border's way, which all of these blocks take
        text = BARRIER.join(parts[:number]) + BARRIER.join(parts[number:])
        assert races(edited(right, lambda _, text=text: text)), number
    assert races(edited(right, lambda text: text.replace(BARRIER, "")))


@pytest.mark.parametrize("name", ["harris", "unsharp"])
def test_applications_have_no_race(name):
    given = application(name, *SMALL)
    assert races(emitted(given, whole(given), PARAMS)) == []


def test_a_reduction_has_no_race():
    given = pipeline(
        "pipeline: r\nimage: {width: 19, height: 21, dtype: int32, channels: 3}\ninputs: [src]\noutputs: [all]\n"
        'kernels:\n  all: {pattern: global, reduce: sum, reads: [src], body: "src"}\n',
        *SMALL,
    )
    right = emitted(given, blocks.unfused(given), BlockParams(block_x=5, block_y=2))
    assert races(right) == []
    wrong = edited(right, lambda text: text.replace("    __syncthreads();\n    return all;", "    return all;"))
    assert races(wrong)
