"""An image's pixel while a stage is traced: Python's operators write down the tree of a C expression."""

from __future__ import annotations

from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend import syntax
from fusiond_mincut.frontend.expr import Expr, PixelAccess, TypeProblem
from fusiond_mincut.frontend.graph import PipelineImage

Number = int | float


class TracedPixel:
    """An expression inside a stage. It has no truth value: choose with `C.select`, join with `C.both`, `C.either`."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expr: Expr, channels: int = 1, single: bool = False, whole: bool = False) -> None:
        self.expr = expr
        self._channels = channels
        self._of = channels
        """Channels of the image, also of one of them."""
        self._single = single
        self._whole = whole
        """An image as it was handed in, which can be indexed."""

    def __getitem__(self, offset: tuple[int, int]) -> TracedPixel:
        if not isinstance(self.expr, PixelAccess) or not self._whole or self._single:
            raise TypeProblem("only an image can be read at an offset")
        if not isinstance(offset, tuple) or len(offset) != 2 or not all(type(each) is int for each in offset):
            raise TypeProblem(f"an image is read at constant whole offsets, not at {offset!r}")
        dx, dy = offset
        seen = self.expr
        return TracedPixel(PixelAccess(seen.image, seen.dx + dx, seen.dy + dy, seen.channel, seen.dtype))

    def _at_channel(self, channel: int) -> TracedPixel:
        if not isinstance(self.expr, PixelAccess) or self._channels == 1:
            raise TypeProblem("an image of one channel has no .r, .g, .b and .a")
        if channel >= self._channels:
            raise TypeProblem(f"an image of {self._channels} channels has no .{syntax.CHANNELS[channel]}")
        seen = self.expr
        found = TracedPixel(PixelAccess(seen.image, seen.dx, seen.dy, channel, seen.dtype), whole=self._whole)
        found._of = self._of
        return found

    def memory_access(self) -> tuple[PixelAccess, int]:
        """The image as it was handed in, or a channel of it, and how many channels it has."""
        if not isinstance(self.expr, PixelAccess) or not self._whole or self._single:
            raise TypeProblem("only an image can be read at coordinates")
        return self.expr, self._of

    @property
    def r(self) -> TracedPixel:
        return self._at_channel(0)

    @property
    def a(self) -> TracedPixel:
        return self._at_channel(3)

    @property
    def g(self) -> TracedPixel:
        return self._at_channel(1)

    @property
    def b(self) -> TracedPixel:
        return self._at_channel(2)

    def __bool__(self) -> bool:
        raise TypeProblem("a pixel is not known while tracing; choose with C.select(condition, one, other)")

    def __add__(self, other: TracedPixel | Number) -> TracedPixel:
        return joined("+", self, other)

    def __radd__(self, other: Number) -> TracedPixel:
        return joined("+", other, self)

    def __sub__(self, other: TracedPixel | Number) -> TracedPixel:
        return joined("-", self, other)

    def __rsub__(self, other: Number) -> TracedPixel:
        return joined("-", other, self)

    def __mul__(self, other: TracedPixel | Number) -> TracedPixel:
        return joined("*", self, other)

    def __rmul__(self, other: Number) -> TracedPixel:
        return joined("*", other, self)

    def __truediv__(self, other: TracedPixel | Number) -> TracedPixel:
        return joined("/", self, other)

    def __rtruediv__(self, other: Number) -> TracedPixel:
        return joined("/", other, self)

    def __mod__(self, other: TracedPixel | Number) -> TracedPixel:
        return joined("%", self, other)

    def __rmod__(self, other: Number) -> TracedPixel:
        return joined("%", other, self)

    def __lshift__(self, other: TracedPixel | Number) -> TracedPixel:
        return joined("<<", self, other)

    def __rlshift__(self, other: Number) -> TracedPixel:
        return joined("<<", other, self)

    def __rshift__(self, other: TracedPixel | Number) -> TracedPixel:
        return joined(">>", self, other)

    def __rrshift__(self, other: Number) -> TracedPixel:
        return joined(">>", other, self)

    def __and__(self, other: TracedPixel | Number) -> TracedPixel:
        return joined("&", self, other)

    def __rand__(self, other: Number) -> TracedPixel:
        return joined("&", other, self)

    def __or__(self, other: TracedPixel | Number) -> TracedPixel:
        return joined("|", self, other)

    def __ror__(self, other: Number) -> TracedPixel:
        return joined("|", other, self)

    def __xor__(self, other: TracedPixel | Number) -> TracedPixel:
        return joined("^", self, other)

    def __rxor__(self, other: Number) -> TracedPixel:
        return joined("^", other, self)

    def __lt__(self, other: TracedPixel | Number) -> TracedPixel:
        return joined("<", self, other)

    def __le__(self, other: TracedPixel | Number) -> TracedPixel:
        return joined("<=", self, other)

    def __gt__(self, other: TracedPixel | Number) -> TracedPixel:
        return joined(">", self, other)

    def __ge__(self, other: TracedPixel | Number) -> TracedPixel:
        return joined(">=", self, other)

    def __eq__(self, other: object) -> TracedPixel:  # type: ignore[override]
        return joined("==", self, other)

    def __ne__(self, other: object) -> TracedPixel:  # type: ignore[override]
        return joined("!=", self, other)

    def __neg__(self) -> TracedPixel:
        return TracedPixel(tree.unary("-", self.expr))

    def __invert__(self) -> TracedPixel:
        return TracedPixel(tree.unary("~", self.expr))

    def __pos__(self) -> TracedPixel:
        return TracedPixel(self.expr)

    def __abs__(self) -> TracedPixel:
        return TracedPixel(tree.call("abs", self.expr))

    # What C does not have, in one line with what to write instead.

    def __pow__(self, other: object) -> TracedPixel:
        raise TypeProblem("C has no **; write C.pow(C.float(x), C.float(y)), or x * x")

    __rpow__ = __pow__

    def __floordiv__(self, other: object) -> TracedPixel:
        raise TypeProblem("C has no //; / of integers truncates, C.floor(x / y) of floats rounds down")

    __rfloordiv__ = __floordiv__

    def __divmod__(self, other: object) -> TracedPixel:
        raise TypeProblem("C has no divmod; write x / y and x % y")

    __rdivmod__ = __divmod__

    def __matmul__(self, other: object) -> TracedPixel:
        raise TypeProblem("C has no @; pixels are joined by + - * / %")

    __rmatmul__ = __matmul__

    def __int__(self) -> int:
        raise TypeProblem("a pixel is not known while tracing; a cast is C.int(x)")

    def __float__(self) -> float:
        raise TypeProblem("a pixel is not known while tracing; a cast is C.float(x)")

    def __index__(self) -> int:
        raise TypeProblem("a pixel is not known while tracing; Python cannot use it as a number")

    def __round__(self, digits: object = None) -> TracedPixel:
        raise TypeProblem("a pixel is not known while tracing; write C.rint(x), which rounds half to even")


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
