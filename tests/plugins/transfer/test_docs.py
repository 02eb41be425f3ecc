"""docs/transfer.md and configs/jobs: every key that there is, and no other; the examples work."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fusiond.model.nouns import Analysis, Workload
from fusiond.requests import jobs
from fusiond.requests.planning import prepare
from fusiond.requests.registry import Registry
from fusiond_transfer.analysis import schedule
from fusiond_transfer.codegen import emit, pipeline
from fusiond_transfer.frontend import parser
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.python import KernelGraph
from fusiond_transfer.strategy import Transfer

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "transfer.md").read_text(encoding="utf-8")
JOBS = sorted((ROOT / "configs" / "jobs").glob("transfer-*.yaml"))


def first_cells(heading: str) -> list[str]:
    body = PAGE.partition(heading + "\n")[2].split("\n\n")[0].splitlines()[1:]
    assert body, heading
    return [line.strip("| ").split(" | ")[0].strip().strip("`") for line in body]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_key_is_documented_and_no_other(strategy: Transfer, analyse: Callable[..., Analysis]) -> None:
    _, job, graph = (PAGE.partition(f"## {name}")[2] for name in ("Transfer", "Keys of the job", "A graph"))
    assert job
    assert graph
    assert first_cells("| key | meaning | default |") == list(strategy.job_keys)
    assert sorted(first_cells("| key | meaning |")) == sorted(parser.KEYS)
    assert first_cells("| key of a kernel | meaning |") == list(parser.KERNEL_KEYS)
    names = {"together", "mapped", "managed"}  # test_delegation.py, test_mapped.py and so on have them
    for text in ("fig2", "fig2\nallocations: counted", "matmul", "fig2\nsizes: {elements: 100000}"):
        name, *lines = text.splitlines()
        names |= {each.name for each in strategy.space(analyse(name, *lines), {}).parameters}
    assert set(first_cells("| name | values | when |")) == names


def test_every_key_of_the_report_is_documented(analyse: Callable[..., Analysis]) -> None:
    reports = [analyse("matmul").report, analyse("fig2", "limits: {device_bytes: 114688}").report, analyse("cg").report]
    keys = {key for report in reports for key in report} | {"together"}
    assert keys == set(first_cells("| key of `analysis` | what |"))
    assert reports[-1]["paper"] == {"greedy": None, "tight": None}


def test_every_value_is_documented() -> None:
    table = PAGE.partition("| name | values | when |")[2].split("\n\n")[0]
    for value in (
        *schedule.GROUPINGS,
        "one_stream",
        "overlapped",
        "graph",
        *emit.ALLOCATIONS,
        *emit.STREAMS,
        *pipeline.ORDERS,
    ):
        assert f"`{value}`" in table, value


def test_the_catalogue_is_documented(registry: Registry) -> None:
    assert set(first_cells("| name | what |")) == set(registry.names("graph"))


def test_the_examples_work(parse: Callable[..., Workload]) -> None:
    job, graph = blocks("yaml")
    assert "graph: fig2" in job
    found: Graph = parse(graph).payload.graph
    assert found.name == "blend"
    namespace: dict[str, object] = {}
    exec(blocks("python")[0], namespace)
    built = namespace["graph"]
    assert isinstance(built, KernelGraph)
    assert parse(str(namespace["text"])).payload.graph == built.build()


def test_the_time_line_is_what_plan_prints(analyse: Callable[..., Analysis], strategy: Transfer) -> None:
    assert blocks("text")[0] in strategy.describe(analyse("fig2"))


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_jobs_that_are_shipped(path: Path, registry: Registry, strategy: Transfer) -> None:
    for job in jobs.read(path):
        jobs.check_keys(job, strategy.job_keys)
        assert prepare(registry, job).workload.name
    assert len(JOBS) == 6
