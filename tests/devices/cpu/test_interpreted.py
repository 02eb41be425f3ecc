"""PTX on the cpu device: what Triton wrote and what only nvcc takes against NumPy, and launches that break."""

import dataclasses
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fusiond.build import nvcc
from fusiond.build.exporting.bundle import read_bundle, write_bundle
from fusiond.devices.base import ExecutionError
from fusiond.devices.counting import run as counting
from fusiond.devices.cpu import race
from fusiond.devices.cpu.executor import CpuExecutor, CpuProgram
from fusiond.devices.cpu.provider import CpuProvider
from fusiond.model.errors import RequestError
from fusiond.model.inputs.fills import initial
from fusiond.model.outcomes import BuildFailed, Outcome
from fusiond.model.program import (
    Alloc,
    Buffer,
    Free,
    Launch,
    Pointer,
    Program,
    Role,
    Scalar,
    Source,
    SourceLanguage,
    problems,
)

pytestmark = pytest.mark.slow
DATA = Path(__file__).parents[2] / "ptx_data"

TEXT = """\
.version 8.0
.target sm_80
.address_size 64
.const .align 4 .f32 by = 0f40000000;
.visible .entry scale(.param .u64 x, .param .u64 y)
.maxntid 64
{
    .reg .f32 %f<4>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.f32 %f1, [%rd4];
    ld.const.f32 %f2, [by];
    mul.f32 %f3, %f1, %f2;
    st.global.f32 [%rd5], %f3;
    ret;
}
.visible .entry stuck(.param .u64 x)
.reqntid 64
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 32;
    @%p1 bar.sync 0, 64;
    @!%p1 bar.sync 1, 64;
    ret;
}
.visible .entry trapped() { trap; ret; }
"""
N = 64
PTX = Source(
    name="made", text=TEXT, entries=("scale", "stuck", "trapped"), symbols=("by",), language=SourceLanguage.PTX
)
CUDA = Source(name="plain", text="__global__ void thrice(float* y) { y[threadIdx.x] *= 3; }", entries=("thrice",))


def floats(name: str, role: Role, **fields: Any) -> Buffer:
    return Buffer(**{"name": name, "dtype": "float32", "elements": N, "role": role, **fields})


X, Y = floats("x", Role.INPUT), floats("y", Role.OUTPUT)


def launch(entry: str, *arguments: str, source: str = "made", **fields: Any) -> Launch:
    given = tuple(Pointer(buffer=each) for each in arguments)
    return Launch(**{"name": entry, "source": source, "entry": entry, "arguments": given, "grid": (1, 1, 1),
                     "block": (N, 1, 1), **fields})  # fmt: skip


def program(*steps: Any, buffers: tuple[Buffer, ...] = (X, Y), sources: tuple[Source, ...] = (PTX,)) -> Program:
    made = Program(name="p", buffers=buffers, sources=sources, steps=steps)
    assert problems(made) == ()
    return made


def loaded(of: Program, provider: CpuProvider | None = None, **data: np.ndarray) -> CpuProgram:
    binaries = {}
    for source in of.sources:
        built = (provider or CpuProvider()).build(source, "cpu")
        assert not isinstance(built, BuildFailed), built.reason
        binaries[source.name] = built.path
    made = CpuExecutor().load(of, binaries)
    for buffer in of.buffers:
        made.write(buffer.name, data.get(buffer.name, initial(buffer, 0)))
    return made


def broken(of: Program) -> ExecutionError:
    with pytest.raises(ExecutionError) as caught:
        loaded(of).run(seed=0, checked=True)
    assert "\n" not in caught.value.reason
    return caught.value


# --- what runs ---


def test_a_program_in_both_languages(gxx_here: None) -> None:
    """One launch reads what the other wrote; a variable of the PTX is a buffer, which a copy may set."""
    by = Buffer(name="by", dtype="float32", elements=1, role=Role.INPUT, symbol="made:by")
    of = program(launch("scale", "x", "y"), launch("thrice", "y", source="plain"),
                 buffers=(X, Y, by), sources=(PTX, CUDA))  # fmt: skip
    data = np.arange(N, dtype=np.float32)
    made = loaded(of, x=data, by=np.array([5], np.float32))
    for seed in range(3):
        made.run(seed=seed, checked=True)
        np.testing.assert_array_equal(made.read("y"), 15 * data)
    assert made.broken_guards() == ()
    assert made.sample_us(2) > 0
    made.close()


@pytest.fixture(scope="module")
def triton() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ptx_data_cases", DATA / "cases.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


def of_case(case: Any) -> Program:
    """A launch of Triton's: behind the kernel's own parameters come two pointers, which are null here."""
    buffers, arguments = [], []
    for each in case.arguments:
        if "shape" in each:
            role, elements = Role(each["role"]), int(np.prod(each["shape"]))
            buffers.append(Buffer(name=each["name"], dtype=each["dtype"], elements=elements, role=role))
            arguments.append(Pointer(buffer=each["name"]))
        else:
            arguments.append(Scalar(dtype=each["dtype"], value=each["value"]))
    nulls = (Scalar(dtype="uint64", value=0),) * 2
    step = Launch(name=case.entry, source=case.name, entry=case.entry, grid=case.grid, block=case.block,
                  shared_bytes=case.shared_bytes, arguments=(*arguments, *nulls))  # fmt: skip
    source = Source(name=case.name, text=case.text, entries=(case.entry,), language=SourceLanguage.PTX)
    return program(step, buffers=tuple(buffers), sources=(source,))


@pytest.mark.parametrize("name", ["softmax_sm_80", "softmax_newest", "layer_norm_sm_90", "histogram_sm_80"])
def test_what_triton_wrote_gives_what_numpy_does(name: str, triton: ModuleType, gxx_here: None) -> None:
    """`softmax_newest` says `.version 9.4`, which no ptxas here need know."""
    case = triton.cases()[name]
    of, values = of_case(case), case.values()
    made = loaded(of, **{each.name: values[each.name].reshape(-1) for each in of.buffers})
    made.run(seed=0, checked=True)
    case.check(values, {each.name: made.read(each.name) for each in of.buffers if each.role.compared})


def test_a_bundle_carries_the_text(tmp_path: Path, gxx_here: None) -> None:
    of = program(launch("scale", "x", "y"))
    built = CpuProvider().build(PTX, "cpu")
    assert not isinstance(built, BuildFailed)
    write_bundle(tmp_path / "b", of, {"made": built.path})
    assert (tmp_path / "b" / "sources" / "made.ptx").read_text() == TEXT
    again, binaries = read_bundle(tmp_path / "b")
    assert again == of
    made = CpuExecutor().load(again, binaries)
    made.write("x", np.ones(N, np.float32))
    made.run(seed=0, checked=False)
    np.testing.assert_array_equal(made.read("y"), np.full(N, 2, np.float32))


# --- C++ that only nvcc takes ---

ASSEMBLY = """
__constant__ unsigned table[4];
__global__ void k(const unsigned* x, unsigned* y) {
    const int t = threadIdx.x;
    unsigned r;
    asm("lop3.b32 %0, %1, %2, %3, 0x96;" : "=r"(r) : "r"(x[t]), "r"(x[t + 64]), "r"(table[t % 4]));
    asm volatile("{ .reg .u32 low; add.cc.u32 low, %1, %2; addc.u32 %0, %0, 0; }"
                 : "+r"(r) : "r"(x[t]), "r"(x[t + 64]));
    y[t] = r;
}"""
WMMA = """
#include <mma.h>
using namespace nvcuda;
__global__ void k(const half* x, float* y) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> right;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 2.0f);
    wmma::load_matrix_sync(left, x, 16);
    wmma::load_matrix_sync(right, x + 256, 16);
    wmma::mma_sync(sum, left, right, sum);
    wmma::store_matrix_sync(y, sum, 16, wmma::mem_row_major);
}"""
BARRIER = """
#include <cuda/barrier>
#include <cuda/std/utility>
__global__ void k(const int* x, int* y) {
    __shared__ cuda::barrier<cuda::thread_scope_block> filled, read;
    __shared__ int tile[64];
    if (threadIdx.x == 0) { init(&filled, EXPECTED); init(&read, 64); }
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < 3; ++i) {
        cuda::memcpy_async(&tile[threadIdx.x], &x[i * 64 + threadIdx.x], sizeof(int), filled);
        filled.arrive_and_wait();
        sum += tile[63 - threadIdx.x] * (i + 1);
        read.wait(read.arrive());
    }
    y[threadIdx.x] = sum;
}"""
PIPELINE = """
#include <cuda_pipeline.h>
__global__ void k(const int* x, int* y) {
    __shared__ int tile[2][64];
    const int t = threadIdx.x;
    int sum = 0;
    __pipeline_memcpy_async(&tile[0][t], &x[t], 4);
    __pipeline_commit();
    for (int i = 0; i < 3; ++i) {
        if (i < 2) __pipeline_memcpy_async(&tile[(i + 1) % 2][t], &x[(i + 1) * 64 + t], 4);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        sum += tile[i % 2][63 - t] * (i + 1);
        __syncthreads();
    }
    y[t] = sum;
}"""
GROUPS = """
#include <cooperative_groups.h>
#ifdef __CUDACC__
#include <cooperative_groups/reduce.h>
#endif
namespace cg = cooperative_groups;
__global__ void k(const int* x, int* y) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    y[threadIdx.x] = cg::reduce(warp, x[threadIdx.x], cg::plus<int>());
    if (x[threadIdx.x] % 3 == 0) y[threadIdx.x] += 100000 * cg::coalesced_threads().thread_rank();
}"""
OWN_TILES = GROUPS.replace("#include <cooperative_groups/reduce.h>", "").replace("cg::reduce", "sum").replace(
    "__global__", "__device__ int sum(cg::thread_block_tile<32> all, int v, cg::thread_block) {\n"
    "    for (int i = 16; i; i /= 2) v += all.shfl_xor(v, i);\n    return v;\n}\n__global__", 1
).replace("cg::plus<int>()", "cg::this_thread_block()")  # fmt: skip


def _rounds(x: np.ndarray) -> Any:
    return (x.reshape(3, 64)[:, ::-1] * np.array([[1], [2], [3]])).sum(0)


def _grouped(x: np.ndarray) -> Any:
    third = x % 3 == 0
    return np.repeat(x.reshape(-1, 32).sum(1), 32) + 100000 * third * (third.reshape(-1, 32).cumsum(1).reshape(-1) - 1)


TABLE = np.array([1, 2**31, 0, 7], np.uint32)
CASES: dict[str, Any] = {
    "assembly": (ASSEMBLY, "uint32", 128, lambda x: (x[:64] ^ x[64:] ^ np.tile(TABLE, 16))
                 + (x[:64].astype(np.uint64) + x[64:] >> 32).astype(np.uint32)),
    "assembly of a group": (ASSEMBLY.replace("    asm(", "#if __CUDA_ARCH__ >= 800\n    asm(")
                                             .replace("% 4]));", "% 4]));\n#endif"),
                            "uint32", 128, lambda x: CASES["assembly"][3](x)),
    "wmma": (WMMA, "float16", 512, lambda x: (x[:256].reshape(16, 16) @ x[256:].reshape(16, 16).T + 2).reshape(-1)),
    "a barrier that is an object": (BARRIER.replace("EXPECTED", "64"), "int32", 192, _rounds),
    "copies in stages": (PIPELINE, "int32", 192, _rounds),
    "groups": (GROUPS, "int32", 64, _grouped),
    "groups of a header that is emulated in part": (OWN_TILES, "int32", 64, _grouped),
}  # fmt: skip


def of_text(text: str, dtype: str, elements: int, results: int = 64) -> Program:
    symbols = ("table",) if "table" in text else ()
    buffers = [
        Buffer(name="x", dtype=dtype, elements=elements, role=Role.INPUT),
        Buffer(name="y", dtype="float32" if dtype == "float16" else dtype, elements=results, role=Role.OUTPUT),
    ]
    if symbols:
        buffers.append(Buffer(name="table", dtype="uint32", elements=4, role=Role.INPUT, symbol="made:table"))
    source = Source(name="made", text=text, entries=("k",), symbols=symbols)
    threads = 32 if "wmma" in text else 64
    return program(launch("k", "x", "y", block=(threads, 1, 1)), buffers=tuple(buffers), sources=(source,))


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("name", CASES)
def test_what_the_emulation_does_not_take_runs_as_nvcc_compiles_it(name: str, gxx_here: None) -> None:
    text, dtype, elements, expected = CASES[name]
    x = np.random.default_rng(0).integers(0, 2**32 if dtype == "uint32" else 9, elements).astype(dtype)
    wanted = expected(x.astype(np.float64) if dtype == "float16" else x)
    of = of_text(text, dtype, elements, wanted.size)
    made = loaded(of, x=x, table=TABLE)
    made.run(seed=1, checked=True)
    np.testing.assert_array_equal(made.read("y"), wanted)


@pytest.mark.needs_nvcc
def test_its_mistakes_are_named_by_the_lines_of_the_text(gxx_here: None) -> None:
    problem = broken(of_text(BARRIER.replace("EXPECTED", "65"), "int32", 192))
    assert problem.outcome is Outcome.CRASHED
    assert "deadlock" in problem.reason
    line = ASSEMBLY[: ASSEMBLY.index("asm(")].count("\n") + 1
    problem = broken(of_text(ASSEMBLY, "uint32", 100))
    assert problem.reason.startswith(
        f"k: made.cu:{line}: ld.global.u32: an access of 4 bytes is outside of every buffer"
    )
    with pytest.raises(RequestError, match="races are not looked for in PTX, and made runs as PTX"):
        list(race.find_in(of_text(ASSEMBLY, "uint32", 128)))


# --- what does not ---


def test_a_deadlock_is_named_by_its_line(gxx_here: None) -> None:
    problem = broken(program(launch("stuck", "x"), launch("scale", "x", "y", name="s")))
    assert problem.outcome is Outcome.CRASHED
    assert problem.reason.startswith("stuck: ")
    assert "deadlock" in problem.reason


def test_a_trap_is_named_by_its_line(gxx_here: None) -> None:
    problem = broken(program(launch("trapped"), launch("scale", "x", "y")))
    assert problem.outcome is Outcome.CRASHED
    line = TEXT[: TEXT.index("trap;")].count("\n") + 1
    assert problem.reason == f"trapped: PTX line {line}: trap: trap"


def test_a_read_behind_a_buffer_is_named(gxx_here: None) -> None:
    short = dataclasses.replace(X, elements=N - 8)
    problem = broken(program(launch("scale", "x", "y"), buffers=(short, Y)))
    line = TEXT[: TEXT.index("ld.global")].count("\n") + 1
    assert problem.outcome is Outcome.CRASHED
    assert problem.reason.startswith(f"scale: PTX line {line}: ld.global.f32: an access of 4 bytes is outside of every")
    assert problem.reason.endswith("0 bytes behind the end of x")


ORDERS = """\
.version 8.0
.target sm_80
.address_size 64
.shared .align 4 .b32 part[64];
.global .align 4 .u32 tickets;
.visible .entry orders(.param .u64 y)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [y];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, part;
    shl.b32 %r3, %r1, 2;
    add.u32 %r3, %r2, %r3;
    st.shared.u32 [%r3], %r1;
    BARRIER
    xor.b32 %r4, %r1, 63;
    shl.b32 %r4, %r4, 2;
    add.u32 %r4, %r2, %r4;
    ld.shared.u32 %r5, [%r4];
    mov.u32 %r6, %ctaid.x;
    mad.lo.u32 %r6, %r6, 64, %r1;
    mul.wide.u32 %rd2, %r6, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r5;
    setp.ne.u32 %p1, %r1, 7;
    @%p1 ret;
    atom.global.add.u32 %r7, [tickets], 1;
    st.global.u32 [%rd3], %r7;
    ret;
}
"""


def _orders(barrier: str, seed: int, *, checked: bool = True) -> np.ndarray:
    """What two blocks of 64 threads give: thread t what thread 63 - t stored, but thread 7 its block's ticket."""
    text = ORDERS.replace("BARRIER", barrier)
    source = Source(name="made", text=text, entries=("orders",), language=SourceLanguage.PTX)
    y = Buffer(name="y", dtype="uint32", elements=2 * N, role=Role.OUTPUT)
    made = loaded(program(launch("orders", "y", grid=(2, 1, 1)), buffers=(y,), sources=(source,)))
    made.run(seed=seed, checked=checked)
    return np.asarray(made.read("y")).reshape(2, N)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_last_warps_and_blocks_come_first_in_every_second_checked_run(seed: int, gxx_here: None) -> None:
    """The runtime's seed is one above the run's."""
    late = slice(32, N)
    right = np.arange(N)[::-1]
    with_barrier, without = _orders("bar.sync 0;", seed), _orders("", seed)
    assert with_barrier[:, 7].tolist() == ([1, 0] if seed == 0 else [0, 1])
    np.testing.assert_array_equal(with_barrier[:, late], [right[late]] * 2)
    stored_late = (without[:, late] != right[late]).all()
    stored_early = (without[:, 8:32] != right[8:32]).all()
    assert (stored_late, stored_early) == ((True, False) if seed == 0 else (False, True))
    np.testing.assert_array_equal(_orders("", 0, checked=False), _orders("", 1))


def test_what_is_freed_is_out_of_reach(gxx_here: None) -> None:
    """By an address that was kept: the argument itself is refused before."""
    kept = floats("t", Role.SCRATCH)
    of = program(Alloc(name="a", arena="t"), launch("scale", "x", "t"), Free(name="f", arena="t"),
                 launch("scale", "t", "y", name="late"), buffers=(X, Y, kept))  # fmt: skip
    assert "not allocated then" in broken(of).reason


def test_an_instruction_that_is_not_known_is_refused_when_it_is_loaded(gxx_here: None) -> None:
    wrong = dataclasses.replace(PTX, text=TEXT.replace("mul.f32 %f3, %f1, %f2", "frob.f32 %f3, %f1, %f2"))
    problem = broken(program(launch("scale", "x", "y"), sources=(wrong,)))
    assert problem.outcome is Outcome.BUILD_FAILED
    assert "PTX line 19: frob.f32" in problem.reason


# --- counting ---


@pytest.mark.needs_nvcc
def test_ptx_is_counted_with_its_registers_and_sass(gxx_here: None) -> None:
    """As the same kernel is in CUDA, which nvcc writes as PTX before it is counted."""
    text = 'extern "C" __global__ void k(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }'
    cuda = Source(name="made", text=text, entries=("k",))
    written = nvcc.ptx(cuda, "sm_90")
    assert isinstance(written, str)
    ptx = Source(name="made", text=written, entries=("k",), language=SourceLanguage.PTX)
    ours, theirs = (counting.count(program(launch("k", "x", "y"), sources=(each,))).rows[0] for each in (ptx, cuda))
    assert ours == theirs
    assert ours.registers
    assert ours.read_sectors == N // 8
