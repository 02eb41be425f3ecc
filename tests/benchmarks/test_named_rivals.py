"""Rivals that a benchmark measures by means of its own: every one of them has a row, with a figure or a reason."""

from typing import Any

from benchmarks.rivals import named_rivals

SEPARATE = {"way": "separate", "time_us": 100.0, "ratio": None, "clock": "wall"}
FUSED = {"way": "fused", "time_us": 80.0, "ratio": 1.25, "clock": "wall"}
FASTEST = {"way": "fastest", "time_us": 50.0, "ratio": 2.0, "clock": "wall"}


def rows(*ways: dict[str, Any], emulated: bool = False) -> dict[str, Any]:
    return {each["name"]: each for each in named_rivals.transfer(ways, emulated=emulated)}


def test_copies_stand_beside_the_fastest_of_our_ways() -> None:
    batch = {"way": "batch", "time_us": 40.0, "ratio": 2.5, "clock": "wall"}
    found = rows(SEPARATE, FUSED, FASTEST, batch)["cudaMemcpyBatchAsync"]
    assert (found["ratio"], found["ours_us"], found["time_us"]) == (0.8, 50.0, 40.0)


def test_what_is_missing_says_why() -> None:
    batch: dict[str, Any] = {"way": "batch", "problem": "launch_refused: no such call"}
    found = rows(SEPARATE, FUSED, batch)
    assert found["cudaMemcpyBatchAsync"]["problem"] == "launch_refused: no such call"
    assert "pageable copies" in found["CUDA graph"]["problem"]
    batch = {"way": "batch", "time_us": 40.0, "ratio": 2.5, "clock": "wall"}
    assert "nothing of ours" in rows(SEPARATE, batch)["cudaMemcpyBatchAsync"]["problem"]


def test_emulated_times_make_no_ratio() -> None:
    batch = {"way": "batch", "time_us": 40.0, "ratio": 2.5, "clock": "emulated"}
    found = rows(SEPARATE, FUSED, batch, emulated=True)
    assert {each["problem"] for each in found.values()} == {"rivals are measured on a GPU"}


def test_xla_that_was_not_timed_says_why() -> None:
    refused = named_rivals.stitching({"xla": {"problem": "XLA: no such opcode"}}, why="not asked")
    assert refused[0]["problem"] == "XLA: no such opcode"
    assert named_rivals.stitching({}, why="not asked")[0]["problem"] == "not asked"
    assert named_rivals.stitching({"xla": {"fusable_us": 0.0}, "over_xla": {}}, why="")[0]["problem"].startswith(
        "XLA gives all"
    )
