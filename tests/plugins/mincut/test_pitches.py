"""Rows of images that lie apart in memory, by a pitch that each launch is told."""

import dataclasses

import numpy as np
import pytest

from fusiond.model.inputs import documents
from fusiond.model.program import Program, pitches, unsized
from fusiond_mincut.analysis import blocks
from fusiond_mincut.codegen import block_configs, emit
from fusiond_mincut.frontend import parser, printer
from fusiond_mincut.frontend.graph import Pipeline, rows

from .image_pipelines import TEXTS, WAYS, cuts, given
from .running import Runner, batched, compare, resized, wanted


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
