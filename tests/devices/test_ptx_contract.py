"""Sources that are PTX keep the contract of devices: the contract's own kernels, as nvcc writes them."""

import functools
from collections.abc import Callable

import pytest

from fusiond.build import nvcc
from fusiond.devices.base import DeviceProvider, ExecutionError, Loaded
from fusiond.devices.counted import CountedProvider
from fusiond.devices.cpu.provider import CpuProvider
from fusiond.model.outcomes import BuildFailed, Outcome
from fusiond.model.program import Role, Source, SourceLanguage
from fusiond.testing.devices import DeviceContract
from fusiond.testing.kernels import ENTRIES, KERNELS, N, floats, launch

pytestmark = [pytest.mark.needs_nvcc, pytest.mark.slow]


@functools.cache
def written() -> str:
    """The PTX, each kernel under its plain name."""
    made = nvcc.named_ptx(Source(name="kernels", text=KERNELS, entries=ENTRIES, symbols=("table",)), "sm_80")
    assert not isinstance(made, BuildFailed), made.reason
    text = made.text
    for plain, mangled in {**made.names, **made.symbols}.items():
        text = text.replace(mangled, plain)
    return text


class PtxContract(DeviceContract):
    # What does not depend on a source is the other contracts'.
    test_data_are_the_host_s_bit_for_bit = None  # type: ignore[assignment]
    test_outputs_are_compared_as_on_the_host = None  # type: ignore[assignment]
    # The launch ends before a guard zone is written to: below.
    test_a_stray_write_is_seen_at_either_end = None  # type: ignore[assignment]

    def source(self) -> Source:
        return Source(name="kernels", text=written(), entries=ENTRIES, symbols=("table",), language=SourceLanguage.PTX)

    @pytest.mark.parametrize("index", [N, N + 5, -1, -1000])
    def test_what_misses_its_buffer_ends_the_launch(self, index: int, load: Callable[..., Loaded]) -> None:
        loaded = load(self.program((floats("y", Role.OUTPUT),), launch("s", "stray", "y", index)))
        with pytest.raises(ExecutionError) as caught:
            loaded.run(seed=0, checked=False)
        assert caught.value.outcome is Outcome.CRASHED
        where = f"{4 * (index - N)} bytes behind the end of y" if index >= N else f"{-4 * index} bytes before y"
        assert "PTX line " in caught.value.reason
        assert where in caught.value.reason


class TestCpu(PtxContract):
    def provider(self) -> DeviceProvider:
        return CpuProvider()


class TestCounted(PtxContract):
    samples_run = False

    def provider(self) -> DeviceProvider:
        return CountedProvider()
