"""Faults put into fused kernels: each must be found by what the tests compare, without a GPU."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fusiond.devices.cpu.native import Fault
from fusiond.model import Config
from fusiond.program import Program, Scalar
from fusiond_hfuse.analysis import partition
from fusiond_hfuse.codegen import verify

from .fuzzing import differences_in_ptx

CONFIG = Config.of({"kind": "horizontal", "threads.a": 256, "threads.b": 384, "order": "ab"})
SIZES = {"a.n": 30_000, "b.n": 7_000, "a.bins": 18, "b.bins": 40}


@pytest.fixture
def pair(analyse, strategy, kernel_file, tmp_path):
    """Two histograms on grids of 7 blocks at most, so that a block too many counts something twice."""
    from fusiond_hfuse.plugin import KERNELS

    yaml = (KERNELS / "hist.yaml").read_text().replace("min(10000", "min(7").replace("kernel: hist", "kernel: few")
    name = kernel_file("hist", (KERNELS / "hist.cu").read_text(), yaml)
    analysis = analyse(name, name, sizes=SIZES)
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


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TEXT_MUTANTS)
def test_a_changed_text_is_noticed(runner, strategy, pair, name):
    analysis, program = pair
    mutant = with_text(program, *TEXT_MUTANTS[name])
    if "grid" in name:  # seven blocks of the one, more of the other
        mutant = with_launch(mutant, grid=(11, 1, 1), arguments=_with_grids(program, 7, 5))
        reference_ok = with_launch(program, grid=(11, 1, 1), arguments=_with_grids(program, 7, 5))
        assert not killed(runner, reference_ok, strategy.unfused(analysis, CONFIG))
    assert killed(runner, mutant, strategy.unfused(analysis, CONFIG))


@pytest.mark.slow
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

LEVEL_MUTANTS = {
    "sequential: b's blocks not counted from 0": ("sequential", "    block -= fusiond_a_grid_x;\n", ""),
    "sequential: a block of a's too many": (
        "sequential",
        "if (block < fusiond_a_grid_x)",
        "if (block <= fusiond_a_grid_x)",
    ),
    "sequential: a's blocks do b's work too": (
        "sequential",
        "        return;\n",
        "        block += fusiond_a_grid_x;\n",
    ),
    "sequential: surplus threads stay": ("sequential", "if (thread < 256)", "if (thread < 288)"),
    "sequential: threads missing": ("sequential", "if (thread < 256)", "if (thread < 224)"),
    "sequential: a's barrier counts the block": ("sequential", "::__syncthreads();", "FUSIOND_BARRIER(1, 384);"),
    "sequential: a's barrier dropped": ("sequential", "::__syncthreads();", ";"),
    "interleaved: nobody's turn": (
        "interleaved",
        "__umulhi(block + 1, fusiond_a_ratio)",
        "__umulhi(block, fusiond_a_ratio)",
    ),
    "interleaved: a's turn too often": (
        "interleaved",
        "__umulhi(block + 1, fusiond_a_ratio)",
        "__umulhi(block + 2, fusiond_a_ratio)",
    ),
    "interleaved: the share of b": ("interleaved", "fusiond_a_ratio)", "(0u - fusiond_a_ratio))"),
    "interleaved: b's blocks not counted from 0": ("interleaved", "    block -= before_a;\n", ""),
    "interleaved: a runs the launch's block": ("interleaved", "            before_a,\n", "            block,\n"),
    "ticket: not waited for": ("ticket", "    ::__syncthreads();\n    unsigned", "    unsigned"),
    "ticket: waited for by some": (
        "ticket",
        "    ::__syncthreads();\n    unsigned",
        "    if (thread < 256) ::__syncthreads();\n    unsigned",
    ),
    "multiprocessor: not waited for": ("multiprocessor", "    ::__syncthreads();\n    const", "    const"),
    "multiprocessor: one's own turn only": ("multiprocessor", "side = side + 1 == 2 ? 0 : side + 1;", "break;"),
    "multiprocessor: one counter for both": (
        "multiprocessor",
        "atomicAdd(fusiond_tickets + side",
        "atomicAdd(fusiond_tickets + 0 * side",
    ),
    "multiprocessor: a counter of a side's as a ticket": (
        "multiprocessor",
        "multiprocessor = 2 +",
        "multiprocessor = 1 +",
    ),
    "multiprocessor: everybody's first block": ("multiprocessor", "which = block;", "which = 0;"),
    "ticket: one for each thread": ("ticket", "if (thread == 0) ticket", "ticket"),
    "ticket: every second": ("ticket", "atomicAdd(fusiond_tickets, 1u)", "atomicAdd(fusiond_tickets, 2u)"),
    "ticket: always the first": ("ticket", "atomicAdd(fusiond_tickets, 1u)", "0"),
    "stride: begins with block 0": ("stride", "at = block;", "at = 0;"),
    "stride: too long a step": ("stride", "at += fusiond_blocks", "at += fusiond_blocks + 1"),
    "stride: once only": ("stride", "at += fusiond_blocks", "at += 1000"),
    "stride: a block too many": ("stride", "at < fusiond_a_grid_x", "at <= fusiond_a_grid_x"),
    "stride: the same block again": ("stride", "            at,\n", "            block,\n"),
    "stride: the other side's barrier": (
        "stride",
        "if (at != block) FUSIOND_BARRIER(1, 256)",
        "if (at != block) FUSIOND_BARRIER(2, 256)",
    ),
    "stride: some wait between blocks": (
        "stride",
        "if (at != block) FUSIOND_BARRIER(1, 256)",
        "if (thread < 64) FUSIOND_BARRIER(1, 256)",
    ),
}


def at_level(kind: str) -> Config:
    return STRIDE if kind == "stride" else Config.of({**SIDES, "level": "block", "assign": kind})


@pytest.fixture
def few(analyse, kernel_file):
    """Two histograms on grids of 7 and 5 blocks."""
    from fusiond_hfuse.plugin import KERNELS

    yaml = (KERNELS / "hist.yaml").read_text().replace("min(10000", "min(7").replace("kernel: hist", "kernel: few")
    name = kernel_file("hist", (KERNELS / "hist.cu").read_text(), yaml)
    return analyse(name, name, sizes=LEVEL_SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sequential", "interleaved", "ticket", "multiprocessor", "stride"])
def test_the_unchanged_levels_survive(runner, strategy, few, kind):
    program = strategy.emit(few, at_level(kind), {})
    assert not killed(runner, program, strategy.unfused(few, at_level(kind)))


@pytest.mark.slow
@pytest.mark.parametrize("name", LEVEL_MUTANTS)
@pytest.mark.sampled(6)
def test_a_changed_level_is_noticed(runner, strategy, few, name):
    kind, old, new = LEVEL_MUTANTS[name]
    mutant = with_text(strategy.emit(few, at_level(kind), {}), old, new)
    assert killed(runner, mutant, strategy.unfused(few, at_level(kind)))


def test_a_missing_barrier_between_strided_blocks_is_noticed(runner, strategy, analyse, zoo):
    """A reversal through shared memory: a slow thread still reads the cell that a fast one fills for the next block."""
    analysis = analyse(zoo["reverse"], zoo["reverse"], sizes={"a.gx": 3, "b.gy": 5})
    config = Config.of({**STRIDE, "threads.a": 64, "threads.b": 64})
    program = strategy.emit(analysis, config, {})
    reference = strategy.unfused(analysis, config)
    for number in (1, 2):
        mutant = with_text(program, f"if (at != block) FUSIOND_BARRIER({number}, 64);", "")
        assert killed(runner, mutant, reference, ("a.out", "b.out"))
    assert not killed(runner, program, reference, ("a.out", "b.out"))


def test_a_counter_that_is_not_zeroed_is_noticed(runner, strategy, few):
    config = at_level("ticket")
    program = strategy.emit(few, config, {})
    zero, launch = program.steps
    reference = strategy.unfused(few, config)
    schedule = partition.schedule(few.payload.group, config, 1)
    assert verify.problems(schedule, program) == ()
    for steps in ((launch,), (dataclasses.replace(zero, byte=1), launch)):
        mutant = dataclasses.replace(program, steps=steps)
        assert killed(runner, mutant, reference)
        assert verify.problems(schedule, mutant)
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
    from fusiond.errors import RequestError
    from fusiond_hfuse.frontend import clang_tree, kernel_parser

    assert analyse("hist", "maxpool").rejections == ()
    kernel_parser._parsed.cache_clear()
    monkeypatch.setattr(clang_tree, "_NO_TOOLKIT", ("--cuda-path=/fusiond",))
    with pytest.raises(RequestError, match="variadic functions"):
        analyse("hist", "maxpool")
    kernel_parser._parsed.cache_clear()
