"""One candidate against one reference, without a store: is it right, and how fast is it.

    references on fresh seeds -> candidate as given -> odd sizes -> by every other means -> counted, measured -> Ruling

What takes part is a workload of two implementations, the reference first, whichever strategy reads them; every program
of it is under scrutiny (`fusiond.model.nouns.Scrutiny`).
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusiond.build import nvcc
from fusiond.build.working import working_folder
from fusiond.devices.base import DeviceProvider
from fusiond.devices.counting import child_process
from fusiond.devices.counting.model import H100, gpu_of
from fusiond.devices.supervisor import Supervisor, Visiting
from fusiond.devices.timing import Sampling
from fusiond.model.errors import FusiondError, RequestError
from fusiond.model.nouns import Analysis, Config, DeviceInfo, Job, Rejection
from fusiond.model.outcomes import MeasureFailed, Outcome, Purpose
from fusiond.model.program import Program, SizeError
from fusiond.requests.launch_facts import kernel_facts
from fusiond.requests.planning import (
    Prepared,
    choose_device,
    emitted,
    first_baseline,
    prepare,
    sound,
    target_for_arch,
    target_of,
)
from fusiond.requests.registry import Registry
from fusiond.strategy import IMPLEMENTATION, NO_ANSWERS
from fusiond.tuning import verdict
from fusiond.tuning.judging import referee
from fusiond.tuning.measuring import Measurer, References

PATIENCE_SECS = 10.0  #: Beside thirty times what the reference takes: then a candidate hangs
_SEARCH = Sampling(purpose=Purpose.SEARCH)
_FINAL = dataclasses.replace(Sampling(purpose=Purpose.FINAL), pairs=60, precision=0.0025)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What is said of a candidate; `as_json` is what `fusiond judge --json` prints."""

    right: bool
    problem: str | None = None  #: What failed: which output, at which index, with both values; or where it broke
    speedup: float | None = None
    """Of the reference's time over the candidate's; by bounds where `evidence` is `counted`."""
    ci95: tuple[float, float] | None = None
    evidence: str  #: `measured` on a GPU; `counted` for speed by bounds; `emulated` where nothing says how fast it is
    registers: int | None = None
    spill_bytes: int | None = None
    occupancy: float | None = None
    counted: Mapping[str, Any] | None = None  #: Bounds of both on a GPU that is named, and what they would pay
    hints: tuple[str, ...] = ()  #: What was not looked at, and what bounds the candidate
    reference: str
    candidate: str
    config: Mapping[str, Any] = field(default_factory=dict)  #: The candidate's own, of several that were tried
    seeds: tuple[int, ...] = ()  #: By which its data were drawn
    secs: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """The two programs, and what asks for others of the candidate's."""

    prepared: Prepared
    analysis: Analysis
    reference: Program
    candidate: Program
    configs: tuple[Config, ...]  #: Of the candidate, the given one first
    names: tuple[str, str]

    def program(self, config: Config) -> Program | Rejection:
        return emitted(self.prepared.strategy, self.analysis, config, NO_ANSWERS)


def judge(
    registry: Registry, job: Job, *, trials: int = 1, without: Collection[str] = (), timeout_secs: float = 60.0,
    waiting: Callable[[str], None] = lambda who: None,
) -> Ruling:  # fmt: skip
    """Judge the last implementation that a job names by its reference. `trials`: how many of its configs are timed, on
    a GPU. `without`: defences that are left out (`fusiond.tuning.judging.referee.DEFENCES`, `odd`, `counted`).
    `waiting` is told who has the device, which is used for some seconds at a time, also while a tuner holds it.

    RequestError where the reference does not work, or the two have other arguments."""
    begun = time.monotonic()
    provider, device = choose_device(registry, job.device, where=job.device_where)
    case: _Case | str
    with contextlib.ExitStack() as held:
        supervisor = Supervisor(provider, device)
        runner = Visiting(supervisor, waiting)
        held.callback(runner.close)
        with ThreadPoolExecutor(1) as early:
            started = None if device.evidence == "measured" else early.submit(supervisor.ready)  # that takes a visit
            try:
                case = _case(registry, job, provider, device, most=trials)
            except _WrongError as problem:
                case = str(problem)
        if started is not None:
            started.result()
        if isinstance(case, str):
            reference, *_, candidate = _named(job)[1] * 2
            return Ruling(
                right=False, problem=case, evidence=device.evidence, reference=reference, candidate=candidate,
                secs=round(time.monotonic() - begun, 3),
            )  # fmt: skip
        folder = held.enter_context(working_folder("judge"))
        measurer = Measurer(provider, runner, folder / "bundles", folder / "work", least_patience_secs=PATIENCE_SECS)
        held.callback(measurer.close)
        found = _Bench(registry, case, provider, device, measurer, frozenset(without), timeout_secs).ruling(trials)
    return dataclasses.replace(found, secs=round(time.monotonic() - begun, 3))


def _case(registry: Registry, job: Job, provider: DeviceProvider, device: DeviceInfo, *, most: int) -> _Case:
    try:
        prepared = prepare(registry, job)
    except RequestError as problem:
        if _in_candidate(registry, job, problem):
            raise _WrongError(str(problem)) from None
        raise
    strategy = prepared.strategy
    analysis = strategy.analyse(prepared.workload, target_of(provider, device, registry))
    if analysis.rejections:
        refused = analysis.rejections[0]
        seeds = strategy.seeds(analysis, strategy.space(analysis, NO_ANSWERS), NO_ANSWERS)
        if refused.rule == "arguments" or not seeds:  # of the reference, or of both together
            raise RequestError(refused.detail)
        raise _WrongError(refused.detail)
    reference = first_baseline(strategy, analysis)
    space = strategy.space(analysis, NO_ANSWERS)
    name, given = strategy.seeds(analysis, space, NO_ANSWERS)[-1]
    program = emitted(strategy, analysis, given, NO_ANSWERS)
    if isinstance(program, Rejection):
        raise RequestError(program.detail)
    chooses = next((key for key, value in given.items() if value == name), "")
    own = [given]
    for config in space.points() if most > 1 else ():
        if config != given and config.get(chooses) == name:
            own.append(config)
    # Evenly over the space, whose last parameter varies fastest.
    step = max(1, (len(own) - 1) / max(1, most - 1))
    picked = [own[0], *(own[1 + int(at * step)] for at in range(min(most, len(own)) - 1))]
    return _Case(
        prepared=prepared, analysis=analysis, candidate=program, configs=tuple(picked),
        reference=sound(strategy.name, reference.emit(next(reference.space.points()))),
        names=(str(analysis.report.get("reference", reference.name)), name),
    )  # fmt: skip


def _named(job: Job) -> tuple[str, list[str]]:
    """The key under which a job lists implementations, and these."""
    return next((key, list(value)) for key, value in job.request.items() if isinstance(value, list | tuple))


def _in_candidate(registry: Registry, job: Job, problem: RequestError) -> bool:
    """Whether it is the candidate's source that cannot be read: then it is wrong, and not the request."""
    file = str(problem).partition(":")[0]
    if not file or file.endswith((".yaml", ".yml", ".py")):
        return False
    key, names = _named(job)
    if len(names) < 2:
        return True
    try:
        prepare(registry, dataclasses.replace(job, request={**job.request, key: names[:-1]}))
    except RequestError:
        return False
    return True


class _WrongError(FusiondError):
    """A candidate is wrong; the text is why."""


class _Bench:
    """One case on one device."""

    def __init__(
        self, registry: Registry, case: _Case, provider: DeviceProvider, device: DeviceInfo, measurer: Measurer,
        without: frozenset[str], timeout_secs: float,
    ) -> None:  # fmt: skip
        self._registry, self._case, self._provider, self._device = registry, case, provider, device
        self._measurer, self._without, self._timeout_secs = measurer, without, timeout_secs
        self._scrutiny = case.analysis.scrutiny
        self._hints: list[str] = []
        self._seeds: tuple[int, ...] = ()
        self._by_function = self._scrutiny is not None and self._scrutiny.function is not None
        """The reference is a function, and the program in its place is the candidate itself."""
        self._gpu = gpu_of(device.arch) if device.arch.startswith("sm_") else H100

    def ruling(self, trials: int) -> Ruling:
        reference, candidate = self._case.names
        said: dict[str, Any] = {"reference": reference, "candidate": candidate}
        with ThreadPoolExecutor(2) as pool:
            facts = pool.submit(self._facts)
            counts = pool.submit(self._counts) if "counted" not in self._without else None
            try:
                self._right(pool)
                said |= self._speed(counts, trials)
            except _WrongError as problem:
                said |= {"right": False, "problem": str(problem), "evidence": self._device.evidence}
            said = {"right": True, **facts.result(), **said}
        return Ruling(hints=tuple(dict.fromkeys(self._hints)), seeds=self._seeds, **said)

    # --- right or wrong ---

    def _right(self, pool: ThreadPoolExecutor) -> None:
        """_WrongError where it is not."""
        case = self._case
        self._measurer.build_ahead(case.reference)
        self._measurer.build_ahead(case.candidate)
        launching = "" if "launches" in self._without else referee.launches_kernels(case.candidate)
        if launching:
            raise _WrongError(launching)
        references = self._references(case.reference, "given")
        self._seeds = tuple(seed for seed, _ in references.of)
        place, wrong = self._place(case.candidate, references)
        places, smallest = [place], case.reference
        odd = None if wrong or "odd" in self._without else self._odd()
        if odd is not None:
            at, moved = odd
            place, wrong = self._place(moved.candidate, self._references(moved.reference, "odd", precision=False), at)
            places, smallest = [*places, place], moved.reference
        self._measurer.fresh()  # what follows needs no device
        reference = self._measurer.bundle(smallest)
        self._inspect(places, None if self._by_function or isinstance(reference, MeasureFailed) else reference, wrong)

    def _inspect(self, places: list[referee.InspectedPlace], reference: Path | None = None, wrong: str = "") -> None:
        """_WrongError with what is `wrong` already, and what may be the cause."""
        accused = referee.Accused(
            places=tuple(places), reference=reference, timeout_secs=self._timeout_secs, wrong=bool(wrong)
        )
        problem, hints = referee.inspect(accused, without=self._without)
        self._hints += hints
        if wrong or problem:
            raise _WrongError("; ".join(dict.fromkeys(filter(None, (wrong, problem)))))

    def _inspected(self, program: Program, references: References) -> None:
        """_WrongError where another config of the candidate is wrong by what was looked at in the given one only."""
        place, wrong = self._place(program, references)
        sizes = self._case.prepared.strategy.odd_sizes(self._case.prepared.workload) or {}
        with contextlib.suppress(SizeError):
            reference, moved = self._case.reference.at(sizes), program.at(sizes)
            if sizes and not wrong and "odd" not in self._without:
                _, wrong = self._place(moved, self._references(reference, "odd", precision=False), _at(sizes))
        if wrong:
            raise _WrongError(wrong)
        self._inspect([place])

    def _references(self, program: Program, name: str, *, precision: bool = True) -> References:
        scrutiny, own = self._scrutiny, self._by_function  # then it is the candidate itself
        if scrutiny is not None and not precision:
            scrutiny = dataclasses.replace(scrutiny, precision=False)
        found = self._measurer.references(program, name, scrutiny)
        if isinstance(found, MeasureFailed):
            if own:
                raise _WrongError(_said(found))
            raise RequestError(f"the reference does not work: {_said(found)}", where=self._case.names[0])
        if found.unproven and not self._case.prepared.job.accept_constant:
            said = f"the comparison would prove nothing: {'; '.join(found.unproven)}; give the inputs other fills"
            raise _WrongError(said) if own else RequestError(said, where=self._case.names[0])
        if found.untold:
            self._hints.append(f"precision was judged by the tolerances alone: {found.untold}")
        return found

    def _place(self, program: Program, references: References, at: str = "") -> tuple[referee.InspectedPlace, str]:
        """Where it is looked at further, and why its outputs are wrong. _WrongError where it is not run again."""
        worst = self._measurer.check(program, references)
        if isinstance(worst, MeasureFailed) and worst.outcome is not Outcome.WRONG_RESULT:
            raise _WrongError(_said(worst) + at)
        bundle = self._measurer.bundle(program)
        assert isinstance(bundle, Path)
        place = referee.InspectedPlace.of(program, bundle, references)
        return place, worst.reason + at if isinstance(worst, MeasureFailed) else ""

    def _odd(self) -> tuple[str, _Case] | None:
        """The odd sizes as a text, and the case there."""
        case = self._case
        sizes = case.prepared.strategy.odd_sizes(case.prepared.workload)
        if not sizes:
            self._hints.append("tails were not looked at: the reference gives no odd sizes (`odd: {n: 4099}`)")
            return None
        job = dataclasses.replace(case.prepared.job, sizes={**case.prepared.job.sizes, **sizes})
        return _at(sizes), _case(self._registry, job, self._provider, self._device, most=1)

    # --- how fast ---

    def _facts(self) -> dict[str, Any]:
        target = target_of(self._provider, self._device)
        if target.limits.registers_per_sm == 0:
            target = target_for_arch(self._gpu.arch)
        rows = kernel_facts(target, {"candidate": self._case.candidate})
        if not rows:
            self._hints.append(f"registers and occupancy are unknown: {nvcc.missing() or 'the compiler said nothing'}")
            return {}
        row = rows[-1].as_json()
        return {name: row[name] for name in ("registers", "spill_bytes", "occupancy")}

    def _counts(self) -> dict[str, Any] | None:
        """What both would pay on a GPU, beside each other."""
        if nvcc.find() is None:
            self._hints.append(f"nothing is counted: {nvcc.missing()}")
            return None
        programs = {"reference": self._case.reference, "candidate": self._case.candidate}
        rows = child_process.counted(programs, model=self._gpu.name, timeout_secs=self._timeout_secs)
        failed = next((row["failed"] for row in rows if row["failed"]), None)
        if failed is not None:
            self._hints.append(f"nothing is counted: {failed}")
            return None
        said: dict[str, Any] = {"gpu": self._gpu.name}
        for label in programs:
            own = [row for row in rows if row["program"] == label]
            sums = {name: _sum(row[name] for row in own) for name in ("dram_bytes", "minimal_bytes", "instructions")}
            said[label] = {"bound_us": own[0]["program_bound_us"], "binding": own[0]["binding"], **sums}
        return said

    def _speed(self, counts: Future[dict[str, Any] | None] | None, trials: int) -> dict[str, Any]:
        counted = None if counts is None else counts.result()
        said: dict[str, Any] = {"counted": counted, "evidence": "emulated", "config": dict(self._case.configs[0])}
        if counted is not None:
            one, other = counted["reference"], counted["candidate"]
            self._hints.append(f"on {counted['gpu']} the candidate is bound by {other['binding']}")
            if other["bound_us"] and not self._by_function:
                said |= {"speedup": round(one["bound_us"] / other["bound_us"], 4), "evidence": "counted"}
        if self._device.evidence != "measured":
            self._hints.append("no GPU was asked: right or wrong is emulated, and speed is at most counted")
            return said
        best, measured = self._fastest(trials)
        return said | {"evidence": "measured", "config": dict(best), **measured}

    def _fastest(self, trials: int) -> tuple[Config, dict[str, Any]]:
        """The candidate's fastest config, and its speed-up in fresh processes. _WrongError where it is wrong there."""
        case = self._case
        references = self._references(case.reference, "timed", precision=False)
        best, best_ratio, program = case.configs[0], -math.inf, case.candidate
        for config in case.configs[:trials] if trials > 1 else ():
            made = case.program(config)
            if isinstance(made, Rejection) or isinstance(self._measurer.check(made, references), MeasureFailed):
                continue
            sampled = self._measurer.sample(made, case.reference, _SEARCH, references)
            if not isinstance(sampled, MeasureFailed) and (sampled.ratio or 0.0) > best_ratio:
                best, best_ratio, program = config, sampled.ratio or 0.0, made
        if program is not case.candidate:
            self._inspected(program, references)
        logs = []
        for _ in range(verdict.LEAST_PROCESSES):
            self._measurer.fresh()
            measured = self._measurer.sample(program, case.reference, _FINAL, references)
            if isinstance(measured, MeasureFailed):
                if measured.outcome is Outcome.TOO_NOISY:
                    self._hints.append(f"a process was too noisy: {measured.reason}")
                    continue
                raise _WrongError(_said(measured))
            logs.append(verdict.process_ratio(measured))
        if len(logs) < 2:
            self._hints.append("how fast it is could not be measured: too few processes were quiet enough")
            return best, {}
        found = verdict.estimate(logs, 1)
        interval = (round(found.low, 4), round(found.high, 4))
        return best, {} if self._by_function else {"speedup": round(found.speedup, 4), "ci95": interval}


def _at(sizes: Mapping[str, int]) -> str:
    return f" at {', '.join(f'{name}={value}' for name, value in sizes.items())}"


def _sum(numbers: Iterable[int | None]) -> int | None:
    """None where one of them is unknown."""
    found = list(numbers)
    return None if None in found else sum(each for each in found if each is not None)


def _said(failed: MeasureFailed) -> str:
    words = {Outcome.TIMED_OUT: "it does not end: ", Outcome.BUILD_FAILED: "it does not build: "}
    return f"{words.get(failed.outcome, '')}{failed.reason}"


def implementations(registry: Registry, reference: str, candidate: str) -> Iterator[tuple[str, object]]:
    """The keys of a job that compares two implementations. RequestError where no strategy takes such."""
    taker = registry.taking(IMPLEMENTATION)
    if taker is None:
        raise RequestError("no strategy that compares implementations is installed; `fusiond plugins` says why")
    strategy, key = taker
    yield "strategy", strategy.name
    file, colon, _ = reference.rpartition(":")
    function = bool(colon) and file.endswith(".py")
    yield key, [candidate] if function else [reference, candidate]
    if function:
        yield "reference", reference
