"""Is it alive? One small program for each kind of launch and of memory that fusiond has, all of which compute the same,
so that one plain launch is the reference of all. What fills and compares is PTX for the driver to compile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from fusiond.model.program import (
    Buffer,
    Compare,
    Copy,
    CopyBatch,
    Fill,
    Launch,
    Memory,
    Pointer,
    Prefetch,
    Program,
    Role,
    Scalar,
    Source,
    Step,
)

N, THREADS = 1 << 14, 256
BLOCKS = N // THREADS
SHARED_BYTES = 80_000  #: More than a kernel gets without asking for it

KERNELS = """\
#include <cooperative_groups.h>

__device__ float f(float x, int i) { return 3.0f * x + float(i % 7); }

__global__ void plain(const float* x, float* y, int begin, int end) {
  int i = begin + blockIdx.x * blockDim.x + threadIdx.x;
  if (i < end) y[i] = f(x[i], i);
}

// What the other half of the grid has written: all blocks have to be resident.
__global__ void whole(const float* x, float* y, float* z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  z[i] = x[i];
  cooperative_groups::this_grid().sync();
  int j = (i + n / 2) % n;
  y[j] = f(z[j], j);
}

// Each thread's value goes through the far end of a large array.
__global__ void large(const float* x, float* y, int last) {
  extern __shared__ float s[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  s[last - threadIdx.x] = x[i];
  __syncthreads();
  y[i] = f(s[last - threadIdx.x], i);
}
"""
REGISTERS = """\
// The first warpgroup takes 48 registers a thread of the 56 that the second one gives back: more would wait for ever.
__global__ void __launch_bounds__(256, 1) unlike(const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 144;");
    y[i] = 3.0f * x[i] + float(i % 7);
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    y[i] = 3.0f * x[i] + float(i % 7);
  }
}
"""
SOURCE = Source(name="alive", text=KERNELS, entries=("plain", "whole", "large"))
UNLIKE = Source(name="unlike", text=REGISTERS, entries=("unlike",), register_cap=96)

X = Buffer(name="x", dtype="float32", elements=N, role=Role.INPUT, fill=Fill(kind="uniform"))
Y = Buffer(name="y", dtype="float32", elements=N, role=Role.OUTPUT, compare=Compare(kind="close", rtol=1e-6))
Z = Buffer(name="z", dtype="float32", elements=N, role=Role.SCRATCH)


def _launch(
    name: str = "run", *, x: str = "x", y: str = "y", begin: int = 0, end: int = N, stream: int = 0,
    after: tuple[str, ...] = (),
) -> Launch:  # fmt: skip
    values = (Scalar(dtype="int32", value=begin), Scalar(dtype="int32", value=end))
    return Launch(
        name=name, source="alive", entry="plain", grid=((end - begin) // THREADS, 1, 1), block=(THREADS, 1, 1),
        arguments=(Pointer(buffer=x), Pointer(buffer=y), *values), stream=stream, after=after,
    )  # fmt: skip


def _program(name: str, *steps: Step, buffers: tuple[Buffer, ...] = (X, Y), issue: str = "streams") -> Program:
    used = {each.source for each in steps if isinstance(each, Launch)}
    sources = tuple(each for each in (SOURCE, UNLIKE) if each.name in used)
    return Program(name=name, buffers=buffers, sources=sources, steps=steps, issue=issue)


NATIVE = _program("plain", _launch())


def _halves() -> tuple[Step, ...]:
    return (
        _launch("low", end=N // 2),
        _launch("high", begin=N // 2, stream=1),
        _launch("again", end=N // 2, stream=1, after=("low", "high")),
    )


def _moved(memory: Memory) -> tuple[Buffer, ...]:
    return (
        dataclasses.replace(X, memory=memory), dataclasses.replace(Y, memory=memory),
        dataclasses.replace(Z, name="on_x"), dataclasses.replace(Z, name="on_y"),
    )  # fmt: skip


def programs() -> Iterator[Program]:
    """Their names are the kinds."""
    yield _program("streams", *_halves())
    yield _program("graph", *_halves(), issue="graph")
    yield _program(
        "cooperative",
        dataclasses.replace(
            _launch(), entry="whole", cooperative=True,
            arguments=(*map(_pointer, ("x", "y", "z")), Scalar(dtype="int32", value=N)),
        ),
        buffers=(X, Y, Z),
    )  # fmt: skip
    large = (_pointer("x"), _pointer("y"), Scalar(dtype="int32", value=SHARED_BYTES // 4 - 1))
    yield _program(
        "large_shared", dataclasses.replace(_launch(), entry="large", shared_bytes=SHARED_BYTES, arguments=large)
    )
    unlike = {"source": "unlike", "entry": "unlike", "arguments": (_pointer("x"), _pointer("y"))}
    yield _program("setmaxnreg", dataclasses.replace(_launch(), **unlike))  # type: ignore[arg-type]
    run = _launch(x="on_x", y="on_y", after=("up",))
    for name, memory in (("copies", Memory.PINNED), ("pageable_copies", Memory.PAGEABLE)):
        up = Copy(name="up", source=("x",), target=("on_x",))
        down = Copy(name="down", source=("on_y",), target=("y",), after=("run",))
        yield _program(name, up, run, down, buffers=_moved(memory))
    yield _program(
        "batch_copies",
        CopyBatch(name="up", copies=(("x", "on_x"),)),
        run,
        CopyBatch(name="down", copies=(("on_y", "y"),), after=("run",)),
        buffers=_moved(Memory.PINNED),
    )
    yield _program("mapped", _launch(), buffers=_moved(Memory.PINNED)[:2])
    managed = _moved(Memory.MANAGED)[:2]
    yield _program("managed", _launch(), buffers=managed)
    ahead = Prefetch(name="ahead", buffers=("x",), to_device=True)
    yield _program("managed_ahead", ahead, _launch(after=("ahead",)), buffers=managed)


def _pointer(name: str) -> Pointer:
    return Pointer(buffer=name)
