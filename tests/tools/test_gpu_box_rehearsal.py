"""The half hour without a GPU: the folder that is carried to a GPU box, run there by its one command with real PyCUDA,
over the fake driver in place of libcuda.so.1. What kernels compute and how long they take is the fake's (fake_module.h,
fake_timeline.h); what is shown is that every unit ends, leaves its results, and goes on from them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fusiond.cuda.entries import read_table
from fusiond.devices.calibration import FIGURES
from tools.gpu_box import build, run_all

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs_nvcc,
    pytest.mark.skipif(
        importlib.util.find_spec("pycuda") is None,
        reason="PyCUDA is not installed: pip install 'fusiond[cuda]', with nvcc on PATH (it is linked with libcuda: the"
        " fake driver will do, as libcuda.so in a folder of LIBRARY_PATH)",
    ),
]

BOARD = (
    "event_us=1.7 mhz=1980 idle_mhz=345 ramp_us=30000 idle_after_us=1000000 launch_us=6 load_us=800 noise=0.003"
    " step_ns=1000 kernel_us=120 gap_us=0.7 node_gap_us=1 release_us=2 copy_gbs=3000 up_gbs=50 down_gbs=40"
    " fma_tflops=60 us:fusiond_empty=2.5 free_gib=12"
)
ENTRIES = ("hfuse:hist,maxpool", "mincut:sobel", "stitching:lr_step", "transfer:fig2", "questions")


class Boxes:
    """Machines with the folder and the fake driver; each knows nothing of the others."""

    def __init__(self, carried: Path, driver: Path, folder: Path) -> None:
        self._carried, self._folder = carried, folder
        self._lib = folder / "lib"
        self._lib.mkdir()
        shutil.copy(driver, self._lib / "libcuda.so.1")

    def fresh(self, name: str) -> Path:
        """Another machine, with the folder unpacked."""
        with tarfile.open(self._carried) as archive:
            archive.extractall(self._folder / name, filter="data")
        (found,) = (self._folder / name).iterdir()
        return found

    def run(self, box: Path, *words: str, knobs: str = "") -> tuple[int, dict[str, Any]]:
        """The exit status of `python run_all.py`, and the report in the archive."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FUSIOND", "PYTHONPATH"))}
        pycuda = importlib.util.find_spec("pycuda")
        assert pycuda is not None
        assert pycuda.origin is not None
        environment = kept | {
            "FUSIOND_FAKE_GPU": f"{BOARD} {knobs}",
            "FUSIOND_LOCKS": str(self._folder / "locks"),
            "LD_LIBRARY_PATH": os.pathsep.join([str(self._lib), *filter(None, [kept.get("LD_LIBRARY_PATH")])]),
            "PYTHONPATH": str(Path(pycuda.origin).parent.parent),
        }
        done = subprocess.run(
            [sys.executable, "run_all.py", *words],
            cwd=box,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        print(done.stdout, done.stderr)
        report: dict[str, Any] = json.loads(inside(box / "results.tar.gz")["results/run_all.json"])
        for each in report["units"]:
            print(each["name"], each["state"], each.get("output"), each.get("errors"))
            assert "Traceback" not in each.get("output", "") + each.get("errors", ""), each["name"]
        return done.returncode, report


def inside(archive: Path) -> Mapping[str, bytes]:
    """The files of an archive."""
    with tarfile.open(archive) as packed:
        return {each.name: packed.extractfile(each).read() for each in packed if each.isfile()}  # type: ignore[union-attr]


def document(box: Path, name: str) -> Any:
    return json.loads(inside(box / "results.tar.gz")[f"results/{name}"])


def states(report: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"]: each["state"] for each in report["units"]}


def outcomes(box: Path, name: str) -> dict[tuple[str, str], str]:
    return {(each["name"], each["candidate"]): each["outcome"] for each in document(box, name)["results"]}


def symbol(box: Path, entry: str, question: str) -> str:
    """The name that a question's kernel has in its cubin."""
    found = json.loads((box / "bundles" / "index.json").read_text())["entries"]
    (path,) = [
        candidate["path"]
        for each in found if each["name"] == f"questions/{question}"
        for candidate in each["candidates"] if candidate["name"] == entry
    ]  # fmt: skip
    (binary,) = (box / "bundles" / path / "binaries").glob("*.cubin")
    return read_table(binary).entries[entry].mangled


def carried(folder: Path, *only: str) -> Path:
    assert build.main([str(folder / "gpu-box"), "--no-fetch", "--only", *only]) == 0
    return folder / "gpu-box.tar.gz"


def test_a_session_cut_short_goes_on_on_another_machine(fake_libcuda: Path, tmp_path: Path) -> None:
    """Every strategy's kind of program is loaded from its cubins, checked and sampled; the archive is all that is
    left of the first machine."""
    boxes = Boxes(carried(tmp_path, "transfer:fig2", "mincut:sobel"), fake_libcuda, tmp_path)
    first, second = boxes.fresh("first"), boxes.fresh("second")
    status, report = boxes.run(first, "--units", "check:mincut", "--minutes", "1")
    assert (status, states(report)) == (0, {"check:mincut": "done"})
    back = tmp_path / "back.tar.gz"
    shutil.copy(first / "results.tar.gz", back)
    shutil.rmtree(first)
    status, report = boxes.run(second, "--after", str(back), "--call", "1", "--units", "check:transfer")
    assert (status, states(report)) == (0, {"check:mincut": "done", "check:transfer": "done"})
    assert len(report["runs"]) == 2
    for kind in ("mincut", "transfer"):
        results = document(second, f"check-{kind}.json")["results"]
        assert results
        assert {each["outcome"] for each in results} == {"right"}
        assert all(each["samples"]["span_us"] for each in results)
    # sobel as it is given is five kernels, and the fused ones are fewer: what is timed is what was launched
    (fused,) = {round(each["time_us"] / 120) for each in document(second, "check-mincut.json")["results"]}
    assert 1 <= fused < 5


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_the_half_hour(fake_libcuda: Path, tmp_path: Path) -> None:
    """One command after another as docs/gpu-box.md has them, with a part of the catalogue: each unit that needs no
    more than the driver ends well and leaves numbers that can be the board's."""
    boxes = Boxes(carried(tmp_path, *ENTRIES), fake_libcuda, tmp_path)
    box = boxes.fresh("box")
    status, report = boxes.run(box, "--call", "1", "--units", "calibrate", "data_plane", "check:*")
    assert (status, set(states(report).values())) == (0, {"done"}), states(report)
    figures = document(box, "calibrate.json")["figures"]
    assert set(figures) == set(FIGURES)
    assert figures["steady_mhz"] == pytest.approx(1980, rel=0.01)
    assert document(box, "data_plane.json")["device"]["bytes_up"] == 0
    for kind, least in (("hfuse", 2), ("mincut", 2), ("stitching", 2), ("transfer", 2)):
        found = document(box, f"check-{kind}.json")["results"]
        assert len(found) >= least
        assert {each["outcome"] for each in found} == {"right"}
    # Two kernels in the place of one: by the fake's time line twice as long.
    (ratio,) = {round(each["ratio"], 1) for each in document(box, "check-hfuse.json")["results"]}
    assert ratio == 2.0

    status, report = boxes.run(box, "--call", "3", "--units", "bench:stitching:lr_step", "worker", "control")
    assert (status, set(states(report).values())) == (0, {"done"}), states(report)
    controls = document(box, "control.json")["controls"]
    assert {each["name"] for each in controls} == {
        "hfuse/hist+maxpool", "mincut/sobel", "stitching/lr_step", "transfer/fig2"
    }  # fmt: skip
    assert all("verdict" in each for each in controls)

    # A job compiles: how far it comes in its minute depends on this machine. It ends in time, and keeps what it has.
    status, report = boxes.run(box, "--call", "3", "--units", "job:mincut-sobel", "--minutes", "1.2")
    assert status == 0
    assert states(report)["job:mincut-sobel"] in ("done", run_all.LEFT)
    with contextlib.closing(sqlite3.connect(box / "results" / "stores" / "fusiond.sqlite")) as store:
        assert store.execute("SELECT COUNT(*) FROM measurements").fetchone()[0] > 0
    assert "results/stores/fusiond.sqlite" in inside(box / "results.tar.gz")
    assert (box / "results.tar.gz").stat().st_size < 16e6


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_a_kernel_that_hangs_and_an_error_that_sticks_are_answers(fake_libcuda: Path, tmp_path: Path) -> None:
    """And a fault in a check is a failure of that check alone: the next entry is measured in a fresh child."""
    boxes = Boxes(carried(tmp_path, "questions"), fake_libcuda, tmp_path)
    box = boxes.fresh("box")
    hangs, breaks = symbol(box, "halves<1>", "early-return-counted"), symbol(box, "whole<1>", "early-return-whole")
    status, report = boxes.run(box, "--call", "4", knobs=f"hang:{hangs}=1 fault:{breaks}=1")
    assert (status, states(report)) == (0, {"check:questions": "done"})
    assert outcomes(box, "check-questions.json") == {
        ("questions/early-return-counted", "halves<1>"): "timed_out",
        ("questions/early-return-counted", "halves<2>"): "right",
        ("questions/early-return-whole", "whole<1>"): "crashed",
        ("questions/early-return-whole", "whole<2>"): "right",
    }
