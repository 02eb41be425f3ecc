"""What the system gives: the last words of children, whose fault an error is, the driver's version, memory, folders."""

import errno
import os
import resource
import signal
import stat
import threading
from pathlib import Path

import psutil
import pytest

from fusiond.model.errors import RequestError
from fusiond.model.system import driver, faults, files, memory
from fusiond.model.system.tail import KEPT_BYTES, Tail, last_line


def test_what_a_child_writes_is_kept_to_its_end() -> None:
    """A kernel that prints for every thread fills neither the disk nor the memory."""
    read, write = os.pipe()
    tail = Tail(os.fdopen(read, "rb"))
    with os.fdopen(write, "wb") as pipe:
        for line in range(300_000):
            pipe.write(b"thread %d says hello\n" % line)
    text = tail.text()
    assert len(text) <= KEPT_BYTES
    assert text.endswith("thread 299999 says hello\n")


def test_whoever_listens_hears_all_of_it() -> None:
    read, write = os.pipe()
    heard: list[str] = []
    tail = Tail(os.fdopen(read, "rb"), heard.append)
    os.write(write, b"said \xff before\n")
    os.close(write)
    assert tail.text() == "said \ufffd before\n"
    assert heard == ["said \ufffd before"]


def test_the_last_line() -> None:
    assert Tail().text() == ""
    assert last_line("") == ""
    assert last_line("first\n  last  \n\n") == "last"
    assert last_line("x" * 600) == "x" * 500


# --- whose fault it is ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO])
def test_what_the_machine_lacks_is_its_fault(number: int) -> None:
    found = faults.of_system(OSError(number, "said"), "writing a file")
    assert found is not None
    assert str(found).startswith("writing a file: ")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EISDIR])
def test_a_missing_or_a_closed_file_may_be_anybodys(number: int) -> None:
    assert faults.of_system(OSError(number, "said"), "writing a file") is None


def test_a_process_is_killed_from_outside_or_dies_of_its_own_doing() -> None:
    killed = faults.of_end(-signal.SIGKILL, "g++")
    assert killed is not None
    assert "SIGKILL" in str(killed)
    assert faults.of_end(-signal.SIGSEGV, "g++") is None
    assert faults.of_end(1, "g++") is None
    assert faults.of_end(0, "g++") is None


OF_THE_INPUT = [
    "x.cu:3:10: error: 'MemoryError' was not declared in this scope",
    "x.cu:3:10: error: no matching function for call to 'std::bad_alloc::bad_alloc(int)'",
    "x.cu: In function 'void f(std::bad_alloc)':",
    "x.cu:1:19: error: No space left on device",  # #pragma GCC error
    "x.cu:4:6: error: call to 'f' declared with attribute error: Too many open files",
    "x.cu:1:10: fatal error: MemoryError.h: No such file or directory",
    "x.cu:1:10: fatal error: Too many open files: No such file or directory",
    'x.cu(3): error: identifier "virtual memory exhausted" is undefined',
    "    1 | #include <Input/output error>",
    "      y = 1; // Cannot allocate memory",
]
OF_THE_MACHINE = [
    "/tmp/x.cpp:1: fatal error: error writing to /tmp/x.s: No space left on device",
    "x.cu:1:10: fatal error: x.h: Too many open files",
    "/tmp/x.s:9: Fatal error: can't write 11 bytes to section .text of x.o: No space left on device",
    "/usr/bin/ld: final link failed: No space left on device",
    "/usr/bin/ld: cannot open output file x.so: Read-only file system",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
]


@pytest.mark.parametrize("line", OF_THE_INPUT)
def test_what_a_compiler_says_of_its_input_is_no_fault_of_the_machine(line: str) -> None:
    assert faults.of_compiler(line, "g++") is None


@pytest.mark.parametrize("line", OF_THE_MACHINE)
def test_what_a_compiler_lacks_is(line: str) -> None:
    assert faults.of_compiler(f"x.cu: In function 'f':\n{line}\n", "g++") is not None


def test_python_says_it_in_its_own_words() -> None:
    assert faults.of_text("RuntimeError: can't start new thread", "a worker") is not None
    assert faults.first_said(["fine", "MemoryError: std::bad_alloc"]) == "MemoryError: std::bad_alloc"


# --- the driver's version, from the kernel --------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 2023\nGCC 11.4.0\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n", "580.65.06"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57  x\n", "470.57"),
        ("something else\n", None),
        ("", None),
    ],
)  # fmt: skip
def test_version(tmp_path: Path, text: str, version: str | None) -> None:
    path = tmp_path / "version"
    path.write_text(text)
    assert driver.version(str(path)) == version


# --- memory ---------------------------------------------------------------------------------------------


def test_what_this_machine_says() -> None:
    found = psutil.virtual_memory()
    assert memory._number(memory._AMOUNTS, r"^MemTotal: +(\d+) kB$") == found.total >> 10
    kills = memory.out_of_memory_kills()
    assert kills is None or kills >= 0


@pytest.mark.parametrize(("available_kb", "free"), [(500, True), (499, False), (None, False)])
def test_half_of_it_is_mostly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available_kb: int | None, free: bool
) -> None:
    amounts = tmp_path / "meminfo"
    amounts.write_text(
        "MemTotal:  1000 kB\nMemFree: 900 kB\n" + f"MemAvailable: {available_kb} kB\n" * bool(available_kb)
    )
    monkeypatch.setattr(memory, "_AMOUNTS", amounts)
    assert memory.mostly_free() is free


def test_a_system_that_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_KILLS", tmp_path / "vmstat")
    monkeypatch.setattr(memory, "_AMOUNTS", tmp_path / "meminfo")
    assert memory.out_of_memory_kills() is None
    assert not memory.mostly_free()
    memory._KILLS.write_text("oom_kill_elsewhere 3\n")
    assert memory.out_of_memory_kills() is None
    memory._KILLS.write_text("pgfault 1\noom_kill 17\n")
    assert memory.out_of_memory_kills() == 17


# --- folders that nobody else may enter -----------------------------------------------------------------


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_it_is_made_with_its_mode_whatever_the_umask_is(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        folder = files.private_folder(tmp_path / "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert files.private_folder(folder) == folder


def test_what_is_there_is_checked(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o750)
    (tmp_path / "file").write_text("")
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "private")
    for name, problem in (("open", "others may enter"), ("file", "expected a folder"), ("link", "expected a folder")):
        with pytest.raises(RequestError, match=problem):
            files.private_folder(tmp_path / name)
    with pytest.raises(RequestError, match="cannot be made"):
        files.private_folder(tmp_path / "file" / "x")


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user takes root")
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 65534, 65534)
    with pytest.raises(RequestError, match="belongs to another user"):
        files.private_folder(tmp_path / "theirs")


def test_the_runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert files.runtime_folder() == tmp_path / "fusiond"
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    for elsewhere in ("", str(tmp_path / "gone")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", elsewhere)
        assert files.runtime_folder() == tmp_path / "tmp" / f"fusiond-{os.geteuid()}"
        assert stat.S_IMODE(files.runtime_folder().stat().st_mode) == 0o700


def test_a_folder_is_removed_when_the_descriptors_are_there_again(tmp_path: Path) -> None:
    (tmp_path / "work" / "deep").mkdir(parents=True)
    (tmp_path / "work" / "deep" / "file").write_text("")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soon = threading.Timer(0.1, resource.setrlimit, (resource.RLIMIT_NOFILE, limits))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        soon.start()
        files.discard(tmp_path / "work")
    finally:
        soon.join()
    assert not (tmp_path / "work").exists()


def test_a_folder_that_is_not_there_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(files.time, "sleep", waits.append)
    files.discard(tmp_path / "none")
    assert sum(waits) == 0
