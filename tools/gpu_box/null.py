"""What is measured against itself: six unfused programs of 20 us to 5 ms on an H100, two of them made for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.agreement import program as streamed
from fusiond.model.program import Buffer, Compare, Fill, Launch, Pointer, Program, Role, Scalar, Source

HEADLINES = ("hist+maxpool", "layer_norm", "sobel")  #: Their unfused programs as given: some 50 us, 1 ms and 900 us
STREAMED = 5_000_000  #: Elements of three vectors: 20 us at 3 TB/s
COMPUTED = 1 << 20
ROUNDS = {"computes 200 us": 5_000, "computes 5 ms": 125_000}
"""Multiply-adds of each element, at 55e12 operations a second."""
KERNEL = """
extern "C" __global__ void compute(float* y, const float* x, int n, int rounds) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  for (int k = 0; k < rounds; k++) v = fmaf(v, 0.999f, 0.001f);
  y[i] = v;
}
"""


def programs(*, tiny: bool) -> Iterator[tuple[str, Program]]:
    """Those that are made for it; `tiny`: for a processor."""
    yield "streams 20 us", streamed(1000 if tiny else STREAMED)
    for name, rounds in ROUNDS.items():
        yield name, _computing(512 if tiny else COMPUTED, rounds // 100 if tiny else rounds)


def of_headlines(bundles: Path) -> Iterator[tuple[str, str]]:
    """(name, path of the bundle from bundles/null) of those that were built."""
    for name in HEADLINES:
        path = bundles / "headlines" / name / "0"
        if path.is_dir():
            yield name, os.path.relpath(path, bundles / "null")


def _computing(elements: int, rounds: int) -> Program:
    fill = Fill(kind="uniform", high=1.0)
    close = Compare(kind="close", rtol=1e-5)
    return Program(
        name=f"compute {rounds}",
        buffers=(
            Buffer(name="x", dtype="float32", elements=elements, role=Role.INPUT, fill=fill),
            Buffer(name="y", dtype="float32", elements=elements, role=Role.OUTPUT, compare=close),
        ),
        sources=(Source(name="compute", text=KERNEL, entries=("compute",)),),
        steps=(
            Launch(
                name="compute", source="compute", entry="compute", grid=(-(-elements // 256), 1, 1), block=(256, 1, 1),
                arguments=(Pointer(buffer="y"), Pointer(buffer="x"), Scalar(dtype="int32", value=elements),
                           Scalar(dtype="int32", value=rounds)),
            ),
        ),
    )  # fmt: skip
