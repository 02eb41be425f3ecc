"""The ten minutes without a GPU: the folder that is carried to a GPU box, run there by its commands with real PyCUDA,
over the fake driver in place of libcuda.so.1. What kernels compute and how long they take is the fake's (fake_module.h,
fake_timeline.h); what is shown is that every unit ends, leaves its results, and goes on from them."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.headlines import page
from fusiond.devices.calibration import FIGURES
from fusiond.model.gpu.entry_table import read_table
from tools.gpu_box import build, results_import, run_all

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
    " fma_tflops=60 us:fusiond_empty=2.5 free_gib=70"
)
"""As it should be."""
LEASE = "context_ms=2000 event_step_us=0.5 event_cycles=1 plateau_us=60000 load_us=4000"
SENSORS = "deny=nvmlDeviceGetPowerUsage deny=nvmlDeviceGetTemperature reasons=0x5 other=4194000 mhz=345 watts=70"
"""As a machine that is lent may be: a first context of seconds, events in steps, a clock that rests and takes its time,
NVML that is denied, a power limit, another process on the board."""
HEADLINES = ("headlines:softmax", "headlines:hist+maxpool", "null", "alive")
UNSEEN = {"mapped", "managed", "managed_ahead"}
"""What the host fills the fake driver does not see, so it does not know what nobody has written yet."""


class Boxes:
    """Machines with the folder and the fake driver; each knows nothing of the others."""

    def __init__(self, carried: Path, driver: Path, folder: Path) -> None:
        self._carried, self._folder = carried, folder
        self._lib = driver.parent

    def fresh(self, name: str) -> Path:
        """Another machine, with the folder unpacked."""
        with tarfile.open(self._carried) as archive:
            archive.extractall(self._folder / name, filter="data")
        (found,) = (self._folder / name).iterdir()
        return found

    def run(self, box: Path, *words: str, knobs: str = "", sensors: str = "") -> tuple[int, dict[str, Any]]:
        """The exit status of `python run_all.py`, and the report in the archive."""
        begun = self.begun(box, *words, knobs=knobs, sensors=sensors)
        print(*begun.communicate())
        report: dict[str, Any] = json.loads(inside(box / "results.tar.gz")["results/run_all.json"])
        for each in report["units"]:
            print(each["name"], each["state"], each.get("output"), each.get("errors"))
            assert "Traceback" not in each.get("output", "") + each.get("errors", ""), each["name"]
        return begun.returncode, report

    def begun(self, box: Path, *words: str, knobs: str = "", sensors: str = "") -> subprocess.Popen[str]:
        """`python run_all.py` on its way."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FUSIOND", "PYTHONPATH"))}
        pycuda = importlib.util.find_spec("pycuda")
        assert pycuda is not None
        assert pycuda.origin is not None
        environment = kept | {
            "FUSIOND_FAKE_GPU": f"{BOARD} {knobs}",
            "FUSIOND_FAKE_NVML": sensors,
            "FUSIOND_LOCKS": str(self._folder / "locks"),
            "LD_LIBRARY_PATH": os.pathsep.join([str(self._lib), *filter(None, [kept.get("LD_LIBRARY_PATH")])]),
            "PYTHONPATH": str(Path(pycuda.origin).parent.parent),
        }
        return subprocess.Popen(
            [sys.executable, "run_all.py", *words], cwd=box, env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip


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
    assert build.main([str(folder / "gpu-box"), "--no-fetch", "--small", "--only", *only]) == 0
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
    status, report = boxes.run(second, "--after", str(back), "--call", "2", "--units", "check:transfer")
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


@pytest.fixture(scope="module")
def headlines(tmp_path_factory: pytest.TempPathFactory, fake_libcuda: Path) -> Path:
    """A folder with two headlines, built once."""
    return carried(tmp_path_factory.mktemp("headlines"), *HEADLINES, "transfer:fig2")


def verdicts(box: Path) -> dict[str, Any]:
    names = [each for each in inside(box / "results.tar.gz") if each.startswith("results/headlines/")]
    documents = [document(box, each.removeprefix("results/")) for each in names]
    return {each["headline"]: each["conclusion"] for each in documents}


def order(report: Mapping[str, Any]) -> list[str]:
    ran = [each for each in report["units"] if "begun" in each and each["state"] != "skipped"]
    return [each["name"] for each in sorted(ran, key=lambda each: str(each["begun"]))]


@pytest.mark.timeout(600)
def test_a_headline_comes_to_the_verdict_that_was_planted(fake_libcuda: Path, tmp_path: Path) -> None:
    """On a machine that is slow here and now as well: its slice is over before there is a verdict, and it goes on. Each
    kernel takes 120 us, so that a way is worth its launches."""
    boxes = Boxes(carried(tmp_path, "headlines:llama_rows"), fake_libcuda, tmp_path)
    box = boxes.fresh("box")
    for _ in range(20):
        status, report = boxes.run(box, "--units", "headlines:3", "--minutes", "1")
        assert status == 0
        if states(report)["headlines:3"] == "done":
            break
    result = verdicts(box)["llama_rows"]
    found = document(box, "headlines/llama_rows.json")
    assert (result["verdict"], found["evidence"]) == ("fuse", "measured")
    launched = result["opponent_us"] / result["time_us"]
    assert launched == pytest.approx(result["speedup"], rel=0.02)
    assert round(launched, 1) in (2.0, 3.0, 4.0)
    assert {each["outcome"] for each in found["screened"].values()} == {"right"}


def whole(archive: Path) -> dict[str, Any]:
    """The report of an archive, of which each part is whole."""
    found = inside(archive)
    for name, content in found.items():
        if name.endswith(".json"):
            json.loads(content)
    report: dict[str, Any] = json.loads(found["results/run_all.json"])
    return report


@pytest.mark.campaign
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("knobs", "sensors"), [("", ""), (LEASE, SENSORS)], ids=["a board as it should be", "as a lease may be"]
)
def test_the_first_command(fake_libcuda: Path, headlines: Path, tmp_path: Path, knobs: str, sensors: str) -> None:
    """As docs/gpu-box.md has it: it ends within its minutes, in its order, with the truth that was planted; then the
    second one on another machine; and both come home."""
    boxes = Boxes(headlines, fake_libcuda, tmp_path)
    first = boxes.fresh("first")
    begun = time.monotonic()
    _, report = boxes.run(first, "--minutes", "8.5", "--call", "1", knobs=knobs, sensors=sensors)
    assert time.monotonic() - begun < 8.5 * 60
    ran = order(report)
    stages = [("calibrate",), ("null",), ("check:alive",), ("headlines:1",)]
    assert [name for name in ran if (name,) in stages] == [name for (name,) in stages]
    ended = states(report)
    assert ended["steps"] in ("failed", "skipped", run_all.LEFT, "timed out")  # there is no JAX over this driver
    assert ended["calibrate"] == "done"
    figures = document(first, "calibrate.json")["figures"]
    assert set(figures) == set(FIGURES)
    assert figures["steady_mhz"] == pytest.approx(1980, rel=0.01)
    null = document(first, "null.json")
    assert set(null["verdicts"]) <= {"keep", "undecided", "failed"}
    alive = document(first, "check-alive.json")["results"]
    assert {each["candidate"] for each in alive if each["outcome"] != "right"} <= UNSEEN

    shutil.copy(first / "results.tar.gz", tmp_path / "back.tar.gz")
    second = boxes.fresh("second")
    begun = time.monotonic()
    _, report = boxes.run(
        second, "--minutes", "3", "--call", "2", "--after", str(tmp_path / "back.tar.gz"), knobs=knobs, sensors=sensors
    )
    assert time.monotonic() - begun < 3 * 60
    assert len(report["runs"]) == 2
    results = verdicts(second)
    assert {each["verdict"] for each in results.values() if each} <= {"fuse"}

    root = tmp_path / "root"
    (root / "docs").mkdir(parents=True)
    for name in ("README.md", "docs/results.md", "docs/frameworks.md", "docs/measuring.md"):
        shutil.copy(page.ROOT / name, root / name)
    words = [str(second / "results.tar.gz"), "--no-count", "--root", str(root)]
    assert results_import.main(words) == 0
    (folder,) = (root / "benchmarks" / "results").iterdir()
    kept = {path.name.partition("-")[0] for path in folder.glob("*.json")}
    assert {"headlines", "null", "calibration", "alive"} <= kept
    assert sum(path.stat().st_size for path in folder.iterdir()) < results_import.MOST_BYTES
    assert "| `keep` |" in (root / "docs" / "results-gpu.md").read_text()


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
