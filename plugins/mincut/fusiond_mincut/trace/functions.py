"""Functions for bodies of stages: `C` with C functions, casts and window operations; masks and tables of constants."""

from collections.abc import Sequence
from typing import Any

from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend import masks, syntax
from fusiond_mincut.frontend.expr import TypeProblem
from fusiond_mincut.frontend.masks import Mask
from fusiond_mincut.frontend.syntax import ConstantTable
from fusiond_mincut.trace import pipeline_trace
from fusiond_mincut.trace.pipeline_trace import check_name
from fusiond_mincut.trace.pixels import Number, TracedPixel, expression, joined


class _BodyFunctions:
    """What bodies call by name: `C.sqrt(x)`, `C.uchar(x)`, `C.sum(m, x)`."""

    def __getattr__(self, name: str) -> Any:
        if name in tree.FUNCTIONS:
            return lambda *arguments: TracedPixel(tree.call(name, *(expression(each) for each in arguments)))
        if name in syntax.TYPES:
            return lambda argument: TracedPixel(tree.cast(expression(argument), syntax.TYPES[name]))
        if name in tree.POSITIONS:
            return TracedPixel(tree.position(name))
        if name in masks.WINDOWED:
            return lambda over, inner: TracedPixel(masks.windowed(name, over, expression(inner)))
        raise AttributeError(f"C has no {name}")

    def select(self, condition: TracedPixel, then: TracedPixel | Number, other: TracedPixel | Number) -> TracedPixel:
        return TracedPixel(tree.select(expression(condition), expression(then), expression(other)))

    def both(self, one: TracedPixel, other: TracedPixel) -> TracedPixel:
        return joined("&&", one, other)

    def either(self, one: TracedPixel, other: TracedPixel) -> TracedPixel:
        return joined("||", one, other)

    def at(self, image: TracedPixel, x: TracedPixel | Number, y: TracedPixel | Number) -> TracedPixel:
        """A pixel of an image in memory, `x` from its left and `y` from its top; outside it the border decides."""
        seen, channels = image.memory_access()
        return TracedPixel(tree.fetch(seen.image, expression(x), expression(y), seen.channel, channels, seen.dtype))

    def lookup(self, table: ConstantTable | TracedPixel, index: TracedPixel | Number) -> TracedPixel:
        """An element of a table, or of the first row of an image."""
        if isinstance(table, TracedPixel):
            return self.at(table, index, 0)
        return TracedPixel(tree.lookup(table.name, table.values, expression(index), table.dtype))

    def let(self, name: str, value: TracedPixel) -> TracedPixel:
        """A value under a name: computed once, and inside a window operation the value at its centre."""
        current = pipeline_trace.current()
        if current is None:
            raise TypeProblem(f"C.let({name!r}, ...) gives a value a name inside a stage")
        check_name(name)
        if name in current.images or any(name == each for each, _ in current.lets):
            raise TypeProblem(f"C.let({name!r}, ...): {name!r} is the name of something else here")
        current.lets.append((name, expression(value)))
        return TracedPixel(tree.Local(name, expression(value).dtype))


C = _BodyFunctions()


def mask(name: str, rows: Sequence[Sequence[Number | None]]) -> Mask:
    """Coefficients by rows, None or 0 for a hole. TypeProblem where they are not a mask."""
    return masks.checked(name, tuple(tuple(row) for row in rows))


def table(name: str, values: Sequence[Number]) -> ConstantTable:
    """Integers are int32; as soon as one is not, all are float32. TypeProblem when a value does not fit."""
    check_name(name)
    if not values:
        raise TypeProblem(f"the table {name} is empty")
    dtype = "int32" if all(isinstance(each, int) for each in values) else "float32"
    return ConstantTable(name=name, dtype=dtype, values=tuple(tree.const(each, dtype).value for each in values))
