"""A program in PyCUDA, which links the driver: x is doubled on a stream, and copied back."""

import numpy as np
import pycuda.driver as cuda

cuda.init()
context = cuda.Device(0).retain_primary_context()
context.push()
x = np.arange(100, dtype=np.float32)
module = cuda.module_from_buffer(b".version 8.0 // what the stand-in knows by name")
stream = cuda.Stream()
held = cuda.mem_alloc(x.nbytes)
cuda.memcpy_htod(held, x)
module.get_function("double_it")(held, np.int32(len(x)), grid=(2, 1), block=(64, 1, 1), stream=stream, shared=32)
stream.synchronize()
cuda.memcpy_dtoh(x, held)
print(x.sum())
context.pop()
