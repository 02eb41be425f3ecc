"""Two judges of a kernel that have nothing in common but its data: C++ that g++ makes of it, and PTX that nvcc makes of
it. They agree; and where one of them is broken on purpose, they do not."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fusiond.build.cpu import commands
from fusiond.build.cpu.lowering import lower
from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices.counting.ptx_check import Judged, apart, judge
from fusiond.devices.cpu import native
from fusiond.model.inputs.fills import initial
from fusiond.model.program import Buffer, Fill, Launch, Pointer, Program, Role, Source

Outputs = dict[str, NDArray[np.generic]]
THREADS = 64
MANY = 4 * THREADS
TEXT = """
#include <cuda_fp16.h>

__device__ unsigned mixed(int i, unsigned x)
{
    return __popc(x) + 3u * __clz(i) + 5u * __brev(x) + __funnelshift_l(x, i, 7) + __byte_perm(x, i, 0x3715);
}

__global__ void judged(const float* x, const int* y, unsigned* bits, float* values, int* counts)
{
    __shared__ int held[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    held[threadIdx.x] = y[i];
    __syncthreads();
    int other = held[63 - threadIdx.x];
    unsigned above = __shfl_up_sync(0xffffffffu, (unsigned)y[i], 3);
    unsigned beside = __shfl_xor_sync(0xffffffffu, (unsigned)other, 5);
    unsigned below = __shfl_down_sync(0xffffffffu, above, 2, 16);
    unsigned votes = __ballot_sync(0xffffffffu, y[i] % 3 == 0) + __match_any_sync(0xffffffffu, y[i] & 7);
    bits[i] = mixed(y[i], above * 31 + beside * 17 + below) + votes;
    __half narrow = __float2half(x[i] * 100.0f);
    values[i] = __half2float(__hadd(narrow, __float2half(0.1f))) + (float)__float2int_rd(x[i] * 7.0f);
    atomicAdd(&counts[(unsigned)y[i] % 8], 1);
    atomicMax(&counts[8 + threadIdx.x % 8], other);
    if (atomicCAS(&counts[16 + i], 0, other) == 0) atomicXor(&counts[16 + i], 5);
}
"""


def program(text: str = TEXT) -> Program:
    def buffer(name: str, dtype: str, elements: int, role: Role, **fill: object) -> Buffer:
        return Buffer(name=name, dtype=dtype, elements=elements, role=role, fill=Fill(**fill))  # type: ignore[arg-type]

    names = ("x", "y", "bits", "values", "counts")
    return Program(
        name="judged",
        buffers=(buffer("x", "float32", MANY, Role.INPUT, kind="uniform", low=-1.0, high=1.0),
                 buffer("y", "int32", MANY, Role.INPUT, kind="integers", low=1, high=10**6),
                 buffer("bits", "uint32", MANY, Role.OUTPUT), buffer("values", "float32", MANY, Role.OUTPUT),
                 buffer("counts", "int32", 16 + MANY, Role.INOUT, kind="zeros")),
        sources=(Source(name="judged", text=text, entries=("judged",)),),
        steps=(
            Launch(name="judged", source="judged", entry="judged", grid=(MANY // THREADS, 1, 1), block=(THREADS, 1, 1),
                   arguments=tuple(Pointer(buffer=name) for name in names)),
        ),
    )  # fmt: skip


def emulated(made: Program, folder: Path) -> Outputs | native.Fault:
    """Its outputs by the emulation of C++, with whatever runtime `commands.RUNTIME` is."""
    folder.mkdir(exist_ok=True)
    unit = commands.translation_unit(lower(made.sources[0].text), {"judged": "judged"})
    (folder / "kernel.cpp").write_text(unit)
    for command in (
        commands.library(folder / "library.so"),
        commands.kernel(folder / "kernel.cpp", folder / "kernel.so"),
    ):
        subprocess.run(command, check=True, capture_output=True)
    runtime = native.Runtime(folder / "library.so")
    data = {each.name: initial(each, 0).copy() for each in made.buffers}
    (step,) = made.launches
    launch = native.NativeLaunch(grid=step.grid, block=step.block)
    done = runtime.launch(runtime.load(folder / "kernel.so").entry("judged"), launch, list(data.values()))
    if isinstance(done, native.Fault):
        return done
    return {each.name: data[each.name] for each in made.buffers if each.role.compared}


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory, gxx_here: None) -> Outputs:
    found = emulated(program(), tmp_path_factory.mktemp("emulated"))
    assert isinstance(found, dict)
    return found


@pytest.mark.needs_nvcc
def test_both_judges_agree(computed: Outputs) -> None:
    assert judge(program(), computed, fmad=False) == Judged(agrees=True)


@pytest.mark.needs_nvcc
def test_another_result_is_said_and_what_cannot_be_judged_too(computed: Outputs, tmp_path: Path) -> None:
    wrong = {**computed, "counts": (computed["counts"] + 2 * (np.arange(16 + MANY) == 9)).astype(np.int32)}
    assert str(judge(program(), wrong, fmad=False)).startswith("differs: counts: 1 of 272 differ, first at [9]")
    assert str(judge(program("__global__ void judged() { no such thing }"), computed)).startswith("not judged: ")
    outside = TEXT.replace("bits[i] =", "bits[i + (i == 7) * 100000] =")
    assert str(judge(program(outside), computed)).startswith("differs: judged: judged.cu:")
    waits = TEXT.replace("__syncthreads();", 'if (threadIdx.x < 5) asm volatile("barrier.sync 1, 64;");')
    assert "5 lanes of warp 0 wait at barrier 1" in str(judge(program(waits), computed))


@pytest.mark.needs_nvcc
def test_a_bundle_is_judged_in_a_process_of_its_own(computed: Outputs, tmp_path: Path) -> None:
    np.savez(tmp_path / "outputs.npz", **computed)  # type: ignore[arg-type]
    write_bundle(tmp_path / "bundle", program(), {})
    said = apart(tmp_path / "bundle", tmp_path / "outputs.npz", seed=0, fmad=False, timeout_secs=120)
    assert said == Judged(agrees=True)
    assert apart(tmp_path / "bundle", tmp_path / "outputs.npz", seed=1, fmad=False, timeout_secs=120).agrees is False
    assert (
        "takes longer than"
        in apart(tmp_path / "bundle", tmp_path / "outputs.npz", seed=0, fmad=False, timeout_secs=0.01).detail
    )
    command = [sys.executable, "-m", "fusiond.devices.counting.ptx_check", str(tmp_path / "none"), "outputs.npz"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


EMULATOR = {
    # file, what is replaced, with what
    "leading zeros of nothing": ("bits.h", "x ? __builtin_clz((unsigned)x) : 32", "__builtin_clz((unsigned)x) - 1"),
    "bits reversed by half-words": ("bits.h", "return __builtin_bswap32(x);", "return x << 16 | x >> 16;"),
    "a funnel shift of the other word": ("bits.h", "((uint64_t)hi << 32 | lo) << (shift",
                                         "((uint64_t)lo << 32 | hi) << (shift"),
    "half numbers of three times their value": ("narrow.h", "const uint32_t exponent = half & 0x7c00u;",
                                                "const uint32_t exponent = half & 0x7c00u; half += 0x0200;"),
    "an exchange that never happens": ("atomics.h", "*address = change(old);\n    return old;",
                                       "change(old);\n    return old;"),
    "a vote that forgets a lane": ("warp.cpp", "uint32_t same = 0;\n    for (uint32_t rest = lanes;",
                                   "uint32_t same = 0;\n    for (uint32_t rest = lanes & (lanes - 1);"),
}  # fmt: skip


@pytest.mark.needs_nvcc
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if k < 1 else pytest.mark.campaign) for k, name in enumerate(EMULATOR)]
)
def test_a_broken_emulation_is_found_out(
    computed: Outputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file, old, new = EMULATOR[name]
    shutil.copytree(commands.RUNTIME, tmp_path / "runtime")
    text = (tmp_path / "runtime" / file).read_text()
    assert text.count(old) == 1
    (tmp_path / "runtime" / file).write_text(text.replace(old, new))
    monkeypatch.setattr(commands, "RUNTIME", tmp_path / "runtime")
    found = emulated(program(), tmp_path / "emulated")
    assert isinstance(found, dict), "the emulation notices that by itself: it says nothing of the judge"
    assert judge(program(), found, fmad=False).agrees is False
