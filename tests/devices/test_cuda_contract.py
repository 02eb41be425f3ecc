"""The cuda device keeps the contract of devices."""

import pytest

from fusiond.devices.base import DeviceProvider
from fusiond.devices.cuda.provider import CudaProvider
from fusiond.testing.devices import DeviceContract

pytestmark = pytest.mark.needs_gpu


class TestCuda(DeviceContract):
    def provider(self) -> DeviceProvider:
        return CudaProvider()
