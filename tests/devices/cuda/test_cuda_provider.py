"""What the daemon's process sees of GPUs: without one, and over a fake driver."""

import dataclasses
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from fusiond.build import nvcc
from fusiond.devices.base import Binary
from fusiond.devices.cuda import canary, gate, kernels, nvml, provider
from fusiond.devices.cuda.driver import Driver, DriverMissing
from fusiond.devices.cuda.provider import CudaProvider
from fusiond.model.errors import DeviceError
from fusiond.model.gpu.entry_table import read_table
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Buffer, Launch, Program, Role, Source, SourceKind


def absent() -> Driver:
    raise DriverMissing("no NVIDIA driver: libcuda.so.1 cannot be loaded")


def test_without_a_driver_there_are_no_devices_and_a_remedy() -> None:
    cuda = CudaProvider(absent)
    assert cuda.devices() == ()
    first = cuda.missing()[0]
    assert "libcuda.so.1" in first
    assert "install NVIDIA's driver" in first


def test_every_missing_part_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "find", lambda: None)
    monkeypatch.setattr(provider.importlib.util, "find_spec", lambda name: None)
    lines = CudaProvider(absent).missing()
    assert len(lines) == 3
    assert all(line.startswith("cuda: ") and "\n" not in line for line in lines)
    assert "~/.aksetup-defaults.py" in lines[1]
    assert "FUSIOND_NVCC" in lines[2]


def test_describing_a_device(fake_libcuda: Path) -> None:
    first, second = CudaProvider(lambda: Driver(str(fake_libcuda))).devices()
    assert (first.name, first.model, first.arch, first.mig) == ("cuda:0", "NVIDIA Fake", "sm_90", "")
    assert first.limits.multiprocessors == 132
    assert first.limits.shared_bytes_per_block == 227 * 1024
    assert first.limits.barriers_per_sm == 64
    assert first.evidence == "measured"
    assert first.env["cuda"] == "13.0"
    assert (second.name, second.mig) == ("cuda:1", "1g.18gb")
    assert first.key != second.key


def test_the_executor_says_what_is_missing() -> None:
    if not CudaProvider().missing():
        pytest.skip("everything is here")
    with pytest.raises(DeviceError, match=r"cuda:0: .*(install|pip)"):
        CudaProvider().executor("cuda:0")


@pytest.mark.slow
def test_importing_needs_neither_pycuda_nor_a_driver_nor_yaml() -> None:
    code = "import fusiond.devices.cuda.run, sys; sys.exit(any(n in sys.modules for n in ('yaml', 'pycuda')))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_normalising_drops_what_makes_no_difference() -> None:
    def launch(name: str, stream: int, *after: str) -> Launch:
        values: Any = {"source": "k", "entry": "k", "grid": (1, 1, 1), "block": (1, 1, 1), "arguments": ()}
        return Launch(name=name, stream=stream, after=after, **values)

    buffer = Buffer(name="x", dtype="int32", elements=1, role=Role.OUTPUT)
    host = Source(name="h", kind=SourceKind.HOST, text="", entries=("f",), register_cap=32)
    kernel = Source(name="k", text="", entries=("k",), register_cap=32)
    steps = (launch("a", 0), launch("b", 1), launch("c", 0, "a", "b", "b"))
    plan = Program(name="p", buffers=(buffer,), sources=(kernel, host), steps=steps)
    normal = CudaProvider(absent).normalise(plan)
    assert normal.steps[2].after == ("b",)
    assert normal.source("h").register_cap is None
    assert normal.source("k").register_cap == 32
    same = dataclasses.replace(plan, steps=(steps[0], steps[1], launch("c", 0, "b")))
    assert CudaProvider(absent).normalise(same).key == normal.key


@pytest.mark.needs_nvcc
def test_building_both_kinds_of_source() -> None:
    cuda = CudaProvider(absent)
    kernel = cuda.build(Source(name="k", text="__global__ void k(int* x) { x[0] = 1; }", entries=("k",)), "sm_90")
    assert isinstance(kernel, Binary)
    assert kernel.path.suffix == ".cubin"
    assert read_table(kernel.path).entries["k"].mangled == "_Z1kPi"
    host = cuda.build(
        Source(name="h", kind=SourceKind.HOST, text='extern "C" void f(int* x) { x[0] = 1; }', entries=("f",)), "sm_90"
    )
    assert isinstance(host, Binary)
    assert host.path.suffix == ".so"
    wrong = cuda.build(Source(name="h", kind=SourceKind.HOST, text="", entries=("f",)), "sm_90")
    assert isinstance(wrong, BuildFailed)


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("text", [gate.PTX, canary.PTX, kernels.PTX.read_text()], ids=["gate", "canary", "data"])
def test_our_own_kernels_compile_for_the_oldest_and_the_newest(tmp_path: Path, text: str) -> None:
    toolkit = nvcc.find()
    assert toolkit is not None
    (tmp_path / "own.ptx").write_text(text)
    known = subprocess.run([toolkit.nvcc, "--list-gpu-code"], capture_output=True, text=True, check=True).stdout.split()
    for arch in (known[0], known[-1]):
        subprocess.run([toolkit.ptxas, f"-arch={arch}", "own.ptx", "-o", "own.cubin"], cwd=tmp_path, check=True)


# --- sensors --------------------------------------------------------------------------------------------


class _Nvml(types.SimpleNamespace):
    """pynvml with one board, on which something may be unsupported."""

    class NVMLError(Exception):
        pass

    def __init__(self, **answers: object) -> None:
        super().__init__(NVML_CLOCK_SM=1, NVML_TEMPERATURE_GPU=0, nvmlInit=lambda: None)
        self.nvmlDeviceGetHandleByUUID = lambda uuid: "board"
        for name, answer in answers.items():
            setattr(self, name, self._answering(answer))

    def _answering(self, answer: object) -> Any:
        def call(*arguments: object) -> object:
            if answer is None:
                raise self.NVMLError("not supported")
            return answer

        return call


def test_sensors(monkeypatch: pytest.MonkeyPatch) -> None:
    other = types.SimpleNamespace(pid=1)
    board = _Nvml(
        nvmlDeviceGetClockInfo=1980,
        nvmlDeviceGetTemperature=55,
        nvmlDeviceGetPowerUsage=412_500,
        nvmlDeviceGetCurrentClocksEventReasons=0x1 | 0x4 | 0x40,
        nvmlDeviceGetComputeRunningProcesses=[other],
        nvmlSystemGetDriverVersion="580.65.06",
    )
    monkeypatch.setattr(nvml, "pynvml", board)
    sensors = nvml.Sensors("GPU-1")
    state = sensors.state()
    assert (state.clock_mhz, state.temperature_c, state.power_w, state.others) == (1980.0, 55.0, 412.5, 1)
    assert state.throttle == "power_cap,hw_thermal"  # being idle is not throttling
    assert sensors.driver_version() == "580.65.06"


def test_who_is_ours_and_who_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process, its parent and their children are ours. In a container NVML knows processes by numbers of the
    host's: one of them is this process, if it computes."""
    child = subprocess.Popen(["sleep", "60"])
    hidden = 2**22 + 1  # beyond the largest process id

    def others(*pids: int, own_context: bool) -> int:
        found = [types.SimpleNamespace(pid=each) for each in pids]
        monkeypatch.setattr(nvml, "pynvml", _Nvml(nvmlDeviceGetComputeRunningProcesses=found))
        return nvml.Sensors("GPU-1", own_context=own_context).state().others

    try:
        for own_context in (True, False):
            assert others(os.getpid(), os.getppid(), child.pid, own_context=own_context) == 0
            assert others(os.getpid(), 1, own_context=own_context) == 1
        assert others(hidden, own_context=True) == 0
        assert others(hidden, hidden + 1, own_context=True) == 1
        assert others(hidden, own_context=False) == 1
        assert others(1, own_context=True) == 1  # seen, and not ours: nothing is hidden
    finally:
        child.kill()
        child.wait()


def test_busy_says_who_is_there(monkeypatch: pytest.MonkeyPatch, fake_libcuda: Path) -> None:
    device = CudaProvider(lambda: Driver(str(fake_libcuda))).devices()[0]
    for pids, words in (([], None), ([1], "1 other process uses cuda:0"), ([1, 1], "2 other processes use cuda:0")):
        found = [types.SimpleNamespace(pid=each) for each in pids]
        monkeypatch.setattr(nvml, "pynvml", _Nvml(nvmlDeviceGetComputeRunningProcesses=found))
        assert nvml.busy(device) == words
