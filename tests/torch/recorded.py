"""Small graphs as AOTAutograd leaves them, written by hand."""

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
        dtype: str = "f32",
        **named: Any,
    ) -> str:
        known = {*self.inputs, *(each.name for each in self.nodes)}

        def given(value: Any) -> Any:
            if isinstance(value, str) and value in known:
                return Ref(value)
            return tuple(map(given, value)) if isinstance(value, list | tuple) else value

        name = f"n{len(self.nodes)}"
        result = None if dims is None else Tensor(dims, dtype, device=device)
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
    spread, middle = r.several("var_mean.correction", "x", [1], 0, True,
                               results=(F((8, 1), "f32"), F((8, 1), "f32")))  # fmt: skip
    inverse = r("rsqrt.default", r("add.Tensor", spread, 1e-5, dims=(8, 1)), dims=(8, 1))
    normal = r("mul.Tensor", r("sub.Tensor", "x", middle, dims=(8, 16)), inverse, dims=(8, 16))
    twice = r("mul.Tensor", r("mul.Tensor", normal, "scale", dims=(8, 16)), 2.0, dims=(8, 16))
    hidden = r("mm.default", twice, "w", dims=(8, 32))
    moved = r("add.Tensor", hidden, "b", dims=(8, 32))
    bell = r("erf.default", r("mul.Tensor", moved, 0.5**0.5, dims=(8, 32)), dims=(8, 32))
    half = r("mul.Tensor", moved, 0.5, dims=(8, 32))
    active = r("mul.Tensor", half, r("add.Tensor", bell, 1, dims=(8, 32)), dims=(8, 32))
    result = r("mm.default", active, "v", dims=(8, 4))
    return r.graph(result, middle, active)


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
    """The loss of rows of classes, with the gradient for one of 1, as Inductor decomposes them."""
    rows, column = (12, 7), (12, 1)
    r = Recorder(x=F(rows, "f32"), target=F((12,), "s64"))
    off = r("sub.Tensor", "x", r("amax.default", "x", [1], True, dims=column), dims=rows)
    total = r("sum.dim_IntList", r("exp.default", off, dims=rows), [1], True, dims=column)
    logs = r("sub.Tensor", off, r("log.default", total, dims=column), dims=rows)
    place = r("unsqueeze.default", "target", 1, dims=column, dtype="s64")
    picked = r("gather.default", logs, 1, place, dims=column)
    loss = r("div.Tensor", r("neg.default", r("sum.default", picked, dims=()), dims=()), 12.0, dims=())
    back = r("scatter.value", r("full.default", rows, 0.0, dims=rows), 1, place, -1 / 12, dims=rows)
    shares = r("mul.Tensor", r("exp.default", logs, dims=rows), r("sum.dim_IntList", back, [1], True, dims=column),
               dims=rows)  # fmt: skip
    return r.graph(loss, r("sub.Tensor", back, shares, dims=rows))
