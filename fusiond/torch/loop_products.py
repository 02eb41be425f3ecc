"""Products of matrices that need not stand in torch's `scan`: inputs' before it, those that are summed up behind it.

h = f(h @ u + x[t] @ w)      -->  y = x @ w;  h = f(h @ u + y[t])
total = total + a[t].T @ b[t]  -->  total + A.T @ B, of the rows of all steps
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from fusiond.torch import splicing

_PRODUCTS = (functional.linear, torch.matmul, operator.matmul, torch.mm)
_TURNS = ("aten.clone", "aten.permute", "aten.t")


def before(module: Any) -> tuple[Any, int]:
    """(Dynamo's graph with products of a row and a matrix that no step changes computed for all rows before the `scan`,
    as cuDNN does it for recurrent layers; how many)."""
    several = 0
    for node in _scans(module):
        loop = _Scan(module, node)
        loop.open_cells()
        several += loop.take_products()
    module.recompile()
    return module, several


def _scans(module: Any) -> list[Any]:
    return [each for each in module.graph.nodes if each.target is torch.ops.higher_order.scan]


class _Scan:
    """A `scan` of Dynamo's graph, whose body is changed."""

    def __init__(self, module: Any, node: Any) -> None:
        self._module, self._node = module, node
        self._name, self._inits = node.args[0].target, list(node.args[1])
        self._body = splicing.copied(getattr(module, self._name))
        places = [each for each in self._body.graph.nodes if each.op == "placeholder"]
        first = len(self._inits) + len(node.args[2])
        self._rows = dict(zip(places[len(self._inits) : first], node.args[2], strict=True))
        """Placeholder -> the tensor whose rows it is."""
        self._fixed = dict(zip(places[first:], node.args[3], strict=True))  #: Placeholder -> what it is in every step
        self._last = places[first - 1]

    def open_cells(self) -> None:
        """Recurrent cells as the product of their inputs, and what is left of them."""
        graph = self._body.graph
        for each in [each for each in graph.nodes if each.target in _CELLS]:
            with graph.inserting_before(each):
                given = graph.call_function(functional.linear, (each.args[0], each.args[2], *each.args[4:5]))
                rest = (given, each.args[1], each.args[3], *each.args[5:])
                each.replace_all_uses_with(graph.call_function(_CELLS[each.target], rest))
            graph.erase_node(each)

    def take_products(self) -> int:
        taken = [each for each in self._body.graph.nodes if self._leaves(each)]
        for each in taken:
            self._take(each)
        for given in (self._fixed, self._rows) if taken else ():
            for place in [place for place in given if not place.users]:
                self._body.graph.erase_node(place)
                del given[place]
        self._body.recompile()
        setattr(self._module, self._name, self._body)
        self._node.args = (self._node.args[0], self._inits, list(self._rows.values()), list(self._fixed.values()))
        return len(taken)

    def _leaves(self, node: Any) -> bool:
        """Whether it is the product of a row and a matrix that no step changes."""
        if node.target not in _PRODUCTS or node.kwargs or node.args[0] not in self._rows:
            return False
        others = [each for each in node.all_input_nodes if each is not node.args[0]]
        if node.args[1] not in others or not all(each in self._fixed for each in others):
            return False
        matrix = self._fixed[node.args[1]].meta.get("example_value")
        return matrix is not None and matrix.dim() == 2

    def _take(self, node: Any) -> None:
        outer, inner = self._module.graph, self._body.graph
        target = torch.matmul if node.target is torch.mm else node.target
        with outer.inserting_before(self._node):
            others = (self._fixed.get(each, each) for each in node.args[1:])
            whole = outer.call_function(target, (self._rows[node.args[0]], *others))
        with inner.inserting_after(self._last):
            row = inner.placeholder(f"product_{len(self._rows) + 1}")
        self._rows[row], self._last = whole, row
        node.replace_all_uses_with(row)
        inner.erase_node(node)


# --- cells ---


def _gru(x: Any, h: Any, u: Any, bias: Any = None) -> Any:
    (r, z, n), (hr, hz, hn) = x.chunk(3, -1), functional.linear(h, u, bias).chunk(3, -1)
    z, n = torch.sigmoid(z + hz), torch.tanh(n + torch.sigmoid(r + hr) * hn)
    return n + z * (h - n)


def _lstm(x: Any, state: Any, u: Any, bias: Any = None) -> Any:
    i, f, g, o = (x + functional.linear(state[0], u, bias)).chunk(4, -1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _rnn(function: Any) -> Any:
    return lambda x, h, u, bias=None: function(x + functional.linear(h, u, bias))


_CELLS = {torch.gru_cell: _gru, torch.lstm_cell: _lstm, torch.rnn_tanh_cell: _rnn(torch.tanh),
          torch.rnn_relu_cell: _rnn(torch.relu)}  # fmt: skip
"""Cells as torch has them -> what is left of them with the product of their inputs apart."""


# --- sums of products ---


def behind(module: Any) -> Any:
    """AOTAutograd's graph with products that a `scan` only sums up computed behind it, of all steps at once: gradients
    of matrices."""
    for node in _scans(module):
        body = fx.Graph()
        gives = list(body.graph_copy(getattr(module, node.args[0].target).graph, {}))
        count = len(node.args[1])
        places = [each for each in body.nodes if each.op == "placeholder"]
        sums = _sums(places[:count], gives)
        if sums:
            _sum_behind(module, node, body, places, gives, sums)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _sums(states: Sequence[Any], gives: Sequence[Any]) -> dict[int, tuple[Any, bool]]:
    """States to which each step adds a product, and no more -> (the product, whether it is turned)."""
    found = {}
    for at, (state, total) in enumerate(zip(states, gives, strict=False)):
        adds = isinstance(total, fx.Node) and total.target is torch.ops.aten.add.Tensor and not total.kwargs
        if not adds or total.users or list(state.users) != [total] or gives.count(total) > 1:
            continue
        product, turned = _plain(next(each for each in total.args if each is not state))
        if product.target is torch.ops.aten.mm.default:
            found[at] = (product, turned)
    return found


def _sum_behind(
    module: Any, node: Any, body: Any, places: Sequence[Any], gives: Sequence[Any], sums: Mapping[int, tuple[Any, bool]]
) -> None:
    """Another `scan` in the place of `node`, without these states, and a product of all rows for each."""
    aten, name = torch.ops.aten, node.args[0].target
    inits, tensors, same = map(list, node.args[1:])
    count = len(inits)
    kept, stored = [at for at in range(count) if at not in sums], list(gives[count:])
    sources = _sources(body, places[count : count + len(tensors)], sums, stored)
    body.output([*(gives[at] for at in kept), *stored])
    body.eliminate_dead_code()
    for at in sums:
        body.erase_node(places[at])
    module.add_module(f"{name}_apart", fx.GraphModule(getattr(module, name), body))
    steps, values = tensors[0].meta["val"].shape[0], node.meta["val"]
    with values[0].fake_mode, module.graph.inserting_before(node):

        def call(target: Any, *given: Any) -> Any:
            made = module.graph.call_function(target, given)
            made.meta["val"] = target(*fx.map_arg(given, lambda one: one.meta["val"]))
            return made

        own = (module.graph.get_attr(f"{name}_apart"), [inits[at] for at in kept], tensors, same)
        scan = module.graph.call_function(node.target, own)
        more = [each.meta["val"].new_empty((steps, *each.meta["val"].shape)) for each in stored[len(gives) - count :]]
        scan.meta["val"] = (*(values[at] for at in kept), *values[count:], *more)
        results = {at: call(operator.getitem, scan, place) for place, at in enumerate(kept)}
        rows = [call(operator.getitem, scan, len(kept) + place) for place in range(len(stored))]
        whole = iter([((tensors if given else rows)[at], turned) for given, at, turned in sources])
        for at, (_, turned) in sums.items():
            made = _product(call, *next(whole), *next(whole))
            made = call(aten.permute.default, made, [1, 0]) if turned else made
            results[at] = call(aten.add.Tensor, inits[at], made)
        for user in list(node.users):
            at = user.args[1]
            user.replace_all_uses_with(results[at] if at < count else rows[at - count])


def _sources(
    body: Any, rows: Sequence[Any], sums: Mapping[int, tuple[Any, bool]], stored: list[Any]
) -> list[tuple[bool, int, bool]]:
    """Where the rows of the products' operands come from: (whether they are given, the number among those or among what
    is stored, whether each is turned). What is not given is stored from now on."""
    found = []
    for operand, turned in (_plain(each) for product, _ in sums.values() for each in product.args):
        given = operand in rows
        found.append((given, rows.index(operand) if given else len(stored), turned))
        if not given:
            stored.append(body.call_function(torch.ops.aten.clone.default, (operand,)))
            stored[-1].meta["val"] = operand.meta["val"]
    return found


def _product(call: Any, a: Any, turned_a: bool, b: Any, turned_b: bool) -> Any:
    """The sum of the products of all steps, as one."""
    aten = torch.ops.aten
    a = call(aten.permute.default, a, [2, 0, 1] if turned_a else [1, 0, 2])
    b = call(aten.permute.default, b, [0, 2, 1]) if turned_b else b
    a = call(aten.reshape.default, a, [a.meta["val"].shape[0], -1])
    b = call(aten.reshape.default, b, [-1, b.meta["val"].shape[2]])
    return call(aten.mm.default, a, b)


def _plain(value: Any) -> tuple[Any, bool]:
    """(what a matrix is a copy of, whether it is turned)"""
    turned = False
    while str(value.target).removesuffix(".default").removesuffix("_copy") in _TURNS:
        turned ^= "clone" not in str(value.target)
        value = value.args[0]
    return value, turned
