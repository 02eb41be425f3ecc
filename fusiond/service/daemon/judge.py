"""`POST /judge`: checks whether a candidate computes what a reference does, and how fast.

Each request has a process of its own, `fusiond judge`, with limits of time and memory, in which strangers' code
runs with the rights of the daemon's user: the limits keep accidents from the daemon, and no attacker. As many run at
once as there are cores, or as there are GPUs where time is measured: there each asks for the device itself, and is let
in between two measurements of a tuner's. Others wait in the order in which they came.
"""

import contextlib
import json
import os
import re
import resource
import select
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fusiond.build.working import working_folder
from fusiond.model.errors import DaemonError, DeviceError, RequestError
from fusiond.model.system import children, faults
from fusiond.model.system.tail import last_line

MOST_WAITING = 128  #: Fewer than the connections of the server, each of which may hold one
MOST_FILES = 100
SECS = 120.0
MOST_SECS = 3600.0
MOST_TRIALS = 1000
_LOOK_SECS = 0.2
_MOST_BYTES = 4_000_000  #: Of what the command writes
_NAME = re.compile(r"(?!.*(?:^|/)\.{1,2}(?:/|$))[A-Za-z0-9_.+-]{1,100}(?:/[A-Za-z0-9_.+-]{1,100}){0,8}")
_MEMORY = re.compile(r"MemoryError|bad_alloc|no memory left|out of memory|cannot allocate memory", re.IGNORECASE)
_NOTHING = dict.fromkeys(
    ("speedup", "ci95", "evidence", "registers", "spill_bytes", "occupancy", "counted", "reference", "candidate")
)


class QueueFull(DaemonError):
    """So many wait that one more is refused; it may come again after `retry_secs`."""

    retry_secs = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTexts:
    """A kernel that lies in no file: texts by relative paths, and which is judged: FILE.yaml, or FILE.py:FUNCTION."""

    main: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """The body of POST /judge, checked; a kernel is an absolute path, or texts."""

    reference: str | KernelTexts
    candidate: str | KernelTexts
    device: str = "auto"
    trials: int | None = None
    timeout_secs: float = SECS


def kernel_texts(given: Mapping[str, Any], *, where: str) -> KernelTexts:
    """`{"yaml" or "function", "files"?}`, checked: no file of it lies outside of its folder. RequestError."""
    for name in given:
        if name not in ("yaml", "function", "files"):
            raise RequestError(f"has an unknown key {name[:40]!r}; yaml, function and files are known", where=where)
    files = given.get("files") or {}
    function = given.get("function")
    if not isinstance(files, dict) or len(files) > MOST_FILES:
        raise RequestError(f"expected an object of at most {MOST_FILES} names and texts", where=f"{where}.files")
    own: dict[str, Any] = {} if function is not None else {f"{where}.yaml": given.get("yaml")}
    for name, text in [*own.items(), *files.items()]:
        if not isinstance(text, str) or any("\ud800" <= each <= "\udfff" for each in text):
            raise RequestError("is not a text", where=name[:200])
    taken = {*own, *files}
    for name in files:
        if not _NAME.fullmatch(name) or name in own or taken & set(map(str, PurePosixPath(name).parents)):
            raise RequestError(f"{name[:80]!r} is not a relative path of letters, digits and _ . + -", where=where)
    named = function.partition(":") if isinstance(function, str) else ("", "", "")
    if function is not None and ("yaml" in given or named[0] not in files or not named[2]):
        raise RequestError("expected `FILE.py:FUNCTION` of a file in `files`, and no yaml", where=f"{where}.function")
    return KernelTexts(main=function or f"{where}.yaml", files={**files, **own})


class JudgeCase:
    """One request on its way. `ruling` gives the document, or raises a FusiondError."""

    def __init__(self, stop: threading.Event) -> None:
        self.ruling: Future[dict[str, Any]]
        self._given_up = threading.Event()
        self._stop = stop

    def give_up(self) -> None:
        """Nobody waits for it any more: take it out of the queue, or end its process."""
        self._given_up.set()
        self.ruling.cancel()

    @property
    def stopped(self) -> bool:
        return self._given_up.is_set() or self._stop.is_set()


class Docket:
    """All cases of a daemon. Its methods may be called in any thread."""

    def __init__(
        self, command: Sequence[str], timed: Sequence[str], memory_bytes: int, count: Callable[[str], None]
    ) -> None:
        """`command`: `fusiond.cli.preloaded judge`, or what does as that; `timed`: the names of devices that measure
        time; `count` is told what became of each."""
        self._command = tuple(command)
        self._timed = {each.partition(":")[0] for each in timed} | ({"auto"} if timed else set())
        self._memory_bytes = memory_bytes
        self._count = count
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._cases: set[Future[dict[str, Any]]] = set()
        self._spares: deque[subprocess.Popen[bytes]] = deque()
        """One that is ready for the next case, once there was one."""
        cores = len(os.sched_getaffinity(0))
        self._on_cores = ThreadPoolExecutor(cores, thread_name_prefix="judge")
        self._on_gpus = ThreadPoolExecutor(max(1, len(timed)), thread_name_prefix="judge")

    def state(self) -> dict[str, int]:
        """How many are `running` and `waiting`."""
        cases = [each for each in tuple(self._cases) if not each.done()]
        running = sum(each.running() for each in cases)
        return {"running": running, "waiting": len(cases) - running}

    def enter(self, request: JudgeRequest) -> JudgeCase:
        """Queue a request. QueueFull; DaemonError at the daemon's end."""
        pool = self._on_gpus if request.device.partition(":")[0] in self._timed else self._on_cores
        case = JudgeCase(self._stop)
        with self._lock:
            if self.state()["waiting"] >= MOST_WAITING:
                self._count("full")
                raise QueueFull(f"{MOST_WAITING} candidates wait to be judged; try again in {QueueFull.retry_secs} s")
            try:
                case.ruling = pool.submit(self._judge, request, case)
            except RuntimeError:  # it is closed
                raise DaemonError("the daemon stops") from None
            self._cases.add(case.ruling)
        case.ruling.add_done_callback(self._forget)
        return case

    def _forget(self, ruling: Future[dict[str, Any]]) -> None:
        self._cases.discard(ruling)
        if ruling.cancelled():
            self._count("gone")

    def close(self) -> None:
        """Drop those that wait, and end those that run."""
        self._stop.set()
        for each in (self._on_cores, self._on_gpus):
            each.shutdown(wait=True, cancel_futures=True)
        while self._spares:
            _finish(self._spares.pop())

    def _judge(self, request: JudgeRequest, case: JudgeCase) -> dict[str, Any]:
        result = "failed"
        try:
            with working_folder("judge") as folder:
                found = self._ruling(request, case, folder)
            result = "right" if found["right"] else "wrong"
            return found
        except RequestError:
            result = "refused"
            raise
        except OSError as problem:
            raise faults.of_our_file(problem, "judging a candidate") from None
        finally:
            self._count("gone" if case.stopped else result)

    def _ruling(self, request: JudgeRequest, case: JudgeCase, folder: Path) -> dict[str, Any]:
        kernels = [_written(folder, role, getattr(request, role)) for role in ("reference", "candidate")]
        options = ["--json", f"--device={request.device}", f"--timeout={request.timeout_secs / 2:g}"]  # each check's
        options += [] if request.trials is None else [f"--trials={request.trials}"]
        status = self._run([*kernels, *options], request.timeout_secs, case, folder)
        out, err = (_read(folder / name).replace(f"{folder}/", "") for name in ("out", "err"))
        if status is None:
            if "waiting for" in last_line(err):  # it has not begun
                raise DaemonError(f"{request.device} is not to be had: {last_line(err)}")
            return _wrong(f"no end after {request.timeout_secs:g} s")
        document = None
        with contextlib.suppress(ValueError):
            document = json.loads(out)
        found = document if isinstance(document, dict) else {}
        if "right" in found:
            return found
        error = found.get("error") or {}
        problem, where = str(error.get("problem") or last_line(err)), str(error.get("where") or "")
        if status == RequestError.exit_status:
            raise RequestError(problem, where=where)
        if _MEMORY.search(problem) or _MEMORY.search(err):
            return _wrong(f"no end within {self._memory_bytes >> 20} MiB of memory: {problem}")
        if error.get("kind") == DeviceError.__name__:
            raise DeviceError(problem)
        raise DaemonError(f"the judge ended with {faults.signal_name(-status) if status < 0 else status}: {problem}")

    def _run(self, arguments: Sequence[str], secs: float, case: JudgeCase, folder: Path) -> int | None:
        """The exit status of the command; None where its time was up. All of its process group is gone then.
        DaemonError where nobody waits for it any more."""
        child = self._ready()
        try:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError), child.stdin:
                child.stdin.write(json.dumps({"folder": str(folder), "arguments": [*arguments]}).encode() + b"\n")
            return _end(child, time.monotonic() + secs, case)
        finally:
            _finish(child)
            if not self._spares and not self._stop.is_set():
                with contextlib.suppress(OSError):  # then the next one waits for its own
                    self._spares.append(self._started())

    def _ready(self) -> subprocess.Popen[bytes]:
        """A process that has loaded what it needs, or begins to."""
        with contextlib.suppress(IndexError):
            while (child := self._spares.pop()).poll() is not None:
                _finish(child)
            return child
        return self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
            start_new_session=True,
        )  # fmt: skip
        try:
            children.GUARD.add(child.pid)
            # Data, and not the address space, of which CUDA reserves more than there is memory.
            for limit, most in ((resource.RLIMIT_DATA, self._memory_bytes), (resource.RLIMIT_CORE, 0)):
                with contextlib.suppress(ProcessLookupError):
                    resource.prlimit(child.pid, limit, (most, most))
        except BaseException:
            _finish(child)
            raise
        return child


def _finish(child: subprocess.Popen[bytes]) -> None:
    children.kill(child)
    with child:
        child.wait()
    children.GUARD.remove(child.pid)


def _end(child: subprocess.Popen[bytes], until: float, case: JudgeCase) -> int | None:
    with open(os.pidfd_open(child.pid), "rb") as process:
        poll = select.poll()
        poll.register(process, select.POLLIN)
        while not case.stopped:
            left = until - time.monotonic()
            if left <= 0:
                return None
            if poll.poll(1000 * min(left, _LOOK_SECS)):
                return child.wait()
    raise DaemonError("the client went away, or the daemon stops")


def _written(folder: Path, role: str, kernel: str | KernelTexts) -> str:
    """The path of a kernel's document; texts are written into a folder of their own."""
    if isinstance(kernel, str):
        return kernel
    for name, text in kernel.files.items():
        path = folder / role / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return str(folder / role / kernel.main)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except FileNotFoundError:  # it has died before
        return ""


def _wrong(problem: str) -> dict[str, Any]:
    """The document where the command itself came to none."""
    return {"right": False, "problem": problem, **_NOTHING, "config": {}, "hints": [], "seeds": []}
