"""The devices that come with fusiond, registered the way a stranger's would be."""

from collections.abc import Callable

from fusiond.devices.base import DeviceProvider
from fusiond.devices.counted import CountedProvider
from fusiond.devices.cpu.provider import CpuProvider
from fusiond.devices.cuda.provider import CudaProvider
from fusiond.strategy.hookspecs import hookimpl


@hookimpl
def register_devices(register: Callable[[DeviceProvider], None]) -> None:
    register(CpuProvider())
    register(CudaProvider())
    register(CountedProvider())
