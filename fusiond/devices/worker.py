"""The child process: the only one that touches a device. `python -m fusiond.devices.worker MODULE:CLASS DEVICE`.

It reads requests from standard input and answers on a private copy of standard output (what kernels print goes to
standard error). It ends when its parent does: end of file on standard input means that nobody wants an answer any more.
When it cannot start, its only line says why; its exit status is 75 where that is the machine's fault.
"""

import functools
import importlib
import os
import queue
import resource
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from fusiond.build.exporting.bundle import read_bundle
from fusiond.devices import protocol
from fusiond.devices.base import Array, DeviceProvider, ExecutionError, Executor, Loaded
from fusiond.devices.compare import constant
from fusiond.devices.guarded import guarded, untouched, worst_error
from fusiond.devices.precision import judged
from fusiond.devices.timing import sample_pair
from fusiond.model.errors import FusiondError, MachineFault
from fusiond.model.inputs.fills import is_read, poison
from fusiond.model.language.dtypes import is_float
from fusiond.model.nouns import COUNTED
from fusiond.model.outcomes import MeasureFailed, Outcome
from fusiond.model.program import Buffer, Program, Role
from fusiond.model.system import faults

TIMING_SEED = 0  #: Data for timed runs are always those of this seed
COPIES = 4  #: How often a program's data may be in memory at a time: of its own, given, read back, compared with


class ExecutorWorker:
    """Runs requests on one executor. Keeps the last two Programs loaded: a candidate, and the baseline it is paired
    with."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._loaded: dict[str, Loaded] = {}
        self._files: dict[str, tuple[int, ...]] = {}  #: Reference -> what its file was when its outputs were kept

    def answer(self, request: protocol.Request) -> protocol.Reply:
        """Do what is asked; every failure of the Program's own is an answer. Raises MachineFault."""
        try:
            if isinstance(request, protocol.Reference):
                return self._reference(request)
            if isinstance(request, protocol.CheckRequest):
                return self._check(request)
            if isinstance(request, protocol.Calibrate):
                return protocol.Calibrated(figures=dict(self._executor.calibrate()))
            return self._sample(request)
        except ExecutionError as problem:
            return MeasureFailed(outcome=problem.outcome, reason=problem.reason)
        except MemoryError as problem:
            if self._executor.data.clear():  # what was kept for speed may be what is missing
                return self.answer(request)
            if _fits(request):
                raise MachineFault(f"no memory left for a program that needs little ({problem})") from None
            return MeasureFailed(outcome=Outcome.LAUNCH_REFUSED, reason="not enough memory for the buffers")
        except OSError as problem:  # every file that is touched here is one of ours
            raise faults.of_our_file(problem, str(problem.filename or "a file of a bundle")) from None
        except MachineFault:
            raise
        except FusiondError as problem:  # a file that a fill names, a bundle that cannot be read
            return MeasureFailed(outcome=Outcome.LAUNCH_REFUSED, reason=str(problem))

    def close(self) -> None:
        for loaded in self._loaded.values():
            loaded.close()
        self._executor.close()

    def _load(self, bundle: str, *, keep: str | None = None) -> Loaded:
        if bundle not in self._loaded:
            for old in [name for name in self._loaded if name != keep]:
                self._loaded.pop(old).close()
            program, binaries = _whole(Path(bundle))
            self._loaded[bundle] = self._executor.load(program, binaries)
        return self._loaded[bundle]

    def _run(self, loaded: Loaded, seed: int, kind: int | None = None, *, stale: bool = False) -> None:
        """One checked run from fresh data. Guard zones and inputs are looked at afterwards. `kind`: of the poison;
        `stale`: there is none, and what is only written holds what the run before has left."""
        data = self._executor.data
        for buffer in loaded.program.buffers:
            if stale and not is_read(buffer):
                continue
            data.fill(loaded, buffer, seed, kind=kind)
        loaded.run(seed=seed, checked=True)
        untouched(data, loaded, seed)

    def _reference(self, request: protocol.Reference) -> protocol.Reply:
        """Two runs on the same data and different poison: what differs is not a function of the inputs.

        The outputs stay where they can be compared, and are written to the file as well, since they must survive this
        process: who takes its place reads them there."""
        loaded = self._load(request.bundle)
        data = self._executor.data
        compared = [each for each in loaded.program.buffers if each.role.compared]
        self._files.pop(request.outputs, None)
        data.forget(request.outputs)
        self._run(loaded, request.seed, kind=0)
        outputs = {each.name: data.keep(loaded, each, request.outputs) for each in compared}
        unproven = tuple(why for each in compared if (why := self._proves_little(loaded, each, outputs, request.seed)))
        self._run(loaded, request.seed, kind=1)
        for buffer in compared:
            found = data.compare(loaded, buffer, request.outputs, functools.partial(outputs.__getitem__, buffer.name))
            if not found.equal:
                remedy = "it accumulates, leaves elements unwritten (then its role is inout), or is not deterministic"
                raise ExecutionError(
                    Outcome.WRONG_UNFUSED, f"two runs on the same data differ: {found.detail}; {remedy}"
                )
        np.savez(request.outputs, **outputs)  # type: ignore[arg-type]
        self._files[request.outputs] = _identity(request.outputs)
        return protocol.Checked(worst=0.0, unproven=unproven)

    def _proves_little(self, loaded: Loaded, buffer: Buffer, outputs: Mapping[str, Array], seed: int) -> str:
        """Why anything might be equal to this output; an empty text where it tells right from wrong."""
        value = constant(buffer, outputs[buffer.name])
        if value:
            return f"{buffer.name} is {value} in all of its {buffer.elements} elements"
        if buffer.role is Role.INOUT and self._executor.data.intact(loaded, buffer, seed):
            return f"{buffer.name} is left as it was"
        return ""

    def _check(self, request: protocol.CheckRequest) -> protocol.Reply:
        """Of what nobody vouches for, each seed is run a second time, since what it remembers of the first run is
        wrong; the second one at other addresses; and the first one again over what the second has left, and over half
        of its own results."""
        loaded = self._load(request.bundle)
        truths = dict(request.truths)
        worst = 0.0
        for number, (seed, path) in enumerate(request.references):
            if number and request.suspicious:
                self._loaded.pop(request.bundle).close()
                loaded = self._load(request.bundle)
            self._run(loaded, seed)
            worst = max(worst, self._worst(loaded, seed, path))
            if seed in truths:
                self._precise(loaded, path, truths[seed])
            if request.suspicious:
                self._run(loaded, seed, kind=seed + 1)
                self._worst(loaded, seed, path, " (in a second run on the same data)")
        if request.suspicious:
            self._check_stale(loaded, *request.references[0])
        return protocol.Checked(worst=worst)

    def _check_stale(self, loaded: Loaded, seed: int, path: str) -> None:
        """ExecutionError where outputs are wrong over what an earlier run has left."""
        self._run(loaded, seed, stale=True)
        self._worst(loaded, seed, path, " (where an earlier run has left its results)")
        _half_poisoned(loaded, seed)
        self._run(loaded, seed, stale=True)
        self._worst(loaded, seed, path, " (where an earlier run has left half of its results)")

    def _worst(self, loaded: Loaded, seed: int, path: str, when: str = "") -> float:
        if self._files.get(path) != _identity(path):  # another process wrote it
            self._executor.data.forget(path)
            self._files[path] = _identity(path)
        return worst_error(self._executor.data, loaded, path, seed=seed, when=when)

    def _precise(self, loaded: Loaded, reference: str, truth: str) -> None:
        """ExecutionError where a float output is less accurate than the reference's own."""
        with np.load(reference) as file:
            for buffer in loaded.program.buffers:
                if buffer.role.compared and is_float(buffer.dtype):
                    problem = judged(truth, buffer, file[buffer.name], loaded.read(buffer.name))
                    if problem:
                        raise ExecutionError(Outcome.WRONG_RESULT, problem)

    def _sample(self, request: protocol.SampleRequest) -> protocol.Reply:
        candidate = self._load(request.candidate, keep=request.baseline)
        baseline = None
        if request.baseline is not None:
            baseline = self._load(request.baseline, keep=request.candidate)
        data = self._executor.data
        if request.references and candidate.clock != COUNTED:
            paths = dict(request.references)

            def judge(loaded: Loaded, seed: int) -> None:
                self._worst(loaded, seed, paths[seed], " (in a timed run)")
                untouched(data, loaded, seed)

            return sample_pair(self._executor, candidate, baseline, request.plan, guarded(data, tuple(paths), judge))
        for loaded in (candidate, baseline):
            if loaded is not None and loaded.clock != COUNTED:  # a bound needs no data
                for buffer in loaded.program.buffers:
                    data.fill(loaded, buffer, TIMING_SEED)
                loaded.snapshot()
        return sample_pair(self._executor, candidate, baseline, request.plan)


def _half_poisoned(loaded: Loaded, seed: int) -> None:
    """Poison half of the elements that a Program only writes, drawn from a seed."""
    generator = np.random.default_rng(seed)
    for buffer in loaded.program.buffers:
        if not is_read(buffer) and buffer.part_of is None:
            found = loaded.read(buffer.name)
            loaded.write(buffer.name, np.where(generator.random(found.shape) < 0.5, poison(buffer, seed), found))


def _whole(bundle: Path) -> tuple[Program, dict[str, Path]]:
    """A bundle's content. MachineFault when a part of it is gone: it was whole when it was written."""
    if not (bundle / "plan.json").is_file():
        raise MachineFault(f"{bundle} is not a bundle any more: its plan.json is gone")
    program, binaries = read_bundle(bundle)
    files = [Path(each.fill.file) for each in program.buffers if each.fill.file is not None]
    gone = [each.name for each in program.sources if each.name not in binaries]
    gone += [each.name for each in files if not each.is_file()]
    if gone:
        raise MachineFault(f"{bundle} is not a whole bundle any more: {', '.join(gone)} is gone")
    return program, binaries


def _identity(path: str) -> tuple[int, ...]:
    """Changes when a file is written anew."""
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


def _fits(request: protocol.Request) -> bool:
    """Whether this machine should have the memory for a request's buffers, several times over: data are copied."""
    if isinstance(request, protocol.Calibrate):
        return True
    bundles = [request.candidate, request.baseline] if isinstance(request, protocol.SampleRequest) else [request.bundle]
    wanted = 0
    for bundle in filter(None, bundles):
        wanted += sum(each.size_bytes for each in read_bundle(Path(bundle))[0].buffers)
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    return COPIES * wanted < (here if allowed == resource.RLIM_INFINITY else min(here, allowed))


def serve(worker: ExecutorWorker, lines: queue.Queue[str], replies: IO[str]) -> None:
    """Answer until the requests end."""
    while True:
        request = protocol.decode_request(lines.get())
        try:
            text = protocol.encode_reply(worker.answer(request))
        except MachineFault as fault:
            text = protocol.encode_reply(fault)
        replies.write(text + "\n")
        replies.flush()


def _read(requests: IO[str], lines: queue.Queue[str]) -> None:
    """A thread of its own, so that a parent's death is seen in the middle of a kernel."""
    for line in requests:
        lines.put(line)
    os._exit(0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module, _, name = sys.argv[1].partition(":")
    lines: queue.Queue[str] = queue.Queue()
    try:
        threading.Thread(target=_read, args=(sys.stdin, lines), daemon=True).start()
        provider: DeviceProvider = getattr(importlib.import_module(module), name)()
        worker = ExecutorWorker(provider.executor(sys.argv[2]))
    except Exception as problem:  # a driver may raise anything; the parent needs one line
        replies.write(f"{type(problem).__name__}: {problem}".splitlines()[0] + "\n")
        replies.flush()
        fault = faults.of(problem) or faults.of_text(str(problem), module)
        raise SystemExit(faults.TEMPORARY if fault else 1) from None
    replies.write(protocol.READY + "\n")
    replies.flush()
    serve(worker, lines, replies)


if __name__ == "__main__":
    main()
