"""Faults put into fused kernels: each must be found by what the tests compare, without a GPU."""

import dataclasses

import numpy as np
import pytest

from fusiond.devices.cpu.native import Fault
from fusiond.model.nouns import Config
from fusiond.model.program import Program, Scalar
from fusiond_hfuse.analysis import partition
from fusiond_hfuse.codegen import verify
from fusiond_hfuse.plugin import KERNELS

from .fuzzing import differences_in_ptx

CONFIG = Config.of({"kind": "horizontal", "threads.a": 256, "threads.b": 384, "order": "ab"})
SIZES = {"a.n": 30_000, "b.n": 7_000, "a.bins": 18, "b.bins": 40}


@pytest.fixture
def name_of_few(kernel_file):
    """The histogram on a grid of 7 blocks at most, so that a block too many counts something twice."""
    yaml = (KERNELS / "hist.yaml").read_text().replace("min(10000", "min(7").replace("kernel: hist", "kernel: few")
    return kernel_file("hist", (KERNELS / "hist.cu").read_text(), yaml)


@pytest.fixture
def pair(analyse, strategy, name_of_few):
    analysis = analyse(name_of_few, name_of_few, sizes=SIZES)
    return analysis, strategy.emit(analysis, CONFIG, {})


def killed(runner, mutant: Program, reference: Program, outputs: tuple[str, ...] = ("a.counts", "b.counts")) -> bool:
    wanted = runner.run(reference)
    for order in (0, 3, 11):
        got = runner.run(mutant, order=order)
        if isinstance(got, Fault):
            return True
        if any(not np.array_equal(got[name], wanted[name]) for name in outputs):
            return True
    return False


def with_text(program: Program, old: str, new: str, count: int = -1) -> Program:
    source = program.sources[0]
    assert old in source.text, old
    return dataclasses.replace(
        program, sources=(dataclasses.replace(source, text=source.text.replace(old, new, count)),)
    )


def with_launch(program: Program, **changes) -> Program:
    return dataclasses.replace(program, steps=(dataclasses.replace(program.steps[0], **changes),))


def with_offset(program: Program, offset: int) -> Program:
    arguments = (*program.steps[0].arguments[:-1], Scalar(dtype="uint32", value=offset))
    return with_launch(program, arguments=arguments)


TEXT_MUTANTS = {
    "a's barrier dropped": ("FUSIOND_BARRIER(1, 256);", ";"),
    "b's barrier dropped": ("FUSIOND_BARRIER(2, 384);", ";"),
    "one barrier for both": ("FUSIOND_BARRIER(2, 384);", "FUSIOND_BARRIER(1, 384);"),
    "the block's own barrier": ("FUSIOND_BARRIER(2, 384);", "FUSIOND_BARRIER(0, 640);"),
    "a count too small": ("FUSIOND_BARRIER(1, 256);", "FUSIOND_BARRIER(1, 224);"),
    "a count too large": ("FUSIOND_BARRIER(1, 256);", "FUSIOND_BARRIER(1, 288);"),
    "b's threads not counted from 0": ("thread - 256,", "thread,"),
    "the boundary a warp too low": ("if (thread < 256)", "if (thread < 224)"),
    "b's block size as a's": ("dim3(384, 1, 1)", "dim3(256, 1, 1)"),
    "b's grid as the fused one's": ("if (block < fusiond_b_grid_x)", "if (block < 1000)"),
    "grids swapped": ("block,\n                fusiond_a_grid_x", "block,\n                fusiond_b_grid_x"),
}


@pytest.mark.needs_nvcc
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if k < 1 else pytest.mark.campaign) for k, name in enumerate(TEXT_MUTANTS)]
)
def test_a_changed_text_is_noticed_in_ptx(runner, strategy, pair, name):
    """By the second judge alone."""
    analysis, program = pair
    mutant = with_text(program, *TEXT_MUTANTS[name])
    if "grid" in name:
        mutant = with_launch(mutant, grid=(11, 1, 1), arguments=_with_grids(program, 7, 5))
    wanted = runner.run(strategy.unfused(analysis, CONFIG))
    assert differences_in_ptx(mutant, wanted)


def _with_grids(program: Program, a: int, b: int):
    arguments = program.steps[0].arguments
    return (*arguments[:-3], Scalar(dtype="uint32", value=a), Scalar(dtype="uint32", value=b), arguments[-1])


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0, 16, 64, 72, 96])
def test_a_wrong_offset_is_noticed(runner, strategy, pair, offset):
    """Slot a has 72 bytes, so b's begin at 80: lower ones overlap, 72 is not aligned, at 96 the arena is too short."""
    analysis, program = pair
    assert program.steps[0].arguments[-1].value == 80
    mutant = with_offset(program, offset)
    if offset != 72:  # every byte of b's part still lies behind a's, so that only the check of the schedule sees it
        assert killed(runner, mutant, strategy.unfused(analysis, CONFIG))
    assert verify.problems(partition.schedule(analysis.payload.group, CONFIG), mutant)


@pytest.mark.parametrize(
    "change",
    [{"block": (608, 1, 1)}, {"grid": (6, 1, 1)}, {"shared_bytes": 128}, {"arguments": ()}],
    ids=lambda change: next(iter(change)),
)
def test_a_wrong_launch_breaks_an_invariant(strategy, pair, change):
    analysis, program = pair
    schedule = partition.schedule(analysis.payload.group, CONFIG)
    assert verify.problems(schedule, program) == ()
    assert verify.problems(schedule, with_launch(program, **change))


def test_the_unchanged_program_survives(runner, strategy, pair):
    analysis, program = pair
    assert not killed(runner, program, strategy.unfused(analysis, CONFIG))


# --- block level, strided maps ------------------------------------------------------------------------------


LEVEL_SIZES = {"a.n": 30_000, "b.n": 1_900, "a.bins": 18, "b.bins": 40}
"""Grids of 7 blocks of 256 threads and 5 of 384."""
SIDES = {"threads.a": 256, "threads.b": 384, "order": "ab", "kind": "horizontal"}
STRIDE = Config.of({**SIDES, "level": "warp", "map": "stride", "blocks": 2})


def at_level(kind: str) -> Config:
    return STRIDE if kind == "stride" else Config.of({**SIDES, "level": "block", "assign": kind})


@pytest.fixture
def few(analyse, name_of_few):
    """Two of them, on grids of 7 and 5 blocks."""
    return analyse(name_of_few, name_of_few, sizes=LEVEL_SIZES)


def test_a_counter_that_is_not_zeroed_is_noticed(strategy, few):
    config = at_level("ticket")
    program = strategy.emit(few, config, {})
    zero, launch = program.steps
    schedule = partition.schedule(few.payload.group, config, 1)
    assert verify.problems(schedule, program) == ()
    for steps in ((launch,), (dataclasses.replace(zero, byte=1), launch)):
        assert verify.problems(schedule, dataclasses.replace(program, steps=steps))
    for change in ({"counted": False}, {"stream": 1}):
        mutant = dataclasses.replace(program, steps=(dataclasses.replace(zero, **change), launch))
        assert verify.problems(schedule, mutant)


@pytest.mark.parametrize("kind", ["sequential", "stride"])
def test_a_wrong_launch_at_another_level_breaks_an_invariant(strategy, few, kind):
    program = strategy.emit(few, at_level(kind), {})
    schedule = partition.schedule(few.payload.group, at_level(kind), 1)
    assert verify.problems(schedule, program) == ()
    launch = program.steps[-1]
    for changes in ({"grid": (launch.grid[0] - 1, 1, 1)}, {"block": (640 + 32, 1, 1)}, {"shared_bytes": 100}):
        assert verify.problems(schedule, with_launch(program, **changes)), changes
    told = (*launch.arguments[:-1], Scalar(dtype="uint32", value=9))
    assert kind != "stride" or verify.problems(schedule, with_launch(program, arguments=told))


def test_a_toolkit_that_clang_finds_decides_nothing(analyse, monkeypatch):
    """Without one, clang takes no variadic function in device code, which the declarations of CUDA's `printf` are."""
    from fusiond.model.errors import RequestError
    from fusiond_hfuse.frontend import clang_tree, kernel_parser

    assert analyse("hist", "maxpool").rejections == ()
    kernel_parser._parsed.cache_clear()
    monkeypatch.setattr(clang_tree, "_NO_TOOLKIT", ("--cuda-path=/fusiond",))
    with pytest.raises(RequestError, match="variadic functions"):
        analyse("hist", "maxpool")
    kernel_parser._parsed.cache_clear()
