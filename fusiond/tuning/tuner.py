"""Tuning one job from end to end:

    parts -> probes -> reference -> baselines -> search -> finals -> record

Everything that is found is in the store before it is announced, and nothing that is in the store is measured again: a
job that was killed anywhere goes on from there.
"""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass

from fusiond.devices.base import DeviceProvider
from fusiond.devices.lock import DeviceHold, device_lock
from fusiond.devices.supervisor import Runner, Supervisor
from fusiond.devices.timing import Sampling
from fusiond.model import events as say
from fusiond.model.errors import DeviceSick, FusiondError, Interrupted, RequestError, StoreError
from fusiond.model.events import Events
from fusiond.model.nouns import Analysis, DeviceInfo, Job
from fusiond.model.outcomes import JobState, MeasureFailed, Purpose, Record
from fusiond.model.program import Fill
from fusiond.model.system import faults
from fusiond.requests.planning import Prepared, choose_device, prepare, refuse_hopeless, sound, target_of
from fusiond.requests.planning import answers as known_answers
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow
from fusiond.store.process_identity import this_process
from fusiond.tuning import answers, finals, profiles
from fusiond.tuning.baselines import between, fastest_unfused
from fusiond.tuning.bench import ready
from fusiond.tuning.contention import Contention, Policy
from fusiond.tuning.context import Context
from fusiond.tuning.measuring import Measurer
from fusiond.tuning.search_phase import SearchPhase
from fusiond.tuning.verifying import verify

log = logging.getLogger(__name__)

FIRST_WAIT_SECS = 2.0
"""How long a job waits for the machine the first time; each time that it has not got on since, twice as long."""

RunnerFactory = Callable[[DeviceProvider, DeviceInfo], Runner]


def submit(
    store: Store, registry: Registry, job: Job, *, kind: str = "tune", priority: int = 0, resume: bool = False
) -> JobRow:
    """Check a job and store it. RequestError, also where not one candidate can be tried: nothing is stored."""
    prepared = prepare(registry, job)
    if kind == "tune":
        refuse_hopeless(registry, prepared)
    return enqueue(store, prepared, kind=kind, priority=priority, resume=resume)


def enqueue(store: Store, prepared: Prepared, *, kind: str = "tune", priority: int = 0, resume: bool = False) -> JobRow:
    """Store a job that was checked, with its files. `resume`: an interrupted one goes on with this budget."""
    if resume and (interrupted := store.resume(prepared.job, prepared.workload)) is not None:
        return interrupted
    return store.submit(prepared.job, prepared.workload, kind=kind, priority=priority)


class _Outdated(FusiondError):
    """What a job has measured so far was measured under other conditions than those of here and now."""


@dataclass(frozen=True, slots=True)
class Tuner:
    """Runs claimed jobs, one at a time."""

    store: Store
    registry: Registry
    events: Events
    _: KW_ONLY
    runner: RunnerFactory = Supervisor
    least_patience_secs: float = 10.0
    build_jobs: int | None = None  #: How many compilers may run at once; None: as many as there are cores
    policy: Policy = Policy.SHARE  #: What is done about others on a device
    busy: Callable[[DeviceInfo], str | None] = lambda device: None  #: Who else computes on a device

    def run(
        self,
        job_id: str,
        stop: Callable[[], bool],
        device: DeviceInfo | None = None,
        *,
        finish: Callable[[], bool] = lambda: False,
        prepared: Prepared | None = None,
    ) -> JobState:
        """Tune a claimed job to its end, and write down how it ended. When `finish` asks for it, the search ends there
        and the finals of what is measured begin. `prepared`: what this process has made of the job already, so that it
        is parsed once.

        Returns QUEUED when `stop` asked for it: the job is back in the queue with all that it has measured; WAITING
        when the machine cannot go on with it, for longer each time. DeviceSick is raised when the device is, or turns
        out to be: the job is back in the queue as well. MachineFault is raised when not even that can be written down:
        the job is still the caller's. `device` overrules the job's own choice (the daemon has one worker for each
        device)."""
        state, problem = JobState.DONE, None
        try:
            try:
                self._run(job_id, stop, device, finish, prepared)
            except _Outdated as reason:
                state, problem = JobState.FAILED, f"{reason}; it is in the queue again, from the start"
                again = prepare(self.registry, self.store.load_job(job_id))
                self.store.begin_anew(job_id, problem, again.job, again.workload)  # both or neither
        except Interrupted as interruption:
            if not self.store.cancel_requested(job_id):
                self.store.requeue(job_id)
                self._ended(job_id, JobState.QUEUED, str(interruption))
                return JobState.QUEUED
            state = JobState.CANCELLED
        except DeviceSick as sickness:
            self.store.requeue(job_id, waits_for=str(sickness))
            self._ended(job_id, JobState.QUEUED, str(sickness))
            raise
        except Exception as failure:
            fault = faults.of(failure)
            if fault is not None:
                secs = FIRST_WAIT_SECS * 2 ** min(self._known_row(job_id).retries, 10)
                state = self.store.wait(job_id, str(fault), secs=secs)
                self._ended(job_id, state, str(fault))
                return state
            if not isinstance(failure, FusiondError):
                raise
            state, problem = JobState.FAILED, str(failure)
        self.store.finish(job_id, state, problem)  # does nothing to a job that has ended
        self._ended(job_id, state, problem)
        return state

    def _ended(self, job_id: str, state: JobState, problem: str | None) -> None:
        row = self._known_row(job_id)
        self.events.publish(
            say.JobEnded(
                job=job_id,
                state=state.value,
                problem=problem,
                wall_secs=row.wall_secs or None,
                device_share=row.device_share,
            )
        )

    def _run(
        self,
        job_id: str,
        stop: Callable[[], bool],
        device: DeviceInfo | None,
        finish: Callable[[], bool],
        prepared: Prepared | None,
    ) -> None:
        row = self._known_row(job_id)
        job = self.store.load_job(row.id)
        if prepared is None or prepared.job != job:
            prepared = prepare(self.registry, job)
        if prepared.workload.key != row.workload_key:
            raise StoreError("a plugin has changed what this job means since it was submitted; submit it again")
        provider, info = self._device_of(row, device.name if device else job.device)
        if self.store.environments(row.id) - {(info.key, info.env_key)}:
            raise _Outdated(f"the driver or the toolkit of {info.name} has changed since it began")
        self.store.save_device(info)
        self.store.set_device(row.id, info.key)
        if reason := self.store.sick(info.key, info.uuid):
            raise DeviceSick(info.name, reason)

        def asked_to_stop() -> bool:
            return stop() or self.store.cancel_requested(row.id)

        def asked_to_finish() -> bool:
            return finish() or self.store.finish_requested(row.id)

        def waiting(who: str) -> None:
            self.events.publish(say.PhaseStarted(job=row.id, phase="waiting", detail=who))

        contention = Contention(policy=self.policy, busy=lambda: self.busy(info), stop=asked_to_stop, waiting=waiting)
        with self._locked(row.id, info, asked_to_stop, waiting) as hold:

            def let_in(leave: Callable[[], None]) -> None:
                hold.let_in(leave, asked_to_stop)

            contention.wait()
            runner = self.runner(provider, info)
            measurer = Measurer(
                provider,
                runner,
                self.store.artifacts / "bundles",
                self.store.artifacts / "work" / row.id,
                least_patience_secs=self.least_patience_secs,
                jobs=self.build_jobs,
                contention=contention,
                let_in=let_in,
            )
            try:
                with self._timed(row.id, measurer):
                    context = Context(
                        store=self.store,
                        events=self.events,
                        row=row,
                        prepared=prepared,
                        provider=provider,
                        device=info,
                        measurer=measurer,
                        stop=asked_to_stop,
                        finish=asked_to_finish,
                        analysis=self._analysis(prepared, provider, info),
                        calibrated=self.store.calibration(info.key, info.env.get("driver", "")),
                    )
                    (self._verify if row.kind == "verify" else self._tune)(context)
            finally:
                measurer.close()
                runner.close()

    @contextlib.contextmanager
    def _locked(
        self, job_id: str, device: DeviceInfo, stop: Callable[[], bool], waiting: Callable[[str], None]
    ) -> Iterator[DeviceHold]:
        """The device for this job alone; while it waits for that, its row says for whom."""
        told = False

        def tell(who: str) -> None:
            nonlocal told
            told = True
            self.store.set_waiting_for(job_id, f"{device.name}: {who}")
            waiting(who)

        with contextlib.ExitStack() as held:
            try:
                hold = held.enter_context(device_lock(device, stop=stop, waiting=tell))
            finally:
                if told:
                    self.store.set_waiting_for(job_id, "")
            yield hold

    @contextlib.contextmanager
    def _timed(self, job_id: str, measurer: Measurer) -> Iterator[None]:
        """Add to a job's time what passes meanwhile, and for how much of that the device was busy."""
        begun, busy = time.monotonic(), measurer.busy_secs
        try:
            yield
        finally:
            wall_secs, device_secs = time.monotonic() - begun, measurer.busy_secs - busy
            self.store.add_time(job_id, wall_secs=wall_secs, device_secs=device_secs)

    def _known_row(self, job_id: str) -> JobRow:
        row = self.store.job(job_id)
        if row is None:
            raise StoreError(f"there is no job {job_id}")
        return row

    def _device_of(self, row: JobRow, request: str) -> tuple[DeviceProvider, DeviceInfo]:
        """The device of a job: the one it began on, as long as that is here; numbers of two devices do not compare."""
        chosen = choose_device(self.registry, request)
        if row.device_key in (None, chosen[1].key):
            return chosen
        for provider, info in self.registry.devices():
            if info.key == row.device_key:
                return provider, info
        raise _Outdated(f"the device it began on is not here any more ({chosen[1].name} is another one)")

    def _analysis(self, prepared: Prepared, provider: DeviceProvider, device: DeviceInfo) -> Analysis:
        return prepared.strategy.analyse(prepared.workload, target_of(provider, device, self.registry))

    def _verify(self, context: Context) -> None:
        self._announce(context)
        known = known_answers(self.store, self.registry, context.strategy, context.analysis, context.device.key)
        context.answers.update(known)
        verify(context)

    def _tune(self, context: Context) -> None:
        self._announce(context)
        self._parts(context)
        self._probes(context)
        bench = ready(context)
        unfused = fastest_unfused(bench)
        self.events.publish(
            say.PhaseStarted(job=context.row.id, phase="search", then_secs=finals.expected_secs(context))
        )
        ended = SearchPhase(bench, unfused[0]).run()
        entered = finals.field(bench, unfused)
        finals.measure(bench, entered)
        answers.publish(context, *answers.conclude(bench, entered, ended))
        profiles.keep(context)

    def _announce(self, context: Context) -> None:
        self.events.publish(
            say.JobStarted(
                job=context.row.id,
                workload=context.prepared.workload.name,
                device=context.device.name,
                budget=context.prepared.job.search.trials,
                known=len(self.store.trials(context.row.id)),
                parent=context.row.parent,
            )
        )

    def _parts(self, context: Context) -> None:
        """The records of the smaller workloads that this one builds on; those that are missing are tuned first,
        here: by that name of the device, so that a worker of another one never takes the part meanwhile."""
        wanted = context.strategy.parts(context.analysis)
        given: Mapping[str, Fill] | None = None
        for number, job in enumerate(wanted, 1):
            # Nobody is to be asked for data that the user did not write; the whole is compared in any case.
            job = dataclasses.replace(job, device=context.device.name, accept_constant=True)
            part = prepare(self.registry, job)
            key = part.workload.key
            if not self._answered(context, part):
                if context.finish():
                    continue
                given = between(context) if given is None else given
                context.phase("part", part.workload.name, number, len(wanted))
                row = self._part_of(context, part)
                self.store.claim(this_process(), job=row.id)
                try:
                    with self._timed(row.id, context.measurer):
                        self._tune(
                            dataclasses.replace(
                                context,
                                row=row,
                                prepared=part,
                                analysis=self._analysis(part, context.provider, context.device),
                                given={own: given[each] for own, each in job.within.items() if each in given} or given,
                                answers={},
                            )
                        )
                except RequestError as refused:  # it can be planned, and not run: the workload does without its record
                    log.warning("part %s", refused)
                    self.store.finish(row.id, JobState.FAILED, str(refused))
                    continue
                except BaseException:
                    self.store.requeue(row.id)
                    raise
                self.store.finish(row.id, JobState.DONE)
                self._ended(row.id, JobState.DONE, None)
            record = self._servable(context, part)
            if record is not None:
                context.answers[key] = record

    def _servable(self, context: Context, part: Prepared) -> Record | None:
        """The answer of today for a part: its own, or that of an earlier version which stands."""
        found = self.store.incumbents(part.workload.key, context.device.key, context.search.cache)
        return next((each for each in found if each.strategy_version not in part.strategy.wrong_versions), None)

    def _answered(self, context: Context, part: Prepared) -> bool:
        """Whether a part has an answer of its own, or was tuned and an earlier answer stands."""
        key, device, cache = part.workload.key, context.device.key, context.search.cache
        if self.store.record(key, device, cache) is not None:
            return True
        return self.store.tuned(key, device, cache) and self._servable(context, part) is not None

    def _part_of(self, context: Context, part: Prepared) -> JobRow:
        """The job of a part; a new one where what an interrupted one has measured does not compare with now."""
        device = context.device
        row = self.store.submit(part.job, part.workload, kind="tune", parent=context.row.id)
        if self.store.environments(row.id) - {(device.key, device.env_key)}:
            problem = f"the driver or the toolkit of {device.name} has changed since it began; it is begun anew"
            row = self.store.begin_anew(row.id, problem, part.job, part.workload)
        self.store.set_device(row.id, device.key)
        return row

    def _probes(self, context: Context) -> None:
        """Microseconds of each probe that the strategy wants; of those that this device has not answered, as many are
        measured as the job allows. A job that has trials already is past its probes: what it builds on stays."""
        version = context.strategy.version
        wanted = context.strategy.probes(context.analysis)
        asked = {each.key: self.store.probe(each.key, context.device.key, version) for each in wanted}
        missing = [each for each in wanted if asked[each.key] is None]
        allowed = 0 if self.store.trials(context.row.id) else context.strategy.probe_limit(context.analysis)
        measured_now = {each.key: sound(context.strategy.name, each.program) for each in missing[:allowed]}
        for program in measured_now.values():
            context.measurer.build_ahead(program)
        for probe in wanted:
            time_us = asked[probe.key]
            if time_us is None:
                if probe.key not in measured_now:
                    continue
                context.phase("probe", probe.key)
                program = measured_now[probe.key]
                references = context.measurer.references(program, f"probe-{program.key}")
                if isinstance(references, MeasureFailed):
                    log.warning("probe %s: %s", probe.key, references.reason)
                    continue
                plan = Sampling(purpose=Purpose.PROBE)
                measured = context.measurer.sample(program, None, plan, references)
                if isinstance(measured, MeasureFailed):
                    log.warning("probe %s: %s", probe.key, measured.reason)
                    continue
                self.store.add_probe(probe.key, context.device.key, version, measured)
                time_us = measured.time_us
            context.answers[probe.key] = time_us
