"""A compiler that the machine fails says nothing about its input."""

import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fusiond.build import compiler, gxx
from fusiond.build.cache import BuildCache
from fusiond.model.errors import MachineFault
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Source, SourceKind
from fusiond.model.system import children, memory

HOST = Source(name="h", text="int answer() { return 42; }\n", entries=("answer",), kind=SourceKind.HOST)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "PAUSES_SECS", (0.0, 0.0))


class Broken:
    """A compiler that does `how` instead of compiling, the first `times` times."""

    def __init__(self, folder: Path, how: str, times: int) -> None:
        folder.mkdir(exist_ok=True)
        self.count, self.path = folder / "runs", folder / "g++"
        self.count.write_text("")
        self.path.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && exec g++ --version\necho >> {self.count}\n'
            f'[ $(wc -l < {self.count}) -gt {times} ] && exec g++ "$@"\n{how}\n'
        )
        self.path.chmod(0o755)

    @property
    def runs(self) -> int:
        return len(self.count.read_text().splitlines())


MACHINE = [
    "kill -9 $$", "kill -TERM $$", "echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1",
    "echo '/tmp/x.s: fatal error: error writing to /tmp/x.s: No space left on device' >&2; exit 1",
    "echo 'cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes' >&2; exit 1",
    "echo 'g++: fatal error: cannot execute cc1plus: vfork: Resource temporarily unavailable' >&2; exit 1",
]  # fmt: skip


@pytest.mark.usefixtures("gxx_here")
@pytest.mark.parametrize("how", MACHINE)
def test_what_the_machine_did_to_it_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    broken = Broken(tmp_path / "bin", how, 2)
    monkeypatch.setenv("FUSIOND_CXX", str(broken.path))
    assert isinstance(gxx.build(HOST, cache=BuildCache(tmp_path / "cache")), Path)
    assert broken.runs == 3


@pytest.mark.usefixtures("gxx_here")
@pytest.mark.parametrize("how", MACHINE)
def test_what_does_not_pass_is_the_machines_fault_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(memory, "mostly_free", lambda: False)
    cache = BuildCache(tmp_path / "cache")
    broken = Broken(tmp_path / "bin", how, 3)
    monkeypatch.setenv("FUSIOND_CXX", str(broken.path))
    with pytest.raises(MachineFault, match=r"^g\+\+"):
        gxx.build(HOST, cache=cache)
    assert not list(cache.folder.rglob("*.no"))
    assert isinstance(gxx.build(HOST, cache=cache), Path)


@pytest.mark.usefixtures("gxx_here")
def test_a_compiler_that_dies_by_itself_every_time_dies_of_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = BuildCache(tmp_path / "cache")
    broken = Broken(tmp_path / "bin", "kill -SEGV $$", 9)
    monkeypatch.setenv("FUSIOND_CXX", str(broken.path))
    for _ in range(2):
        found = gxx.build(HOST, cache=cache)
        assert isinstance(found, BuildFailed)
        assert found.reason == "g++ dies of SIGSEGV on it"
    assert broken.runs == 3  # the second answer is from the cache


@pytest.mark.usefixtures("gxx_here")
@pytest.mark.parametrize(
    "text",
    [
        "#error No space left on device\n",
        'static_assert(false, "Killed signal terminated program cc1plus");\n',
        '#pragma GCC error "No space left on device"\n',
        "int x = MemoryError;\n",
        "#include <MemoryError.h>\n",
        '__attribute__((error("Too many open files"))) void f(); void g() { f(); }\n',
    ],
)
def test_what_a_source_says_is_its_own(tmp_path: Path, text: str) -> None:
    source = Source(name="h", text=text, entries=(), kind=SourceKind.HOST)
    found = gxx.build(source, cache=BuildCache(tmp_path))
    assert isinstance(found, BuildFailed)
    assert found.reason.startswith("h.cpp:1: ")


# --- a compiler that uses up the memory ---

OUT_OF_MEMORY = "echo 'cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes' >&2; exit 1"
PART_KILLED = "echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1"
HUGE = "\n".join(
    ["#define A 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1",
     *(f"#define {each} {','.join(16 * [before])}" for before, each in ("AB", "BC", "CD", "DE")),
     "int x[] = {E, E, E, E};"]
)  # fmt: skip
"""Four million numbers: g++ wants most of a gigabyte."""


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says how many processes the system kills for want of memory while a compiler runs; the memory is free."""
    monkeypatch.setattr(memory, "mostly_free", lambda: True)

    def each_run(number: int) -> None:
        counted = itertools.count()
        # Request before and after.
        monkeypatch.setattr(memory, "out_of_memory_kills", lambda: number * ((next(counted) + 1) // 2))

    each_run(0)
    return each_run


@pytest.mark.parametrize("how", ["kill -9 $$", PART_KILLED, OUT_OF_MEMORY])
@pytest.mark.usefixtures("gxx_here")
def test_a_source_whose_compiler_uses_up_the_memory_is_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: Callable[[int], None], how: str
) -> None:
    kills(1)
    cache = BuildCache(tmp_path / "cache")
    broken = Broken(tmp_path / "bin", how, 3)
    monkeypatch.setenv("FUSIOND_CXX", str(broken.path))
    found = gxx.build(HOST, cache=cache)
    assert isinstance(found, BuildFailed)
    assert found.reason.startswith("g++ used up the memory, 2 times, alone: ")
    assert broken.runs == 3
    assert isinstance(gxx.build(HOST, cache=cache), Path)  # not kept


@pytest.mark.slow
@pytest.mark.usefixtures("gxx_here")
def test_a_limit_of_memory_is_met_by_what_needs_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "mostly_free", lambda: True)
    limited = tmp_path / "g++"
    limited.write_text('#!/bin/sh\nulimit -v 400000\nexec g++ "$@"\n')
    limited.chmod(0o755)
    monkeypatch.setenv("FUSIOND_CXX", str(limited))
    cache = BuildCache(tmp_path / "cache")
    assert isinstance(gxx.build(HOST, cache=cache), Path)
    found = gxx.build(dataclasses.replace(HOST, text=HUGE, entries=()), cache=cache)
    assert isinstance(found, BuildFailed)
    assert "used up the memory" in found.reason


def test_one_alone_waits_for_the_others_and_keeps_them_out() -> None:
    turns = compiler.Turns()
    order: list[str] = []

    def take(name: str, alone: bool) -> None:
        with turns.taken(alone=alone):
            order.append(name)

    with turns.taken(alone=False), turns.taken(alone=False):
        alone = threading.Thread(target=take, args=("alone", True))
        alone.start()
        while not turns._alone:
            os.sched_yield()
        later = threading.Thread(target=take, args=("later", False))
        later.start()
        assert order == []
    for each in (alone, later):
        each.join()
    assert order == ["alone", "later"]
    with turns.taken(alone=True):
        assert (turns._running, turns._alone) == (1, 1)
    assert (turns._running, turns._alone) == (0, 0)


# --- children that end with us ---

STARTS_A_FAMILY = "sleep 1000 & echo $! >> {pids}; echo $$ >> {pids}; sleep 1000"


def test_a_time_out_ends_what_the_compiler_started_too(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(subprocess.TimeoutExpired):
        children.run(["sh", "-c", STARTS_A_FAMILY.format(pids=pids)], timeout_secs=0.5)
    family = [int(line) for line in pids.read_text().split()]
    assert len(family) == 2
    deadline = time.monotonic() + 5  # what is killed takes a moment to go
    while any(map(_runs, family)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("guard", ["alive", "killed before"])
def test_a_compiler_and_its_children_end_with_whoever_is_killed(tmp_path: Path, guard: str) -> None:
    pids = tmp_path / "pids"
    program = f"""
import os, signal
from fusiond.model.system import children, memory
if {guard!r} == "killed before":
    children.run(["true"], timeout_secs=10)
    os.kill(children.GUARD._shell.pid, signal.SIGKILL)
    children.GUARD._shell.wait()
print("ready", flush=True)
children.run(["sh", "-c", {STARTS_A_FAMILY.format(pids=pids)!r}], timeout_secs=1000)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        while not pids.exists() or len(pids.read_text().split()) < 2:
            assert parent.poll() is None
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        parent.stdout.close()  # type: ignore[union-attr]
    family = [psutil.Process(int(each)) for each in pids.read_text().split() if _runs(int(each))]
    assert psutil.wait_procs(family, timeout=20)[1] == []


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
