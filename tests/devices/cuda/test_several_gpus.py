"""Several GPUs in one machine, over the fake driver, which has two: who is meant by which name, and a lock for each."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fusiond.devices.cuda.driver import Driver
from fusiond.devices.cuda.executor import CudaExecutor
from fusiond.devices.cuda.provider import CudaProvider
from fusiond.devices.lock import device_lock, lock_name
from fusiond.errors import DeviceError, Interrupted, UnknownName
from fusiond.hookspecs import hookimpl
from fusiond.registry import Registry
from fusiond.requests.planning import choose_device, devices_for


@pytest.fixture
def gpus(fake_libcuda: Path, fakes: Registry) -> Registry:
    """Two GPUs, beside the fake device."""
    provider = CudaProvider(lambda: Driver(str(fake_libcuda)))

    class Plugin:
        @hookimpl
        def register_devices(self, register: Any) -> None:
            register(provider)

    registry = Registry()
    registry.add(Plugin(), "gpus")
    return registry


def test_who_is_meant(gpus: Registry) -> None:
    chosen = {request: choose_device(gpus, request)[1].name for request in ("auto", "cuda", "cuda:0", "cuda:1")}
    assert chosen == {"auto": "cuda:0", "cuda": "cuda:0", "cuda:0": "cuda:0", "cuda:1": "cuda:1"}
    assert devices_for(gpus, "all") == ("cuda:0", "cuda:1")  # two models: a whole board, and a slice of one
    with pytest.raises(UnknownName):
        choose_device(gpus, "cuda:2")


def test_they_differ_in_key_and_in_lock(gpus: Registry) -> None:
    first, second = gpus.providers["cuda"].devices()
    assert first.uuid != second.uuid
    assert first.key != second.key
    assert lock_name(first) != lock_name(second)
    # The board is what counts, and not its number, which CUDA_VISIBLE_DEVICES may change in another process.
    assert lock_name(dataclasses.replace(second, name="cuda:0")) == lock_name(second)


def test_one_is_free_while_the_other_is_used(gpus: Registry) -> None:
    first, second = gpus.providers["cuda"].devices()

    def no_waiting(text: str) -> None:
        raise AssertionError("it is free")

    with (
        device_lock(first, stop=lambda: True, waiting=no_waiting),
        device_lock(second, stop=lambda: True, waiting=no_waiting),
        pytest.raises(Interrupted),
        device_lock(first, stop=lambda: True, waiting=lambda text: None),
    ):
        raise AssertionError("it is used")


def test_an_executor_is_on_its_own_gpu(gpu: Any) -> None:
    opened: list[int] = []

    class Device(gpu.cuda.Device):  # type: ignore[misc]
        def __init__(self, index: int) -> None:
            opened.append(index)
            super().__init__(index)

    gpu.cuda.Device = Device
    CudaExecutor(gpu.cuda, gpu.driver, 1).close()
    assert opened == [1]
    with pytest.raises(DeviceError, match="cuda:2: the driver shows 2 GPUs"):
        CudaExecutor(gpu.cuda, gpu.driver, 2)
