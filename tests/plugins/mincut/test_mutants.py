"""Kernels broken on purpose: each mistake shows in what the other tests look at (the images, a fault, a race)."""

import dataclasses
import re

import numpy as np
import pytest

from fusiond.devices.cpu import native
from fusiond.model.program import Program
from fusiond_mincut.codegen import tiles
from fusiond_mincut.codegen.emit import BlockParams
from fusiond_mincut.frontend import borders
from fusiond_mincut.frontend.graph import Halo, ImageKernel, Pipeline

from .running import Runner, edited, emitted, images, pipeline, resized, wanted, whole

TWO = """
pipeline: two
image: {width: 29, height: 21, dtype: int32}
inputs: [src]
outputs: [second]
masks: {box: [[1, 2, 3], [4, 5, 6], [7, 8, 9]], wide: [[5, 4, 3, 2, 1], [1, 2, 3, 4, 5], [2, 2, 2, 2, 3]]}
kernels:
  first: {pattern: local, mask: [3, 3], border: repeat, reads: [src], body: "sum(box, src)"}
  second: {pattern: local, mask: [5, 3], border: mirror, reads: [first], body: "sum(wide, first)"}
"""
PARAMS = BlockParams(block_x=8, block_y=4, pixels=1)
AGAIN = dataclasses.replace(PARAMS, local="recompute")
BOTH = pytest.mark.parametrize(
    "params", [pytest.param(PARAMS, id="tile"), pytest.param(AGAIN, id="recompute", marks=pytest.mark.slow)]
)


@pytest.fixture(scope="module")
def given() -> Pipeline:
    return pipeline(TWO, 29, 21)


def killed(runner: Runner, given: Pipeline, program: Program) -> str:
    """How a program shows that it is wrong: `fault`, `image`; empty when it does not."""
    got = runner.run(program, order=3)
    if isinstance(got, native.Fault):
        return "fault"
    expected = wanted(given)
    same = all(np.array_equal(image, expected[name]) for name, image in images(given, got).items())
    return "" if same else "image"


@pytest.mark.slow
def test_the_kernels_are_right_as_they_are(runner, given):
    for params in (PARAMS, AGAIN):
        assert not killed(runner, given, emitted(given, whole(given), params))


# --- mistakes in the emitter ----------------------------------------------------------------------------


def test_a_halo_one_too_small(runner, given, monkeypatch):
    right = tiles.halos

    def small(*arguments):
        return {name: halo._replace(right=max(0, halo.right - 1)) for name, halo in right(*arguments).items()}

    monkeypatch.setattr(tiles, "halos", small)
    assert killed(runner, given, emitted(given, whole(given), PARAMS))


def test_the_largest_radius_for_the_sum_of_the_radii(runner, given, monkeypatch):
    """As the paper has the width of the interior: a block two pixels from the right edge takes the interior's way."""
    edge = resized(given, 8 * 3 + 2, 4 * 5 + 1)
    right = emitted(edge, whole(edge), PARAMS)
    monkeypatch.setattr(tiles.TileLayout, "reach", property(lambda layout: Halo(left=2, right=2, up=1, down=1)))
    wrong = emitted(edge, whole(edge), PARAMS)
    assert "x0 + 11 <= width" in right.sources[0].text
    assert "x0 + 10 <= width" in wrong.sources[0].text
    assert killed(runner, edge, wrong) == "image"


@BOTH
def test_the_border_of_the_producer_for_that_of_the_consumer(runner, given, monkeypatch, params):
    right = ImageKernel.border

    def producers(kernel: ImageKernel, image: str):
        return right(given.kernel(image), "src") if image == "first" else right(kernel, image)

    monkeypatch.setattr(ImageKernel, "border", producers)
    program = emitted(given, whole(given), params)
    monkeypatch.undo()
    assert killed(runner, given, program) == "image"


@BOTH
def test_no_index_exchange(runner, given, monkeypatch, params):
    """The window of the producer at the position outside, not at the pixel that the position means."""
    monkeypatch.setitem(borders.FUNCTIONS, "mirror", "__device__ int mirror_index(int i, int n) { return i; }\n")
    assert killed(runner, given, emitted(given, whole(given), params))


# --- mistakes in the text -------------------------------------------------------------------------------

WRONG = {
    "an interior without end": (r"if \(x0 >= .*height\)", "if (true)"),
    "no check of the own pixel": (r"if \(x >= width .*", ""),
    "a shifted offset": (r"first_tile\[ty \+ 1\]\[tx \+ 3\]", "first_tile[ty + 1][tx + 2]"),
    "a shifted tile": (r"int x = x0 - 2 \+ tx", "int x = x0 - 1 + tx"),
    "a tile half filled": (r"i \+= 32\)", "i += 64)"),
    "a gap between the blocks": (r"blockIdx\.y \* 4", "blockIdx.y * 5"),
    "the height for the width": (r"mirror_index\(x \+ 1, width\)", "mirror_index(x + 1, height)"),
    "a return before the barrier": (r"(y0 = blockIdx.*)",
                                    r"\1 if (x0 + threadIdx.x >= width || y0 + threadIdx.y >= height) return;"),
    "a barrier for some": (r"__syncthreads\(\);", "if (threadIdx.y < 2) __syncthreads();"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_text(runner, given, mistake):
    pattern, new = WRONG[mistake]
    wrong = edited(emitted(given, whole(given), PARAMS), lambda text: re.sub(pattern, new, text))
    assert killed(runner, given, wrong)
