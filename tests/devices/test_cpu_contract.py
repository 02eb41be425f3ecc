"""The cpu device keeps the contract of devices."""

from fusiond.devices.base import DeviceProvider
from fusiond.devices.cpu.provider import CpuProvider
from fusiond.testing.devices import DeviceContract


class TestCpu(DeviceContract):
    def provider(self) -> DeviceProvider:
        return CpuProvider()
