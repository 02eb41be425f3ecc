"""Counts beside those of GPGPU-Sim, for kernels that are small enough for it: `python -m tools.gpgpusim`.

Both run the same PTX, what nvrtc 11.8 makes of tests/counting/data/truths.cu for compute capability 7.0:
    nvrtc --gpu-architecture=compute_70 truths.cu
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusiond.counting import layout
from fusiond.counting.kernels import CountedShape, LoadedPtx
from fusiond.counting.library import COUNTS, Cache, CountingLibrary
from fusiond.counting.model import H100
from tools.gpgpusim.simulator import SMALL_L2_BYTES, Call, Simulator, alone

PTX = Path(__file__).parent / "truths_sm_70.ptx"
Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    kernel: str
    arguments: tuple[Array | int, ...]
    grid: tuple[int, ...] = (1,)
    block: tuple[int, ...] = (32,)
    shared_bytes: int = 0
    begins: int = 0
    l2_lines: int | None = None
    """As a Call's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    name: str
    counted: dict[str, int]
    simulated: dict[str, int]
    same_results: bool
    """Bit for bit, in all arrays."""


def compare(case: Case, library: CountingLibrary, simulator: Simulator) -> Compared:
    """One launch, by both."""
    counted, arrays = count(case, library)
    simulated = simulator.run(
        Call(
            ptx=alone(PTX.read_text(), case.kernel),
            kernel=case.kernel,
            grid=_three(case.grid),
            block=_three(case.block),
            shared_bytes=case.shared_bytes,
            arguments=case.arguments,
            begins=case.begins,
            l2_lines=case.l2_lines,
        )
    )
    same = all(np.array_equal(a, b) for a, b in zip(arrays, simulated.arrays, strict=True))
    return Compared(name=case.name, counted=counted, simulated=simulated.statistics, same_results=same)


def count(case: Case, library: CountingLibrary) -> tuple[dict[str, int], list[Array]]:
    """What we count, and the arrays afterwards. `bank_conflicts` are wavefronts of shared memory beyond one an access,
    so that the phases of wide accesses are among them; `dram_reads` are sectors."""
    given = [each for each in case.arguments if not isinstance(each, int)]
    places = [layout.aligned(each.nbytes) for each in given]
    for place, each in zip(places, given, strict=True):
        place[:] = each.reshape(-1).view(np.uint8)
    addresses = iter(int(place.ctypes.data) + case.begins for place in places)
    packed = [
        each.to_bytes(4, "little", signed=True) if isinstance(each, int) else next(addresses).to_bytes(8, "little")
        for each in case.arguments
    ]
    shape = CountedShape(grid=_three(case.grid), block=_three(case.block), shared_bytes=case.shared_bytes)
    cache = Cache(library, case.l2_lines * SMALL_L2_BYTES if case.l2_lines else H100.l2_bytes)
    unit = LoadedPtx(alone(PTX.read_text(), case.kernel), library)
    result = unit.launch(case.kernel, shape, packed, places, cache, H100)
    cache.flush()
    dram_bytes, _ = cache.dram_bytes(0)
    cache.close()
    if result.failed is not None:
        raise ValueError(f"{case.kernel}: {result.failed}")
    sums = {name: int(result.counts[name].sum()) for name in COUNTS.names or ()}
    accesses = int(result.counts["warps"][result.counts["wavefronts"] > 0].sum())
    counted = {
        "thread_instructions": sums["lanes"],
        "warp_instructions": sums["warps"],
        "read_sectors": sums["read_sectors"],
        "write_sectors": sums["write_sectors"],
        "atomic_sectors": sums["atomic_sectors"],
        "bank_conflicts": sums["wavefronts"] - accesses,
        "dram_reads": dram_bytes // 32,
    }
    return counted, [place.view(each.dtype).reshape(each.shape) for place, each in zip(places, given, strict=True)]


def _three(given: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


# --- the cases ------------------------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    rng = np.random.default_rng(0)
    for kind, size in (("float", 4), ("float2", 8), ("float4", 16), ("double", 8), ("half", 2), ("byte", 1)):
        x = rng.integers(0, 255, 256 * size, np.uint8)
        yield Case(name=f"copy {kind}", kernel=f"copy_{kind}", arguments=(x, x * 0, 1, 0), grid=(2,), block=(128,))
    for stride, start in ((2, 0), (8, 0), (32, 0), (1, 3), (2, 5)):
        x = rng.random(256 * stride + start).astype(np.float32)
        name = f"copy float, stride {stride}, start {start}"
        yield Case(name=name, kernel="copy_float", arguments=(x, x * 0, stride, start), grid=(2,), block=(128,))
    yield Case(
        name="broadcast",
        kernel="broadcast",
        arguments=(rng.random(4).astype(np.float32), np.zeros(512, np.float32)),
        grid=(4,),
        block=(128,),
    )
    square = rng.random((64, 64)).astype(np.float32)
    for kind in ("plain", "tile", "padded"):
        name = f"transpose {kind}"
        arguments = (square, square * 0, 64)
        yield Case(name=name, kernel=f"transpose_{kind}", arguments=arguments, grid=(2, 2), block=(32, 8))
    rows = rng.integers(-50, 50, (8, 256)).astype(np.float32)
    yield Case(name="sum rows", kernel="sum_rows", arguments=(rows, np.zeros(8, np.float32), 256), grid=(8,))
    sums = np.zeros(256, np.float32)
    yield Case(name="sum columns", kernel="sum_columns", arguments=(rows, sums, 8, 256), grid=(2,), block=(128,))
    line = rng.integers(0, 9, 1024 + 64).astype(np.float32)
    for radius in (1, 4):
        shape: dict[str, Any] = {"arguments": (line, line * 0, radius), "grid": (8,), "block": (128,), "begins": 128}
        yield Case(name=f"stencil, radius {radius}", kernel="stencil", **shape)
        room = 4 * (128 + 2 * radius)
        yield Case(name=f"stencil in tiles, radius {radius}", kernel="stencil_tile", shared_bytes=room, **shape)
    for name, keys in (("many keys", np.arange(256) * 8), ("one key", np.full(256, 5))):
        arguments = (keys.astype(np.int32), np.zeros(2048, np.int32))
        yield Case(name=f"histogram, {name}", kernel="histogram", arguments=arguments, grid=(2,), block=(128,))
    for name, keys in (("many keys", np.arange(256)), ("one key", np.full(256, 5))):
        arguments = (keys.astype(np.int32), np.zeros(256, np.int32))
        shape = {"kernel": "histogram_shared", "arguments": arguments, "block": (256,)}
        yield Case(name=f"histogram in shared memory, {name}", **shape)
    for stride in (1, 2, 3, 8, 32):
        yield Case(
            name=f"shared memory, stride {stride}",
            kernel="shared_stride",
            arguments=(np.zeros(32, np.float32), stride),
            shared_bytes=128 * stride,
        )
    for stride in (1, 2):
        yield Case(
            name=f"shared memory, 16 bytes, stride {stride}",
            kernel="shared_wide",
            arguments=(np.zeros(128, np.float32), stride),
            shared_bytes=512 * stride,
        )
    values = rng.integers(0, 1000, 32).astype(np.int32)
    yield Case(name="lanes that part", kernel="meet", arguments=(values, np.arange(64, dtype=np.int32), 700))
    softmax = np.ones((4, 1024), np.float32)
    yield Case(name="a row three times", kernel="passes", arguments=(softmax, softmax * 0, 1024), grid=(4,))
    for lines in (2, 4, 8):
        large = np.ones((4, 2048), np.float32)
        yield Case(
            name=f"32 KiB of rows three times, L2 of {lines * SMALL_L2_BYTES // 1024} KiB",
            kernel="passes",
            arguments=(large, large * 0, 2048),
            grid=(4,),
            l2_lines=lines,
        )
