"""The whole flow on the cpu device with real CUDA source: four ways to fail are four outcomes, and the answer is
right."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from fusiond.devices.cpu.provider import CpuProvider
from fusiond.model.nouns import Analysis, Config, Job, Workload, frozen
from fusiond.model.outcomes import JobState, Outcome
from fusiond.model.program import Buffer, Fill, Launch, Pointer, Program, Role, Scalar, Source, SourceLanguage
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.strategy import Answers, Baseline, Inputs, StrategyBase, Target
from fusiond.strategy.hookspecs import hookimpl
from fusiond.strategy.space import Parameter, Space
from tests.conftest import run_job

ELEMENTS = 100_000

UNFUSED = """
__global__ void twice(int* y, const int* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
"""
BODIES = {
    "right": "if (i < n) y[i] = x[i] + x[i];",
    # The counter is volatile, or the compiler would be free to assume that the loop ends.
    "hangs": "volatile int wait = 1; while (wait) {} if (i < n) y[i] = 2 * x[i];",
    "out_of_bounds": "if (i < n + 7) y[i] = 2 * (i < n ? x[i] : 0);",
    "wild": "if (i < n) y[i + 400000000LL] = 2 * x[i];",
    "wrong": "if (i < n) y[i] = i == 99999 ? 0 : 2 * x[i];",
    "unwritten": "if (i < n - 1) y[i] = 2 * x[i];",
    "does_not_compile": "y[i] = 2 * x[i]",
    "deadlocks": "if (threadIdx.x < 64) __syncthreads(); else FUSIOND_BARRIER(1, 256); if (i < n) y[i] = 2 * x[i];",
}
EXPECTED = {
    "right": Outcome.MEASURED, "hangs": Outcome.TIMED_OUT, "out_of_bounds": Outcome.CRASHED, "wild": Outcome.CRASHED,
    "wrong": Outcome.WRONG_RESULT, "unwritten": Outcome.WRONG_RESULT, "does_not_compile": Outcome.BUILD_FAILED,
    "deadlocks": Outcome.CRASHED,
}  # fmt: skip


def program(text: str, threads: int = 256, language: SourceLanguage = SourceLanguage.CUDA) -> Program:
    arguments = (Pointer(buffer="y"), Pointer(buffer="x"), Scalar(dtype="int32", value=ELEMENTS))
    fill = Fill(kind="integers", low=1, high=1000)
    return Program(
        name="twice",
        buffers=(Buffer(name="y", dtype="int32", elements=ELEMENTS, role=Role.OUTPUT),
                 Buffer(name="x", dtype="int32", elements=ELEMENTS, role=Role.INPUT, fill=fill)),
        sources=(Source(name="twice", text=text, entries=("twice",), language=language),),
        steps=(
            Launch(name="twice", source="twice", entry="twice", grid=(-(-ELEMENTS // threads), 1, 1),
                   block=(threads, 1, 1), arguments=arguments),
        ),
    )  # fmt: skip


class Faulty(StrategyBase):
    """Whose configs are bodies of one kernel, each right or wrong in its own way."""

    name = "faulty"
    version = 1
    bodies: ClassVar[Mapping[str, str]] = BODIES
    first = "hangs"

    def parse(self, job: Job, inputs: Inputs) -> Workload:
        return Workload(strategy=self.name, strategy_version=1, name="twice", members=("twice",),
                        sizes=frozen({"n": ELEMENTS}), content="twice", payload=None)  # fmt: skip

    def analyse(self, workload: Workload, target: Target) -> Analysis:
        return Analysis(workload=workload, report=frozen(), payload=None)

    def space(self, analysis: Analysis, answers: Answers) -> Space:
        return Space(parameters=(Parameter(name="body", values=tuple(self.bodies)),))

    def seeds(self, analysis: Analysis, space: Space, answers: Answers) -> tuple[tuple[str, Config], ...]:
        return (("first", Config.of({"body": self.first})),)

    def baselines(self, analysis: Analysis) -> tuple[Baseline, ...]:
        return (Baseline(name="plain", detail="as given", emit=lambda config: program(UNFUSED)),)

    def emit(self, analysis: Analysis, config: Config, answers: Answers) -> Program:
        body = self.bodies[config.text("body")]
        head = "{\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    "
        return program(UNFUSED.partition("{")[0] + head + body + "\n}\n")


class Plugin:
    """A faulty strategy, and the processor."""

    def __init__(self, strategy: Faulty) -> None:
        self._strategy = strategy

    @hookimpl
    def register_strategies(self, register: Callable[[Faulty], None]) -> None:
        register(self._strategy)

    @hookimpl
    def register_devices(self, register: Callable[[CpuProvider], None]) -> None:
        register(CpuProvider())


@pytest.mark.slow
@pytest.mark.usefixtures("gxx_here", "short_measuring")
def test_every_fault_is_its_own_outcome_and_the_answer_is_right(tmp_path: Path) -> None:
    registry = Registry()
    registry.add(Plugin(Faulty()), "faulty")
    with Store.open(tmp_path / "store.sqlite") as store:
        (job,) = jobs.read("twice.yaml", "strategy: faulty\n")
        row, state = run_job(store, registry, job, least_patience_secs=3)
        trials = {each.config.text("body"): each for each in store.trials(row.id)}
        (info,) = CpuProvider().devices()
        record = store.record(row.workload_key, info.key)
    assert state is JobState.DONE
    assert {body: trial.outcome for body, trial in trials.items()} == EXPECTED
    assert all(trial.reason for body, trial in trials.items() if body != "right")
    assert record is not None
    assert record.config is not None
    assert record.config.text("body") == "right"
    assert record.evidence == "emulated"
    assert record.verified
