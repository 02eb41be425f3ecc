"""Programs: what is sampled, filled and refused, and what the command says of it."""

import dataclasses
import json
from pathlib import Path

import pytest

from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices.counting import run
from fusiond.devices.counting.model import H100
from fusiond.devices.counting.run import count
from fusiond.devices.cpu import count as command
from fusiond.model.program import Buffer, Fill, Launch, Pointer, Program, Role, Source

from .test_dependence import N, chain

pytestmark = [pytest.mark.needs_nvcc, pytest.mark.slow, pytest.mark.usefixtures("counting")]
TINY = dataclasses.replace(H100, multiprocessors=4, most_blocks=4, l2_bytes=16 << 10)


def test_what_cannot_be_sampled_and_is_too_large_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST", 5000)
    rows = count(chain(), gpu=TINY, budget=1000).rows
    assert rows[0].failed == (
        "too large to be run whole (5,000 instructions of warps), and a later step goes by the values in copied"
    )
    assert [each.failed for each in rows[1:]] == ["not run: first failed"] * 2
    assert rows[0].bound_us is None


def test_large_buffers_are_left_empty_or_repeat_their_first_part(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = count(chain(), gpu=TINY, budget=None)
    monkeypatch.setattr(run, "_LARGE_BYTES", N)
    found = count(chain(), gpu=TINY, budget=10**9)
    assert whole.outputs.keys() == {"y"}
    assert found.outputs == {}  # of indices that are not those that were asked for, and of an x without its contents
    assert [each.failed for each in found.rows] == [None] * 3
    assert found.rows[0].minimal_bytes == whole.rows[0].minimal_bytes
    # The same quarter of the indices four times over: fewer distinct ones, each about as often in a warp.
    assert found.rows[2].read_sectors == pytest.approx(whole.rows[2].read_sectors, rel=0.01)


def test_the_command_takes_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_bundle(tmp_path / "bundle", chain(), {})
    found = {}
    for gpu in ("h100", "l4"):
        assert command.main([str(tmp_path / "bundle"), "--json", "--whole", "--gpu", gpu]) == 0
        found[gpu] = json.loads(capsys.readouterr().out)["counted"]
    assert [each["model"] for each in found["l4"]] == ["l4"] * 3
    for h100, l4 in zip(found["h100"], found["l4"], strict=True):
        assert l4["bound_us"] > h100["bound_us"] > 0
        assert (l4["sampled"], l4["error"], l4["failed"]) == (1.0, 0.0, None)
    assert command.main([str(tmp_path / "bundle"), "--gpu", "k80"]) == 2
    assert capsys.readouterr().err == "unknown GPU 'k80'; known: a100, h100, h200, l4, rtx4090\n"
    assert command.main([str(tmp_path / "bundle")]) == 0
    assert "at least" in capsys.readouterr().out


ENDS_EARLY = """
__global__ void ends_early(float* y)
{
    float value = y[blockIdx.x * 64 + threadIdx.x];
    const int turns = blockIdx.x < EARLY ? 400 : 2;
    for (int turn = 0; turn < turns; ++turn) value = value * value + 0.5f;
    y[blockIdx.x * 64 + threadIdx.x] = value;
}
"""


@pytest.mark.parametrize("early", [64, 100, 150])
def test_a_bound_of_blocks_that_end_early_is_still_a_bound(early: int) -> None:
    """The places that are run are at a quarter each: between two of them, twice too much is interpolated."""
    blocks = 512
    buffer = Buffer(name="y", dtype="float32", elements=64 * blocks, role=Role.INOUT, fill=Fill(kind="uniform"))
    text = ENDS_EARLY.replace("EARLY", str(early))
    launch = Launch(
        name="ends_early", source="s", entry="ends_early", grid=(blocks, 1, 1), block=(64, 1, 1),
        arguments=(Pointer(buffer="y"),),
    )  # fmt: skip
    source = Source(name="s", text=text, entries=("ends_early",))
    program = Program(name="p", buffers=(buffer,), sources=(source,), steps=(launch,))
    (whole,) = count(program, gpu=TINY, budget=None).rows
    (sampled,) = count(program, gpu=TINY, budget=2000).rows
    assert sampled.sampled < 0.5
    assert sampled.bound_us is not None
    assert whole.bound_us is not None
    error = sampled.error or 0.0
    assert sampled.bound_us <= (1 + error) * whole.bound_us
