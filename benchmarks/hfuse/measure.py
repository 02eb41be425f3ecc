"""The sweeps: each point is an ordinary job for the ordinary tuner, on a store of its own.

So a figure is what a user would get: a verdict against the fastest unfused way, with its interval over fresh processes.
The paper's categories are read off the job's trials, which are samples of the search: medians of paired ratios, without
an interval.

    native      the faster of two streams, in either order (`streams_*`), at the block shapes that are best for it
    hfuse       the best horizontal candidate of all; and what the paper's search (Figure 6, a job of its own with
                `order: paper`) finds without a register cap and with r0
    naive       the even split of the paper's block (seed `paper_even_split`; `paper_r0` under the register bound)
    vertical    the best vertical candidate

A store that has the answer of a job is not asked to find it again.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.benches import TunedBench, answer, problem
from benchmarks.hfuse import pairs
from benchmarks.hfuse.pairs import Pair
from benchmarks.rivals import rival_rows
from fusiond.devices.cuda import counters
from fusiond.devices.timing import Sampling
from fusiond.model.nouns import Config, Job
from fusiond.model.outcomes import JobState, MeasureFailed, Outcome, Purpose, Trial
from fusiond.model.program import Launch, Pointer, Program
from fusiond.requests.launch_facts import kernel_facts
from fusiond.requests.planning import Prepared, prepare, reference, target_of
from fusiond.store.jobs import JobRow
from fusiond.tuning import tuner


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench(TunedBench):
    """A device, and how much is to be tried on it."""

    factors: Sequence[float] = pairs.FACTORS
    trials: int = 64
    search_secs: float = 1800  #: Of each job, before its finals


def sweep(bench: Bench, pair: Pair) -> dict[str, Any]:
    """One subplot of figure 7, and the rows of figures 8 and 9 at its point of most equal times."""
    base = pairs.base(pair, tiny=bench.emulated)
    middle = float(base)
    (job,) = _jobs(bench, pair, [base])
    prepared = prepare(bench.registry, job)
    times = alone(bench, prepared)
    if not bench.emulated and all(isinstance(each, float) for each in times.values()):
        middle = pairs.balanced(pair, {name: float(each) for name, each in times.items()}, base)
    found: dict[str, Any] = {
        "pair": pair.name,
        "evidence": bench.device.evidence,
        "swept": pair.size,
        "swept_as_in_the_paper": pair.named,
        "points": [],
    }
    jobs_ = _jobs(bench, pair, pairs.values(pair, bench.factors, middle=middle))
    for job in jobs_:
        found["points"].append(point(bench, pair, job))
    found["representative"] = representative(bench, found["points"], jobs_)
    found["rivals"] = rivals(bench, found["points"], jobs_)
    return found


def _jobs(bench: Bench, pair: Pair, values: Sequence[int]) -> tuple[Job, ...]:
    return pairs.read(
        pair, values, tiny=bench.emulated, trials=bench.trials, search_secs=bench.search_secs, device=bench.device.name
    )


# --- each kernel by itself ------------------------------------------------------------------------------


def singles(bench: Bench, prepared: Prepared) -> dict[str, Program]:
    """Kernel -> the unfused program's launch of it and nothing else, as given."""
    strategy = prepared.strategy
    analysis = strategy.analyse(prepared.workload, target_of(bench.provider, bench.device))
    whole = bench.provider.normalise(reference(strategy, analysis))
    launches = [step for step in whole.steps if isinstance(step, Launch)]
    return {name: _only(whole, step) for name, step in zip(prepared.workload.members, launches, strict=True)}


def _only(program: Program, step: Launch) -> Program:
    used = {each.buffer for each in step.arguments if isinstance(each, Pointer)}
    return dataclasses.replace(
        program,
        name=f"{program.name}: {step.name}",
        buffers=tuple(each for each in program.buffers if each.name in used),
        sources=(program.source(step.source),),
        steps=(dataclasses.replace(step, after=(), stream=0),),
    )


def alone(bench: Bench, prepared: Prepared) -> dict[str, float | str]:
    """Kernel -> microseconds by itself, as given; or why there are none."""
    found: dict[str, float | str] = {}
    plan = Sampling(purpose=Purpose.PROBE)
    with bench.measurer() as measurer:
        for name, program in singles(bench, prepared).items():
            references = measurer.references(program, name)
            if isinstance(references, MeasureFailed):
                found[name] = problem(references)
                continue
            measured = measurer.sample(program, None, plan, references)
            found[name] = problem(measured) if isinstance(measured, MeasureFailed) else measured.time_us
    return found


# --- one point ------------------------------------------------------------------------------------------


def point(bench: Bench, pair: Pair, job: Job) -> dict[str, Any]:
    """One job: the times of the kernels by themselves, the verdict, and the paper's categories."""
    prepared = prepare(bench.registry, job)
    value = job.sizes[pair.size]
    bench.say(f"{pair.name} at {pair.size}={value}")
    times = alone(bench, prepared)
    first, second = times[pair.first], times[pair.second]
    ratio = round(first / second, 4) if isinstance(first, float) and isinstance(second, float) and second else None
    found: dict[str, Any] = {
        "value": value,
        "sizes": dict(prepared.workload.sizes),
        "evidence": bench.device.evidence,
        "alone_us": times,
        "ratio": ratio,
    }
    paper = tuned(bench, dataclasses.replace(job, search=dataclasses.replace(job.search, order="paper")), prepared)
    row = tuned(bench, job, prepared)  # the last of them, so that the answer is this one's
    found["job"], found["problem"] = row.id, row.problem
    record = bench.store.record(prepared.workload.key, bench.device.key)
    if row.state is not JobState.DONE or record is None:
        return found
    trials = bench.store.trials(row.id, role=None)
    found["answer"] = answer(record)
    found["outcomes"] = dict(Counter(each.outcome.value for each in trials if each.role == "candidate"))
    found |= categories(trials, bench.store.trials(paper.id, role=None))
    _add_facts(bench, found)
    return found


def tuned(bench: Bench, job: Job, prepared: Prepared) -> JobRow:
    """The job, done: as an earlier run left it in this store, or now."""
    for row in bench.done():
        record = bench.store.record(row.workload_key, bench.device.key)
        same = row.workload_key == prepared.workload.key and row.device_key == bench.device.key
        if same and row.search == job.search and record is not None and record.env_key == bench.device.env_key:
            return row
    return bench.tune(tuner.submit(bench.store, bench.registry, job))


# --- reading it off -------------------------------------------------------------------------------------


def categories(trials: Iterable[Trial], paper: Iterable[Trial] = ()) -> dict[str, Any]:
    """The paper's categories of one job's trials; each with its speed-up over the fastest unfused way, and over two
    streams, which is what the paper calls native. Null for what was not measured. What the paper's own search found is
    read off the job that ran it (`paper`), as far as there are trials of one. Long: one table of the paper."""
    measured = [each for each in trials if each.outcome is Outcome.MEASURED]
    unfused = [each for each in measured if each.role.startswith("baseline:")]
    fused = [each for each in measured if each.role == "candidate" and each.ratio]
    fastest = max((_gain(each) for each in unfused), default=None)
    streams = max((_gain(each) for each in unfused if each.role.startswith("baseline:streams")), default=None)
    # Candidates were paired with the fastest unfused way, the unfused ways with the program as given.
    over_streams = fastest / streams if fastest and streams else None

    def best(several: Iterable[Trial]) -> dict[str, Any] | None:
        found = max(several, key=lambda each: (not _dropped(each), each.ratio or 0.0), default=None)
        return _speedup(found, over_streams)

    def seed(name: str) -> dict[str, Any] | None:
        return _speedup(next((each for each in fused if each.origin == f"seed:{name}"), None), over_streams)

    def of_kind(kind: str) -> list[Trial]:
        return [each for each in fused if each.config.get("kind") == kind]

    searched = [each for each in paper if each.outcome is Outcome.MEASURED and each.role == "candidate" and each.ratio]
    papers = searched or [each for each in of_kind("horizontal") if _as_in_the_paper(each.config)]
    return {
        "unfused_us": {
            name: min(each.time_us for each in unfused if each.role == f"baseline:{name}" and each.time_us)
            for name in sorted({each.role.partition(":")[2] for each in unfused})
        },
        "over_streams": None if over_streams is None else round(over_streams, 4),
        "hfuse": best(of_kind("horizontal")),
        "hfuse_free": best(each for each in papers if each.config.get("cap", "none") == "none"),
        "hfuse_capped": best(each for each in papers if each.config.get("cap", "none") != "none"),
        "naive": seed("paper_even_split"),
        "naive_r0": seed("paper_r0"),
        "vertical": best(of_kind("vertical")),
    }


def _speedup(found: Trial | None, over_streams: float | None) -> dict[str, Any] | None:
    """One measured trial; `over_streams` is what the fastest unfused way gains over two streams."""
    if found is None or found.ratio is None:
        return None
    return {
        "config": dict(found.config),
        "resolved": dict(found.resolved),
        "origin": found.origin,
        "speedup": round(found.ratio, 4),
        "over_streams": round(found.ratio * over_streams, 4) if over_streams else None,
        "time_us": found.time_us,
        "dropped": found.measurement.dropped if found.measurement else False,
        "program": found.program_key,
    }


def rivals(bench: Bench, points: Sequence[dict[str, Any]], jobs_: Sequence[Job]) -> list[rival_rows.Row]:
    """What CUDA offers beside fusing, each beside the answer (the fused kernel, or the fastest unfused way) at the
    point where the two kernels take most equally long."""
    number = most_equal(points)
    if number is None:
        return rival_rows.without("hfuse", "there is no answer to stand beside")
    prepared = prepare(bench.registry, jobs_[number])
    record = bench.store.record(prepared.workload.key, bench.device.key)
    assert record is not None  # the point has its answer
    trials = bench.store.trials(points[number]["job"], role=None)
    wanted = {"unfused": record.baseline_program_key} | {
        name: _fastest(trials, prefix)
        for name, prefix in (("streams", "baseline:streams_"), ("graph", "baseline:graph"))
    }
    programs = {name: bench.store.program(key) for name, key in wanted.items() if key is not None}
    fused = record.program_key if record.verdict.wins else record.baseline_program_key
    with bench.measurer() as measurer:
        return rival_rows.rows(
            bench,
            measurer,
            "hfuse",
            bench.store.program(fused) if fused is not None else None,
            {},
            programs={name: program for name, program in programs.items() if program is not None},
        )


def _fastest(trials: Iterable[Trial], role: str) -> str | None:
    """The program of the fastest unfused way whose name begins so."""
    own = [each for each in trials if each.role.startswith(role) and each.outcome is Outcome.MEASURED and each.time_us]
    return min(own, key=lambda each: each.time_us or 0.0).program_key if own else None


CATEGORIES = ("hfuse", "hfuse_free", "hfuse_capped", "naive", "naive_r0", "vertical")


def _as_in_the_paper(config: Config) -> bool:
    return config.get("level", "warp") == "warp" and config.get("map", "pad") == "pad"


def _gain(trial: Trial) -> float:
    """Over the unfused program as given, which has no ratio to itself."""
    return 1.0 if trial.ratio is None else trial.ratio


def _dropped(trial: Trial) -> bool:
    return trial.measurement is not None and trial.measurement.dropped


def _add_facts(bench: Bench, found: dict[str, Any]) -> None:
    """Registers, spills and theoretical occupancy of what was measured; null where the device has none."""
    for category in CATEGORIES:
        entry = found[category]
        program = bench.store.program(entry["program"]) if entry and entry["program"] else None
        if entry is None or program is None:
            continue
        facts = kernel_facts(target_of(bench.provider, bench.device), {category: program})
        known = facts[-1].as_json() if facts else {}
        for key in ("registers", "spill_bytes", "shared_bytes", "occupancy", "limited_by"):
            entry[key] = known.get(key)


# --- figures 8 and 9 ------------------------------------------------------------------------------------


def most_equal(points: Sequence[dict[str, Any]]) -> int | None:
    """The number of the point, of those with an answer, where the two kernels take most equally long."""
    usable = [number for number, each in enumerate(points) if each["ratio"] and each.get("answer")]
    return min(usable, key=lambda each: max(points[each]["ratio"], 1 / points[each]["ratio"]), default=None)


def representative(bench: Bench, points: Sequence[dict[str, Any]], jobs_: Sequence[Job]) -> dict[str, Any] | None:
    """The counters at the point where the two kernels take most equally long, as in the paper."""
    number = most_equal(points)
    if number is None:
        return None
    chosen = points[number]
    native = {
        name: counters.of_program(bench.provider, bench.device, program)
        for name, program in singles(bench, prepare(bench.registry, jobs_[number])).items()
    }
    fused = {}
    for category in ("hfuse_free", "hfuse_capped", "vertical"):
        program = bench.store.program(chosen[category]["program"]) if chosen[category] else None
        fused[category] = (
            counters.nothing("there is no such candidate")
            if program is None
            else counters.of_program(bench.provider, bench.device, program)
        )
    return {
        "value": chosen["value"],
        "ratio": chosen["ratio"],
        "evidence": bench.device.evidence,
        "native": native,
        "native_issue_slot_pct": _together(list(native.values())),
        **fused,
    }


def _together(kernels: Sequence[Mapping[str, Any]]) -> float | None:
    """The issue-slot utilisation of several kernels, weighted by their cycles (section IV-A's formula)."""
    known = [(each["issue_slot_pct"], each["cycles"]) for each in kernels]
    if not known or any(slot is None or not cycles for slot, cycles in known):
        return None
    return round(float(sum(slot * cycles for slot, cycles in known) / sum(cycles for _, cycles in known)), 2)
