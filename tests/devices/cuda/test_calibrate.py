"""Calibration recovers what was planted on a GPU that is not there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fusiond.build import nvcc
from fusiond.devices import steadiness
from fusiond.devices.calibration import FIGURES
from fusiond.devices.cuda import calibrate
from fusiond.devices.cuda.spans import Spans
from tests.devices.cuda.stand_in import FakeGpu

PLANTED = {
    "event_us": 1.7,
    "event_low_us": 1.7,
    "event_high_us": 1.7,
    "empty_kernel_us": 3.1,
    "kernel_gap_us": 3.1,
    "graph_node_us": 3.5,
    "globaltimer_ns": 32.0,
    "rested_mhz": 345.0,
    "steady_mhz": 1980.0,
    "copy_gbs": 3000.0,
    "to_device_gbs": 55.0,
    "to_host_gbs": 52.0,
    "fp32_tflops": 60.0,
}


@pytest.fixture
def figures(fake_libcuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """An H100-like board that rests at 345 MHz and needs 30 ms of work until it runs at 1,980."""
    monkeypatch.setenv("FUSIOND_FAKE_GPU", "event_us=1.7 mhz=1980")
    gpu: Any = FakeGpu(fake_libcuda, tmp_path)
    gpu.set(idle_mhz=345, ramp_us=30_000, launch_us=4, gap_us=0.9, node_gap_us=0.4, us_fusiond_empty=2.2)
    gpu.set(copy_gbs=3000, up_gbs=55, down_gbs=52, fma_tflops=60)
    monkeypatch.setattr(calibrate, "COPY_BYTES", 1 << 22)
    monkeypatch.setattr(calibrate.time, "sleep", lambda secs: gpu.wait(secs * 1e6))
    monkeypatch.setattr(steadiness, "time", type("Time", (), {"monotonic": staticmethod(lambda: gpu.now_us / 1e6)}))
    return dict(gpu.executor.calibrate())


def test_what_was_planted_is_found(figures: dict[str, float]) -> None:
    assert set(figures) == set(FIGURES)
    found = {name: figures[name] for name in PLANTED}
    assert found == pytest.approx(PLANTED, rel=0.01)
    assert 0.02 < figures["settle_secs"] < 0.06  # 30 ms of work, the canary's share of it, and what was done after it
    assert figures["release_us"] > 0
    assert figures["flush_us"] >= 0  # a fill takes no time of the stand-in's


def test_nothing_is_loaded_behind_the_gate(fake_libcuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the kernels nor the graphs, which would wait for it until it gives up."""
    monkeypatch.setenv(
        "FUSIOND_FAKE_GPU", "event_us=1.7 load_us=900 launch_us=4 fma_tflops=60 copy_gbs=3000 up_gbs=50 down_gbs=40"
    )
    monkeypatch.setattr(calibrate, "COPY_BYTES", 1 << 22)
    monkeypatch.setattr(calibrate, "PAUSE_SECS", 0.0)
    gave_up = []
    wait = Spans._between

    def looked(begin: Any, end: Any) -> float:
        span = wait(begin, end)
        gave_up.append(gpu.executor._gate.gave_up)
        return span

    gpu: Any = FakeGpu(fake_libcuda, tmp_path)
    monkeypatch.setattr(Spans, "_between", staticmethod(looked))
    gpu.executor.calibrate()
    assert gave_up.count(True) == 0


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_the_ceilings_kernel_multiplies_and_adds_and_does_little_else(tmp_path: Path, arch: str) -> None:
    toolkit = nvcc.find()
    assert toolkit is not None
    (tmp_path / "own.ptx").write_text(calibrate.PTX)
    subprocess.run([toolkit.ptxas, f"-arch={arch}", "own.ptx", "-o", "own.cubin"], cwd=tmp_path, check=True)
    disassembler = shutil.which("nvdisasm") or str(Path(toolkit.ptxas).with_name("nvdisasm"))
    if not Path(disassembler).exists():
        pytest.skip("no nvdisasm: it comes with the CUDA toolkit (cuda-nvdisasm)")
    text = subprocess.run([disassembler, "own.cubin"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert text.count("FFMA") >= calibrate.CHAINS * calibrate.UNROLLED
