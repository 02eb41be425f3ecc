"""The kernels of truths.cu, run from the PTX that nvcc made of them: no nvcc is needed here."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fusiond.build.cache import BuildCache
from fusiond.devices.counting import layout, library
from fusiond.devices.counting.kernels import CountedShape, LoadedPtx
from fusiond.devices.counting.library import COUNTS, Cache, CountingLibrary
from fusiond.devices.counting.model import H100, Gpu
from fusiond.devices.counting.sampling import LaunchCounts

DATA = Path(__file__).parent / "data"
Array = NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Ran:
    """One launch: its sums, and what is in the arrays afterwards."""

    result: LaunchCounts
    sums: dict[str, int]
    arrays: tuple[Array, ...]
    dram: tuple[int, int]


class Bench:
    """Launches kernels of a PTX text on arrays of NumPy."""

    def __init__(self, text: str, library: CountingLibrary) -> None:
        self.library, self.unit = library, LoadedPtx(text, library)

    def run(
        self,
        kernel: str,
        arguments: Sequence[Array | np.generic],
        *,
        grid: tuple[int, ...] = (1,),
        block: tuple[int, ...] = (32,),
        begins: int = 0,
        gpu: Gpu = H100,
        budget: int | None = None,
        **more: Any,
    ) -> Ran:
        """Pointers are given as the arrays, which stay as they are; their memory begins at 256-byte boundaries, and the
        pointer `begins` bytes behind it."""
        places = [layout.aligned(each.nbytes) for each in arguments if isinstance(each, np.ndarray)]
        packed, at = [], 0
        for each in arguments:
            if isinstance(each, np.ndarray):
                places[at][:] = each.reshape(-1).view(np.uint8)
                packed.append((int(places[at].ctypes.data) + begins).to_bytes(8, "little"))
                at += 1
            else:
                packed.append(each.tobytes())
        shape = CountedShape(grid=(*grid, 1, 1)[:3], block=(*block, 1, 1)[:3], **more)
        cache = Cache(self.library, gpu.l2_bytes)
        result = self.unit.launch(kernel, shape, packed, places, cache, gpu, budget=budget)
        cache.flush()
        read, written = cache.dram_bytes(0)
        dram = read + result.dram_correction[0], written + result.dram_correction[1]
        cache.close()
        given = [each for each in arguments if isinstance(each, np.ndarray)]
        arrays = tuple(place.view(each.dtype).reshape(each.shape) for place, each in zip(places, given, strict=True))
        return Ran(result, {name: int(result.counts[name].sum()) for name in COUNTS.names or ()}, arrays, dram)


@pytest.fixture(scope="session")
def counting(gxx_here: None, shared_cache: Path) -> CountingLibrary:
    """The library, built once for the whole run."""
    return library.load(cache=BuildCache(shared_cache))


@pytest.fixture
def truths(counting: CountingLibrary) -> Bench:
    return Bench((DATA / "truths.ptx").read_text(), counting)
