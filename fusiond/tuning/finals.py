"""The finals: candidates for the answer, measured afresh and side by side.

Every process of the finals is a new child. In it the best of the search, the fastest unfused ways and the answer of
today (fused and unfused: the incumbent) are all measured in pairs with one baseline, in an order that is drawn. A
process that is lost, or in which a pair is too noisy, is repeated for all; what is compared comes from the processes
that all of them share. A finalist that crashes or is wrong is struck out at once; one that is only noisy, late or lost
is struck out when the losses are mostly its own, and then counts as not judged, not as wrong. What is chosen, and
whether it may take the incumbent's place, is decided in `answers.py`.
"""

import contextlib
import dataclasses
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fusiond.model.english import counted
from fusiond.model.nouns import Config, Rejection
from fusiond.model.outcomes import MeasureFailed, Measurement, Outcome, Purpose, Record, Trial
from fusiond.model.program import Program, SizeError
from fusiond.tuning import verdict
from fusiond.tuning.bench import Bench
from fusiond.tuning.context import Context, Entrant
from fusiond.tuning.judging import referee
from fusiond.tuning.measuring import References

log = logging.getLogger(__name__)

FINALISTS = 3
MOST_LOST = 10  #: Processes lost or too noisy, by programs that are still in the finals, at which the finals give up
PATIENCE = 5
"""A finalist that lost so many processes is struck out, if they are OUTWEIGHS times those of all others still in the
finals. With fewer a good candidate would go for bad luck."""
OUTWEIGHS = 4
LAST_CHECKS = 3  #: Processes in which the winner is compared once more, where something transient ends the ones before
STRUCK_OUT = "struck_out"
TRANSIENT = frozenset({Outcome.TOO_NOISY, Outcome.WORKER_DIED, Outcome.TIMED_OUT})
"""What a machine that others use does to a program; it says nothing against one that worked before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incumbent:
    """The answer of today, as far as it can still be run: a fused program, its unfused way, or both."""

    record: Record
    fused: Entrant | None
    unfused: Entrant | None
    problem: MeasureFailed | None = None
    """Why the program that it tells people to use cannot take part; None when it does."""

    @property
    def own(self) -> Entrant | None:
        """The program that the answer tells people to use: the fused one of a winner, else the unfused way."""
        return self.fused if self.record.verdict.wins else self.unfused


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """All who take part. `baseline`, an unfused way, is what every other is paired with."""

    baseline: Entrant
    finalists: Mapping[str, Entrant]
    rivals: Mapping[str, Entrant]  #: Other unfused ways that are nearly as fast
    incumbent: Incumbent | None = None

    @property
    def candidates(self) -> dict[str, Entrant]:
        """Who may win: the finalists, and the incumbent's fused program."""
        fused = self.incumbent.fused if self.incumbent else None
        return {**self.finalists, **({fused.key: fused} if fused else {})}

    @property
    def paired(self) -> dict[str, Entrant]:
        """Who is measured in pairs with the baseline."""
        return {key: each for key, each in {**self.candidates, **self.rivals}.items() if key != self.baseline.key}

    @property
    def unfused(self) -> dict[str, Entrant]:
        return {self.baseline.key: self.baseline, **self.rivals}


def field(context: Bench, ways: Sequence[Entrant], finalists: Mapping[str, Entrant] | None = None) -> Field:
    """Who takes part: the best of the search (or those that are given), the fastest unfused ways, the incumbent."""
    rivals = {each.key: each for each in ways[1:]}
    best = dict(_finalists(context) if finalists is None else finalists)
    incumbent = _incumbent(context)
    if incumbent is not None and incumbent.unfused is not None:
        same_way = {context.work(each.program): each for each in ways}.get(context.work(incumbent.unfused.program))
        if same_way is None:
            rivals[incumbent.unfused.key] = incumbent.unfused
        else:
            incumbent = dataclasses.replace(incumbent, unfused=same_way)
    if incumbent is not None and incumbent.fused is not None:
        # A finalist that does the incumbent's work takes part once, as the incumbent: noise must not strike it out.
        incumbent_work = context.work(incumbent.fused.program)
        best = {key: each for key, each in best.items() if context.work(each.program) != incumbent_work}
    return Field(baseline=ways[0], finalists=best, rivals=rivals, incumbent=incumbent)


def _finalists(context: Context) -> dict[str, Entrant]:
    """The best of the search by program key, equal work once, best first: the very programs that were measured."""
    trials = [each for each in context.store.trials(context.row.id) if each.outcome is Outcome.MEASURED]
    found: dict[str, Entrant] = {}
    seen = set()
    for trial in sorted(trials, key=_rank):
        program = context.store.program(trial.program_key or "")
        if program is not None and context.work(program) not in seen:
            seen.add(context.work(program))
            found[program.key] = Entrant(program=program, config=trial.config)
        if len(found) == FINALISTS:
            break
    return found


def _rank(trial: Trial) -> tuple[bool, float]:
    """The fastest first; what was dropped early has too few samples to come before what was not."""
    return trial.measurement is None or trial.measurement.dropped, -(trial.ratio or 0.0)


def _incumbent(context: Bench) -> Incumbent | None:
    """The answer of today, its programs checked on this very data; None when there is none whose programs are kept."""
    wrong = context.strategy.wrong_versions
    key, cache = context.prepared.workload.key, context.search.cache
    for record in context.store.incumbents(key, context.device.key, cache):
        if record.strategy_version in wrong or record.ci95 is None:
            continue
        unfused = checked(context, record.baseline_program_key, record.baseline_config, record.baseline)
        fused = checked(context, record.program_key, record.config, "")
        own = fused if record.verdict.wins else unfused
        return Incumbent(
            record=record,
            fused=fused if isinstance(fused, Entrant) else None,
            unfused=unfused if isinstance(unfused, Entrant) else None,
            problem=own if isinstance(own, MeasureFailed) else None,
        )
    return None


def checked(context: Bench, key: str | None, config: Config | None, name: str) -> Entrant | MeasureFailed | None:
    """A stored program that is still right here; why it is not, or None where there is none."""
    if key is None:
        return None
    program = context.store.program(key)
    if program is None:
        return MeasureFailed(outcome=Outcome.REFUSED, reason="its program is not in the store any more")
    context.measurer.fresh()
    worst = context.check(program)
    if isinstance(worst, MeasureFailed):
        return worst
    # Records of earlier versions name no config of their unfused way; the trial that measured it does.
    return Entrant(program=program, config=config or context.store.config_of(key) or Config(()), name=name)


# --- measuring ------------------------------------------------------------------------------------------


def measure(context: Bench, entered: Field) -> None:
    """Measure until enough processes are shared by all, or too many were lost. All of it goes into the store; what an
    earlier session of the job measured is not measured again.

    A finalist that fails is struck out for good: it would fail its user too."""
    if _standing(context, entered):
        context.phase("final", _announced(context, entered))
    told = 0
    while (wanted := _standing(context, entered)) and _needed(context, wanted):
        process = _next_process(context)
        shared = 1 + len(verdict.shared(context.store.finals(context.row.id), wanted))
        if shared != told:
            told = shared
            context.phase("final", number=shared, of=verdict.LEAST_PROCESSES)
        failed = _process(context, process, wanted, entered)
        if failed is not None:
            _blame(context, process, *failed, entered)


def expected_secs(context: Context) -> float:
    """About how long the finals of a search take that has not begun yet: the finalists, and two unfused ways."""
    return context.measurer.expected_secs(FINALISTS + 2) * verdict.LEAST_PROCESSES


def _announced(context: Context, entered: Field) -> str:
    programs = counted(len(entered.paired), "program")
    text = f"the best of the search, the unfused ways and the answer of today: {programs}, in "
    text += f"{verdict.LEAST_PROCESSES} fresh processes"
    secs = context.measurer.expected_secs(len(entered.paired)) * verdict.LEAST_PROCESSES
    return f"{text}, about {max(1, round(secs))} s"


def _standing(context: Context, entered: Field) -> dict[str, Entrant]:
    struck = struck_out(context)
    return {key: each for key, each in entered.paired.items() if key not in struck}


def _needed(context: Context, standing: Mapping[str, Entrant]) -> bool:
    shared = verdict.shared(context.store.finals(context.row.id), standing)
    return len(shared) < verdict.LEAST_PROCESSES and _losses(context, standing).total() < MOST_LOST


def _losses(context: Context, standing: Mapping[str, Entrant]) -> Counter[str]:
    """How many processes each program that is still in the finals has lost."""
    return Counter(key for key, _, _ in context.store.lost_finals(context.row.id).values() if key in standing)


def _next_process(context: Context) -> int:
    done = {process for each in context.store.finals(context.row.id).values() for process in each}
    return 1 + max(done | set(context.store.lost_finals(context.row.id)), default=-1)


def _process(
    context: Bench, process: int, wanted: Mapping[str, Entrant], entered: Field
) -> tuple[Entrant, MeasureFailed] | None:
    """One fresh child; everything that it measured is written down together. Whoever failed in it, or None."""
    context.measurer.fresh()
    order = sorted(wanted)
    random.Random(f"{context.row.id}:{process}").shuffle(order)
    measured = {}
    for key in order:
        context.pause_point()
        result: Measurement | MeasureFailed = MeasureFailed(outcome=Outcome.TOO_NOISY, reason="")
        for _ in range(2):  # noise passes; once more in the same process costs less than all of them anew
            result = context.sample(wanted[key].program, entered.baseline.program, context.sampling(Purpose.FINAL))
            if not (isinstance(result, MeasureFailed) and result.outcome is Outcome.TOO_NOISY):
                break
        if isinstance(result, MeasureFailed):
            return wanted[key], result
        measured[key] = result
    context.store.add_finals(context.row.id, process, measured)
    return None


def _blame(context: Context, process: int, entrant: Entrant, failed: MeasureFailed, entered: Field) -> None:
    reason = f"process {process}: {failed.outcome.value}: {failed.reason}"
    if failed.outcome not in TRANSIENT:
        strike(context, entrant, failed.outcome, reason)
        return
    losses = _losses(context, _standing(context, entered))
    own, others = losses[entrant.key] + 1, losses.total() - losses[entrant.key]
    log.warning("final of %s, %s (processes lost by it: %d, by others: %d)", entrant, reason, own, others)
    with context.store.transaction():  # a job that is killed in between would go on without striking
        context.store.lose_final(context.row.id, process, entrant.key, failed.outcome, failed.reason)
        # A rival must stay: without it a candidate might win that should not. Nor may the incumbent go by being noisy.
        if entrant.key in entered.finalists and own >= max(PATIENCE, OUTWEIGHS * others):
            strike(context, entrant, failed.outcome, f"too noisy or lost in {own} processes, lastly {reason}")


def strike(context: Context, entrant: Entrant, outcome: Outcome, why: str) -> None:
    """Take a program out of the finals, for good."""
    log.error("%s is struck out of the finals: %s", entrant, why)
    context.store.add_rejections(
        context.row.id, [Rejection(rule=STRUCK_OUT, nodes=(entrant.key, outcome.value), detail=why)]
    )


def struck_out(context: Context, *, transient: bool = True) -> dict[str, str]:
    """The programs that were struck out, and why. `transient`: also those that nothing is known against."""
    found = [each for each in context.store.rejections(context.row.id) if each.rule == STRUCK_OUT]
    return {each.nodes[0]: each.detail for each in found if transient or each.nodes[-1] not in TRANSIENT}


def lost(context: Context) -> str:
    """How many processes of the finals were lost or too noisy, and by what; empty when none was."""
    found = context.store.lost_finals(context.row.id)
    if not found:
        return ""
    reasons = Counter(f"{outcome.value}: {reason}" for _, outcome, reason in found.values())
    (most, _), *_ = reasons.most_common(1)
    return f"{counted(len(found), 'process', 'processes')} of the finals were too noisy or lost (such as {most})"


# --- the last check -------------------------------------------------------------------------------------


def check(context: Bench, entrant: Entrant) -> tuple[str, ...] | MeasureFailed:
    """What was compared of the winner, a line each; a failure when anything differs. Noise is tried again."""
    for _ in range(LAST_CHECKS):
        found = context.looked_after(_check(context, entrant))
        if not (isinstance(found, MeasureFailed) and found.outcome in TRANSIENT):
            break
        log.warning("the last check of %s: %s: %s", entrant, found.outcome.value, found.reason)
    return found


def _check(context: Bench, entrant: Entrant) -> tuple[str, ...] | MeasureFailed:
    context.measurer.fresh()
    worst = context.measurer.check(entrant.program, context.references)
    if isinstance(worst, MeasureFailed):
        return worst
    lines = [_line("the job's sizes", worst, context.references)]
    for look, wanted in (
        (_at_odd_sizes, context.odd is not None),
        (_inspected, context.analysis.scrutiny is not None),
        (_sanitized, context.search.sanitize),
    ):
        found = look(context, entrant.program) if wanted else ()
        if isinstance(found, MeasureFailed):
            return found
        lines += found
    return tuple(lines)


Lines: TypeAlias = "tuple[str, ...] | MeasureFailed"


def _at_odd_sizes(context: Bench, program: Program) -> Lines:
    sizes, right = ", ".join(f"{name}={value}" for name, value in context.odd_sizes.items()), context.right_at_odd
    if isinstance(context.odd, MeasureFailed):
        return (f"not compared at {sizes}: the unfused program does not work there ({context.odd.reason})",)
    assert right is not None
    try:
        worst = context.measurer.check(context.at_odd_sizes(program), right)
    except SizeError as problem:
        return (f"not compared at {sizes}: {problem}",)
    return worst if isinstance(worst, MeasureFailed) else (_line(sizes, worst, right),)


def _inspected(context: Bench, program: Program) -> Lines:
    """What was looked at, on the processor, of a program that nobody vouches for; a failure where it is wrong."""
    context.phase("inspect", "the winner: reads beyond buffers, races, launches of its own")
    given, reference = (context.measurer.bundle(each) for each in (program, context.reference))
    if isinstance(given, MeasureFailed):
        return given
    places = [referee.InspectedPlace.of(program, given, context.references)]
    if context.right_at_odd is not None:
        with contextlib.suppress(SizeError):
            moved = context.at_odd_sizes(program)
            folder = context.measurer.bundle(moved)
            if isinstance(folder, Path):
                places.append(referee.InspectedPlace.of(moved, folder, context.right_at_odd))
    accused = referee.Accused(
        places=tuple(places), reference=None if isinstance(reference, MeasureFailed) else reference
    )
    problem, hints = referee.inspect(accused)
    if problem:
        return MeasureFailed(outcome=Outcome.WRONG_RESULT, reason=problem)
    return ("reads beyond buffers, races, launches of its own: none found", *hints)


def _sanitized(context: Bench, program: Program) -> Lines:
    """One line on what the device's own checker said; a failure when it found something."""
    context.phase("sanitize", "the winner, under the device's own checker")
    context.measurer.fresh()
    folder = context.measurer.bundle(program)
    if isinstance(folder, MeasureFailed):
        return folder
    try:
        found = context.provider.sanitize(folder, context.device.name)
    except LookupError as reason:
        return (f"not looked at by the device's own checker: {reason}",)
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        return MeasureFailed(outcome=Outcome.CRASHED, reason=f"the device's own checker: {found[0]}{more}")
    return ("the device's own checker finds nothing",)


def _line(sizes: str, worst: float, references: References) -> str:
    seeds = ", ".join(str(seed) for seed, _ in references.of)
    return f"seeds {seeds} at {sizes}: worst error {worst:.3g} of what is allowed"
