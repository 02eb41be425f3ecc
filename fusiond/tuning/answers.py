"""The result of the finals: a new answer, or the one of today stands.

An answer is replaced only by what was measured beside it and is better beyond the noise, or when it can no longer be
run and be right. What is undecided leaves a verified answer as it is, and no evidence never replaces any.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

from fusiond.model import events as say
from fusiond.model.nouns import COUNTED, frozen
from fusiond.model.outcomes import MeasureFailed, Measurement, Outcome, Record, Verdict, median
from fusiond.tuning import counts, finals, prior, verdict
from fusiond.tuning.bench import Bench
from fusiond.tuning.context import Context, Entrant
from fusiond.tuning.finals import Field, Incumbent
from fusiond.tuning.verdict import Conclusion

_OF_BOUNDS = {Verdict.FUSE: Verdict.PROMISING, Verdict.KEEP: Verdict.UNPROMISING}
"""A ratio of two lower bounds proves nothing: what the verdict on times would be is not a verdict on bounds."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What all programs of the finals share: the same processes, in the same order."""

    processes: tuple[int, ...]
    log_ratios: Mapping[str, list[float]]  #: Of each candidate over the unfused way that it must beat
    opponent: Entrant
    opponent_gain: float  #: Its speed-up over the baseline of the pairs
    measured: Mapping[str, tuple[Measurement, ...]]  #: What each of those that were paired measured there

    def time_us(self, key: str) -> float:
        """What a program took. A candidate may be the very baseline of the pairs: then what that took."""
        if key not in self.measured:
            return self._baseline_us(next(iter(self.measured)))
        return median(tuple(each.time_us for each in self.measured[key]))

    def opponent_us(self, beside: str) -> float:
        """What the unfused way takes when this candidate takes what it took: the baseline of its very pairs, by how
        much faster the unfused way was. (Its own pairs were taken at another moment, perhaps of a busier machine.)"""
        if beside not in self.measured:
            return self.time_us(self.opponent.key)
        return self._baseline_us(beside) / self.opponent_gain

    def _baseline_us(self, beside: str) -> float:
        return median(tuple(median(each.baseline_us) for each in self.measured[beside]))


def conclude(context: Bench, entered: Field, ended: str = "") -> tuple[Record | None, str]:
    """Choose, check the winner's outputs once more in a fresh process, and decide: the record to write down, or None
    when the answer of today stands, and in one line why."""
    least_gain = context.search.least_gain
    if context.device.evidence == COUNTED:
        least_gain = max(least_gain, counts.MARGIN)
    while True:
        compared = _compared(context, entered)
        if compared is None:
            why = finals.lost(context) if entered.candidates else ""
            return _without_evidence(context, entered, _joined(ended, why or _tally(context)), None)
        chosen = verdict.conclude(compared.log_ratios, least_gain)
        if chosen is None:
            return _without_evidence(context, entered, _joined(ended, _tally(context)), compared)
        chosen = _defended(chosen, compared, entered.incumbent, least_gain)
        entrant = entered.candidates[chosen.key]
        checks = finals.check(context, entrant)
        if not isinstance(checks, MeasureFailed):
            break
        finals.strike(context, entrant, checks.outcome, f"the last check: {checks.outcome.value}: {checks.reason}")
    unjudged = _unjudged(context, entered) if chosen.verdict is Verdict.KEEP else ""
    if unjudged:  # it might have been the one that is faster
        chosen = dataclasses.replace(chosen, verdict=Verdict.UNDECIDED)
        ended = _joined(ended, unjudged)
    text = "\n".join(each.text for each in entrant.program.sources)
    suffixes = {each.suffix for each in entrant.program.sources}
    record = dataclasses.replace(
        _record(context, chosen.verdict, compared.opponent, compared.opponent_us(chosen.key), ended),
        config=entrant.config,
        program_key=chosen.key,
        time_us=compared.time_us(chosen.key),
        speedup=chosen.estimate.speedup,
        ci95=(chosen.estimate.low, chosen.estimate.high),
        processes=len(compared.processes),
        verified=True,
        checks=checks,
        counted=counts.of_answer(context, compared.opponent.program, entrant.program),
        source=str(context.store.save_artifact(text.encode(), ".ptx" if suffixes == {".ptx"} else ".cu")),
    )
    return _against_incumbent(context, entered.incumbent, record)


def _compared(context: Context, entered: Field) -> Compared | None:
    """None when too few processes measured all that is still standing."""
    measured = context.store.finals(context.row.id)
    struck = finals.struck_out(context)
    standing = [key for key in entered.paired if key not in struck]
    shared = verdict.shared(measured, standing)
    if len(shared) < verdict.LEAST_PROCESSES:
        return None
    rows = {key: [verdict.process_ratio(measured[key][process]) for process in shared] for key in standing}
    rows[entered.baseline.key] = [0.0] * len(shared)
    unfused = {key: rows[key] for key in entered.unfused if key in rows}
    incumbent = entered.incumbent.unfused if entered.incumbent else None
    best = verdict.opponent(unfused, incumbent.key if incumbent else None)
    return Compared(
        processes=shared,
        log_ratios={
            key: [own - other for own, other in zip(rows[key], rows[best], strict=True)]
            for key in entered.candidates
            if key in rows
        },
        opponent=entered.unfused[best],
        opponent_gain=math.exp(math.fsum(rows[best]) / len(shared)),
        measured={key: tuple(measured[key][process] for process in shared) for key in standing},
    )


def _defended(chosen: Conclusion, compared: Compared, incumbent: Incumbent | None, least_gain: float) -> Conclusion:
    """The winner of today keeps its place, unless the other one is better beyond the noise."""
    if incumbent is None or incumbent.fused is None or not incumbent.record.verdict.wins:
        return chosen
    key, rows = incumbent.fused.key, compared.log_ratios
    if key not in rows or key == chosen.key or verdict.beats(rows[chosen.key], rows[key], len(rows)):
        return chosen
    own = verdict.judge(rows[key], len(rows), least_gain, key)
    return chosen if own.verdict is Verdict.KEEP else own


def _against_incumbent(context: Context, incumbent: Incumbent | None, record: Record) -> tuple[Record | None, str]:
    """Whether a record with evidence takes the place of the answer of today."""
    if incumbent is None:
        return record, ""
    old, why = incumbent.record, _gone(context, incumbent)
    if not why:
        if record.verdict is Verdict.UNDECIDED and old.verdict is not Verdict.UNDECIDED:
            return None, "what was measured now is too close to call"
        if lost := _lost(context, incumbent):
            return None, f"it could not be measured this time: {lost}"
    return dataclasses.replace(record, replaced=why or _beaten(old, record)), ""


def _gone(context: Context, incumbent: Incumbent) -> str:
    """Why the answer of today cannot be used any more; empty when it can."""
    own, problem = incumbent.own, incumbent.problem
    struck = finals.struck_out(context, transient=False)
    if own is not None and own.key in struck:
        return f"it failed: {struck[own.key]}"
    if problem is None or problem.outcome in finals.TRANSIENT:
        return ""
    return f"it failed: {problem.outcome.value}: {problem.reason}"


def _lost(context: Context, incumbent: Incumbent) -> str:
    """Why nothing was measured of the winner of today, which nothing is known against; empty when it was."""
    if not incumbent.record.verdict.wins:
        return ""
    if incumbent.fused is None:
        return incumbent.problem.reason if incumbent.problem is not None else ""
    return finals.struck_out(context).get(incumbent.fused.key, "")


def _unjudged(context: Context, entered: Field) -> str:
    """Whether a finalist was set aside that nothing is known against; empty when none was."""
    struck, wrong = finals.struck_out(context), finals.struck_out(context, transient=False)
    set_aside = [why for key, why in struck.items() if key in entered.finalists and key not in wrong]
    return f"a candidate could not be judged: {set_aside[-1]}" if set_aside else ""


def _beaten(old: Record, record: Record) -> str:
    """Why one record goes for another, both measured side by side."""
    if record.verdict.wins and old.verdict.wins:
        if record.program_key == old.program_key:
            return "measured again"
        return "a faster one was measured beside it"
    if record.verdict.wins:
        return f"a candidate was found that is faster than {record.baseline}"
    if old.verdict.wins:
        return f"measured beside {record.baseline}, it is not faster by the least gain"
    return "measured again"


# --- without a winner -----------------------------------------------------------------------------------


def _without_evidence(
    context: Context, entered: Field, ended: str, compared: Compared | None
) -> tuple[Record | None, str]:
    """No candidate came through: why, in `ended`."""
    why = None if entered.incumbent is None else _gone(context, entered.incumbent)
    if entered.incumbent is not None and not why:
        lost = _lost(context, entered.incumbent)
        return None, f"it could not be measured this time: {lost}" if lost else ended
    way, time_us = entered.baseline, None
    if compared is not None:
        way, time_us = compared.opponent, compared.opponent_us(next(iter(compared.measured)))
    record = _record(context, Verdict.UNDECIDED, way, time_us, ended)
    return dataclasses.replace(record, replaced=why), ""


def _tally(context: Context) -> str:
    """What became of the candidates, none of which can be an answer."""
    trials = context.store.trials(context.row.id)
    if not trials:
        return "no candidate was tried"
    struck = finals.struck_out(context)
    if struck:
        return f"every candidate that was measured failed in the finals (lastly {list(struck.values())[-1]})"
    (outcome, count), *_ = Counter(each.outcome for each in trials).most_common(1)
    reason = next(each.reason for each in trials if each.outcome is outcome)
    if any(each.outcome is Outcome.MEASURED for each in trials):
        return "what could be measured is the unfused program itself"
    if len(trials) == 1:
        return f"the one candidate could not be measured: {outcome.value}: {reason}"
    return f"none of {len(trials)} candidates could be measured: {count} {outcome.value}, such as {reason}"


def _joined(*lines: str) -> str:
    return "; ".join(each for each in lines if each)


# --- records --------------------------------------------------------------------------------------------


def publish(context: Context, record: Record | None, why: str) -> None:
    """Write the answer down, and say so; or say that the one of today stands."""
    if record is None:
        finding = f"the answer of today stands: {why}"
        context.store.set_finding(context.row.id, finding)
        context.phase("answer", finding)
        return
    hashes = context.prepared.workload.source_hashes
    own = prior.figures(context) if context.row.kind == "tune" else record.figures
    figures = {**own, **context.strategy.figures(context.analysis, record, context.answers)}
    replaced = record.replaced or _passed_over(context)
    record = dataclasses.replace(record, figures=frozen(figures), replaced=replaced)
    context.store.save_record(record, job=context.row.id, source_hashes=hashes)
    context.events.publish(say.RecordChanged(job=context.row.id, record=record))


def _passed_over(context: Context) -> str | None:
    """Why the answer of before did not take part in the finals; None when there is none."""
    workload = context.prepared.workload
    for old in context.store.incumbents(workload.key, context.device.key, context.search.cache):
        if old.strategy_version in context.strategy.wrong_versions:
            return f"version {old.strategy_version} of {old.strategy} is known to be wrong"
        return "nothing was measured for it"
    return None


def _record(context: Context, decision: Verdict, way: Entrant, time_us: float | None, ended: str) -> Record:
    """A record without a winner."""
    workload, device = context.prepared.workload, context.device
    if device.evidence == COUNTED:
        decision = _OF_BOUNDS.get(decision, decision)
    elif decision is Verdict.FUSE and context.analysis.alone:
        decision = Verdict.TUNED
    if time_us is None:
        measured = context.store.trial_of_work(context.row.id, context.work(way.program))
        time_us = measured.time_us if measured is not None and measured.time_us is not None else 0.0
    return Record(
        strategy=workload.strategy,
        strategy_version=workload.strategy_version,
        workload_name=workload.name,
        workload_key=workload.key,
        content_key=workload.content_key,
        sizes=workload.sizes,
        device_name=device.name,
        device_key=device.key,
        env_key=device.env_key,
        verdict=decision,
        config=None,
        program_key=None,
        time_us=None,
        baseline=way.name,
        baseline_us=time_us,
        baseline_program_key=way.key,
        baseline_config=way.config,
        speedup=None,
        ci95=None,
        verified=False,
        evidence=device.evidence,
        cache=context.search.cache,
        trials=len(context.store.trials(context.row.id)),
        ended=ended,
        found_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
