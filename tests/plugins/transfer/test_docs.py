"""docs/transfer.md and configs/jobs: every key that there is, and no other; the examples work."""

import re
from pathlib import Path

import pytest

from fusiond.requests import jobs
from fusiond.requests.planning import prepare
from fusiond.requests.registry import Registry
from fusiond_transfer.analysis import describe, schedule
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.codegen import emit, pipeline
from fusiond_transfer.frontend import parser
from fusiond_transfer.frontend.generator import Shape, random_graph
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.strategy import Transfer

from .conftest import Analyse, Parse, Read

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "transfer.md").read_text(encoding="utf-8")
JOBS = sorted((ROOT / "configs" / "jobs").glob("transfer-*.yaml"))


def first_cells(heading: str) -> list[str]:
    body = PAGE.partition(heading + "\n")[2].split("\n\n")[0].splitlines()[1:]
    assert body, heading
    return [line.strip("| ").split(" | ")[0].strip().strip("`") for line in body]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_key_is_documented_and_no_other(strategy: Transfer, analyse: Analyse) -> None:
    _, job, graph = (PAGE.partition(f"## {name}")[2] for name in ("Transfer", "Keys of the job", "A graph"))
    assert job
    assert graph
    assert first_cells("| key | meaning | default |") == list(strategy.job_keys)
    assert sorted(first_cells("| key | meaning |")) == sorted(parser.KEYS)
    assert first_cells("| key of a kernel | meaning |") == list(parser.KERNEL_KEYS)
    names = {"together", "mapped", "managed"}  # test_delegation.py and test_one_memory.py have them
    for text in ("fig2", "fig2\nallocations: counted", "matmul", "fig2\nsizes: {elements: 100000}"):
        name, *lines = text.splitlines()
        names |= {each.name for each in strategy.space(analyse(name, *lines), {}).parameters}
    assert set(first_cells("| name | values | when |")) == names


def test_every_key_of_the_report_is_documented(analyse: Analyse) -> None:
    reports = [analyse("matmul").report, analyse("fig2", "limits: {device_bytes: 114688}").report, analyse("cg").report]
    keys = {key for report in reports for key in report} | {"together"}
    assert keys == set(first_cells("| key of `analysis` | what |"))
    assert reports[-1]["paper"] == {"greedy": None, "tight": None}


def test_every_value_is_documented() -> None:
    table = PAGE.partition("| name | values | when |")[2].split("\n\n")[0]
    issues = ("one_stream", "overlapped", "graph")
    for value in (*schedule.GROUPINGS, *issues, *emit.ALLOCATIONS, *emit.STREAMS, *pipeline.ORDERS):
        assert f"`{value}`" in table, value


def test_the_catalogue_is_documented(registry: Registry) -> None:
    assert set(first_cells("| name | what |")) == set(registry.names("graph"))


def test_the_examples_work(parse: Parse) -> None:
    job, graph = blocks("yaml")
    assert "graph: fig2" in job
    found: Graph = parse(graph).payload.graph
    assert found.name == "blend"


def test_the_time_line_is_what_plan_prints(analyse: Analyse, strategy: Transfer) -> None:
    assert blocks("text")[0] in strategy.describe(analyse("fig2"))


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_jobs_that_are_shipped(path: Path, registry: Registry, strategy: Transfer) -> None:
    for job in jobs.read(path):
        jobs.check_keys(job, strategy.job_keys)
        assert prepare(registry, job).workload.name
    assert len(JOBS) == 6


# --- what `plan` prints of a graph ----------------------------------------------------------------------


FIGURE_2 = """\
time line: uploads before a kernel | downloads behind it; a name: may cross, [name]: does
  0 k0 (device) [A] [B] [C]  .  | [D] [E]  .   .   .   .   .
  1 k1 (host)    .   .   C   .  |  D   .   .   .   .   .   .
  2 k2 (device)  .   .   C  [F] |  D   .   I   .   .   .   .
  3 k3 (device)  .   .   .   .  |  D   .   I   J   K   .   .
  4 k4 (device)  .   .   .   .  |  D   .  [I] [J] [K] [L] [M]

messages: 4 for 11 vectors to carry, 7 saved
  before k0: upload A B C: 49152 bytes
  after k0: download D E: 32768 bytes
  before k2: upload F: 16384 bytes
  after k4: download I J K L M: 81920 bytes

layout, alike in both memories: 180224 bytes
  A at 0, B at 16384, C at 32768, D at 49152, E at 65536, F at 81920, I at 98304, J at 114688, K at 131072
  L at 147456, M at 163840

4 messages: proven to be the fewest in this order of the kernels
uploads that no slot has in common: A [0..0], F [2..2]
downloads that no slot has in common: E [0..0], L [4..4]
"""


def test_figure_2_is_drawn_as_in_the_paper(analyse: Analyse, strategy: Transfer) -> None:
    assert strategy.describe(analyse("fig2")).partition("\nchunks: ")[0] == FIGURE_2


def test_a_loop_shows_the_next_turn(graph: Read) -> None:
    """The paper's table of the same graph, as a loop: a slot behind the last kernel is in the next iteration."""
    text = describe.timeline(Schedules(graph("cg")).least.schedule)
    assert "[q]" in text
    assert "[p_next]" in text


def test_the_bytes_of_a_message_are_those_that_are_copied(analyse: Analyse, strategy: Transfer, graph: Read) -> None:
    """From the first byte of the first vector to the last of the last, alignment between them included."""
    text = """graph: small
inputs: [a, b]
outputs: [c]
vectors: {a: {elements: 3}, b: {elements: 5}, c: {elements: 7}}
kernels:
  - {name: k, on: device, reads: [a, b], writes: [c]}
"""
    shown = strategy.describe(analyse(text))
    assert f"before k: upload a b: {256 + 5 * 4} bytes" in shown
    assert "after k: download c: 28 bytes" in shown


def test_what_is_too_large_is_said_and_not_drawn() -> None:
    graph = random_graph(Shape(kernels=300, inputs=9, indegree=(1, 2), outdegree=(1, 2), seed=1))
    found = Schedules(graph).least.schedule
    assert describe.timeline(found).startswith(f"time line: {len(found.crossings)} vectors over")
    assert all(len(line) <= 160 for line in describe.timeline(found).splitlines())
