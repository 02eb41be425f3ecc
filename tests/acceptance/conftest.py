"""The real process: `python -m fusiond` with a store in a folder, and the toy strategy on the fake device as a
stranger's plugin (an entry point on PYTHONPATH), so that nothing here needs a compiler or a GPU."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fusiond.service.client.client import Client
from fusiond.service.daemon import lock
from fusiond.service.daemon import socket as sockets
from tests.finished_command import FinishedCommand

PATIENCE_SECS = 40.0


@dataclass(frozen=True, slots=True)
class Machine:
    """A folder with a store in it, and the environment of every process started there."""

    folder: Path
    env: dict[str, str]
    started: list[subprocess.Popen[str]]  #: Killed when the test ends, however it ends

    @property
    def database(self) -> Path:
        return self.folder / "fusiond.sqlite"

    def fusiond(self, *words: object, timeout: float = PATIENCE_SECS) -> FinishedCommand:
        """Run one command to its end. No command may ever show a traceback."""
        done = subprocess.run(
            [sys.executable, "-m", "fusiond", *map(str, words)], cwd=self.folder, env=self.env, capture_output=True,
            text=True, timeout=timeout,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return FinishedCommand(done.returncode, done.stdout, done.stderr)

    def start(self, *words: object) -> subprocess.Popen[str]:
        """Start a command; its output goes into files beside the store."""
        name = f"{words[0]}-{time.monotonic_ns()}"
        with open(self.folder / f"{name}.out", "w") as out, open(self.folder / f"{name}.err", "w") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "fusiond", *map(str, words)], cwd=self.folder, env=self.env, stdout=out,
                stderr=err, text=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def said(self, command: str) -> str:
        """What the last process of that command wrote to standard error."""
        return sorted(self.folder.glob(f"{command}-*.err"))[-1].read_text()

    def printed(self, command: str) -> str:
        """What it wrote to standard output."""
        return sorted(self.folder.glob(f"{command}-*.out"))[-1].read_text()

    def job(self, name: str = "job.yaml", *, trials: int = 6, side: int = 8, more: str = "") -> Path:
        """Write a job file for the toy strategy; `side: 40` is long enough to be interrupted."""
        path = self.folder / name
        path.write_text(f"strategy: toy\nside: {side}\nlabel: {path.stem}\nsearch: {{trials: {trials}}}\n{more}")
        return path

    def show(self, job: str) -> Any:
        return self.fusiond("show", job, "--json").json

    def wait_for(self, what: Callable[[], bool], *, about: str) -> None:
        """Poll until it holds."""
        limit = time.monotonic() + PATIENCE_SECS
        while not what():
            assert time.monotonic() < limit, f"{about} did not happen: {self._errors()}"
            time.sleep(0.05)

    def state(self, job: str) -> str:
        """As the store has it, without a process."""
        with Client(db=self.database) as client:
            return client.show(job).state.value

    def trials(self, job: str) -> int:
        with Client(db=self.database) as client:
            return client.show(job).trials

    @contextlib.contextmanager
    def serving(self, *words: object) -> Iterator[subprocess.Popen[str]]:
        """A daemon, until the block ends (killed if it is still there)."""
        process = self.start("serve", *words)
        try:
            self.wait_for(lambda: process.poll() is not None or self._answers(), about="the daemon's answer")
            yield process
        finally:
            self.kill(process)

    def kill(self, process: subprocess.Popen[str]) -> None:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_SECS)

    def _answers(self) -> bool:
        holder = lock.holder(self.database)
        return holder is not None and sockets.answers(holder.socket)

    def _errors(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.err"))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    plugin = tmp_path / "plugin"
    info = plugin / "toyplugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toyplugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fusiond]\ntoy = toyplugin:plugin\n")
    (plugin / "toyplugin.py").write_text("from tests.fakes import FakePlugin\n\nplugin = FakePlugin()\n")
    root = Path(__file__).parents[2]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("FUSIOND_", "XDG_"))}
    env |= {
        "PYTHONPATH": os.pathsep.join([str(plugin), str(root)]),
        "FUSIOND_DB": str(tmp_path / "fusiond.sqlite"),
        "FUSIOND_CACHE": str(tmp_path / "cache"),
        "FUSIOND_LOCKS": str(tmp_path),
        "HOME": str(tmp_path),
    }
    found = Machine(tmp_path, env, [])
    yield found
    for process in found.started:
        found.kill(process)


@pytest.fixture
def end() -> Callable[[subprocess.Popen[str], signal.Signals], int]:
    """Send a signal and wait: the exit status (negative: the signal that killed it)."""

    def send(process: subprocess.Popen[str], number: signal.Signals) -> int:
        process.send_signal(number)
        return process.wait(PATIENCE_SECS)

    return send
