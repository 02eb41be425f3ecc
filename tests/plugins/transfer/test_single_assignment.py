"""Vectors that are written again: what comes out is what the statements give one after the other, in NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import emit
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.frontend.single_assignment import renamed

NAMES = ("u", "v", "w")
FORMULAS = ("{0} + 2 * {1}", "{0} * {1} - 1", "max({0}, {1})", "abs({1}) - {0}", "{0}")


def _statements(seed: int) -> list[tuple[str, str, tuple[str, ...], str]]:
    """(side, what is written, what is read, formula), over few names, so that most are written again."""
    draw = random.Random(seed)
    found = []
    for _ in range(draw.randrange(3, 9)):
        reads = (draw.choice(NAMES), draw.choice(NAMES))
        text = draw.choice(FORMULAS).format(*reads)
        found.append((draw.choice(["host", "device"]), draw.choice(NAMES), tuple(dict.fromkeys(reads)), text))
    return found


def _text(seed: int) -> str:
    kernels = "".join(
        f'  - {{name: k{number}, on: {on}, reads: [{", ".join(reads)}], writes: [{written}], body: "{text}"}}\n'
        for number, (on, written, reads, text) in enumerate(_statements(seed))
    )
    written = dict.fromkeys(each[1] for each in _statements(seed))
    head = "graph: again\nelements: 40\ndtype: float64\ninputs: [u, v, w]\n"
    return f"{head}outputs: [{', '.join(written)}]\nkernels:\n{kernels}"


@pytest.mark.slow
@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(12))
def test_the_last_value_of_each_name_comes_out(
    seed: int, graph: Callable[..., Graph], device: Any, gxx_here: None
) -> None:
    found = graph(_text(seed))
    draw = np.random.default_rng(seed)
    inputs = {name: draw.uniform(-2, 2, 40) for name in NAMES}
    values: dict[str, Any] = dict(inputs)
    for _, written, _, text in _statements(seed):
        names = {"max": np.maximum, "abs": np.abs, **values}
        values[written] = eval(text, {}, names)
    plan = script(Schedules(found).grouping("interval_stabbing"))
    program = emit.program(plan, emit.Execution(memory="pinned", issue="overlapped"), name="again")
    out = device.run(program, seed=seed, inputs=inputs)
    last = dict(zip(dict.fromkeys(each[1] for each in _statements(seed)), found.outputs, strict=True))
    for name, output in last.items():
        np.testing.assert_allclose(out[output], values[name], rtol=1e-12, atol=1e-12, err_msg=name)


def test_names_that_are_taken_are_passed_over(graph: Callable[..., Graph]) -> None:
    found = graph(
        "graph: g\nelements: 8\ninputs: [a, a_2]\noutputs: [a]\nkernels:\n"
        "  - {name: k0, on: device, reads: [a, a_2], writes: [a], body: a + a_2}\n"
    )
    assert (found.outputs, found.kernels[0].writes, found.kernels[0].reads) == (("a_3",), ("a_3",), ("a", "a_2"))
    assert renamed(found) is found
