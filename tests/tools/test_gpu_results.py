"""What a GPU box found comes home: thinned, named by its lease, on its pages; and nothing that no GPU measured does."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks import runs
from benchmarks.headlines import page
from fusiond.model.errors import RequestError
from tools.gpu_box import results_import

DEVICE = {"name": "cuda:0", "model": "NVIDIA H100", "arch": "sm_90", "env": {"driver": "580.159"}}
ABOUT = {"evidence": "measured", "date": "2026-11-28T10:00:05+00:00", "device": DEVICE, "driver": "580", "nvcc": "13.0",
         "fusiond": "0.2", "machine": {}, "paper": ""}  # fmt: skip
SPANS = [123.456789] * 40


def headline(name: str, **changes: Any) -> dict[str, Any]:
    conclusion = {"winner": "seed", "opponent": "native", "verdict": "fuse", "speedup": 2.0, "ci95": [1.9, 2.1],
                  "time_us": 50.0, "opponent_us": 100.0, "clock": "device"}  # fmt: skip
    return ABOUT | {
        "benchmark": "headlines", "headline": name, "strategy": "stitching", "what": "it", "sizes": {},
        "entries": {"native": {"config": {}}, "seed": {"config": {"k": 1}}, "other": {"config": {"k": 2}}},
        "screened": {"seed": {"outcome": "right", "ratio": 2.0, "time_us": 50.0}}, "untried": 1,
        "finalists": {"unfused": ["native"], "fused": ["seed"]}, "conclusion": conclusion, "rivals": {},
        "finals": {"processes": [{"seed": {"span_us": SPANS}}], "lost": {}, "struck": []}, **changes,
    }  # fmt: skip


def packed(folder: Path, documents: dict[str, Any], date: str = "2026-11-28T10:00:00+00:00") -> Path:
    report = {
        "runs": [{"date": date, "command": "python run_all.py --call 1", "machine": {"gpu": "H100"},
                  "manifest": {"commit": "abc"}, "secs": 500.0}],
        "units": [{"name": "null", "state": "done", "output": "long" * 1000}],
    }  # fmt: skip
    for name, document in {"run_all.json": report, **documents}.items():
        runs.write(folder / "results" / name, document)
    with tarfile.open(folder / "results.tar.gz", "w:gz") as archive:
        archive.add(folder / "results", arcname="results")
    return folder / "results.tar.gz"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "docs").mkdir(parents=True)
    for name in ("README.md", "docs/results.md", "docs/frameworks.md", "docs/measuring.md"):
        (tmp_path / "root" / name).write_text((page.ROOT / name).read_text())
    return tmp_path / "root"


def everything() -> dict[str, Any]:
    agreement = ABOUT | {"benchmark": "agreement", "agrees": True, "rows": [
        {"elements": 1 << 24, "times_us": {"fusiond warm": 70.0, "ncu": 70.5}, "samples": {"ncu": SPANS}},
    ]}  # fmt: skip
    return {
        "headlines/softmax.json": headline("softmax"),
        "null.json": {"controls": [{"name": "a", "verdict": "keep", "speedup": 1.0, "ci95": [0.99, 1.01]}],
                      "verdicts": {"keep": 1}, "samples": SPANS},
        "calibrate.json": {"device": "cuda:0", "figures": {"steady_mhz": 1980.0, "copy_gbs": 3000.0}},
        "check-alive.json": {"results": [{"name": "alive/launches", "candidate": "graph", "outcome": "right",
                                          "samples": SPANS}]},
        "agreement-20261128T100010.json": agreement,
        "transfer/transfer-20261128T100020.json": ABOUT | {"benchmark": "transfer", "table_5": [], "table_6": [],
            "overlap": [{"elements": 1 << 24, "ways": [{"ratio": 1.7, "chunks": 8, "samples": SPANS}]}]},
    }  # fmt: skip


def test_all_of_it_comes_home_in_one_step(tmp_path: Path, root: Path) -> None:
    assert results_import.main([str(packed(tmp_path, everything())), "--no-count", "--root", str(root)]) == 0
    folder = root / "benchmarks" / "results" / "nvidia-h100"
    kept = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
    assert set(kept) == {
        "headlines-20261128T100000.json", "null-20261128T100000.json", "calibration-20261128T100000.json",
        "alive-20261128T100000.json", "agreement-20261128T100010.json", "transfer-20261128T100020.json",
    }  # fmt: skip
    run = kept["headlines-20261128T100000.json"]
    assert run["lease"]["units"] == {"null": "done"}
    assert run["lease"]["commit"] == "abc"
    found = run["headlines"]["softmax"]
    assert found["finals"]["processes"][0]["seed"]["span_us"] == [123.457] * results_import.SAMPLES
    assert found["configs"] == {"native": {}, "seed": {"k": 1}}
    assert "samples" not in json.dumps(kept["null-20261128T100000.json"])
    assert all(each["evidence"] == "measured" for each in kept.values())
    text = (root / "docs" / "results-gpu.md").read_text()
    assert "**2.00** (1.90 to 2.10)" in text
    assert "in 8 chunks **1.70** times as fast as whole" in text
    assert "1980 MHz under work" in text
    assert "**2.00**" in (root / "README.md").read_text()


def test_a_later_archive_of_a_lease_takes_the_place_of_the_first(tmp_path: Path, root: Path) -> None:
    results_import.bring(packed(tmp_path / "one", everything()), root, None)
    more = everything() | {"headlines/harris.json": headline("harris")}
    results_import.bring(packed(tmp_path / "two", more), root, None)
    (path,) = (root / "benchmarks" / "results" / "nvidia-h100").glob("headlines-*.json")
    assert set(json.loads(path.read_text())["headlines"]) == {"softmax", "harris"}
    results_import.bring(packed(tmp_path / "three", more, date="2026-12-01T08:00:00+00:00"), root, None)
    assert len(list(path.parent.glob("headlines-*.json"))) == 2


@pytest.mark.parametrize("evidence", ["emulated", "counted"])
def test_what_no_gpu_measured_stays_away(
    tmp_path: Path, root: Path, evidence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = packed(tmp_path, {"headlines/softmax.json": headline("softmax", evidence=evidence)})
    assert results_import.main([str(archive), "--no-count", "--root", str(root)]) == 2
    assert "not measured on one GPU" in capsys.readouterr().err
    assert not (root / "benchmarks").exists()


def test_what_is_no_archive_is_one_line(tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.tar.gz").write_text("text")
    assert results_import.main([str(tmp_path / "text.tar.gz"), "--root", str(root)]) == 2
    assert results_import.main([str(tmp_path / "gone.tar.gz"), "--root", str(root)]) == 2
    assert capsys.readouterr().err.count("\n") == 2
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "text.tar.gz", arcname="results/text")
    with pytest.raises(RequestError, match=r"holds no results of run_all\.py"):
        results_import.bring(tmp_path / "other.tar.gz", root, None)
