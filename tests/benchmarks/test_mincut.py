"""The benchmark of image pipelines: what it reads off trials, and its page is made of its files."""

import json
from pathlib import Path

import pytest

from benchmarks.mincut import __main__ as bench
from benchmarks.mincut import measure, page
from fusiond.model.inputs import documents
from fusiond.model.nouns import Config
from fusiond.model.outcomes import Measurement, Outcome, Purpose, Trial
from fusiond_mincut.analysis import partition
from fusiond_mincut.analysis.benefit import PAPER
from fusiond_mincut.codegen import block_configs
from fusiond_mincut.frontend import parser
from fusiond_mincut.plugin import PIPELINES

SIZES = {"width": 37, "height": 23}


def small(name: str):
    path = PIPELINES / f"{name}.yaml"
    return parser.read(documents.parse(path.read_text(), str(path)), SIZES)


def trial(role: str, origin: str, time_us: float, **config: str) -> Trial:
    measurement = Measurement(span_us=(time_us,), clock="device", purpose=Purpose.SEARCH)
    return Trial(
        sequence=0, config=Config.of(config), role=role, origin=origin, outcome=Outcome.MEASURED, ratio=1.0,
        time_us=time_us, measurement=measurement,
    )  # fmt: skip


def test_methods_are_read_off_the_trials() -> None:
    pipeline = small("unsharp")
    whole = str(partition.planned(pipeline, PAPER).partition)
    apart = "gauss|sharp|ratio|unsharp"
    report = {"operations": dict.fromkeys("abcd"), "basic": apart, "partition": whole, "optimum": {"partition": whole}}
    trials = [
        trial("baseline:sequential", "given", 100.0),
        trial("baseline:graph", "tuned", 80.0),
        trial("candidate", "seed:algorithm1", 40.0, partition=whole, shapes=block_configs.DEFAULT),
        trial("candidate", "grid", 25.0, partition=whole, shapes="32x4*1 tile"),
        trial("candidate", "seed:unfused", 100.0, partition=apart, shapes=block_configs.DEFAULT),
    ]
    found = measure.methods(trials, measure.partitions(report, trials))
    assert (found["given_us"], found["fastest_unfused_us"]) == (100.0, 80.0)
    assert found["algorithm1"]["over_given"] == 2.5
    assert found["algorithm1"]["best_over_given"] == 4.0
    assert found["basic"]["over_given"] == found["unfused"]["over_given"] == 1.0


def test_the_page_is_made_of_the_kept_files() -> None:
    assert page.PAGE.read_text() == page.render(bench.kept())


def test_a_measured_run_stands_beside_the_paper() -> None:
    methods = {
        "algorithm1": {"partition": "a|b", "over_given": 1.31, "best_over_given": 1.52},
        "basic": {"over_given": 1.11},
    }
    sums = [{"partition": "a+b", "blocks_us": 10.0}, {"partition": "a|b", "blocks_us": 12.5}]
    rivals = [{"name": "CuPy", "problem": "not installed"}, {"name": "JAX", "ratio": 3.5, "clock": "wall"}]
    answer = {"verdict": "fuse", "speedup": 1.234, "ci95": [1.2, 1.3], "baseline": "graph"}
    run = {
        "date": "2026-01-01T00:00:00", "evidence": "measured", "device": {"model": "X100"}, "command": "c",
        "machine": {"cores": 1, "processor": "p"},
        "applications": [{"application": "harris", "answer": answer, "methods": methods, "sums": sums,
                          "rivals": rivals},
                         {"application": "sobel", "problem": "lost"}],
    }  # fmt: skip
    text = page.render([run])
    assert (
        "| harris | fuse | 1.234 | 1.200 to 1.300 | graph | 3.50 (JAX, wall clock) "
        "| 1.11 | 1.31 |  |  | 1.52 | 25.0 | 1.04 / 1.27 / 1.09 |" in text
    )
    assert "| sobel | lost |" in text
    assert "- CuPy (harris): not installed" in text


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_an_application_from_the_command_to_the_file(tmp_path: Path, gxx_here: None) -> None:
    assert bench.main(["--device", "cpu", "--quick", "--only", "enhance", "--out", str(tmp_path)]) == 0
    (kept,) = tmp_path.glob("mincut-*.json")
    (row,) = json.loads(kept.read_text())["applications"]
    assert row["evidence"] == "emulated"
    assert row["methods"]["algorithm1"]["partition"] == "mean+gain+corrected"
    assert row["methods"]["algorithm1"]["default_us"] > 0
    assert [each["name"] for each in row["rivals"]] == ["CuPy", "torch.compile", "JAX"]
    assert {each["problem"] for each in row["rivals"]} == {"rivals are measured on a GPU"}
    assert row["answer"]["verdict"] in ("fuse", "keep", "undecided")
