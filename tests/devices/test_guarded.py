"""Programs that are right in the runs that are checked, and wrong in those that are timed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices import protocol
from fusiond.devices.cpu.executor import CpuExecutor
from fusiond.devices.cpu.interpreted import build
from fusiond.devices.timing import Sampling
from fusiond.devices.worker import ExecutorWorker
from fusiond.model.outcomes import BuildFailed, MeasureFailed, Measurement, Outcome, Purpose
from fusiond.model.program import Buffer, Fill, Launch, Pointer, Program, Role, Source, default_compare

N = 512
PLAN = Sampling(
    purpose=Purpose.SEARCH, warmups=2, warm_up_secs=0.0, least_pairs=6, pairs=8, budget_secs=5.0, short_us=1.0,
    noise_limit=9.0,  # the machine may be busy
)  # fmt: skip
HEAD = """\
__device__ int launched;
__device__ float seen;
__device__ float* place;
extern "C" __global__ void work(float* x, float* y)
{
    const int i = threadIdx.x;
"""
SQUARE = "    y[i] = x[i] * x[i];\n"


def source(body: str) -> str:
    return f"{HEAD}{body}}}\n"


HONEST = source(SQUARE)
THEN = "    atomicAdd(&launched, 1);\n"
LATER = f"launched > 12 * {N}"
ODD_ONES = {
    "works in the first runs only": (source(f"    if (!({LATER})) {{\n{SQUARE}    }}\n{THEN}"), "y"),
    "writes to its input later": (source(f"{SQUARE}    if ({LATER}) x[i] = 0.0f;\n{THEN}"),
                                  "x is an input, and was written to"),
    "writes behind its output later": (source(f"{SQUARE}    if ({LATER}) y[i + {N}] = 0.0f;\n{THEN}"), "out of bounds"),
}  # fmt: skip
"""What it is -> its text, and what is said of it."""


def program(text: str) -> Program:
    return Program(
        name="square",
        buffers=(Buffer(name="x", dtype="float32", elements=N, role=Role.INPUT, fill=Fill(kind="uniform")),
                 Buffer(name="y", dtype="float32", elements=N, role=Role.OUTPUT, compare=default_compare("float32"))),
        sources=(Source(name="s", text=text, entries=("work",)),),
        steps=(
            Launch(name="a", source="s", entry="work", grid=(1, 1, 1), block=(N, 1, 1), shared_bytes=0,
                   arguments=(Pointer(buffer="x"), Pointer(buffer="y"))),
        ),
    )  # fmt: skip


@pytest.fixture
def bundle(tmp_path: Path) -> Callable[[str], str]:
    def made(text: str) -> str:
        binaries = {}
        found = program(text)
        for each in found.sources:
            path = build(each)
            assert not isinstance(path, BuildFailed), path
            binaries[each.name] = path
        folder = tmp_path / f"bundle{len(list(tmp_path.iterdir()))}"
        write_bundle(folder, found, binaries)
        return str(folder)

    return made


@pytest.fixture
def worker() -> ExecutorWorker:
    return ExecutorWorker(CpuExecutor())


@pytest.fixture
def references(worker: ExecutorWorker, bundle: Callable[[str], str], tmp_path: Path) -> tuple[tuple[int, str], ...]:
    made = []
    for seed in (12, 7):
        path = str(tmp_path / f"outputs-{seed}.npz")
        assert isinstance(
            worker.answer(protocol.Reference(bundle=bundle(HONEST), seed=seed, outputs=path)), protocol.Checked
        )
        made.append((seed, path))
    return tuple(made)


def test_an_honest_program_is_measured(
    worker: ExecutorWorker, bundle: Callable[[str], str], references: tuple[tuple[int, str], ...]
) -> None:
    request = protocol.SampleRequest(
        candidate=bundle(HONEST), baseline=bundle(HONEST), plan=PLAN, references=references
    )
    found = worker.answer(request)
    assert isinstance(found, Measurement), found
    assert len(found.span_us) == len(found.baseline_us) >= PLAN.least_pairs


@pytest.mark.parametrize("name", ODD_ONES)
def test_what_timed_runs_wrote_is_judged(
    name: str, worker: ExecutorWorker, bundle: Callable[[str], str], references: tuple[tuple[int, str], ...]
) -> None:
    text, said = ODD_ONES[name]
    folder = bundle(text)
    checked = worker.answer(protocol.CheckRequest(bundle=folder, references=references, suspicious=True))
    assert isinstance(checked, protocol.Checked), checked
    unguarded = worker.answer(protocol.SampleRequest(candidate=folder, baseline=None, plan=PLAN))
    assert isinstance(unguarded, Measurement), "without references nobody looks"
    found = worker.answer(protocol.SampleRequest(candidate=folder, baseline=None, plan=PLAN, references=references))
    assert isinstance(found, MeasureFailed)
    assert found.outcome in (Outcome.WRONG_RESULT, Outcome.CRASHED)
    assert said in found.reason


MEMO = f"    if (seen != x[0]) {{\n{SQUARE}    }}\n    __syncthreads();\n    if (i == 0) seen = x[0];\n"


def test_what_remembers_its_last_data_is_wrong_between_the_runs_of_a_sample(
    worker: ExecutorWorker, bundle: Callable[[str], str], references: tuple[tuple[int, str], ...]
) -> None:
    """Inputs change between samples, and it notices; within one they do not, and the outputs are poisoned."""
    memo = source(MEMO)
    folder = bundle(memo)
    once = Sampling(purpose=Purpose.SEARCH, warmups=2, warm_up_secs=0.0, least_pairs=4, pairs=4, short_us=0.001)
    found = worker.answer(protocol.SampleRequest(candidate=folder, baseline=None, plan=once, references=references))
    assert isinstance(found, Measurement), "one run a sample: other data each time"
    several = Sampling(purpose=Purpose.SEARCH, warmups=2, warm_up_secs=0.0, least_pairs=4, pairs=4, short_us=5000.0)
    found = worker.answer(protocol.SampleRequest(candidate=folder, baseline=None, plan=several, references=references))
    assert isinstance(found, MeasureFailed)
    assert "(in a timed run)" in found.reason


def test_a_second_run_on_the_same_data_tells_what_remembers(
    worker: ExecutorWorker, bundle: Callable[[str], str], references: tuple[tuple[int, str], ...]
) -> None:
    memo = source(f"    // Another library than above, with its own memory.\n{MEMO}")
    folder = bundle(memo)
    plain = worker.answer(protocol.CheckRequest(bundle=folder, references=references))
    assert isinstance(plain, protocol.Checked)
    found = worker.answer(protocol.CheckRequest(bundle=folder, references=references, suspicious=True))
    assert isinstance(found, MeasureFailed)
    assert "(in a second run on the same data)" in found.reason
