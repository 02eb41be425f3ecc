"""Small graphs as AOTAutograd leaves them, written by hand."""

from __future__ import annotations

from typing import Any

from fusiond.torch.graphs import FxGraph, FxNode, Ref, Tensor


class Recorder:
    """Nodes one after the other; the shape of each is said, as FX says it."""

    def __init__(self, **inputs: Tensor | None) -> None:
        self.inputs = inputs
        self.nodes: list[FxNode] = []

    def __call__(
        self,
        operator: str,
        *arguments: Any,
        dims: tuple[int, ...] | None,
        effect: str = "",
        device: str = "cpu",
        **named: Any,
    ) -> str:
        known = {*self.inputs, *(each.name for each in self.nodes)}

        def given(value: Any) -> Any:
            if isinstance(value, str) and value in known:
                return Ref(value)
            return tuple(map(given, value)) if isinstance(value, list | tuple) else value

        name = f"n{len(self.nodes)}"
        result = None if dims is None else Tensor(dims, "f32", device=device)
        whole = operator if operator == "getitem" else f"aten.{operator}"
        self.nodes.append(
            FxNode(name=name, operator=whole, arguments=tuple(map(given, arguments)), named=named, results=(result,),
                 effect=effect)
        )  # fmt: skip
        return name

    def several(self, operator: str, *arguments: Any, results: tuple[Tensor | None, ...]) -> tuple[str, ...]:
        made = self(operator, *arguments, dims=None)
        last = self.nodes[-1]
        self.nodes[-1] = FxNode(name=made, operator=last.operator, arguments=last.arguments, results=results)
        picked = []
        for at, each in enumerate(results):
            picked.append(self("getitem", made, at, dims=None))
            last = self.nodes[-1]
            self.nodes[-1] = FxNode(name=last.name, operator="getitem", arguments=last.arguments, results=(each,))
        return tuple(picked)

    def graph(self, *outputs: str) -> FxGraph:
        return FxGraph(inputs=self.inputs, nodes=tuple(self.nodes), outputs=outputs)


F = Tensor


def perceptron() -> FxGraph:
    """gelu((norm(x) w) + b) v: a normalisation, a product, an activation with a residual, another product."""
    r = Recorder(
        x=F((8, 16), "f32"), scale=F((16,), "f32"), w=F((16, 32), "f32"), b=F((32,), "f32"), v=F((32, 4), "f32")
    )
    found = r.several("native_layer_norm.default", "x", [16], "scale", None, 1e-5,
                      results=(F((8, 16), "f32"), F((8, 1), "f32"), F((8, 1), "f32")))  # fmt: skip
    twice = r("mul.Tensor", found[0], 2.0, dims=(8, 16))
    hidden = r("mm.default", twice, "w", dims=(8, 32))
    moved = r("add.Tensor", hidden, "b", dims=(8, 32))
    active = r("gelu.default", moved, dims=(8, 32))
    result = r("mm.default", active, "v", dims=(8, 4))
    return r.graph(result, found[1], active)


def adam() -> FxGraph:
    """One AdamW step of a tensor, as the update of an optimizer is traced."""
    dims = (6, 10)
    r = Recorder(p=F(dims, "f32"), g=F(dims, "f32"), m=F(dims, "f32"), v=F(dims, "f32"))
    decayed = r("mul.Tensor", "p", 0.999, dims=dims)
    first = r("lerp.Scalar", "m", "g", 0.1, dims=dims)
    faded = r("mul.Tensor", "v", 0.99, dims=dims)
    second = r("addcmul.default", faded, "g", "g", dims=dims, value=0.01)
    deviation = r("add.Tensor", r("sqrt.default", second, dims=dims), 1e-8, dims=dims)
    step = r("addcdiv.default", decayed, first, deviation, dims=dims, value=-0.01)
    return r.graph(step, first, second)


def cross_entropy() -> FxGraph:
    """The loss of rows of classes, with the gradient for one of 1."""
    r = Recorder(x=F((12, 7), "f32"), target=F((12,), "s64"))
    logs = r("_log_softmax.default", "x", 1, False, dims=(12, 7))
    loss, total = r.several("nll_loss_forward.default", logs, "target", None, 1, -100,
                            results=(F((), "f32"), F((), "f32")))  # fmt: skip
    above = r("full.default", [], 1.0, dims=())
    back = r("nll_loss_backward.default", above, logs, "target", None, 1, -100, total, dims=(12, 7))
    gradient = r("_log_softmax_backward_data.default", back, logs, 1, "float32", dims=(12, 7))
    return r.graph(loss, gradient)
