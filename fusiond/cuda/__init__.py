"""A program's own CUDA kernels, fused where that is known to be faster.

    import fusiond.cuda

    scale = fusiond.cuda.kernel(source, "scale")           # or CuPy's RawKernel
    with fusiond.cuda.launch(scale, histogram) as (scale, histogram):
        scale((blocks,), (256,), (x, y, numpy.float32(2)))
        histogram((bins,), (512,), (counts, z, numpy.int32(n)))
    print(fusiond.cuda.explain())

docs/frameworks.md has the whole of it. Beside it lie limits of architectures, occupancy, ptxas' report and the entry
table of a binary, which all of fusiond uses; so nothing is imported here.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fusiond.cuda.recording.context import Explanation, Recorder, explain, launch
    from fusiond.cuda.recording.groups import Explained
    from fusiond.cuda.recording.kernels import Kernel, kernel
    from fusiond.service.frameworks.running import LaunchFailed

_HOMES = {
    "Explained": "fusiond.cuda.recording.groups", "Explanation": "fusiond.cuda.recording.context",
    "Kernel": "fusiond.cuda.recording.kernels", "LaunchFailed": "fusiond.service.frameworks.running",
    "Recorder": "fusiond.cuda.recording.context", "explain": "fusiond.cuda.recording.context",
    "kernel": "fusiond.cuda.recording.kernels", "launch": "fusiond.cuda.recording.context",
}  # fmt: skip
__all__ = ["Explained", "Explanation", "Kernel", "LaunchFailed", "Recorder", "explain", "kernel", "launch"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
