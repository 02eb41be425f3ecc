"""The search: ask, build, check, sample, tell; until the budget, the space or the time is used up."""

import contextlib
import dataclasses
import functools
import logging
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from fusiond.model import events as say
from fusiond.model.english import counted
from fusiond.model.errors import Interrupted, StoreError
from fusiond.model.nouns import Config, Rejection
from fusiond.model.outcomes import Ask, MeasureFailed, Measurement, Outcome, Purpose, Trial
from fusiond.model.program import Program, SizeError
from fusiond.requests.planning import inspected, refused_seeds
from fusiond.strategy.space import Space, check_seeds
from fusiond.tuning import health, prior
from fusiond.tuning.context import Context, Odd, UnfusedBaseline, outcome_of
from fusiond.tuning.measuring import References
from fusiond.tuning.prior import Prior, Pruning
from fusiond.tuning.recording import TrialRecorder
from fusiond.tuning.search.study import Study

log = logging.getLogger(__name__)

MOST_AHEAD = 16
"""Candidates that the sampler is asked for before the first of them is measured, at most; with few cores it is fewer.
Each is chosen without knowing what becomes of those before it. A space that is searched whole has no such limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What came of an ask: its program, and the same at the odd sizes, where the workload has some."""

    ask: Ask
    program: Program | Rejection
    refusal: Rejection | None  #: What the strategy has against its program, now that it is compiled
    odd: Program | None


def search(context: Context, references: References, odd: Odd | None, baseline: UnfusedBaseline) -> str:
    """Run the study of a job to its end; every trial is in the store when it is announced. Returns why it ended before
    its budget was spent; empty when it did not. When it is told to stop, what is being measured is written down
    first."""
    return _Search(context, references, odd, baseline).run()


class _Search:
    """One job's study on its way: what was asked and measured, and what ends it."""

    def __init__(self, context: Context, references: References, odd: Odd | None, baseline: UnfusedBaseline) -> None:
        self._context, self._references, self._odd, self._baseline = context, references, odd, baseline
        self._asks: list[Ask] = []  #: Not on disk yet: they go there with the next trial, in one commit
        space = context.strategy.space(context.analysis, context.answers)
        self._kept = prior.prior(context, space)
        self._study = _study(context, self._asks, space, self._kept)
        self._ahead = _Ahead(context, self._study, odd)
        before = context.store.trials(context.row.id)
        self._pruning = Pruning(context, self._kept, baseline.time_us, before)
        ratios = [each.ratio or 0.0 for each in before]
        self._best = max(ratios, default=0.0)
        self._idle = len(ratios) - 1 - ratios.index(self._best) if self._best else 0  #: Trials in a row without a gain
        self._ended = ""

    def run(self) -> str:
        """See `search`."""
        context, study = self._context, self._study
        context.phase("search", self._begins())
        begun, busy = time.monotonic(), context.measurer.busy_secs
        with TrialRecorder(context.measurer) as recorder:
            self._measure(recorder, begun + context.search.timeout_secs)
        early = ""
        if self._ended and study.done < study.budget:
            early = f"the search ended after {study.done} of {counted(study.budget, 'trial')}, {self._ended}"
            context.phase("search", early)
        wall, busy = time.monotonic() - begun, context.measurer.busy_secs - busy
        if wall > 0:
            tried = counted(study.done, "candidate")
            context.phase("searched", f"{tried} in {wall:.1f} s; the device was busy for {busy / wall:.0%}")
        if pruned := self._pruning.pruned:
            context.phase("pruned", f"{counted(pruned, 'candidate')} not measured, for a bound that was counted")
        return early

    def _begins(self) -> str:
        kept, study = self._kept, self._study
        known = f"; bounds of {counted(len(kept.ranked), 'config')} are known" if kept.ranked else ""
        if kept.donors and not study.whole:
            known += f"; {counted(sum(map(len, kept.donors)), 'trial')} of other devices, sizes or workloads"
        return ("the whole space" if study.whole else f"{study.budget} configs") + known

    def _measure(self, recorder: TrialRecorder, deadline: float) -> None:
        """Try out what the study asks for until it has nothing more to ask, or something ends it."""
        context = self._context
        if context.finish():
            self._ended = "as asked"
        else:
            self._ahead.begin()
        while not self._ended and (candidate := self._ahead.next(recorder)) is not None:
            given = context, recorder, candidate, self._references, self._odd, self._baseline
            trial = _trial(*given, self._best or None, self._pruning)
            broken = self._pruning.learn(trial)
            self._idle = 0 if (trial.ratio or 0.0) > self._best else self._idle + 1
            self._best = max(self._best, trial.ratio or 0.0)
            work = context.work(candidate.program) if isinstance(candidate.program, Program) else None
            recorder.hand_over(work, functools.partial(self._record, candidate, trial, self._best, broken))
            try:
                context.pause_point()
            except Interrupted:
                recorder.wait()  # a trial that cannot be written down is worse than a stop
                raise
            self._ended = self._why_ended(deadline)

    def _why_ended(self, deadline: float) -> str:
        """What ends the search now; empty where it goes on."""
        asked = self._context.search
        if self._context.finish():
            return "as asked"
        if asked.patience is not None and self._best and self._idle >= asked.patience:
            return f"since {counted(self._idle, 'trial')} in a row brought no gain"
        return f"after {asked.timeout_secs:.0f} s, as the job asks" if time.monotonic() > deadline else ""

    def _record(self, candidate: Candidate, trial: Trial, best: float, broken: Rejection | None) -> None:
        """What is left to do for a candidate that was measured: write it down, say so, and ask for more."""
        context, study = self._context, self._study
        program = candidate.program if isinstance(candidate.program, Program) else None
        with context.store.transaction():
            context.store.add_asks(context.row.id, self._asks)
            context.save_trial(trial, program, self._baseline.program)
            if broken is not None:
                context.store.add_rejections(context.row.id, [broken])
        self._asks.clear()
        study.tell(candidate.ask, trial)
        context.events.publish(
            say.TrialFinished(job=context.row.id, trial=trial, done=study.done, budget=study.budget, best=best or None)
        )
        if broken is not None:
            loud = f"{broken.detail}; this job leaves nothing out for its bounds any more"
            log.error("%s: %s", context.row.id, loud)
            context.events.publish(say.PhaseStarted(job=context.row.id, phase="bounds", detail=loud))
        self._ahead.told()


def _study(context: Context, asks: list[Ask], space: Space, kept: Prior) -> Study:
    store, job = context.store, context.row.id
    own = context.strategy.seeds(context.analysis, space, context.answers)
    seeds, refused = check_seeds(space, (*own, *prior.seeds(context, kept)))
    if context.row.space_hash is None:
        store.add_rejections(job, (*context.analysis.rejections, *refused_seeds(refused)))
        store.set_space(job, space.hash)
    elif context.row.space_hash != space.hash:
        raise StoreError("the space of this job is not what it was when the job began; submit the job again")
    return Study(
        space,
        seeds,
        budget=context.search.trials,
        seed=context.search.seed,
        remember=asks.append,
        prior=kept.configs,
        donors=kept.trends,
        columns=kept.columns,
        sampler=context.search.sampler,
        asks=store.asks(job),
        trials=store.trials(job),
    )


class _Ahead:
    """What the study asks for, some steps ahead: the next ones are emitted (a strategy may compile to know registers),
    built and bundled on the cores while this one is measured.

    It asks for one more after each trial that the study was told of, however far the measurements are by then: so the
    study always chooses from what it would know if everything were done in turn."""

    def __init__(self, context: Context, study: Study, odd: Odd | None) -> None:
        self._context, self._study, self._odd = context, study, odd
        jobs = context.measurer.jobs
        self._depth = 4 * jobs + 4 if study.whole else min(2 * jobs + 2, MOST_AHEAD)
        self._waiting: deque[Future[Candidate]] = deque()
        self._under_way = 0

    def begin(self) -> None:
        """Ask for the first ones."""
        while self._under_way < self._depth and (ask := self._study.next()) is not None:
            self._waiting.append(self._context.measurer.ahead(functools.partial(_made, self._context, ask, self._odd)))
            self._under_way += 1

    def told(self) -> None:
        """The study was told of one of them: ask for another."""
        self._under_way -= 1
        self.begin()

    def next(self, recorder: TrialRecorder) -> Candidate | None:
        """The next one, once it is made; None when the study has nothing more to ask."""
        if not self._waiting:
            recorder.wait()
        return self._waiting.popleft().result() if self._waiting else None


def _made(context: Context, ask: Ask, odd: Odd | None) -> Candidate:
    """In a thread of its own, several at a time."""
    program = context.candidate(ask.config)
    other = refusal = None
    if isinstance(program, Program) and not isinstance(context.measurer.bundle_now(program), MeasureFailed):
        refusal = inspected(context.strategy, context.provider, program, context.device.arch)
        if refusal is None and odd is not None and isinstance(odd.references, References):
            with contextlib.suppress(SizeError):  # then the last check says that it was not compared there
                other = program.at(odd.sizes)
                context.measurer.bundle_now(other)
    return Candidate(ask=ask, program=program, refusal=refusal, odd=other)


def _trial(
    context: Context,
    recorder: TrialRecorder,
    candidate: Candidate,
    references: References,
    odd: Odd | None,
    baseline: UnfusedBaseline,
    incumbent: float | None,
    pruning: Pruning,
) -> Trial:
    """What becomes of one candidate."""
    ask, program = candidate.ask, candidate.program
    plain = Trial(sequence=ask.sequence, config=ask.config, origin=ask.origin, outcome=Outcome.MEASURED)
    if isinstance(program, Rejection):
        return dataclasses.replace(plain, outcome=Outcome.REFUSED, reason=f"{program.rule}: {program.detail}")
    plain = dataclasses.replace(
        plain,
        program_key=program.key,
        resolved=dict(context.strategy.resolved(context.analysis, ask.config, context.answers)),
    )
    recorder.wait_for(context.work(program))
    known = context.store.measured(
        context.work(program),
        context.work(baseline.program),
        context.device.key,
        context.device.env_key,
        cache=context.search.cache,
    )
    if known is not None:  # an equal program was measured against the same baseline, perhaps for another config
        return dataclasses.replace(
            plain,
            ratio=known.ratio,
            time_us=known.time_us,
            measurement=known.measurement,
            worst_error=known.worst_error,
        )
    if why := pruning.why(ask.config, program.key):
        return dataclasses.replace(plain, outcome=Outcome.PRUNED, reason=why)
    built = context.measurer.bundle(program)
    if isinstance(built, MeasureFailed):
        return dataclasses.replace(plain, outcome=built.outcome, reason=built.reason)
    if candidate.refusal is not None:
        reason = f"{candidate.refusal.rule}: {candidate.refusal.detail}"
        return dataclasses.replace(plain, outcome=Outcome.REFUSED, reason=reason)
    worst = _check(context, program, candidate, references, odd)
    if isinstance(worst, MeasureFailed):
        health.after(context, worst, references)
        return dataclasses.replace(plain, outcome=worst.outcome, reason=worst.reason)
    plan = context.sampling(Purpose.SEARCH, incumbent)
    result: Measurement | MeasureFailed = context.measurer.sample(program, baseline.program, plan, references)
    health.after(context, result, references)
    fields: dict[str, Any] = outcome_of(result)
    return dataclasses.replace(plain, worst_error=worst, **fields)


def _check(
    context: Context, program: Program, candidate: Candidate, references: References, odd: Odd | None
) -> float | MeasureFailed:
    """The worst error over all seeds and sizes. A wrong result is attributed to the fused or to the unfused kernels."""
    worst = context.measurer.check(program, references)
    at_odd = odd.references if odd is not None else None
    if not isinstance(worst, MeasureFailed) and isinstance(at_odd, References) and isinstance(candidate.odd, Program):
        other = context.measurer.check(candidate.odd, at_odd)
        worst = other if isinstance(other, MeasureFailed) else max(worst, other)
    if isinstance(worst, MeasureFailed) and worst.outcome is Outcome.WRONG_RESULT:
        return _attributed(context, candidate.ask.config, worst, references, odd)
    return worst


def _attributed(
    context: Context, config: Config, wrong: MeasureFailed, references: References, odd: Odd | None
) -> MeasureFailed:
    """Whether the unfused kernels are wrong at these block shapes too."""
    unfused = context.strategy.unfused(context.analysis, config)
    if unfused is None:
        return wrong
    places = [(unfused, references)]
    if odd is not None and isinstance(odd.references, References):
        with contextlib.suppress(SizeError):
            places.append((unfused.at(odd.sizes), odd.references))
    for program, truth in places:
        found = context.measurer.check(program, truth)
        if isinstance(found, MeasureFailed) and found.outcome is Outcome.WRONG_RESULT:
            return dataclasses.replace(found, outcome=Outcome.WRONG_UNFUSED)
    return wrong
