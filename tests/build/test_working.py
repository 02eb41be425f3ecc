"""Compilers' folders: private, and found again when their process was killed."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fusiond.build import working
from fusiond.build.working import place, sweep, working_folder
from fusiond.model.errors import MachineFault

WORKS = """
import sys
from fusiond.build.working import working_folder
with working_folder("gxx") as folder:
    (folder / "object.o").write_bytes(b"x" * 1000)
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUSIOND_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("umask", [0, 0o077])
def test_it_is_private_whatever_the_umask_is(umask: int) -> None:
    place().mkdir(parents=True)
    before = os.umask(umask)
    try:
        with working_folder("gxx") as folder:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert folder.parent == place()
    finally:
        os.umask(before)
    assert not folder.exists()


def test_it_goes_when_the_block_fails() -> None:
    with pytest.raises(ZeroDivisionError), working_folder("gxx") as folder:
        raise ZeroDivisionError
    assert list(place().iterdir()) == []
    assert not folder.exists()


def test_what_a_killed_process_leaves_is_swept_and_what_is_in_use_is_not() -> None:
    process = subprocess.Popen([sys.executable, "-c", WORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process, working_folder("mine") as mine:
        folder = Path(process.stdout.readline().strip())
        assert sweep() == 0
        assert folder.is_dir()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert folder.is_dir()
        assert sweep() == 1000
        assert not folder.exists()
        assert mine.is_dir()


def test_a_folder_that_is_swept_while_it_is_made_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = working.tempfile.mkdtemp

    def swept_once(prefix: str, dir: Path) -> str:
        folder = real(prefix=prefix, dir=dir)
        made.append(folder)
        if len(made) == 1:
            sweep()
        return folder

    monkeypatch.setattr(working.tempfile, "mkdtemp", swept_once)
    with working_folder("gxx") as folder:
        assert [str(folder)] == made[1:]
        assert folder.is_dir()


def test_a_full_disk_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(prefix: str, dir: Path) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(working.tempfile, "mkdtemp", full)
    with pytest.raises(MachineFault, match="no space left on the disk"):
        working_folder("gxx").__enter__()
