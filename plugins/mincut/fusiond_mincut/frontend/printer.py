"""Pipelines as YAML text: `parser` reads the same pipeline from it.

Implicit conversions are left out where C makes them anyway, and written as casts where it would not.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from fusiond.model.language.dtypes import is_float
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.areas import WHOLE
from fusiond_mincut.frontend.expr import (
    BinaryOperation,
    Cast,
    Const,
    Expr,
    Fetch,
    FunctionCall,
    Let,
    Local,
    Lookup,
    PixelAccess,
    Select,
    UnaryOperation,
)
from fusiond_mincut.frontend.graph import Area, Border, ImageKernel, Pipeline, PipelineImage, SamplingStep
from fusiond_mincut.frontend.syntax import CHANNELS, TYPES

_CASTS = {dtype: name for name, dtype in TYPES.items()}
_Operation: TypeAlias = UnaryOperation | BinaryOperation | Select | FunctionCall


def text(pipeline: Pipeline) -> str:
    """The YAML of a pipeline. Its parameters and masks are numbers in the bodies by now."""
    dtype, channels = _common(pipeline)
    lines = [
        f"pipeline: {pipeline.name}",
        f"image: {{width: {pipeline.width}, height: {pipeline.height}, dtype: {dtype}, channels: {channels}"
        f"{', pitched: true' if pipeline.pitched else ''}}}",
        "inputs:",
        *(f"  - {_input(each, pipeline)}" for each in pipeline.inputs if not each.single),
        f"outputs: [{', '.join(pipeline.outputs)}]",
        *_parameters(pipeline),
        *_tables(pipeline),
        "kernels:",
    ]
    for kernel in pipeline.kernels:
        lines += _kernel(kernel, pipeline)
    return "\n".join([*lines, ""])


def _common(pipeline: Pipeline) -> tuple[str, int]:
    """The dtype and channels of most images."""
    images = list(pipeline.images.values())
    dtype = max(tree.DTYPES, key=lambda each: sum(image.dtype == each for image in images))
    return dtype, max((1, 3), key=lambda each: sum(image.channels == each for image in images))


def _parameters(pipeline: Pipeline) -> list[str]:
    """Those of the launch; all others are numbers in the bodies."""
    single = [each for each in pipeline.inputs if each.single]
    lines = [
        f"  {each.name}: {{value: {_number(each.fill.low, each.dtype)}, dtype: {each.dtype}, runtime: true}}"
        for each in single
    ]
    return ["parameters:", *lines] if lines else []


def _tables(pipeline: Pipeline) -> list[str]:
    nodes = (node for kernel in pipeline.kernels for body in kernel.bodies for node in tree.walk(body))
    found = {node.table: node for node in nodes if isinstance(node, Lookup)}
    lines = [f"  {name}: [{', '.join(map(repr, each.values))}]" for name, each in found.items()]
    return ["tables:", *lines] if lines else []


def size(area: Area, pipeline: Pipeline) -> str:
    """[width, height] of an area."""
    return f"[{', '.join(_quoted(expression(side, pipeline)) for side in (area.width, area.height))}]"


def _quoted(text: str) -> str:
    return text if text.isalnum() else f'"{text}"'


def _step(step: SamplingStep) -> str:
    ratios = [str(times) if by == 1 else f"{times}/{by}" for times, by in zip(step.times, step.by, strict=True)]
    return f"{{step: [{', '.join(ratios)}], origin: [{step.origin[0]}, {step.origin[1]}]}}"


def _input(image: PipelineImage, pipeline: Pipeline) -> str:
    fill = image.fill
    if fill.kind in ("zeros", "iota"):
        described = fill.kind
    elif fill.kind == "file":
        described = f"{{file: {fill.file}}}"
    elif fill.kind == "constant":
        described = f"{{constant: {_number(fill.low, image.dtype)}}}"
    else:
        dtype = "int32" if fill.kind == "integers" else image.dtype
        described = f"{{{fill.kind}: [{_number(fill.low, dtype)}, {_number(fill.high, dtype)}]}}"
    own = f", size: {size(image.area, pipeline)}" if image.area is not None else ""
    return f"{{name: {image.name}, dtype: {image.dtype}, channels: {image.channels}{own}, fill: {described}}}"


def _number(value: float, dtype: str) -> str:
    return repr(float(value)) if is_float(dtype) else str(int(value))


def _kernel(kernel: ImageKernel, pipeline: Pipeline) -> list[str]:
    given = [name for name in kernel.reads if not pipeline.images[name].single or pipeline.is_kernel(name)]
    lines = [f"  {kernel.name}:", f"    pattern: {kernel.pattern}", f"    reads: [{', '.join(given)}]"]
    if kernel.pattern == "local":
        lines.append(f"    mask: [{kernel.mask[0]}, {kernel.mask[1]}]")
    borders = [f"{name}: {_border(border, pipeline)}" for name, border in sorted(kernel.borders.items())]
    if borders:
        lines.append(f"    border: {{{', '.join(borders)}}}")
    lines += [f"    dtype: {kernel.dtype}", f"    channels: {kernel.channels}"]
    lines.append(f"    size: {size(kernel.area or WHOLE, pipeline)}")
    if kernel.steps:
        steps = [f"{name}: {_step(each)}" for name, each in sorted(kernel.steps.items())]
        lines.append(f"    step: {{{', '.join(steps)}}}")
    lets, bodies = _lets(kernel)
    if kernel.bins is not None:
        lines.append(f"    reduce: {{histogram: {size(kernel.bins, pipeline)}}}")
        lines.append(f'    row: "{expression(bodies.pop(), pipeline)}"')
    elif kernel.reduction is not None:
        lines.append(f"    {'axis' if kernel.pattern == 'scan' else 'reduce'}: {kernel.reduction}")
    if lets:
        lines.append("    let:")
        lines += [f'      {name}: "{expression(value, pipeline)}"' for name, value in lets.items()]
    if len(bodies) == 1:
        lines.append(f'    body: "{expression(bodies[0], pipeline)}"')
    else:
        lines.append("    body:")
        lines += [f'      {name}: "{expression(body, pipeline)}"' for name, body in zip(CHANNELS, bodies, strict=False)]
    return lines


def _border(border: Border, pipeline: Pipeline) -> str:
    return f"{{constant: {border.value!r}}}" if border.mode == "constant" else border.mode


def _lets(kernel: ImageKernel) -> tuple[dict[str, Expr], list[Expr]]:
    """The names that bodies begin with, in an order in which each uses those before it only; and what remains."""
    lets: dict[str, Expr] = {}
    bodies: list[Expr] = []
    for body in kernel.bodies:
        inner: Expr = body
        while isinstance(inner, Let):
            lets.setdefault(inner.name, inner.value)
            inner = inner.body
        bodies.append(inner)
    ordered: dict[str, Expr] = {}
    while len(ordered) < len(lets):  # a name that only a later body uses may stand before it
        for name, value in lets.items():
            used = {each.name for each in tree.walk(value) if isinstance(each, Local)}
            if name not in ordered and used <= ordered.keys():
                ordered[name] = value
    return ordered, bodies


def expression(expr: Expr, pipeline: Pipeline) -> str:
    """A tree as the text of a body."""
    match expr:
        case UnaryOperation() | BinaryOperation() | Select() | FunctionCall():
            return _operation(expr, [expression(each, pipeline) for each in _operands(expr)])
        case Const(value, dtype):
            return str(value) if dtype == "int32" else repr(value) + ("f" if dtype == "float32" else "")
        case PixelAccess(image, dx, dy) if image in tree.POSITIONS.values():
            return image[1:] + _offset(dx, dy)
        case PixelAccess(image, dx, dy, channel):
            return _channel_of(image, channel, pipeline.images[image].channels) + _offset(dx, dy)
        case Fetch(image, x, y, channel, channels):
            place = f"{expression(_plain(x), pipeline)}, {expression(_plain(y), pipeline)}"
            return f"at({_channel_of(image, channel, channels)}, {place})"
        case Lookup(table, _, index):
            return f"lookup({table}, {expression(_plain(index), pipeline)})"
        case Local(name):
            return name
        case Cast(operand, dtype):
            return f"{_CASTS[dtype]}({expression(operand, pipeline)})"
    raise ValueError(f"a name is bound inside an expression: {expr}")


def _offset(dx: int, dy: int) -> str:
    return f"[{dx}, {dy}]" if dx or dy else ""


def _channel_of(image: str, channel: int | None, channels: int) -> str:
    return image if channel is None or channels == 1 else f"{image}.{CHANNELS[channel]}"


def _operation(expr: _Operation, operands: Sequence[str]) -> str:
    match expr:
        case UnaryOperation(op):
            return f"{op}({operands[0]})"
        case BinaryOperation(op):
            return f"({operands[0]} {op} {operands[1]})"
        case Select():
            return f"({operands[0]} ? {operands[1]} : {operands[2]})"
        case FunctionCall(function):
            return f"{function}({', '.join(operands)})"


def _operands(expr: _Operation) -> tuple[Expr, ...]:
    """The operands of an operation, without the conversions that C makes by itself when it is written without."""
    make: Callable[..., Expr]
    match expr:
        case UnaryOperation(op):
            make = partial(tree.unary, op)
        case BinaryOperation(op):
            make = partial(tree.binary, op)
        case Select():
            make = tree.select
        case FunctionCall(function):
            make = partial(tree.call, function)
    given = tree.children(expr)
    plain = tuple(_plain(each) for each in given)
    return plain if make(*plain) == expr else given


def _plain(expr: Expr) -> Expr:
    """Without the conversion that C may make by itself."""
    while isinstance(expr, Cast) and expr.implicit:
        expr = expr.operand
    return expr
