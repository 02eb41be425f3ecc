"""What the pairs would pay on a GPU that is not here: `python -m benchmarks.hfuse --counted h100`.

The paper explains its gains by issue slots (section IV, figure 9): one kernel waits for memory, the other one computes.
Without a GPU both are counted: the instructions of all warps against the lower bound of the time. A kernel whose bound
is DRAM's leaves the rest of its issue slots to whatever shares its multiprocessor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.hfuse import static
from benchmarks.hfuse.pairs import Pair
from fusiond.cli.causes import Row, issued_us
from fusiond.devices.counting import child_process
from fusiond.devices.counting.model import Gpu
from fusiond.model.program import Program
from fusiond.requests.planning import reference, target_for_arch
from fusiond.requests.registry import Registry

SEEDS = ("paper_even_split", "paper_r0", "vertical", "block_multiprocessor")
"""The paper's three ways, and the one at block level that came after."""
MOST_WHOLE = 200_000_000
"""Instructions of warps of the unfused kernels up to which the fused ones are not sampled: what sampling cannot be sure
of makes a bound lower than it is."""
TIMEOUT_SECS = 1200.0


def columns(registry: Registry, pair: Pair, gpu: Gpu) -> dict[str, Any]:
    """What each way of a pair would pay, at the catalogue's sizes: of every launch of the way together."""
    about = static.known(registry, pair, target_for_arch(gpu.arch))
    strategy, analysis = about.prepared.strategy, about.analysis
    programs = {"native": reference(strategy, analysis)}
    for name, config in strategy.seeds(analysis, strategy.space(analysis, {}), {}):
        program = strategy.emit(analysis, config, {}) if name in SEEDS else None
        if isinstance(program, Program):
            programs[name] = program
    rows = child_process.counted({"native": programs.pop("native")}, model=gpu.name, timeout_secs=TIMEOUT_SECS)
    whole = sum(sum((each["warp_instructions"] or {}).values()) for each in rows) <= MOST_WHOLE
    rows += child_process.counted(programs, model=gpu.name, timeout_secs=TIMEOUT_SECS, whole=whole)
    workload = about.prepared.workload
    names = dict.fromkeys(each["program"] for each in rows)
    ways = {name: together([each for each in rows if each["program"] == name]) for name in names}
    return {"pair": pair.name, "workload": workload.key, "sizes": dict(workload.sizes), "ways": ways}


def together(rows: Sequence[Row]) -> dict[str, Any]:
    """The launches of one way, issued one after the other: bound_us is the program's, slots_pct of all their bounds,
    and None where sampling does not know how far its counts are off."""
    failed = next((each["failed"] for each in rows if each["failed"]), None)
    if failed is not None or not rows:
        return {"failed": failed or "it has no launch"}
    bounds = sum(each["bound_us"] for each in rows)
    issued = [issued_us(each) for each in rows]
    errors = [each["error"] for each in rows]
    return {
        "failed": None,
        "bound_us": round(rows[0]["program_bound_us"], 3),
        "binding": max(rows, key=lambda each: float(each["bound_us"]))["binding"],
        "slots_pct": None if None in (*issued, *errors) or not bounds else round(100 * sum(issued) / bounds, 1),
        "dram_bytes": sum(each["dram_bytes"] for each in rows),
        "instructions": sum(sum((each["warp_instructions"] or {}).values()) for each in rows),
        "occupancy": [each["occupancy"] for each in rows],
        "sampled": min(each["sampled"] for each in rows),
        "error": None if None in errors else max(errors),
    }
