"""Every workload of the catalogues at a small size: what the PTX computes against what the cpu device's emulation does.

Both are exact but for contraction, which is off here, and for what PTX has as `.approx`: those outputs are compared as
their buffers say.
"""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

from fusiond.build import nvcc, nvdisasm
from fusiond.devices.compare import compare
from fusiond.devices.counting.library import CountingLibrary
from fusiond.devices.counting.model import H100
from fusiond.devices.counting.run import count
from fusiond.devices.cpu.executor import CpuExecutor
from fusiond.devices.cpu.provider import CpuProvider
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program, SourceKind
from fusiond.requests import jobs
from fusiond.requests.planning import emitted, plan, reference
from fusiond.requests.registry import Registry
from tools.gpu_box.build import REQUESTS, small

SLIGHT = 0.02  #: Relative; of edges that no wave that was run has
APPROXIMATE = (".approx", "ex2.", "rsqrt")
NAMES = [
    ("mincut", "enhance"),  # the one that `make test` runs
    *(("hfuse", f"{a},{b}") for a, b in itertools.pairwise(
        ("batchnorm", "hist", "maxpool", "upsample", "im2col", "blake256", "blake2b", "sha256", "ethash"))),
    *(("mincut", each) for each in ("harris", "unsharp", "sobel", "shitomasi", "night")),
    *(("stitching", each) for each in (
        "nmt_fig3", "lr_step", "nmt_attn", "lstm_step", "bilstm_step", "speech_fwd", "w2v_step")),
    *(("transfer", each) for each in ("fig2", "horner", "cg", "matmul")),
]  # fmt: skip


def programs(registry: Registry, strategy: str, name: str) -> list[tuple[str, Program]]:
    """Unfused, and the first two seeds."""
    key = REQUESTS[strategy][1]
    asked = f"[{name.replace(',', ', ')}]" if key == "pair" else name
    (job,) = jobs.read("catalogue.yaml", f"strategy: {strategy}\n{key}: {asked}\n")
    found = plan(registry, small(registry, strategy, name, job), arch=None)
    made = [("native", reference(found.prepared.strategy, found.analysis))]
    for label, config in found.seeds[:2]:
        program = emitted(found.prepared.strategy, found.analysis, config, {})
        if isinstance(program, Program):
            made.append((label, program))
    return made


def uncontracted(program: Program) -> Program:
    """With products and sums each rounded by itself, as the emulation does."""
    sources = tuple(
        dataclasses.replace(each, flags=(*each.flags, "-fmad=false")) if each.kind is SourceKind.DEVICE else each
        for each in program.sources
    )
    return dataclasses.replace(program, sources=sources)


@pytest.mark.needs_nvcc
@pytest.mark.sampled(25)
@pytest.mark.parametrize(("strategy", "name"), NAMES, ids=lambda value: value)
def test_the_ptx_computes_what_the_emulation_does(counting: CountingLibrary, strategy: str, name: str) -> None:
    provider, executor = CpuProvider(), CpuExecutor()
    for label, program in programs(Registry.load(), strategy, name):
        binaries: dict[str, Path] = {}
        for source in program.sources:
            built = provider.build(source, "cpu")
            assert not isinstance(built, BuildFailed)
            binaries[source.name] = built.path
        found = count(uncontracted(program))
        assert [row.failed for row in found.rows if row.failed] == []
        for row in found.rows:
            assert row.ptx_instructions
            if nvdisasm.missing() is None:
                # Above all for division and tanh, which are subroutines of the machine.
                assert 1 / 3 < (row.instructions or 0) / row.ptx_instructions < 5
            else:
                assert row.instructions is None
        loaded = executor.load(program, binaries)
        for buffer in program.buffers:
            executor.data.fill(loaded, buffer, 0)
        loaded.run(seed=0, checked=False)
        texts = [nvcc.ptx(each, "sm_90") for each in program.sources if each.kind is SourceKind.DEVICE]
        approximate = any(word in str(text) for text in texts for word in APPROXIMATE)
        for buffer in program.buffers:
            if not buffer.role.compared:
                continue
            expected, ours = loaded.read(buffer.name), found.outputs[buffer.name]
            if approximate and buffer.compare.kind == "equal" and expected.dtype.kind in "iu":
                apart = np.abs(expected.astype(np.int64) - ours.astype(np.int64))  # rounded from what is approximate
                assert apart.max(initial=0) <= 1, f"{label}: {buffer.name}"
                assert np.count_nonzero(apart) <= expected.size // 1000, f"{label}: {buffer.name}"
            elif approximate:
                assert compare(buffer, expected, ours).equal, f"{label}: {buffer.name}"
            else:
                assert ours.tobytes() == expected.tobytes(), f"{label}: {buffer.name}"
        loaded.close()


@pytest.mark.needs_nvcc
@pytest.mark.sampled(25)
@pytest.mark.parametrize(("strategy", "name"), NAMES, ids=lambda value: value)
def test_sampled_launches_of_the_catalogue_are_within_the_error_told(
    counting: CountingLibrary, strategy: str, name: str
) -> None:
    """On a GPU so small that its launches have many waves."""
    gpu = dataclasses.replace(H100, multiprocessors=1, most_blocks=1, l2_bytes=8 << 10)
    fields = (
        "global_read_bytes", "global_write_bytes", "read_sectors", "write_sectors", "shared_wavefronts",
        "ptx_instructions", "minimal_bytes", "dram_bytes",
    )  # fmt: skip
    for label, program in programs(Registry.load(), strategy, name):
        whole = count(program, gpu=gpu, budget=None)
        sampled = count(program, gpu=gpu, budget=2000)
        for row, expected in zip(sampled.rows, whole.rows, strict=True):
            assert row.failed is None
            for field in fields:
                ours, theirs = getattr(row, field), getattr(expected, field)
                if row.error is not None:
                    assert abs(ours - theirs) <= (row.error + SLIGHT) * theirs, f"{label}: {row.launch}: {field}"
            assert row.bound_us <= (1 + (row.error or 0.0) + SLIGHT) * expected.bound_us
