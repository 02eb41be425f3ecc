"""The reasons that `fusiond explain` gives: what the programs of a job ask of the GPU, stored or counted now
(`--count`).

A program's issue slots are the resource that fusing two kernels fills: one that waits for memory leaves them empty, and
the other one's instructions take them (Li et al., CGO 2022, section IV-A). Without a GPU they are counted from SASS
against the lower bound of the time; with one, Nsight Compute says what they were and what the warps waited for.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fusiond.cli.answer_text import microseconds
from fusiond.devices.counting import child_process
from fusiond.devices.counting.model import H100, Gpu, gpu_named
from fusiond.devices.cuda import counters
from fusiond.model.nouns import COUNTED, MEASURED, DeviceInfo
from fusiond.model.outcomes import Outcome, Trial
from fusiond.model.program import Program
from fusiond.requests.isolation import registry as plugins
from fusiond.store.database import Store
from fusiond.tuning.counts import like

Row = Mapping[str, Any]
CANDIDATE = "candidate"
MOST = 4  #: Candidates that are counted, the best of them


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """The fastest unfused way, and then the candidates that were measured, the best first."""
    measured = [each for each in trials if each.outcome is Outcome.MEASURED and each.time_us is not None]
    measured.sort(key=lambda each: each.time_us or 0.0)
    unfused = [each for each in measured if each.role != CANDIDATE][:1]
    return [*unfused, *(each for each in measured if each.role == CANDIDATE)]


def named(trial: Trial) -> str:
    return f"trial {trial.sequence}" if trial.role == CANDIDATE else "native"


def chosen(store: Store, trials: Sequence[Trial]) -> dict[str, Program]:
    """The fastest unfused way and the best candidates that were measured, each program once, by what they are called:
    `native` and `trial 3`. None of those whose plan is not in the store any more."""
    found: dict[str, Program] = {}
    keys: set[str] = set()
    for each in ranked(trials):
        key = each.program_key
        program = None if key is None or key in keys or len(found) > MOST else store.program(key)
        if program is not None and key is not None:
            keys.add(key)
            found[named(each)] = program
    return found


def counted(store: Store, programs: Mapping[str, Program], device: DeviceInfo | None) -> list[dict[str, Any]]:
    """The rows of the programs on the job's GPU, or an H100 where its device is none. They are kept: what was counted
    before is not counted again."""
    model = gpu_of(device).name
    known = store.profiles([each.key for each in programs.values()], model, COUNTED)
    missing = {label: each for label, each in programs.items() if each.key not in known}
    for row in child_process.counted(missing, model=model) if missing else ():
        known.setdefault(programs[row["program"]].key, []).append(row)
    for each in missing.values():
        if not any(row["failed"] for row in known.get(each.key, ())):
            store.save_profile(each.key, model, COUNTED, known[each.key])
    return [{**row, "program": label} for label, each in programs.items() for row in known[each.key]]


def gpu_of(device: DeviceInfo | None) -> Gpu:
    """What a job's programs are counted for."""
    return (None if device is None else like(device.model, device.arch)) or H100


def profiles(store: Store, trials: Sequence[Trial], device: DeviceInfo | None) -> list[dict[str, Any]]:
    """What is kept of each trial's program, in the trials' order: by its role and number, the rows that are counted and
    those of the GPU's counters, each None where there are none."""
    keys = {each.program_key for each in trials if each.program_key is not None}
    said = store.profiles(keys, gpu_of(device).name, COUNTED)
    read = {} if device is None else store.profiles(keys, device.key, MEASURED)
    return [
        {
            "role": each.role,
            "sequence": each.sequence,
            "counted": said.get(each.program_key),
            "measured": read.get(each.program_key),
        }
        for each in trials
        if each.program_key in said or each.program_key in read
    ]


def issued_us(row: Row) -> float | None:
    """How long all schedulers of the GPU take to issue a launch's instructions; None where they are not counted."""
    if row["failed"] or not row["warp_instructions"]:
        return None
    gpu = gpu_named(row["model"])
    return float(sum(row["warp_instructions"].values()) / (gpu.issue_warps * gpu.multiprocessors) / gpu.clock_mhz)


def because(rows: Sequence[Row]) -> Iterator[str]:
    """Of kernels that run side by side: which of them leaves most issue slots empty, and how many of these the others
    need (section IV-A). Nothing where one of them is not counted."""
    issued = [issued_us(row) for row in rows]
    if len(rows) < 2 or None in issued:
        return
    empty = [row["bound_us"] - (each or 0.0) for row, each in zip(rows, issued, strict=True)]
    most = max(range(len(rows)), key=empty.__getitem__)
    waits, others = rows[most], [k for k in range(len(rows)) if k != most]
    if waits["binding"] not in _WAITS or not waits["bound_us"]:
        return
    share = sum(issued[k] or 0.0 for k in others) / waits["bound_us"]
    names = " and ".join(kernel_of(rows[k]) for k in others)
    idle = f"{100 * empty[most] / waits['bound_us']:.0f} % of its issue slots"
    filled = f"{names} beside it would fill {100 * share:.0f} %"
    yield f"{kernel_of(waits)} waits for {_WAITS[waits['binding']]} in {idle}; {filled}"


def kernel_of(row: Row) -> str:
    return str(row["kernel"]).rpartition("::")[2]


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
        said = f"{row['program']}: {kernel_of(row)} can fill {slots:.0f} % of its issue slots"
        waits = "" if str(row["binding"]).startswith("issue") else f": it waits for {_WAITS.get(row['binding'], '')}"
        yield f"{said}, at least {microseconds(row['bound_us'])}{waits or ': they are what it needs most'}"


_WAITS = {
    "dram": "DRAM", "l2": "the L2", "l1": "the L1 caches", "shared": "shared memory",
    "tail": "its last blocks", "latency": "its own loads, with too few warps resident", "none": "nothing",
}  # fmt: skip


def hardware(store: Store, device: DeviceInfo, programs: Mapping[str, Program]) -> Iterator[str]:
    """What Nsight Compute says of each program's last launch on the GPU that is here, or the one reason why nothing;
    what it said before is not asked again."""
    provider = plugins.load().provider("cuda" if device.arch.startswith("sm_") else device.name)
    before = store.profiles([each.key for each in programs.values()], device.key, MEASURED)
    for name, program in programs.items():
        found = before[program.key][0] if program.key in before else counters.of_program(provider, device, program)
        if found["reason"] is not None:
            yield f"hardware counters: none ({found['reason']})"
            return
        if program.key not in before:
            store.save_profile(program.key, device.key, MEASURED, [found])
        yield read_off(name, found)


def read_off(name: str, found: Row) -> str:
    """What the GPU's counters say of one program."""
    known = [
        f"{found[key]:.0f} % {said}"
        for key, said in (
            ("issue_slot_pct", "of the issue slots used"),
            ("memory_stall_pct", "of the stalled warps wait for memory"),
            ("occupancy_pct", "occupancy achieved"),
        )
        if found[key] is not None
    ]
    return f"{name}, measured: {', '.join(known) or 'nothing'}"


def kept(profiles: Sequence[Mapping[str, Any]], trials: Sequence[Trial]) -> tuple[list[Row], list[str]]:
    """Of the fastest unfused way and the best candidates that have profiles: the rows that are counted, and sentences
    from the counters."""
    of_trial = {(each["role"], each["sequence"]): each for each in profiles}
    rows, said, candidates = list[Row](), list[str](), 0
    for each in ranked(trials):
        found = of_trial.get((each.role, each.sequence))
        candidates += each.role == CANDIDATE
        if found is None or candidates > MOST:
            continue
        label = named(each)
        rows += [{**row, "program": label} for row in found["counted"] or ()]
        said += [read_off(label, row) for row in found["measured"] or ()]
    return rows, said
