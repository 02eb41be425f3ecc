"""The known results of a kernel's configs for one key, and the choice among them.

    the configs' own times  -->  the fastest  --compared with the first: right, and faster-->  launched

A config that is not the first one is launched once it was compared with the first, here or at the nearest sizes that
are known. What is not known is asked for: each config once, by itself, and then the fastest against the first.
"""

import functools
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fusiond import __version__
from fusiond.cuda.recording import group_job
from fusiond.model.errors import FusiondError
from fusiond.service.frameworks import region_answers
from fusiond.service.frameworks.region_answers import Asker, FusionOptions
from fusiond.store import lookup
from fusiond.store.format import exchange_file
from fusiond.triton.candidates import ConfigsQuestion, KeyedConfig

log = logging.getLogger("fusiond.triton")

Group: TypeAlias = tuple[KeyedConfig, ...]
"""One that is to be measured, or the first and one that is to be compared with it."""
MARGIN = 1.02  #: Times by themselves that are nearer to each other than that decide nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenConfig:
    """What is launched, and why."""

    candidate: KeyedConfig
    state: str  #: `tuned`; `first` (the first config is the fastest, or as fast), `nearest`, `unknown`, or `refused`
    reason: str
    speedup: float | None = None  #: Over the first config
    ci95: tuple[float, float] | None = None


class TunedKey:
    """The configs for one key. Its methods are called with nothing held; `changed` hears of another choice."""

    def __init__(
        self,
        name: str,
        candidates: Sequence[KeyedConfig],
        sizes: Mapping[str, int],
        device: str,
        options: FusionOptions,
        changed: Callable[[ChosenConfig], None],
    ) -> None:
        self.name, self._candidates, self._sizes, self._device = name, tuple(candidates), dict(sizes), device
        self._options, self._changed = options, changed
        self._imported: dict[str, list[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._asked: dict[str, ConfigsQuestion] = {}  #: By digest
        self.choice, wanted = self._chosen()
        self.lacks = bool(wanted)  #: Whether something was not known when it was first looked at

    @property
    def asker(self) -> Asker:
        return region_answers.of(self._options.db)

    def failed(self, config: Any, problem: str) -> bool:
        """A config that cannot be launched; whether there is another one."""
        for each in self._candidates:
            if each.config is config and not each.problem:
                each.problem = problem
                self._choose()
                return not self.choice.candidate.problem
        return False

    def problems(self) -> tuple[str, ...]:
        """Of configs that are not launched."""
        return tuple(f"not {each.label}: {each.problem}" for each in self._candidates if each.problem)

    def standing(self) -> str:
        """Where what is not known yet is, for people; empty where all is known."""
        if self.choice.state not in ("unknown", "nearest"):
            return ""
        last = next(reversed(self._asked.values()), None)
        return region_answers.silent() or ("not asked for yet" if last is None else self.asker.standing(last))

    # --- choosing ---

    def _choose(self) -> list[Group]:
        """Take up what is known; what is to be asked."""
        with self._lock:
            self.choice, wanted = self._chosen()
            self._changed(self.choice)
        log.info("%s: %s, %s", self.name, self.choice.candidate.label, self.choice.reason)
        return wanted

    def _chosen(self) -> tuple[ChosenConfig, list[Group]]:
        usable = [each for each in self._candidates if not each.problem]
        if not usable:
            first = self._candidates[0]
            return ChosenConfig(candidate=first, state="refused", reason=first.problem), []
        first = usable[0]
        known = {each.name: self._records(each.name) for each in usable}
        best, pair, undecided = self._best(usable, known, self._sizes)
        missing: list[Group] = [(each,) for each in usable if _at(known[each.name], self._sizes) is None]
        wanted = missing or undecided
        measured = f"{len(usable) - len(missing)} of {len(usable)} measured"
        if pair is not None:
            by = f"measured by {pair['imported']['name']}" if pair.get("imported") else measured
            gain = pair["speedup"], tuple(pair["ci95"])
            return ChosenConfig(candidate=best, state="tuned", reason=by, speedup=gain[0], ci95=gain[1]), wanted
        if not wanted:
            return ChosenConfig(candidate=first, state="first", reason=f"{measured}, none is faster"), []
        near = self._nearest(known[first.name])
        if near is not None:
            best, _, _ = self._best(usable, known, near)
            at = ", ".join(f"{name}={value}" for name, value in near.items())
            return ChosenConfig(candidate=best, state="nearest", reason=f"as at {at}; {measured}"), wanted
        return ChosenConfig(candidate=first, state="unknown", reason=f"the first config; {measured}"), wanted

    def _best(
        self, usable: Sequence[KeyedConfig], known: Mapping[str, list[dict[str, Any]]], sizes: Mapping[str, int]
    ) -> tuple[KeyedConfig, dict[str, Any] | None, list[Group]]:
        """(the fastest at some sizes that was compared with the first, or the first; the record of the comparison; the
        first and the one that is still to be compared with it)"""
        first = usable[0]
        here = ((name, _at(records, sizes)) for name, records in known.items())
        times = {name: float(each["baseline_us"]) for name, each in here if each is not None}
        undecided: list[Group] = []
        for each in sorted((each for each in usable[1:] if each.name in times), key=lambda each: times[each.name]):
            if times[each.name] * MARGIN > times.get(first.name, float("inf")):
                break
            pair = _at(self._records(f"{first.name},{each.name}"), sizes)
            if pair is not None and pair["verdict"] == "tuned" and pair["config"]["variant"] == each.name:
                return each, pair, undecided
            if pair is None and not undecided and first.name in times:
                undecided = [(first, each)]
        return first, None, undecided

    def _nearest(self, records: Sequence[dict[str, Any]]) -> Mapping[str, int] | None:
        """The nearest sizes of these."""
        others = [each for each in map(_sizes, records) if each != self._sizes and each.keys() == self._sizes.keys()]
        return min(others, key=lambda each: lookup.distance(each, self._sizes), default=None)

    def _records(self, name: str) -> list[dict[str, Any]]:
        """What is known of a workload on this device, at any sizes, the last found first."""
        baseline, compared, _ = name.partition(",")
        found: list[dict[str, Any]] = []
        try:
            if not region_answers.silent():
                found = lookup.of_name(self.asker.db, name, device=self._device, version=__version__)
        except (FusiondError, OSError) as problem:
            log.debug("%s: %s", name, problem)
        kinds = ("measured", "emulated") if self._options.always else ("measured",)
        return [
            each
            for each in (*found, *self._imported.get(name, ()))
            if each["evidence"] in kinds and each["workload"]["strategy"] == "variants"
            and (not compared or each["baseline"] == baseline)
        ]  # fmt: skip

    # --- asking ---

    def prepare(self) -> None:
        """Ask for what is not known. It compiles: in a thread of fusiond's, or where somebody asked to wait."""
        self._take_up_imported()
        while new := [each for each in self._questions() if each.digest not in self._asked]:
            self._asked |= {each.digest: each for each in new}
            for each in new:
                if not self._options.block:
                    self.asker.want(each, self.prepare, over=functools.partial(self._failure, each))
                    continue
                found = self.asker.tune(each, self._options.search)
                if found.state == "refused":
                    self._refuse(each, found.reason)
            if not self._options.block:
                break

    def _questions(self) -> list[ConfigsQuestion]:
        """What is to be asked now."""
        while True:
            wanted, found = self._choose(), []
            for group in wanted:
                files = tuple(each.file() for each in group)
                asked = ConfigsQuestion(
                    ",".join(each.name for each in group), self._device, files, self._options.search
                )
                problem = self._failure(asked)
                if problem:
                    self._refuse(asked, problem)
                found.append(asked)
            if not any(each.problem for group in wanted for each in group):
                return found  # else without what does not compile, or failed before

    def _failure(self, asked: ConfigsQuestion) -> str:
        """Why the job of a question failed; empty where it did not."""
        return lookup.failed(self.asker.db, asked.name, self._sizes, device=self._device)

    def _refuse(self, asked: ConfigsQuestion, problem: str) -> None:
        """Leave the last config of a question out."""
        name = asked.name.rpartition(",")[2]
        for each in self._candidates:
            if each.name == name:
                each.problem = f"its measurement failed: {problem.replace(f'{group_job.folder()}{os.sep}', '')}"

    def _take_up_imported(self) -> None:
        """What other boxes have signed whose keys are trusted here."""
        db = self.asker.db
        if not os.path.exists(exchange_file(os.fspath(db))):
            return
        from fusiond.requests import content_lookup  # 0.3 s, for those who have imported something
        from fusiond.requests.isolation import registry
        from fusiond.store.exchange import find

        devices = content_lookup.devices_here(db, registry.load(), self._device)
        first, *others = [each.name for each in self._candidates]
        for name in (first, *others, *(f"{first},{each}" for each in others)):
            families = find.known_name(db, name, "warm")
            found = families and find.best_of(
                db, families=families, sizes=self._sizes or None, device=self._device, devices=devices, cache="warm",
                driver=None, version=__version__,
            )  # fmt: skip
            if found and found["imported"]["trusted"]:
                self._imported[name] = [found]


def _sizes(record: Mapping[str, Any]) -> Mapping[str, int]:
    found: Mapping[str, int] = record["workload"]["sizes"]
    return found


def _at(records: Sequence[dict[str, Any]], sizes: Mapping[str, int]) -> dict[str, Any] | None:
    return next((each for each in records if _sizes(each) == sizes), None)
