"""A program in Triton, by Triton's own launcher and driver: y = x + 1, three times."""

import ctypes

import triton
import triton.language as tl

N = 1000
driver = ctypes.CDLL("libcuda.so.1")


class Array:
    """Memory of the device, as Triton wants it shown."""

    dtype = "float32"

    def __init__(self) -> None:
        address = ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4 * N)) == 0
        self.address = address.value

    def data_ptr(self) -> int:
        return self.address


@triton.jit
def bump(x, y, n, BLOCK: tl.constexpr):  # noqa: N803
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + place, tl.load(x + place, place < n) + 1, place < n)


triton.runtime.driver.active.get_current_device()  # makes the context
x, y = Array(), Array()
for _ in range(3):
    bump[(triton.cdiv(N, 256),)](x, y, N, BLOCK=256, num_warps=8)
print("done")
