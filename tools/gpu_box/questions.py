"""Small programs whose outcome only a real GPU can tell: each a native one that surely works, and what is asked."""

from __future__ import annotations

from dataclasses import dataclass

from fusiond.model.program import Buffer, Fill, Launch, Pointer, Program, Role, Source

THREADS = 128

KERNELS = """
#ifndef FUSIOND_BARRIER
#define FUSIOND_BARRIER(id, threads) asm volatile("bar.sync %0, %1;" ::"n"(id), "n"(threads) : "memory")
#endif

// Two halves of a block, as two fused kernels: the first 64 threads synchronise among themselves, the others do not.
// `leave` says which of the 64 return before that barrier: none, one lane of the second warp, all of the second warp.
template <int leave> __global__ void halves(const int* x, int* y) {
  __shared__ int s[64];
  int i = threadIdx.x;
  if (i < 64) {
    if ((leave == 1 && i == 63) || (leave == 2 && i >= 32)) { y[i] = x[i]; return; }
    s[i] = x[i];
    FUSIOND_BARRIER(1, 64);
    y[i] = leave == 0 ? s[63 - i] : s[i];
  } else {
    y[i] = x[i];
  }
}

// The same question for the whole block's barrier.
template <int leave> __global__ void whole(const int* x, int* y) {
  int i = threadIdx.x;
  y[i] = x[i];
  if ((leave == 1 && i == 127) || (leave == 2 && i >= 96)) return;
  __syncthreads();
}

__global__ void copy(const int* x, int* y) { y[threadIdx.x] = x[threadIdx.x]; }
"""
SOURCE = Source(name="questions", text=KERNELS, entries=("copy", "halves<1>", "halves<2>", "whole<1>", "whole<2>"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    name: str
    text: str
    entries: tuple[str, ...]  #: Kernels that copy x to y, if they end


QUESTIONS = (
    Question(
        name="early-return-counted",
        text="Does bar.sync 1, 64 complete when one lane, or a whole warp, of the 64 threads has returned before it?",
        entries=("halves<1>", "halves<2>"),
    ),
    Question(
        name="early-return-whole",
        text="Does __syncthreads() complete when one lane, or a whole warp, of the block has returned before it?",
        entries=("whole<1>", "whole<2>"),
    ),
)


def program(entry: str) -> Program:
    """One launch of one block."""
    return Program(
        name=entry,
        buffers=(
            Buffer(name="x", dtype="int32", elements=THREADS, role=Role.INPUT, fill=Fill(kind="iota")),
            Buffer(name="y", dtype="int32", elements=THREADS, role=Role.OUTPUT),
        ),
        sources=(SOURCE,),
        steps=(
            Launch(
                name="ask",
                source=SOURCE.name,
                entry=entry,
                grid=(1, 1, 1),
                block=(THREADS, 1, 1),
                arguments=(Pointer(buffer="x"), Pointer(buffer="y")),
            ),
        ),
    )
