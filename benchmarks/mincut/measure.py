"""The six applications through the ordinary tuner: each a job, on a store of its own.

What is read off its trials (medians of paired samples of the search) stands beside the job's answer, which is measured
afresh: the partitions of the paper's methods at default shapes and at the best shapes that were tried, each over the
unfused kernels one after the other at default shapes (what the paper calls the baseline).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.benches import TunedBench, answer
from benchmarks.rivals import rival_rows
from fusiond.model.outcomes import JobState, Outcome, Record, Trial
from fusiond.requests import jobs
from fusiond.requests.planning import prepare, target_of
from fusiond.tuning import tuner
from fusiond_mincut.codegen import block_configs
from fusiond_mincut.strategy import Mincut

METHODS = ("unfused", "basic", "algorithm1", "exact", "general")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench(TunedBench):
    trials: int
    blocks: int
    search_secs: float = 1800  #: Of each job, before its finals
    sizes: str = ""  #: For a job file; empty for the paper's sizes


def application(bench: Bench, name: str) -> dict[str, Any]:
    """One row: the answer, and every method's partition with its times."""
    text = f"strategy: mincut\npipeline: {name}\nblocks: {bench.blocks}\n{bench.sizes}"
    text += f"search: {{trials: {bench.trials}, timeout: {bench.search_secs:g}s, seed: 0, least_gain: 1.02}}\n"
    (job,) = jobs.read(f"{name}.yaml", text, device=bench.device.name)
    prepared = prepare(bench.registry, job)
    analysis = prepared.strategy.analyse(prepared.workload, target_of(bench.provider, bench.device))
    row: dict[str, Any] = {
        "application": name,
        "sizes": dict(prepared.workload.sizes),
        "evidence": bench.device.evidence,
        "benefit": analysis.report["benefit"],
        "optimum": analysis.report["optimum"],
    }
    submitted = tuner.submit(bench.store, bench.registry, job)
    done = submitted if submitted.state is JobState.DONE else bench.tune(submitted)
    record = bench.store.record(prepared.workload.key, bench.device.key)
    if record is None:
        return {**row, "problem": done.problem or "no answer"}
    trials = bench.store.trials(submitted.id, role=None)
    row["answer"] = answer(record)
    row["methods"] = methods(trials, partitions(analysis.report, trials))
    known = {part.workload_key: bench.store.record(part.workload_key, bench.device.key) for part in bench.done()}
    sums = Mincut().sums(analysis, {key: each for key, each in known.items() if each is not None})
    row["rivals"] = rivals(bench, name, record)
    row["sums"] = [{"partition": text, "blocks_us": round(time_us, 3)} for text, time_us in sums]
    return row


def rivals(bench: Bench, name: str, record: Record) -> list[rival_rows.Row]:
    """What users have today, each beside the answer: the fused kernels, or the fastest unfused way."""
    key = record.program_key if record.verdict.wins else record.baseline_program_key
    about = {"application": name, "width": record.sizes["width"], "height": record.sizes["height"]}
    with bench.measurer() as measurer:
        return rival_rows.rows(bench, measurer, "mincut", None if key is None else bench.store.program(key), about)


def partitions(report: Any, trials: Iterable[Trial]) -> dict[str, str]:
    """Method -> partition."""
    members = report["operations"]
    found = {"unfused": None, "basic": report["basic"], "algorithm1": report["partition"]}
    if report["optimum"]:
        found["exact"] = report["optimum"]["partition"]
    for trial in trials:
        text = str(trial.config.get("partition", ""))
        if trial.origin == "seed:general":
            found["general"] = text
        if text.count("|") == len(members) - 1:
            found["unfused"] = text
    return {name: text for name, text in found.items() if text is not None}


def _is_plain(trial: Trial) -> bool:
    """Whether its blocks have their default shapes, one launch after the other."""
    config = trial.config
    return config.get("shapes") == block_configs.DEFAULT and config.get("launch", "sequence") == "sequence"


def methods(trials: Sequence[Trial], chosen: dict[str, str]) -> dict[str, Any]:
    """Each method's times, and its speed-up over the unfused kernels as given, one after the other."""
    measured = [each for each in trials if each.outcome is Outcome.MEASURED and each.time_us]
    given = next((each.time_us for each in measured if each.role == "baseline:sequential"), None)
    fastest = min(
        (each.time_us for each in measured if each.role.startswith("baseline:") and each.time_us), default=None
    )
    found: dict[str, Any] = {"given_us": given, "fastest_unfused_us": fastest}
    for name, text in chosen.items():
        own = [each for each in measured if each.role == "candidate" and each.config.get("partition") == text]
        plain = next((each.time_us for each in own if _is_plain(each)), None)
        best = min((each.time_us for each in own if each.time_us), default=None)
        found[name] = {
            "partition": text,
            "default_us": plain,
            "best_us": best,
            "over_given": round(given / plain, 4) if given and plain else None,
            "best_over_given": round(given / best, 4) if given and best else None,
        }
    return found
