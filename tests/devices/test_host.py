"""Host functions get pointers and scalars exactly as they were given."""

from pathlib import Path

import numpy as np
import pytest

from fusiond.build import gxx
from fusiond.devices.base import ExecutionError
from fusiond.devices.host import HostLibrary
from fusiond.model.outcomes import BuildFailed, Outcome
from fusiond.model.program import Pointer, Scalar, Source, SourceKind

TEXT = """
#include <cstdint>
#include <cstring>
extern "C" void all(char* out, bool b, int8_t c, uint16_t d, int32_t e, uint64_t f, float g, double h) {
  std::memcpy(out, &b, 1); std::memcpy(out + 1, &c, 1); std::memcpy(out + 2, &d, 2); std::memcpy(out + 4, &e, 4);
  std::memcpy(out + 8, &f, 8); std::memcpy(out + 16, &g, 4); std::memcpy(out + 24, &h, 8);
}
extern "C" void add(const float* x, float* y, long long n) { for (long long i = 0; i < n; ++i) y[i] += x[i]; }
void hidden() {}
"""

pytestmark = pytest.mark.usefixtures("gxx_here")


@pytest.fixture
def library() -> HostLibrary:
    path = gxx.build(Source(name="h", kind=SourceKind.HOST, text=TEXT, entries=("all", "add")))
    assert isinstance(path, Path)
    return HostLibrary(path)


def test_scalars_of_every_kind(library: HostLibrary) -> None:
    out = np.zeros(32, np.uint8)
    values = [("bool", 1), ("int8", -5), ("uint16", 65535), ("int32", -(2**31)), ("uint64", 2**64 - 1),
              ("float32", 0.1), ("float64", 0.1)]  # fmt: skip
    arguments = (Pointer(buffer="out"), *(Scalar(dtype=dtype, value=value) for dtype, value in values))
    library.call("all", arguments, lambda name: out.ctypes.data)
    places = [0, 1, 2, 4, 8, 16, 24]
    for (dtype, value), place in zip(values, places, strict=True):
        size = np.dtype(dtype).itemsize
        assert out[place : place + size].view(dtype)[0] == np.dtype(dtype).type(value)


def test_pointers_are_where_the_buffers_lie(library: HostLibrary) -> None:
    arrays = {"x": np.arange(5, dtype=np.float32), "y": np.ones(5, np.float32)}
    arguments = (Pointer(buffer="x"), Pointer(buffer="y"), Scalar(dtype="int64", value=5))
    library.call("add", arguments, lambda name: arrays[name].ctypes.data)
    np.testing.assert_array_equal(arrays["y"], np.arange(5) + 1)


@pytest.mark.parametrize("entry", ["hidden", "nothing"])
def test_what_is_not_exported(library: HostLibrary, entry: str) -> None:
    with pytest.raises(ExecutionError, match='extern "C"') as caught:
        library.call(entry, (), lambda name: 0)
    assert caught.value.outcome is Outcome.BUILD_FAILED


def test_a_library_that_cannot_be_linked_is_no_build_failure_but_does_not_load() -> None:
    path = gxx.build(
        Source(name="h", kind=SourceKind.HOST, text='void gone(); extern "C" void f() { gone(); }', entries=("f",))
    )
    assert not isinstance(path, BuildFailed)
    with pytest.raises(OSError, match="undefined symbol"):
        HostLibrary(path)
