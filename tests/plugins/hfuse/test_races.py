"""Data races inside fused kernels, found with ThreadSanitizer: two accesses that no barrier orders."""

from __future__ import annotations

import dataclasses
import subprocess

import numpy as np
import pytest

from fusiond.devices.cpu import commands, native
from fusiond.devices.cpu.lower import lower
from fusiond.devices.cpu.race import find_races
from fusiond.fills import initial
from fusiond.model import Config
from fusiond.program import Pointer, Scalar

pytestmark = pytest.mark.slow

HORIZONTAL = Config.of({"kind": "horizontal", "threads.a": 64, "threads.b": 96, "order": "ab"})
VERTICAL = Config.of({"kind": "vertical", "threads": 64, "order": "ba"})


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    out = tmp_path_factory.mktemp("host") / "host"
    subprocess.run(commands.host(out), check=True, capture_output=True)
    return out


@pytest.fixture
def races(host, tmp_path):
    def find(program):
        step = program.steps[-1]  # before it, the counter of tickets is zeroed: it begins as zeros here
        (source,) = program.sources
        cpp, out = tmp_path / "fused.cpp", tmp_path / "fused.so"
        cpp.write_text(commands.translation_unit(lower(source.text), {"fused": step.entry}))
        subprocess.run(commands.kernel(cpp, out, sanitize=True), check=True, capture_output=True)
        launch = native.Launch(grid=step.grid, block=step.block, shared_bytes=step.shared_bytes)
        arguments = [
            (
                np.zeros(1, np.uint32)
                if each.buffer.startswith("tickets.")
                else initial(program.buffer(each.buffer), 1).copy()
            )
            if isinstance(each, Pointer)
            else np.dtype(each.dtype).type(each.value)
            for each in step.arguments
        ]
        return find_races(host, out, "fused", launch, arguments)

    return find


@pytest.fixture
def pair(analyse, zoo):
    return analyse("hist", "hist", sizes={"a.n": 300, "b.n": 500}, granularity=32)


@pytest.mark.parametrize("config", [HORIZONTAL, VERTICAL], ids=str)
def test_a_fused_kernel_has_no_race(strategy, pair, races, config):
    assert races(strategy.emit(pair, config, {})) == []


@pytest.mark.parametrize("barrier", ["FUSIOND_BARRIER(1, 64);", "FUSIOND_BARRIER(2, 96);"])
def test_a_dropped_barrier_is_a_race(strategy, pair, races, barrier):
    program = strategy.emit(pair, HORIZONTAL, {})
    source = program.sources[0]
    assert barrier in source.text
    mutant = dataclasses.replace(source, text=source.text.replace(barrier, ""))
    assert races(dataclasses.replace(program, sources=(mutant,)))


def test_overlapping_arenas_are_a_race(strategy, pair, races):
    program = strategy.emit(pair, HORIZONTAL, {})
    step = program.steps[0]
    at_zero = (*step.arguments[:-1], Scalar(dtype="uint32", value=0))
    assert races(dataclasses.replace(program, steps=(dataclasses.replace(step, arguments=at_zero),)))


SIDES = {"kind": "horizontal", "threads.a": 64, "threads.b": 96, "order": "ab"}
LEVELS = [
    *(Config.of({**SIDES, "level": "block", "assign": assign}) for assign in ("sequential", "interleaved", "ticket")),
    Config.of({**SIDES, "level": "warp", "map": "stride", "blocks": 2}),
]


@pytest.mark.parametrize("config", LEVELS, ids=str)
def test_no_level_has_a_race(strategy, pair, races, config):
    assert races(strategy.emit(pair, config, {})) == []


def test_a_ticket_that_is_not_waited_for_is_a_race(strategy, pair, races):
    program = strategy.emit(pair, LEVELS[2], {})
    source = program.sources[0]
    barrier = "FUSIOND_BARRIER(2, 96);\n    unsigned int block"
    assert barrier in source.text
    mutant = dataclasses.replace(source, text=source.text.replace(barrier, "unsigned int block"))
    assert races(dataclasses.replace(program, sources=(mutant,)))


@pytest.mark.parametrize("barrier", ["FUSIOND_BARRIER(1, 64);", "FUSIOND_BARRIER(2, 64);"])
def test_a_missing_barrier_between_strided_blocks_is_a_race(analyse, strategy, zoo, races, barrier):
    analysis = analyse(zoo["reverse"], zoo["reverse"])
    program = strategy.emit(analysis, Config.of({**LEVELS[3], "threads.b": 64}), {})
    assert races(program) == []
    source = program.sources[0]
    assert f"if (at != block) {barrier}" in source.text
    mutant = dataclasses.replace(source, text=source.text.replace(f"if (at != block) {barrier}", ""))
    assert races(dataclasses.replace(program, sources=(mutant,)))
