"""Knowledge before a search: where it begins, and what it need not measure.

Trials of the same workload on other devices, and of the same at other sizes, are donors of the study: each is a trend
of its model, whose weight is what this job's own times make of it. Where there are few, so are trials of workloads that
are nearly the same: those of the strategy whose configs are points of this space, parts of a pipeline among them.

Bounds that were counted for a GPU are used on a GPU of that kind. A bound and a time never meet in one model. Bounds
give an order: the best of them are seeds, and the sampler's start-up is drawn by their rank. And they rule out: what
cannot be as fast as what was measured already is `pruned`, but for one in ten, which is measured all the same. One time
below its bound shows that the bounds are wrong, and ends that.
"""

import contextlib
import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fusiond.devices.counting.model import GPUS, Gpu
from fusiond.model.nouns import COUNTED, Config, Rejection
from fusiond.model.outcomes import Outcome, Record, Trial
from fusiond.store.trials import CountedTrial, KindredTrial
from fusiond.strategy.space import Space
from fusiond.tuning.context import Context
from fusiond.tuning.counts import like
from fusiond.tuning.search.donors import Donor

SEEDS = 3  #: Configs of the lowest bounds that are tried first, the winner by bounds among them
MOST_DONATED, MOST_DONORS = 4000, 6
"""Trials that are looked at, the last ones; and devices or sizes of which they are used."""
LEAST_NEAR, MOST_NEAR = 10, 2
"""Configs that a workload must have in common with this one to be near, and how many near ones are used."""
FACTS: Mapping[str, Callable[[Sequence[Mapping[str, Any]]], float]] = {
    "registers": lambda rows: max(each["registers"] for each in rows),
    "occupancy": lambda rows: min(each["occupancy"] for each in rows),
    "spills": lambda rows: math.log1p(sum(each["spill_bytes"] for each in rows)),
    "instructions": lambda rows: math.log1p(sum(each["ptx_instructions"] for each in rows)),
}
"""Of a program's launches (`fusiond.devices.counting.run.CountRow`). TypeError where one is unknown."""
_FAILED = frozenset(
    {
        Outcome.REFUSED,
        Outcome.BUILD_FAILED,
        Outcome.LAUNCH_REFUSED,
        Outcome.WRONG_RESULT,
        Outcome.CRASHED,
        Outcome.TIMED_OUT,
    }
)
"""What says that a config fails elsewhere, too."""
MEASURED_ANYWAY = 10  #: One in so many of those that a bound rules out is measured
BROKEN = "bound_broken"  #: The rule of a rejection that says which bound a measured time is below
FIGURES = ("bounds", "pruned", "bounds_broken")
"""What a record's figures have of this: of how many configs bounds were known, how many candidates were left out for
them, and 1 where a time was below its bound."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The bounds that are of use to one job. Empty where there are none, and on a device that does not measure."""

    gpu: Gpu | None = None
    """That they were counted for: the device's own where it is in the table, else one of its architecture."""
    ranked: tuple[CountedTrial, ...] = ()  #: Lowest bound first; each config once
    bounds_us: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Program key -> what no run of it on this device can be shorter than; empty where the GPU is another board."""

    donors: tuple[Donor, ...] = ()  #: Of the study: config and the logarithm of its speed, None where it failed
    columns: tuple[Donor, ...] = ()  #: Of the study: config and a fact of it, one column for each of FACTS that differs

    @property
    def trends(self) -> tuple[Donor, ...]:
        """What the study may learn from: the donors, and the bounds as one more. A bound is not a time, and is told to
        nobody as one: it is a column that may explain the times, with a weight that is fitted and may be 0."""
        bounds = tuple((each.config, -math.log(each.bound_us)) for each in self.ranked if each.bound_us > 0)
        return (*self.donors, bounds) if bounds else self.donors

    @property
    def configs(self) -> tuple[Config, ...]:
        return tuple(each.config for each in self.ranked)


def prior(context: Context, space: Space) -> Prior:
    """What was known before this job began: one that is interrupted goes on with that. `space`: the job's own."""
    found = _counted(context)
    return dataclasses.replace(found, donors=_donors(context, space), columns=_columns(context, found))


def _donors(context: Context, space: Space) -> tuple[Donor, ...]:
    """A donor for each device (of the same evidence) and size; those with most trials. Where these are few, workloads
    with most configs in common."""
    workload, job = context.prepared.workload, context.row.id
    own = _by_workload(context, context.store.kindred_trials(workload.family_key, before=job, most=MOST_DONATED))
    if len(own) >= MOST_NEAR:
        return own[:MOST_DONORS]
    others = context.store.near_trials(workload.strategy, workload.family_key, before=job, most=MOST_DONATED)
    near: list[Donor] = []
    for donor in _by_workload(context, others):
        common = tuple((config, value) for config, value in donor if not space.problems(config))
        if sum(value is not None for _, value in common) >= LEAST_NEAR:
            near.append(common)
    return (*own, *sorted(near, key=len, reverse=True)[:MOST_NEAR])


def _by_workload(context: Context, trials: Iterable[KindredTrial]) -> tuple[Donor, ...]:
    """A donor for each device and workload of which something was measured, that with most trials first."""
    found: dict[tuple[str, str], dict[Config, float | None]] = {}
    for each in trials:
        if each.evidence != context.device.evidence:
            continue
        donor = found.setdefault((each.device_key, each.workload_key), {})
        if each.outcome is Outcome.MEASURED and each.time_us:
            donor[each.config] = -math.log(each.time_us)
        elif each.outcome in _FAILED:
            donor.setdefault(each.config, None)
    largest = sorted(found.values(), key=len, reverse=True)
    return tuple(tuple(each.items()) for each in largest if any(value is not None for value in each.values()))


def _columns(context: Context, kept: Prior) -> tuple[Donor, ...]:
    """What is known of the programs whose bounds were counted. A fact that is the same for all explains nothing."""
    if kept.gpu is None:
        return ()
    profiles = context.store.profiles({each.program_key for each in kept.ranked}, kept.gpu.name, COUNTED)
    found: list[Donor] = []
    for fact in FACTS.values():
        column: list[tuple[Config, float]] = []
        for each in kept.ranked:
            rows = profiles.get(each.program_key)
            with contextlib.suppress(KeyError, TypeError):  # an older profile, or one of a launch that was not counted
                if rows:
                    column.append((each.config, fact(rows)))
        if len({value for _, value in column}) > 1:
            found.append(column)
    return tuple(found)


def _counted(context: Context) -> Prior:
    if context.device.evidence == COUNTED:
        return Prior()
    found: dict[str, list[CountedTrial]] = {}
    for each in context.store.counted_trials(context.prepared.workload.key, before=context.row.id):
        gpu = like(each.model, each.arch)
        if gpu is not None and each.arch == context.device.arch:
            found.setdefault(gpu.name, []).append(each)
    own = like(context.device.model, context.device.arch)
    name = own.name if own is not None and own.name in found else next(iter(sorted(found)), None)
    if name is None:
        return Prior()
    gpu = GPUS[name]
    ranked = sorted(found[name], key=lambda each: each.bound_us)
    once = {each.config: each for each in reversed(ranked)}
    bounds: dict[str, float] = {}
    slack = slack_us(gpu, cold=context.search.cache == "cold")
    for each in ranked:
        if each.model == f"{context.device.model} ({COUNTED})":
            bounds.setdefault(each.program_key, each.bound_us - slack)
    return Prior(
        gpu=gpu,
        ranked=tuple(sorted(once.values(), key=lambda each: each.bound_us)),
        bounds_us={key: bound for key, bound in bounds.items() if bound > 0},
    )


def slack_us(gpu: Gpu, *, cold: bool) -> float:
    """By how much a measured time may be below a bound that is right. The bound begins with an empty L2 and writes back
    all that was written; a measured run leaves up to a whole L2 unwritten, and finds as much where it begins warm."""
    return (1 if cold else 2) * gpu.l2_bytes / (gpu.dram_gbs * 1e3)


def seeds(context: Context, kept: Prior) -> list[tuple[str, Config]]:
    """What won by bounds on GPUs of this device's architecture, then the configs of the lowest bounds. Of those with
    equal bounds, between which counting sees no difference, the first."""
    if context.device.evidence == COUNTED:
        return []
    archs = {f"counted:{each.name}": each.arch for each in GPUS.values()}
    found = [
        (each.device_name, each.config)
        for each in context.store.counted(context.prepared.workload.key)
        if each.config is not None and archs.get(each.device_name) == context.device.arch
    ]
    if kept.gpu is None:
        return found
    winners = {config for _, config in found}
    seen = {each.bound_us for each in kept.ranked if each.config in winners}
    lowest: dict[float, Config] = {}
    for each in kept.ranked:
        if each.bound_us not in seen:
            lowest.setdefault(each.bound_us, each.config)
    more = list(lowest.values())[: max(0, SEEDS - len(found))]
    return found + [(f"counted:{kept.gpu.name}:{len(found) + k}", config) for k, config in enumerate(more, 1)]


class Pruning:
    """Which candidates of one job are not measured. Built from its trials, so that an interrupted job goes on."""

    def __init__(self, context: Context, kept: Prior, unfused_us: float, trials: Iterable[Trial]) -> None:
        self._kept, self._seed, self._fastest_us = kept, context.search.seed, unfused_us
        self._broken = False
        self.pruned = 0  #: How many were left out so far
        for each in trials:
            self.learn(each)

    def why(self, config: Config, program_key: str) -> str:
        """Why a candidate need not be measured, in one line; empty where it is to be measured."""
        bound = self._kept.bounds_us.get(program_key, 0.0)
        if self._broken or bound <= self._fastest_us or self._anyway(config):
            return ""
        assert self._kept.gpu is not None
        return (
            f"it takes at least {bound:.4g} us, as counted for {self._kept.gpu.name}, and the fastest so far "
            f"{self._fastest_us:.4g} us"
        )

    def learn(self, trial: Trial) -> Rejection | None:
        """Take note of a trial; a rejection that says so for the first one whose time is below its bound."""
        self.pruned += trial.outcome is Outcome.PRUNED
        if trial.outcome is not Outcome.MEASURED or trial.time_us is None:
            return None
        self._fastest_us = min(self._fastest_us, trial.time_us)
        bound = self._kept.bounds_us.get(trial.program_key or "", 0.0)
        if trial.time_us >= bound or self._broken or self._kept.gpu is None:
            return None
        self._broken = True
        detail = (
            f"trial {trial.sequence} takes {trial.time_us:.4g} us, and was to take at least {bound:.4g} us as counted "
            f"for {self._kept.gpu.name}: the bound is wrong"
        )
        return Rejection(rule=BROKEN, nodes=(str(trial.program_key),), detail=detail)

    def _anyway(self, config: Config) -> bool:
        """Chosen by the job's seed and the config alone: the same ones after an interruption."""
        digest = hashlib.blake2b(f"{self._seed}:{config.key}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") % MEASURED_ANYWAY == 0


def figures(context: Context) -> dict[str, float]:
    """The FIGURES of a job that had bounds."""
    kept = _counted(context)
    if kept.gpu is None:
        return {}
    trials, rejections = context.store.trials(context.row.id), context.store.rejections(context.row.id)
    pruned = sum(each.outcome is Outcome.PRUNED for each in trials)
    return dict(zip(FIGURES, (len(kept.ranked), pruned, sum(each.rule == BROKEN for each in rejections)), strict=True))


def of(record: Record) -> Mapping[str, float]:
    """Those figures of a record: how its answer came about."""
    return {name: record.figures[name] for name in FIGURES if name in record.figures}
