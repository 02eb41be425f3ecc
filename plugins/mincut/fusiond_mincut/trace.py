"""Pipelines as Python functions: what they do to images is written down as the graph that a YAML file would give.

    @stage(mask=(3, 1), border="mirror")
    def derive(image):
        return (image[1, 0] - image[-1, 0]) / 2

    @stage()
    def magnitude(x, y):
        return C.sqrt(C.float(x * x + y * y))

    def edges(src):
        across = derive(src, name="across")
        return magnitude(across, derive(across, name="twice"))

    made = traced(edges, width=640, height=480, dtype="int32")       # a Pipeline
    Path("edges.yaml").write_text(writing.text(made))                # a file that jobs can name

A function takes images (its parameters are the inputs' names) and returns one image or several: the outputs. Each
call of a stage is a kernel, called as the stage unless it is given a name. Inside a stage, operators are C's: `/` of
integers truncates, `image[dx, dy]` is the pixel at constant offsets, `image.r` a channel. A Python int is an int32, a
float is a float32. `C` has the functions of `expr.FUNCTIONS`, casts, `select`, window operations over a `mask`, `let`,
the pixel's place `C.x`, `C.y` and the size of its image `C.width`, `C.height`; `C.at(image, x, y)` reads a pixel at
computed coordinates, `C.lookup(table, i)` an element of a `table` or of an image's first row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from fusiond.program import Fill
from fusiond_mincut.frontend import areas, graph, masks, syntax
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.expr import Expr, PixelAccess, TypeProblem
from fusiond_mincut.frontend.graph import Area, Border, ImageKernel, Pipeline, PipelineImage, SamplingStep
from fusiond_mincut.frontend.masks import Mask

Number = int | float
Size = tuple[int | str, int | str]
Steps = int | Fraction | tuple[int | Fraction, int | Fraction]


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

    def _memory(self) -> tuple[PixelAccess, int]:
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
        return _joined("+", self, other)

    def __radd__(self, other: Number) -> TracedPixel:
        return _joined("+", other, self)

    def __sub__(self, other: TracedPixel | Number) -> TracedPixel:
        return _joined("-", self, other)

    def __rsub__(self, other: Number) -> TracedPixel:
        return _joined("-", other, self)

    def __mul__(self, other: TracedPixel | Number) -> TracedPixel:
        return _joined("*", self, other)

    def __rmul__(self, other: Number) -> TracedPixel:
        return _joined("*", other, self)

    def __truediv__(self, other: TracedPixel | Number) -> TracedPixel:
        return _joined("/", self, other)

    def __rtruediv__(self, other: Number) -> TracedPixel:
        return _joined("/", other, self)

    def __mod__(self, other: TracedPixel | Number) -> TracedPixel:
        return _joined("%", self, other)

    def __rmod__(self, other: Number) -> TracedPixel:
        return _joined("%", other, self)

    def __lshift__(self, other: TracedPixel | Number) -> TracedPixel:
        return _joined("<<", self, other)

    def __rlshift__(self, other: Number) -> TracedPixel:
        return _joined("<<", other, self)

    def __rshift__(self, other: TracedPixel | Number) -> TracedPixel:
        return _joined(">>", self, other)

    def __rrshift__(self, other: Number) -> TracedPixel:
        return _joined(">>", other, self)

    def __and__(self, other: TracedPixel | Number) -> TracedPixel:
        return _joined("&", self, other)

    def __rand__(self, other: Number) -> TracedPixel:
        return _joined("&", other, self)

    def __or__(self, other: TracedPixel | Number) -> TracedPixel:
        return _joined("|", self, other)

    def __ror__(self, other: Number) -> TracedPixel:
        return _joined("|", other, self)

    def __xor__(self, other: TracedPixel | Number) -> TracedPixel:
        return _joined("^", self, other)

    def __rxor__(self, other: Number) -> TracedPixel:
        return _joined("^", other, self)

    def __lt__(self, other: TracedPixel | Number) -> TracedPixel:
        return _joined("<", self, other)

    def __le__(self, other: TracedPixel | Number) -> TracedPixel:
        return _joined("<=", self, other)

    def __gt__(self, other: TracedPixel | Number) -> TracedPixel:
        return _joined(">", self, other)

    def __ge__(self, other: TracedPixel | Number) -> TracedPixel:
        return _joined(">=", self, other)

    def __eq__(self, other: object) -> TracedPixel:  # type: ignore[override]
        return _joined("==", self, other)

    def __ne__(self, other: object) -> TracedPixel:  # type: ignore[override]
        return _joined("!=", self, other)

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
        raise TypeProblem("a pixel is not known while tracing; it is no number for Python")

    def __round__(self, digits: object = None) -> TracedPixel:
        raise TypeProblem("a pixel is not known while tracing; write C.rint(x), which rounds half to even")


def _expr(value: object) -> Expr:
    if isinstance(value, TracedPixel):
        return value.expr
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeProblem(f"{value!r} is no pixel and no number")
    return tree.const(value, "int32" if isinstance(value, int) else "float32")


def _joined(op: str, left: object, right: object) -> TracedPixel:
    return TracedPixel(tree.binary(op, _expr(left), _expr(right)))


class _C:
    """What bodies call by name: `C.sqrt(x)`, `C.uchar(x)`, `C.sum(m, x)`."""

    def __getattr__(self, name: str) -> Any:
        if name in tree.FUNCTIONS:
            return lambda *arguments: TracedPixel(tree.call(name, *(_expr(each) for each in arguments)))
        if name in syntax.TYPES:
            return lambda argument: TracedPixel(tree.cast(_expr(argument), syntax.TYPES[name]))
        if name in tree.POSITIONS:
            return TracedPixel(tree.position(name))
        if name in masks.WINDOWED:
            return lambda over, inner: TracedPixel(masks.windowed(name, over, _expr(inner)))
        raise AttributeError(f"C has no {name}")

    def select(self, condition: TracedPixel, then: TracedPixel | Number, other: TracedPixel | Number) -> TracedPixel:
        return TracedPixel(tree.select(_expr(condition), _expr(then), _expr(other)))

    def both(self, one: TracedPixel, other: TracedPixel) -> TracedPixel:
        return _joined("&&", one, other)

    def either(self, one: TracedPixel, other: TracedPixel) -> TracedPixel:
        return _joined("||", one, other)

    def at(self, image: TracedPixel, x: TracedPixel | Number, y: TracedPixel | Number) -> TracedPixel:
        """A pixel of an image in memory, `x` from its left and `y` from its top; outside it the border decides."""
        seen, channels = image._memory()
        return TracedPixel(tree.fetch(seen.image, _expr(x), _expr(y), seen.channel, channels, seen.dtype))

    def lookup(self, table: NamedTable | TracedPixel, index: TracedPixel | Number) -> TracedPixel:
        """An element of a table, or of the first row of an image."""
        if isinstance(table, TracedPixel):
            return self.at(table, index, 0)
        return TracedPixel(tree.lookup(table.name, table.values, _expr(index), table.dtype))

    def let(self, name: str, value: TracedPixel) -> TracedPixel:
        """A value under a name: computed once, and inside a window operation the value at its centre."""
        if not _tracing:
            raise TypeProblem(f"C.let({name!r}, ...) gives a value a name inside a stage")
        _named(name)
        if name in _tracing[-1].images or any(name == each for each, _ in _tracing[-1].lets):
            raise TypeProblem(f"C.let({name!r}, ...): {name!r} is the name of something else here")
        _tracing[-1].lets.append((name, _expr(value)))
        return TracedPixel(tree.Local(name, _expr(value).dtype))


C = _C()


def mask(name: str, rows: Sequence[Sequence[Number | None]]) -> Mask:
    """Coefficients by rows, None or 0 for a hole. TypeProblem when that is no mask."""
    return masks.checked(name, tuple(tuple(row) for row in rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTable:
    """Constants that `C.lookup` reads."""

    name: str
    dtype: str
    values: tuple[Number, ...]


def table(name: str, values: Sequence[Number]) -> NamedTable:
    """Integers are int32; with one that is none, all are float32. TypeProblem when a value does not fit."""
    _named(name)
    if not values:
        raise TypeProblem(f"the table {name} is empty")
    dtype = "int32" if all(isinstance(each, int) for each in values) else "float32"
    return NamedTable(name=name, dtype=dtype, values=tuple(tree.const(each, dtype).value for each in values))


# --- stages ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """An image while a pipeline is traced."""

    image: PipelineImage


@dataclass(slots=True)
class _Trace:
    """What was traced so far; the last of `_tracing` is current."""

    dtype: str
    channels: int
    width: int
    height: int
    images: dict[str, PipelineImage] = field(default_factory=dict)
    kernels: list[ImageKernel] = field(default_factory=list)
    lets: list[tuple[str, Expr]] = field(default_factory=list)


_tracing: list[_Trace] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStage:
    """A kernel to be: called with images, it is one."""

    body: Callable[..., Any]
    mask: tuple[int, int] | None
    border: str | tuple[str, Number] | Mapping[str, str | tuple[str, Number]] | None
    reduce: str | None
    dtype: str | None
    channels: int | None
    scan: str | None = None
    hysteresis: bool = False
    size: Size | None = None
    step: Steps | Mapping[str, Steps] = 1
    origin: tuple[int, int] = (0, 0)
    bins: Size = (256, 1)

    def __call__(self, *images: Handle, name: str | None = None) -> Handle:
        if not _tracing:
            raise TypeProblem(f"{self.body.__name__} is a stage; call it in a function that `traced` calls")
        current = _tracing[-1]
        chosen = name or _fresh(self.body.__name__, current.images)
        if chosen in current.images:
            raise TypeProblem(f"two writers of {chosen!r}")
        _named(chosen)
        self._check_call(chosen, images)
        self._check_itself()
        current.lets.clear()
        channels = _counted(current.channels if self.channels is None else self.channels)
        values = [_value(each.image) for each in images]
        found = self.body(*values)
        bodies = tuple(_bound(_expr(each), current.lets) for each in (found if isinstance(found, tuple) else (found,)))
        histogram = self.reduce == graph.HISTOGRAM
        if histogram and len(bodies) == 1:
            bodies = (*bodies, tree.Const(0, "int32"))
        area, steps = self._places(images, bodies, current)
        kernel = ImageKernel(
            name=chosen,
            pattern=self._pattern,
            mask=self.mask or (1, 1),
            bodies=bodies,
            dtype=_held(self.dtype or current.dtype),
            channels=channels,
            borders=self._borders(images),
            area=area,
            steps=steps,
            reduction=self.reduce or self.scan,
            bins=(_area(self.bins, current) or areas.WHOLE) if histogram else None,
        )
        _check_accesses(kernel)
        current.images[chosen] = kernel.image
        current.kernels.append(kernel)
        return Handle(image=kernel.image)

    def _check_call(self, name: str, images: Sequence[object]) -> None:
        if not all(isinstance(each, Handle) for each in images):
            raise TypeProblem(f"{name} is called with something that is no image")
        try:
            inspect.signature(self.body).bind(*images)
        except TypeError as problem:
            raise TypeProblem(f"{name} is called with {len(images)} image(s): {problem}") from None

    def _check_itself(self) -> None:
        reductions = (*graph.REDUCTIONS, graph.HISTOGRAM)
        if self.reduce is not None and self.reduce not in reductions:
            raise TypeProblem(f"{self.reduce!r} is no reduction; it can be {', '.join(reductions)}")
        if self.scan is not None and self.scan not in graph.AXES:
            raise TypeProblem(f"{self.scan!r} is no axis; it can be {', '.join(graph.AXES)}")
        if self.mask is not None and (not isinstance(self.mask, tuple) or len(self.mask) != 2):
            raise TypeProblem(f"{self.mask!r} is no mask's size; (width, height) is wanted")

    @property
    def _pattern(self) -> str:
        if self.reduce is not None:
            return "global"
        if self.scan is not None or self.hysteresis:
            return "scan" if self.scan is not None else "hysteresis"
        return "local" if self.mask else "point"

    def _places(
        self, images: Sequence[Handle], bodies: Sequence[Expr], current: _Trace
    ) -> tuple[Area | None, dict[str, SamplingStep]]:
        pixels = {each.image for body in bodies for each in tree.accesses(body)}
        read = {each.image.name: each.image for each in images if each.image.name in pixels and not each.image.single}
        names = list(inspect.signature(self.body).parameters)
        given = {handle.image.name: name for name, handle in zip(names, images, strict=False)}
        steps = {}
        for name in read:
            step = self.step.get(given[name], 1) if isinstance(self.step, Mapping) else self.step
            ratios = [Fraction(each) for each in (step if isinstance(step, tuple) else (step, step))]
            if any(not 0 < part <= areas.LONGEST_STEP for ratio in ratios for part in ratio.as_integer_ratio()):
                raise TypeProblem(f"{step!r} is no step; numbers up to {areas.LONGEST_STEP} and their ratios are")
            (across, by_across), (down, by_down) = (each.as_integer_ratio() for each in ratios)
            steps[name] = SamplingStep(times=(across, down), by=(by_across, by_down), origin=self.origin)
        own = areas.derived(read, steps) if self.size is None else _area(self.size, current)
        return own, {name: step for name, step in steps.items() if step != SamplingStep() or read[name].area != own}

    def _borders(self, images: Sequence[Handle]) -> dict[str, Border]:
        if self.border is None:
            return {}
        if not isinstance(self.border, Mapping):
            return {each.image.name: _border(self.border, each.image) for each in images}
        names, given = list(inspect.signature(self.body).parameters), self.border
        for each in given:
            if each not in names:
                raise TypeProblem(f"a border for {each!r}, which is no parameter of {self.body.__name__}")
        found: dict[str, Border] = {}
        for parameter, handle in zip(names, images, strict=False):
            if parameter in given:
                border = _border(given[parameter], handle.image)
                if found.setdefault(handle.image.name, border) != border:
                    raise TypeProblem(
                        f"{self.body.__name__} reads {handle.image.name!r} with two borders; one is wanted"
                    )
        return found


def _named(name: str) -> None:
    problem = syntax.name_problem(name) if isinstance(name, str) else f"{name!r} is no name"
    if problem is not None:
        raise TypeProblem(problem)


def _area(size: Size, current: _Trace) -> Area | None:
    scope = syntax.BodyScope(images={})
    sides = (areas.checked(syntax.parse(str(side), scope), current.width, current.height) for side in size)
    return areas.of(*sides)


def _held(dtype: str) -> str:
    if dtype not in tree.DTYPES:
        raise TypeProblem(f"an image holds {', '.join(tree.DTYPES)}, not {dtype!r}")
    return dtype


def _counted(channels: int) -> int:
    if channels not in range(1, len(syntax.CHANNELS) + 1):
        raise TypeProblem(f"{channels!r} channels; an image has 1 to {len(syntax.CHANNELS)}")
    return channels


def _sized(width: int, height: int, channels: int) -> None:
    for side in (width, height):
        if type(side) is not int or not 1 <= side <= graph.WIDEST_IMAGE:
            raise TypeProblem(
                f"an image of {width!r} x {height!r}; whole numbers from 1 to {graph.WIDEST_IMAGE} are wanted"
            )
    if width * height * channels >= 2**31:
        raise TypeProblem(
            f"an image of {width} x {height} x {channels} has 2^31 elements or more; indices have 32 bits"
        )


def _border(given: str | tuple[str, Number], image: PipelineImage) -> Border:
    mode, value = (given, 0) if isinstance(given, str) else given
    if mode not in graph.BORDERS:
        raise TypeProblem(f"{mode!r} is no border; it can be {', '.join(graph.BORDERS)}")
    return Border(mode=mode, value=tree.const(value, image.dtype).value if mode == "constant" else 0)


def _number_of(name: str, value: Number) -> PipelineImage:
    dtype = "int32" if isinstance(value, int) else "float32"
    fill = Fill(kind="constant", low=tree.const(value, dtype).value)
    return PipelineImage(name=name, dtype=dtype, single=True, fill=fill)


def _fresh(name: str, taken: Mapping[str, PipelineImage]) -> str:
    number = 1
    while (chosen := name if number == 1 else f"{name}{number}") in taken:
        number += 1
    return chosen


def _value(image: PipelineImage) -> TracedPixel:
    access = PixelAccess(image.name, 0, 0, 0 if image.channels == 1 else None, image.dtype)
    return TracedPixel(access, channels=image.channels, single=image.single, whole=True)


def _check_accesses(kernel: ImageKernel) -> None:
    if kernel.channels == 1 and any(each.channel is None for each in kernel.accesses):
        raise TypeProblem(f"{kernel.name} computes one channel, and reads an image of three; say .r, .g or .b")
    for image in kernel.reads:
        if kernel.pattern == "local" and kernel.windowed(image) and image not in kernel.borders:
            raise TypeProblem(f"{kernel.name} reads outside {image!r} at its edges, and has no border for it")


def _bound(body: Expr, lets: Sequence[tuple[str, Expr]]) -> Expr:
    for name, value in reversed(lets):
        if any(isinstance(each, tree.Local) and each.name == name for each in tree.walk(body)):
            body = tree.let(name, value, body)
    syntax.limited(body)
    return body


def stage(
    *,
    mask: tuple[int, int] | None = None,
    border: str | tuple[str, Number] | Mapping[str, str | tuple[str, Number]] | None = None,
    reduce: str | None = None,
    dtype: str | None = None,
    channels: int | None = None,
    scan: str | None = None,
    hysteresis: bool = False,
    size: Size | None = None,
    step: Steps | Mapping[str, Steps] = 1,
    origin: tuple[int, int] = (0, 0),
    bins: Size = (256, 1),
) -> Callable[[Callable[..., Any]], TracedStage]:
    """A function of pixels as a kernel: local with a `mask` (width, height), global with `reduce` (sum, min, max,
    histogram), running sums with `scan` (x, y), `hysteresis`, else a point kernel.

    `border` is a mode, ("constant", value), or one for each parameter. The function returns the value of its pixel, or
    a tuple of one for each channel; of a histogram a bin, or a bin and a row of an image of `bins`.

    `size` is that of its image, in numbers or as `"width / 2"`. Pixel i reads round pixel i * step + origin of an
    image: a number or a Fraction, one for each axis, or one for each parameter.
    """

    def decorated(body: Callable[..., Any]) -> TracedStage:
        return TracedStage(
            body=body, mask=mask, border=border, reduce=reduce, dtype=dtype, channels=channels, scan=scan,
            hysteresis=hysteresis, size=size, step=step, origin=origin, bins=bins,
        )  # fmt: skip

    return decorated


def traced(
    function: Callable[..., Any],
    *,
    width: int,
    height: int,
    dtype: str = "int32",
    channels: int = 1,
    sizes: Mapping[str, Size] | None = None,
    parameters: Mapping[str, Number] | None = None,
    pitched: bool = False,
) -> Pipeline:
    """The pipeline that a function of images is. TypeProblem, in one line, when it is none.

    `sizes`: of parameters that have other sizes than width and height. `parameters`: those that are no images but one
    number of the launch, with the number that they are measured with. `pitched`: rows of inputs and outputs may lie
    apart.
    """
    _held(dtype)
    _sized(width, height, _counted(channels))
    for name in inspect.signature(function).parameters:
        _named(name)
    current = _Trace(dtype=dtype, channels=channels, width=width, height=height)
    names, numbers, other = inspect.signature(function).parameters, parameters or {}, sizes or {}
    for name in (*numbers, *other):
        if name not in names:
            raise TypeProblem(f"{name!r} is no parameter of {function.__name__}")
    inputs = [
        _number_of(name, numbers[name])
        if name in numbers
        else PipelineImage(
            name=name,
            dtype=dtype,
            channels=channels,
            fill=graph.FILLS[dtype],
            area=_area(other[name], current) if name in other else None,
        )
        for name in names
    ]
    current.images |= {each.name: each for each in inputs}
    _tracing.append(current)
    try:
        found = function(*(Handle(image=each) for each in inputs))
    finally:
        _tracing.pop()
    handles = found if isinstance(found, tuple) else (found,)
    if not all(isinstance(each, Handle) for each in handles):
        raise TypeProblem("a pipeline returns one image, or a tuple of images: its outputs")
    for each in current.kernels:
        _sized(*each.image.sides(width, height), each.channels)
    by_name = {each.name: each for each in current.kernels}
    order = graph.topological({each.name: each.reads for each in current.kernels})
    pipeline = Pipeline(
        name=function.__name__ if graph.TITLE.fullmatch(function.__name__) else "traced",
        width=width,
        height=height,
        inputs=tuple(inputs),
        outputs=tuple(dict.fromkeys(each.image.name for each in handles)),
        kernels=tuple(by_name[name] for name in order),
    )
    if pitched:
        pipeline = replace(pipeline, pitched=graph.rows(pipeline))
    broken = graph.problems(pipeline)
    if broken:
        raise TypeProblem(f"{broken[0][0]}: {broken[0][1]}")
    return pipeline
