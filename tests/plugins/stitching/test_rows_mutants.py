"""Broken on purpose: what row_sweeps writes, changed in one place, is found wrong, or a race, or a fault."""

import re
from typing import Any

import pytest

from .test_codegen_mutants import killed, with_text
from .test_rows import planned

# (what is broken, case, threads, columns of a thread, pattern, what takes its place)
MUTANTS = [
    ("a barrier before the warps' parts are read", "a long row", 256, 4, r"__syncthreads\(\);", ""),
    ("a part of a warp", "layernorm", 256, 4, r"(warp_\d+ = )1", r"\g<1>2"),
    ("the parity of rounds", "both ways", 64, 4, r"parts_of_(\d+) \+ 2 \* at_\d+", r"parts_of_\1"),
    ("the last exchange of lanes", "softmax", 64, 8, r"step_0 = (\d+); step_0 > 0", r"step_0 = \1; step_0 > 1"),
    ("the exchange of lanes", "softmax", 64, 8, r"__shfl_xor_sync\((\w+), total_0, step_0",
     r"__shfl_xor_sync(\1, total_0, 0"),
    ("the guard of rows that are not there", "odd rows", 64, 4, r"if \(inside_0\) ", ""),
    ("the row of a thread", "softmax", 64, 8, r"threadIdx\.x / (\d+)", "0"),
    ("a kept column", "softmax", 64, 8, r"(kept_exponential_0\[)(\w+ \* \w+)? ?\+? ?j_\d+\] = ", r"\g<1>0] = "),
    ("the guard of columns", "rows no power", 64, 4, r"if \(vector_0 < \d+\) \{", "{"),
    ("the init value", "integers", 64, 4, r"(total_\d+) = 0;", r"\1 = 5;"),
    ("sums begin with what changes nothing", "columns", 64, 4, r"sums_0\[i_0\] = -0\.0f", "sums_0[i_0] = 1.0f"),
    ("groups of lanes meet", "columns", 64, 4, r"half_0 = (\d+); half_0 > 0", r"half_0 = \1; half_0 > 1"),
    ("a barrier between groups that meet", "columns", 64, 4, r"__syncthreads\(\);", ""),
    ("only the first group stores its sums", "columns", 64, 4, r"if \(own_1 == 0\)", "if (own_1 == 1)"),
    ("a warp's pieces meet", "groups by channel", 64, 4, r"(step_\d+) >= (\d+); \1 /= 2", r"\1 > \2; \1 /= 2"),
    ("the pieces of all warps", "groups by channel", 256, 4, r"warp_(\d+) = 1; warp_\1 < (\d+)",
     r"warp_\1 = 2; warp_\1 < \2"),
    ("all pieces of a run", "groups by channel", 64, 4, r"j_(\d+) = 0; j_\1 < 16; j_\1 \+= 1\)",
     r"j_\1 = 1; j_\1 < 16; j_\1 += 1)"),
    ("the second of a row's few", "router", 64, 16, r"(out_1\[)2 \* row_0 \+ 1", r"\g<1>2 * row_0"),
    ("the pieces' init value", "groups by channel", 64, 4, r"reduce_(\d+) = 2\.0f", r"reduce_\1 = -1.0f"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("what", "name", "threads", "per_thread", "pattern", "instead"), MUTANTS, ids=[each[0] for each in MUTANTS]
)
def test_a_mutant_dies(
    what: str, name: str, threads: int, per_thread: int, pattern: str, instead: str, runner: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from fusiond_stitching.analysis import row_groups

    monkeypatch.setattr(row_groups, "LARGE_BYTES", 0)
    batch, found = planned(name, threads, per_thread)
    program = batch.program(found.plan)
    assert killed(runner, batch, program) == ""
    mutant = with_text(program, lambda text: re.sub(pattern, instead, text, count=1))
    assert killed(runner, batch, mutant), what
