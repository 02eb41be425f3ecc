"""Random pipelines, fused in every way: bit for bit what the unfused pipeline gives, and what NumPy gives."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusiond.model.nouns import Rejection
from fusiond_mincut.analysis import blocks, candidates
from fusiond_mincut.analysis.blocks import Partition
from fusiond_mincut.codegen import block_configs, emit, tiles
from fusiond_mincut.codegen.emit import BlockParams
from fusiond_mincut.frontend import borders
from fusiond_mincut.frontend.graph import Pipeline

from . import foreign_images  # noqa: F401 - registers
from .foreign import FOREIGN, Foreign
from .running import Runner, batched, emitted, images, pipeline, resized, wanted

INTEGER = ("+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>")
REAL = ("+", "-", "*", "/")
COMPARED = ("<", "<=", "==", "!=", ">", ">=", "&&", "||")


@st.composite
def expressions(draw, reads: Sequence[str], depth: int = 2) -> str:
    """A body over the pixels `reads`; only operations that IEEE 754 and C fix to the last bit."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from([*reads, *reads, "3", "-7", "0x7fffffff", "1.5f", "0.1"]))
    inner = expressions(reads, depth - 1)
    one, two = draw(inner), draw(inner)
    match draw(st.sampled_from(["integer", "integer", "real", "real", "chosen", "call", "cast", "bound"])):
        case "integer":
            operator = draw(st.sampled_from(INTEGER))
            if operator in ("<<", ">>"):
                return f"(int({one}) {operator} (int({two}) & 7))"
            return f"(int({one}) {operator} (int({two}) | (1 < 0)))"
        case "real":
            return f"({one} {draw(st.sampled_from(REAL))} float({two}))"
        case "chosen":
            return f"({one} {draw(st.sampled_from(COMPARED))} {two} ? {draw(inner)} : {two})"
        case "call":
            return f"{draw(st.sampled_from(['min', 'max']))}({one}, {two})"
        case "cast":
            return f"{draw(st.sampled_from(['int', 'float', 'uchar', 'double', '-', '!']))}({one})"
    return f"clamp({one}, -100, {two})"


@st.composite
def pipelines(draw, most_kernels: int = 4) -> Pipeline:
    """Up to four kernels over two inputs, with any borders, windows, types and outputs."""
    channels = draw(st.sampled_from([1, 1, 1, 3]))
    known = ["src", "other"]
    kernels = []
    for number in range(draw(st.integers(2, most_kernels))):
        local = draw(st.booleans())
        mask = (draw(st.sampled_from([1, 3, 5])), draw(st.sampled_from([1, 3]))) if local else (1, 1)
        reads = draw(st.lists(st.sampled_from(known[-3:]), min_size=1, max_size=2, unique=True))
        pixels = []
        for image in reads:
            for _ in range(draw(st.integers(1, 3))):
                dx = draw(st.integers(-(mask[0] // 2), mask[0] // 2))
                dy = draw(st.integers(-(mask[1] // 2), mask[1] // 2))
                pixels.append(f"{image}[{dx}, {dy}]")
        body = draw(expressions(pixels))
        body = " + ".join([body, *(f"{image}[0, 0]" for image in reads if image not in body)])
        modes = [draw(st.sampled_from([*borders.MAPPED, "{constant: 9}"])) for _ in reads]
        pattern = f"pattern: local, mask: [{mask[0]}, {mask[1]}]" if local else "pattern: point"
        border = ", ".join(f"{image}: {mode}" for image, mode in zip(reads, modes, strict=True))
        dtype = draw(st.sampled_from(["uint8", "int32", "int32", "float32"]))
        kernels.append(
            f"  k{number}: {{{pattern}, {f'border: {{{border}}}, ' if local else ''}reads: [{', '.join(reads)}],"
            f' dtype: {dtype}, body: "{body}"}}'
        )
        known.append(f"k{number}")
    text = "\n".join(kernels)
    names = known[2:]
    outputs = [name for name in names if text.count(f"{name}[") == 0 or draw(st.integers(0, 3)) == 0]
    described = {"src": "{name: src, fill: {integers: [-300, 300]}}", "other": "{name: other, dtype: uint8}"}
    inputs = [each for name, each in described.items() if f"{name}[" in text]
    head = [
        "pipeline: random", f"image: {{width: 8, height: 8, dtype: int32, channels: {channels}}}",
        f"inputs: [{', '.join(inputs)}]", f"outputs: [{', '.join(outputs)}]", "kernels:",
    ]  # fmt: skip
    return pipeline("\n".join([*head, text]), draw(st.integers(1, 19)), draw(st.integers(1, 9)))


def partitions(given: Pipeline) -> Iterator[blocks.Partition]:
    """Every partition whose blocks can be launched in some order."""

    def grown(names: list[str]) -> Iterator[list[list[str]]]:
        if not names:
            yield []
            return
        for rest in grown(names[:-1]):
            yield [*rest, [names[-1]]]
            for place in range(len(rest)):
                yield [*rest[:place], [*rest[place], names[-1]], *rest[place + 1 :]]

    for groups in grown([each.name for each in given.kernels]):
        try:
            yield blocks.partition(given, groups)
        except ValueError:  # its blocks wait for each other
            continue


def every_way(runner: Runner, pipelines: Sequence[Pipeline], params: Sequence[BlockParams]) -> int:
    """Runs all partitions with all choices; how many there were."""
    ways = []
    for each in pipelines:
        for part in partitions(each):
            for choice in params:
                program = emit.program(each, part, {str(block): choice for block in part.blocks})
                assert not isinstance(program, Rejection), program
                ways.append((each, part, choice, program))
    for (each, part, choice, _), program in zip(ways, batched([way[3] for way in ways]), strict=True):
        got = runner.run(program, order=2)
        assert isinstance(got, dict), got
        expected = wanted(each)
        for name, image in images(each, got).items():
            np.testing.assert_array_equal(image, expected[name], err_msg=f"{name} of {part} {choice} {each}")
    return len(ways)


_quiet = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@pytest.mark.slow
@settings(_quiet, max_examples=3)
@given(st.lists(pipelines(3), min_size=2, max_size=2))
def test_some_random_pipelines(runner, found):
    every_way(runner, found, [BlockParams(block_x=4, block_y=3)])


@pytest.mark.slow
@settings(_quiet, max_examples=settings.default.max_examples // 10)
@given(st.lists(pipelines(), min_size=2, max_size=2), st.sampled_from([(4, 3, 1), (2, 2, 3), (8, 1, 2)]))
def test_random_pipelines_fused_in_every_way(runner, found, shape):
    x, y, rows = shape
    choices = [BlockParams(block_x=x, block_y=y, pixels=rows, local=local) for local in tiles.LOCAL]
    every_way(runner, found, choices)


def test_every_partition_of_a_chain_is_tried():
    names = ["src", "k0", "k1", "k2", "k3"]
    kernels = "\n".join(
        f'  {name}: {{pattern: point, reads: [{before}], body: "{before} + 1"}}'
        for before, name in itertools.pairwise(names)
    )
    head = "pipeline: p\nimage: {width: 2, height: 2, dtype: int32}\ninputs: [src]\noutputs: [k3]\nkernels:\n"
    assert len(list(partitions(pipeline(head + kernels)))) == 8  # as many as there are sets of edges that are cut


# --- pipelines that others use, against SciPy, OpenCV and NumPy -----------------------------------------


TILE = BlockParams(block_x=16, block_y=4, pixels=2)
STRIP = BlockParams(block_x=32, block_y=2, pixels=8, local="rows", across=2)
SIZES = ((97, 61), (132, 40), (9, 70))


def foreign_partitions(given: Pipeline) -> Iterator[Partition]:
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
        for part in dict.fromkeys(map(str, foreign_partitions(given))):
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
        for output, right in foreign.oracle(inputs).items():
            got = made[output].reshape(right.shape)
            edge = foreign.frame
            got, right = (each[edge : each.shape[0] - edge, edge : each.shape[1] - edge] for each in (got, right))
            if foreign.off:
                assert (got != right).mean() <= foreign.off, f"{output} {what}"
            elif foreign.tolerance:
                np.testing.assert_allclose(got, right, rtol=foreign.tolerance, atol=foreign.tolerance, err_msg=what)
            else:
                np.testing.assert_array_equal(got, right, err_msg=f"{output} {what}")


@pytest.mark.parametrize("name", ["perona_malik", "dog", "guided"])
def test_what_is_fused_moves_each_image_once(name: str) -> None:
    """8 bytes a pixel of one float image that is read and one that is stored; the guided filter reads two."""
    given = pipeline(FOREIGN[name].text)
    (block,) = blocks.partition(given, [[each.name for each in given.kernels]]).blocks
    assert [*block.inputs, *block.outputs] == [*(each.name for each in given.inputs), *given.outputs]
    assert emit.refused(given, block, BlockParams(local="rows", block_y=4, pixels=16)) is None
    assert len(emitted(given, blocks.partition(given, [block.kernels])).steps) == 1
