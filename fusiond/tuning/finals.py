"""The final check: the best three of the search, measured afresh; and the answer that comes of it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fusiond import events as say
from fusiond import verdict
from fusiond.devices.timing import Sampling
from fusiond.measuring import SEEDS, References
from fusiond.model import (
    Config,
    MeasureFailed,
    Measurement,
    Outcome,
    Purpose,
    Record,
    Rejection,
    Trial,
    Verdict,
    frozen,
    median,
)
from fusiond.program import Program
from fusiond.tuning import health
from fusiond.tuning.context import Context, Odd, Unfused

log = logging.getLogger(__name__)

FINALISTS = 3
EXTRA_PROCESSES = 3
"""Beyond those that are needed, for what was too noisy or lost its process."""
STRUCK_OUT = "struck_out"


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
    context: Context,
    entered: Mapping[str, Finalist],
    references: References,
    baseline: Unfused,
    contenders: Sequence[Unfused] = (),
) -> None:
    """Each finalist, and each other unfused way that is nearly as fast, in several fresh child processes, in pairs
    with the baseline. A process is one observation; all of them go into the store.

    A program that fails in one of them is struck out, for good: it would fail its user too. One that was too noisy, or
    lost its process, gets another. What an earlier session of the job measured is not measured again.
    """
    programs = {each.program.key: each.program for each in contenders}
    programs.update({key: each.program for key, each in entered.items()})
    if entered:
        context.phase("final", f"the best {len(entered)}, in {verdict.LEAST_PROCESSES} fresh processes")
    for process in range(verdict.LEAST_PROCESSES + EXTRA_PROCESSES):
        done, struck = context.store.finals(context.row.id), _struck(context)
        missing = [
            key
            for key in programs
            if key not in struck
            and process not in done.get(key, {})
            and len(done.get(key, {})) < verdict.LEAST_PROCESSES
        ]
        if missing and entered:
            context.measurer.fresh()
            for key in missing:
                _measure_one(context, key, programs[key], process, references, baseline)


def _measure_one(
    context: Context, key: str, program: Program, process: int, references: References, baseline: Unfused
) -> None:
    context.pause_point()
    plan = Sampling(purpose=Purpose.FINAL)
    result = context.measurer.sample(program, baseline.program, plan, references)
    health.after(context, result, references)
    if isinstance(result, Measurement):
        context.store.add_final(context.row.id, key, process, result)
    elif result.outcome not in (Outcome.TOO_NOISY, Outcome.WORKER_DIED):
        _strike(context, key, f"process {process}: {result.outcome.value}: {result.reason}")
    else:
        log.warning("final of %s, process %d: %s", key, process, result.reason)


def _strike(context: Context, key: str, why: str) -> None:
    log.error("%s is struck out of the finals: %s", key, why)
    context.store.add_rejections(context.row.id, [Rejection(rule=STRUCK_OUT, nodes=(key,), detail=why)])


def _struck(context: Context) -> set[str]:
    """The programs that were struck out, in this session of the job or an earlier one."""
    return {each.nodes[0] for each in context.store.rejections(context.row.id) if each.rule == STRUCK_OUT}


def conclude(
    context: Context,
    entered: Mapping[str, Finalist],
    references: References,
    odd: Odd | None,
    baseline: Unfused,
    contenders: Sequence[Unfused] = (),
) -> Record | None:
    """Choose, check the winner's outputs once more in a fresh process, and decide. None when nothing was measured."""
    measured = context.store.finals(context.row.id)
    logs = {
        key: {process: verdict.process_ratio(each) for process, each in processes.items()}
        for key, processes in measured.items()
    }
    rivals = {each.program.key: each for each in contenders}
    best, against_best = verdict.contested(
        {key: each for key, each in logs.items() if key in entered},
        {key: each for key, each in logs.items() if key in rivals},
    )
    least_gain = context.prepared.job.search.least_gain
    while True:
        struck = _struck(context)
        standing = {key: list(each.values()) for key, each in against_best.items() if key not in struck}
        chosen = verdict.conclude(standing, least_gain)
        if chosen is None:
            return None
        checks = check(context, entered[chosen.key], references, odd)
        health.after(context, checks, references)
        if not isinstance(checks, MeasureFailed) and context.prepared.job.search.sanitize:
            sanitized = _sanitized(context, entered[chosen.key])
            checks = sanitized if isinstance(sanitized, MeasureFailed) else (*checks, sanitized)
        if not isinstance(checks, MeasureFailed):
            break
        _strike(context, chosen.key, f"the last check: {checks.outcome.value}: {checks.reason}")
    if best is not None:
        times = [each.time_us for each in measured[best].values()]
        baseline = dataclasses.replace(rivals[best], time_us=median(tuple(times)))
    else:
        times = [median(each.baseline_us) for each in measured[chosen.key].values()]
        baseline = dataclasses.replace(baseline, time_us=median(tuple(times)))
    finalist = entered[chosen.key]
    text = "\n".join(each.text for each in finalist.program.sources)
    return dataclasses.replace(
        _record(context, chosen.verdict, baseline),
        config=finalist.config,
        program_key=chosen.key,
        time_us=median(tuple(each.time_us for each in measured[chosen.key].values())),
        speedup=chosen.estimate.speedup,
        ci95=(chosen.estimate.low, chosen.estimate.high),
        verified=True,
        checks=checks,
        source=str(context.store.save_artifact(text.encode(), ".cu")),
    )


def nothing_fused(context: Context, baseline: Unfused) -> Record:
    """The answer when no candidate came through: `keep` where every one of them was refused before it was built
    (there is nothing to fuse), else `undecided` (there is no evidence)."""
    trials = context.store.trials(context.row.id)
    impossible = all(each.outcome is Outcome.REFUSED for each in trials)
    return _record(context, Verdict.KEEP if impossible else Verdict.UNDECIDED, baseline)


def publish(context: Context, record: Record) -> None:
    """Write the answer down, and say so."""
    hashes = context.prepared.workload.source_hashes
    figures = context.strategy.figures(context.analysis, record, context.known)
    record = dataclasses.replace(record, figures=frozen(figures))
    context.store.save_record(record, job=context.row.id, source_hashes=hashes)
    context.events.publish(say.RecordChanged(job=context.row.id, record=record))


def check(
    context: Context, finalist: Finalist, references: References, odd: Odd | None
) -> tuple[str, ...] | MeasureFailed:
    """What was compared, a line each; a failure when anything differs."""
    context.measurer.fresh()
    worst = context.measurer.check(finalist.program, references)
    if isinstance(worst, MeasureFailed):
        return worst
    lines = [_line("the job's sizes", worst)]
    if odd is not None and isinstance(odd.references, MeasureFailed):
        lines.append(
            f"not compared at {_sizes(odd)}: the unfused program does not work there ({odd.references.reason})"
        )
    elif odd is not None and isinstance(odd.references, References):
        program = context.emit(odd.analysis, finalist.config)
        if isinstance(program, Program):
            worst = context.measurer.check(program, odd.references)
            if isinstance(worst, MeasureFailed):
                return worst
            lines.append(_line(_sizes(odd), worst))
    return tuple(lines)


def _sanitized(context: Context, finalist: Finalist) -> str | MeasureFailed:
    """One line on what the device's own checker said; a failure when it found something."""
    context.phase("sanitize", "the winner, under the device's own checker")
    context.measurer.fresh()
    folder = context.measurer.bundle(finalist.program)
    if isinstance(folder, MeasureFailed):
        return folder
    try:
        found = context.provider.sanitize(folder, context.device.name)
    except LookupError as reason:
        return f"not looked at by the device's own checker: {reason}"
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        return MeasureFailed(outcome=Outcome.CRASHED, reason=f"the device's own checker: {found[0]}{more}")
    return "the device's own checker finds nothing"


def _sizes(odd: Odd) -> str:
    return ", ".join(f"{name}={value}" for name, value in odd.sizes.items())


def _line(sizes: str, worst: float) -> str:
    return f"seeds {', '.join(map(str, SEEDS))} at {sizes}: worst error {worst:.3g} of what is allowed"


def _record(context: Context, decision: Verdict, baseline: Unfused) -> Record:
    """A record without a winner."""
    workload, device = context.prepared.workload, context.device
    return Record(
        strategy=workload.strategy,
        workload_name=workload.name,
        workload_key=workload.key,
        sizes=workload.sizes,
        device_name=device.name,
        device_key=device.key,
        env_key=device.env_key,
        verdict=decision,
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
