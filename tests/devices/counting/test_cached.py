"""What was counted is counted once, and anew as soon as anything that decides it has changed."""

import dataclasses
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import fusiond
from fusiond.build import nvcc, nvdisasm
from fusiond.build.cache import BuildCache
from fusiond.devices.counting import cached, child_process
from fusiond.devices.counting.kernels import CountError
from fusiond.devices.counting.model import H100, H200
from fusiond.devices.counting.run import Counted, CountRow
from fusiond.model.errors import MachineFault
from fusiond.model.program import HostCall, Launch, Program, Source, SourceKind
from tests.fakes import fake_program

PROGRAM = fake_program("k")


class Counting:
    """In the place of `run.count`: how often it ran, and with what."""

    def __init__(self, folder: Path) -> None:
        self.calls: list[dict[str, Any]] = []
        self.cache = BuildCache(folder)

    def __call__(self, program: Any, **given: Any) -> Counted:
        self.calls.append({"program": program, **given})
        name = given["gpu"].name
        row = CountRow(program="as run", launch="k", kernel="k", dram_bytes=len(self.calls), bound_us=1.5, model=name)
        return Counted(rows=(row,), outputs={}, bound_us=2.5, lines={})

    def rows(self, **changed: Any) -> list[dict[str, Any]]:
        given = {"program": PROGRAM, "gpu": H100, "cache": self.cache, **changed}
        return cached.counted(given.pop("program"), given.pop("gpu"), **given)


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counting:
    found = Counting(tmp_path / "cache")
    monkeypatch.setattr(cached, "count", found)
    monkeypatch.setattr(nvcc, "version", lambda: "13.0.88")
    monkeypatch.setattr(nvdisasm, "find", lambda: None)
    return found


def test_the_second_time_nothing_is_counted_and_the_label_is_that_of_who_asks(counting: Counting) -> None:
    first = counting.rows(label="native")
    assert first == [
        {
            **dataclasses.asdict(
                CountRow(program="native", launch="k", kernel="k", dram_bytes=1, bound_us=1.5, model="h100")
            ),
            "program_bound_us": 2.5,
        }
    ]
    assert counting.rows(label="seed 0") == [{**first[0], "program": "seed 0"}]
    assert json.loads(json.dumps(first)) == first
    assert len(counting.calls) == 1
    assert counting.calls[0]["gpu"] is H100


(STEP,) = PROGRAM.steps
ASKED: dict[str, dict[str, Any]] = {
    "another program": {"program": fake_program("k", 11.0)},
    "another launch": {"program": dataclasses.replace(PROGRAM, steps=(dataclasses.replace(STEP, grid=(2, 1, 1)),))},  # type: ignore[call-arg]
    "another gpu": {"gpu": H200},
    "calibrated": {"gpu": H100.calibrated({"copy_gbs": 3000.0})},
    "another seed": {"seed": 1},
    "whole": {"budget": None},
    "smaller budget": {"budget": 1000},
}
AROUND: dict[str, tuple[Any, str, Any]] = {
    "another nvcc": (nvcc, "version", lambda: "13.1.0"),
    "with nvdisasm": (nvdisasm, "find", lambda: Path("/opt/cuda/bin/nvdisasm")),
    "another fusiond": (fusiond, "__version__", "99.0"),
    "other code": (cached, "_code", lambda: "other"),
}


@pytest.mark.parametrize("change", [*ASKED, *AROUND])
def test_whatever_decides_it_is_in_the_key(counting: Counting, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    counting.rows()
    if change in AROUND:
        monkeypatch.setattr(*AROUND[change])
    for _ in range(2):
        assert counting.rows(**ASKED.get(change, {}))[0]["dram_bytes"] == 2
    assert len(counting.calls) == 2
    monkeypatch.undo()


def test_a_damaged_file_is_counted_anew_and_kept_again(
    counting: Counting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counting.rows()
    (kept,) = tmp_path.joinpath("cache").rglob("*.json")
    kept.write_bytes(kept.read_bytes().replace(b'"dram_bytes": 1', b'"dram_bytes": 7'))
    counting.cache = BuildCache(tmp_path / "cache")  # as another process: this one has compared it already
    assert counting.rows()[0]["dram_bytes"] == 2
    assert "is damaged, and is built anew" in caplog.text
    assert counting.rows()[0]["dram_bytes"] == 2
    assert len(counting.calls) == 2


def test_what_cannot_be_counted_is_not_kept(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(program: Any, **given: Any) -> Counted:
        raise CountError("k.cu does not build")

    with monkeypatch.context() as broken:
        broken.setattr(cached, "count", refused)
        for _ in range(2):
            with pytest.raises(CountError, match="does not build"):
                counting.rows()
    assert counting.rows()[0]["dram_bytes"] == 1


# --- counting in child processes ------------------------------------------------------------------------


IN_A_CHILD = Program(
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


def rows_of(program: Program = IN_A_CHILD, timeout_secs: float = 60.0) -> list[tuple[str, str, str, str | None]]:
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
    found = child_process.counted(dict.fromkeys(("native", "bad", "seed 1"), IN_A_CHILD), model="l4", whole=True)
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
