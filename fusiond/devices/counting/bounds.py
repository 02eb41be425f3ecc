"""A lower bound of the time that a launch, or a program, takes on a GPU, from its counts (parts: docs/counting.md).

Each part of the GPU needs at least its work divided by its highest rate; a launch takes at least as long as the part
that needs longest. Nothing here is an estimate of a time: parts do not overlap perfectly, and clocks fall.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fusiond.devices.counting.model import Gpu
from fusiond.model.program import Launch, Program

SECTOR_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchWork:
    """What one launch does, summed over its blocks."""

    blocks: int
    warps_per_block: int
    resident_per_sm: int  #: Blocks on one multiprocessor, by its occupancy
    dram_bytes: int
    compulsory_read_sectors: int
    read_sectors: int
    write_sectors: int
    atomic_sectors: int
    shared_wavefronts: int
    warps: Mapping[str, int]  #: Class -> instructions of warps: of SASS, or of PTX those that ptxas keeps
    shortest_share: float = 0.0
    """Instructions of the block that has the fewest against the mean of all: 1.0 where all are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchBound:
    us: float
    binding: str  #: The part that needs longest; `none` where nothing is done
    terms: Mapping[str, float]  #: Of each part, in us


def bound(work: LaunchWork, gpu: Gpu) -> LaunchBound:
    """The lower bound of one launch, without the gap before it."""
    sms = gpu.multiprocessors
    issued = sum(work.warps.values())
    l2_sectors = work.compulsory_read_sectors + work.write_sectors + work.atomic_sectors
    sectors = work.read_sectors + work.write_sectors + work.atomic_sectors
    cycles = {
        "l2": SECTOR_BYTES * l2_sectors / gpu.l2_bytes_per_clock,
        "l1": SECTOR_BYTES * sectors / (gpu.l1_bytes_per_clock * sms),
        "shared": work.shared_wavefronts * 128 / (gpu.shared_bytes_per_clock * sms),
        "issue": issued / (gpu.issue_warps * sms),
        **{
            f"issue_{each}": count * 32 / (gpu.lanes[each] * sms)
            for each, count in work.warps.items()
            if each in gpu.lanes
        },
        # Some multiprocessor has so many blocks, each of them at least as long as the shortest.
        "tail": math.ceil(work.blocks / sms) * work.shortest_share * issued / max(work.blocks, 1) / gpu.issue_warps,
        "latency": _latency_cycles(work, gpu, issued),
    }
    terms = {"dram": work.dram_bytes / gpu.dram_gbs / 1e3} | {
        name: count / gpu.clock_mhz for name, count in cycles.items()
    }
    binding = max(terms, key=lambda name: terms[name])
    return LaunchBound(us=terms[binding], binding=binding if terms[binding] > 0 else "none", terms=terms)


def _latency_cycles(work: LaunchWork, gpu: Gpu, issued: int) -> float:
    """Of the places for warps, each has its share of all warps one after another."""
    warps = work.blocks * work.warps_per_block
    places = min(warps, work.resident_per_sm * work.warps_per_block * gpu.multiprocessors)
    if places == 0:
        return 0.0
    # A warp brings at most 32 sectors with a load, and may do nothing at all: only so many waited for certain.
    waited = gpu.load_cycles if work.compulsory_read_sectors else 0
    return max(issued / places, float(waited))


def program_bound_us(program: Program, launches: Mapping[str, LaunchBound], gpu: Gpu) -> float:
    """The lower bound of a program's timed span: the longest chain of launches that wait for one another, with a gap
    between two; and no less than what any part of the GPU needs for all of them. Copies between host and device, host
    calls and steps that are not timed count as nothing."""
    timed = {
        each.name: launches[each.name]
        for each in program.steps
        if isinstance(each, Launch) and each.counted and each.name in launches
    }
    ends: dict[str, tuple[float, int]] = {}
    last: dict[int, str] = {}
    for step in program.steps:
        before = [ends[each] for each in (*step.after, *([last[step.stream]] if step.stream in last else []))]
        begun, kernels = max(before, default=(0.0, 0))
        if step.name in timed:
            begun += timed[step.name].us + (gpu.launch_gap_us if kernels else 0.0)
            kernels += 1
        ends[step.name], last[step.stream] = (begun, kernels), step.name
    longest = max((us for us, _ in ends.values()), default=0.0)
    # What the part that is asked most needs for all launches, also where they run side by side.
    parts = {name for each in timed.values() for name in each.terms if name not in ("tail", "latency")}
    return max([longest, *(sum(each.terms.get(name, 0.0) for each in timed.values()) for name in parts)])
