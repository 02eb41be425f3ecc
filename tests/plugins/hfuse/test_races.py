"""Data races inside fused kernels, found with ThreadSanitizer: two accesses that no barrier orders."""

import dataclasses

import pytest

from fusiond.model.nouns import Config
from fusiond.model.program import Scalar
from tests.plugins.races import races

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("gxx_here")]

HORIZONTAL = Config.of({"kind": "horizontal", "threads.a": 64, "threads.b": 96, "order": "ab"})
VERTICAL = Config.of({"kind": "vertical", "threads": 64, "order": "ba"})


def without(program, text, put=""):
    source = program.sources[0]
    assert text in source.text
    return dataclasses.replace(program, sources=(dataclasses.replace(source, text=source.text.replace(text, put)),))


@pytest.fixture
def pair(analyse, zoo):
    return analyse("hist", "hist", sizes={"a.n": 300, "b.n": 500}, granularity=32)


@pytest.mark.parametrize("config", [HORIZONTAL, VERTICAL], ids=str)
def test_a_fused_kernel_has_no_race(strategy, pair, config):
    assert races(strategy.emit(pair, config, {})) == []


@pytest.mark.parametrize("barrier", ["FUSIOND_BARRIER(1, 64);", "FUSIOND_BARRIER(2, 96);"])
def test_a_dropped_barrier_is_a_race(strategy, pair, barrier):
    assert races(without(strategy.emit(pair, HORIZONTAL, {}), barrier))


def test_overlapping_arenas_are_a_race(strategy, pair):
    program = strategy.emit(pair, HORIZONTAL, {})
    step = program.steps[0]
    at_zero = (*step.arguments[:-1], Scalar(dtype="uint32", value=0))
    assert races(dataclasses.replace(program, steps=(dataclasses.replace(step, arguments=at_zero),)))


SIDES = {"kind": "horizontal", "threads.a": 64, "threads.b": 96, "order": "ab"}
LEVELS = [
    *(Config.of({**SIDES, "level": "block", "assign": assign}) for assign in ("sequential", "interleaved", "ticket")),
    Config.of({**SIDES, "level": "warp", "map": "stride", "blocks": 2}),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("config", LEVELS, ids=str)
def test_no_level_has_a_race(strategy, pair, config):
    assert races(strategy.emit(pair, config, {})) == []


def test_a_ticket_that_is_not_waited_for_is_a_race(strategy, pair):
    barrier = "    ::__syncthreads();\n    unsigned int block"
    assert races(without(strategy.emit(pair, LEVELS[2], {}), barrier, "unsigned int block"))


@pytest.mark.parametrize("barrier", ["FUSIOND_BARRIER(1, 64);", "FUSIOND_BARRIER(2, 64);"])
def test_a_missing_barrier_between_strided_blocks_is_a_race(analyse, strategy, zoo, barrier):
    analysis = analyse(zoo["reverse"], zoo["reverse"])
    program = strategy.emit(analysis, Config.of({**LEVELS[3], "threads.b": 64}), {})
    assert races(program) == []
    assert races(without(program, f"if (at != block) {barrier}"))
