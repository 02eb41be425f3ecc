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
from fusiond.model.outcomes import Ask, MeasureFailed, Outcome, Purpose, Trial
from fusiond.model.program import Program, SizeError
from fusiond.model.system import faults
from fusiond.requests.planning import inspected, refused_seeds
from fusiond.strategy.space import Space, check_seeds
from fusiond.tuning import prior
from fusiond.tuning.bench import Bench
from fusiond.tuning.context import UnfusedBaseline, outcome_of
from fusiond.tuning.measuring import References
from fusiond.tuning.prior import Prior, Pruning
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


class SearchPhase:
    """One job's study on its way: what was asked and measured, and what ends it.

    The next candidates are emitted (a strategy may compile to know registers), built and bundled on the cores while one
    is measured. One more is asked for after each trial that the study was told of, however far the measurements are by
    then: so the study always chooses from what it would know if everything were done in turn.

    Beside the measurements one thing is done at a time: a trial's commit, telling the study, asking it for more.
    Nothing counts before it is on disk. What one trial left to do is done before that of the next one begins, so
    whenever one is measured, no more than one other is not on disk yet."""

    def __init__(self, bench: Bench, baseline: UnfusedBaseline) -> None:
        self._bench, self._baseline = bench, baseline
        self._asks: list[Ask] = []  #: Not on disk yet: they go there with the next trial, in one commit
        space = bench.strategy.space(bench.analysis, bench.answers)
        self._kept = prior.prior(bench, space)
        self._study = _study(bench, self._asks, space, self._kept)
        jobs = bench.measurer.jobs
        self._depth = 4 * jobs + 4 if self._study.whole else min(2 * jobs + 2, MOST_AHEAD)
        self._waiting: deque[Future[Candidate]] = deque()
        self._under_way = 0  #: Asks of which the study was not told
        self._recorded_work: str | None = None  #: Of the trial that is written down
        before = bench.store.trials(bench.row.id)
        self._pruning = Pruning(bench, self._kept, baseline.time_us, before)
        ratios = [each.ratio or 0.0 for each in before]
        self._best = max(ratios, default=0.0)
        self._idle = len(ratios) - 1 - ratios.index(self._best) if self._best else 0  #: Trials in a row without a gain
        self._ended = ""

    def run(self) -> str:
        """Run the study to its end; every trial is in the store when it is announced. Returns why it ended before its
        budget was spent; empty when it did not. When it is told to stop, what is being measured is written down first.
        """
        bench, study = self._bench, self._study
        bench.phase("search", self._begins())
        begun, busy = time.monotonic(), bench.measurer.busy_secs
        try:
            self._measure(begun + bench.search.timeout_secs)
        except BaseException:
            try:
                self._bench.measurer.recorded()
            except Exception as lost:
                fault = faults.of(lost)
                log.error("the last trial could not be written down: %s", fault or lost, exc_info=fault is None)
            raise
        self._bench.measurer.recorded()
        early = ""
        if self._ended and study.done < study.budget:
            early = f"the search ended after {study.done} of {counted(study.budget, 'trial')}, {self._ended}"
            bench.phase("search", early)
        wall, busy = time.monotonic() - begun, bench.measurer.busy_secs - busy
        if wall > 0:
            tried = counted(study.done, "candidate")
            bench.phase("searched", f"{tried} in {wall:.1f} s; the device was busy for {busy / wall:.0%}")
        if pruned := self._pruning.pruned:
            bench.phase("pruned", f"{counted(pruned, 'candidate')} not measured, for a bound that was counted")
        return early

    def _begins(self) -> str:
        kept, study = self._kept, self._study
        known = f"; bounds of {counted(len(kept.ranked), 'config')} are known" if kept.ranked else ""
        if kept.donors and not study.whole:
            known += f"; {counted(sum(map(len, kept.donors)), 'trial')} of other devices, sizes or workloads"
        return ("the whole space" if study.whole else f"{study.budget} configs") + known

    def _measure(self, deadline: float) -> None:
        """Try out what the study asks for until it has nothing more to ask, or something ends it."""
        bench = self._bench
        if bench.finish():
            self._ended = "as asked"
        else:
            self._ask()
        while not self._ended and (candidate := self._next()) is not None:
            trial = self._trial(candidate)
            broken = self._pruning.learn(trial)
            self._idle = 0 if (trial.ratio or 0.0) > self._best else self._idle + 1
            self._best = max(self._best, trial.ratio or 0.0)
            self._bench.measurer.recorded()
            program = candidate.program if isinstance(candidate.program, Program) else None
            self._recorded_work = None if program is None else bench.work(program)
            record = functools.partial(self._record, candidate.ask, program, trial, self._best, broken)
            bench.measurer.meanwhile(record)
            try:
                bench.pause_point()
            except Interrupted:
                self._bench.measurer.recorded()  # a trial that cannot be written down is worse than a stop
                raise
            self._ended = self._why_ended(deadline)

    def _why_ended(self, deadline: float) -> str:
        """What ends the search now; empty where it goes on."""
        asked = self._bench.search
        if self._bench.finish():
            return "as asked"
        if asked.patience is not None and self._best and self._idle >= asked.patience:
            return f"since {counted(self._idle, 'trial')} in a row brought no gain"
        return f"after {asked.timeout_secs:.0f} s, as the job asks" if time.monotonic() > deadline else ""

    # --- ahead of the measurements ---

    def _ask(self) -> None:
        while self._under_way < self._depth and (ask := self._study.next()) is not None:
            self._waiting.append(self._bench.measurer.ahead(functools.partial(_made, self._bench, ask)))
            self._under_way += 1

    def _next(self) -> Candidate | None:
        """The next one, once it is made; None when the study has nothing more to ask."""
        if not self._waiting:
            self._bench.measurer.recorded()
        return self._waiting.popleft().result() if self._waiting else None

    # --- beside them ---

    def _record(self, ask: Ask, program: Program | None, trial: Trial, best: float, broken: Rejection | None) -> None:
        """What is left to do for a candidate that was measured: write it down, say so, and ask for more."""
        bench, study = self._bench, self._study
        with bench.store.transaction():
            bench.store.add_asks(bench.row.id, self._asks)
            bench.save_trial(trial, program, self._baseline.program)
            if broken is not None:
                bench.store.add_rejections(bench.row.id, [broken])
        self._asks.clear()
        study.tell(ask, trial)
        bench.events.publish(
            say.TrialFinished(job=bench.row.id, trial=trial, done=study.done, budget=study.budget, best=best or None)
        )
        if broken is not None:
            loud = f"{broken.detail}; this job leaves nothing out for its bounds any more"
            log.error("%s: %s", bench.row.id, loud)
            bench.events.publish(say.PhaseStarted(job=bench.row.id, phase="bounds", detail=loud))
        self._under_way -= 1
        self._ask()

    # --- one candidate ---

    def _trial(self, candidate: Candidate) -> Trial:
        """What becomes of one candidate."""
        bench, ask, program = self._bench, candidate.ask, candidate.program
        plain = Trial(sequence=ask.sequence, config=ask.config, origin=ask.origin, outcome=Outcome.MEASURED)
        if isinstance(program, Rejection):
            return dataclasses.replace(plain, outcome=Outcome.REFUSED, reason=f"{program.rule}: {program.detail}")
        resolved = bench.strategy.resolved(bench.analysis, ask.config, bench.answers)
        plain = dataclasses.replace(plain, program_key=program.key, resolved=dict(resolved))
        return dataclasses.replace(plain, **self._measured(program, candidate))

    def _measured(self, program: Program, candidate: Candidate) -> dict[str, Any]:
        """The fields of its trial that are measured, or why they are not."""
        bench, against, config = self._bench, self._baseline.program, candidate.ask.config
        work, device, cache = bench.work(program), bench.device, bench.search.cache
        if work == self._recorded_work:  # only then the store can be asked for it
            self._bench.measurer.recorded()
        known = bench.store.measured(work, bench.work(against), device.key, device.env_key, cache=cache)
        if known is not None:  # an equal program was measured against the same baseline, perhaps for another config
            return {name: getattr(known, name) for name in ("ratio", "time_us", "measurement", "worst_error")}
        if why := self._pruning.why(config, program.key):
            return {"outcome": Outcome.PRUNED, "reason": why}
        built = bench.measurer.bundle(program)
        if isinstance(built, MeasureFailed):
            return outcome_of(built)
        if (refusal := candidate.refusal) is not None:
            return {"outcome": Outcome.REFUSED, "reason": f"{refusal.rule}: {refusal.detail}"}
        worst = self._check(program, candidate)
        if isinstance(worst, MeasureFailed):
            return outcome_of(worst)
        plan = bench.sampling(Purpose.SEARCH, self._best or None)
        return {"worst_error": worst, **outcome_of(bench.sample(program, against, plan))}

    def _check(self, program: Program, candidate: Candidate) -> float | MeasureFailed:
        """The worst error over all seeds and sizes. A wrong result is put down to the fused or the unfused kernels."""
        bench = self._bench
        worst = bench.check(program)
        if not isinstance(worst, MeasureFailed) and candidate.odd is not None:
            assert bench.right_at_odd is not None
            other = bench.check(candidate.odd, bench.right_at_odd)
            worst = other if isinstance(other, MeasureFailed) else max(worst, other)
        if isinstance(worst, MeasureFailed) and worst.outcome is Outcome.WRONG_RESULT:
            return self._attributed(candidate.ask.config, worst)
        return worst

    def _attributed(self, config: Config, wrong: MeasureFailed) -> MeasureFailed:
        """Whether the unfused kernels are wrong at these block shapes too."""
        bench = self._bench
        unfused = bench.strategy.unfused(bench.analysis, config)
        if unfused is None:
            return wrong
        places: list[tuple[Program, References]] = [(unfused, bench.references)]
        if bench.right_at_odd is not None:
            with contextlib.suppress(SizeError):
                places.append((bench.at_odd_sizes(unfused), bench.right_at_odd))
        for program, truth in places:
            found = bench.measurer.check(program, truth)
            if isinstance(found, MeasureFailed) and found.outcome is Outcome.WRONG_RESULT:
                return dataclasses.replace(found, outcome=Outcome.WRONG_UNFUSED)
        return wrong


def _study(bench: Bench, asks: list[Ask], space: Space, kept: Prior) -> Study:
    store, job = bench.store, bench.row.id
    own = bench.strategy.seeds(bench.analysis, space, bench.answers)
    seeds, refused = check_seeds(space, (*own, *prior.seeds(bench, kept)))
    if bench.row.space_hash is None:
        store.add_rejections(job, (*bench.analysis.rejections, *refused_seeds(refused)))
        store.set_space(job, space.hash)
    elif bench.row.space_hash != space.hash:
        raise StoreError("the space of this job is not what it was when the job began; submit the job again")
    return Study(
        space,
        seeds,
        budget=bench.search.trials,
        seed=bench.search.seed,
        remember=asks.append,
        prior=kept.configs,
        donors=kept.trends,
        columns=kept.columns,
        asks=store.asks(job),
        trials=store.trials(job),
    )


def _made(bench: Bench, ask: Ask) -> Candidate:
    """In a thread of its own, several at a time."""
    program = bench.candidate(ask.config)
    other = refusal = None
    if isinstance(program, Program) and not isinstance(bench.measurer.bundle_now(program), MeasureFailed):
        refusal = inspected(bench.strategy, bench.provider, program, bench.device.arch)
        if refusal is None and bench.right_at_odd is not None:
            with contextlib.suppress(SizeError):  # then the last check says that it was not compared there
                other = bench.at_odd_sizes(program)
                bench.measurer.bundle_now(other)
    return Candidate(ask=ask, program=program, refusal=refusal, odd=other)
