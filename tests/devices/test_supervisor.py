"""The child process: what becomes of every way in which a candidate can go wrong, and that the next one is none the
worse for it."""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices import protocol
from fusiond.devices import supervisor as supervising
from fusiond.devices.cpu.provider import CpuProvider
from fusiond.devices.protocol import Checked, CheckRequest, Reference, SampleRequest
from fusiond.devices.supervisor import Supervisor
from fusiond.devices.timing import Sampling
from fusiond.model.errors import DeviceError, MachineFault
from fusiond.model.outcomes import BuildFailed, MeasureFailed, Measurement, Outcome, Purpose
from fusiond.model.program import Buffer, Fill, Launch, Pointer, Program, Role, Source
from tests.fakes import FakeProvider, fake_program

PLAN = Sampling(purpose=Purpose.SEARCH)

References = tuple[tuple[int, str], ...]
Bundle = Callable[..., str]


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    def make(fault: str = "", cost_us: float = 10.0) -> str:
        made = fake_program("s", cost_us, fault)
        binary = FakeProvider().build(made.sources[0], "fake")
        assert not isinstance(binary, BuildFailed)
        folder = tmp_path / "bundles" / made.key
        write_bundle(folder, made, {"s": binary.path})
        return str(folder)

    return make


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    provider = FakeProvider()
    made = Supervisor(provider, provider.devices()[0])
    yield made
    made.close()


@pytest.fixture
def references(supervisor: Supervisor, bundle: Bundle, tmp_path: Path) -> References:
    found = []
    for seed in (0, 1):
        path = str(tmp_path / f"{seed}.npz")
        assert supervisor.call(Reference(bundle=bundle(), seed=seed, outputs=path), 30) == Checked(worst=0.0)
        found.append((seed, path))
    return tuple(found)


def child_of(supervisor: Supervisor) -> int:
    assert supervisor._child is not None
    return supervisor._child.pid


@pytest.mark.slow
def test_a_good_program_is_checked_and_sampled(supervisor: Supervisor, bundle: Bundle, references: References) -> None:
    assert supervisor.call(CheckRequest(bundle=bundle(cost_us=5), references=references), 30) == Checked(worst=0.0)
    found = supervisor.call(SampleRequest(candidate=bundle(cost_us=5), baseline=bundle(cost_us=10), plan=PLAN), 30)
    assert isinstance(found, Measurement)
    assert found.ratio == pytest.approx(2.0, rel=0.02)
    assert found.purpose is Purpose.SEARCH
    assert found.before.clock_mhz == 1000.0
    assert supervisor.replaced == 0
    with np.load(references[0][1]) as outputs:
        assert list(outputs) == ["y"]


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("fault", "outcome", "reason", "replaced"),
    [
        ("wrong", Outcome.WRONG_RESULT, "seed 0: y: 1 of 16 differ, first at [15]", 0),
        ("late", Outcome.WRONG_RESULT, "seed 1: y: 1 of 16 differ", 0),
        ("crash", Outcome.CRASHED, "illegal address", 1),
        ("outside", Outcome.CRASHED, "out of bounds: 4 bytes written behind y", 1),
        ("abort", Outcome.CRASHED, "SIGABRT", 1), ("refuse", Outcome.LAUNCH_REFUSED, "too many resources", 1),
        ("die", Outcome.WORKER_DIED, "SIGKILL", 4), ("hang", Outcome.TIMED_OUT, "no answer within", 1),
    ],
)  # fmt: skip
def test_each_way_to_go_wrong_has_its_outcome_and_costs_nobody_else(
    supervisor: Supervisor,
    bundle: Bundle,
    references: References,
    fault: str,
    outcome: Outcome,
    reason: str,
    replaced: int,
) -> None:
    begun = time.monotonic()
    patience = 0.7 if fault == "hang" else 30
    found = supervisor.call(CheckRequest(bundle=bundle(fault), references=references), patience)
    assert isinstance(found, MeasureFailed)
    assert found.outcome is outcome
    assert reason in found.reason
    assert len(found.reason.splitlines()) == 1
    assert supervisor.replaced == replaced
    assert time.monotonic() - begun < 10
    assert supervisor.call(CheckRequest(bundle=bundle(), references=references), 30) == Checked(worst=0.0)
    assert supervisor.replaced == replaced


def test_what_python_prints_as_it_dies_is_no_message(
    bundle: Bundle, references: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line that the program itself wrote, and not the interpreter's list of its modules."""
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    provider = FakeProvider()
    supervisor = Supervisor(provider, provider.devices()[0])
    found = supervisor.call(CheckRequest(bundle=bundle("segv"), references=references), 30)
    supervisor.close()
    assert found == MeasureFailed(outcome=Outcome.CRASHED, reason="the worker died of SIGSEGV: said before")


@pytest.mark.slow
def test_a_child_that_hangs_is_gone_at_the_timeout(supervisor: Supervisor, bundle: Bundle) -> None:
    supervisor.call(SampleRequest(candidate=bundle(), baseline=None, plan=PLAN), 30)
    child = child_of(supervisor)
    begun = time.monotonic()
    found = supervisor.call(Reference(bundle=bundle("hang"), seed=0, outputs="unused"), 0.5)
    assert isinstance(found, MeasureFailed)
    assert 0.5 <= time.monotonic() - begun < 5
    assert not psutil.pid_exists(child)


def test_time_for_which_this_process_was_stopped_is_not_the_childs(
    supervisor: Supervisor, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after Ctrl-Z and `fg`: when it looks again, the time is long up, and the answer lies in the pipe or comes."""
    supervisor.call(SampleRequest(candidate=bundle(), baseline=None, plan=PLAN), 30)
    child, clock, stopped_secs = child_of(supervisor), time.monotonic, [0.0]

    class Stopped(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if not stopped_secs[0]:
                stopped_secs[0] = 1000.0
                return []
            return super().select(timeout)

    monkeypatch.setattr(supervising.selectors, "DefaultSelector", Stopped)
    monkeypatch.setattr(supervising.time, "monotonic", lambda: clock() + stopped_secs[0])
    found = supervisor.call(SampleRequest(candidate=bundle(), baseline=None, plan=PLAN), 30)
    assert isinstance(found, Measurement)
    assert child_of(supervisor) == child


@pytest.mark.slow
def test_a_child_killed_from_outside_is_replaced_without_a_word_to_the_candidate(
    supervisor: Supervisor, bundle: Bundle, references: References
) -> None:
    os.kill(child_of(supervisor), signal.SIGKILL)
    assert supervisor.call(CheckRequest(bundle=bundle(), references=references), 30) == Checked(worst=0.0)
    assert supervisor.replaced <= 1


def test_fresh_makes_the_next_call_the_first_of_a_new_child(supervisor: Supervisor, bundle: Bundle) -> None:
    request = SampleRequest(candidate=bundle(), baseline=None, plan=PLAN)
    supervisor.call(request, 30)
    first = child_of(supervisor)
    supervisor.call(request, 30)
    assert child_of(supervisor) == first
    supervisor.fresh()
    supervisor.call(request, 30)
    assert child_of(supervisor) != first
    assert supervisor.replaced == 0
    supervisor.close()
    assert not psutil.pid_exists(first)


def test_a_device_that_cannot_be_opened_is_an_error_with_its_reason() -> None:
    class Sour(FakeProvider):
        __module__ = "no_such_module"

    supervisor = Supervisor(Sour(), FakeProvider().devices()[0])
    try:
        with pytest.raises(DeviceError, match="fake: the worker does not start: ModuleNotFoundError"):
            supervisor.call(SampleRequest(candidate="x", baseline=None, plan=PLAN), 30)
    finally:
        supervisor.close()


def test_a_bundle_that_is_gone_is_no_programs_fault(supervisor: Supervisor, bundle: Bundle) -> None:
    with pytest.raises(MachineFault, match="/nowhere is not a bundle any more"):
        supervisor.call(SampleRequest(candidate="/nowhere", baseline=None, plan=PLAN), 30)
    torn = Path(bundle(cost_us=7))
    for path in (torn / "binaries").iterdir():
        path.unlink()
    with pytest.raises(MachineFault, match="is not a whole bundle any more: s is gone"):
        supervisor.call(SampleRequest(candidate=str(torn), baseline=None, plan=PLAN), 30)
    assert isinstance(supervisor.call(SampleRequest(candidate=bundle(), baseline=None, plan=PLAN), 30), Measurement)


@pytest.mark.slow
def test_an_answer_that_makes_no_sense_is_the_programs_fault(
    supervisor: Supervisor, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = SampleRequest(candidate=bundle(), baseline=None, plan=PLAN)
    for nonsense in ('{"is": "Nonsense"}', "hello", "[1]", '{"is": "MeasureFailed", "outcome": "odd"}'):
        with monkeypatch.context() as patch:
            patch.setattr(supervisor, "_line", lambda child, secs, nonsense=nonsense: nonsense)
            patch.setattr(supervisor, "_running", lambda real=supervisor._running: supervisor._child or real())
            supervisor._child = None
            patch.setattr(supervisor, "_line", Supervisor._line.__get__(supervisor))
            supervisor._running()
            patch.setattr(supervisor, "_line", lambda child, secs, nonsense=nonsense: nonsense)
            found = supervisor.call(request, 30)
        assert isinstance(found, MeasureFailed)
        assert found.outcome is Outcome.CRASHED
    assert isinstance(supervisor.call(request, 30), Measurement)


def test_ctrl_c_is_not_for_the_child(supervisor: Supervisor, bundle: Bundle) -> None:
    request = SampleRequest(candidate=bundle(), baseline=None, plan=PLAN)
    supervisor.call(request, 30)
    child = child_of(supervisor)
    assert os.getpgid(child) != os.getpgrp()  # a terminal's Ctrl-C goes to the parent's group
    os.kill(child, signal.SIGINT)
    assert isinstance(supervisor.call(request, 30), Measurement)
    assert child_of(supervisor) == child


# --- children that die while they start ---


class Dying:
    """An executable in Python's place that lets the first `deaths` children die as they start."""

    def __init__(self, folder: Path, how: str, deaths: int) -> None:
        self.count = folder / "starts"
        self.path = folder / "python"
        self.path.write_text(
            f"#!/bin/sh\necho >> {self.count}\n"
            f'[ $(wc -l < {self.count}) -gt {deaths} ] && exec {sys.executable} "$@"\n{how}\n'
        )
        self.path.chmod(0o755)

    @property
    def starts(self) -> int:
        return len(self.count.read_text().splitlines())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "MOST_PAUSE_SECS", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", ["kill -9 $$", "kill -TERM $$", "kill -SEGV $$", "exit 75", "exit 0", "exit 1",
            "echo 'OSError: [Errno 24] Too many open files' >&2; exit 1"],
)  # fmt: skip
@pytest.mark.usefixtures("quick")
def test_a_child_that_dies_as_it_starts_is_replaced(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Seven deaths in a row are nobody's fault; with the eighth the machine's turn has come."""
    dying = Dying(tmp_path, how, supervising.STARTS - 1)
    monkeypatch.setattr(sys, "executable", str(dying.path))
    provider = FakeProvider()
    supervisor = Supervisor(provider, provider.devices()[0])
    try:
        request = SampleRequest(candidate=bundle(), baseline=None, plan=PLAN)
        assert isinstance(supervisor.call(request, 30), Measurement)
        assert dying.starts == supervising.STARTS
        assert supervisor.replaced == 0
        dying.count.unlink()
        Dying(tmp_path, how, 1000)
        supervisor.fresh()
        with pytest.raises(MachineFault, match="fake: no worker came up in 8 attempts, the last one: the worker d"):
            supervisor.call(request, 30)
        assert dying.starts == supervising.STARTS
    finally:
        supervisor.close()


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "strikes"), [([5, 6], 2), ([5, 5, 5, 5], 4), ([None, None], 2)])
def test_a_request_loses_fewer_children_where_the_memory_ran_out(
    supervisor: Supervisor,
    bundle: Bundle,
    references: References,
    monkeypatch: pytest.MonkeyPatch,
    kills: list[int | None],
    strikes: int,
) -> None:
    counted = iter([*kills, *kills[-1:] * 9])
    monkeypatch.setattr(supervising, "out_of_memory_kills", lambda: next(counted))
    found = supervisor.call(CheckRequest(bundle=bundle("die"), references=references), 30)
    assert isinstance(found, MeasureFailed)
    assert found.outcome is Outcome.WORKER_DIED
    assert supervisor.replaced == strikes


PARENT = """
import sys
from fusiond.devices import protocol
from fusiond.devices.supervisor import Supervisor
from fusiond.devices.timing import Sampling
from fusiond.model.outcomes import Purpose
from fusiond.model.program import Buffer, Fill, Launch, Pointer, Program, Role, Source
from tests.fakes import FakeProvider, fake_program
provider = FakeProvider()
supervisor = Supervisor(provider, provider.devices()[0])
supervisor.call(protocol.SampleRequest(candidate=sys.argv[1], baseline=None, plan=Sampling(purpose=Purpose.SEARCH)), 30)
print(supervisor._child.pid, flush=True)
supervisor.call(protocol.Reference(bundle=sys.argv[2], seed=0, outputs=sys.argv[2] + ".unused"), 3000)
"""


@pytest.mark.slow
@pytest.mark.parametrize("busy", ["hang", ""])
def test_the_child_ends_with_a_parent_that_is_killed(bundle: Bundle, busy: str) -> None:
    """kill -9 on fusiond: nothing is left that holds the device, even in the middle of a kernel."""
    command = [sys.executable, "-c", PARENT + ("" if busy else "import time; time.sleep(60)"), bundle(), bundle(busy)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    try:
        child = psutil.Process(int(parent.stdout.readline()))
        time.sleep(0.2)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    gone, alive = psutil.wait_procs([child], timeout=10)
    assert alive == []
    assert len(gone) == 1


# --- the wire ---


def test_what_is_no_reply() -> None:
    with pytest.raises(ValueError, match="not a reply"):
        protocol.decode_reply('{"is": "Other"}')


@pytest.mark.slow
@pytest.mark.usefixtures("gxx_here")
@pytest.mark.parametrize(
    ("body", "unproven"),
    [
        ("x[i] = 2 * x[i]; y[i] = i;", ()),
        ("y[i] = 7;", ("x is left as it was", "y is 7 in all of its 64 elements")),
        ("x[i] = 0; y[i] = x[0] * 0 + i;", ("x is 0 in all of its 64 elements",)),
    ],
)
def test_a_reference_tells_which_outputs_prove_nothing(tmp_path: Path, body: str, unproven: tuple[str, ...]) -> None:
    text = f"__global__ void k(int* x, int* y) {{ int i = threadIdx.x; {body} }}"
    drawn = Fill(kind="integers", low=1, high=1000)
    program = Program(
        name="k",
        buffers=(Buffer(name="x", dtype="int32", elements=64, role=Role.INOUT, fill=drawn),
                 Buffer(name="y", dtype="int32", elements=64, role=Role.OUTPUT)),
        sources=(Source(name="k", text=text, entries=("k",)),),
        steps=(
            Launch(name="k", source="k", entry="k", grid=(1, 1, 1), block=(64, 1, 1),
                   arguments=(Pointer(buffer="x"), Pointer(buffer="y"))),
        ),
    )  # fmt: skip
    provider = CpuProvider()
    binary = provider.build(program.sources[0], "cpu")
    assert not isinstance(binary, BuildFailed)
    write_bundle(tmp_path / "bundle", program, {"k": binary.path})
    supervisor = Supervisor(provider, provider.devices()[0])
    try:
        found = supervisor.call(
            Reference(bundle=str(tmp_path / "bundle"), seed=0, outputs=str(tmp_path / "out.npz")), 60
        )
    finally:
        supervisor.close()
    assert found == Checked(worst=0.0, unproven=unproven)
