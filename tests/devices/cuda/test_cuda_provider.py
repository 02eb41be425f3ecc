"""What the daemon's process sees of GPUs: without one, and over a fake driver."""

import ctypes
import dataclasses
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from fusiond.build import nvcc
from fusiond.devices import timing
from fusiond.devices.base import Binary
from fusiond.devices.calibration import FIGURES
from fusiond.devices.cuda import calibrate, canary, gate, kernels, nvml, provider
from fusiond.devices.cuda.driver import Driver, DriverError, DriverMissing
from fusiond.devices.cuda.failures import outcome_of
from fusiond.devices.cuda.modules import DriverModule
from fusiond.devices.cuda.provider import CudaProvider
from fusiond.devices.cuda.spans import Spans
from fusiond.model.errors import DeviceError
from fusiond.model.gpu.entry_table import read_table
from fusiond.model.outcomes import BuildFailed, Outcome
from fusiond.model.program import Buffer, Launch, Program, Role, Source, SourceKind
from tests.devices.cuda.stand_in import FakeGpu


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
        nvmlDeviceGetClockInfo=1980, nvmlDeviceGetTemperature=55, nvmlDeviceGetPowerUsage=412_500,
        nvmlDeviceGetCurrentClocksEventReasons=0x1 | 0x4 | 0x40, nvmlDeviceGetComputeRunningProcesses=[other],
        nvmlSystemGetDriverVersion="580.65.06",
    )  # fmt: skip
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


# --- the driver through ctypes, over a fake one ---------------------------------------------------------


def test_a_machine_without_a_driver() -> None:
    with pytest.raises(DriverMissing, match=r"no NVIDIA driver: libnowhere\.so"):
        Driver("libnowhere.so")


def test_a_driver_that_does_not_start(gpu: Any, fake_libcuda: Path) -> None:
    gpu.fail("cuInit", 719)
    with pytest.raises(DriverMissing, match=r"does not start: cuInit: unspecified launch failure \(CUDA_ERROR"):
        Driver(str(fake_libcuda))


def test_identity(gpu: Any) -> None:
    driver = gpu.driver
    assert driver.version() == "13.0"
    assert driver.count() == 2
    assert driver.name(0) == "NVIDIA Fake"
    assert driver.uuid(0) == "GPU-11111111-1111-1111-1111-111111111111"
    assert driver.uuid(1).startswith("MIG-2222")
    assert driver.memory_bytes(0) == 8 << 30


def test_errors_have_name_and_text(gpu: Any) -> None:
    gpu.fail("cuModuleLoadData", 2)
    with pytest.raises(DriverError) as caught:
        DriverModule(gpu.driver, b"image")
    assert caught.value.name == "CUDA_ERROR_OUT_OF_MEMORY"
    assert str(caught.value) == "cuModuleLoadData: out of memory (CUDA_ERROR_OUT_OF_MEMORY)"


def test_a_function_that_an_older_driver_lacks(gpu: Any) -> None:
    assert not gpu.driver.has("cuMemcpyBatchAsync")
    assert gpu.driver.address("cuMemcpyBatchAsync") == 0
    with pytest.raises(DriverError, match="too old"):
        gpu.driver.call("cuMemcpyBatchAsync")


def test_a_batch_of_copies(gpu: Any) -> None:
    source, target = (ctypes.c_uint32 * 8)(*range(8)), (ctypes.c_uint32 * 8)()
    at, to = ctypes.addressof(source), ctypes.addressof(target)
    assert gpu.driver.copies_in_batches
    gpu.driver.copy_batch([(to, at + 16, 8), (to + 24, at, 4)], 7)
    assert list(target) == [4, 5, 0, 0, 0, 0, 0, 0]
    gpu.driver.copy_batch([(to + 28, at + 12, 4)], 7)
    assert target[7] == 3
    assert gpu.log() == ["batch 2 on 0x7", "batch 1 on 0x7"]


@pytest.mark.slow
def test_stream_ordered_memory(gpu: Any) -> None:
    before = gpu.live_allocations
    address = gpu.driver.allocate(100, 7)
    assert gpu.live_allocations == before + 1
    gpu.driver.free(address, 7)
    assert gpu.live_allocations == before


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("cuLaunchKernel failed: too many resources requested for launch", Outcome.LAUNCH_REFUSED),
        ("cuStreamSynchronize failed: an illegal memory access was encountered", Outcome.CRASHED),
        ("cuStreamSynchronize failed: misaligned address", Outcome.CRASHED),
        ("cuCtxSynchronize failed: operation not supported on global/shared address space", Outcome.CRASHED),
        ("cuStreamBeginCapture failed: operation not supported", Outcome.LAUNCH_REFUSED),
        ("cuCtxSynchronize failed: device-side assert triggered", Outcome.CRASHED),
        ("cuCtxSynchronize failed: the launch timed out and was terminated", Outcome.TIMED_OUT),
        ("cuMemAlloc failed: out of memory", Outcome.LAUNCH_REFUSED),
        ("something new", Outcome.CRASHED),
    ],
)
def test_what_errors_say_about_a_candidate(text: str, outcome: Outcome) -> None:
    assert outcome_of(text) is outcome


# --- calibration recovers what was planted on a GPU that is not there -----------------------------------


PLANTED = {
    "event_us": 1.7, "event_low_us": 1.7, "event_high_us": 1.7, "empty_kernel_us": 3.1, "kernel_gap_us": 3.1,
    "graph_node_us": 3.5, "globaltimer_ns": 32.0, "rested_mhz": 345.0, "steady_mhz": 1980.0, "copy_gbs": 3000.0,
    "to_device_gbs": 55.0, "to_host_gbs": 52.0, "fp32_tflops": 60.0,
}  # fmt: skip


@pytest.fixture
def figures(fake_libcuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """An H100-like board that rests at 345 MHz and needs 30 ms of work until it runs at 1,980."""
    monkeypatch.setenv("FUSIOND_FAKE_GPU", "event_us=1.7 mhz=1980")
    gpu: Any = FakeGpu(fake_libcuda, tmp_path)
    gpu.set(idle_mhz=345, ramp_us=30_000, launch_us=4, gap_us=0.9, node_gap_us=0.4, us_fusiond_empty=2.2)
    gpu.set(copy_gbs=3000, up_gbs=55, down_gbs=52, fma_tflops=60)
    monkeypatch.setattr(calibrate, "COPY_BYTES", 1 << 22)
    monkeypatch.setattr(calibrate.time, "sleep", lambda secs: gpu.wait(secs * 1e6))
    monkeypatch.setattr(timing, "time", type("Time", (), {"monotonic": staticmethod(lambda: gpu.now_us / 1e6)}))
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
