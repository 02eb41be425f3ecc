"""Plans through the cuda device, over the stand-in driver: arenas, streams, batches, allocations, host work, graphs."""

import itertools
from typing import Any

import numpy as np
import pytest

from fusiond.model.inputs.fills import initial
from fusiond.model.program import Fill, Program, Role
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen.emit import Execution, program
from fusiond_transfer.frontend.graph import Graph, GraphKernel, Text, Vector

N = 40
DOUBLE = Text(text="// x += y\n", entry="add", values=(N,), block=(32, 1, 1), grid=(2, 1, 1))
"""The stand-in has few kernels; `add` on one storage twice doubles it."""
HOST = Text(
    text='extern "C" void joined(const float* a, const float* b, float* c, int n) {\n'
    "    for (int i = 0; i < n; ++i) c[i] = a[i] + 3 * b[i];\n}\n",
    entry="joined",
    values=(N,),
)


def doubled(name: str, old: str, new: str) -> GraphKernel:
    return GraphKernel(name=name, on="device", reads=(old,), writes=(new,), in_place=((new, old),), body=DOUBLE)


def joined(name: str, a: str, b: str, c: str) -> GraphKernel:
    return GraphKernel(name=name, on="host", reads=(a, b), writes=(c,), body=HOST)


def mixed(*, host: bool) -> Graph:
    """Four vectors up, work on both sides, three down (without host kernels where a CUDA graph shall hold it)."""
    kernels = [doubled("d0", "a", "a1"), doubled("d1", "b", "b1")]
    outputs = ["a1"]
    if host:
        kernels += [joined("h0", "a1", "b1", "c"), doubled("d2", "c", "c1"), joined("h1", "c1", "k", "e")]
        outputs = ["c1", "e"]
    kernels += [doubled("d3", "k2", "k3")]
    names = ["a", "b", "k", "k2", *(name for kernel in kernels for name in kernel.writes)]
    fill = Fill(kind="integers", low=0, high=1000)
    return Graph(
        name="mixed", vectors=tuple(Vector(name=name, dtype="float32", elements=N, fill=fill) for name in names),
        kernels=tuple(kernels), inputs=("a", "b", "k", "k2") if host else ("a", "b", "k2"),
        outputs=(*outputs, "k3") if host else (*outputs, "b1", "k3"),
    )  # fmt: skip


def wanted(made: Program, *, host: bool) -> dict[str, Any]:
    data = {each.name: initial(each, 0) for each in made.buffers if each.role is Role.INPUT}
    a1, b1, k3 = 2 * data["a"], 2 * data["b"], 2 * data["k2"]
    if not host:
        return {"a1": a1, "b1": b1, "k3": k3}
    c1 = 2 * (a1 + 3 * b1)
    return {"c1": c1, "e": c1 + 3 * data["k"], "k3": k3}


def check(made: Program, device: Any, *, host: bool) -> None:
    loaded = device.load(made)
    try:
        for buffer in made.buffers:
            loaded.write(buffer.name, initial(buffer, 0, kind=0))
        loaded.run(seed=0, checked=True)
        assert loaded.broken_guards() == ()
        for _ in range(2):
            for name, values in wanted(made, host=host).items():
                np.testing.assert_array_equal(loaded.read(name), values, err_msg=name)
            assert loaded.sample_us(2) > 0
        assert loaded.clock == ("wall" if made.host_sensitive or loaded.clock == "wall" else "device")
    finally:
        loaded.close()


EXECUTIONS = [
    Execution(memory=memory, issue=issue, send=send, allocation=allocation)
    for memory, issue, send, allocation in itertools.product(
        ("pageable", "pinned"), ("one_stream", "overlapped"), ("message", "batch"), ("ahead", "group", "one", "pooled")
    )
]


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("grouping", ["separate", "interval_stabbing", "min_residency"])
def test_every_way_on_the_stand_in(grouping: str, gpu: Any) -> None:
    found = Schedules(mixed(host=True))
    before = gpu.live_allocations
    for execution in EXECUTIONS:
        check(program(script(found.grouping(grouping)), execution, name="x"), gpu, host=True)
    assert gpu.live_allocations == before


def test_a_graph_is_launched_as_one(gpu: Any) -> None:
    found = Schedules(mixed(host=False))
    for grouping in ("separate", "interval_stabbing"):
        made = program(script(found.grouping(grouping)), Execution(memory="pinned", issue="graph"), name="x")
        check(made, gpu, host=False)
    assert any("graph" in line.lower() for line in gpu.log())


def test_as_many_copies_as_messages(gpu: Any) -> None:
    found = Schedules(mixed(host=True))
    for grouping in ("separate", "interval_stabbing"):
        schedule = found.grouping(grouping)
        made = program(script(schedule), Execution(memory="pinned"), name="x")
        loaded = gpu.load(made)
        for buffer in made.buffers:
            loaded.write(buffer.name, initial(buffer, 0, kind=0))
        loaded.sample_us(1)
        gpu.log()
        loaded.sample_us(1)
        words = [line.split()[0] for line in gpu.log()]
        assert words.count("up") + words.count("down") == schedule.startups
        loaded.close()
