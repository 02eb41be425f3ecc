"""The whole flow over sources that are PTX, on the cpu device: outcomes, the answer, the store, an export and the
exchange; and what programs over JAX or PyTorch get of them."""

import dataclasses
from pathlib import Path

import pytest

from fusiond.devices.cpu.provider import CpuProvider
from fusiond.model.nouns import Analysis, Config
from fusiond.model.outcomes import JobState, Outcome, Verdict
from fusiond.model.program import Program, SourceLanguage
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.service.client import exporting
from fusiond.service.frameworks import launching
from fusiond.store.database import Store
from fusiond.store.exchange.records import entry_of, program_of
from fusiond.store.exchange.signing import Signer
from fusiond.strategy import Answers, Baseline
from tests.conftest import run_job

from . import test_tuner_cpu
from .test_tuner_cpu import Faulty, Plugin

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
BODIES = {
    "right": "shl.b32 %r7, %r6, 1;",
    "wrong": "setp.eq.s32 %p2, %r5, 99999; selp.b32 %r7, 0, %r6, %p2; add.s32 %r7, %r7, %r6;",
    "out_of_bounds": "add.s32 %r7, %r6, %r6; ld.global.u32 %r6, [%rd5 + 4096];",
    "deadlocks": "add.s32 %r7, %r6, %r6; setp.lt.u32 %p2, %r4, 64; @%p2 bar.sync 1, 256; @!%p2 bar.sync 2, 256;",
    "hangs": "add.s32 %r7, %r6, %r6; AGAIN: bra AGAIN;",
    "not_known": "frob.s32 %r7, %r6, %r6;",
    "not_ptx": "{ add.s32 %r7, %r6, %r6;",
}
EXPECTED = {
    "right": (Outcome.MEASURED, ""),
    "wrong": (Outcome.WRONG_RESULT, ""),
    "out_of_bounds": (Outcome.CRASHED, "PTX line 22: ld.global.u32: an access of 4 bytes is outside of every buffer"),
    "deadlocks": (Outcome.CRASHED, "deadlock"),
    "hangs": (Outcome.TIMED_OUT, ""),
    "not_known": (Outcome.BUILD_FAILED, "frob.s32"),
    "not_ptx": (Outcome.BUILD_FAILED, "twice.ptx:26: the text ends in the middle"),
}


def program(body: str) -> Program:
    return test_tuner_cpu.program(TWICE.replace("BODY", body), language=SourceLanguage.PTX)


class FaultyPtx(Faulty):
    name = "faulty-ptx"
    bodies = BODIES
    first = "right"

    def baselines(self, analysis: Analysis) -> tuple[Baseline, ...]:
        idle = "AGAIN: sub.s32 %r3, %r3, 1; setp.gt.s32 %p2, %r3, 0; @%p2 bra AGAIN;"
        plain = f"{idle} add.s32 %r7, %r6, %r6;"
        return (Baseline(name="plain", detail="as given", emit=lambda config: program(plain)),)

    def emit(self, analysis: Analysis, config: Config, answers: Answers) -> Program:
        return program(self.bodies[config.text("body")])


@pytest.mark.slow
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
        assert {body: trial.outcome for body, trial in trials.items()} == {k: v for k, (v, _) in EXPECTED.items()}
        for body, trial in trials.items():
            assert EXPECTED[body][1] in (trial.reason or ""), (body, trial.reason)
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
    of = program(BODIES["right"])
    ((image,), names) = launching.built_for_gpu(of, "sm_90")
    assert image.startswith(b"\x7fELF")
    assert names == ("twice",)
    with pytest.raises(launching.Unusable, match="twice is PTX, which g\\+\\+ does not read"):
        launching.built_for_cpu(of)
    newest = dataclasses.replace(of.sources[0], text=of.sources[0].text.replace(".version 8.0", ".version 99.0"))
    with pytest.raises(launching.Unusable, match=r"twice.ptx:1: .version 99.0 needs the ptxas of CUDA"):
        launching.built_for_gpu(dataclasses.replace(of, sources=(newest,)), "sm_90")
