"""Kernels over parts of vectors in chunks: which rows meet, where they are cut, and what NumPy says."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusiond.model.nouns import Analysis, Config
from fusiond.model.program import Copy, Launch, Program, problems
from fusiond_transfer.analysis import chunks, row_lines
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import Script, script
from fusiond_transfer.codegen import simulate
from fusiond_transfer.codegen.emit import Execution, program
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.strategy import Transfer

HALVES = """\
graph: halves
sizes: {n: 50000}
elements: n
dtype: float64
inputs: [x]
outputs: [y, z]
kernels:
  - {name: low, on: device, reads: ["x[0:n // 2]"], writes: ["y[:n // 2]"], body: 2 * x}
  - {name: high, on: host, reads: ["x[n // 2:]"], writes: ["y[n // 2:]"], body: x + 1}
  - {name: all, on: device, reads: [y], writes: [z], body: y * y}
"""
CUT = Execution(memory="pinned", issue="overlapped", chunks=4, least_chunk_bytes=1)


def plan_of(graph: Graph) -> Script:
    return script(Schedules(graph).least().schedule)


def test_halves_are_halves_of_one_line(graph: Callable[..., Graph]) -> None:
    plan = plan_of(graph(HALVES))
    (line,) = row_lines.lines(plan).lines
    assert (line.bounds, line.equal) == ((0, 25000, 50000), ())
    found = chunks.chunks(plan, 4)
    assert found.cells["z"].bounds == (0, 12512, 25000, 37512, 50000)
    assert {name: (call.first, len(call.bounds) - 1) for name, call in found.calls.items()} == {
        "low": (0, 2), "high": (2, 2), "all": (0, 4)
    }  # fmt: skip
    made = program(plan, CUT, name="x")
    names = [each.name for each in made.steps]
    assert names.index("all#0") < names.index("low#1"), "each part of the chain follows its own chunk"
    assert simulate.faults(plan, made) == ()


@pytest.mark.parametrize("order", ["depth_first", "breadth_first"])
def test_a_job_has_chunks_of_parts_and_they_move_with_the_sizes(
    order: str, analyse: Callable[..., Analysis], strategy: Transfer, device: Any, gxx_here: None
) -> None:
    analysis = analyse(HALVES)
    assert analysis.report["chunks"]["row_wise"] == ["low", "high", "all"]
    assert analysis.report["chunks"]["counts"] == [1, 2, 4, 8, 16]
    config = {"grouping": "interval_stabbing", "memory": "pinned", "issue": "overlapped", "send": "message",
              "chunks": 8, "streams": "engines", "chunk_order": order}  # fmt: skip
    if analysis.payload.offer.reordered:
        config["order"] = "given"
    made = strategy.emit(analysis, Config.of(config), {})
    assert isinstance(made, Program), made
    assert made.fixed == ()
    assert len([each for each in made.steps if isinstance(each, Launch)]) == 12
    for n in (50_000, 20_011):
        there = made.at({"n": n})
        assert problems(there) == ()
        x = np.random.default_rng(n).uniform(-1, 1, n)
        y = np.concatenate([2 * x[: n // 2], x[n // 2 :] + 1])
        for seed in range(3):
            out = device.run(there, seed=seed, inputs={"x": x})
            np.testing.assert_array_equal(out["y"], y)
            np.testing.assert_array_equal(out["z"], y * y)


def test_small_pieces_are_in_one_chunk(graph: Callable[..., Graph]) -> None:
    """Ten pieces, of which four are together as large as the others are each; they cross in one message."""
    bounds = [0, 100, 200, 300, 400, 4400, 8400, 12400, 16400, 20400, 24400]
    kernels = "".join(
        f"  - {{name: k{at}, on: device, reads: ['x[{a}:{b}]'], writes: ['y[{a}:{b}]'], body: 2 * x}}\n"
        for at, (a, b) in enumerate(itertools.pairwise(bounds))
    )
    text = f"graph: pieces\nelements: 24400\ndtype: float64\ninputs: [x]\noutputs: [z]\nkernels:\n{kernels}"
    plan = plan_of(graph(text + "  - {name: all, on: device, reads: [y], writes: [z], body: y + 1}\n"))
    found = chunks.chunks(plan, 6, least_bytes=1)
    assert found.cells["z"].bounds == (0, 400, 4400, 8400, 12400, 16400, 20400, 24400)
    made = program(plan, Execution(memory="pinned", issue="overlapped", chunks=6, least_chunk_bytes=1), name="x")
    first = next(each for each in made.steps if isinstance(each, Copy) and each.source[0] == "x[0:100]#0")
    assert first.source == tuple(f"x[{a}:{a + 100}]#0" for a in (0, 100, 200, 300))
    assert simulate.faults(plan, made) == ()
    assert chunks.chunks(plan, 64, least_bytes=1).cells["z"].bounds[:3] == (0, 300, 400), "three of them fill a chunk"


def test_rows_that_do_not_meet_have_a_reason(analyse: Callable[..., Analysis]) -> None:
    text = """\
graph: differences
elements: 50000
dtype: float64
vectors: {y: {elements: 49999}, w: {elements: 49999}}
inputs: [x]
outputs: [w, v]
kernels:
  - {name: next, on: device, reads: ["x[:49999]", "x[1:]"], writes: [y]}
  - {name: twice, on: device, reads: [y], writes: [w], body: 2 * y}
  - {name: shift, on: device, reads: ["x[1:]", y], writes: ["v[:49999]"], body: x + y}
  - {name: last, on: device, reads: ["x[49999:]"], writes: ["v[49999:]"], body: x}
"""
    report = analyse(text).report["chunks"]
    assert report["row_wise"] == ["next", "twice", "shift", "last"][1:3]
    assert report["not_row_wise"] == {
        "next": "its rows of x lie 1 apart from those of itself", "last": "v[49999:50000] has one element"
    }  # fmt: skip
    shifted = text.replace('"x[1:]", y]', '"x[1:]", "x2[:49999]"]').replace("x + y", "x + x2")
    shifted = shifted.replace("inputs: [x]", "inputs: [x, x2]")
    shifted += "  - {name: same, on: device, reads: [x, x2], writes: [u], body: x + x2}\n"
    report = analyse(shifted.replace("[w, v]", "[w, v, u]")).report["chunks"]
    assert report["not_row_wise"]["same"] == "its rows of x2 lie 1 apart from those of shift"


def test_lengths_that_are_equal_by_chance_stay(graph: Callable[..., Graph]) -> None:
    """Where `all` has as many rows as x has elements at this size only, chunks are for this size only."""
    text = HALVES.replace("sizes: {n: 50000}", "sizes: {n: 50000, m: 25000}").replace("x[n // 2:]", "x[m:]")
    assert program(plan_of(graph(text)), CUT, name="x").fixed == ("m", "n")
