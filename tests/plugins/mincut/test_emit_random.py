"""Random pipelines, fused in every way: bit for bit what the unfused pipeline gives, and what NumPy gives."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusiond.model.nouns import Rejection
from fusiond_mincut.analysis import blocks
from fusiond_mincut.codegen import emit, tiles
from fusiond_mincut.codegen.emit import BlockParams
from fusiond_mincut.frontend import borders
from fusiond_mincut.frontend.graph import Pipeline

from .running import Runner, batched, images, pipeline, wanted

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
        "pipeline: random",
        f"image: {{width: 8, height: 8, dtype: int32, channels: {channels}}}",
        f"inputs: [{', '.join(inputs)}]",
        f"outputs: [{', '.join(outputs)}]",
        "kernels:",
    ]
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
