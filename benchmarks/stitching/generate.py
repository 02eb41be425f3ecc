"""HLO modules of any size, for planning times: a stack of layers like those that jax lowers.

A layer is one of three, in turn: attention over rows (dots, scaling, masked softmax, residual, layer norm), a gated
recurrent cell (one dot, four gates from slices, logistic and tanh, concatenated states), and the backward step of a
dense layer (column reduces, an update of weights). They differ in sizes, so equal layers do not hide what planning
costs.
"""

from __future__ import annotations

from collections.abc import Iterator

ROWS, HIDDEN = (16, 24, 32), (32, 48, 64)

REGIONS = """\
add_f32 {
  a.1 = f32[] parameter(0)
  a.2 = f32[] parameter(1)
  ROOT a.3 = f32[] add(a.1, a.2)
}

maximum_f32 {
  m.1 = f32[] parameter(0)
  m.2 = f32[] parameter(1)
  ROOT m.3 = f32[] maximum(m.1, m.2)
}
"""


class _Writer:
    """Lines of the entry computation. Every method gives the name of what it wrote."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.parameters = 0
        self.dims: dict[str, tuple[int, ...]] = {}

    def line(self, dims: tuple[int, ...], text: str, *, dtype: str = "f32") -> str:
        name = f"v.{len(self.lines)}"
        self.lines.append(f"  {name} = {dtype}[{','.join(map(str, dims))}] {text}")
        self.dims[name] = dims
        return name

    def parameter(self, *dims: int) -> str:
        self.parameters += 1
        return self.line(dims, f"parameter({self.parameters - 1})")

    def constant(self, value: str) -> str:
        return self.line((), f"constant({value})")

    def unary(self, opcode: str, x: str) -> str:
        return self.line(self.dims[x], f"{opcode}({x})")

    def binary(self, opcode: str, x: str, y: str) -> str:
        return self.line(self.dims[x], f"{opcode}({x}, {y})")

    def spread(self, x: str, dims: tuple[int, ...], *dimensions: int) -> str:
        return self.line(dims, f"broadcast({x}), dimensions={{{','.join(map(str, dimensions))}}}")

    def scalar(self, value: str, dims: tuple[int, ...]) -> str:
        return self.spread(self.constant(value), dims)

    def reduce(self, x: str, dimension: int, computation: str, init: str) -> str:
        dims = tuple(dim for at, dim in enumerate(self.dims[x]) if at != dimension)
        return self.line(
            dims, f"reduce({x}, {self.constant(init)}), dimensions={{{dimension}}}, to_apply={computation}"
        )

    def dot(self, x: str, y: str, left: int, right: int) -> str:
        rows = tuple(dim for at, dim in enumerate(self.dims[x]) if at != left)
        columns = tuple(dim for at, dim in enumerate(self.dims[y]) if at != right)
        return self.line(
            (*rows, *columns), f"dot({x}, {y}), lhs_contracting_dims={{{left}}}, rhs_contracting_dims={{{right}}}"
        )

    def slice(self, x: str, low: int, high: int) -> str:
        """Columns low..high-1."""
        rows, _ = self.dims[x]
        return self.line((rows, high - low), f"slice({x}), slice={{[0:{rows}], [{low}:{high}]}}")

    def concatenate(self, x: str, y: str) -> str:
        rows, left = self.dims[x]
        return self.line((rows, left + self.dims[y][1]), f"concatenate({x}, {y}), dimensions={{1}}")


def module(instructions: int) -> str:
    """HLO text with at least that many instructions (not many more) in its entry computation."""
    writer = _Writer()
    rows, hidden = ROWS[0], HIDDEN[0]
    state = writer.parameter(rows, hidden)
    outputs = []
    layers = (_attention, _cell, _update)
    number = 0
    while len(writer.lines) < instructions - 1:
        width = HIDDEN[(number // 3) % len(HIDDEN)]
        state, *more = layers[number % 3](writer, state, width)
        outputs += more
        number += 1
    outputs.append(state)
    shapes = ", ".join(f"f32[{','.join(map(str, writer.dims[each]))}]" for each in outputs)
    writer.lines.append(f"  ROOT v.{len(writer.lines)} = ({shapes}) tuple({', '.join(outputs)})")
    return "\n".join([f"HloModule generated_{instructions}", "", REGIONS, "ENTRY main {", *writer.lines, "}", ""])


def crossing(instructions: int) -> str:
    """HLO text of about that many instructions that fit into no block: a chain of softmax-like steps over the rows and
    the columns of one tensor in turn. Every step needs all of the one before, and keeps it alive."""
    writer = _Writer()
    x = writer.parameter(64, 64)
    while len(writer.lines) < instructions - 5:
        for dimension in (1, 0):
            total = writer.reduce(x, dimension, "add_f32", "0")
            x = writer.binary("divide", writer.unary("exponential", x), writer.spread(total, (64, 64), 1 - dimension))
    writer.lines.append(f"  ROOT v.{len(writer.lines)} = f32[64,64] negate({x})")
    return "\n".join([f"HloModule crossing_{instructions}", "", REGIONS, "ENTRY main {", *writer.lines, "}", ""])


def _attention(w: _Writer, x: str, width: int) -> Iterator[str]:
    """Softmax over the rows of x, projected; residual; layer norm."""
    rows, hidden = w.dims[x]
    keys = w.dot(x, w.parameter(hidden, hidden), 1, 0)
    scores = w.dot(x, keys, 1, 1)
    scores = w.binary("multiply", scores, w.scalar("0.125", (rows, rows)))
    mask = w.line((rows, rows), f"compare({w.parameter(rows, rows)}, {w.scalar('0', (rows, rows))}), direction=GT",
                  dtype="pred")  # fmt: skip
    scores = w.line((rows, rows), f"select({mask}, {scores}, {w.scalar('-1e9', (rows, rows))})")
    top = w.reduce(scores, 1, "maximum_f32", "-inf")
    shifted = w.unary("exponential", w.binary("subtract", scores, w.spread(top, (rows, rows), 0)))
    total = w.reduce(shifted, 1, "add_f32", "0")
    weights = w.binary("divide", shifted, w.spread(total, (rows, rows), 0))
    mixed = w.binary("add", w.dot(weights, x, 1, 0), x)
    mean = w.binary("multiply", w.reduce(mixed, 1, "add_f32", "0"), w.scalar(repr(1 / hidden), (rows,)))
    centred = w.binary("subtract", mixed, w.spread(mean, (rows, hidden), 0))
    variance = w.reduce(w.binary("multiply", centred, centred), 1, "add_f32", "0")
    scale = w.unary("rsqrt", w.binary("add", variance, w.scalar("1e-5", (rows,))))
    normal = w.binary("multiply", centred, w.spread(scale, (rows, hidden), 0))
    normal = w.binary("multiply", normal, w.spread(w.parameter(hidden), (rows, hidden), 1))
    yield w.binary("add", normal, w.spread(w.parameter(hidden), (rows, hidden), 1))


def _cell(w: _Writer, x: str, width: int) -> Iterator[str]:
    """An LSTM cell with `width` units on top of x; its state is the next layer's input, its memory an output."""
    rows, hidden = w.dims[x]
    gates = w.dot(x, w.parameter(hidden, 4 * width), 1, 0)
    gates = w.binary("add", gates, w.spread(w.parameter(4 * width), (rows, 4 * width), 1))
    enter, forget, candidate, leave = (w.slice(gates, at * width, (at + 1) * width) for at in range(4))
    before = w.parameter(rows, width)
    kept = w.binary("multiply", w.unary("logistic", forget), before)
    added = w.binary("multiply", w.unary("logistic", enter), w.unary("tanh", candidate))
    memory = w.binary("add", kept, added)
    state = w.binary("multiply", w.unary("logistic", leave), w.unary("tanh", memory))
    both = w.concatenate(state, memory)
    half = w.dot(both, w.parameter(2 * width, width), 1, 0)
    yield w.unary("tanh", w.binary("add", half, state))
    yield memory


def _update(w: _Writer, x: str, width: int) -> Iterator[str]:
    """A dense layer, its error against a target, gradients, and new weights (outputs)."""
    rows, hidden = w.dims[x]
    weights, bias = w.parameter(hidden, width), w.parameter(width)
    z = w.binary("add", w.dot(x, weights, 1, 0), w.spread(bias, (rows, width), 1))
    y = w.unary("tanh", z)
    error = w.binary("subtract", y, w.parameter(rows, width))
    slope = w.binary("subtract", w.scalar("1", (rows, width)), w.binary("multiply", y, y))
    delta = w.binary("multiply", error, slope)
    by_bias = w.reduce(delta, 0, "add_f32", "0")
    by_weights = w.dot(x, delta, 0, 0)
    step = w.scalar("0.01", (hidden, width))
    new = w.binary("subtract", weights, w.binary("multiply", by_weights, step))
    new_bias = w.binary("subtract", bias, w.binary("multiply", by_bias, w.scalar("0.01", (width,))))
    yield y
    yield new
    yield new_bias
