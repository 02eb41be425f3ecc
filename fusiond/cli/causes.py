"""`fusiond explain --count`: what the best candidates and the fastest unfused way of a job would pay, and why.

A program's issue slots are the resource that fusing two kernels fills: one that waits for memory leaves them empty, and
the other one's instructions take them (Li et al., CGO 2022, section IV-A). Without a GPU they are counted from SASS
against the lower bound of the time; with one, Nsight Compute says what they were and what the warps waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fusiond.cli.answer import microseconds
from fusiond.counting import apart
from fusiond.counting.model import H100, gpu_named
from fusiond.devices.cuda import counters
from fusiond.isolation import registry as plugins
from fusiond.model import DeviceInfo, Outcome, Trial
from fusiond.program import Program
from fusiond.store.database import Store
from fusiond.tuning.counts import like

Row = Mapping[str, Any]
MOST = 4
"""Candidates that are counted, the best of them."""


def chosen(store: Store, trials: Sequence[Trial]) -> dict[str, Program]:
    """The fastest unfused way and the best candidates that were measured, each program once, by what they are called:
    `native` and `trial 3`. None of those whose plan is not in the store any more."""
    measured = [each for each in trials if each.outcome is Outcome.MEASURED and each.time_us is not None]
    measured.sort(key=lambda each: each.time_us or 0.0)
    unfused = [each for each in measured if each.role != "candidate"][:1]
    found: dict[str, Program] = {}
    keys: set[str] = set()
    for each in (*unfused, *(each for each in measured if each.role == "candidate")):
        key = each.program_key
        program = None if key is None or key in keys or len(found) > MOST else store.program(key)
        if program is not None and key is not None:
            keys.add(key)
            found["native" if each.role != "candidate" else f"trial {each.sequence}"] = program
    return found


def counted(programs: Mapping[str, Program], device: DeviceInfo | None) -> list[dict[str, Any]]:
    """The rows of the programs on the job's GPU, or an H100 where its device is none: what was counted before is not
    counted again."""
    gpu = None if device is None else like(device)
    return apart.counted(programs, model=(gpu or H100).name)


def issued_us(row: Row) -> float | None:
    """How long all schedulers of the GPU take to issue a launch's instructions; None where they are not counted."""
    if row["failed"] or not row["warp_instructions"]:
        return None
    gpu = gpu_named(row["model"])
    return float(sum(row["warp_instructions"].values()) / (gpu.issue_warps * gpu.multiprocessors) / gpu.clock_mhz)


def slots_pct(row: Row) -> float | None:
    """How many of the issue slots of a launch's lower bound in time its instructions take, in per cent; None where
    they are not counted."""
    issued = issued_us(row)
    return None if issued is None or not row["bound_us"] else 100 * issued / row["bound_us"]


def sentences(rows: Sequence[Row]) -> Iterator[str]:
    """Of each launch, how full its issue slots can be at most, and what it waits for then."""
    for row in rows:
        slots = slots_pct(row)
        if slots is None:
            continue
        kernel = str(row["kernel"]).rpartition("::")[2]
        said = f"{row['program']}: {kernel} can fill {slots:.0f} % of its issue slots"
        waits = "" if str(row["binding"]).startswith("issue") else f": it waits for {_WAITS.get(row['binding'], '')}"
        yield f"{said}, at least {microseconds(row['bound_us'])}{waits or ': they are what it needs most'}"


_WAITS = {
    "dram": "DRAM", "l2": "the L2", "l1": "the L1 caches", "shared": "shared memory",
    "tail": "its last blocks", "latency": "its own loads, with too few warps resident", "none": "nothing",
}  # fmt: skip


def hardware(device: DeviceInfo, programs: Mapping[str, Program]) -> Iterator[str]:
    """What Nsight Compute says of each program's last launch on the GPU that is here, or the one reason why nothing."""
    provider = plugins.load().provider("cuda" if device.arch.startswith("sm_") else device.name)
    for name, program in programs.items():
        found = counters.of_program(provider, device, program)
        if found["reason"] is not None:
            yield f"hardware counters: none ({found['reason']})"
            return
        known = [
            f"{found[key]:.0f} % {said}"
            for key, said in (
                ("issue_slot_pct", "of the issue slots used"),
                ("memory_stall_pct", "of the stalled warps wait for memory"),
                ("occupancy_pct", "occupancy achieved"),
            )
            if found[key] is not None
        ]
        yield f"{name}, measured: {', '.join(known) or 'nothing'}"
