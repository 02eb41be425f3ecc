"""The counted device keeps the contract of devices."""

import pytest

from fusiond.devices.base import DeviceProvider
from fusiond.devices.counted import CountedProvider
from fusiond.testing.devices import DeviceContract

pytestmark = pytest.mark.needs_nvcc


class TestCounted(DeviceContract):
    samples_run = False

    def provider(self) -> DeviceProvider:
        return CountedProvider()
