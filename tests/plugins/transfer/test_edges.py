"""The smallest and oddest graphs: nothing that crosses, nothing that is read, one vector twice, unused inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusiond.model.nouns import Analysis, Rejection
from fusiond.model.program import Program
from fusiond_transfer.strategy import Transfer

GRAPHS = {
    "all on the host": "inputs: [a]\noutputs: [b]\nkernels: [{name: k, on: host, reads: [a], writes: [b]}]",
    "nothing is read": "inputs: []\noutputs: [b]\nkernels: [{name: k, on: device, writes: [b]}]",
    "an unused input": "inputs: [a, z]\noutputs: [b]\nkernels: [{name: k, on: device, reads: [a], writes: [b]}]",
    "an output that nobody wants": (
        "inputs: [a]\noutputs: [b]\nkernels: [{name: k, on: device, reads: [a], writes: [b, c]}]"
    ),
    "a vector read twice": (
        "inputs: [a]\noutputs: [b]\nkernels: [{name: k, on: device, reads: [a, a], writes: [b], body: a * a}]"
    ),
    "a device loop": (
        "inputs: [a]\noutputs: [b]\nloop: true\ncarried: {a: b}\n"
        "kernels: [{name: k, on: device, reads: [a], writes: [b]}]"
    ),
    "a host loop": (
        "inputs: [a]\noutputs: [b]\nloop: true\ncarried: {a: b}\n"
        "kernels: [{name: k, on: host, reads: [a], writes: [b]}]"
    ),
    "all is placed": (
        "inputs: [a]\nplaced: [a]\noutputs: [b]\nkernels: [{name: k, on: device, reads: [a], writes: [b]}]"
    ),
}


SLOW = ("an output that nobody wants", "nothing is read", "a host loop", "a vector read twice")


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in GRAPHS])
def test_every_point_of_its_space_is_right(
    name: str, analyse: Callable[..., Analysis], strategy: Transfer, device: Any
) -> None:
    analysis = analyse(f"graph: edge\nsizes: {{elements: 7}}\n{GRAPHS[name]}\n")
    assert strategy.describe(analysis)
    assert analysis.report["optimal"]
    baseline = strategy.baselines(analysis)[0]
    wanted = device.run(baseline.emit(next(baseline.space.points())))
    done: set[str] = set()
    for number, config in enumerate(strategy.space(analysis, {}).points()):
        made = strategy.emit(analysis, config, {})
        assert not isinstance(made, Rejection), made.detail
        assert isinstance(made, Program)
        if made.key not in done:
            done.add(made.key)
            found = device.run(made, seed=number % 3, kind=number % 2)
            for output, values in wanted.items():
                np.testing.assert_array_equal(found[output], values, err_msg=f"{name} {config}")
    assert done
    assert strategy.probes(analysis)


CLASHES = {
    "vectors called like allocations": (
        "inputs: [host, a, streams]\noutputs: [arena0, d]\nkernels:\n"
        "  - {name: k, on: device, reads: [host, a], writes: [b]}\n"
        "  - {name: m, on: host, reads: [b, streams], writes: [c]}\n"
        "  - {name: n, on: device, reads: [c], writes: [arena0]}\n"
        "  - {name: o, on: host, reads: [streams], writes: [d]}"
    ),
    "an array beside the arena of the host": (
        "inputs: [a, host]\noutputs: [c, e]\nkernels:\n"
        "  - {name: k, on: device, reads: [a], writes: [c]}\n"
        "  - {name: m, on: host, reads: [host], writes: [e]}"
    ),
    "kernels called like copies": (
        "inputs: [a]\noutputs: [c]\nkernels:\n"
        "  - {name: down_up_k, on: device, reads: [a], writes: [b]}\n"
        "  - {name: up_k, on: host, reads: [b], writes: [d]}\n"
        "  - {name: k, on: device, reads: [d], writes: [c]}"
    ),
    "kernels called like what is given and taken": (
        "inputs: [a]\noutputs: [c]\nkernels:\n"
        "  - {name: give_a, on: device, reads: [a], writes: [b], in_place: {b: a}}\n"
        "  - {name: take_c, on: device, reads: [b], writes: [c], in_place: {c: b}}"
    ),
}


@pytest.mark.parametrize("name", CLASHES)
def test_the_names_of_the_user_meet_no_names_of_ours(
    name: str, analyse: Callable[..., Analysis], strategy: Transfer, device: Any
) -> None:
    analysis = analyse(f"graph: clash\nsizes: {{elements: 7}}\n{CLASHES[name]}\n")
    baseline = strategy.baselines(analysis)[0]
    wanted = device.run(baseline.emit(next(baseline.space.points())))
    config = next(each for each in strategy.space(analysis, {}).points() if each["grouping"] == "interval_stabbing")
    made = strategy.emit(analysis, config, {})
    assert isinstance(made, Program)
    arenas = {each.arena for each in made.buffers} - {None}
    assert not arenas & {each.name for each in made.buffers if each.arena is None}
    for output, values in device.run(made, seed=1).items():
        np.testing.assert_array_equal(values, wanted[output])
