"""Pipelines that others use, cut in several ways, against SciPy, OpenCV and NumPy (foreign.py says which)."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from fusiond_mincut.analysis import blocks, candidates
from fusiond_mincut.analysis.blocks import Partition
from fusiond_mincut.codegen import block_configs, emit
from fusiond_mincut.codegen.emit import BlockParams
from fusiond_mincut.frontend.graph import Pipeline

from . import foreign_images  # noqa: F401 - registers
from .foreign import FOREIGN, Foreign
from .running import Runner, batched, emitted, images, pipeline, resized

TILE = BlockParams(block_x=16, block_y=4, pixels=2)
STRIP = BlockParams(block_x=32, block_y=2, pixels=8, local="rows", across=2)
SIZES = ((97, 61), (132, 40), (9, 70))


def partitions(given: Pipeline) -> Iterator[Partition]:
    """Unfused, everything that may be one block, and something between."""
    yield blocks.unfused(given)
    names = [each.name for each in given.kernels]
    legal = candidates.general(given, 400).blocks
    for block in (max(legal, key=len), legal[len(legal) // 2]) if legal else ():
        rest = [(name,) for name in names if name not in block]
        yield blocks.partition(given, [block, *rest])


@pytest.mark.sampled(24)
@pytest.mark.slow
@pytest.mark.parametrize("name", FOREIGN)
def test_foreign(runner: Runner, name: str) -> None:
    compared(runner, FOREIGN[name])


WRONG = {"mixed_stencils": ("* 3 - tall", "* 3 + tall"),
         "canny": ("falls ? size[-1, -1]", "falls ? size[1, -1]"),
         "dog": ("mask: [5, 5], border: mirror", "mask: [5, 5], border: reflect")}  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_pipeline_is_seen(runner: Runner, name: str) -> None:
    foreign = FOREIGN[name]
    wrong = dataclasses.replace(foreign, text=foreign.text.replace(*WRONG[name]))
    assert wrong != foreign
    with pytest.raises(AssertionError):
        compared(runner, wrong)


def compared(runner: Runner, foreign: Foreign) -> None:
    ways, programs = [], []
    for size in SIZES:
        given = resized(pipeline(foreign.text), *size)
        for part in dict.fromkeys(map(str, partitions(given))):
            for params in (TILE, STRIP):
                chosen = blocks.read(given, part)
                fitting = {str(each): block_configs.fitted(given, each, params) for each in chosen.blocks}
                program = emit.program(given, chosen, fitting)
                assert not isinstance(program, emit.Rejection), program
                ways.append((given, f"{part} {params} {size}"))
                programs.append(program)
    for (given, what), program in zip(ways, batched(programs), strict=True):
        found = runner.run(program, order=3)
        assert isinstance(found, dict), f"{what}: {found}"
        made = images(given, found)
        inputs = {each.name: np.squeeze(made[each.name], axis=2) if each.channels == 1 else made[each.name]
                  for each in given.inputs}  # fmt: skip
        for output, wanted in foreign.oracle(inputs).items():
            got = made[output].reshape(wanted.shape)
            edge = foreign.frame
            got, wanted = (each[edge : each.shape[0] - edge, edge : each.shape[1] - edge] for each in (got, wanted))
            if foreign.off:
                assert (got != wanted).mean() <= foreign.off, f"{output} {what}"
            elif foreign.tolerance:
                np.testing.assert_allclose(got, wanted, rtol=foreign.tolerance, atol=foreign.tolerance, err_msg=what)
            else:
                np.testing.assert_array_equal(got, wanted, err_msg=f"{output} {what}")


@pytest.mark.parametrize("name", ["perona_malik", "dog", "guided"])
def test_what_is_fused_moves_each_image_once(name: str) -> None:
    """8 bytes a pixel of one float image that is read and one that is stored; the guided filter reads two."""
    given = pipeline(FOREIGN[name].text)
    (block,) = blocks.partition(given, [[each.name for each in given.kernels]]).blocks
    assert [*block.inputs, *block.outputs] == [*(each.name for each in given.inputs), *given.outputs]
    assert emit.refused(given, block, BlockParams(local="rows", block_y=4, pixels=16)) is None
    assert len(emitted(given, blocks.partition(given, [block.kernels])).steps) == 1
