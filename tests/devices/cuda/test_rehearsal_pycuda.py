"""The child process of a GPU with real PyCUDA, over the fake driver in place of libcuda.so.1: what it measures, and
what becomes of hangs and of errors that stick. Kernels are those of the fake driver; what they take is planted."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices import protocol
from fusiond.devices.cuda.provider import CudaProvider
from fusiond.devices.supervisor import Supervisor
from fusiond.devices.timing import Sampling, throttled
from fusiond.model.nouns import DeviceInfo, DeviceLimits
from fusiond.model.outcomes import MeasureFailed, Measurement, Outcome, Purpose
from fusiond.model.program import Program
from tests.devices.cuda.stand_in import FakeGpu
from tests.devices.cuda.test_cuda_programs import program
from tests.devices.cuda.test_rehearsal import _launch

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("pycuda") is None,
    reason="PyCUDA is not installed: python -m tools.pycuda_wheel builds it where nvcc is",
)

DEVICE = DeviceInfo(
    name="cuda:0", model="NVIDIA Fake", arch="sm_90", memory_bytes=8 << 30,
    limits=DeviceLimits(
        multiprocessors=132, registers_per_sm=65536, registers_per_block=65536, shared_bytes_per_sm=228 << 10,
        shared_bytes_per_block=227 << 10, shared_bytes_reserved=1024, threads_per_sm=2048, blocks_per_sm=32,
    ),
)  # fmt: skip
BOARD = "event_us=1.7 mhz=1980 idle_mhz=345 ramp_us=30000 launch_us=6 load_us=800 noise=0.003 step_ns=1000"
PLAN = Sampling(purpose=Purpose.FINAL, precision=0.0025, pairs=60)

Bundle = Callable[[str], str]


@pytest.fixture
def bundle(fake_libcuda: Path, tmp_path: Path) -> Bundle:
    """A program of one of the fake driver's kernels, as a bundle."""
    fake = FakeGpu(fake_libcuda, tmp_path)

    def make(entry: str) -> str:
        made: Program = program((_launch(entry),))
        folder = tmp_path / "bundles" / entry
        write_bundle(folder, made, fake.binaries(made))
        return str(folder)

    return make


@pytest.fixture
def board(fake_libcuda: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Supervisor]]:
    """Makes a supervisor whose children find a board with such knobs."""
    paths = [str(fake_libcuda.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(paths))
    made: list[Supervisor] = []

    def make(knobs: str) -> Supervisor:
        monkeypatch.setenv("FUSIOND_FAKE_GPU", f"{BOARD} {knobs}")
        made.append(Supervisor(CudaProvider(), DEVICE))
        return made[-1]

    yield make
    for each in made:
        each.close()


def measured(supervisor: Supervisor, bundle: Bundle, planted: float) -> Measurement:
    request = protocol.SampleRequest(candidate=bundle("double_it"), baseline=bundle("add"), plan=PLAN)
    reply = supervisor.call(request, 60)
    assert isinstance(reply, Measurement), reply
    assert reply.ratio == pytest.approx(planted, rel=0.005)
    assert reply.before.canary_mhz == pytest.approx(1980, rel=0.01)
    return reply


@pytest.mark.parametrize("planted", [1.0, 1.05])
def test_a_planted_gain_is_recovered_through_pycuda(board: Any, bundle: Bundle, planted: float) -> None:
    assert measured(board(f"us:double_it=80 us:add={80 * planted}"), bundle, planted).effort.steady is True


DENIED = " ".join(
    f"deny=nvmlDeviceGet{each}"
    for each in (
        "ClockInfo", "Temperature", "PowerUsage", "CurrentClocksEventReasons", "ComputeRunningProcesses_v3"
    )
)  # fmt: skip
RESTED = "context_ms=4000 plateau_us=60000 event_cycles=1 event_step_us=0.5 idle_after_us=1e6"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("knobs", "nvml", "throttle", "others"),
    [
        ("", "deny=nvmlInitWithFlags", "", 0),
        ("", f"{DENIED} self", "", 0),
        ("", "lack=nvmlDeviceGetHandleByUUID", "", 0),
        (RESTED, "reasons=0x3 self mhz=345", "", 0),  # without persistence mode, idle, its clocks set by a user
        ("", "reasons=0x5 self", "power_cap", 0),
        ("", "other=1 self", "", 1),
    ],
    ids=["no NVML", "nothing permitted", "unknown to NVML", "rested", "power limit", "another process"],
)
def test_a_lease_as_it_may_be(
    board: Any, bundle: Bundle, monkeypatch: pytest.MonkeyPatch, knobs: str, nvml: str, throttle: str, others: int
) -> None:
    monkeypatch.setenv("FUSIOND_FAKE_NVML", nvml)
    supervisor = board(f"us:double_it=80 us:add={80 * 1.05} {knobs}")
    reply = measured(supervisor, bundle, 1.05)
    assert (reply.after.throttle, reply.after.others) == (throttle, others)
    assert reply.effort.gate_failures == 0
    assert (supervisor.replaced, bool(throttled(reply.after))) == (0, False)


@pytest.mark.parametrize(
    ("fault", "outcome", "secs", "says"),
    [("hang", Outcome.TIMED_OUT, 3.0, ""), ("fault", Outcome.CRASHED, 60.0, "illegal memory access")],
)
def test_what_hangs_or_sticks_costs_a_child_and_nothing_more(
    board: Any, bundle: Bundle, tmp_path: Path, fault: str, outcome: Outcome, secs: float, says: str
) -> None:
    supervisor = board(f"{fault}:double_it=1")
    for entry, wanted, most in (("double_it", outcome, secs), ("add", None, 60.0)):
        request = protocol.Reference(bundle=bundle(entry), seed=0, outputs=str(tmp_path / "o.npz"))
        reply = supervisor.call(request, most)
        assert (reply.outcome if isinstance(reply, MeasureFailed) else None) is wanted, reply
        assert not isinstance(reply, MeasureFailed) or says in reply.reason
