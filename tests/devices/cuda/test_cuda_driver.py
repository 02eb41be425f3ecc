"""The driver through ctypes, over a fake one."""

import ctypes
from pathlib import Path
from typing import Any

import pytest

from fusiond.devices.cuda.driver import Driver, DriverError, DriverMissing
from fusiond.devices.cuda.failures import outcome_of
from fusiond.model.outcomes import Outcome


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
        gpu.driver.load_module(b"image")
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
