"""Graphs from jaxprs and from torch.fx, run on the cpu device against the functions themselves."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fusiond.errors import RequestError
from fusiond.inputs import documents
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import emit
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.python import from_fx, from_jaxpr


def _run(device: Any, graph: Graph, inputs: dict[str, Any]) -> list[Any]:
    plan = script(Schedules(graph).grouping("interval_stabbing"))
    program = emit.program(plan, emit.Execution(memory="pinned", issue="overlapped"), name="imported")
    found = device.run(program, inputs=inputs)
    return [found[name] for name in graph.outputs]


def _blend(a: Any, b: Any) -> Any:
    t = 0.5 * a + b * b
    return t - jnp.maximum(a, b), jnp.sum(t)


def _shapes(a: Any, b: Any) -> Any:
    return (-a.reshape(4, 25) / (jnp.abs(b).reshape(4, 25) + 3)).reshape(100), a, jnp.sqrt(jnp.abs(a) + 2) * jnp.sum(b)


def _nested(a: Any, b: Any) -> Any:
    inner = jax.jit(lambda x: x * x - 1)
    return inner(a) + inner(b), jax.device_put(a) ** 2


@pytest.mark.parametrize("function", [_blend, _shapes, _nested])
def test_a_jaxpr_without_callbacks_is_computed_whole(
    function: Callable[..., Any], graph: Callable[..., Graph], device: Any, gxx_here: None
) -> None:
    draw = np.random.default_rng(1)
    a, b = (draw.uniform(-2, 2, 100).astype(np.float32) for _ in range(2))
    text = from_jaxpr(jax.make_jaxpr(function)(a, b))
    found = graph(text)
    assert all(each.device for each in found.kernels)
    outputs = _run(device, found, {"x0": a, "x1": b})
    for one, other in zip(outputs, function(a, b), strict=True):
        np.testing.assert_allclose(one, np.asarray(other).reshape(-1), rtol=1e-5, atol=1e-5)


def test_callbacks_run_on_the_host_and_ask_for_their_body(
    graph: Callable[..., Graph], device: Any, gxx_here: None
) -> None:
    def double(x: Any) -> Any:
        return np.asarray(x) * 2

    def step(a: Any) -> Any:
        t = a + 1
        u = jax.pure_callback(double, jax.ShapeDtypeStruct((50,), jnp.float32), t)
        return u * t

    a = np.linspace(-1, 1, 50, dtype=np.float32)
    text = from_jaxpr(jax.make_jaxpr(step)(a), "step")
    root = documents.drafted(text, "draft")[0].plain()
    assert [(each["on"], each["body"] == "?") for each in root["kernels"]] == [
        ("device", False), ("host", True), ("device", False),
    ]  # fmt: skip
    with pytest.raises(RequestError, match=r'still "\?": kernels\[1\]\.body'):
        graph(text)
    read = root["kernels"][1]["reads"][0]
    (out,) = _run(device, graph(text.replace('body: "?"', f'body: "2 * {read}"')), {"x0": a})
    np.testing.assert_allclose(out, np.asarray(step(a)), rtol=1e-6)


def test_a_value_that_is_used_once_is_a_part_of_its_formula() -> None:
    a = np.zeros(8, np.float32)
    chained = documents.drafted(from_jaxpr(jax.make_jaxpr(lambda x: (x + 1) * 2 - 3)(a)), "d")[0].plain()
    assert [list(each["body"].values()) for each in chained["kernels"]] == [["((x0 + 1.0) * 2.0) - 3.0"]]
    shared = documents.drafted(from_jaxpr(jax.make_jaxpr(lambda x: (lambda t: t * t)(x + 1))(a)), "d")[0].plain()
    assert len(shared["kernels"]) == 2


def test_what_is_no_formula_is_asked_for() -> None:
    a = np.zeros((8, 8), np.float32)
    root = documents.drafted(from_jaxpr(jax.make_jaxpr(lambda x: jnp.sin(x @ x))(a)), "d")[0].plain()
    assert [(each["name"], each["body"]) for each in root["kernels"]] == [("dot_general", "?"), ("sin", "?")]
    with pytest.raises(RequestError, match=r"expected what jax\.make_jaxpr"):
        from_jaxpr(lambda x: x)
    with pytest.raises(RequestError, match="is of complex64; a vector can be of bool"):
        from_jaxpr(jax.make_jaxpr(lambda x: x)(np.zeros(3, np.complex64)))


# --- torch.fx: torch is not installed here, so graphs are recorded as its nodes are -----------------------


class _Graph:
    """Nodes with the attributes of torch.fx's."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []

    def add(self, op: str, target: Any, *args: Any, shape: Any = (60,), dtype: str = "float32", **kwargs: Any) -> Any:
        meta = {} if shape is None else {"tensor_meta": SimpleNamespace(shape=shape, dtype=f"torch.{dtype}")}
        node = SimpleNamespace(op=op, target=target, args=args, kwargs=kwargs, meta=meta, name=f"n{len(self.nodes)}")
        # torch's nodes are compared by identity, and are keys of dicts.
        made = type("Node", (), {**vars(node), "__hash__": object.__hash__})()
        self.nodes.append(made)
        return made


def _recorded() -> _Graph:
    graph = _Graph()
    x, y = (graph.add("placeholder", name) for name in "xy")
    scaled = graph.add("call_function", operator.mul, x, 2)
    there = graph.add("call_method", "to", scaled, "cuda:0")
    other = graph.add("call_method", "cuda", y)
    both = graph.add("call_function", operator.add, there, other)
    back = graph.add("call_method", "cpu", both)
    total = graph.add("call_method", "sum", back, shape=())
    graph.add("output", "output", (both, total), shape=None)
    return graph


def test_a_graph_of_torch_fx_is_computed(graph: Callable[..., Graph], device: Any, gxx_here: None) -> None:
    found = graph(from_fx(SimpleNamespace(graph=_recorded()), "module"))
    assert [(each.name, each.on) for each in found.kernels] == [("mul", "host"), ("add", "device"), ("sum", "host")]
    draw = np.random.default_rng(2)
    x, y = (draw.uniform(-1, 1, 60).astype(np.float32) for _ in range(2))
    both, total = _run(device, found, dict(zip(found.inputs, (x, y), strict=True)))
    np.testing.assert_allclose(both, 2 * x + y, rtol=1e-6)
    np.testing.assert_allclose(total, [(2 * x + y).sum()], rtol=1e-4)


def test_what_torch_fx_did_not_record_is_asked_for() -> None:
    graph = _Graph()
    x = graph.add("placeholder", "x", shape=None)
    y = graph.add("call_function", "aten.add.Tensor", x, x, shape=None)
    graph.add("output", "output", (y,), shape=None)
    root = documents.drafted(from_fx(graph), "draft")[0].plain()
    assert set(map(str, root["vectors"].values())) == {str({"dtype": "?", "elements": "?"})}
    assert root["kernels"][0]["name"] == "add"
    assert root["kernels"][0]["body"] == "?"
    scaled = _recorded()
    scaled.nodes[5].kwargs = {"alpha": 3}  # x + 3 y is another operation
    kernels = documents.drafted(from_fx(scaled), "draft")[0].plain()["kernels"]
    assert [each["body"] == "?" for each in kernels] == [False, True, False]
    with pytest.raises(RequestError, match="expected a Graph or GraphModule"):
        from_fx(3)
