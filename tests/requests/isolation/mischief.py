"""A plugin that does to its process whatever a job says; children load it by this module's name."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fusiond.model.nouns import Analysis, Config, Job, Rejection, Workload
from fusiond.model.outcomes import Trial
from fusiond.model.program import Program
from fusiond.requests.registry import Registry
from fusiond.strategy import Answers, Inputs, Target
from fusiond.strategy.hookspecs import hookimpl
from fusiond.strategy.space import Space
from tests.fakes import FakePlugin, ToyStrategy


def _segfault() -> None:
    ctypes.string_at(0)


def _overflow() -> None:
    """Of the C stack, as a parser that recurses: sorted calls itself through C."""
    code = "f = lambda: sorted([0], key=lambda _: f())\nf()"
    import sys

    sys.setrecursionlimit(10**9)
    exec(code, {})


def _forever() -> None:
    while True:
        time.sleep(0.01)


def _eat() -> None:
    bytearray(1 << 40)


def _once_only(how: Callable[[], None]) -> Callable[[], None]:
    """Only the first time in a file's life: what is a fault of the machine's goes away."""

    def act() -> None:
        marker = Path(os.environ["MISCHIEF"])
        if not marker.exists():
            marker.write_text("")
            how()

    return act


DEEDS: dict[str, Callable[[], None]] = {
    "segfault": _segfault, "overflow": _overflow, "abort": os.abort, "exit": lambda: os._exit(0), "forever": _forever,
    "eat": _eat, "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "kill-once": _once_only(lambda: os.kill(os.getpid(), signal.SIGKILL)), "segfault-once": _once_only(_segfault),
    "kill-parent-once": _once_only(lambda: os.kill(os.getppid(), signal.SIGKILL)), "raise": lambda: [][0],
    "print": lambda: print("out of the way"),
}  # fmt: skip


def _do(word: str) -> None:
    DEEDS.get(word, lambda: None)()


class Mischief(ToyStrategy):
    name = "mischief"
    job_keys = ("side", "unfused", "faults", "label", "file", "files", "analyse", "space", "emit", "slow")

    def parse(self, job: Job, inputs: Inputs) -> Workload:
        for path in job.request.get("files", ()):
            for line in inputs.text(path, where="files").splitlines():
                _do(line.strip())
        workload = super().parse(job, inputs)
        return Workload(
            strategy=self.name, strategy_version=1, name=workload.name, members=workload.members, sizes=workload.sizes,
            content=workload.content, payload={**workload.payload, **dict(job.request)},
        )  # fmt: skip

    def analyse(self, workload: Workload, target: Target) -> Analysis:
        _do(workload.payload.get("analyse", ""))
        return super().analyse(workload, target)

    def space(self, analysis: Analysis, answers: Answers) -> Space:
        _do(analysis.workload.payload.get("space", ""))
        return super().space(analysis, answers)

    def emit(self, analysis: Analysis, config: Config, answers: Answers) -> Program | Rejection:
        deeds = analysis.workload.payload.get("emit", {})
        _do(deeds.get(f"{config['x']},{config['y']}", ""))
        return super().emit(analysis, config, answers)


class Listener:
    """Counts what it hears in a file, and dies of the third trial."""

    @hookimpl
    def trial_finished(self, trial: Trial) -> None:
        heard = Path(os.environ["MISCHIEF"])
        said = heard.read_text() if heard.exists() else ""
        heard.write_text(said + f"{trial.sequence} in {os.getpid()}\n")
        if trial.sequence == 2:
            _segfault()


class Plugin(FakePlugin):
    @hookimpl
    def register_strategies(self, register: Callable[[ToyStrategy], None]) -> None:
        register(ToyStrategy())
        register(Mischief())


def registry() -> Registry:
    found = Registry()
    found.add(Plugin(), "mischief")
    return found


def listening() -> Registry:
    found = registry()
    found.add(Listener(), "listener")
    return found


def deadly() -> Registry:
    os.kill(os.getpid(), signal.SIGSEGV)
    return registry()


def hanging() -> Registry:
    threading.Event().wait()
    return registry()
