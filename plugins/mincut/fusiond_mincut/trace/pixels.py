"""An image's pixel while a stage is traced: Python's operators write down the tree of a C expression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend import syntax
from fusiond_mincut.frontend.expr import Expr, PixelAccess, TypeProblem
from fusiond_mincut.frontend.graph import PipelineImage

Number = int | float


_UNKNOWN = "a pixel is not known while tracing"


def _operator(op: str) -> tuple[Callable[..., TracedPixel], Callable[..., TracedPixel]]:
    """The method of a binary operator, and the one for a number on its left."""
    return lambda self, other: joined(op, self, other), lambda self, other: joined(op, other, self)


def _missing(said: str) -> Callable[..., Any]:
    """A method that refuses what C does not have, and says what to write instead."""

    def method(self: TracedPixel, *others: object) -> Any:
        raise TypeProblem(said)

    return method


class TracedPixel:
    """An expression inside a stage. It has no truth value: choose with `C.select`, join with `C.both`, `C.either`."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expr: Expr, channels: int = 1, single: bool = False, whole: bool = False) -> None:
        self.expr = expr
        self._channels = channels
        self._of = channels  #: Channels of the image, also of one of them
        self._single = single
        self._whole = whole  #: An image as it was handed in, which can be indexed

    def __getitem__(self, offset: tuple[int, int]) -> TracedPixel:
        if not isinstance(self.expr, PixelAccess) or not self._whole or self._single:
            raise TypeProblem("only an image can be read at an offset")
        if not isinstance(offset, tuple) or len(offset) != 2 or not all(type(each) is int for each in offset):
            raise TypeProblem(f"an image is read at constant whole offsets, not at {offset!r}")
        return TracedPixel(replace(self.expr, dx=self.expr.dx + offset[0], dy=self.expr.dy + offset[1]))

    def _at_channel(self, channel: int) -> TracedPixel:
        if not isinstance(self.expr, PixelAccess) or self._channels == 1:
            raise TypeProblem("an image of one channel has no .r, .g, .b and .a")
        if channel >= self._channels:
            raise TypeProblem(f"an image of {self._channels} channels has no .{syntax.CHANNELS[channel]}")
        found = TracedPixel(replace(self.expr, channel=channel), whole=self._whole)
        found._of = self._of
        return found

    def memory_access(self) -> tuple[PixelAccess, int]:
        """The image as it was handed in, or a channel of it, and how many channels it has."""
        if not isinstance(self.expr, PixelAccess) or not self._whole or self._single:
            raise TypeProblem("only an image can be read at coordinates")
        return self.expr, self._of

    r = property(lambda self: self._at_channel(0))
    g = property(lambda self: self._at_channel(1))
    b = property(lambda self: self._at_channel(2))
    a = property(lambda self: self._at_channel(3))

    __add__, __radd__ = _operator("+")
    __sub__, __rsub__ = _operator("-")
    __mul__, __rmul__ = _operator("*")
    __truediv__, __rtruediv__ = _operator("/")
    __mod__, __rmod__ = _operator("%")
    __lshift__, __rlshift__ = _operator("<<")
    __rshift__, __rrshift__ = _operator(">>")
    __and__, __rand__ = _operator("&")
    __or__, __ror__ = _operator("|")
    __xor__, __rxor__ = _operator("^")
    __lt__, __gt__ = _operator("<")[0], _operator(">")[0]
    __le__, __ge__ = _operator("<=")[0], _operator(">=")[0]
    __eq__, __ne__ = _operator("==")[0], _operator("!=")[0]  # type: ignore[assignment]

    def __neg__(self) -> TracedPixel:
        return TracedPixel(tree.unary("-", self.expr))

    def __invert__(self) -> TracedPixel:
        return TracedPixel(tree.unary("~", self.expr))

    def __pos__(self) -> TracedPixel:
        return TracedPixel(self.expr)

    def __abs__(self) -> TracedPixel:
        return TracedPixel(tree.call("abs", self.expr))

    __pow__ = __rpow__ = _missing("C has no **; write C.pow(C.float(x), C.float(y)), or x * x")
    __floordiv__ = __rfloordiv__ = _missing(
        "C has no //; / of integers truncates, C.floor(x / y) of floats rounds down"
    )
    __divmod__ = __rdivmod__ = _missing("C has no divmod; write x / y and x % y")
    __matmul__ = __rmatmul__ = _missing("C has no @; pixels are joined by + - * / %")
    __int__ = _missing(f"{_UNKNOWN}; a cast is C.int(x)")
    __float__ = _missing(f"{_UNKNOWN}; a cast is C.float(x)")
    __index__ = _missing(f"{_UNKNOWN}; Python cannot use it as a number")
    __round__ = _missing(f"{_UNKNOWN}; write C.rint(x), which rounds half to even")
    __bool__ = _missing(f"{_UNKNOWN}; choose with C.select(condition, one, other)")


def expression(value: object) -> Expr:
    if isinstance(value, TracedPixel):
        return value.expr
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeProblem(f"{value!r} is neither a pixel nor a number")
    return tree.const(value, "int32" if isinstance(value, int) else "float32")


def joined(op: str, left: object, right: object) -> TracedPixel:
    return TracedPixel(tree.binary(op, expression(left), expression(right)))


def pixel_of(image: PipelineImage) -> TracedPixel:
    """The own pixel of an image that a stage is called with."""
    access = PixelAccess(image.name, 0, 0, 0 if image.channels == 1 else None, image.dtype)
    return TracedPixel(access, channels=image.channels, single=image.single, whole=True)
