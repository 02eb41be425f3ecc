"""Graphs that torch itself records, by each of its tracers: where all is a formula the draft is run on the cpu device
against the module; else its kernels, their operands and their sides are looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusiond.inputs import documents
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import emit
from fusiond_transfer.python import from_fx

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
F = torch.nn.functional


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(6, 9), torch.nn.Linear(9, 2)

    def forward(self, x: Any) -> Any:
        return self.down(F.gelu(self.up(x)))


class Attention(torch.nn.Module):
    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k.transpose(-1, -2) / (q.size(-1) ** 0.5), -1) @ v


class Split(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        left, right = x.chunk(2, dim=-1)
        largest, where = torch.max(left, dim=-1)
        return left + right, {"largest": largest, "where": where}


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell = torch.nn.Embedding(10, 4), torch.nn.GRU(4, 3, batch_first=True)

    def forward(self, tokens: Any) -> Any:
        every, last = self.cell(self.table(tokens))
        return every[:, -1], last


class There(torch.nn.Module):
    """To the device and back, twice."""

    def forward(self, x: Any) -> Any:
        y = (x.to("cuda") * 2 + 1).cpu()
        return torch.sqrt(torch.abs(y)).cuda().sum()


class Affine(torch.nn.Module):
    """Parameters and a buffer, used in each round."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8))
        self.shift = torch.nn.Parameter(torch.linspace(-1, 1, 8))

    def forward(self, x: Any) -> Any:
        for _ in range(3):
            x = torch.relu(x * self.scale + self.shift)
        return x, x.sum()


class InPlace(torch.nn.Module):
    """What a method has written in place is what its operand is from then on."""

    def forward(self, x: Any) -> Any:
        y = x.clone()
        y.add_(1.5)
        y *= 2
        return y - x, y.reshape(-1).square()


class ThroughAView(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        y = x * 2
        y[0] = 3
        return y + 1


def _symbolic(module: Any, arguments: tuple[Any, ...]) -> Any:
    from torch.fx.passes.shape_prop import ShapeProp

    traced = torch.fx.symbolic_trace(module)
    ShapeProp(traced).propagate(*arguments)
    return traced


def _exported(module: Any, arguments: tuple[Any, ...]) -> Any:
    return torch.export.export(module, arguments).graph_module


def _functional(module: Any, arguments: tuple[Any, ...]) -> Any:
    return torch.export.export(module, arguments).run_decompositions().graph_module


def _dispatched(module: Any, arguments: tuple[Any, ...]) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(module)(*arguments)


def _drafted(traced: Any) -> Any:
    return documents.drafted(from_fx(traced, "module"), "draft")[0].plain()


TRACERS = [_symbolic, _exported, _functional, _dispatched]


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("kind", [Affine, InPlace])
def test_what_torch_computes_the_draft_computes(
    kind: Any, tracer: Any, graph: Callable[..., Any], device: Any, gxx_here: None
) -> None:
    module, x = kind().eval(), torch.linspace(-2, 2, 8)
    found = graph(from_fx(tracer(module, (x,)), "module"))
    given = {"scale": getattr(module, "scale", None), "shift": getattr(module, "shift", None)}
    inputs = {}
    for name in found.inputs:  # p_shift and b_scale of an export, constants in the order of their use when dispatched
        known = next((each for key, each in given.items() if key in name), None)
        known = known if known is not None else module.scale if "tensor_constant" in name else None
        known = known if known is not None else module.shift if "param_constant" in name else x
        inputs[name] = known.detach().numpy()
    program = emit.program(
        script(Schedules(found).grouping("interval_stabbing")), emit.Execution(memory="pinned"), name="module"
    )
    outputs = device.run(program, inputs=inputs)
    for name, wanted in zip(found.outputs, module(x.clone()), strict=True):
        np.testing.assert_allclose(outputs[name], wanted.detach().numpy().reshape(-1), rtol=1e-5, err_msg=name)


def test_sides_are_those_of_the_module() -> None:
    root = _drafted(_exported(There(), (torch.ones(9),)))
    assert [(each["name"], each["on"], "?" in str(each["body"])) for each in root["kernels"]] == [
        ("add", "device", False), ("sqrt", "host", False), ("sum", "device", False),
    ]  # fmt: skip


@pytest.mark.parametrize("tracer", TRACERS)
def test_parameters_are_inputs(tracer: Any) -> None:
    root = _drafted(tracer(Mlp().eval(), (torch.ones(5, 6),)))
    sizes = sorted(root["vectors"][name]["elements"] for name in root["inputs"])
    assert sizes == sorted([30, 54, 9, 18, 2])
    assert root["outputs"] == [root["kernels"][-1]["writes"][0]]


@pytest.mark.parametrize("tracer", TRACERS)
def test_results_of_one_operation_are_written_by_one_kernel(tracer: Any) -> None:
    root = _drafted(tracer(Split(), (torch.arange(24.0).reshape(4, 6),)))
    writers = {name: each["name"] for each in root["kernels"] for name in each["writes"]}
    total, largest, where = root["outputs"]
    assert writers[largest] == writers[where] != writers[total]
    assert [root["vectors"][name] for name in (total, largest, where)] == [
        {"dtype": "float32", "elements": 12}, {"dtype": "float32", "elements": 4}, {"dtype": "int64", "elements": 4},
    ]  # fmt: skip
    recurrent = _drafted(tracer(Recurrent().eval(), (torch.zeros(2, 5, dtype=torch.int64),)))
    assert [recurrent["vectors"][name]["elements"] for name in recurrent["outputs"]] == [6, 6]


@pytest.mark.parametrize("tracer", TRACERS)
def test_shapes_are_not_vectors(tracer: Any) -> None:
    root = _drafted(tracer(Attention(), tuple(torch.ones(2, 4, 8) for _ in range(3))))
    assert len(root["inputs"]) == 3
    assert all(isinstance(each["elements"], int) for each in root["vectors"].values())
    assert not {"size", "pow", "getattr"} & {each["name"] for each in root["kernels"]}


@pytest.mark.parametrize("tracer", [_exported, _dispatched])
def test_what_is_written_through_a_view_is_in_what_it_is_a_view_of(tracer: Any) -> None:
    root = _drafted(tracer(ThroughAView(), (torch.ones(3, 4),)))
    (last,) = [each for each in root["kernels"] if each["writes"] == root["outputs"]]
    writers = {each["writes"][0]: each for each in root["kernels"]}
    changed = writers[last["reads"][0]]
    assert changed["name"].endswith("_in_place")
    assert root["vectors"][changed["writes"][0]]["elements"] == 12


def test_sizes_that_are_symbols_are_asked_for() -> None:
    rows = torch.export.Dim("rows", min=2, max=64)
    exported = torch.export.export(Affine(), (torch.ones(5, 8),), dynamic_shapes=({0: rows},))
    root = _drafted(exported.graph_module)
    assert {each["elements"] for each in root["vectors"].values()} == {8, 1, "?"}
