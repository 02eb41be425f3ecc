"""Copies between host and device as a graph that the strategy `transfer` takes."""

from pathlib import Path

import pytest
import yaml

from fusiond.cli import main
from fusiond.cuda.capture import copies, trace
from fusiond.cuda.capture.trace import Direction
from fusiond.requests import jobs, planning
from fusiond.requests.isolation import registry as plugins
from tests.cuda.capture.conftest import Program, X, Y, Z

UP, DOWN = Direction.TO_DEVICE, Direction.TO_HOST
HOST = 0x1000


def graph(program: Program) -> dict:
    found = yaml.safe_load(copies.graph(trace.read(program.writer.close())[0], "copies"))
    assert isinstance(found, dict)
    return found


def test_up_through_a_kernel_and_down(program: Program) -> None:
    program.writer.copy(Y, HOST, 4000, UP)
    program.launch_scale(X, Y, 1000)
    program.writer.copy(HOST, X, 2000, DOWN)
    found = graph(program)
    assert (found["inputs"], found["outputs"]) == (["v2", "v4"], ["v1"])
    assert found["placed"] == ["v4"], "the variable, of which no copy is known"
    assert found["kernels"] == [{"name": "scale_1", "on": "device", "reads": ["v2", "v4"], "writes": ["v1"]}]
    assert found["vectors"] == {"v2": {"elements": 4000}, "v1": {"elements": 2000}, "v4": {"elements": 64}}


def test_the_host_between(program: Program) -> None:
    program.writer.copy(Y, HOST, 4000, UP)
    program.launch_rows(X, Y, 1000)
    program.writer.copy(HOST, X, 4000, DOWN)
    program.writer.wait()
    program.writer.copy(Y, HOST, 4000, UP)
    program.launch_rows(X, Y, 1000)
    program.writer.copy(HOST, X, 4000, DOWN)
    found = graph(program)
    assert [(each["name"], each["reads"], each["writes"]) for each in found["kernels"]] == [
        ("rows_1", ["v2"], ["v1"]), ("host_1", ["v1"], ["v2"]), ("rows_2", ["v1", "v2"], ["v1"]),
    ]  # fmt: skip
    assert found["outputs"] == ["v1"]


def test_what_comes_down_before_it_is_written_again(program: Program) -> None:
    for _ in range(2):
        program.launch_rows(X, Z, 1000)
        program.writer.copy(HOST, X, 4000, DOWN)
    found = graph(program)
    assert [each["name"] for each in found["kernels"]] == ["rows_1", "host_1", "rows_2"]
    assert found["outputs"] == ["v1", "seen_1"]


def test_plan_takes_it(program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program.writer.copy(Y, HOST, 4000, UP)
    program.writer.copy(Z, HOST, 4000, UP)
    program.launch_scale(X, Y, 1000)
    program.launch_rows(Y, Z, 1000)
    program.writer.copy(HOST, X, 4000, DOWN)
    program.writer.copy(HOST, Y, 4000, DOWN)
    assert main(["capture", str(program.writer.close()), "--pick", "copies", "--to", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.count("wrote") == 2
    (job,) = jobs.read(tmp_path / "out" / "job_copies.yaml")
    found = planning.plan(plugins.load(), job)
    assert not found.refused
    assert "2 for 4 vectors to carry" in found.description


def test_nothing_comes_back(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    program.launch_scale(X, Y, 1000)
    assert main(["capture", str(program.writer.close()), "--pick", "copies"]) == 2
    assert "nothing comes back to the host" in capsys.readouterr().err
