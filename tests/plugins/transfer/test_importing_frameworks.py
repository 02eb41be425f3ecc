"""Graphs from jaxprs and from torch.fx, run on the cpu device against the functions themselves."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.experimental
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


def _rematerialised(a: Any, b: Any) -> Any:
    return jax.checkpoint(lambda x: x * x + 1)(a), jax.vmap(lambda x: x * 2)(b), jnp.clip(a, -1, 1)


def _gradient(a: Any, b: Any) -> Any:
    return jax.value_and_grad(lambda w: jnp.sum((w * b - 1.0) ** 2))(a)


def _moved(a: Any, b: Any) -> Any:
    there = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.device_put(jax.device_put(a) + 1, there) * b, jax.nn.relu(a) + jnp.maximum(b, -jnp.inf)


@pytest.mark.slow
@pytest.mark.parametrize("function", [_blend, _shapes, _nested, _rematerialised, _gradient, _moved])
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


def test_callbacks_in_nested_functions_and_for_their_effect(graph: Callable[..., Graph]) -> None:
    """One jitted function with a callback, called twice; a callback under vmap; two that give nothing back."""

    def triple(x: Any) -> Any:
        return np.asarray(x) * 3

    @jax.jit
    def inner(x: Any) -> Any:
        return jax.pure_callback(triple, jax.ShapeDtypeStruct((6,), jnp.float32), x) + x

    def step(x: Any) -> Any:
        each = jax.vmap(
            lambda v: jax.pure_callback(triple, jax.ShapeDtypeStruct((), jnp.float32), v, vmap_method="expand_dims")
        )
        y = inner(inner(x)) + each(x)
        jax.debug.print("{}", y)
        jax.experimental.io_callback(lambda v: None, None, y * 2, ordered=True)
        return y

    root = documents.drafted(from_jaxpr(jax.make_jaxpr(step)(np.ones(6, np.float32))), "d")[0].plain()
    host = [each for each in root["kernels"] if each["on"] == "host"]
    assert [(each["name"], each["body"]) for each in host] == [
        ("pure_callback", "?"), ("pure_callback_2", "?"), ("pure_callback_3", "?"), ("debug_print", "?"),
        ("io_callback", "?"),
    ]  # fmt: skip
    # The effects want their operands on the host as any other kernel does; each is one byte, behind the results.
    assert [root["vectors"][name]["dtype"] for name in root["outputs"]] == ["float32", "uint8", "uint8"]
    assert [each["reads"] for each in host[3:]] == [[root["outputs"][0]], ["mul_result"]]


def test_keys_numbers_that_are_converted_and_infinities() -> None:
    def step(x: Any) -> Any:
        return jnp.clip(x, -1, 2), jax.nn.softmax(x), x / jnp.inf, x + jax.random.uniform(jax.random.key(3), (6,))

    root = documents.drafted(from_jaxpr(jax.make_jaxpr(step)(np.ones(6, np.float32))), "d")[0].plain()
    kernels = {each["name"]: each for each in root["kernels"]}
    assert kernels["min"]["body"] == {"min_result": "min(2.0, (max((-1.0), x0)))"}
    assert kernels["max"]["body"] == {"max_result": "reduce_max_result"}
    infinite = [each for each in root["kernels"] if each["name"] == "div_2"]
    assert [each["body"] for each in infinite] == ["?"]
    assert root["vectors"]["random_seed_result"] == {"dtype": "uint32", "elements": 2}
    assert "inf" not in str([each["body"] for each in root["kernels"]])


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


def test_results_numbers_and_what_is_written_in_place(graph: Callable[..., Graph], device: Any, gxx_here: None) -> None:
    """Two results of one operation, a shape, an attribute that is read twice, `add_`, and a write through a view."""
    recorded = _Graph()
    x, w, again = recorded.add("placeholder", "x"), recorded.add("get_attr", "w"), recorded.add("get_attr", "w")
    length = recorded.add("call_method", "size", x, 0, shape=None)
    half = recorded.add("call_function", operator.truediv, length, 2, shape=None)
    added = recorded.add("call_function", operator.add, x, w)
    recorded.add("call_method", "add_", added, again)
    view = recorded.add("call_method", "view", added, -1)
    recorded.add("call_method", "mul_", view, 2)
    parts = recorded.add("call_method", "topk", added, half, shape=None)
    parts.meta["val"] = tuple(SimpleNamespace(shape=(5,), dtype=f"torch.{kind}") for kind in ("float32", "int64"))
    where = recorded.add("call_function", operator.getitem, parts, 1, shape=(5,), dtype="int64")
    recorded.add("output", "output", (added, where), shape=None)
    text = from_fx(recorded, "module")
    root = documents.drafted(text, "draft")[0].plain()
    assert (root["inputs"], len(root["kernels"])) == (["n0", "n1"], 5)
    asked = {each["name"]: (each["reads"], each["writes"]) for each in root["kernels"] if each["body"] == "?"}
    assert asked == {
        "mul_in_place": (["add_result_2", "mul_result"], ["mul_in_place_result"]),
        "topk": (["mul_in_place_result"], ["topk_result", "topk_result_2"]),
    }
    assert root["outputs"] == ["mul_in_place_result", "topk_result_2"]
    text = text.replace('body: "?"', 'body: {"mul_in_place_result": "mul_result"}', 1).replace(', body: "?"', "")
    draw = np.random.default_rng(3)
    given = [draw.uniform(-1, 1, 60).astype(np.float32) for _ in range(2)]
    found = _run(device, graph(text), dict(zip(root["inputs"], given, strict=True)))
    np.testing.assert_allclose(found[0], 2 * (given[0] + 2 * given[1]), rtol=1e-5)


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
