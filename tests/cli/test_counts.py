"""The tables and sentences of `--count`: what stands in each cell, what a sum leaves out, why a launch has none."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from fusiond.cli import counts
from fusiond.model.errors import RequestError


def row(program: str = "native", launch: str = "k", **fields: Any) -> dict[str, Any]:
    """A launch of 1 MB in and 0.5 MB out, all of it sectors that are used whole."""
    plain: dict[str, Any] = {
        "program": program, "launch": launch, "kernel": "k", "model": "h100", "failed": None,
        "global_read_bytes": 1_000_000, "global_write_bytes": 500_000, "atomic_bytes": 0,
        "read_sectors": 31_250, "write_sectors": 15_625, "atomic_sectors": 0,
        "minimal_bytes": 1_500_000, "dram_bytes": 1_500_000, "shared_wavefronts": 0, "shared_minimal_wavefronts": 0,
        "occupancy": 0.75, "bound_us": 4.0, "program_bound_us": 4.0, "binding": "dram", "sampled": 1.0, "error": 0.0,
    }  # fmt: skip
    return {**plain, **fields}


NULLS = {
    name: None
    for name, value in row().items()
    if name not in ("program", "launch", "kernel", "model", "failed") and value is not None
}


def shown(capsys: pytest.CaptureFixture[str], *rows: dict[str, Any]) -> tuple[str, list[list[str]], list[str]]:
    """The title, the cells of each launch, and the sentences below the table."""
    counts.show(rows)
    title, _, _, *rest = (each.rstrip() for each in capsys.readouterr().out.splitlines() if each.strip())
    cells = [re.split(r" {2,}", each.strip()) for each in rest[: len(rows)]]
    return title.strip(), cells, rest[len(rows) :]


def test_the_cells_of_a_launch(capsys: pytest.CaptureFixture[str]) -> None:
    title, cells, sentences = shown(
        capsys,
        row(dram_bytes=3_000_000, shared_wavefronts=300, shared_minimal_wavefronts=200, read_sectors=62_500),
        row(launch="atomic", atomic_bytes=4, atomic_sectors=1, global_read_bytes=0, global_write_bytes=0,
            read_sectors=0, write_sectors=0, minimal_bytes=0, dram_bytes=0, occupancy=None, binding="launch"),
    )  # fmt: skip
    assert title == "counted for h100 (nothing is measured)"
    assert cells == [
        ["native", "k", "1.5 MB", "60 %", "3 MB", "1.5 MB", "2.00", "1.50", "75 %", "4 us", "dram"],
        ["native", "atomic", "4 B", "12 %", "0 B", "0 B", "4 us", "launch"],
    ]
    assert sentences == ["native: 3 MB to and from DRAM, at least 4 us"]


@pytest.mark.parametrize(
    ("sampled", "error", "dram"),
    [
        (1.0, 0.0, "1.5 MB"),
        (0.25, 0.0, "1.5 MB (to 0%)"),
        (0.25, 0.034, "1.5 MB (to 3%)"),
        (1.0, 0.2, "1.5 MB (to 20%)"),  # behind a launch that was sampled
        (0.25, None, "1.5 MB (error unknown)"),
        (1.0, None, "1.5 MB (error unknown)"),
    ],
)
def test_what_is_sampled_says_how_far_it_may_be_off(
    capsys: pytest.CaptureFixture[str], sampled: float, error: float | None, dram: str
) -> None:
    _, (cells,), _ = shown(capsys, row(sampled=sampled, error=error))
    assert cells[4] == dram


def test_programs_are_summed_and_held_against_the_unfused_one(capsys: pytest.CaptureFixture[str]) -> None:
    """The bound is the program's own: launches may overlap, so theirs do not add up."""
    _, _, sentences = shown(
        capsys, row(launch="a", program_bound_us=6.0), row(launch="b", program_bound_us=6.0, dram_bytes=2_500_000),
        row("seed 0", dram_bytes=1_000_000, program_bound_us=4.0),
    )  # fmt: skip
    assert sentences == [
        "native: 4 MB to and from DRAM, at least 6 us",
        "seed 0: 1 MB to and from DRAM, at least 4 us; 0.25 times native's traffic, whose bound is 1.50 times this one",
    ]


def test_a_launch_that_was_not_counted_says_why_and_its_program_has_no_sum(capsys: pytest.CaptureFixture[str]) -> None:
    why = "softmax.cu:7: ld.global.f32: outside of every buffer"
    _, cells, sentences = shown(
        capsys, row(), row("seed 0", launch="before"), row("seed 0", launch="fused", **NULLS | {"failed": why}),
        row("seed 0", launch="after", **NULLS | {"failed": "not run: fused failed"}), row("seed 1"),
    )  # fmt: skip
    assert cells[2:4] == [["seed 0", "fused", "not counted"], ["seed 0", "after", "not counted"]]
    assert sentences == [
        "native: 1.5 MB to and from DRAM, at least 4 us",
        "seed 0: not counted",
        "seed 1: 1.5 MB to and from DRAM, at least 4 us; "
        "1.00 times native's traffic, whose bound is 1.00 times this one",
        f"seed 0, fused: {why}",
        "seed 0, after: not run: fused failed",
    ]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1536, "1.54 kB"), (999_000, "999 kB"), (1_000_000, "1 MB"),
        (536_870_912, "537 MB"), (1_073_741_824, "1.07 GB"), (2 * 10**12, "2 TB"), (3 * 10**15, "3e+03 TB"),
    ],
)  # fmt: skip
def test_sizes_are_in_powers_of_ten(count: int, text: str) -> None:
    assert counts.size(count) == text


def test_the_picture_names_every_launch_that_was_counted(tmp_path: Path) -> None:
    rows = [
        row(instructions=1, warp_instructions={"fp32": 500_000, "global": 100_000}),
        row("seed 0", "fused <1>", warp_instructions=None, ptx_instructions=19_200_000),
        row("seed 1", failed="it hung"),
    ]
    counts.draw(rows, tmp_path / "a.svg")
    texts = ElementTree.parse(tmp_path / "a.svg").iter("{http://www.w3.org/2000/svg}text")
    found = {each.text for each in texts}
    assert {"unfused k: dram, occupancy 75 %", "seed 0 fused <1>: dram, occupancy 75 %"} <= found
    assert not any("seed 1" in (each or "") for each in found)
    with pytest.raises(RequestError, match=r"cannot write .*: No such file"):
        counts.draw(rows, tmp_path / "none" / "a.svg")
    with pytest.raises(RequestError, match="no launch was counted"):
        counts.draw(rows[2:], tmp_path / "a.svg")
