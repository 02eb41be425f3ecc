"""Small Programs, one for each thing that an export must carry over, and what NumPy says they compute."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusiond.model.language.extents import ceil_div, least, most, size
from fusiond.model.program import (
    Alloc,
    Buffer,
    Bytes,
    Copy,
    CopyBatch,
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
    Seam,
    Source,
    SourceKind,
    Step,
    problems,
)

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A Program, other sizes to run it at, and its results from its inputs."""

    program: Program
    sizes: Mapping[str, int]
    expected: Callable[[Arrays, Mapping[str, int]], Arrays]
    seams: Mapping[str, Callable[..., Arrays]] = field(default_factory=dict)
    """Seam -> a function of NumPy arrays that gives what it writes, in order."""


def pointer(name: str) -> Pointer:
    return Pointer(buffer=name)


def int32(value: int) -> Scalar:
    return Scalar(dtype="int32", value=value)


def float32(value: float) -> Scalar:
    return Scalar(dtype="float32", value=value)


def buffer(name: str, elements: int, role: Role, dtype: str = "float32", **more: Any) -> Buffer:
    return Buffer(name=name, dtype=dtype, elements=elements, role=role, **more)


BASIC = """\
namespace ns {
template <class T, int K> __global__ void scale(const T* x, T* y, T a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + K;
}
}  // namespace ns
extern "C" __global__ void add(const float* x, const float* y, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] + y[i];
}
extern "C" __global__ void reverse(const float* x, float* y, int n) {
    extern __shared__ float tile[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[n - 1 - i] : 0;
    __syncthreads();
    if (i < n) y[i] = tile[threadIdx.x];
}
"""
SCALE = "ns::scale<float, 5>"
basic = Source(name="basic", text=BASIC, entries=(SCALE, "add", "reverse"))


def launch(name: str, entry: str, n: int, *arguments: Any, **more: Any) -> Launch:
    more = {"source": "basic", "grid": (ceil_div(n, 64), 1, 1), "block": (64, 1, 1), **more}
    return Launch(name=name, entry=entry, arguments=(*arguments, int32(n)), **more)


def sound(program: Program) -> Program:
    assert problems(program) == ()
    return program


CARVE_OUT = 29  #: Of the launch that has one


def one() -> Case:
    """One launch of a template in a namespace."""
    n = size("a.n", 1000)
    program = Program(
        name="one launch", buffers=(buffer("a.x", n, Role.INPUT), buffer("y", n, Role.OUTPUT)), sources=(basic,),
        steps=(launch("scale", SCALE, n, pointer("a.x"), pointer("y"), float32(0.1), carveout_pct=CARVE_OUT),),
        sizes=(("a.n", 1000),),
    )  # fmt: skip
    return Case(program=sound(program), sizes={"a.n": 77},
                expected=lambda given, _: {"y": np.float32(0.1) * given["a.x"] + np.float32(5)})  # fmt: skip


def several() -> Case:
    """Three launches over scratch, dynamic shared memory above 48 KiB at some sizes, a fixed size."""
    n = size("n", 300)
    shared = most(256, least(n, 20_000) * 4)
    program = Program(
        name="several", sources=(basic,), sizes=(("n", 300), ("k", 5)), fixed=("k",),
        buffers=(buffer("x", n, Role.INPUT), buffer("t", n, Role.SCRATCH), buffer("u", n, Role.SCRATCH),
                 buffer("y", n, Role.OUTPUT)),
        steps=(launch("scale", SCALE, n, pointer("x"), pointer("t"), float32(2)),
               launch("reverse", "reverse", n, pointer("t"), pointer("u"), shared_bytes=shared),
               launch("add", "add", n, pointer("u"), pointer("t"), pointer("y"))),
    )  # fmt: skip

    def expected(given: Arrays, _: Mapping[str, int]) -> Arrays:
        t = 2 * given["x"] + 5
        return {"y": t[::-1] + t}

    return Case(program=sound(program), sizes={"n": 12_345}, expected=expected)


def two_streams(issue: str = "streams") -> Case:
    """A fork and a join: without its waits the result would be another."""
    n = size("n", 500)
    program = Program(
        name=f"two {issue}", sources=(basic,), sizes=(("n", 500),), issue=issue,
        buffers=(buffer("x", n, Role.INPUT), buffer("t", n, Role.SCRATCH), buffer("u", n, Role.SCRATCH),
                 buffer("v", n, Role.SCRATCH), buffer("y", n, Role.OUTPUT)),
        steps=(launch("first", SCALE, n, pointer("x"), pointer("t"), float32(3)),
               launch("side", SCALE, n, pointer("t"), pointer("u"), float32(-1), stream=1, after=("first",)),
               launch("main", SCALE, n, pointer("t"), pointer("v"), float32(7)),
               launch("last", "add", n, pointer("u"), pointer("v"), pointer("y"), after=("side",))),
    )  # fmt: skip

    def expected(given: Arrays, _: Mapping[str, int]) -> Arrays:
        t = 3 * given["x"] + 5
        return {"y": (5 - t) + (7 * t + 5)}

    return Case(program=sound(program), sizes={"n": 129}, expected=expected)


def graph() -> Case:
    return two_streams("graph")


COOPERATIVE = """\
#include <cooperative_groups.h>
extern "C" __global__ void sums(const int* x, int* parts, int* y, int n) {
    int sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    atomicAdd(&parts[blockIdx.x], sum);
    cooperative_groups::this_grid().sync();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        int total = 0;
        for (unsigned b = 0; b < gridDim.x; ++b) total += parts[b];
        y[0] += total;
    }
}
"""


def cooperative() -> Case:
    """A grid-wide barrier; a fill before it; an inout buffer."""
    n = size("n", 400)
    blocks = least(ceil_div(n, 32), 4)
    program = Program(
        name="cooperative", sources=(Source(name="coop", text=COOPERATIVE, entries=("sums",)),), sizes=(("n", 400),),
        buffers=(buffer("x", n, Role.INPUT, "int32"), buffer("parts", blocks, Role.SCRATCH, "int32"),
                 buffer("y", 1, Role.INOUT, "int32")),
        steps=(FillStep(name="clear", buffer="parts"),
               launch("sums", "sums", n, pointer("x"), pointer("parts"), pointer("y"), source="coop", cooperative=True,
                      grid=(blocks, 1, 1), block=(32, 1, 1))),
    )  # fmt: skip
    return Case(program=sound(program), sizes={"n": 45},
                expected=lambda given, _: {"y": given["y"] + given["x"].sum(dtype=np.int32)})  # fmt: skip


HOST = 'extern "C" void twice(float* x, int n) { for (int i = 0; i < n; ++i) x[i] *= 2; }\n'
host = Source(name="host", kind=SourceKind.HOST, text=HOST, entries=("twice",))


def transfers(memory: Memory = Memory.PINNED) -> Case:
    """Arenas on both sides, one message of two buffers, a batch back, a host call, two streams."""
    n = size("n", 60)

    def both(name: str, role: Role, arena: str, at: int, where: Memory) -> Buffer:
        return buffer(name, n, role, memory=where, arena=arena, offset_bytes=at)

    second = ceil_div(4 * n, 256) * 256
    device = Memory.DEVICE
    program = Program(
        name=f"transfers {memory}", sources=(basic, host), sizes=(("n", 60),),
        buffers=(both("a", Role.INPUT, "in", 0, memory), both("b", Role.INPUT, "in", second, memory),
                 both("a@device", Role.SCRATCH, "in@device", 0, device),
                 both("b@device", Role.SCRATCH, "in@device", second, device),
                 buffer("t", n, Role.SCRATCH), buffer("kept", n, Role.SCRATCH, memory=memory),
                 buffer("sum", n, Role.OUTPUT, memory=memory), buffer("diff", n, Role.OUTPUT, memory=memory)),
        steps=(Copy(name="up", source=("a", "b"), target=("a@device", "b@device")),
               launch("add", "add", n, pointer("a@device"), pointer("b@device"), pointer("t"), after=("up",), stream=1),
               launch("reverse", "reverse", n, pointer("t"), pointer("a@device"), stream=1, shared_bytes=256),
               CopyBatch(name="down", copies=(("t", "sum"), ("a@device", "diff")), after=("reverse",)),
               HostCall(name="twice", source="host", entry="twice", arguments=(pointer("sum"), int32(n))),
               Copy(name="keep", source=("sum",), target=("kept",)),
               Copy(name="back", source=("kept",), target=("diff",))),
    )  # fmt: skip

    def expected(given: Arrays, _: Mapping[str, int]) -> Arrays:
        return {"sum": 2 * (given["a"] + given["b"]), "diff": 2 * (given["a"] + given["b"])}

    return Case(program=sound(program), sizes={"n": 17}, expected=expected)


def pageable() -> Case:
    return transfers(Memory.PAGEABLE)


def added_twice(given: Arrays, _: Mapping[str, int]) -> Arrays:
    return {"sum": 2 * (given["a"] + given["b"]) + given["b"]}


def mapped() -> Case:
    """Kernels that read and write pinned memory of the host, which a host call then goes on with: no copy."""
    n = size("n", 60)
    program = Program(
        name="mapped", sources=(basic, host), sizes=(("n", 60),),
        buffers=(buffer("a", n, Role.INPUT, memory=Memory.PINNED), buffer("b", n, Role.INPUT, memory=Memory.PINNED),
                 buffer("t", n, Role.SCRATCH, memory=Memory.PINNED),
                 buffer("sum", n, Role.OUTPUT, memory=Memory.PINNED)),
        steps=(launch("add", "add", n, pointer("a"), pointer("b"), pointer("t")),
               HostCall(name="twice", source="host", entry="twice", arguments=(pointer("t"), int32(n)), after=("add",)),
               launch("again", "add", n, pointer("t"), pointer("b"), pointer("sum"), after=("twice",), stream=1)),
    )  # fmt: skip
    return Case(program=sound(program), sizes={"n": 17}, expected=added_twice)


def managed() -> Case:
    """Managed memory: prefetched as a run of two vectors, then back for a host call; scratch memory too."""
    n = size("n", 60)
    second = ceil_div(4 * n, 256) * 256

    def both(name: str, at: int) -> Buffer:
        return buffer(name, n, Role.INPUT, memory=Memory.MANAGED, arena="in", offset_bytes=at)

    program = Program(
        name="managed", sources=(basic, host), sizes=(("n", 60),),
        buffers=(both("a", 0), both("b", second), buffer("t", n, Role.SCRATCH, memory=Memory.MANAGED),
                 buffer("sum", n, Role.OUTPUT, memory=Memory.MANAGED)),
        steps=(Prefetch(name="up", buffers=("a", "b"), to_device=True),
               launch("add", "add", n, pointer("a"), pointer("b"), pointer("t"), after=("up",), stream=1),
               Prefetch(name="down", buffers=("t",), to_device=False, after=("add",)),
               HostCall(name="twice", source="host", entry="twice", arguments=(pointer("t"), int32(n))),
               launch("again", "add", n, pointer("t"), pointer("b"), pointer("sum"), after=("twice",), stream=1)),
    )  # fmt: skip
    return Case(program=sound(program), sizes={"n": 17}, expected=added_twice)


def parts() -> Case:
    """Two vectors cross whole, as one message, and come back in two parts each, which kernels make one after the
    other on streams of their own."""
    n = size("n", 60)
    cut = n // 2
    second = ceil_div(4 * n, 256) * 256
    device = Memory.DEVICE

    def whole(name: str, role: Role, arena: str, at: int, where: Memory) -> Buffer:
        return buffer(name, n, role, memory=where, arena=arena, offset_bytes=at)

    def halves_of(name: str, arena: str, at: int, where: Memory) -> tuple[Buffer, Buffer]:
        low = buffer(f"{name}#0", cut, Role.SCRATCH, memory=where, arena=arena, offset_bytes=at, part_of=name)
        high = buffer(f"{name}#1", n - cut, Role.SCRATCH, memory=where, arena=arena, offset_bytes=at + 4 * cut,
                      part_of=name)  # fmt: skip
        return low, high

    def half(number: int, count: int) -> tuple[Step, ...]:
        names = [pointer(f"{name}@device#{number}") for name in ("a", "b", "sum")]
        return (
            launch(f"add#{number}", "add", count, *names, after=("up",), stream=1),
            Copy(name=f"down#{number}", source=(f"sum@device#{number}",), target=(f"sum#{number}",), stream=2,
                 after=(f"add#{number}",)),
        )  # fmt: skip

    program = Program(
        name="parts", sources=(basic,), sizes=(("n", 60),),
        buffers=(whole("a", Role.INPUT, "in", 0, Memory.PINNED), whole("b", Role.INPUT, "in", second, Memory.PINNED),
                 whole("a@device", Role.SCRATCH, "in@device", 0, device),
                 whole("b@device", Role.SCRATCH, "in@device", second, device),
                 *halves_of("a@device", "in@device", 0, device), *halves_of("b@device", "in@device", second, device),
                 whole("sum", Role.OUTPUT, "sum", 0, Memory.PINNED),
                 whole("sum@device", Role.SCRATCH, "sum@device", 0, device),
                 *halves_of("sum", "sum", 0, Memory.PINNED), *halves_of("sum@device", "sum@device", 0, device)),
        steps=(Copy(name="up", source=("a", "b"), target=("a@device", "b@device")), *half(0, cut), *half(1, n - cut)),
    )  # fmt: skip
    return Case(program=sound(program), sizes={"n": 17}, expected=lambda given, _: {"sum": given["a"] + given["b"]})


def allocations() -> Case:
    """Allocated and freed by the plan: from the pool, and not."""
    n = size("n", 64)
    program = Program(
        name="allocations", sources=(basic,), sizes=(("n", 64),),
        buffers=(buffer("x", n, Role.INPUT), buffer("t", n, Role.SCRATCH), buffer("u", n, Role.SCRATCH),
                 buffer("y", n, Role.OUTPUT)),
        steps=(Alloc(name="get t", arena="t", pooled=True),
               launch("one", SCALE, n, pointer("x"), pointer("t"), float32(2)), Alloc(name="get u", arena="u"),
               launch("two", SCALE, n, pointer("t"), pointer("u"), float32(3)), Free(name="drop t", arena="t"),
               launch("three", SCALE, n, pointer("u"), pointer("y"), float32(1))),
    )  # fmt: skip
    return Case(program=sound(program), sizes={"n": 7},
                expected=lambda given, _: {"y": 3 * (2 * given["x"] + 5) + 10})  # fmt: skip


def forked() -> Case:
    """Two streams that share the inputs only: the second begins after the caller's work, and ends before it goes on."""
    n = size("n", 150)
    program = Program(
        name="forked", sources=(basic,), sizes=(("n", 150),),
        buffers=(buffer("x", n, Role.INPUT), buffer("y", n, Role.OUTPUT), buffer("z", n, Role.OUTPUT)),
        steps=(launch("one", SCALE, n, pointer("x"), pointer("y"), float32(2)),
               launch("two", SCALE, n, pointer("x"), pointer("z"), float32(3), stream=1)),
    )  # fmt: skip
    return Case(program=sound(program), sizes={"n": 65},
                expected=lambda given, _: {"y": 2 * given["x"] + 5, "z": 3 * given["x"] + 5})  # fmt: skip


def mixed() -> Case:
    """One arena that holds an argument and scratch memory behind it."""
    n = size("n", 40)
    second = ceil_div(4 * n, 256) * 256
    program = Program(
        name="mixed", sources=(basic,), sizes=(("n", 40),),
        buffers=(buffer("x", n, Role.INPUT, arena="both"),
                 buffer("t", n, Role.SCRATCH, arena="both", offset_bytes=second),
                 buffer("y", n, Role.OUTPUT)),
        steps=(launch("one", SCALE, n, pointer("x"), pointer("t"), float32(2)),
               launch("two", "add", n, pointer("t"), pointer("x"), pointer("y"))),
    )  # fmt: skip
    return Case(program=sound(program), sizes={"n": 70}, expected=lambda given, _: {"y": 3 * given["x"] + 5})


STRUCTS = """\
__constant__ float table[8];
struct Wide {
    const float* x;
    int n;
    float factor;
    float* y;
};
extern "C" __global__ void wide(Wide w, bool negate, long long shift) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < w.n) w.y[i] = (negate ? -1 : 1) * w.factor * w.x[i] + table[(i + shift) % LENGTH];
}
"""


def structs() -> Case:
    """A struct by value with pointers and a number that follows from a size; a variable; a define; odd scalars."""
    n = size("n", 200)
    packed = struct.pack("<QifQ", 0, 0, 1.5, 0)
    program = Program(
        name="structs", sizes=(("n", 200),),
        sources=(Source(name="wide", text=STRUCTS, entries=("wide",), symbols=("table",), defines=(("LENGTH", "8"),)),),
        buffers=(buffer("x", n, Role.INPUT), buffer("lut", 8, Role.INPUT, symbol="wide:table"),
                 buffer("y", n, Role.OUTPUT)),
        steps=(Launch(name="wide", source="wide", entry="wide", grid=(ceil_div(n, 64), 1, 1), block=(64, 1, 1),
                      arguments=(Bytes(hex=packed.hex(), pointers=((0, "x"), (16, "y")), numbers=((8, "int32", n),)),
                                 Scalar(dtype="bool", value=1), Scalar(dtype="int64", value=3 * n))),),
    )  # fmt: skip

    def expected(given: Arrays, sizes: Mapping[str, int]) -> Arrays:
        at = (np.arange(sizes["n"]) + 3 * sizes["n"]) % 8
        return {"y": np.float32(-1.5) * given["x"] + given["lut"][at]}

    return Case(program=sound(program), sizes={"n": 33}, expected=expected)


HALVES = """\
#include <cuda_fp16.h>
extern "C" __global__ void halves(const __half* x, __half* y, __half a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __hmul(a, x[i]);
}
"""


def halves() -> Case:
    n = size("n", 100)
    program = Program(
        name="halves", sources=(Source(name="halves", text=HALVES, entries=("halves",)),), sizes=(("n", 100),),
        buffers=(buffer("x", n, Role.INPUT, "float16"), buffer("y", n, Role.OUTPUT, "float16")),
        steps=(launch("halves", "halves", n, pointer("x"), pointer("y"), Scalar(dtype="float16", value=0.3),
                      source="halves"),),
    )  # fmt: skip
    return Case(program=sound(program), sizes={"n": 9},
                expected=lambda given, _: {"y": np.float16(0.3) * given["x"]})  # fmt: skip


def seams(issue: str = "streams") -> Case:
    """Two library calls: one with a plain kernel in its place, one with none."""
    n = size("n", 90)
    program = Program(
        name=f"seams {issue}", sources=(basic,), sizes=(("n", 90),), issue=issue,
        buffers=(buffer("x", n, Role.INPUT), buffer("before", n, Role.OUTPUT), buffer("sorted", n, Role.INPUT),
                 buffer("t", n, Role.SCRATCH), buffer("y", n, Role.OUTPUT)),
        steps=(launch("start", SCALE, n, pointer("x"), pointer("before"), float32(2)),
               launch("naive flip", "reverse", n, pointer("sorted"), pointer("t"), shared_bytes=256, stream=1,
                      after=("start",)),
               launch("end", "add", n, pointer("t"), pointer("x"), pointer("y"), after=("naive flip",))),
        seams=(Seam(name="sort.1", operation='sort f32[n] of "x"', reads=("before",), writes=("sorted",),
                    before="naive flip"),
               Seam(name="flip", operation="reverse f32[n]", reads=("sorted",), writes=("t",), stand_in="naive flip")),
    )  # fmt: skip

    def expected(given: Arrays, _: Mapping[str, int]) -> Arrays:
        return {"y": np.sort(2 * given["x"] + 5)[::-1] + given["x"]}

    return Case(program=sound(program), sizes={"n": 31}, expected=expected,
                seams={"sort.1": lambda before: {"sorted": np.sort(before)},
                       "flip": lambda found: {"t": found[::-1].copy()}})  # fmt: skip


def seams_in_a_graph() -> Case:
    return seams("graph")


def rows() -> Case:
    """Two images whose rows may lie apart, in a graph."""
    w, h = size("w", 21), size("h", 9)
    source = Source(
        name="rows",
        text='extern "C" __global__ void twice(const unsigned char* x, short* y, int w, int h, int px, int py) {\n'
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    if (i < w * h) y[i / w * py + i % w] = 2 * x[i / w * px + i % w];\n}\n",
        entries=("twice",),
    )
    pitched = (Scalar(dtype="int32", value=w, pitch_of="x"), Scalar(dtype="int32", value=w, pitch_of="y"))
    step = Launch(
        name="twice", source="rows", entry="twice", grid=(ceil_div(w * h, 64), 1, 1), block=(64, 1, 1),
        arguments=(pointer("x"), pointer("y"), int32(w), int32(h), *pitched),
    )  # fmt: skip
    program = Program(
        name="rows", buffers=(buffer("x", w * h, Role.INPUT, "uint8"), buffer("y", w * h, Role.OUTPUT, "int16")),
        sources=(source,), steps=(step,), issue="graph", sizes=(("h", 9), ("w", 21)),
    )  # fmt: skip
    assert not problems(program)
    return Case(program=program, sizes={"w": 50}, expected=lambda of, at: {"y": of["x"].astype(np.int16) * 2})


CASES: Mapping[str, Callable[[], Case]] = {
    each.__name__: each
    for each in (one, several, two_streams, graph, cooperative, transfers, pageable, mapped, managed, parts,
                 allocations, structs, halves, forked, mixed, seams, seams_in_a_graph, rows)
}  # fmt: skip


def inputs(program: Program, seed: int = 1) -> Arrays:
    """Small whole numbers, so that sums are exact."""
    generator = np.random.default_rng(seed)
    found = {}
    for each in program.buffers:
        if each.role in (Role.INPUT, Role.INOUT):
            found[each.name] = generator.integers(-8, 9, int(each.elements)).astype(each.dtype)
    return found
