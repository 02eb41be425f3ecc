"""Images as people have them: float16, positions, tables, computed coordinates, sizes that change, parameters of the
launch, histograms, scans, hysteresis; each fused and unfused, against NumPy, SciPy and OpenCV."""

import dataclasses
import itertools

import numpy as np
import pytest

from fusiond.build.nvcc import NvccFacts
from fusiond.model.errors import RequestError
from fusiond.model.inputs import documents
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Fill, Program, pitches, unsized
from fusiond_mincut.analysis import blocks, legality
from fusiond_mincut.analysis.benefit import PAPER
from fusiond_mincut.codegen import block_configs, emit
from fusiond_mincut.frontend import parser, printer
from fusiond_mincut.frontend.graph import Pipeline, rows

from .image_pipelines import SIZES, TEXTS, WAYS, cuts, given
from .running import Runner, batched, compare, pipeline, resized, wanted


@pytest.mark.sampled(10)
@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_whatever_is_fused_gives_what_numpy_gives(runner: Runner, name: str) -> None:
    cases, programs = [], []
    for size in SIZES:
        of = resized(given(name), *size)
        for text in cuts(of):
            for way in WAYS:
                partition = blocks.read(of, text)
                fitting = {str(each): block_configs.fitted(of, each, way) for each in partition.blocks}
                program = emit.program(of, partition, fitting)
                assert isinstance(program, Program), program
                cases.append((of, f"{text} {way} {size}"))
                programs.append(program)
    expected = {size: wanted(resized(given(name), *size)) for size in SIZES}
    for (of, what), program in zip(cases, batched(programs), strict=True):
        compare(of, runner.run(program, order=7), expected[of.width, of.height], what)


def test_two_levels_of_a_pyramid_are_one_kernel() -> None:
    of = given("down_up")
    assert {"eased+half", "half+sharp", "sharp+detail"} <= {part for text in cuts(of) for part in text.split("|")}
    whole = blocks.partition(of, [[each.name for each in of.kernels]])
    (source,) = emit.program(of, whole).sources
    assert "half_width" in source.text
    assert source.text.count("__global__") == 1


def test_parameters_of_the_launch_are_no_part_of_the_text(runner: Runner) -> None:
    of = given("runtime")
    program = emit.program(of, blocks.unfused(of))
    changed = of.inputs[:1] + tuple(
        dataclasses.replace(each, fill=Fill(kind="constant", low=-31 if each.name == "limit" else 0.25))
        for each in of.inputs[1:]
    )
    other = dataclasses.replace(of, inputs=changed)
    assert emit.program(other, blocks.unfused(other)).sources == program.sources
    inputs = {each.name: np.asarray([each.fill.low], each.dtype) for each in changed[1:]}
    compare(of, runner.run(program, inputs), wanted(other))


REFUSED = {
    ("tables", "toned+near"): None, ("warp", "scaled+bent"): None, ("remap_constant", "bent+spread"): None,
    ("down_up", "eased+half"): None, ("equalised", "counts+up_to"): "global", ("equalised", "blurred+flat"): "convex",
    ("tiles_of_histograms", "clipped+rows"): "global", ("edges", "near+kept"): "global",
}  # fmt: skip


@pytest.mark.parametrize(("name", "block"), REFUSED)
def test_what_can_be_fused(name: str, block: str) -> None:
    found = next(legality.general(given(name), block.split("+")), None)
    assert (found.rule if found else None) == REFUSED[name, block]


def test_what_is_read_at_coordinates_lies_in_memory() -> None:
    text = TEXTS["warp"].replace(
        "inputs: [src, {name: field, channels: 2}]", "inputs: [first, {name: field, channels: 2}]"
    )
    text = text.replace("kernels:\n", 'kernels:\n  src: {pattern: point, reads: [first], body: "first * 2.0f"}\n')
    of = pipeline(f"pipeline: two\n{text}")
    for rules in (legality.general(of, ("src", "bent")), legality.paper(of, ("src", "bent"), PAPER)):
        assert next(rules).rule == "gather"


HEAD = "pipeline: p\nimage: {width: 16, height: 12, dtype: int32}\ninputs: [src]\noutputs: [a]\nkernels:\n  a: "


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ('{pattern: point, reads: [src], step: 0, body: "src"}', "kernels.a.step: is 0; it must be from 1 to 64"),
        ('{pattern: point, reads: [src], step: 1/0, body: "src"}', "'1/0' is not a step; expected 2, 1/2 or 3/2"),
        ('{pattern: point, reads: [src], step: [2], body: "src"}', "is a step across and one down"),
        ('{pattern: point, reads: [src], step: {other: 2}, body: "src"}', "unknown image 'other'"),
        ('{pattern: point, reads: [src], size: [4], body: "src"}', "holds width and height"),
        ('{pattern: point, reads: [src], size: [x, 4], body: "src"}', "a size is made of whole numbers"),
        ('{pattern: point, reads: [src], size: [width - 16, 4], body: "src"}', "comes to -3; a side has 1 to 65536"),
        ('{pattern: point, reads: [src], size: [4.5, 4], body: "src"}', "a size is made of whole numbers"),
        ('{pattern: point, reads: [src], body: "at(nothing, x, y) + src"}', "unknown image 'nothing'"),
        ('{pattern: point, reads: [src], body: "at(src, 0.5f, y)"}', "at takes whole numbers, not a float32"),
        ('{pattern: point, reads: [src], body: "lookup(src + 1, y)"}', "reads a table or an image by its name"),
        ('{pattern: point, reads: [src], body: "at(src, x)"}', "at takes 3 values, not 2"),
        ('{pattern: point, reads: [src], row: x, body: src}', "a is not a histogram; only a histogram has rows"),
        ('{pattern: point, reads: [src], axis: x, body: src}', "a is point; only a scan kernel has axis"),
        ("{pattern: scan, axis: z, reads: [src], body: src}", "is 'z'; it can be x, y"),
        ("{pattern: global, reduce: {histogram: [4, 1]}, channels: 2, reads: [src], body: src}", "a histogram counts"),
        ("{pattern: hysteresis, step: 2, reads: [src], body: src}", "without a step; put a point kernel before it"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(kernel: str, said: str) -> None:
    with pytest.raises(RequestError) as found:
        pipeline(HEAD + kernel)
    assert said in str(found.value)
    assert "\n" not in str(found.value)


def test_images_of_several_sizes_need_a_size_or_a_step() -> None:
    text = HEAD.replace("[src]", "[src, {name: small, size: [8, 6]}]")
    body = '{pattern: point, reads: [src, small], body: "src + small"}'
    with pytest.raises(RequestError, match=r"reads images of several sizes \(small and src\); say its own"):
        pipeline(text + body)
    of = pipeline(text + body.replace("reads", "size: [width, height], step: {small: 1/2}, reads", 1), 16, 12)
    assert of.sides("a") == (16, 12)


# --- broken on purpose ----------------------------------------------------------------------------------


@pytest.mark.campaign
@pytest.mark.needs_nvcc
def test_nvcc_takes_them_and_spills_nothing() -> None:
    programs = []
    for name in TEXTS:
        of = given(name)
        for text, way in itertools.product(cuts(of)[-2:], WAYS):
            partition = blocks.read(of, text)
            programs.append(
                emit.program(
                    of, partition, {str(each): block_configs.fitted(of, each, way) for each in partition.blocks}
                )
            )
    (source,) = {each.sources for each in batched(programs)}.pop()
    facts = NvccFacts("sm_90")(dataclasses.replace(source, flags=emit.FLAGS["strict"]))
    assert not isinstance(facts, BuildFailed), facts
    for entry, found in facts.items():
        assert (found.spill_store_bytes, found.spill_load_bytes) == (0, 0), entry


# --- rows of images that lie apart in memory ------------------------------------------------------------


def apart(program: Program, gap: int) -> Program:
    """The program with rows of `gap` elements more, of all that has a pitch."""
    rows = pitches(program.steps)
    steps = [
        dataclasses.replace(
            step,
            arguments=tuple(
                dataclasses.replace(each, value=each.value + gap) if getattr(each, "pitch_of", None) else each
                for each in step.arguments
            ),
        )
        for step in program.steps
    ]
    buffers = [
        dataclasses.replace(each, elements=each.elements // rows[each.name] * (rows[each.name] + gap))
        if each.name in rows
        else each
        for each in program.buffers
    ]
    return dataclasses.replace(unsized(program), buffers=tuple(buffers), steps=tuple(steps))


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_rows_may_lie_apart(runner: Runner, name: str) -> None:
    plain = resized(given(name), 64, 37)
    of = dataclasses.replace(plain, pitched=rows(plain))
    assert parser.read(documents.parse(printer.text(of), "again.yaml")) == of
    cases = [(text, way, gap) for text in cuts(of)[:1] + cuts(of)[-1:] for way in WAYS for gap in (0, 5, 16)]
    programs = []
    for text, way, _ in cases:
        partition = blocks.read(of, text)
        fitting = {str(each): block_configs.fitted(of, each, way) for each in partition.blocks}
        programs.append(emit.program(of, partition, fitting))
    for (text, way, gap), program in zip(cases, batched(programs), strict=True):
        assert set(pitches(program.steps)) == of.pitched
        compared_apart(runner, plain, program, gap, f"{text} {way} {gap}")


def compared_apart(runner: Runner, plain: Pipeline, program: Program, gap: int, what: str = "") -> None:
    """Runs with rows `gap` elements apart; what lies between them stays."""
    expected, given_rows = wanted(plain), pitches(program.steps)
    inputs = {
        image: np.pad(expected[image].reshape(-1, row), ((0, 0), (0, gap)), constant_values=7)
        for image, row in given_rows.items()
    }
    found = runner.run(apart(program, gap), inputs, order=3)
    assert isinstance(found, dict), f"{what}: {found}"
    for image, row in given_rows.items():
        lines = found[image].reshape(-1, row + gap)
        assert (lines[:, row:] == 7).all(), f"{image} {what}"
        found[image] = np.ascontiguousarray(lines[:, :row]).reshape(-1)
    compare(plain, found, expected, what)


def test_what_is_read_at_coordinates_has_its_pitch() -> None:
    of = dataclasses.replace(given("warp"), pitched=rows(given("warp")))
    (source, *_) = emit.program(of, blocks.partition(of, [["bent", "scaled"]])).sources
    assert "bent_src_at(src_image, src_image_width, src_image_height, src_image_row, " in source.text
    assert "width, height, src_pitch" in source.text
