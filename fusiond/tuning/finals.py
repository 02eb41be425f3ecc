"""The final check: the best three of the search, measured afresh; and the answer that comes of it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from fusiond import events as say
from fusiond import verdict
from fusiond.devices.timing import Sampling
from fusiond.measuring import SEEDS, References
from fusiond.model import Config, MeasureFailed, Measurement, Outcome, Purpose, Record, Trial, median
from fusiond.program import Program
from fusiond.tuning.context import Context, Odd, Unfused

log = logging.getLogger(__name__)

FINALISTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    config: Config
    program: Program


def finalists(context: Context) -> dict[str, Finalist]:
    """The best of the search by program key, each Program once, best first."""
    trials = [each for each in context.store.trials(context.row.id) if each.outcome is Outcome.MEASURED]
    found: dict[str, Finalist] = {}
    for trial in sorted(trials, key=_rank):
        program = context.emit(context.analysis, trial.config)
        if isinstance(program, Program):
            found.setdefault(program.key, Finalist(config=trial.config, program=program))
        if len(found) == FINALISTS:
            break
    return found


def _rank(trial: Trial) -> tuple[bool, float]:
    """The fastest first; what was dropped early has too few samples to come before what was not."""
    return trial.measurement is None or trial.measurement.dropped, -(trial.ratio or 0.0)


def measure(
    context: Context, entered: Mapping[str, Finalist], references: References, baseline: Unfused
) -> dict[str, list[Measurement]]:
    """Each finalist in each of several fresh child processes, in pairs with the baseline. A process is one observation.

    What an earlier session of the job measured is not measured again.
    """
    if entered:
        context.phase("final", f"the best {len(entered)}, in {verdict.LEAST_PROCESSES} fresh processes")
    done = context.store.finals(context.row.id)
    for process in range(verdict.LEAST_PROCESSES):
        missing = [key for key in entered if len(done.get(key, ())) <= process]
        if missing:
            context.measurer.fresh()
        for key in missing:
            context.pause_point()
            plan = Sampling(purpose=Purpose.FINAL)
            result = context.measurer.sample(entered[key].program, baseline.program, plan, references)
            if isinstance(result, MeasureFailed):
                log.warning("finalist %s, process %d: %s", entered[key].config, process, result.reason)
            else:
                context.store.add_final(context.row.id, key, process, result)
    return {key: each for key, each in context.store.finals(context.row.id).items() if key in entered}


def conclude(
    context: Context,
    entered: Mapping[str, Finalist],
    measured: Mapping[str, list[Measurement]],
    references: References,
    odd: Odd | None,
    baseline: Unfused,
) -> Record:
    """Choose, check the winner's outputs once more in a fresh process, decide, and write the record."""
    standing = dict(measured)
    checks: tuple[str, ...] = ()
    while (chosen := verdict.choose(standing)) is not None:
        found = check(context, entered[chosen[0]], references, odd)
        if not isinstance(found, MeasureFailed):
            checks = found
            break
        log.error("the winner %s is struck out: %s", entered[chosen[0]].config, found.reason)
        del standing[chosen[0]]
    record = _record(context, entered, standing, chosen, checks, baseline)
    hashes = context.prepared.workload.source_hashes
    context.store.save_record(record, job=context.row.id, source_hashes=hashes)
    context.events.publish(say.RecordChanged(job=context.row.id, record=record))
    return record


def check(
    context: Context, finalist: Finalist, references: References, odd: Odd | None
) -> tuple[str, ...] | MeasureFailed:
    """What was compared, a line each; a failure when anything differs."""
    context.measurer.fresh()
    worst = context.measurer.check(finalist.program, references)
    if isinstance(worst, MeasureFailed):
        return worst
    lines = [_line("the job's sizes", worst)]
    if odd is not None:
        program = context.emit(odd.analysis, finalist.config)
        if isinstance(program, Program):
            worst = context.measurer.check(program, odd.references)
            if isinstance(worst, MeasureFailed):
                return worst
            lines.append(_line(", ".join(f"{name}={value}" for name, value in odd.sizes.items()), worst))
    return tuple(lines)


def _line(sizes: str, worst: float) -> str:
    return f"seeds {', '.join(map(str, SEEDS))} at {sizes}: worst error {worst:.3g} of what is allowed"


def _record(
    context: Context,
    entered: Mapping[str, Finalist],
    standing: Mapping[str, list[Measurement]],
    chosen: tuple[str, verdict.Estimate] | None,
    checks: tuple[str, ...],
    baseline: Unfused,
) -> Record:
    workload, device = context.prepared.workload, context.device
    plain = Record(
        strategy=workload.strategy,
        workload_name=workload.name,
        workload_key=workload.key,
        sizes=workload.sizes,
        device_name=device.name,
        device_key=device.key,
        env_key=device.env_key,
        verdict=verdict.decide(chosen[1] if chosen else None, context.prepared.job.search.least_gain),
        config=None,
        program_key=None,
        time_us=None,
        baseline=baseline.name,
        baseline_us=baseline.time_us,
        baseline_program_key=baseline.program.key,
        speedup=None,
        ci95=None,
        verified=False,
        evidence=device.evidence,
        trials=len(context.store.trials(context.row.id)),
        found_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if chosen is None:
        return plain
    key, found = chosen
    finalist = entered[key]
    text = "\n".join(each.text for each in finalist.program.sources)
    return dataclasses.replace(
        plain,
        config=finalist.config,
        program_key=key,
        time_us=median(tuple(each.time_us for each in standing[key])),
        baseline_us=median(tuple(median(each.baseline_us) for each in standing[key])),
        speedup=found.speedup,
        ci95=(found.low, found.high),
        verified=True,
        checks=checks,
        source=str(context.store.save_artifact(text.encode(), ".cu")),
    )
