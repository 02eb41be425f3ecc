"""What chunks gain on a device: a vector goes up, through an element-wise kernel, and down, pinned, on streams. The
kernel takes as long as the slower copy: its arithmetic is fitted to that, as overlap is worth most there (three times
at best; the ideal is the slowest of the three and one chunk of the others).

Whole and in chunks are sampled in pairs, after their outputs were compared. The three parts are sampled by themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import benches
from benchmarks.transfer.measure import Bench, measured_beside
from fusiond.devices.timing import Sampling
from fusiond.model.language.extents import ceil_div, size
from fusiond.model.outcomes import MeasureFailed, Purpose
from fusiond.model.program import Copy, Fill, Program
from fusiond.tuning.measuring import Measurer
from fusiond_transfer.analysis import chunks
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import emit
from fusiond_transfer.codegen.buffers import Execution
from fusiond_transfer.frontend.graph import DEVICE, Graph, GraphKernel, Text, Vector

LENGTHS = (1 << 24, 1 << 26, 1 << 28)  #: Of float32: 64 MB to 1 GB
COUNTS = (2, 4, 8, 16, 32, 64)
FITTED_AT = (64, 1024)
"""Rounds of arithmetic between which a kernel's time is taken for a line; on the processor fewer (`FEW`)."""
FEW = (2, 8)
MOST_ROUNDS = 1 << 16
BLOCK = 256
WORK = """\
extern "C" __global__ void work(const float* x, float* y, int n, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    for (int k = 0; k < rounds; k++) v = v * 0.999f + 0.001f;
    y[i] = v;
}
"""


def graph(elements: int, rounds: int) -> Graph:
    """One vector up, one kernel of so many rounds on each element, one vector down."""
    n = size("elements", elements)
    body = Text(text=WORK, entry="work", values=(n, rounds), grid=(ceil_div(n, BLOCK), 1, 1), block=(BLOCK, 1, 1))
    fill = Fill(kind="uniform", low=0.0, high=1.0)
    return Graph(
        name="there_and_back",
        vectors=tuple(Vector(name=name, dtype="float32", elements=n, fill=fill) for name in ("x", "y")),
        kernels=(GraphKernel(name="work", on=DEVICE, reads=("x",), writes=("y",), body=body, rows="elements"),),
        inputs=("x",),
        outputs=("y",),
        sizes=(("elements", elements),),
    )


def table(
    bench: Bench, *, lengths: Sequence[int] = LENGTHS, counts: Sequence[int] = COUNTS
) -> Iterator[dict[str, Any]]:
    """A row for each length, in one run. A part that could not be measured is a row with the `problem`."""
    with bench.measurer() as measurer:
        for elements in lengths:
            row = {"elements": elements, **_row(bench, measurer, elements, counts)}
            best = max((each.get("ratio") or 0.0 for each in row.get("ways", ())), default=0.0)
            bench.say(
                f"{elements} elements, {row.get('rounds')} rounds: {row.get('problem') or f'at most {best:.2f}x'}"
            )
            yield row


def _row(bench: Bench, measurer: Measurer, elements: int, counts: Sequence[int]) -> dict[str, Any]:
    try:
        up_us, down_us = (_part_us(bench, measurer, graph(elements, 1), name) for name in ("up", "down"))
        slower = max(up_us, down_us)
        first, last = FEW if bench.emulated else FITTED_AT
        low, high = (_part_us(bench, measurer, graph(elements, rounds), "kernel") for rounds in (first, last))
        each_us = max((high - low) / (last - first), slower / MOST_ROUNDS)
        made = graph(elements, max(1, first + round((slower - low) / each_us)))
        kernel_us = _part_us(bench, measurer, made, "kernel")
    except _Failed as problem:
        return {"problem": str(problem)}
    parts = {"up_us": up_us, "kernel_us": kernel_us, "down_us": down_us}
    busy = {"up": up_us, "kernels": kernel_us, "down": down_us}
    whole, *cut = ((way, bench.provider.normalise(_program(made, way))) for way in _ways(counts))
    references = measurer.references(whole[1], f"overlap-{whole[1].key}")
    if isinstance(references, MeasureFailed):
        return {**parts, "problem": benches.problem(references)}
    ways = []
    for way, program in (whole, *cut):
        found = measured_beside(bench, measurer, program, whole[1], references)
        ideal_us = chunks.ideal_us(busy, way.chunks)
        share = ideal_us / found["time_us"] if "time_us" in found else None
        ways.append({"chunks": way.chunks, "streams": way.streams, "chunk_order": way.chunk_order,
                     "ideal_us": ideal_us, "share_of_ideal": share, **found})  # fmt: skip
    return {"rounds": made.kernels[0].body.values[1] if isinstance(made.kernels[0].body, Text) else 0, **parts,
            "ways": ways}  # fmt: skip


class _Failed(Exception):
    """A part could not be measured; the message says why."""


def _ways(counts: Sequence[int]) -> Iterator[Execution]:
    whole = Execution(memory="pinned", issue="overlapped")
    yield whole
    for count in counts:
        yield dataclasses.replace(whole, chunks=count)
        yield dataclasses.replace(whole, chunks=count, streams="3", chunk_order="breadth_first")


def _program(of: Graph, way: Execution) -> Program:
    plan = script(Schedules(of).grouping("interval_stabbing"))
    return emit.program(plan, way, name=f"{of.name} in {way.chunks}")


def _part_us(bench: Bench, measurer: Measurer, of: Graph, part: str) -> float:
    """What an upload, a download or the kernel takes by itself: the whole program, of which one step is counted."""
    made = _program(of, Execution(memory="pinned"))
    up, kernel, down = made.steps
    wanted = {"up": up, "kernel": kernel, "down": down}[part]
    assert isinstance(up, Copy)
    steps = tuple(dataclasses.replace(step, counted=step is wanted) for step in made.steps)
    program = bench.provider.normalise(dataclasses.replace(made, steps=steps))
    references = measurer.references(program, f"part-{program.key}")
    if isinstance(references, MeasureFailed):
        raise _Failed(benches.problem(references))
    measured = measurer.sample(program, None, Sampling(purpose=Purpose.PROBE), references)
    if isinstance(measured, MeasureFailed):
        raise _Failed(benches.problem(measured))
    return measured.time_us
