"""The disturbed machine: fusiond's own commands on the fake device, whose times are a function of the config, with the
shim of shim.c preloaded."""

import contextlib
import errno
import json
import os
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

KINDS = {
    "open": 1, "write": 2, "sync": 4, "rename": 8, "mkdir": 16, "link": 32, "truncate": 64, "spawn": 128, "read": 256,
}  # fmt: skip
"""As in shim.c."""
CAN_SAY = {
    errno.ENOSPC: ("open", "write", "sync", "rename", "mkdir", "link", "truncate"),
    errno.EIO: ("open", "write", "sync", "rename", "mkdir", "link", "truncate"),
    errno.EMFILE: ("open", "read"),
    errno.ENOMEM: ("open", "read", "rename", "mkdir", "link", "spawn"),
    errno.EAGAIN: ("spawn",),
}
"""What each error may be the answer to."""
STATE = struct.Struct("=QQQQqQ232s")
CLOCK = struct.Struct("=QQQqq")
"""Behind the state: readings of the time of day, from which on it is moved, and by how many seconds."""
JOB = "strategy: toy\nside: 3\nlabel: {label}\nsearch: {{trials: 5}}\n"
_OF_THE_STORE = re.compile(r"fusiond\.sqlite(-wal|-shm)?$|fake-0\.lock$|fusiond-\w+\.lock$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    status: int
    out: str
    err: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a job has left: its trials, its answer, the files beside the store."""

    trials: list[tuple[str, int, str, str, str]]
    answer: dict[str, Any]
    files: frozenset[str]


class Disturbed:
    """A server with the shim, and the folder of one store after the other."""

    def __init__(self, folder: Path, shim: Path, plugin: str = "tests.fakes:FakePlugin") -> None:
        self.base = folder
        self.folder = folder / "data"  #: Everything below it may be disturbed, and nothing else
        self._state = folder / "state"
        self._state.write_bytes(bytes(STATE.size + CLOCK.size))
        self.env = self._environment(shim, *plugin.split(":"))
        self.server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py"))],
            env=self.env, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.clear()

    def _environment(self, shim: Path, module: str, name: str) -> dict[str, str]:
        plugin = self.base / "plugin"
        info = plugin / "toyplugin-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toyplugin\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[fusiond]\ntoy = toyplugin:plugin\n")
        # Each attempt of a job uses up a few of the failing calls, and waits double.
        short = "tuner.FIRST_WAIT_SECS = min(tuner.FIRST_WAIT_SECS, 0.1)"
        text = f"from fusiond.tuning import tuner\nfrom {module} import {name}\n\n{short}\nplugin = {name}()\n"
        (plugin / "toyplugin.py").write_text(text)
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("FUSIOND_", "XDG_", "PYTEST"))
        }
        return kept | {
            "PYTHONPATH": os.pathsep.join([str(plugin), str(Path(__file__).parents[2])]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "LD_PRELOAD": str(shim),
            "FAULTS_STATE": str(self._state),
            "FUSIOND_DB": str(self.folder / "fusiond.sqlite"),
            "FUSIOND_CACHE": str(self.folder / "cache"),
            "FUSIOND_LOCKS": str(self.folder / "locks"),
            "TMPDIR": str(self.folder / "tmp"),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "HOME": str(self.folder),
        }

    def close(self) -> None:
        self.server.kill()
        self.server.wait()
        for pipe in (self.server.stdin, self.server.stdout):
            assert pipe is not None
            pipe.close()

    def clear(self) -> None:
        """A new, empty machine, whose clock is right."""
        self.calm()
        self.move_clock()
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("tmp", "locks", "run"):
            (self.folder / name).mkdir(parents=True, mode=0o700)

    # --- faults ---

    def calm(self) -> None:
        self._write(0, 0, 0, 0)

    def count(self, kinds: int, *, under: str = "") -> None:
        """Fail nothing, count everything of these kinds; `under`: in that folder of `folder` alone."""
        self._write(0, 0, 0, kinds, under)

    def fail(self, number: int, kinds: int, *, first: int, count: int = 3, under: str = "") -> None:
        self._write(first, count, number, kinds, under)

    @property
    def calls(self) -> int:
        return int(STATE.unpack_from(self._state.read_bytes())[0])

    @property
    def failed(self) -> int:
        return int(STATE.unpack_from(self._state.read_bytes())[1])

    def _write(self, first: int, count: int, number: int, kinds: int, under: str = "") -> None:
        with open(self._state, "r+b") as file:
            file.write(STATE.pack(0, 0, first, count, number, kinds, str(self.folder / under).encode()))

    def move_clock(self, *moves: tuple[int, int]) -> None:
        """From this reading of the time of day on, counted from now, it is so many seconds later, until the next of two
        moves."""
        (first, first_secs), (second, second_secs) = (*moves, (0, 0), (0, 0))[:2]
        with open(self._state, "r+b") as file:
            file.seek(STATE.size)
            file.write(CLOCK.pack(0, first, second, first_secs, second_secs))

    @property
    def readings(self) -> int:
        return int(CLOCK.unpack_from(self._state.read_bytes(), STATE.size)[0])

    # --- commands ---

    def fusiond(self, *words: object, in_process: bool = True) -> Said:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps({"words": [str(each) for each in words], "in_process": in_process}) + "\n")
        self.server.stdin.flush()
        return Said(**json.loads(self.server.stdout.readline()))

    def job(self, label: str = "toy", more: str = "") -> Path:
        path = self.base / f"{label}.yaml"
        path.write_text(JOB.format(label=label) + more)
        return path

    def jobs(self) -> list[tuple[str, str]]:
        """State and problem of each job, as far as there is a store."""
        path = self.folder / "fusiond.sqlite"
        if not path.is_file() or path.stat().st_size == 0:
            return []
        with contextlib.closing(sqlite3.connect(path)) as store:
            try:
                return [(state, problem or "") for state, problem in store.execute("SELECT state, problem FROM jobs")]
            except sqlite3.OperationalError:  # not made to its end
                return []

    def found(self) -> Found:
        """What is there once all is over; asserts what must hold of any store, folder and machine."""
        self.calm()
        path = self.folder / "fusiond.sqlite"
        with contextlib.closing(sqlite3.connect(path)) as store:
            assert store.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert store.execute("PRAGMA foreign_key_check").fetchall() == []
            trials = store.execute(
                "SELECT role, sequence, config, origin, outcome FROM trials ORDER BY role, sequence"
            ).fetchall()
        self.nobody_is_left()
        best = self.fusiond("best", "--workload", "toy", "--json")
        assert best.status == 0, best.err
        document = json.loads(best.out)
        kept = {name: document[name] for name in ("match", "config", "verdict", "processes", "program_key", "ended")}
        kept["unfused"] = {name: document["unfused"][name] for name in ("name", "config", "program_key")}
        # What plugins registered and what job files stood for is remembered by whoever came to it; a job does without.
        remembered = [
            each for each in self.folder.rglob("*")
            if each.is_file() and (".plugins" in each.name or each.parent.suffix == ".asked")
        ]  # fmt: skip
        alone = {each.parent for each in remembered if not set(each.parent.iterdir()) - set(remembered)}
        there = [each for each in self.folder.rglob("*") if each not in remembered and each not in alone]
        files = [each.relative_to(self.folder).as_posix() for each in there if not each.is_dir()]
        folders = [each.relative_to(self.folder).as_posix() for each in there if each.is_dir()]
        names = {each for each in files if not _OF_THE_STORE.search(each)}
        return Found(trials=trials, answer=kept, files=frozenset(names | {f"{each}/" for each in folders}))

    def nobody_is_left(self) -> None:
        """No process with this machine's environment but the server."""
        mark = str(self._state)
        limit = time.monotonic() + 20
        while left := [each for each in psutil.process_iter() if each.pid != self.server.pid and _knows(each, mark)]:
            assert time.monotonic() < limit, left
            psutil.wait_procs(left, timeout=0.02)


def _knows(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get("FAULTS_STATE") == mark
    except psutil.Error:
        return False


@pytest.fixture(scope="session")
def shim(gxx_here: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shim") / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", "-O1", "-o", path, source, "-ldl"], check=True)
    return path


@pytest.fixture(scope="module")
def machine(shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disturbed]:
    made = Disturbed(tmp_path_factory.mktemp("disturbed"), shim)
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(machine: Disturbed) -> Found:
    """What the job comes to when nothing goes wrong."""
    machine.clear()
    said = machine.fusiond("run", machine.job(), "--json")
    assert said.status == 0, said.err
    return machine.found()
