"""Programs on a GPU that is not there: results, order of calls, guards, failures. Only the driver is fake."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.devices.base import ExecutionError
from fusiond.devices.cuda.memory import GUARD_BYTES, device_bytes
from fusiond.model.inputs.fills import initial
from fusiond.model.outcomes import Outcome
from fusiond.model.program import (
    Alloc,
    Buffer,
    Bytes,
    Copy,
    CopyBatch,
    Fill,
    FillStep,
    Free,
    HostCall,
    Launch,
    Memory,
    Pointer,
    Prefetch,
    Program,
    Role,
    Scalar,
    Source,
    SourceKind,
    Step,
)

N = 64


def buffer(name: str, role: Role = Role.INOUT, **values: Any) -> Buffer:
    return Buffer(
        **{"name": name, "dtype": "float32", "elements": N, "role": role, "fill": Fill(kind="iota"), **values}
    )


def launch(name: str, entry: str = "double_it", on: str = "x", **values: Any) -> Launch:
    arguments = (Pointer(buffer=on), Scalar(dtype="int32", value=N))
    given = {"source": "k", "entry": entry, "grid": (2, 1, 1), "block": (32, 1, 1), "arguments": arguments}
    return Launch(**{"name": name, **given, **values})


def program(steps: tuple[Step, ...], *buffers: Buffer, issue: str = "streams", host: str = "") -> Program:
    sources = [Source(name="k", text="", entries=("double_it", "overrun", "hungry", "add"), symbols=("weights",))]
    if host:
        entries = tuple(re.findall(r'extern "C" void (\w+)', host))
        sources.append(Source(name="h", kind=SourceKind.HOST, text=host, entries=entries))
    return Program(name="test", buffers=buffers or (buffer("x"),), sources=tuple(sources), steps=steps, issue=issue)


def filled(gpu: Any, of: Program) -> Any:
    """Loaded, with its buffers written."""
    loaded = gpu.load(of)
    for each in of.buffers:
        loaded.write(each.name, initial(each, 0))
    gpu.log()
    return loaded


IOTA = np.arange(N, dtype=np.float32)


# --- running --------------------------------------------------------------------------------------------


def test_a_kernel_gets_its_arguments(gpu: Any) -> None:
    loaded = filled(gpu, program((launch("a", shared_bytes=256),)))
    loaded.run(seed=0, checked=True)
    assert np.array_equal(loaded.read("x"), 2 * IOTA)
    assert re.fullmatch(r"launch double_it 2x1x1 32x1x1 256 on \w+", gpu.log()[0])


def test_the_limit_on_dynamic_shared_memory_is_raised_by_itself(gpu: Any) -> None:
    small, large = launch("a", shared_bytes=1024), launch("b", shared_bytes=100_000)
    gpu.load(program((small, large)))
    assert [line for line in gpu.log() if "attribute" in line] == ["attribute 8 of double_it is 100000"]


def test_the_carve_out_is_asked_for_where_the_program_says_so(gpu: Any) -> None:
    gpu.load(program((launch("a", shared_bytes=1024), launch("b", shared_bytes=1024, carveout_pct=29))))
    assert [line for line in gpu.log() if "attribute 9" in line] == ["attribute 9 of double_it is 29"]
    gpu.load(program((launch("a", shared_bytes=1024),)))
    assert not [line for line in gpu.log() if "attribute 9" in line]


def test_copies_fills_and_arenas(gpu: Any) -> None:
    pair = {"arena": "host", "memory": Memory.PINNED}
    of = program(
        (Copy(name="up", source=("a", "b"), target=("da", "db")), launch("twice", on="db"),
         FillStep(name="clear", buffer="da"), Copy(name="down", source=("da", "db"), target=("a", "b"))),
        buffer("a", **pair), buffer("b", **pair, offset_bytes=4 * N + 64), buffer("da", Role.SCRATCH, arena="device"),
        buffer("db", Role.SCRATCH, arena="device", offset_bytes=4 * N + 64),
    )  # fmt: skip
    loaded = filled(gpu, of)
    loaded.run(seed=0, checked=True)
    assert not loaded.read("a").any()
    assert np.array_equal(loaded.read("b"), 2 * IOTA)
    assert loaded.broken_guards() == ()
    assert f"up {2 * 4 * N + 64}" in gpu.log()[0]


def test_managed_memory_is_prefetched(gpu: Any) -> None:
    """A run of two buffers up as one, one down; by the loop in C too, which is what is timed."""
    pair = {"arena": "both", "memory": Memory.MANAGED}
    of = program(
        (Prefetch(name="up", buffers=("a", "b"), to_device=True),
         launch("k", "add", arguments=(Pointer(buffer="a"), Pointer(buffer="b"), Scalar(dtype="int32", value=N))),
         Prefetch(name="down", buffers=("a",), to_device=False),
         HostCall(name="h", source="h", entry="halve", arguments=(Pointer(buffer="a"),))),
        buffer("a", **pair),
        buffer("b", Role.INPUT, offset_bytes=512, **pair),
        host=f'extern "C" void halve(float* x) {{ for (int i = 0; i < {N}; ++i) x[i] /= 2; }}',
    )  # fmt: skip
    loaded = filled(gpu, of)
    assert loaded.clock == "wall"
    loaded.run(seed=0, checked=True)
    assert np.array_equal(loaded.read("a"), IOTA)

    def said() -> list[str]:
        return [line.split(" on ")[0] for line in gpu.log() if line.startswith(("prefetch", "launch"))]

    assert said() == ["prefetch 768 to 0", "launch add 2x1x1 32x1x1 0", "prefetch 256 to -1"]
    assert loaded.broken_guards() == ()
    assert loaded.sample_us(1) > 0
    assert said() == ["prefetch 768 to 0", "launch add 2x1x1 32x1x1 0", "prefetch 256 to -1"]
    assert np.array_equal(loaded.read("a"), IOTA)
    loaded.close()
    assert device_bytes(of) == 768 + 2 * GUARD_BYTES + 4 * N


def test_what_cannot_be_prefetched_is_refused(gpu: Any) -> None:
    x = buffer("x", memory=Memory.MANAGED)
    step = Prefetch(name="up", buffers=("x",), to_device=True)
    with pytest.raises(ExecutionError, match="step 'up' prefetches 'x', which is not in managed memory"):
        gpu.load(program((step,), buffer("x")))
    with pytest.raises(ExecutionError, match="a CUDA graph holds no host calls, allocations, prefetches"):
        gpu.load(program((step,), x, issue="graph"))
    gpu.set(prefetches=0)
    with pytest.raises(ExecutionError, match="this device does not prefetch managed memory") as caught:
        gpu.load(program((step,), x))
    assert caught.value.outcome is Outcome.LAUNCH_REFUSED


def test_a_variable_of_the_module_is_a_buffer(gpu: Any) -> None:
    loaded = filled(
        gpu,
        program((launch("a", on="w", arguments=(Pointer(buffer="w"), Scalar(dtype="int32", value=4))),),
                buffer("w", elements=4, symbol="k:weights")),
    )  # fmt: skip
    loaded.run(seed=0, checked=True)
    assert loaded.read("w").tolist() == [0, 2, 4, 6]
    with pytest.raises(ExecutionError, match="weights has 16"):
        gpu.load(program((launch("a", on="w"),), buffer("w", elements=5, symbol="k:weights")))


def test_outputs_are_restored_where_nobody_vouches_for_a_program(gpu: Any) -> None:
    before = gpu.live_allocations
    loaded = filled(gpu, program((launch("a"),), buffer("x", role=Role.OUTPUT)))
    held = gpu.live_allocations
    loaded.write("x", IOTA)
    loaded.snapshot(outputs=True)
    loaded.write("x", 3 * IOTA)
    loaded.restore()
    assert np.array_equal(loaded.read("x"), IOTA)
    loaded.snapshot()
    assert gpu.live_allocations == held > before
    loaded.write("x", 3 * IOTA)
    loaded.restore()
    assert np.array_equal(loaded.read("x"), 3 * IOTA)


@pytest.mark.slow
def test_everything_is_freed(gpu: Any) -> None:
    before = gpu.live_allocations
    loaded = filled(gpu, program((launch("a"),)))
    loaded.snapshot()
    assert gpu.live_allocations > before
    loaded.close()
    assert gpu.live_allocations == before


# --- order ----------------------------------------------------------------------------------------------


def test_streams_wait_only_for_what_the_plan_says(gpu: Any) -> None:
    of = program(
        (launch("a", stream=0), launch("b", on="y", stream=1), launch("c", stream=0, after=("a", "b"))),
        buffer("x"),
        buffer("y"),
    )
    loaded = filled(gpu, of)
    loaded.run(seed=0, checked=True)
    kinds = [re.sub(r"0x\w+", "#", line) for line in gpu.log()]
    launch_line = "launch double_it 2x1x1 32x1x1 0 on #"
    # `b` is signalled, `c` waits for it; for `a`, on its own stream, nothing is needed.
    expected = [launch_line, launch_line, "event # on #", "# waits for event #", launch_line]
    assert kinds == [*expected, "wait for #", "wait for #"]


def test_a_sample_is_gated_joined_and_timed(gpu: Any) -> None:
    of = program((launch("a", stream=0), launch("b", on="y", stream=1)), buffer("x"), buffer("y"))
    loaded = filled(gpu, of)
    assert loaded.clock == "device"
    span = loaded.sample_us(1)
    lines = [re.sub(r" on \S+$", "", line) for line in gpu.log()]
    shape = [re.sub(r"(event|for) 0x\w+|^0x\w+", r"\1", line).strip() for line in lines]
    begin = next(index for index, line in enumerate(shape) if line.startswith("launch fusiond_gate"))
    assert shape[begin + 1] == "gate closed"
    order = [line.split()[0] + (" " + line.split()[1] if line.startswith("launch") else "") for line in shape[begin:]]
    assert order == [
        "launch fusiond_gate",
        "gate",
        "event",  # the start
        "event",  # the fork: the other stream waits for the lead
        "waits",
        "launch double_it",
        "launch double_it",
        "event",  # the join: the lead waits for the other stream
        "waits",
        "event",  # the end
        "wait",  # for the end, after the gate was opened
        "wait",
        "wait",
    ]
    # Events and kernels take 10 us each; fork and join lie between start and end, and the kernels are side by side.
    assert span == pytest.approx(30, rel=1e-3)


def test_repeats_are_back_to_back_and_not_too_many_behind_one_gate(gpu: Any) -> None:
    loaded = filled(gpu, program((launch("a"), launch("b"))))
    assert loaded.sample_us(4) == pytest.approx(20, rel=1e-3)
    assert sum("fusiond_gate" in line for line in gpu.log()) == 1
    loaded.sample_us(300)
    lines = gpu.log()
    assert sum("double_it" in line for line in lines) == 600
    assert sum("fusiond_gate" in line for line in lines) == 3


def test_what_is_not_counted_stands_outside_the_events(gpu: Any) -> None:
    of = program((launch("before", counted=False), launch("a"), launch("between", counted=False), launch("b")))
    loaded = filled(gpu, of)
    span = loaded.sample_us(2)
    words = [line.split()[1] if line.startswith("launch") else line.split()[0] for line in gpu.log()]
    assert words.index("double_it") < words.index("fusiond_gate")
    one = ["fusiond_gate", "gate", "event", "double_it", "event", "double_it", "event", "double_it", "event"]
    first = words.index("fusiond_gate")
    assert words[first : first + len(one)] == one
    assert words.count("fusiond_gate") == 2
    # The step in the middle is taken out, and what the events cost by themselves.
    assert span == pytest.approx(20, rel=1e-3)


def test_what_is_not_counted_between_two_streams_stays_in_the_span(gpu: Any) -> None:
    steps = (launch("a"), launch("between", on="y", stream=1, counted=False), launch("b"))
    loaded = filled(gpu, program(steps, buffer("x"), buffer("y")))
    loaded.sample_us(1)
    words = [line.split()[1] if line.startswith("launch") else line.split()[0] for line in gpu.log()]
    first = words.index("fusiond_gate")
    assert words[first:].count("double_it") == 3
    launches = [index for index, word in enumerate(words) if word == "double_it"][-3:]
    assert launches == list(range(launches[0], launches[0] + 3))


def test_a_graph_with_something_uncounted_inside_is_two_graphs(gpu: Any) -> None:
    steps = (launch("a"), launch("b"), launch("between", counted=False), launch("c"))
    loaded = filled(gpu, program(steps, issue="graph"))
    loaded.run(seed=0, checked=True)
    assert np.array_equal(loaded.read("x"), 16 * IOTA)
    gpu.log()
    span = loaded.sample_us(1)
    words = [line.split()[1] if line.startswith("launch") else line.split()[0] for line in gpu.log()]
    first = words.index("event")
    assert words[first : first + 6] == ["event", "graph", "event", "double_it", "event", "graph"]
    assert span == pytest.approx(30, rel=1e-3)
    loaded.close()


def test_a_gate_that_opened_by_itself_makes_the_sample_be_taken_again(gpu: Any, monkeypatch: Any) -> None:
    from fusiond.devices.cuda.gate import Gate

    answers = iter([True, False])
    monkeypatch.setattr(Gate, "gave_up", property(lambda self: next(answers)))
    loaded = filled(gpu, program((launch("a"),)))
    loaded.snapshot()
    loaded.sample_us(1)
    assert sum("fusiond_gate" in line for line in gpu.log()) == 2
    assert np.array_equal(loaded.read("x"), 2 * IOTA)  # restored before the second time
    assert loaded.gate_failures == 1


def test_a_host_too_busy_for_the_gate_gives_no_sample(gpu: Any) -> None:
    """Each call takes a second, which is longer than a gate may ever wait."""
    loaded = filled(gpu, program((launch("a"),)))
    gpu.set(launch_us=1e6)
    with pytest.raises(ExecutionError, match="gave up 5 times: this host is too busy") as caught:
        loaded.sample_us(1)
    assert caught.value.outcome is Outcome.TOO_NOISY


@pytest.mark.parametrize("issue", ["streams", "graph"])
@pytest.mark.parametrize("cold", [False, True])
def test_nothing_behind_a_gate_waits_for_the_device(gpu: Any, issue: str, cold: bool) -> None:
    """A kernel's code is loaded at its first launch, a graph uploaded: as on hardware this waits until the device is
    idle. In the finals a program is sampled that this process has never run."""
    gpu.set(load_us=900, launch_us=6)
    loaded = filled(gpu, program((launch("a"), launch("b", entry="hungry")), issue=issue))
    loaded.snapshot()
    assert loaded.sample_us(3, cold=cold) > 0
    assert loaded.gate_failures == 0
    assert np.array_equal(loaded.read("x"), 4 * IOTA)  # the run that loads has left no trace
    loaded.close()


@pytest.mark.parametrize("steps", [1, 600])
def test_the_gate_waits_for_as_long_as_a_plan_takes_to_enqueue(gpu: Any, steps: int) -> None:
    """60 us for each launch: 600 of them take longer than the gate would wait for one."""
    gpu.set(launch_us=60)
    loaded = filled(gpu, program(tuple(launch(f"s{index}") for index in range(steps))))
    assert loaded.sample_us(1) == pytest.approx(10 * steps, rel=1e-3)
    assert loaded.gate_failures == 0


@pytest.mark.parametrize(("steps", "runs"), [(900, 1), (300, 4), (1, 1000)])
@pytest.mark.parametrize("restored", [False, True])
def test_what_is_behind_a_gate_fits_into_a_launch_queue(gpu: Any, steps: int, runs: int, restored: bool) -> None:
    """With more the host would wait for room, and nobody would open the gate."""
    loaded = filled(gpu, program(tuple(launch(f"s{index}") for index in range(steps))))
    if restored:
        loaded.snapshot()
    assert loaded.sample_us(runs) == pytest.approx(10 * steps, rel=1e-3)
    assert loaded.gate_failures == 0


def test_a_plan_longer_than_a_launch_queue_is_timed_on_the_wall_clock(gpu: Any) -> None:
    assert gpu.load(program(tuple(launch(f"s{index}") for index in range(901)))).clock == "wall"
    assert gpu.load(program(tuple(launch(f"s{index}") for index in range(900)))).clock == "device"


@pytest.mark.parametrize("clock", ["device", "wall"])
def test_what_accumulates_is_restored_before_each_run_of_a_sample(gpu: Any, clock: str) -> None:
    loaded = filled(gpu, program((launch("a"),)))
    loaded.snapshot()
    loaded.run(seed=0, checked=False)
    loaded.restore()
    gpu.set(us_double_it=2.5, launch_us=6, copy_gbs=0.1)  # restoring takes 5 us
    loaded.clock = clock
    gpu.log()
    span = loaded.sample_us(40)
    words = [line.split()[1] if line.startswith("launch") else line.split()[0] for line in gpu.log()]
    assert words.count("double_it") == 40
    assert np.array_equal(loaded.read("x"), 2 * IOTA)
    if clock == "device":
        assert words.count("fusiond_gate") == 1
        assert span == pytest.approx(2.5, rel=1e-3)


def test_what_an_event_costs_is_taken_off(fake_libcuda: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from tests.devices.cuda.stand_in import FakeGpu

    monkeypatch.setenv("FUSIOND_FAKE_GPU", "event_us=1.7 launch_us=6 copy_gbs=1")
    gpu = FakeGpu(fake_libcuda, tmp_path)
    monkeypatch.delenv("FUSIOND_FAKE_GPU")
    gpu.set(us_double_it=2.5)
    for of in (program((launch("a"),)), program((launch("a"), launch("b")))):
        loaded = filled(gpu, of)
        loaded.snapshot()
        for runs in (1, 40):
            loaded.restore()
            assert loaded.sample_us(runs) == pytest.approx(2.5 * len(of.steps), rel=1e-3)


def test_a_graph_is_captured_once_and_launched(gpu: Any) -> None:
    steps = (launch("a", stream=0), launch("b", on="y", stream=1), launch("c", stream=0, after=("b",)))
    of = program(steps, buffer("x"), buffer("y"), issue="graph")
    loaded = gpu.load(of)
    lines = gpu.log()
    first = next(index for index, line in enumerate(lines) if line.startswith("capture"))
    assert lines[-1] == "captured"
    assert sum("double_it" in line for line in lines[first:]) == 3
    for each in of.buffers:
        loaded.write(each.name, initial(each, 0))
    loaded.run(seed=0, checked=True)
    assert np.array_equal(loaded.read("x"), 4 * IOTA)
    assert np.array_equal(loaded.read("y"), 2 * IOTA)
    gpu.log()
    loaded.sample_us(3)
    lines = gpu.log()
    assert sum(line.startswith("graph") for line in lines) == 3
    assert not any("double_it" in line for line in lines)


def test_steps_round_a_graph_are_in_order_with_it(gpu: Any) -> None:
    steps = (
        launch("before", stream=1, counted=False),
        launch("a", stream=0, after=("before",)),
        launch("b", on="y", stream=1),
        launch("after", stream=1, after=("a",), counted=False),
    )
    loaded = filled(gpu, program(steps, buffer("x"), buffer("y"), issue="graph"))
    loaded.run(seed=0, checked=True)
    assert np.array_equal(loaded.read("x"), 8 * IOTA)
    words = [line.split()[0] for line in gpu.log()]
    # The graph begins after what is on both streams, and they go on after it.
    expected = ["launch", "event", "0x", "graph", "event", "0x", "launch", "wait", "wait"]
    assert [re.sub("0x.*", "0x", word) for word in words] == expected


# --- the wall clock -------------------------------------------------------------------------------------

HOST = """\
extern "C" void shift(float* x, int n, double by) { for (int i = 0; i < n; i++) x[i] += by; }
"""


def _round_trip(memory: Memory = Memory.PAGEABLE) -> Program:
    call = (Pointer(buffer="h"), Scalar(dtype="int32", value=N), Scalar(dtype="float64", value=1.0))
    return program(
        (Copy(name="up", source=("h",), target=("d",), stream=1), launch("twice", on="d", stream=0, after=("up",)),
         Copy(name="down", source=("d",), target=("h",), stream=0),
         HostCall(name="shift", source="h", entry="shift", arguments=call, stream=1, after=("down",)),
         Copy(name="again", source=("h",), target=("d",), stream=1)),
        buffer("h", memory=memory), buffer("d", Role.SCRATCH), host=HOST,
    )  # fmt: skip


@pytest.mark.parametrize("memory", [Memory.PAGEABLE, Memory.PINNED])
@pytest.mark.parametrize("by", ["loop", "python"])
def test_host_steps_are_timed_on_the_wall_clock(gpu: Any, memory: Memory, by: str, monkeypatch: Any) -> None:
    from fusiond.devices.cuda import loop_code

    def missing() -> Any:
        raise LookupError("no C++ compiler")

    if by == "python":
        monkeypatch.setattr(loop_code, "loop_library", missing)
    of = _round_trip(memory)
    loaded = filled(gpu, of)
    assert loaded.clock == "wall"
    loaded.snapshot()
    loaded.run(seed=0, checked=True)
    assert np.array_equal(loaded.read("h"), 2 * IOTA + 1)
    loaded.restore()
    gpu.log()
    assert loaded.sample_us(1) > 0
    assert np.array_equal(loaded.read("h"), 2 * IOTA + 1)
    assert np.array_equal(loaded.read("d"), 2 * IOTA + 1)
    words = [line.split()[0] for line in gpu.log()]
    assert words.count("launch") == 1
    assert words.count("up") == 2
    assert words.count("down") == 1
    loaded.close()


@pytest.mark.slow
@pytest.mark.parametrize("memory", [*Memory])
def test_the_plan_allocates_for_itself(gpu: Any, memory: Memory) -> None:
    of = program(
        (Alloc(name="alloc", arena="work"), Copy(name="in", source=("x",), target=("a",)),
         Copy(name="out", source=("a",), target=("y",)), Free(name="free", arena="work")),
        buffer("x"), buffer("y"), buffer("a", Role.SCRATCH, arena="work", offset_bytes=64, memory=memory),
    )  # fmt: skip
    loaded = filled(gpu, of)
    assert loaded.clock == "wall"
    loaded.run(seed=0, checked=True)
    assert np.array_equal(loaded.read("y"), IOTA)
    assert loaded.broken_guards() == ()
    assert set(loaded.read("a").view(np.uint8)) == {0xA5}  # poisoned when it was freed
    loaded.write("y", 0 * IOTA)
    before = gpu.live_allocations
    gpu.log()
    loaded.sample_us(2)
    assert np.array_equal(loaded.read("y"), IOTA)
    assert gpu.live_allocations == before
    allocated = [line for line in gpu.log() if line.startswith(("allocate", "pin", "manage"))]
    assert len(allocated) == (0 if memory is Memory.PAGEABLE else 2)
    loaded.run(seed=0, checked=False)
    assert gpu.live_allocations == before
    loaded.close()


@pytest.mark.slow
def test_what_is_not_freed_by_the_plan_is_freed_after_the_run(gpu: Any) -> None:
    of = program(
        (Alloc(name="alloc", arena="d"), Copy(name="in", source=("x",), target=("d",))), buffer("x"), buffer("d")
    )
    loaded = filled(gpu, of)
    before = gpu.live_allocations
    for _ in range(3):
        loaded.sample_us(1)
        loaded.run(seed=0, checked=False)
    assert gpu.live_allocations == before


# --- failures -------------------------------------------------------------------------------------------


def outcome(gpu: Any, of: Program) -> tuple[Outcome, str]:
    def run() -> None:
        filled(gpu, of).run(seed=0, checked=True)

    with pytest.raises(ExecutionError) as caught:
        run()
    return caught.value.outcome, caught.value.reason


@pytest.mark.parametrize(
    ("function", "code", "expected"),
    [
        ("cuLaunchKernel", 701, Outcome.LAUNCH_REFUSED), ("cuLaunchKernel", 1, Outcome.LAUNCH_REFUSED),
        ("cuStreamSynchronize", 700, Outcome.CRASHED), ("cuStreamSynchronize", 710, Outcome.CRASHED),
        ("cuStreamSynchronize", 716, Outcome.CRASHED), ("cuStreamSynchronize", 719, Outcome.CRASHED),
        ("cuStreamSynchronize", 702, Outcome.TIMED_OUT), ("cuMemAlloc", 2, Outcome.LAUNCH_REFUSED),
    ],
)  # fmt: skip
def test_driver_errors_become_outcomes(gpu: Any, function: str, code: int, expected: Outcome) -> None:
    of = program((launch("a"),))
    gpu.fail(function, code)
    found, reason = outcome(gpu, of)
    assert found is expected
    assert function in reason


@pytest.mark.slow
def test_the_last_of_the_memory_is_left_to_others(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before anything is allocated."""
    of, held = program((launch("a"),)), gpu.live_allocations
    monkeypatch.setattr(gpu.cuda, "mem_get_info", lambda: (device_bytes(of) + 63, 1024))
    found, reason = outcome(gpu, of)
    assert (found, gpu.live_allocations) == (Outcome.LAUNCH_REFUSED, held)
    number = r"[0-9.e-]+"
    words = f"it needs {number} GiB of device memory; {number} GiB are free, and {number} are left to others"
    assert re.fullmatch(words, reason)
    monkeypatch.setattr(gpu.cuda, "mem_get_info", lambda: (device_bytes(of) + 64, 1024))
    gpu.load(of).close()


def test_what_a_program_holds_is_what_it_allocates(gpu: Any) -> None:
    """Buffers, an arena, guard zones, and the copies of what is reset for each run; nothing that is on the host."""
    of = program(
        (launch("a"),), buffer("x"), buffer("in", Role.INPUT), buffer("kept", reset="never"), buffer("left", arena="r"),
        buffer("right", Role.OUTPUT, arena="r", offset_bytes=1024), buffer("there", memory=Memory.PINNED),
        buffer("w", symbol="k:weights", elements=4),
    )  # fmt: skip
    gpu.log()
    loaded = gpu.load(of)
    loaded.snapshot()
    sizes = [int(line.split()[1]) for line in gpu.log() if line.startswith("allocate ") and len(line.split()) == 2]
    assert sum(sizes) == device_bytes(of)
    loaded.close()


@pytest.mark.parametrize("clock", ["device", "wall"])
def test_an_error_that_sticks_is_the_outcome_of_all_that_follows(gpu: Any, clock: str) -> None:
    """As after an illegal access: the context is broken, whatever is called says so, and closing says nothing."""
    of = program((launch("a"),))
    loaded = filled(gpu, of)
    loaded.clock = clock
    gpu.stick(700)
    try:
        for ask in (lambda: loaded.run(seed=0, checked=True), lambda: loaded.sample_us(1), lambda: gpu.load(of)):
            with pytest.raises(ExecutionError, match="illegal memory access") as caught:
                ask()
            assert caught.value.outcome is Outcome.CRASHED
        loaded.close()
        gpu.executor.close()
    finally:
        gpu.stick(0)


def test_the_failed_step_is_named(gpu: Any) -> None:
    gpu.fail("cuLaunchKernel", 701)
    _, reason = outcome(gpu, program((launch("a"),)))
    assert reason.startswith("step 'a': cuLaunchKernel: too many resources requested for launch")


def test_after_an_error_the_gate_is_open(gpu: Any) -> None:
    loaded = filled(gpu, program((launch("a"), launch("b"))))
    loaded.sample_us(1)
    gpu.fail("cuEventSynchronize", 700)
    with pytest.raises(ExecutionError):
        loaded.sample_us(1)
    assert gpu.executor._gate._flags[0] == 1
    loaded.close()


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (launch("a", block=(1025, 1, 1)), "1025 threads per block"),
        (launch("a", "hungry", block=(1024, 1, 1)), "registers per block"),
        (launch("a", "hungry", block=(513, 1, 1)), "registers per block"),
        (launch("a", shared_bytes=227 * 1024), "bytes of shared memory per block"),
        (launch("a", arguments=(Pointer(buffer="x"),)), "passes 1 arguments, double_it takes 2"),
        (launch("a", arguments=(Pointer(buffer="x"), Scalar(dtype="int64", value=1))),
         "argument 1 has 8 bytes, double_it takes 4 there"),
        (launch("a", arguments=(Pointer(buffer="x"), Scalar(dtype="uint8", value=300))), "300 is not of type uint8"),
    ],
)  # fmt: skip
def test_launches_that_cannot_be_are_refused_before(gpu: Any, step: Step, reason: str) -> None:
    with pytest.raises(ExecutionError, match=re.escape(reason)) as caught:
        gpu.load(program((step,)))
    assert caught.value.outcome is Outcome.LAUNCH_REFUSED


def test_a_structure_is_passed_as_its_bytes(gpu: Any) -> None:
    count = Bytes(hex=np.int32(N).tobytes().hex())
    loaded = filled(gpu, program((launch("a", arguments=(Pointer(buffer="x"), count)),)))
    loaded.run(seed=0, checked=True)
    assert np.array_equal(loaded.read("x"), 2 * IOTA)


def test_an_address_stands_in_a_structure(gpu: Any) -> None:
    through = Bytes(hex="00" * 8, pointers=((0, "x"),))
    given = (through, Scalar(dtype="int32", value=N))
    loaded = filled(gpu, program((launch("a", arguments=given),)))
    loaded.run(seed=0, checked=True)
    assert np.array_equal(loaded.read("x"), 2 * IOTA)
    assert loaded.sample_us(2) > 0


def test_a_binary_of_somebody_else_is_refused(gpu: Any, tmp_path: Path) -> None:
    (tmp_path / "other.cubin").write_bytes(b"image")
    with pytest.raises(ExecutionError, match="not built by fusiond"):
        gpu.executor.load(program((launch("a"),)), {"k": tmp_path / "other.cubin"})
    with pytest.raises(ExecutionError, match="no binary of source 'k'"):
        gpu.executor.load(program((launch("a"),)), {})


# --- the executor ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mhz", [345.0, 1410.0, 1980.0])
@pytest.mark.parametrize("step_ns", [32, 1000, 1024])
def test_the_canary_counts_the_clock(gpu: Any, mhz: float, step_ns: int) -> None:
    gpu.set(step_ns=step_ns, launch_us=40)  # a slow host is not seen
    gpu.clock((0, mhz))
    assert gpu.executor.state().canary_mhz == pytest.approx(mhz, rel=1e-3)
    launches = [line for line in gpu.log() if line.startswith("launch fusiond_canary")]
    assert len(launches) == 1
    assert re.match(r"launch fusiond_canary 132x1x1 1x1x1 0 on", launches[0])


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["device", "wall"])
def test_a_cold_run_comes_behind_a_flush_of_twice_the_second_level_cache(gpu: Any, clock: str) -> None:
    loaded = filled(gpu, program((launch("a"),)))
    loaded.snapshot()
    loaded.clock = clock
    loaded.run(seed=0, checked=False)
    gpu.log()
    span = loaded.sample_us(3, cold=True)
    words = [line.split()[1] if line.startswith("launch") else line.split()[0] for line in gpu.log()]
    assert [each for each in words if each in ("fill", "double_it")] == ["fill", "double_it"] * 3
    assert "allocate" not in words  # which may wait for the device, and so for the gate
    if clock == "device":
        assert words.count("fusiond_gate") == 1
        assert span == pytest.approx(10, rel=1e-3)


def test_without_nvml_the_driver_says_no_clock(gpu: Any) -> None:
    assert gpu.executor.state().clock_mhz is None


# --- cooperative launches -------------------------------------------------------------------------------


def _together(name: str = "c", **values: Any) -> Launch:
    return launch(name, cooperative=True, **values)


def test_a_cooperative_launch_gets_its_arguments(gpu: Any) -> None:
    add = (Pointer(buffer="x"), Pointer(buffer="x"), Scalar(dtype="int32", value=N))
    loaded = filled(gpu, program((_together(shared_bytes=64), _together("d", entry="add", arguments=add), launch("e"))))
    loaded.run(seed=0, checked=True)
    assert np.array_equal(loaded.read("x"), 8 * IOTA)
    lines = [re.sub(" on .*", "", line) for line in gpu.log() if line.startswith(("launch", "together"))]
    assert lines == [
        "together", "launch double_it 2x1x1 32x1x1 64", "together", "launch add 2x1x1 32x1x1 0",
        "launch double_it 2x1x1 32x1x1 0",
    ]  # fmt: skip
    assert loaded.sample_us(2) > 0
    loaded.close()


def test_a_grid_that_is_not_resident_at_once_is_refused(gpu: Any) -> None:
    """8 blocks of 256 threads fit on each of 132 multiprocessors, and 2 with 100 KB of shared memory."""
    gpu.load(program((_together(grid=(1056, 1, 1), block=(256, 1, 1)),)))
    for step, reason in (
        (
            _together(grid=(1057, 1, 1), block=(256, 1, 1)),
            "a cooperative grid of 1057 blocks; 1056 are resident at once",
        ),
        (
            _together(grid=(265, 1, 1), block=(256, 1, 1), shared_bytes=100_000),
            "264 are resident at once (2 on each of 132",
        ),
    ):
        with pytest.raises(ExecutionError) as caught:
            gpu.load(program((step,)))
        assert caught.value.outcome is Outcome.LAUNCH_REFUSED
        assert reason in caught.value.reason
    gpu.load(program((launch("plain", grid=(1057, 1, 1), block=(256, 1, 1)),)))


# --- batches of copies, and the pool --------------------------------------------------------------------


def _batch(issue: str = "streams", memory: Memory = Memory.PINNED) -> Program:
    return program(
        (CopyBatch(name="up", copies=(("h1", "d1"), ("h2", "d2")), stream=1), launch("twice", on="d1", after=("up",)),
         CopyBatch(name="down", copies=(("d2", "h1"), ("d1", "h2")))),
        buffer("h1", memory=memory), buffer("h2", memory=memory, fill=Fill(kind="constant", low=7)),
        buffer("d1", Role.SCRATCH), buffer("d2", Role.SCRATCH), issue=issue,
    )  # fmt: skip


@pytest.mark.parametrize("clock", ["device", "wall"])
def test_a_batch_is_one_call(gpu: Any, clock: str) -> None:
    loaded = filled(gpu, _batch())
    assert loaded.clock == "device"
    loaded.clock = clock
    loaded.snapshot()
    loaded.sample_us(1)
    loaded.restore()
    gpu.log()
    loaded.sample_us(1)
    assert np.array_equal(loaded.read("h1"), 0 * IOTA + 7)
    assert np.array_equal(loaded.read("h2"), 2 * IOTA)
    words = [line.split()[0] for line in gpu.log()]
    assert words.count("batch") == 2
    assert not {"up", "down", "across"} & set(words)


def test_a_batch_from_pageable_memory_is_timed_on_the_wall_clock(gpu: Any) -> None:
    assert filled(gpu, _batch(memory=Memory.PAGEABLE)).clock == "wall"


def test_a_batch_in_a_graph_is_refused_before_the_driver_does(gpu: Any) -> None:
    with pytest.raises(ExecutionError, match="no node for copies in a batch") as caught:
        gpu.load(_batch("graph"))
    assert caught.value.outcome is Outcome.LAUNCH_REFUSED
    assert not any(line.startswith("capture") for line in gpu.log())


@pytest.mark.slow
@pytest.mark.parametrize("by", ["loop", "python"])
def test_memory_of_the_pool_comes_and_goes_in_stream_order(gpu: Any, by: str, monkeypatch: Any) -> None:
    from fusiond.devices.cuda import loop_code

    def missing() -> Any:
        raise LookupError("no C++ compiler")

    if by == "python":
        monkeypatch.setattr(loop_code, "loop_library", missing)
    of = program(
        (Alloc(name="alloc", arena="work", pooled=True), Copy(name="in", source=("x",), target=("a",)),
         Copy(name="out", source=("a",), target=("y",)), Free(name="free", arena="work"),
         Alloc(name="own", arena="other"), Free(name="gone", arena="other"),
         Alloc(name="left", arena="kept", pooled=True)),
        buffer("x"), buffer("y"), buffer("a", Role.SCRATCH, arena="work", offset_bytes=64),
        buffer("b", Role.SCRATCH, arena="other"), buffer("c", Role.SCRATCH, arena="kept"),
    )  # fmt: skip
    loaded = filled(gpu, of)
    assert loaded.clock == "wall"
    before = gpu.live_allocations
    loaded.sample_us(1)
    lines = gpu.log()
    assert np.array_equal(loaded.read("y"), IOTA)
    assert gpu.live_allocations == before
    used = [line for line in lines if re.match(r"allocate|free|up|across|wait for 0x\w+$", line)]
    kinds = [re.sub(r"0x\w+|\d+", "_", line) for line in used]
    # The host waits for the stream before it allocates by itself, and not for the pool.
    first = kinds.index("allocate _ on _")
    assert kinds[first : first + 4] == ["allocate _ on _", "across _ on _", "across _ on _", "free on _"], kinds
    assert kinds[first + 4 : first + 6] == ["wait for _", "allocate _"], kinds
    loaded.run(seed=0, checked=True)
    assert np.array_equal(loaded.read("y"), IOTA)
    assert loaded.broken_guards() == ()
    loaded.close()
