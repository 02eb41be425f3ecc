"""Reads a kernel's YAML file; docs/kernels.md describes the format.

Expressions are worked out in one order: block, grid, shared bytes, scalar values. Each may use what stands before it,
so that no cycle can be written down.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import TypedDict

from fusiond.errors import RequestError, UnknownName
from fusiond.inputs import values
from fusiond.inputs.documents import Node
from fusiond.keys import content_key, plain
from fusiond.language import expressions
from fusiond.language.dtypes import DTYPES, is_float, whole_numbers
from fusiond.language.expressions import Expression, ExpressionError
from fusiond.language.extents import Extent
from fusiond.program import (
    EQUAL,
    Buffer,
    Bytes,
    Dim3,
    Fill,
    Role,
)
from fusiond.strategy import Inputs
from fusiond_hfuse.frontend import includes, slicing
from fusiond_hfuse.frontend.graph import (
    WARP,
    Argument,
    Block,
    Field,
    Kernel,
    Member,
    Parameter,
    Parsed,
    Shape,
    Slot,
    Variable,
    buffers_among,
    volume,
)
from fusiond_hfuse.frontend.parse import parse_unit

KEYS = (
    "kernel", "source", "entry", "instance", "defines", "include", "flags", "sizes", "odd", "arguments", "constants",
    "block",
    "grid", "shared", "summary",
)  # fmt: skip
FLAGS = re.compile(
    r"--?(use_fast_math|expt-relaxed-constexpr|extended-lambda|lineinfo|std=c\+\+(14|17|20)"
    r"|(fmad|ftz|prec-div|prec-sqrt)=(true|false))"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_QUALIFIED = re.compile(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)*")
_INSTANCE = re.compile(r"[\w:]+\s*<[\w\s:,<>*&+.()'-]*>")
MAX_BUFFER_BYTES = 2**40
MAX_SHARED_BYTES = 2**20
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)


def read(inputs: Inputs, path: str, *, where: str) -> Kernel:
    """Read a kernel's YAML file and its source. RequestError with file, line and key for anything that is wrong."""
    document = inputs.document(path, where=where)
    keys = document.mapping(known=KEYS, required=("kernel", "source", "entry", "arguments", "block", "grid"))
    name = _matching(keys["kernel"], _NAME, "a name of letters, digits, _ and -")
    sizes = values.sizes(keys.get("sizes"))
    odd = values.sizes(keys.get("odd"))
    for size in odd:
        if size not in sizes:
            raise keys["odd"].fail(f"{size!r} is no size of this kernel")
    block = _block(keys["block"])
    flags = tuple(_matching(each, FLAGS, _FLAGS_WANTED) for each in _list(keys.get("flags")))
    defines = _defines(keys.get("defines"), sizes)
    folders = tuple(each.text() for each in _list(keys.get("include")))
    arguments = tuple(_argument(inputs, path, each) for each in keys["arguments"].sequence())
    variables = tuple(_variable(inputs, path, each) for each in _list(keys.get("constants")))
    everything = (*arguments, *buffers_among(tuple(each for each in arguments if each.members)), *variables)
    names = [argument.name for argument in everything]
    for argument in everything:
        if names.count(argument.name) > 1:
            raise RequestError(f"two arguments are called {argument.name!r}", where=argument.where)
    grid = _grid(keys["grid"])
    shared = expressions.parse("0") if "shared" not in keys else values.expression(keys["shared"])
    source_node = keys["source"]
    source = inputs.beside(path, source_node.text(), where=source_node.where)
    unit = includes.expand(inputs, source, folders, yaml=path, where=source_node.where)
    entry = _matching(keys["entry"], _QUALIFIED, "the name of a kernel")
    instance = entry
    if "instance" in keys:
        instance = _matching(
            keys["instance"], _INSTANCE, "the entry with template arguments, such as maxpool<float, 5>"
        )
        if instance.partition("<")[0].strip() != entry:
            raise keys["instance"].fail(f"is no instance of {entry}")
    asked: _Asked = {
        "instance": instance if "instance" in keys else None,
        "defines": define_values(defines, sizes, block.shapes[0], where=_where(keys, "defines")),
        "where": keys["instance" if "instance" in keys else "entry"].where,
        "flags": flags,
        "variables": tuple(each.symbol for each in variables),
    }
    unit = slicing.sliced(unit, entry, **asked)
    reading = functools.partial(parse_unit, unit, entry, name=name, **asked)
    parsed = reading()
    arguments = _checked(arguments, parsed.parameters, keys["arguments"])
    _check_variables(variables, parsed.variables, sizes)
    if parsed.uses_dynamic_shared and "shared" not in keys:
        raise document.fail(f"{entry} has an extern __shared__ array, so the key 'shared' must give its bytes")
    return Kernel(
        name=name,
        path=path,
        unit=unit,
        entry=entry,
        instance=instance,
        defines=defines,
        flags=flags,
        sizes=sizes,
        odd=odd,
        arguments=arguments,
        variables=variables,
        block=block,
        grid=grid,
        shared=shared,
        parsed=parsed,
        moved=_moved(parsed, reading, defines),
        content_key=_content_key(keys, unit.whole, (*arguments, *variables)),
        lines={key: node.where for key, node in keys.items()},
    )


class _Asked(TypedDict):
    """What decides how a source is read."""

    instance: str | None
    defines: tuple[tuple[str, str], ...]
    where: str
    flags: tuple[str, ...]
    variables: tuple[str, ...]


_FLAGS_WANTED = (
    "one of -use_fast_math, -fmad=, -ftz=, -prec-div=, -prec-sqrt=, -std=c++17, --expt-relaxed-constexpr, "
    "--extended-lambda, -lineinfo (register caps are searched, include folders stand under 'include')"
)


_WORTH_MOVING = 4096
"""Bytes of static shared arrays: less than that does not decide whether kernels fit together."""


def _moved(
    parsed: Parsed, reading: Callable[..., Parsed], defines: tuple[tuple[str, Expression | str], ...]
) -> Parsed | None:
    """The kernel with its static shared arrays in the dynamic one, for when all together are too large to be static.

    Their places are numbers in the text, so their sizes must not depend on the block.
    """
    by_block = any(isinstance(value, Expression) and _of_block(value) for _, value in defines)
    if by_block or parsed.rejections or (parsed.static_shared_bytes or 0) < _WORTH_MOVING:
        return None
    moved = reading(move=True)
    return None if moved.rejections else moved


def _of_block(value: Expression) -> bool:
    return any(name.startswith("block.") for name in value.names)


def _content_key(keys: Mapping[str, Node], text: str, arguments: tuple[Argument, ...]) -> str:
    """A key without sizes and without anybody's paths; an input file counts by its content."""
    left_out = ("source", "include", "sizes", "odd", "summary", "arguments", "constants")
    described = {key: node.plain() for key, node in keys.items() if key not in left_out}
    patterns = [
        [
            each.name,
            each.dtype,
            each.elements.text if each.elements else None,
            _value_text(each.value),
            _pattern(each.buffer),
            *(_described_member(member) for member in each.members),
            *(text for text in (each.hex, each.symbol) if text),
        ]
        for each in arguments
    ]
    return content_key([described, patterns, text])


def _described_member(member: Member) -> list[object]:
    if member.target is None or member.target.elements is None:
        return [member.path, member.dtype, _value_text(member.value)]
    return [member.path, member.dtype, member.target.elements.text, _pattern(member.target.buffer)]


def _value_text(value: Expression | float | None) -> str | float | None:
    return value.text if isinstance(value, Expression) else value


def _pattern(buffer: Buffer | None) -> object:
    if buffer is None:
        return None
    fill = plain(buffer.fill)
    fill.pop("file")
    return [buffer.role.value, fill, plain(buffer.compare)]


# --- the parts of the file ------------------------------------------------------------------------------


def _where(keys: Mapping[str, Node], key: str) -> str:
    return keys[key].where if key in keys else ""


def _list(node: Node | None) -> tuple[Node, ...]:
    return () if node is None else node.sequence()


def _matching(node: Node, pattern: re.Pattern[str], wanted: str) -> str:
    text = node.text().strip()
    if not pattern.fullmatch(text):
        raise node.fail(f"is {text[:80]!r}; wanted is {wanted}")
    return text


def _defines(node: Node | None, sizes: Mapping[str, int]) -> tuple[tuple[str, Expression | str], ...]:
    """Macros. A value over sizes and block.* is worked out; anything else is taken as it stands."""
    defines: list[tuple[str, Expression | str]] = []
    for name, value in (node.mapping() if node is not None else {}).items():
        if not _IDENTIFIER.fullmatch(name):
            raise value.fail(f"{name[:80]!r} cannot be the name of a macro")
        if isinstance(value.value, int) and not isinstance(value.value, bool):
            text = str(value.integer())
        else:
            text = "" if value.value is None else value.text()
        if not text.isprintable():
            raise value.fail("a macro's value is one line")
        try:
            parsed = expressions.parse(text)
        except ExpressionError:
            defines.append((name, text))
            continue
        known = {*sizes, "block.x", "block.y", "block.z"}
        defines.append((name, parsed if parsed.names <= known else text))
    return tuple(defines)


def define_values(
    defines: tuple[tuple[str, Expression | str], ...], sizes: Mapping[str, int], block: Dim3, *, where: str
) -> tuple[tuple[str, str], ...]:
    """Macros with their values at a block shape."""
    names = {**sizes, **_axes("block", block)}
    try:
        return tuple(
            (name, str(value.integer(names)) if isinstance(value, Expression) else value) for name, value in defines
        )
    except ExpressionError as problem:
        raise RequestError(str(problem), where=where) from None


def _block(node: Node) -> Block:
    keys = node.mapping(known=("shape", "shapes", "tune"))
    if ("shape" in keys) == ("shapes" in keys):
        raise node.fail("holds either 'shape' or 'shapes'")
    if "shapes" in keys:
        if "tune" in keys:
            raise keys["tune"].fail("goes with 'shape', not with a list of shapes")
        shapes = tuple(_shape(each) for each in keys["shapes"].sequence())
        if not shapes:
            raise keys["shapes"].fail("is empty")
        volumes = [volume(shape) for shape in shapes]
        for shape, size in zip(shapes, volumes, strict=True):
            if volumes.count(size) > 1:
                raise keys["shapes"].fail(f"two shapes have {size} threads, {shape} is one; keep the better one")
        return Block(shapes=shapes)
    shape = _shape(keys["shape"])
    tune = "xyz".index(keys["tune"].choice("x", "y", "z")) if "tune" in keys else None
    return Block(shapes=(shape,), tune=tune)


def _shape(node: Node) -> Dim3:
    lengths = [each.integer(least=1, most=most) for each, most in zip(_up_to_three(node), MAX_BLOCK, strict=False)]
    shape = (*lengths, 1, 1)[:3]
    result = (shape[0], shape[1], shape[2])
    if volume(result) > 1024:
        raise node.fail(f"has {volume(result)} threads; a block has at most 1024")
    return result


def _up_to_three(node: Node) -> tuple[Node, ...]:
    parts = node.sequence()
    if not 1 <= len(parts) <= 3:
        raise node.fail(f"has {len(parts)} lengths; one to three are wanted")
    return parts


def _grid(node: Node) -> tuple[Expression, ...]:
    return tuple(values.expression(each) for each in _up_to_three(node))


def _argument(inputs: Inputs, path: str, node: Node) -> Argument:
    keys = node.mapping(
        known=("name", "dtype", "elements", "role", "fill", "compare", "value", "struct", "bytes"), required=("name",)
    )
    name = _matching(keys["name"], _IDENTIFIER, "a C identifier")
    if len({"elements", "value", "struct", "bytes"} & set(keys)) != 1:
        raise node.fail("holds one of 'elements' (a buffer), 'value' (a scalar), 'struct' or 'bytes' (by value)")
    if "struct" in keys or "bytes" in keys:
        for key in keys:
            if key not in ("name", "struct", "bytes"):
                raise keys[key].fail("does not belong to a struct")
        if "bytes" in keys:
            digits = "".join(keys["bytes"].text().split()).lower()
            if not re.fullmatch(r"([0-9a-f]{2})+", digits):
                raise keys["bytes"].fail("is no row of hexadecimal digits, two for a byte")
            return Argument(name=name, dtype="uint8", hex=digits, where=node.where)
        members = tuple(_member(inputs, path, name, each, at) for at, each in keys["struct"].mapping().items())
        return Argument(name=name, dtype="uint8", members=members, where=node.where)
    if "dtype" not in keys:
        raise node.fail("the key 'dtype' is missing")
    dtype = keys["dtype"].choice(*DTYPES)
    if "value" in keys:
        for key in ("role", "fill", "compare"):
            if key in keys:
                raise keys[key].fail("belongs to buffers; this argument is a scalar")
        return Argument(name=name, dtype=dtype, value=_value(keys["value"], dtype), where=node.where)
    return _buffer(inputs, path, node, keys, name, dtype)


def _member(inputs: Inputs, path: str, argument: str, node: Node, at: str) -> Member:
    """A number in a struct: its value, or a mapping that gives its type too; or a buffer that it points to."""
    if isinstance(node.value, dict) and "elements" in node.value:
        keys = node.mapping(known=("dtype", "elements", "role", "fill", "compare"), required=("dtype",))
        target = _buffer(inputs, path, node, keys, f"{argument}.{at}", keys["dtype"].choice(*DTYPES))
        return Member(path=at, dtype=target.dtype, target=target, where=node.where)
    if isinstance(node.value, dict):
        keys = node.mapping(known=("dtype", "value"), required=("value",))
        dtype = keys["dtype"].choice(*DTYPES) if "dtype" in keys else None
        return Member(path=at, dtype=dtype, value=_number(keys["value"]), where=node.where)
    return Member(path=at, dtype=None, value=_number(node), where=node.where)


def _number(node: Node) -> Expression | float:
    return _value(node, "float64") if isinstance(node.value, float) else values.expression(node)


def _variable(inputs: Inputs, path: str, node: Node) -> Argument:
    """A `__constant__` or `__device__` variable that the host sets before the kernel runs."""
    keys = node.mapping(
        known=("symbol", "name", "dtype", "elements", "role", "fill", "compare"),
        required=("symbol", "dtype", "elements"),
    )
    symbol = _matching(keys["symbol"], _QUALIFIED, "the name of a variable")
    name = _matching(keys["name"], _IDENTIFIER, "a C identifier") if "name" in keys else symbol.rpartition("::")[2]
    dtype = keys["dtype"].choice(*DTYPES)
    found = _buffer(inputs, path, node, keys, name, dtype, role=None if "role" in keys else Role.INPUT)
    return dataclasses.replace(found, symbol=symbol)


def _buffer(
    inputs: Inputs, path: str, node: Node, keys: Mapping[str, Node], name: str, dtype: str, *, role: Role | None = None
) -> Argument:
    if role is None:
        if "role" not in keys:
            raise node.fail("the key 'role' is missing")
        role = Role(keys["role"].choice(*(each.value for each in Role)))
    poisoned = role in (Role.OUTPUT, Role.SCRATCH)
    if poisoned and "fill" in keys:
        raise keys["fill"].fail(f"a buffer with the role {role.value} starts with poison; one that is filled is inout")
    if not poisoned and "fill" not in keys:
        raise node.fail("the key 'fill' is missing")
    if not role.compared and "compare" in keys:
        raise keys["compare"].fail(f"a buffer with the role {role.value} is not compared")
    return Argument(
        name=name,
        dtype=dtype,
        elements=values.expression(keys["elements"]),
        buffer=Buffer(
            name=name,
            dtype=dtype,
            elements=1,
            role=role,
            fill=Fill() if poisoned else values.fill(keys["fill"], dtype, functools.partial(_file, inputs, path)),
            compare=values.comparison(keys.get("compare"), dtype) if role.compared else EQUAL,
        ),
        where=node.where,
    )


def _file(inputs: Inputs, path: str, node: Node) -> tuple[str, str]:
    """An .npy file beside the kernel's YAML file, and the key of what it holds."""
    file = inputs.beside(path, node.text(), where=node.where)
    return file, inputs.digest(file, where=node.where)


def _value(node: Node, dtype: str) -> Expression | float:
    if not isinstance(node.value, float):
        return values.expression(node)
    if not is_float(dtype):
        raise node.fail(f"is {node.value:g}; a whole number is wanted for {dtype}")
    if not math.isfinite(node.value):
        raise node.fail("must be a finite number")
    return node.value


def _checked(arguments: tuple[Argument, ...], parameters: tuple[Parameter, ...], node: Node) -> tuple[Argument, ...]:
    """The YAML's arguments against the kernel's parameters: number, order, kind and type. Structs get their places."""
    if len(arguments) != len(parameters):
        names = ", ".join(parameter.spelling for parameter in parameters) or "none"
        raise node.fail(f"{len(arguments)} arguments for {len(parameters)} parameters ({names})")
    found = []
    for argument, parameter in zip(arguments, parameters, strict=True):
        if parameter.bytes or argument.members or argument.hex:
            found.append(_record(argument, parameter))
            continue
        if parameter.pointer and isinstance(argument.value, Expression) and argument.value.text == "0":
            found.append(dataclasses.replace(argument, dtype="uint64"))  # no buffer: a null pointer
            continue
        found.append(argument)
        is_buffer = argument.buffer is not None
        if is_buffer != parameter.pointer:
            wanted = "a buffer, with elements, or 0" if parameter.pointer else "a scalar, with a value"
            raise RequestError(
                f"{argument.name}: the kernel's parameter is {parameter.spelling!r}, {wanted}", where=argument.where
            )
        if parameter.dtype is not None and parameter.dtype != argument.dtype:
            raise RequestError(
                f"{argument.name} is {argument.dtype}, but the kernel's parameter {parameter.spelling!r} is "
                f"{parameter.dtype}",
                where=argument.where,
            )
        if parameter.unfit:
            raise RequestError(f"{argument.name}: {parameter.unfit}", where=argument.where)
    return tuple(found)


def _record(argument: Argument, parameter: Parameter) -> Argument:
    """A struct by value: every number of it must be said, and be one that a Program can hold."""
    if not parameter.bytes or not (argument.members or argument.hex):
        wanted = "a struct, with `struct:` or `bytes:`" if parameter.bytes else "no struct"
        raise RequestError(
            f"{argument.name}: the kernel's parameter is {parameter.spelling!r}, {wanted}", where=argument.where
        )
    if argument.hex:
        if len(argument.hex) != 2 * parameter.bytes:
            raise RequestError(
                f"{argument.name} has {len(argument.hex) // 2} bytes, but {parameter.spelling!r} has {parameter.bytes}",
                where=argument.where,
            )
        if any(each.pointer for each in parameter.fields):
            raise RequestError(
                f"{argument.name}: {parameter.spelling!r} has pointers in it, whose addresses nobody knows before; say "
                f"what they point to with `struct:`",
                where=argument.where,
            )
        return dataclasses.replace(argument, bytes=parameter.bytes)
    for each in parameter.fields:
        if each.dtype is None and not each.pointer:
            raise RequestError(
                f"{argument.name}: {each.path} of {parameter.spelling!r} is {each.kind}, which cannot be passed inside "
                f"a struct; pass it as an argument of its own",
                where=argument.where,
            )
    said = {member.path: member for member in argument.members}
    places = {each.path: each for each in parameter.fields}
    for path, member in said.items():
        if path not in places:
            raise UnknownName("member", path, places, where=member.where)
        _check_member(member, places[path], parameter.spelling)
    missing = [path for path in places if path not in said]
    if missing:
        raise RequestError(
            f"{argument.name} says nothing of {', '.join(missing[:5])} of {parameter.spelling!r}", where=argument.where
        )
    members = tuple(
        dataclasses.replace(said[path], dtype=place.dtype or said[path].dtype or "uint64", offset=place.offset)
        for path, place in places.items()
    )
    return dataclasses.replace(argument, members=members, bytes=parameter.bytes)


def _check_member(member: Member, place: Field, spelling: str) -> None:
    """What the YAML says of one place of a struct against what is there."""
    if place.pointer:
        null = isinstance(member.value, Expression) and member.value.text == "0"
        if member.target is None and not null:
            raise RequestError(
                f"{member.path} of {spelling!r} is a pointer: wanted is a buffer, with elements, or 0",
                where=member.where,
            )
        if place.pointee is not None and member.target is not None and member.dtype != place.pointee:
            raise RequestError(
                f"{member.path} is {member.dtype}, but {spelling!r} points to {place.pointee} there", where=member.where
            )
        return
    if member.target is not None:
        raise RequestError(f"{member.path} of {spelling!r} is {place.dtype}, and no pointer", where=member.where)
    if member.dtype not in (None, place.dtype):
        raise RequestError(
            f"{member.path} is {member.dtype}, but {spelling!r} has {place.dtype} there", where=member.where
        )
    if isinstance(member.value, float) and not (place.dtype or "").startswith("float"):
        raise RequestError(
            f"{member.path} is {member.value:g}; a whole number is wanted for {place.dtype}", where=member.where
        )


def _check_variables(variables: tuple[Argument, ...], known: tuple[Variable, ...], sizes: Mapping[str, int]) -> None:
    """The YAML's constants against the source's variables: type and size."""
    places = {each.name: each for each in known}
    for argument in variables:
        variable = places[argument.symbol]
        assert argument.elements is not None
        assert argument.buffer is not None
        if variable.dtype is not None and variable.dtype != argument.dtype:
            raise RequestError(
                f"{argument.symbol} is {variable.dtype} in the source, not {argument.dtype}", where=argument.where
            )
        if variable.constant and argument.buffer.role is not Role.INPUT:
            raise RequestError(f"{argument.symbol} is __constant__, so its role is input", where=argument.where)
        try:
            size = argument.elements.integer(sizes) * DTYPES[argument.dtype].bytes
        except ExpressionError as problem:
            raise RequestError(f"elements: {problem}", where=argument.where) from None
        if size > variable.bytes >= 0:
            raise RequestError(
                f"{argument.symbol} has {variable.bytes} bytes in the source, and {size} here", where=argument.where
            )


# --- a slot at a block shape ----------------------------------------------------------------------------


def _axes(what: str, shape: Dim3) -> dict[str, int]:
    return {f"{what}.{axis}": length for axis, length in zip("xyz", shape, strict=True)}


def shape_of(slot: Slot, block: Dim3) -> Shape:
    """Grid, shared bytes and scalar values of a slot at a block shape. RequestError names the key that fails."""
    kernel = slot.kernel
    names: dict[str, expressions.Scalar] = {**slot.extents, **_axes("block", block)}
    key = "grid"
    where = kernel.lines["grid"]
    try:
        lengths = [each.integer(names) for each in kernel.grid]
        for length, most in zip(lengths, MAX_GRID, strict=False):
            if not 1 <= length <= most:
                raise ExpressionError(f"a grid of {lengths} blocks; each length must be from 1 to {most}")
        padded = (*lengths, 1, 1)
        grid = (padded[0], padded[1], padded[2])
        names.update(_axes("grid", grid))
        key = "shared"
        where = kernel.lines.get("shared", kernel.path)
        shared_bytes = kernel.shared.integer(names) + kernel.parsed.moved_bytes
        if not 0 <= shared_bytes <= MAX_SHARED_BYTES:
            raise ExpressionError(f"{shared_bytes} bytes of shared memory, which no block has")
        scalars: dict[str, int | float] = {}
        records: dict[str, Bytes] = {}
        for argument in kernel.arguments:
            if argument.value is not None:
                key, where = argument.name, argument.where
                scalars[argument.name] = _scalar(argument.value, argument.dtype, names)
            elif argument.members or argument.hex:
                key, where = argument.name, argument.where
                records[argument.name] = Bytes(hex=argument.hex) if argument.hex else _packed(argument, names)
    except ExpressionError as problem:
        at = f" at the sizes {_said(slot.sizes)} and a block of {'x'.join(map(str, block))}"
        raise RequestError(f"{key}: {problem}{at}", where=where) from None
    return Shape(block=block, grid=grid, shared_bytes=shared_bytes, scalars=scalars, records=records)


def _scalar(value: Expression | float, dtype: str, names: Mapping[str, expressions.Scalar]) -> int | float:
    if isinstance(value, float):
        return value
    number = value.integer(names)
    if is_float(dtype):
        return number if isinstance(number, Extent) else float(number)
    least, most = whole_numbers(dtype)
    if not least <= number <= most:
        raise ExpressionError(f"{number} does not fit {dtype}")
    return number


def _packed(argument: Argument, names: Mapping[str, expressions.Scalar]) -> Bytes:
    """A struct; what lies between its numbers is zero, and so are its addresses, which are not known yet."""
    data = bytearray(argument.bytes)
    numbers = []
    for member in argument.members:
        assert member.dtype is not None  # _record has seen to it
        if member.target is not None:
            continue
        value = _scalar(member.value, member.dtype, names)
        if isinstance(value, Extent):
            numbers.append((member.offset, member.dtype, value))
        else:
            struct.pack_into(f"<{DTYPES[member.dtype].packed}", data, member.offset, value)
    return Bytes(hex=data.hex(), numbers=tuple(numbers))


def buffers_of(slot: Slot) -> tuple[Buffer, ...]:
    """The slot's buffers, named `a.counts`. RequestError for a size that is no size."""
    found = []
    for argument in slot.kernel.buffers:
        if argument.buffer is None or argument.elements is None:
            continue
        try:
            elements = argument.elements.integer(slot.extents)
        except ExpressionError as problem:
            raise RequestError(f"elements: {problem}", where=argument.where) from None
        if elements < 1:
            raise RequestError(
                f"{argument.name} has {elements} elements at the sizes {_said(slot.sizes)}; at least 1 is wanted",
                where=argument.where,
            )
        pattern = argument.buffer
        buffer = Buffer(
            name=f"{slot.letter}.{argument.name}",
            dtype=pattern.dtype,
            elements=elements,
            role=pattern.role,
            fill=pattern.fill,
            compare=pattern.compare,
        )
        if buffer.size_bytes > MAX_BUFFER_BYTES:
            raise RequestError(
                f"{argument.name} has {buffer.size_bytes} bytes at the sizes {_said(slot.sizes)}; "
                f"at most {MAX_BUFFER_BYTES} are sane",
                where=argument.where,
            )
        found.append(buffer)
    return tuple(found)


def _said(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(sizes.items())) or "none"


def thread_counts(slot: Slot, granularity: int, most: int) -> tuple[int, ...]:
    """How many threads a slot's block can have: the given count first, then all others, ascending.

    Stretchable blocks go in steps of `granularity` (Li et al., CGO 2022, section III-B uses 128).
    """
    block = slot.kernel.block
    bound = min(most, slot.kernel.parsed.launch_bound or most)
    given = volume(block.shapes[0])
    if block.tune is None:
        counts = [volume(shape) for shape in block.shapes]
    else:
        counts = [given, *(threads for threads in range(granularity, bound + 1, granularity) if block.shape(threads))]
    allowed = {threads for threads in counts if threads <= bound and _launches(slot, threads)}
    return tuple(sorted(allowed, key=lambda threads: (threads != given, threads)))


def shares_a_block(kernel: Kernel, threads: int) -> bool:
    """Whether so many threads of a kernel may lie beside another kernel's: a partial barrier counts warps, and a warp
    must not serve two kernels."""
    if kernel.parsed.beside or threads % WARP:
        return False
    return not kernel.parsed.by_warps or _rows_are_warps(kernel.block.shape(threads))


def _rows_are_warps(shape: Dim3 | None) -> bool:
    return shape is not None and (shape[0] % WARP == 0 or shape[1] * shape[2] == 1)


def _launches(slot: Slot, threads: int) -> bool:
    """Whether the slot's expressions come to a launch at this block size (a grid of `n // block.x` may come to 0)."""
    shape = slot.kernel.block.shape(threads)
    try:
        return shape is not None and shape_of(slot, shape).blocks > 0
    except RequestError:
        return False
