"""Regions of recorded graphs as stitching's kernels: on the cpu device's runtime, and on a stand-in for the driver."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build import gxx
from fusiond.model.program import Program
from fusiond.service.frameworks import launching as plans
from fusiond.service.frameworks.launching import LaunchPlan, Unusable
from fusiond.service.frameworks.region_answers import Question
from fusiond.service.frameworks.running import CudaMachine, LaunchFailed, Machine, Processor, StepPlan
from fusiond.torch import importer, regions
from fusiond.torch.graphs import FxGraph, Tensor
from fusiond.torch.regions import FxSegment
from tests.build.exporting import driver as stand_in
from tests.service.frameworks.answered import emitted

from .recorded import Recorder, adam, cross_entropy, perceptron

jax = pytest.importorskip("jax", reason="the oracle is JAX")

Array = np.ndarray[Any, Any]
Values = Mapping[str, Array]


def answer(graph: FxGraph, segment: FxSegment) -> tuple[Program, LaunchPlan]:
    inputs = {each: graph.tensors()[each][0] for each in segment.inputs}
    text = importer.text("region", segment.nodes, inputs, segment.outputs)  # type: ignore[arg-type]
    found = emitted(Question(name="region", text=text, device="cpu"))
    assert found.program is not None, found.reason
    names = plans.argument_names(len(segment.inputs), len(segment.outputs))
    return found.program, plans.flat(found.program, *names)


def launched(graph: FxGraph, segment: FxSegment, values: Values, made: Callable[..., Machine]) -> dict[str, Array]:
    """The outputs of a segment, by the machine that `made` makes of a program and a plan."""
    program, flat = answer(graph, segment)
    tensors = graph.tensors()
    outputs = {}
    for each in segment.outputs:
        (shape,) = tensors[each]
        assert shape is not None
        outputs[each] = np.full(shape.dims, np.nan, np.float32)
    plan = StepPlan(flat, made(program, flat))
    scratch = [np.empty(each + 64, np.uint8) for each in plan.scratch]
    given = [np.ascontiguousarray(values[each]) for each in segment.inputs]
    aligned = [each.ctypes.data for each in (*given, *outputs.values())]
    plan.run([*aligned, *(-(-each.ctypes.data // 64) * 64 for each in scratch)])
    return outputs


def processor(program: Program, plan: LaunchPlan) -> Machine:
    paths, entries = plans.built_for_cpu(program)
    return Processor(gxx.scheduler(), paths, entries, plan)


class _Driven:
    """A CudaMachine on the stand-in: each launch is waited for."""

    def __init__(self, program: Program, plan: LaunchPlan, folder: Path) -> None:
        self.driver = stand_in.Driver(gxx.scheduler())
        built = stand_in.built(program, folder)
        images = [built[each].read_bytes() for each in plan.images]
        symbols = [f"_Z{name}" for name in plans.built_for_cpu(program)[1]]
        self.gpu = CudaMachine(images, symbols, plan, self.driver)

    def start(self, step: Any, values: Any, stream: int) -> None:
        self.gpu.start(step, values, 7)
        self.driver.drain()

    def fill(self, address: int, size_bytes: int, byte: int, stream: int) -> None:
        self.gpu.fill(address, size_bytes, byte, 7)
        self.driver.drain()


def uniform(graph: FxGraph) -> dict[str, Array]:
    draw = np.random.default_rng(0)
    found = {}
    for name, each in graph.inputs.items():
        assert each is not None
        wide = draw.uniform(0.1, 1, each.dims).astype(np.float32)
        found[name] = wide if each.dtype == "f32" else draw.integers(0, 7, each.dims)
    return found


def close(got: Any, wanted: Any) -> None:
    # Products of numbers up to 5, summed in float32: small sums are that far off in NumPy, too.
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("machine", ["processor", "driver"])
def test_an_update_of_an_optimizer(machine: str, tmp_path: Path) -> None:
    graph = adam()
    (segment,) = regions.cut(graph)
    v = uniform(graph)
    made = processor if machine == "processor" else lambda program, plan: _Driven(program, plan, tmp_path)
    found = launched(graph, segment, v, made)
    first, second = v["m"] + 0.1 * (v["g"] - v["m"]), 0.99 * v["v"] + 0.01 * v["g"] ** 2
    step = 0.999 * v["p"] - 0.01 * first / (np.sqrt(second) + 1e-8)
    for output, wanted in zip(graph.outputs, (step, first, second), strict=True):
        close(found[output], wanted)


def test_complex_numbers_are_pairs_in_memory() -> None:
    """Positions turned into a query, as LLaMA does it: z = (a + bi) * (c + di), in one kernel."""
    write = Recorder(q=Tensor((3, 7, 10), "bf16"), turn=Tensor((7, 5), "c64"))
    wide = write("_to_copy.default", "q", dims=(3, 7, 10))
    pairs = write("view.default", wide, [3, 7, 5, 2], dims=(3, 7, 5, 2))
    z = write("view_as_complex.default", pairs, dims=(3, 7, 5), dtype="c64")
    z = write("mul.Tensor", z, "turn", dims=(3, 7, 5), dtype="c64")
    size = write("abs.default", z, dims=(3, 7, 5))
    found = write("mul.Tensor", write("view_as_real.default", z, dims=(3, 7, 5, 2)), 2.0, dims=(3, 7, 5, 2))
    graph = write.graph(found, size)
    (segment,) = regions.cut(graph)
    random = np.random.default_rng(0)
    q = random.normal(size=(3, 7, 10)).astype(jax.numpy.bfloat16)
    turn = np.exp(1j * random.normal(size=(7, 5))).astype(np.complex64)
    got = launched(graph, segment, {"q": q, "turn": turn}, processor)
    wanted = q.astype(np.float32).view(np.complex64) * turn
    close(got[found], np.stack([wanted.real, wanted.imag], -1) * 2)
    close(got[size], np.abs(wanted))


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["processor", "driver"])
def test_a_loss_and_its_gradient(machine: str, tmp_path: Path) -> None:
    graph = cross_entropy()
    (segment,) = regions.cut(graph)
    v = uniform(graph)
    made = processor if machine == "processor" else lambda program, plan: _Driven(program, plan, tmp_path)
    found = launched(graph, segment, v, made)

    def loss(x: Any) -> Any:
        return -jax.numpy.take_along_axis(jax.nn.log_softmax(x), v["target"][:, None], 1).mean()

    value, gradient = jax.value_and_grad(loss)(v["x"])
    close(found[graph.outputs[0]], value)
    close(found[graph.outputs[1]], gradient)


@pytest.mark.slow
def test_regions_between_products() -> None:
    """The whole graph: regions as kernels, products by NumPy."""
    graph = perceptron()
    v = uniform(graph)
    values = dict(v)
    for segment in regions.cut(graph):
        if segment.fusable:
            values |= launched(graph, segment, values, processor)
        for node in () if segment.fusable else segment.nodes:
            values[node.name] = values[node.reads[0]] @ values[node.reads[1]]
    x = v["x"]
    middle, spread = x.mean(1, keepdims=True), x.var(1, keepdims=True)
    normal = (x - middle) / np.sqrt(spread + 1e-5) * v["scale"]
    active = np.asarray(jax.nn.gelu(2 * normal @ v["w"] + v["b"], approximate=False))
    close(values[graph.outputs[0]], active @ v["v"])
    close(values[graph.outputs[1]], middle)
    close(values[graph.outputs[2]], active)


def test_a_driver_that_refuses_is_said_so(tmp_path: Path) -> None:
    graph = adam()
    (segment,) = regions.cut(graph)

    def made(program: Program, plan: LaunchPlan) -> Machine:
        machine = _Driven(program, plan, tmp_path)
        machine.driver.cuLaunchKernel = lambda *given: 719  # type: ignore[method-assign]
        return machine

    with pytest.raises(LaunchFailed, match="cuLaunchKernel failed with status 719: refused by the stand-in"):
        launched(graph, segment, uniform(graph), made)


def test_code_that_does_not_load_is_unusable(tmp_path: Path) -> None:
    _, plan = answer(adam(), regions.cut(adam())[0])
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(b"no code")
    with pytest.raises(Unusable, match=r"cannot load damaged\.so"):
        Processor(gxx.scheduler(), [damaged], ["kernel"], plan)
