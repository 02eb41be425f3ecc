"""Which launches are said not to need each other, and how they are listed."""

import json
from pathlib import Path

import pytest

from fusiond.cli import main
from fusiond.cuda.capture import trace
from fusiond.cuda.capture.report import CaptureReport, report
from fusiond.cuda.capture.trace import Direction
from fusiond.service.client.client import Client
from tests.cuda.capture.conftest import WEIGHTS, Program, X, Y, Z
from tests.cuda.capture.writing import pointer


def of(program: Program) -> CaptureReport:
    return report(trace.read(program.writer.close())[0])


def groups(program: Program) -> list[tuple[tuple[int, ...], int]]:
    return [(each.numbers, each.count) for each in of(program).groups]


def test_launches_that_touch_nothing_in_common(program: Program) -> None:
    program.launch_scale(X, Y, 1000)
    program.launch_rows(Z, Y, 1000)
    assert groups(program) == [((1, 2), 1)], "both read y"


@pytest.mark.parametrize(("data", "at"), [(X, Z), (Y, Z), (Z, X)], ids=["both write", "over a read", "of a write"])
def test_launches_that_need_each_other(program: Program, data: int, at: int) -> None:
    program.launch_scale(X, Y, 1000)
    program.launch_rows(data, at, 1000)
    assert groups(program) == []


def test_a_launch_comes_forward_past_what_it_does_not_need(program: Program) -> None:
    program.launch_scale(X, Y, 1000)
    program.launch_scale(X, X, 1000)
    program.launch_rows(Z, Y, 1000)
    assert groups(program) == [((1, 2), 1)]


def test_it_does_not_come_forward_past_what_writes_for_it(program: Program) -> None:
    program.launch_scale(X, Y, 1000)
    program.writer.copy(Z, 1234, 4000, Direction.TO_DEVICE)
    program.launch_rows(Z, Y, 1000)
    assert groups(program) == []


def test_nothing_passes_a_copy_to_a_variable_that_it_reads(program: Program) -> None:
    program.launch_rows(Z, Y, 1000)
    program.writer.copy(WEIGHTS, 1234, 64, Direction.TO_DEVICE)
    program.launch_scale(X, Y, 1000)
    assert groups(program) == []


def test_addresses_from_memory_may_be_any(program: Program) -> None:
    program.launch_scale(X, Y, 1000)
    program.writer.launch(program.follow, [1], [32], [pointer(Z)])
    assert groups(program) == []


def test_waits_of_the_host_are_counted(program: Program) -> None:
    for wait in (True, False, True):
        program.launch_scale(X, Y, 1000)
        if wait:
            program.writer.wait()
        program.launch_rows(Z, Y, 1000)
        program.writer.copy(1234, X, 4000, Direction.TO_HOST)
        program.launch_scale(X, X, 1)
        for _ in range(30):
            program.writer.wait()
    (first,) = [each for each in of(program).groups if each.numbers == (1, 2)]
    assert (first.count, first.waits) == (3, 2)
    assert first.reasons == ("the host waits between them (2 of 3 times)",)


def test_an_allocator_hands_out_parts(program: Program) -> None:
    """Four addresses at multiples of 512 bytes of one large allocation, as PyTorch's caching allocator has them."""
    pool = 0x7F2000000000
    program.writer.allocate(pool, 2**22)
    x, y, z, other = (pool + 4096 * each for each in range(4))
    program.launch_scale(x, y, 1000)
    program.launch_rows(z, other, 1000)
    assert groups(program) == [((1, 2), 1)]


def test_measured_times_order_kernels_and_groups(program: Program) -> None:
    program.launch_scale(X, Y, 1000)
    program.launch_rows(Z, Y, 1000)
    program.writer.elapsed(0, 2000)
    program.writer.elapsed(1, 10_000)
    made = of(program)
    assert [(each.kernel.number, each.mean_us) for each in made.kernels] == [(2, 10.0), (1, 2.0)]
    (found,) = made.groups
    assert found.hidden_us == pytest.approx(2.0 + made.gpu.launch_gap_us), "each leaves nearly all of the GPU idle"


def test_how_much_of_the_gpu_a_kernel_fills(program: Program) -> None:
    program.writer.launch(program.rows, [132 * 16 * 3], [128], [bytes(24), pointer(Y)])
    (found,) = of(program).kernels
    assert (found.occupancy.blocks_per_sm, found.waves, found.fill) == (16, 3.0, 1.0)


def test_the_list_and_the_document(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    program.launch_scale(X, Y, 1000)
    program.launch_rows(Z, Y, 1000)
    program.writer.copy(1234, X, 4000, Direction.TO_HOST)
    folder = str(program.writer.close())
    assert main(["capture", folder]) == 0
    listed = capsys.readouterr().out
    assert " scale " in listed
    assert "1,2" in listed
    assert "copies to host: 1, 4000 bytes" in listed
    assert main(["capture", folder, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["number"] for each in document["kernels"]] == [1, 2]
    assert document["groups"][0]["kernels"] == [1, 2]
    assert document["copies"] == [{"direction": "to host", "count": 1, "bytes": 4000}]


def test_picking(program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program.launch_scale(X, Y, 1000)
    program.launch_rows(Z, Y, 1000)
    folder = str(program.writer.close())
    assert main(["capture", folder, "--pick", "1,2", "--to", str(tmp_path / "picked")]) == 0
    assert (tmp_path / "picked" / "job_1_2.yaml").read_text().startswith("strategy: hfuse\npair: [./scale_1.yaml")
    assert "job_1_2.yaml" in capsys.readouterr().out
    for wrong in ("3", "0", "x"):
        assert main(["capture", folder, f"--pick={wrong}"]) == 2
        assert "--pick" in capsys.readouterr().err


def test_picked_kernels_that_need_each_other(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    program.launch_scale(X, Y, 1000)
    program.launch_rows(X, Y, 1000)
    folder = program.writer.close()
    assert main(["capture", str(folder), "--pick", "1,2"]) == 0
    assert "note: in the capture they are never launched without" in capsys.readouterr().out
    assert (folder / "job_1_2.yaml").read_text().startswith("# in the capture they are never")


def test_the_page(program: Program, tmp_path: Path) -> None:
    program.launch_scale(X, Y, 1000)
    program.launch_rows(Z, Y, 1000)
    assert main(["capture", str(program.writer.close()), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "<code>rows</code>" in page
    assert "1,2" in page
    assert "http" not in page.replace("http://www.w3.org", ""), "it loads nothing"


def test_submitting(program: Program, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    handed: list[Path] = []

    def submit(self: Client, path: Path) -> tuple[str, ...]:
        handed.append(path)
        return ("abc",)

    monkeypatch.setattr(Client, "submit", submit)
    program.launch_scale(X, Y, 1000)
    program.launch_rows(Z, Y, 1000)
    program.writer.copy(1234, X, 4000, Direction.TO_HOST)
    program.writer.copy(X, 1234, 4000, Direction.TO_DEVICE)
    program.launch_scale(X, Y, 1000)
    program.launch_rows(Z, Y, 700, blocks=3)
    assert main(["capture", str(program.writer.close()), "--submit", "--json"]) == 0
    found, other = json.loads(capsys.readouterr().out)["submitted"]
    assert found["kernels"] == [1, 2]
    assert found["ids"] == ["abc"]
    assert sorted(other["kernels"]) == [1, 2]
    assert [each.parent.relative_to(each.parents[2]).as_posix() for each in handed] == ["groups/1", "groups/2"]
    assert len({path.read_text() for path in handed[0].parents[1].glob("*/rows*.yaml")}) == 2, "a shape each"
    assert handed[0].read_text().startswith("# captured: 1 times\nstrategy: hfuse\npair: ")


@pytest.mark.parametrize(
    ("facts", "gpu"), [('{"device": "l4"}', "l4"), ('{"device": "GeForce"}', "h100"), ("{", "h100")]
)
def test_the_gpu_is_that_of_the_capture(
    facts: str, gpu: str, program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    program.launch_scale(X, Y, 1000)
    folder = program.writer.close()
    (folder / "capture.json").write_text(facts)
    assert main(["capture", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpu"] == gpu


def test_bounds_are_counted_where_they_are_asked_for(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    program.launch_scale(X, Y, 1000)
    program.launch_rows(Z, Y, 1000)
    folder = str(program.writer.close())
    for count in ([], ["--count"]):
        assert main(["capture", folder, *count, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        bounds = [(each["bound_us"], each["bound_by"]) for each in found["kernels"]]
        assert all(bound and bound > 0 and by for bound, by in bounds) if count else bounds == [(None, None)] * 2
    assert main(["capture", folder, "--count"]) == 0
    assert " us, " in capsys.readouterr().out
