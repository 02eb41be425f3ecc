"""The declarations of the libraries that come with CUDA, for the front end: what kernels take from each header.

As in cuda_declarations.py only what shapes the tree must be right, and how large an object in shared memory is. The
headers themselves stand in the fused source, above all namespaces: none of them looks at the block.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from fusiond_hfuse.frontend import cuda_declarations

_FOLDER = Path(__file__).parent / "headers"
_FILES = {
    "cuComplex.h": "cuComplex.h",
    "cuda/atomic": "cuda_atomic.h",
    "cuda/barrier": "cuda_barrier.h",
    "cuda/pipeline": "cuda_pipeline_object.h",
    "cuda_pipeline.h": "cuda_pipeline.h",
    "curand_kernel.h": "curand_kernel.h",
    "mma.h": "mma.h",
}
CUB = re.compile(
    r"(?:^|/)(cub/(?:cub|(?:block|warp)/\w+|thread/thread_operators|util_type|util_ptx|block/specializations/\w+)\.cuh)$"
)
"""cub's headers, as far as headers/cub.h may stand for them, whatever folder they lie in."""
TORCH = re.compile(r"(?:torch|ATen|c10|THC)/")
"""How headers of PyTorch's begin, for which headers/torch.h stands: all of them are a million lines."""
TORCH_DEVICE = re.compile(r"(?:ATen|THC)/(?:.*/)?(?:THC)?(?:Atomics?|DeviceUtils)\.cuh")
_STD = ("array", "cmath", "complex", "cstddef", "cstdint", "functional", "limits", "tuple", "type_traits", "utility")

BRINGS = {
    "mma.h": ("cuda_fp16.h", "cuda_bf16.h"),
    "cuda/barrier": ("cuda/atomic",),
    "cuda/pipeline": ("cuda/atomic", "cuda/barrier"),
    "cuda_pipeline_primitives.h": ("cuda_pipeline.h",),
    "cooperative_groups/memcpy_async.h": ("cuda_pipeline.h",),
    **{f"cuda/std/{name}": ("cuda/atomic",) for name in _STD},
}
"""Header -> those that it includes, as far as the ones above go."""
NAMES = frozenset(_FILES) | frozenset(BRINGS)
"""The headers that are known here, by the names that people include."""


def with_brought(names: Iterable[str]) -> tuple[str, ...]:
    """Headers, and behind each those that it includes."""
    return tuple(dict.fromkeys(each for name in names for each in (*BRINGS.get(name, ()), name)))


@functools.cache
def cub() -> str:
    """cub's primitives of blocks and warps, as a text that sees the block as a kernel's own functions do."""
    return (_FOLDER / "cub.h").read_text()


@functools.cache
def torch(part: str = "") -> str:
    """What kernels take from PyTorch's headers, or from those of its atomics and shuffles alone (`_device`), as a text
    of the user's own."""
    return (_FOLDER / f"torch{part}.h").read_text()


def of(system: Collection[str]) -> str:
    """The declarations of the headers among `system`."""
    version = "#define CUDA_VERSION 13000\n" if "cuda.h" in system else ""
    return version + "".join(text for name, text in _all().items() if name in system)


@functools.cache
def _all() -> dict[str, str]:
    """In the order in which one may need another."""
    return cuda_declarations.narrow_floats() | {name: (_FOLDER / file).read_text() for name, file in _FILES.items()}
