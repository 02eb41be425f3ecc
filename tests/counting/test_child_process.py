"""Counting in child processes: what a program breaks is rows that say why, what the machine lacks is raised."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from fusiond.devices.counting import child_process
from fusiond.model.errors import MachineFault
from fusiond.model.program import HostCall, Launch, Program, Source, SourceKind
from fusiond.testing.fakes import fake_program

PROGRAM = Program(
    name="pair",
    buffers=(),
    sources=fake_program("k").sources,
    steps=tuple(
        Launch(name=name, source="k", entry="k", grid=(1, 1, 1), block=(32, 1, 1), arguments=(), after=after)
        for name, after in (("first", ()), ("second", ("first",)))
    ),
)


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """A shell script in the place of the Python that counts; the file in which it finds its words, one a line."""
    words, script = tmp_path / "words", tmp_path / "python"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {words}\n{text}\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return words


def rows_of(program: Program = PROGRAM, timeout_secs: float = 60.0) -> list[tuple[str, str, str, str | None]]:
    found = child_process.counted({"native": program}, model="h100", timeout_secs=timeout_secs)
    for each in found:
        assert (each["bound_us"], each["dram_bytes"], each["program_bound_us"]) == (None, None, None)
    return [(each["program"], each["launch"], each["kernel"], each["failed"]) for each in found]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *(
            (f"kill -{name} $$", f"counting died of SIG{name}")
            for name in ("SEGV", "ABRT", "BUS", "FPE", "ILL", "TRAP", "SYS")
        ),
        ("echo 'k.cu does not build: k.cu:3: expected a kernel' >&2; exit 1",
         "k.cu does not build: k.cu:3: expected a kernel"),
        ("exit 3", "counting ended with status 3"),
        ("echo hello", "what was written is not counts: does host code write to standard output?"),
        ("echo '[]'", "what was written is not counts: does host code write to standard output?"),
        ("echo '{\"counted\": 5}'", "what was written is not counts: does host code write to standard output?"),
        ("echo '{\"counted\": [5]}'", "what was written is not counts: does host code write to standard output?"),
        ("echo '{\"rows\": []}'; echo last words >&2", "last words"),
    ],
)  # fmt: skip
def test_what_a_program_breaks_is_a_row_for_each_launch_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    stand_in(tmp_path, monkeypatch, text)
    assert rows_of() == [("native", "first", "k", why), ("native", "second", "k", why)]


def test_one_that_hangs_is_ended_with_what_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child of the child would hold the pipes open for an hour."""
    stand_in(tmp_path, monkeypatch, "sleep 3600 &\nwait")
    why = "not counted: it takes longer than 0.5 s"
    assert [each[-1] for each in rows_of(timeout_secs=0.5)] == [why, why]


def test_what_the_machine_lacks_is_the_machines_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "echo more >&2; echo 'no space left on the disk' >&2; exit 75")
    with pytest.raises(MachineFault, match=r"^no space left on the disk$"):
        rows_of()


def test_programs_keep_their_order_and_one_that_dies_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = shlex.quote(json.dumps({"counted": [{"program": "LABEL", "failed": None}]}))
    words = stand_in(
        tmp_path, monkeypatch,
        f'case "$*" in *"--label bad"*) kill -SEGV $$ ;; esac\n'
        f'echo {good} | sed "s/LABEL/$(echo "$*" | sed "s/.*--label //; s/ --gpu.*//")/"',
    )  # fmt: skip
    found = child_process.counted(dict.fromkeys(("native", "bad", "seed 1"), PROGRAM), model="l4", whole=True)
    assert [each["program"] for each in found] == ["native", "bad", "bad", "seed 1"]
    assert [each["failed"] for each in found] == [None, *["counting died of SIGSEGV"] * 2, None]
    said = words.read_text().splitlines()
    assert said[:2] == ["-m", "fusiond.devices.cpu.count"]
    assert {"--json", "--whole"} <= set(said)
    assert said[-2:] == ["--gpu", "l4"]


HOST = """
#include <cstdio>
#include <cstdlib>
extern "C" void host() { %s }
"""


@pytest.mark.needs_nvcc
@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("abort();", "counting died of SIGABRT"),
        ("for (volatile int i = 0;; ++i) {}", "not counted: it takes longer than"),
        ('puts("hello");', "what was written is not counts"),
        ('fputs("and more", stderr); exit(3);', "and more"),
    ],
)
def test_host_code_that_misbehaves(body: str, why: str) -> None:
    """The same without a stand-in."""
    program = Program(
        name="host",
        buffers=(),
        sources=(Source(name="k", text='extern "C" __global__ void k() {}\n', entries=("k",)),
                 Source(name="host", text=HOST % body, entries=("host",), kind=SourceKind.HOST)),
        steps=(
            HostCall(name="call", source="host", entry="host", arguments=()),
            Launch(name="run", source="k", entry="k", grid=(1, 1, 1), block=(32, 1, 1), arguments=(), after=("call",)),
        ),
    )  # fmt: skip
    child_process.counted({"warm": program}, model="h100", timeout_secs=0.001)
    found = child_process.counted({"native": program}, model="h100", timeout_secs=30.0 if "for" not in body else 4.0)
    assert [each["launch"] for each in found] == ["run"]
    assert why in found[0]["failed"]
