"""The GPUs that can be counted for: their limits and the peak rate of each unit.

A lower bound in time follows from upper bounds of rates. So every rate here is the highest that its source gives, and
where no public source gives one, the highest that the hardware's documented paths allow (docs/counting.md has all).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from fusiond.model.errors import RequestError
from fusiond.model.gpu.limits import limits
from fusiond.model.gpu.occupancy import Occupancy, occupancy
from fusiond.model.nouns import DeviceLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One board. Rates are per multiprocessor and clock where nothing else is said."""

    name: str
    arch: str
    multiprocessors: int
    clock_mhz: float
    l2_bytes: int
    dram_gbs: float  #: 1e9 bytes per second, read and written together
    l2_bytes_per_clock: float  #: Of the whole GPU
    lanes: Mapping[str, float]
    """Class of SASS instructions -> lanes; a class that is not here is bound by the issue slots alone."""
    shared_bytes_per_clock: int = 128
    l1_bytes_per_clock: int = 128
    issue_warps: int = 4
    load_cycles: int = 150
    launch_gap_us: float = 0.5
    most_blocks: int | None = None
    """Blocks on one multiprocessor, where fewer than the architecture's limit are wanted."""

    @property
    def limits(self) -> DeviceLimits:
        found = limits(self.arch, multiprocessors=self.multiprocessors)
        return found if self.most_blocks is None else dataclasses.replace(found, blocks_per_sm=self.most_blocks)

    def occupancy(self, threads: int, shared_bytes: int, registers: int = 0, barriers: int = 0) -> Occupancy:
        """Of blocks of so many threads, static + dynamic shared bytes, registers a thread (0: not known, they are not
        asked) and named barriers."""
        return occupancy(self.limits, registers, shared_bytes, threads, barriers=barriers)

    def resident(self, threads: int, shared_bytes: int, registers: int = 0, barriers: int = 0) -> int:
        """Blocks that run together on the whole GPU; at least one a multiprocessor, also where none would fit."""
        each = self.occupancy(threads, shared_bytes, registers, barriers).blocks_per_sm
        return self.multiprocessors * max(each, 1)

    def calibrated(self, figures: Mapping[str, float]) -> Gpu:
        """With what `fusiond calibrate` found on the device (by the names of `fusiond.devices.calibration`) in the
        place of the data sheet's figures. The clock is the one at which the measured multiply-adds run."""
        found: dict[str, float] = {}
        if figures.get("copy_gbs", 0.0) > 0:
            found["dram_gbs"] = figures["copy_gbs"]
        if figures.get("fp32_tflops", 0.0) > 0:
            found["clock_mhz"] = figures["fp32_tflops"] * 1e6 / (2 * _FMA_LANES[self.arch] * self.multiprocessors)
        if figures.get("kernel_gap_us", 0.0) > 0:
            found["launch_gap_us"] = figures["kernel_gap_us"]
        return dataclasses.replace(self, **found)  # type: ignore[arg-type]


_FMA_LANES = {"sm_80": 64, "sm_89": 128, "sm_90": 128}
"""Multiply-adds in single precision. No class is bound by them: `fp32` has comparisons too, which run elsewhere."""
_COMMON = {"sfu": 16, "conversion": 64, "shuffle": 64, "global": 32, "shared": 32, "local": 32}
"""Of a class that the guide's table divides, the highest rate of its parts."""
_LANES = {"sm_80": {**_COMMON, "fp64": 32}, "sm_89": {**_COMMON, "fp64": 2}, "sm_90": {**_COMMON, "fp64": 64}}


def _gpu(
    name: str, arch: str, multiprocessors: int, clock_mhz: float, l2_mib: int, dram_gbs: float, l2: float | None = None
) -> Gpu:
    return Gpu(
        name=name,
        arch=arch,
        multiprocessors=multiprocessors,
        clock_mhz=clock_mhz,
        l2_bytes=l2_mib * 2**20,
        dram_gbs=dram_gbs,
        l2_bytes_per_clock=l2 or 64.0 * multiprocessors,
        lanes=_LANES[arch],
    )


A100 = _gpu("a100", "sm_80", 108, 1410, 40, 2039, 5120)  # SXM, 80 GB
H100 = _gpu("h100", "sm_90", 132, 1980, 50, 3350)  # SXM
H200 = _gpu("h200", "sm_90", 132, 1980, 50, 4800)
L4 = _gpu("l4", "sm_89", 58, 2040, 48, 300)
RTX4090 = _gpu("rtx4090", "sm_89", 128, 2520, 72, 1008)
GPUS: Mapping[str, Gpu] = {each.name: each for each in (A100, H100, H200, L4, RTX4090)}


def gpu_named(name: str) -> Gpu:
    """RequestError where there is none of that name."""
    found = GPUS.get(name.lower())
    if found is None:
        raise RequestError(f"unknown GPU {name[:40]!r}; known: {', '.join(GPUS)}")
    return found


def gpu_of(arch: str) -> Gpu:
    """The board that an architecture stands for: sm_90 means an H100. RequestError where none is known."""
    for each in GPUS.values():
        if each.arch == arch.removesuffix("a"):
            return each
    raise RequestError(
        f"no GPU of {arch[:40]!r} is counted for; known: {', '.join(sorted({each.arch for each in GPUS.values()}))}"
    )
