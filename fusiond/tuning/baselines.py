"""The unfused ways, each tuned with its own knobs: a fused candidate must beat the fastest of them, not the first."""

import dataclasses
import functools
import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from fusiond.build.cache import default_folder, of_folder
from fusiond.model import events as say
from fusiond.model.errors import FusiondError
from fusiond.model.keys import text_key
from fusiond.model.nouns import Config
from fusiond.model.outcomes import MeasureFailed, Measurement, Outcome, Purpose, Trial
from fusiond.model.program import Fill, Program, Role
from fusiond.strategy import Baseline
from fusiond.tuning.bench import Bench
from fusiond.tuning.context import Context, UnfusedBaseline, outcome_of

CONTENDERS = 1
"""Unfused ways beside the fastest that are measured again in the finals: the pick among noisy medians may be wrong."""


def fastest_unfused(context: Bench) -> list[UnfusedBaseline]:
    """Measure every baseline of the strategy; the fastest, and the next best as contenders. What an earlier session
    measured is taken from the store.

    FusiondError when not even the unfused program as given can be measured."""
    best: dict[str, UnfusedBaseline] = {}
    given: UnfusedBaseline | None = None
    for baseline in context.strategy.baselines(context.analysis):
        context.phase("baseline", f"{baseline.name}: {baseline.detail}")
        plain = next(baseline.space.points())
        starts = [plain]
        if baseline.like in best and best[baseline.like].config != plain:
            starts.append(best[baseline.like].config)
        found = [_point(context, baseline, start, given, incumbent=None) for start in starts]
        standing = [each for each in found if each is not None]
        if not standing:
            if given is None:
                raise FusiondError(f"the unfused program could not be measured{_why_not(context, baseline)}")
            continue
        given = given or standing[0]
        fastest = max(standing, key=lambda each: each.ratio)
        if baseline.like is None:
            fastest = _one_pass(context, baseline, fastest, given)
        best[baseline.name] = fastest
    return ranked(best.values(), context.work)[: 1 + CONTENDERS]


def ranked(found: Iterable[UnfusedBaseline], work: Callable[[Program], str]) -> list[UnfusedBaseline]:
    """Fastest first, equal work once (under the name of the first way that came to it)."""
    distinct: dict[str, UnfusedBaseline] = {}
    for each in sorted(found, key=lambda each: -each.ratio):
        distinct.setdefault(work(each.program), each)
    return list(distinct.values())


def _one_pass(context: Bench, baseline: Baseline, best: UnfusedBaseline, given: UnfusedBaseline) -> UnfusedBaseline:
    """Each value of each knob, the others at their best so far; once the search is to end, only what was measured."""
    for parameter in baseline.space.parameters:
        every = [Config.of({**best.config, parameter.name: value}) for value in parameter.values]
        configs = [each for each in every if each != best.config and not baseline.space.problems(each)]
        if context.finish():
            configs = [each for each in configs if _known(context, baseline, each) is not None]
        for config in configs:  # emitted and built on the cores while the ones before are measured
            context.measurer.ahead(functools.partial(_make, context, baseline, config))
        for config in configs:
            context.pause_point()
            if context.finish() and _known(context, baseline, config) is None:
                continue
            found = _point(context, baseline, config, given, incumbent=best.ratio)
            if found is not None and found.ratio > best.ratio:
                best = found
    return best


def _make(context: Context, baseline: Baseline, config: Config) -> None:
    context.measurer.bundle_now(context.unfused(baseline, config))


def _point(
    context: Bench, baseline: Baseline, config: Config, given: UnfusedBaseline | None, *, incumbent: float | None
) -> UnfusedBaseline | None:
    """One config of one baseline, in pairs with the unfused program as given; None when it does not work there."""
    program = context.unfused(baseline, config)
    trial = _known(context, baseline, config)
    if trial is None:
        role = f"baseline:{baseline.name}"
        trials = context.store.trials(context.row.id, role)
        against = None if given is None else given.program
        result: float | Measurement | MeasureFailed = context.check(program)
        if not isinstance(result, MeasureFailed):
            result = context.sample(program, against, context.sampling(Purpose.BASELINE, incumbent))
        elif result.outcome is Outcome.WRONG_RESULT:  # no fusion is involved: it is not tunable as its file claims
            result = dataclasses.replace(result, outcome=Outcome.WRONG_UNFUSED)
        fields: dict[str, Any] = {"outcome": Outcome.MEASURED, **outcome_of(result)}
        trial = Trial(
            sequence=len(trials),
            config=config,
            role=role,
            origin="tuned" if trials else "given",
            program_key=program.key,
            **fields,
        )
        context.save_trial(trial, program, against)
        if trial.time_us is not None:
            name = f"{baseline.name} {config}".strip()
            context.events.publish(say.BaselineMeasured(job=context.row.id, name=name, time_us=trial.time_us))
    if trial.outcome is not Outcome.MEASURED or trial.time_us is None:
        return None
    ratio = 1.0 if trial.ratio is None else trial.ratio
    return UnfusedBaseline(name=baseline.name, program=program, config=config, time_us=trial.time_us, ratio=ratio)


def _why_not(context: Context, baseline: Baseline) -> str:
    failed = [each for each in context.store.trials(context.row.id, f"baseline:{baseline.name}") if each.reason]
    return f": {failed[-1].outcome.value}: {failed[-1].reason}" if failed else ""


def _known(context: Context, baseline: Baseline, config: Config) -> Trial | None:
    """What this job has measured of one config of one baseline, in this session or an earlier one."""
    trials = context.store.trials(context.row.id, f"baseline:{baseline.name}")
    found = next((each for each in trials if each.config == config), None)
    if found is not None:
        return found
    # Another way may be the same program on this device (a graph is streams on the processor).
    return context.store.trial_of_work(context.row.id, context.work(context.unfused(baseline, config)))


MOST_BETWEEN_BYTES = 64 << 20
"""Each bundle of a part has a copy of its inputs; a part of a larger whole is measured with data of its own."""


def between(context: Context) -> Mapping[str, Fill]:
    """What the unfused program computes between its kernels, by buffer; nothing where it is much, or does not run."""
    reference = context.reference
    scratch = [each for each in reference.buffers if each.role is Role.SCRATCH]
    if not scratch or sum(each.size_bytes for each in scratch) > MOST_BETWEEN_BYTES:
        return {}
    shown = (dataclasses.replace(each, role=Role.OUTPUT) if each in scratch else each for each in reference.buffers)
    found = context.measurer.references(dataclasses.replace(reference, buffers=tuple(shown)), "between")
    if isinstance(found, MeasureFailed):
        return {}
    fills = {}
    with np.load(found.of[0][1]) as arrays:
        for each in scratch:
            text = io.BytesIO()
            np.save(text, arrays[each.name].reshape(-1))
            digest = text_key(text.getvalue())
            path = of_folder(default_folder()).put(digest, ".npy", text.getvalue())
            fills[each.name] = Fill(kind="file", file=str(path), digest=digest)
    return fills
