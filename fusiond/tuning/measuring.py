"""Programs to outcomes: build, bundle, check against the reference, sample. Everything that a tuner does more than
once.

The order is always the same: built -> bundled -> checked on every reference -> sampled in pairs. A Program that
fails on the way comes back as `MeasureFailed`, never as an exception. Every method may raise MachineFault.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices import protocol
from fusiond.devices.base import Binary, DeviceProvider
from fusiond.devices.supervisor import Runner
from fusiond.devices.timing import Sampling, Session, throttled
from fusiond.model.errors import DeviceError, RequestError
from fusiond.model.keys import content_key
from fusiond.model.nouns import Scrutiny
from fusiond.model.outcomes import BuildFailed, MeasureFailed, Measurement, Outcome, Purpose
from fusiond.model.program import Program, Source, settled
from fusiond.model.system import faults, files
from fusiond.tuning.contention import Contention, Policy
from fusiond.tuning.judging.truth import truth

log = logging.getLogger(__name__)

KEPT_TIMES = 20
CHILD_SECS = 0.5  #: What a child process takes to start, about
SEEDS = (0, 1)  #: Every candidate is checked on the data of both; timing uses those of the first


Made = TypeVar("Made")
Reply = TypeVar("Reply", protocol.Checked, Measurement)


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """The outputs that are right by definition: (seed, .npz) of one reference Program."""

    of: tuple[tuple[int, str], ...]
    run_secs: float  #: How long a checked run takes; what patience with candidates is measured in
    unproven: tuple[str, ...] = ()  #: Outputs to which anything might be equal, on every seed, and why
    suspicious: bool = False  #: Nobody vouches for what is compared with them (`fusiond.model.nouns.Scrutiny`)
    truths: tuple[tuple[int, str], ...] = ()  #: (seed, .npz) of the same in double precision, where precision is judged
    untold: str = ""  #: Why precision is not judged, where it should be


class Measurer:
    """One device, one folder for bundles, one for the references of a job. Measuring is for one thread; whatever
    only makes something (`ahead`, `build_ahead`, `bundle_now`) is for any."""

    def __init__(
        self,
        provider: DeviceProvider,
        runner: Runner,
        bundles: Path,
        work: Path,
        *,
        jobs: int | None = None,
        least_patience_secs: float = 10.0,
        contention: Contention | None = None,
        let_in: Callable[[Callable[[], None]], None] = lambda leave: None,
    ) -> None:
        """`let_in`: leave the device to a visitor, where there is one, after what it is given was called."""
        self._let_in = let_in
        self._provider = provider
        self._runner = runner
        self._bundles = bundles
        self._work = work
        self._patience_secs = least_patience_secs
        self._contention = contention or Contention()
        self._session = Session()
        self.busy_secs = 0.0
        """How long the device was asked for something, child processes that had to be started included."""
        self._said_spoilt = False  #: Whether the child that runs now was said to be noisy
        self._sampled_secs: list[float] = []  #: How long each of the last samples took, from the request to the answer
        self._arch = runner.device.arch
        self.jobs = jobs or os.cpu_count() or 1  #: How many compilers run at once
        self._pool = ThreadPoolExecutor(max_workers=self.jobs, thread_name_prefix="build")
        self._beside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="record")
        self._recording: Future[None] | None = None
        self._builds: dict[Source, Future[Binary | BuildFailed]] = {}
        self._bundled: dict[str, Path | MeasureFailed] = {}  #: Program key -> its bundle
        self._making: list[Future[object]] = []
        self._lock = threading.Lock()
        for folder in (bundles, work):
            _made(folder)

    def close(self) -> None:
        """Drop what is being built and the references; the bundles stay."""
        self._beside.shutdown(wait=True)
        self._pool.shutdown(wait=True, cancel_futures=True)
        files.discard(self._work)

    # --- building ---

    def ahead(self, make: Callable[[], Made]) -> Future[Made]:
        """Make something on any core: programs, whose making may compile, and which `bundle_now` then builds."""
        future = self._pool.submit(make)
        self._making = [each for each in self._making if not each.done()]
        self._making.append(future)  # type: ignore[arg-type]
        return future

    def build_ahead(self, program: Program) -> None:
        """Begin to build every source of a program, on any core. May be called in any thread."""
        with self._lock:
            for source in program.sources:
                if source not in self._builds:
                    self._builds[source] = self._pool.submit(self._provider.build, source, self._arch)

    def meanwhile(self, work: Callable[[], None]) -> None:
        """Do this while the device measures, before whatever waits for a core; a measurement on cores waits for it."""
        self._recording = self._beside.submit(work)

    def recorded(self) -> None:
        """Until that is done. Raises what it raised, once."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.result()

    def bundle_now(self, program: Program) -> Path | MeasureFailed:
        """Build what is not built or being built yet, and write the bundle, in this thread: for those that run in the
        pool already, where a new build would have to wait for all that is queued before it."""
        for source in program.sources:
            with self._lock:
                if source in self._builds:
                    continue
                future: Future[Binary | BuildFailed] = Future()
                self._builds[source] = future
            try:
                future.set_result(self._provider.build(source, self._arch))
            except BaseException as problem:  # whoever waits for it is told
                future.set_exception(problem)
        return self.bundle(program)

    def bundle(self, program: Program) -> Path | MeasureFailed:
        """Wait for the builds of a program and write its bundle; once, however often it is asked for."""
        known = self._bundled.get(program.key)
        if known is None or (isinstance(known, Path) and not known.is_dir()):  # somebody has removed the artifacts
            known = self._bundled[program.key] = self._written(program)
        return known

    def _written(self, program: Program) -> Path | MeasureFailed:
        self.build_ahead(program)
        binaries = {}
        for source in program.sources:
            try:
                binary = self._builds[source].result()
            except OSError as problem:  # of a compiler's temporary folder, such as a full disk
                raise faults.of_our_file(problem, f"cannot build {source.name}") from problem
            if isinstance(binary, BuildFailed):
                return MeasureFailed(outcome=Outcome.BUILD_FAILED, reason=binary.reason)
            binaries[source.name] = binary.path
        # The built files are part of the name: the same plan for another device or compiler is another bundle.
        names = {source: path.name for source, path in binaries.items()}
        folder = self._bundles / content_key([program.key, self._arch, names])
        try:
            write_bundle(folder, program, binaries)
        except OSError as problem:
            raise faults.of_our_file(problem, f"cannot write {folder}") from None
        return folder

    def _quiet(self, *programs: Program) -> None:
        """Wait until nothing competes with a measurement that happens on the cores."""
        if self._provider.shares_cores or any(each.host_sensitive for each in programs):
            if self._recording is not None:  # this first: it asks for more
                self._recording.exception()
            for made in self._making:  # these first: they begin builds
                made.exception()
            for future in list(self._builds.values()):
                future.exception()

    # --- checking ---

    def references(self, program: Program, name: str, scrutiny: Scrutiny | None = None) -> References | MeasureFailed:
        """Run a reference on every seed and keep its outputs. Under scrutiny the seeds are drawn here and now, and the
        outputs are those of the function that is the reference, where there is one. RequestError where that is wrong.
        """
        self._pause()
        folder = self.bundle(program)
        if isinstance(folder, MeasureFailed):
            return folder
        made = []
        unproven: list[tuple[str, ...]] = []
        run_secs = float("inf")
        _made(self._work)
        for seed in SEEDS if scrutiny is None else fresh_seeds():
            path = self._work / f"{name}-{seed}.npz"
            request = protocol.Reference(bundle=str(folder), seed=seed, outputs=str(path))
            begun = time.monotonic()
            reply = self._call(request, 60 + self._patience_secs, protocol.Checked)
            run_secs = min(run_secs, time.monotonic() - begun)  # the first one starts the child, too
            if isinstance(reply, MeasureFailed):
                return reply
            made.append((seed, str(path)))
            unproven.append(reply.unproven)
        always = tuple(each for each in unproven[0] if all(each in others for others in unproven))
        found = References(of=tuple(made), run_secs=run_secs, unproven=always, suspicious=scrutiny is not None)
        return found if scrutiny is None else self._with_truths(found, program, folder, scrutiny)

    def _with_truths(self, found: References, program: Program, folder: Path, scrutiny: Scrutiny) -> References:
        """With the outputs in double precision; a function's outputs in the place of the program's."""
        function, file = None, self._work
        if scrutiny.function is not None:
            file = Path(scrutiny.function.path)  # what it imports lies beside it
            if not file.is_file() or file.read_bytes() != scrutiny.function.text.encode():
                file = self._work / file.name  # as it was when the job was submitted
                file.write_text(scrutiny.function.text, encoding="utf-8")
            function = f"{file}:{scrutiny.function.name}"
        elif not scrutiny.precision:
            return found
        sizes = dict(program.sizes)
        numbers = {**dict(settled(tuple(scrutiny.numbers.items()), sizes, sizes)), **sizes}

        paths = tuple((seed, str(Path(path).with_suffix(".truth.npz"))) for seed, path in found.of)

        def make(seed: int, given: str, out: str) -> str:
            against = None if function else Path(given)
            try:
                return truth(folder, Path(out), seed=seed, function=function, numbers=numbers, against=against)
            except RequestError as problem:
                if scrutiny.function is None:
                    raise
                raise RequestError(str(problem).replace(str(file), scrutiny.function.path)) from None

        with ThreadPoolExecutor(len(SEEDS)) as pool:
            untold = list(pool.map(make, *zip(*found.of, strict=True), [out for _, out in paths]))
        if any(untold):
            return replace(found, untold=next(filter(None, untold)))
        return replace(found, of=paths if function else found.of, truths=paths if scrutiny.precision else ())

    def check(self, program: Program, references: References) -> float | MeasureFailed:
        """Compare a program's outputs with those of the reference on every seed; returns the worst error."""
        self._pause()
        folder = self.bundle(program)
        if isinstance(folder, MeasureFailed):
            return folder
        patience = self._patience_secs + 30 * references.run_secs
        request = protocol.CheckRequest(
            bundle=str(folder), references=references.of, suspicious=references.suspicious, truths=references.truths
        )
        reply = self._call(request, patience, protocol.Checked)
        return reply if isinstance(reply, MeasureFailed) else reply.worst

    # --- sampling ---

    def sample(
        self, program: Program, against: Program | None, plan: Sampling, references: References
    ) -> Measurement | MeasureFailed:
        """Sample a program in pairs with another, or alone. A batch in which the device throttled, or was slower than
        in the rest of this session, or (unless it is shared) had other users, is thrown away; the second such batch is
        a failure."""
        reasons: list[str] = []
        for _ in range(2):
            reply = self._sample(program, against, plan, references)
            if not isinstance(reply, Measurement):
                return reply
            reason = self._spoilt(reply)
            if not reason:
                return replace(reply, effort=replace(reply.effort, thrown_away=tuple(reasons)))
            reasons.append(reason)
            # Once for each process; of one of the finals its own outcome tells.
            quiet = self._said_spoilt or plan.purpose is Purpose.FINAL
            log.log(logging.DEBUG if quiet else logging.WARNING, "%s: a batch is thrown away: %s",
                    self._runner.device.name, reason)  # fmt: skip
            self._said_spoilt = True
            if self._contention.policy is not Policy.SHARE and max(reply.before.others, reply.after.others):
                self._runner.fresh()  # what is left of us on the device is in their way, and would be taken for theirs
                self._contention.wait()
        return MeasureFailed(outcome=Outcome.TOO_NOISY, reason=f"two batches were thrown away: {reasons[-1]}")

    def _spoilt(self, measured: Measurement) -> str:
        """Why a batch says nothing; empty when it is good."""
        off, others = self._session.off(measured.after), max(measured.before.others, measured.after.others)
        if reason := throttled(measured.after, measured.before):
            return reason
        if off:
            return f"the device is slower than it was ({off})"
        shared = self._contention.policy is Policy.SHARE
        return f"{others} other processes used the device" if others and not shared else ""

    def _sample(
        self, program: Program, against: Program | None, plan: Sampling, references: References
    ) -> Measurement | MeasureFailed:
        folder = self.bundle(program)
        other = None if against is None else self.bundle(against)
        for each in (folder, other):
            if isinstance(each, MeasureFailed):
                return each
        self._quiet(*(each for each in (program, against) if each is not None))
        request = protocol.SampleRequest(
            candidate=str(folder), baseline=None if other is None else str(other), plan=plan,
            references=references.of if references.suspicious else (),
        )  # fmt: skip
        patience = self._patience_secs + plan.warm_up_secs + plan.budget_secs + 60 * references.run_secs
        begun = time.monotonic()
        reply = self._call(request, patience, Measurement)
        self._sampled_secs = [*self._sampled_secs[-KEPT_TIMES:], time.monotonic() - begun]
        return reply

    def expected_secs(self, programs: int) -> float:
        """How long a fresh child is likely to take for samples of so many programs, by those that were taken last."""
        if not self._sampled_secs:
            return float(programs)
        return CHILD_SECS + programs * sum(self._sampled_secs) / len(self._sampled_secs)

    def _call(self, request: protocol.Request, timeout_secs: float, kind: type[Reply]) -> Reply | MeasureFailed:
        begun = time.monotonic()
        try:
            reply = self._runner.call(request, timeout_secs)
        finally:
            self.busy_secs += time.monotonic() - begun
        if isinstance(reply, MeasureFailed | kind):
            return reply
        asked = "a measurement" if kind is Measurement else "a check"
        raise DeviceError(f"the worker answered {asked} with a {type(reply).__name__}")

    def fresh(self) -> None:
        """Let the next request be the first of a new child process."""
        self._said_spoilt = False
        self._runner.fresh()
        self._pause()

    def _pause(self) -> None:
        """Where a visitor may have the device. The child ends for it: it would keep its memory, and be taken for
        another one that computes. One process of the finals measures all of its programs; there is no pause in it."""
        self._let_in(self._runner.fresh)


def fresh_seeds() -> tuple[int, int]:
    """Two unpredictable seeds, one even and one odd: each has poison of its own kind (`fusiond.model.inputs.fills`)."""
    return 2 * secrets.randbits(40), 2 * secrets.randbits(40) + 1


def _made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise faults.of_our_file(problem, f"cannot make {folder}") from None
