"""The whole flow on the cpu device with real CUDA source: four ways to fail are four outcomes, and the answer is
right."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from fusiond.devices.cpu.provider import CpuProvider
from fusiond.model.nouns import Analysis, Config, Job, Workload, frozen
from fusiond.model.outcomes import JobState, Outcome, Verdict
from fusiond.model.program import Buffer, Fill, Launch, Pointer, Program, Role, Scalar, Source, SourceLanguage
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.service.client import exporting
from fusiond.service.frameworks import launching
from fusiond.store.database import Store
from fusiond.store.exchange.records import entry_of, program_of
from fusiond.store.exchange.signing import Signer
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


# --- the whole flow over sources that are PTX -----------------------------------------------------------


TWICE = """\
.version 8.0
.target sm_75
.address_size 64
.visible .entry twice(.param .u64 y, .param .u64 x, .param .u32 n)
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [y];
    ld.param.u64 %rd2, [x];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.s32 %p1, %r5, %r1;
    @%p1 bra DONE;
    mul.wide.s32 %rd3, %r5, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.u32 %r6, [%rd5];
    BODY
    st.global.u32 [%rd4], %r7;
DONE:
    ret;
}
"""
PTX_BODIES = {
    "right": "shl.b32 %r7, %r6, 1;",
    "wrong": "setp.eq.s32 %p2, %r5, 99999; selp.b32 %r7, 0, %r6, %p2; add.s32 %r7, %r7, %r6;",
    "out_of_bounds": "add.s32 %r7, %r6, %r6; ld.global.u32 %r6, [%rd5 + 4096];",
    "deadlocks": "add.s32 %r7, %r6, %r6; setp.lt.u32 %p2, %r4, 64; @%p2 bar.sync 1, 256; @!%p2 bar.sync 2, 256;",
    "hangs": "add.s32 %r7, %r6, %r6; AGAIN: bra AGAIN;",
    "not_known": "frob.s32 %r7, %r6, %r6;",
    "not_ptx": "{ add.s32 %r7, %r6, %r6;",
}
PTX_EXPECTED = {
    "right": (Outcome.MEASURED, ""),
    "wrong": (Outcome.WRONG_RESULT, ""),
    "out_of_bounds": (Outcome.CRASHED, "PTX line 22: ld.global.u32: an access of 4 bytes is outside of every buffer"),
    "deadlocks": (Outcome.CRASHED, "deadlock"),
    "hangs": (Outcome.TIMED_OUT, ""),
    "not_known": (Outcome.BUILD_FAILED, "frob.s32"),
    "not_ptx": (Outcome.BUILD_FAILED, "twice.ptx:26: the text ends in the middle"),
}


def ptx_program(body: str) -> Program:
    return program(TWICE.replace("BODY", body), language=SourceLanguage.PTX)


class FaultyPtx(Faulty):
    name = "faulty-ptx"
    bodies = PTX_BODIES
    first = "right"

    def baselines(self, analysis: Analysis) -> tuple[Baseline, ...]:
        idle = "AGAIN: sub.s32 %r3, %r3, 1; setp.gt.s32 %p2, %r3, 0; @%p2 bra AGAIN;"
        plain = f"{idle} add.s32 %r7, %r6, %r6;"
        return (Baseline(name="plain", detail="as given", emit=lambda config: ptx_program(plain)),)

    def emit(self, analysis: Analysis, config: Config, answers: Answers) -> Program:
        return ptx_program(self.bodies[config.text("body")])


@pytest.mark.needs_nvcc
@pytest.mark.usefixtures("gxx_here", "short_measuring")
def test_every_fault_is_its_own_outcome_and_the_answer_travels(tmp_path: Path) -> None:
    registry = Registry()
    registry.add(Plugin(FaultyPtx()), "faulty")
    with Store.open(tmp_path / "store.sqlite") as store:
        (job,) = jobs.read("twice.yaml", "strategy: faulty-ptx\nsearch: {sanitize: true}\n")
        row, state = run_job(store, registry, job, least_patience_secs=3)
        trials = {each.config.text("body"): each for each in store.trials(row.id)}
        (info,) = CpuProvider().devices()
        record = store.record(row.workload_key, info.key)
        assert state is JobState.DONE, store.job(row.id).problem
        assert {body: trial.outcome for body, trial in trials.items()} == {k: v for k, (v, _) in PTX_EXPECTED.items()}
        for body, trial in trials.items():
            assert PTX_EXPECTED[body][1] in (trial.reason or ""), (body, trial.reason)
        assert record is not None
        assert record.verified
        assert record.verdict is Verdict.FUSE
        assert any("PTX, and twice runs as PTX" in each for each in record.checks), record.checks
        assert record.source is not None
        assert record.source.endswith(".ptx")

        kept = store.program(str(record.program_key))
        assert kept is not None
        assert kept.sources[0].language is SourceLanguage.PTX
        document = {
            "workload": {"name": "twice", "strategy": "faulty-ptx", "sizes": {}},
            "device": {"name": "cpu", "key": info.key}, "verdict": "fuse", "program_key": kept.key,
        }  # fmt: skip
        files = {each.name for each in exporting.export(store.path, document, tmp_path / "out")}
        assert {"twice.ptx", "twice.entries.cpp", "twice.sm_90.cubin"} <= files

        entry = entry_of(store, Signer.of(store.path), record, {info.key: info})
        assert entry is not None
        assert program_of(entry, "program") == kept


@pytest.mark.needs_nvcc
def test_programs_of_others_get_a_cubin_for_a_gpu_and_nothing_for_a_processor() -> None:
    of = ptx_program(PTX_BODIES["right"])
    ((image,), names) = launching.built_for_gpu(of, "sm_90")
    assert image.startswith(b"\x7fELF")
    assert names == ("twice",)
    with pytest.raises(launching.Unusable, match="twice is PTX, which g\\+\\+ does not read"):
        launching.built_for_cpu(of)
    newest = dataclasses.replace(of.sources[0], text=of.sources[0].text.replace(".version 8.0", ".version 99.0"))
    with pytest.raises(launching.Unusable, match=r"twice.ptx:1: .version 99.0 needs the ptxas of CUDA"):
        launching.built_for_gpu(dataclasses.replace(of, sources=(newest,)), "sm_90")
