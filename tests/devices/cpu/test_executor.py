"""Programs on the processor: every kind of step, every kind of memory, and every way to be careless with either."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices.base import ExecutionError
from fusiond.devices.cpu.executor import CpuExecutor, CpuProgram, _adversarial
from fusiond.devices.cpu.provider import CpuProvider
from fusiond.devices.protocol import Checked, CheckRequest, Reference, Reply
from fusiond.devices.worker import ExecutorWorker
from fusiond.model.inputs.fills import initial
from fusiond.model.outcomes import BuildFailed, MeasureFailed, Outcome
from fusiond.model.program import (
    Alloc,
    Buffer,
    Bytes,
    Copy,
    Fill,
    Free,
    HostCall,
    Launch,
    Memory,
    Pointer,
    Program,
    Role,
    Scalar,
    Source,
    SourceKind,
    Step,
    problems,
)

pytestmark = pytest.mark.usefixtures("gxx_here")

DEVICE = """
struct Pair { int a; float b; };
__constant__ float table[4];
__device__ int counter;
__global__ void scale(const float* x, float* y, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * by;
}
__global__ void add(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += x[i];
}
__global__ void lookup(float* y, int n) { int i = threadIdx.x; if (i < n) y[i] = table[i % 4] + counter; }
__global__ void unpack(Pair pair, float* y) { y[threadIdx.x] = pair.a + pair.b; }
struct Row { int first; const float* data; };
__global__ void through(Row row, float* y) { y[threadIdx.x] = row.first + row.data[threadIdx.x]; }
__global__ void write_at(float* y, long long index) { y[index] = 1.0f; }
__global__ void nothing(float* y) {}
"""
ENTRIES = ("scale", "add", "lookup", "unpack", "through", "write_at", "nothing")
HOST = """
extern "C" void twice(const float* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = 2 * x[i]; }
"""
SOURCES = (
    Source(name="dev", text=DEVICE, entries=ENTRIES, symbols=("table", "counter")),
    Source(name="host", kind=SourceKind.HOST, text=HOST, entries=("twice",)),
)
N = 100
DATA = np.arange(N, dtype=np.float32)


def floats(name: str, role: Role = Role.SCRATCH, **fields: Any) -> Buffer:
    return Buffer(name=name, **{"dtype": "float32", "elements": N, "role": role, **fields})


def launch(name: str, entry: str, *arguments: Any, **fields: Any) -> Launch:
    packed = tuple(Pointer(buffer=each) if isinstance(each, str) else each for each in arguments)
    settings = {"grid": (2, 1, 1), "block": (64, 1, 1), **fields}
    return Launch(name=name, source="dev", entry=entry, arguments=packed, **settings)


def scale(name: str, x: str, y: str, by: float = 2.0, **fields: Any) -> Launch:
    return launch(name, "scale", x, y, Scalar(dtype="float32", value=by), Scalar(dtype="int32", value=N), **fields)


def add(name: str, x: str, y: str, **fields: Any) -> Launch:
    return launch(name, "add", x, y, Scalar(dtype="int32", value=N), **fields)


def copy(name: str, source: str, target: str, **fields: Any) -> Copy:
    return Copy(name=name, source=(source,), target=(target,), **fields)


def plan(buffers: tuple[Buffer, ...], *steps: Step) -> Program:
    used = {each.source for each in steps if isinstance(each, Launch | HostCall)} | (
        {"dev"} if any(each.symbol for each in buffers) else set()
    )
    made = Program(
        name="p", buffers=buffers, sources=tuple(each for each in SOURCES if each.name in used), steps=tuple(steps)
    )
    assert problems(made) == ()
    return made


def binaries_of(program: Program) -> dict[str, Path]:
    found = {}
    for source in program.sources:
        built = CpuProvider().build(source, "cpu")
        assert not isinstance(built, BuildFailed), built
        found[source.name] = built.path
    return found


@pytest.fixture(scope="module")
def executor(shared_cache: Path) -> CpuExecutor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSIOND_CACHE", str(shared_cache))
        return CpuExecutor()


@pytest.fixture
def load(executor: CpuExecutor) -> Callable[..., CpuProgram]:
    def load(program: Program, **data: np.ndarray) -> CpuProgram:
        loaded = executor.load(program, binaries_of(program))
        for buffer in program.buffers:
            loaded.write(buffer.name, data.get(buffer.name, initial(buffer, 0)))
        return loaded

    return load


@pytest.fixture
def run(load: Callable[..., CpuProgram]) -> Callable[..., Mapping[str, np.ndarray]]:
    """All buffers after one checked run."""

    def run(program: Program, seed: int = 0, **data: np.ndarray) -> Mapping[str, np.ndarray]:
        loaded = load(program, **data)
        try:
            loaded.run(seed=seed, checked=True)
            assert loaded.broken_guards() == ()
            return {each.name: loaded.read(each.name) for each in program.buffers}
        finally:
            loaded.close()

    return run


X, Y = floats("x", Role.INPUT), floats("y", Role.OUTPUT)


# --- every kind of step ---


def test_host_calls_and_pageable_memory(run: Callable[..., Any]) -> None:
    host = floats("h", memory=Memory.PAGEABLE)
    program = plan(
        (floats("x", Role.INPUT, memory=Memory.PAGEABLE), host, Y),
        HostCall(name="call", source="host", entry="twice",
                 arguments=(Pointer(buffer="x"), Pointer(buffer="h"), Scalar(dtype="int32", value=N))),
        copy("up", "h", "y"),
    )  # fmt: skip
    np.testing.assert_array_equal(run(program, x=DATA)["y"], 2 * DATA)


def test_a_run_of_buffers_is_one_message(run: Callable[..., Any]) -> None:
    left = [floats(f"l{i}", Role.INPUT, arena="left", offset_bytes=512 * i) for i in range(3)]
    right = [floats(f"r{i}", Role.OUTPUT, arena="right", offset_bytes=512 * i) for i in range(3)]
    message = Copy(name="c", source=("l0", "l1", "l2"), target=("r0", "r1", "r2"))
    found = run(plan((*left, *right), message), l0=DATA, l1=DATA + 1, l2=DATA + 2)
    for i in range(3):
        np.testing.assert_array_equal(found[f"r{i}"], DATA + i)


def test_a_struct_can_point_to_a_buffer(run: Callable[..., Any]) -> None:
    row = Bytes(hex="05000000" + "00" * 12, pointers=((8, "x"),))
    x = floats("x", Role.INPUT)
    found = run(plan((x, Y), launch("t", "through", row, "y", grid=(1, 1, 1), block=(N, 1, 1))), x=DATA)
    np.testing.assert_array_equal(found["y"], DATA + 5)


CONSTANTS = (
    Buffer(name="lut", dtype="float32", elements=4, role=Role.INPUT, symbol="dev:table"),
    Buffer(name="count", dtype="int32", elements=1, role=Role.INPUT, symbol="dev:counter"),
)
LOOKUP = launch("l", "lookup", "y", Scalar(dtype="int32", value=N), grid=(1, 1, 1), block=(N, 1, 1))


def test_a_variable_that_is_too_small(load: Callable[..., CpuProgram]) -> None:
    with pytest.raises(ExecutionError, match="the variable table 16") as caught:
        load(plan((dataclasses.replace(CONSTANTS[0], elements=5), CONSTANTS[1], Y), LOOKUP))
    assert caught.value.outcome is Outcome.LAUNCH_REFUSED


# --- allocation inside the plan ---

BETWEEN = (
    Alloc(name="alloc", arena="t"), scale("twice", "x", "t"), scale("again", "t", "y"), Free(name="free", arena="t"),
)  # fmt: skip


def test_alloc_and_free_again_and_again(load: Callable[..., CpuProgram]) -> None:
    loaded = load(plan((X, floats("t"), Y), *BETWEEN), x=DATA)
    for seed in range(3):
        loaded.run(seed=seed, checked=True)
        np.testing.assert_array_equal(loaded.read("y"), 4 * DATA)
    assert loaded.sample_us(3) > 0


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 1, 3, 2), (0, 3, 1, 2)])
def test_what_is_not_allocated_cannot_be_used(load: Callable[..., CpuProgram], order: tuple[int, ...]) -> None:
    loaded = load(plan((X, floats("t"), Y), *(BETWEEN[index] for index in order)), x=DATA)
    with pytest.raises(ExecutionError, match="uses t, which is not allocated then") as caught:
        loaded.run(seed=0, checked=True)
    assert caught.value.outcome is Outcome.CRASHED


# --- samples ---


def test_what_accumulates_is_brought_back(load: Callable[..., CpuProgram]) -> None:
    never = floats("n", Role.INOUT, reset="never")
    loaded = load(plan((X, floats("y", Role.INOUT), never), add("a", "x", "y"), add("b", "x", "n")),
                  x=DATA, y=DATA, n=DATA)  # fmt: skip
    loaded.restore()  # before a snapshot it does nothing
    loaded.snapshot()
    for _ in range(2):
        loaded.restore()
        loaded.sample_us(1)
    np.testing.assert_array_equal(loaded.read("y"), 2 * DATA)
    np.testing.assert_array_equal(loaded.read("n"), 3 * DATA)


# --- what is refused, what is caught ---


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"block": (2048, 1, 1)}, "block"),
        ({"shared_bytes": 1 << 20}, "shared"),
        ({"arguments": ()}, "takes 2 arguments"),
        ({"arguments": (Pointer(buffer="y"), Scalar(dtype="int32", value=1))}, "8 bytes"),
    ],
)
def test_launches_that_are_refused(load: Callable[..., CpuProgram], change: dict[str, Any], problem: str) -> None:
    step = dataclasses.replace(launch("w", "write_at", "y", Scalar(dtype="int64", value=0)), **change)
    with pytest.raises(ExecutionError, match=problem) as caught:
        load(plan((Y,), step)).run(seed=0, checked=True)
    assert caught.value.outcome is Outcome.LAUNCH_REFUSED


def test_binaries_that_cannot_be_loaded(executor: CpuExecutor, tmp_path: Path) -> None:
    program = plan((X, Y), scale("s", "x", "y"))
    (tmp_path / "no.so").write_text("nothing")
    for binaries in ({}, {"dev": tmp_path / "no.so"}, {"dev": tmp_path / "gone.so"}):
        with pytest.raises(ExecutionError, match="cannot load") as caught:
            executor.load(program, binaries)
        assert caught.value.outcome is Outcome.BUILD_FAILED


@pytest.mark.parametrize(
    ("index", "where"), [(N, "behind y"), (N + 4000, "behind y"), (-1, "before y"), (-16000, "before y")]
)
def test_a_write_outside_is_seen(load: Callable[..., CpuProgram], index: int, where: str) -> None:
    step = launch("w", "write_at", "y", Scalar(dtype="int64", value=index), grid=(1, 1, 1), block=(1, 1, 1))
    loaded = load(plan((Y,), step))
    loaded.run(seed=0, checked=True)
    (line,) = loaded.broken_guards()
    assert line.endswith(where)
    assert loaded.broken_guards() == ()  # mended, so that the next run is judged by itself


# --- through the worker: what a check says ---


@pytest.fixture
def judge(executor: CpuExecutor, tmp_path: Path) -> Callable[..., Reply]:
    """A candidate's check against a reference, as the child process does it."""
    numbers = itertools.count()

    def judge(reference: Program, candidate: Program) -> Reply:
        worker = ExecutorWorker(executor)
        folders = []
        for program in (reference, candidate):
            folder = tmp_path / f"bundle{next(numbers)}"
            write_bundle(folder, program, binaries_of(program))
            folders.append(str(folder))
        references = tuple((seed, str(tmp_path / f"{next(numbers)}.npz")) for seed in (0, 1))
        for seed, path in references:
            reply = worker.answer(Reference(bundle=folders[0], seed=seed, outputs=path))
            if reply != Checked(worst=0.0):
                return reply
        return worker.answer(CheckRequest(bundle=folders[1], references=references))

    return judge


RANDOM_X = dataclasses.replace(X, fill=Fill(kind="uniform", low=1.0, high=2.0))
GOOD = plan((RANDOM_X, floats("t"), Y), scale("a", "x", "t"), scale("b", "t", "y"))


def failed(reply: Reply) -> MeasureFailed:
    assert isinstance(reply, MeasureFailed), reply
    return reply


def test_an_output_that_is_not_written_is_wrong(judge: Callable[..., Reply]) -> None:
    part = launch("half", "scale", "x", "y", Scalar(dtype="float32", value=4.0), Scalar(dtype="int32", value=N - 1))
    reply = failed(judge(GOOD, plan((RANDOM_X, floats("t"), Y), part)))
    assert reply.outcome is Outcome.WRONG_RESULT
    assert "1 of 100 differ, first at [99]" in reply.reason
    nothing = launch("n", "nothing", "y")
    assert failed(judge(GOOD, plan((RANDOM_X, Y), nothing))).outcome is Outcome.WRONG_RESULT


def test_an_input_that_is_written_to_is_wrong(judge: Callable[..., Reply]) -> None:
    steps = scale("a", "x", "y", 4.0), add("b", "y", "x")
    reply = failed(judge(GOOD, plan((RANDOM_X, Y), *steps)))
    assert reply.outcome is Outcome.WRONG_RESULT
    assert reply.reason == "x is an input, and was written to"


def test_scratch_that_is_read_before_it_is_written_is_wrong(judge: Callable[..., Reply]) -> None:
    """Adding to fresh memory that happens to be zero is the classic that passes on a quiet GPU."""
    steps = add("a", "x", "t"), add("b", "x", "t"), scale("c", "t", "y")
    assert failed(judge(GOOD, plan((RANDOM_X, floats("t"), Y), *steps))).outcome is Outcome.WRONG_RESULT


def test_other_outputs_than_the_references_are_wrong(judge: Callable[..., Reply]) -> None:
    more = dataclasses.replace(GOOD, buffers=(*GOOD.buffers, floats("extra", Role.OUTPUT)))
    assert "has no output 'extra'" in failed(judge(GOOD, more)).reason
    fewer = plan((RANDOM_X, floats("t"), floats("y")), *GOOD.steps)
    assert "no output 'y'" in failed(judge(GOOD, fewer)).reason


def test_a_reference_that_races_agrees_with_nobody(judge: Callable[..., Reply]) -> None:
    racing = plan((RANDOM_X, Y), scale("a", "x", "y", 2.0, stream=1), scale("b", "x", "y", 3.0, stream=2))
    # Which of the two comes last is decided by the seed alone, so both runs of a seed agree; the seeds do not.
    for by in (2.0, 3.0):
        reply = judge(racing, plan((RANDOM_X, Y), scale("a", "x", "y", by)))
        assert failed(reply).outcome is Outcome.WRONG_RESULT


# --- a missing `after` ---


def piped(*missing: str) -> Program:
    """Two uploads, a kernel for each on streams of their own, a kernel that joins them, a download; the host fills the
    first input again for the next round. Every `after` in it can be left out by name."""

    def after(step: str, *names: str) -> tuple[str, ...]:
        return tuple(name for name in names if f"{step}<{name}" not in missing)

    host = {"memory": Memory.PAGEABLE}
    return plan(
        (floats("x", Role.INPUT, fill=Fill(kind="uniform"), **host),
         floats("w", Role.INPUT, fill=Fill(kind="uniform"), **host),
         floats("dx"), floats("dw"), floats("tx"), floats("tw"), floats("dy"), floats("y", Role.OUTPUT, **host)),
        copy("up_x", "x", "dx", stream=1),
        copy("up_w", "w", "dw", stream=2),
        scale("k_x", "dx", "tx", 2.0, stream=3, after=after("k_x", "up_x")),
        scale("k_w", "dw", "tw", 3.0, stream=4, after=after("k_w", "up_w")),
        scale("join", "tx", "dy", 1.0, stream=5, after=after("join", "k_x")),
        add("sum", "tw", "dy", stream=5, after=after("sum", "k_w")),
        copy("down", "dy", "y", stream=6, after=after("down", "sum")),
        copy("next_x", "w", "dx", stream=7, after=after("next_x", "k_x")),
        scale("reuse", "dw", "tx", 5.0, stream=8, after=after("reuse", "join", "up_w")),
    )  # fmt: skip


def outputs(run: Callable[..., Any], program: Program, seed: int) -> np.ndarray:
    found: np.ndarray = run(program, seed=seed)["y"]
    return found


def test_with_every_after_in_place_no_order_matters(run: Callable[..., Any]) -> None:
    wanted = outputs(run, piped(), 0)
    assert np.isfinite(wanted).all()
    for seed in range(1, 12):
        np.testing.assert_array_equal(outputs(run, piped(), seed), wanted)


@pytest.mark.parametrize(
    "missing", ["k_x<up_x", "k_w<up_w", "join<k_x", "sum<k_w", "down<sum", "next_x<k_x", "reuse<join"]
)
def test_a_missing_after_shows_on_one_of_the_two_seeds(run: Callable[..., Any], missing: str) -> None:
    """Too early and too late, copies and kernels: what a quiet GPU would let pass."""
    wanted = outputs(run, piped(), 0)
    program = piped(missing)
    assert any(not np.array_equal(outputs(run, program, seed), wanted) for seed in (0, 1))


def legal(steps: tuple[Step, ...], order: list[Step]) -> bool:
    place = {step.name: index for index, step in enumerate(order)}
    last: dict[int, str] = {}
    for step in steps:
        earlier = [*step.after, *([last[step.stream]] if step.stream in last else [])]
        if any(place[name] > place[step.name] for name in earlier):
            return False
        last[step.stream] = step.name
    return len(order) == len(steps)


@pytest.mark.parametrize("seed", range(30))
def test_every_order_is_a_legal_one(seed: int) -> None:
    generator = np.random.Generator(np.random.PCG64(seed))
    steps: list[Step] = []
    for number in range(40):
        after = tuple(str(each) for each in generator.choice(number, min(number, 2), replace=False)) if number else ()
        kind = copy if generator.random() < 0.4 else scale
        steps.append(kind(str(number), "x", "y", stream=int(generator.integers(4)), after=after))
    for each in range(6):
        assert legal(tuple(steps), _adversarial(tuple(steps), each))


def test_copies_come_as_late_and_as_early_as_is_legal() -> None:
    steps = piped().steps
    late = [step.name for step in _adversarial(steps, 0)]
    early = [step.name for step in _adversarial(steps, 1)]
    assert late.index("up_w") > late.index("up_x")  # it is needed later
    assert late[-1] != "sum"
    assert set(early[:2]) == {"up_x", "up_w"}
    assert early.index("next_x") < early.index("join")


def test_a_copy_that_overtakes_what_others_wait_for() -> None:
    """A kernel that waits for another one by its stream, and a download that should wait for it: the copy can come
    before it, though by what it waits for it is further down."""
    steps: tuple[Step, ...] = (
        copy("up", "x", "dx", stream=1),
        scale("first", "dx", "t", stream=0, after=("up",)),
        scale("second", "t", "u", stream=0),
        copy("down_first", "t", "y", stream=2, after=("first",)),
        copy("down_second", "u", "z", stream=2),
    )
    early, late = ([step.name for step in _adversarial(steps, seed)] for seed in (4, 3))
    assert early.index("down_second") < early.index("second")
    assert late == ["up", "first", "second", "down_first", "down_second"]
