"""Tables 5 and 6 on a device: separate messages, fused, fastest; pageable and pinned; batches and a CUDA graph.

Every way is sampled in pairs with the separate one of the same memory (and, in table 6, with allocations counted in
both), after its outputs were compared with the separate one's. Kernels are of linear work, as in the paper's table 5:
the default body in place of the catalogue's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import benches
from benchmarks.rivals import named_rivals
from benchmarks.transfer import paper
from benchmarks.transfer.planning import catalogued
from fusiond.devices.timing import Sampling
from fusiond.model.keys import plain
from fusiond.model.outcomes import MeasureFailed, Purpose
from fusiond.model.program import Memory, Program
from fusiond.tuning.measuring import Measurer, References
from fusiond_transfer.analysis import cost
from fusiond_transfer.analysis.schedule import Schedule
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import emit
from fusiond_transfer.codegen.buffers import Execution
from fusiond_transfer.codegen.probes import probes
from fusiond_transfer.frontend.graph import Graph, Mix

GRAPHS = tuple(paper.TABLE_5)
COUNTED = tuple(paper.TABLE_6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench(benches.Bench):
    lengths: Sequence[int] = paper.LENGTHS
    pairs: int = 15


def linear(name: str, elements: int) -> Graph:
    """A graph of the catalogue with kernels of linear work on vectors of one length."""
    graph = catalogued(name)
    vectors = tuple(
        dataclasses.replace(each, dtype="float32", elements=elements if each.elements > 1 else 1, fill=_uniform(each))
        for each in graph.vectors
    )
    kernels = tuple(dataclasses.replace(kernel, body=Mix()) for kernel in graph.kernels)
    return dataclasses.replace(graph, vectors=vectors, kernels=kernels)


def _uniform(vector: Any) -> Any:
    return dataclasses.replace(vector.fill, kind="uniform", low=0.0, high=1.0)


def ways(graph: Graph, costs: cost.GraphCosts, memory: str, *, counted: bool) -> list[tuple[str, Schedule, Execution]]:
    """(name, schedule, way) of everything that is measured; the separate one is first."""
    found = Schedules(graph)
    kind = Memory(memory)
    allocation = "each" if counted else "ahead"
    fused = "group" if counted else "ahead"
    pooled = (
        [("fused, pooled", found.grouping("interval_stabbing"), Execution(memory=memory, allocation="pooled"))]
        if counted
        else []
    )
    wanted = [
        ("separate", found.separate(early=False), Execution(memory=memory, allocation=allocation)),
        (
            "separate, overlapped",
            found.separate(early=True),
            Execution(memory=memory, allocation=allocation, issue="overlapped"),
        ),
        ("fused", found.grouping("interval_stabbing"), Execution(memory=memory, allocation=fused)),
        ("fused, one allocation", found.grouping("interval_stabbing"), Execution(memory=memory, allocation="one")),
        *pooled,
        (
            "fused, overlapped",
            found.grouping("interval_stabbing"),
            Execution(memory=memory, allocation=fused, issue="overlapped"),
        ),
        (
            "local_search",
            found.fast(costs, memory=kind, overlapped=True),
            Execution(memory=memory, allocation=fused, issue="overlapped"),
        ),
        ("batch", found.grouping("interval_stabbing"), Execution(memory=memory, allocation=allocation, send="batch")),
    ]
    if not counted:
        wanted = [each for each in wanted if each[2].allocation == "ahead"]
        if memory == "pinned" and all(kernel.device for kernel in graph.kernels):
            wanted.append(("graph", found.grouping("interval_stabbing"), Execution(memory=memory, issue="graph")))
    return wanted


def table(bench: Bench, names: Sequence[str], *, counted: bool) -> Iterator[dict[str, Any]]:
    """A row for each graph, length and kind of memory."""
    known: dict[str, float] = {}
    with bench.measurer() as measurer:
        for name in names:
            for elements in bench.lengths:
                graph = linear(name, elements)
                if counted and graph.loop:
                    graph = linear("cg_step", elements)  # in a loop everything is allocated before it
                _probe(bench, measurer, graph, known)
                for memory in ("pageable", "pinned"):
                    row = _row(bench, measurer, graph, known, memory, counted=counted)
                    bench.say(f"{name} at {elements}, {memory}: {_short(row)}")
                    yield {"graph": name, "elements": elements, "memory": memory, **row}


def _short(row: dict[str, Any]) -> str:
    return ", ".join(f"{each['way']} {each.get('ratio') or each.get('problem')}" for each in row["ways"][1:])


def _probe(bench: Bench, measurer: Measurer, graph: Graph, known: dict[str, float]) -> None:
    for probe in probes(graph):
        if probe.key in known:
            continue
        program = bench.provider.normalise(probe.program)
        references = measurer.references(program, f"probe-{program.key}")
        if isinstance(references, MeasureFailed):
            continue
        measured = measurer.sample(program, None, Sampling(purpose=Purpose.PROBE), references)
        if not isinstance(measured, MeasureFailed):
            known[probe.key] = measured.time_us


def _row(
    bench: Bench, measurer: Measurer, graph: Graph, known: dict[str, float], memory: str, *, counted: bool
) -> dict[str, Any]:
    costs = cost.costs(graph, known)
    rows: list[dict[str, Any]] = []
    reference: Program | None = None
    references: References | None = None
    made = [
        (name, schedule, bench.provider.normalise(emit.program(script(schedule), way, name=f"{graph.name}, {name}")))
        for name, schedule, way in ways(graph, costs, memory, counted=counted)
    ]
    for _, _, program in made:  # all cores compile for the row
        measurer.build_ahead(program)
    for name, schedule, program in made:
        row: dict[str, Any] = {"way": name, "messages": schedule.startups}
        rows.append(row)
        if reference is None:
            found = measurer.references(program, f"{graph.name}-{program.key}")
            if isinstance(found, MeasureFailed):
                row["problem"] = found.reason
                break
            reference, references = program, found
        assert references is not None
        row |= measured_beside(bench, measurer, program, reference, references)
    return {
        "transfers": len(Schedules(graph).crossings),
        "costs": costs.missing == 0,
        "ways": rows,
        "rivals": named_rivals.transfer(rows, emulated=bench.emulated),
    }


def measured_beside(
    bench: Bench, measurer: Measurer, program: Program, reference: Program, references: References
) -> dict[str, Any]:
    """A program in pairs with the reference: time, ratio and samples; or the problem."""
    measured = benches.beside(measurer, program, reference, references, pairs=bench.pairs)
    if isinstance(measured, str):
        return {"problem": measured}
    ratio = None if measured.ratio is None else round(measured.ratio, 4)
    return {
        "time_us": round(measured.time_us, 2), "ratio": ratio, "clock": measured.clock, "samples": plain(measured)
    }  # fmt: skip
