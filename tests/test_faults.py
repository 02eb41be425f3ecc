"""Whose fault it is."""

from __future__ import annotations

import errno
import signal

import pytest

from fusiond.model.system import faults


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
