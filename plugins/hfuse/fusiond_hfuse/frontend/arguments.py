"""The arguments and constants of a kernel's YAML file, and whether the kernel's parameters agree with them."""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping

from fusiond.model.errors import UnknownName
from fusiond.model.inputs import values
from fusiond.model.inputs.documents import Node
from fusiond.model.keys import content_key, plain
from fusiond.model.language import expressions
from fusiond.model.language.dtypes import DTYPES, is_float
from fusiond.model.language.expressions import Expression, ExpressionError
from fusiond.model.program import EQUAL, Buffer, Fill, Role
from fusiond.strategy import Inputs
from fusiond_hfuse.frontend.source_kernel import (
    DeviceVariable,
    KernelArgument,
    KernelParameter,
    SourceKernel,
    StructField,
    StructMember,
    TranslationUnit,
)

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
QUALIFIED = re.compile(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)*")
_BUFFER = ("dtype", "elements", "role", "fill", "compare")  #: The keys of one


def matching(node: Node, pattern: re.Pattern[str], wanted: str) -> str:
    text = node.text().strip()
    if not pattern.fullmatch(text):
        raise node.fail(f"is {text[:80]!r}; expected {wanted}")
    return text


def argument(inputs: Inputs, path: str, node: Node) -> KernelArgument:
    known = ("name", *_BUFFER, "value", "struct", "bytes", "part_of", "offset")
    keys = node.mapping(known=known, required=("name",))
    name = matching(keys["name"], IDENTIFIER, "a C identifier")
    if "part_of" in keys:
        return _part(node.mapping(known=("name", "part_of", "offset")), name, node.where)
    said = {"elements", "value", "struct", "bytes"} & set(keys)
    if len(said) != 1 and said != {"struct", "bytes"}:
        raise node.fail("holds one of 'elements' (a buffer), 'value' (a scalar), 'struct' and 'bytes' (by value)")
    if "struct" in keys or "bytes" in keys:
        for key in keys:
            if key not in ("name", "struct", "bytes"):
                raise keys[key].fail("does not belong to a struct")
        digits = "".join(keys["bytes"].text().split()).lower() if "bytes" in keys else ""
        if "bytes" in keys and not re.fullmatch(r"([0-9a-f]{2})+", digits):
            raise keys["bytes"].fail("is not a row of hexadecimal digits, two for each byte")
        held = keys["struct"].mapping() if "struct" in keys else {}
        members = tuple(_member(inputs, path, name, each, at) for at, each in held.items())
        return KernelArgument(name=name, dtype="uint8", members=members, hex=digits, where=node.where)
    if "dtype" not in keys:
        raise node.fail("the key 'dtype' is missing")
    dtype = keys["dtype"].choice(*DTYPES)
    if "value" in keys:
        for key in ("role", "fill", "compare"):
            if key in keys:
                raise keys[key].fail("belongs to buffers; this argument is a scalar")
        return KernelArgument(name=name, dtype=dtype, value=_value(keys["value"], dtype), where=node.where)
    return _buffer(inputs, path, node, keys, name, dtype)


def _member(inputs: Inputs, path: str, argument: str, node: Node, at: str) -> StructMember:
    """A number in a struct: its value, or a mapping that gives its type too; or a buffer that it points to."""
    if not isinstance(node.value, dict):
        return StructMember(path=at, dtype=None, value=_number(node), where=node.where)
    if "part_of" in node.value:
        target = _part(node.mapping(known=("part_of", "offset")), f"{argument}.{at}", node.where)
    elif "elements" in node.value:
        keys = node.mapping(known=_BUFFER, required=("dtype",))
        target = _buffer(inputs, path, node, keys, f"{argument}.{at}", keys["dtype"].choice(*DTYPES))
    else:
        keys = node.mapping(known=("dtype", "value"), required=("value",))
        dtype = keys["dtype"].choice(*DTYPES) if "dtype" in keys else None
        return StructMember(path=at, dtype=dtype, value=_number(keys["value"]), where=node.where)
    return StructMember(path=at, dtype=target.dtype, target=target, where=node.where)


def _part(keys: Mapping[str, Node], name: str, where: str) -> KernelArgument:
    """An address in another buffer's memory."""
    return KernelArgument(
        name=name, dtype="uint8", part_of=keys["part_of"].text().strip(), where=where,
        offset=values.expression(keys["offset"]) if "offset" in keys else expressions.parse("0"),
        buffer=Buffer(name=name, dtype="uint8", elements=1, role=Role.SCRATCH),
    )  # fmt: skip


def _number(node: Node) -> Expression | float:
    return _value(node, "float64") if isinstance(node.value, float) else values.expression(node)


def variable(inputs: Inputs, path: str, node: Node) -> KernelArgument:
    """A `__constant__` or `__device__` variable that the host sets before the kernel runs: its numbers, what it points
    to, or its members one by one."""
    keys = node.mapping(known=("symbol", "name", *_BUFFER, "struct"), required=("symbol",))
    symbol = matching(keys["symbol"], QUALIFIED, "the name of a variable")
    name = matching(keys["name"], IDENTIFIER, "a C identifier") if "name" in keys else symbol.rpartition("::")[2]
    if "struct" in keys:
        for key in keys:
            if key not in ("symbol", "name", "struct"):
                raise keys[key].fail("does not belong to a struct")
        members = tuple(_member(inputs, path, name, each, at) for at, each in keys["struct"].mapping().items())
        return KernelArgument(name=name, dtype="uint8", members=members, symbol=symbol, where=node.where)
    for key in ("dtype", "elements"):
        if key not in keys:
            raise node.fail(f"the key {key!r} is missing; a variable has it, or 'struct'")
    dtype = keys["dtype"].choice(*DTYPES)
    found = _buffer(inputs, path, node, keys, name, dtype, role=None if "role" in keys else Role.INPUT)
    return dataclasses.replace(found, symbol=symbol)


def _buffer(
    inputs: Inputs, path: str, node: Node, keys: Mapping[str, Node], name: str, dtype: str, *, role: Role | None = None
) -> KernelArgument:
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
    pattern = Buffer(
        name=name, dtype=dtype, elements=1, role=role,
        fill=Fill() if poisoned else values.fill(keys["fill"], dtype, functools.partial(_file, inputs, path)),
        compare=values.comparison(keys.get("compare"), dtype) if role.compared else EQUAL,
    )  # fmt: skip
    elements = values.expression(keys["elements"])
    return KernelArgument(name=name, dtype=dtype, elements=elements, buffer=pattern, where=node.where)


def _file(inputs: Inputs, path: str, node: Node) -> tuple[str, str]:
    """An .npy file beside the kernel's YAML file, and the key of what it holds."""
    file = inputs.beside(path, node.text(), where=node.where)
    return file, inputs.digest(file, where=node.where)


def _value(node: Node, dtype: str) -> Expression | float:
    if not isinstance(node.value, float):
        return values.expression(node)
    if not is_float(dtype):
        raise node.fail(f"is {node.value:g}; {dtype} takes whole numbers")
    if not math.isfinite(node.value):
        raise node.fail("must be a finite number")
    return node.value


def matched(
    arguments: tuple[KernelArgument, ...], parameters: tuple[KernelParameter, ...], node: Node
) -> list[tuple[KernelArgument, KernelParameter]]:
    """Each argument with its parameter. RequestError where there are more of one or of the other."""
    if len(arguments) != len(parameters):
        names = ", ".join(parameter.spelling for parameter in parameters) or "none"
        raise node.fail(f"{len(arguments)} arguments for {len(parameters)} parameters ({names})")
    return list(zip(arguments, parameters, strict=True))


def checked(
    arguments: tuple[KernelArgument, ...], parameters: tuple[KernelParameter, ...], node: Node
) -> tuple[KernelArgument, ...]:
    """The YAML's arguments against the kernel's parameters: number, order, kind and type. Structs get their places."""
    found = []
    for argument, parameter in matched(arguments, parameters, node):
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
            raise argument.fail(f"{argument.name}: the kernel's parameter is {parameter.spelling!r}, {wanted}")
        if parameter.dtype not in (None, argument.dtype) and not argument.part_of:
            raise argument.fail(
                f"{argument.name} is {argument.dtype}, but the kernel's parameter {parameter.spelling!r} is "
                f"{parameter.dtype}"
            )
        if parameter.unfit:
            raise argument.fail(f"{argument.name}: {parameter.unfit}")
    return tuple(found)


def _record(argument: KernelArgument, parameter: KernelParameter) -> KernelArgument:
    """A struct by value: every number of it must be said, and be one that a Program can hold."""
    if not parameter.bytes or not (argument.members or argument.hex):
        wanted = "a struct, with `struct:` or `bytes:`" if parameter.bytes else "not a struct"
        raise argument.fail(f"{argument.name}: the kernel's parameter is {parameter.spelling!r}, {wanted}")
    if argument.hex:
        if len(argument.hex) != 2 * parameter.bytes:
            raise argument.fail(
                f"{argument.name} has {len(argument.hex) // 2} bytes, but {parameter.spelling!r} has {parameter.bytes}"
            )
        said = {each.path for each in argument.members}
        for each in parameter.fields:
            null = not int(argument.hex[2 * each.offset : 2 * each.offset + 16], 16)
            if each.pointer and not null and said.isdisjoint((each.path, str(each.offset))):
                raise argument.fail(
                    f"{argument.name}: {parameter.spelling!r} has pointers in it, whose addresses are not known before;"
                    f" say what they point to with `struct:`"
                )
    for each in parameter.fields:
        if each.dtype is None and not each.pointer and not argument.hex:
            raise argument.fail(
                f"{argument.name}: {each.path} of {parameter.spelling!r} is {each.kind}, which cannot be passed inside "
                f"a struct; pass it as an argument of its own"
            )
    return _placed(argument, parameter.fields, parameter.bytes, parameter.spelling)


def _placed(argument: KernelArgument, fields: tuple[StructField, ...], size: int, spelling: str) -> KernelArgument:
    """A struct whose members have their types and places. They are named by their paths, or by these places."""
    places = {each.path: each for each in fields}
    paths = {str(each.offset): each.path for each in fields}
    said = {paths.get(member.path, member.path): member for member in argument.members}
    for path, member in said.items():
        if path not in places:
            raise UnknownName("member", path, places, where=member.where)
        _check_member(path or argument.name, member, places[path], spelling)
    missing = [path for path in places if path not in said]
    if missing and not argument.hex:
        left = f"{argument.name} does not give {', '.join(missing[:5])} of {spelling!r}"
        raise argument.fail(left)
    members = tuple(
        dataclasses.replace(said[path], dtype=place.dtype or said[path].dtype or "uint64", offset=place.offset)
        for path, place in places.items()
        if path in said
    )
    return dataclasses.replace(argument, members=members, bytes=size)


def _check_member(name: str, member: StructMember, place: StructField, spelling: str) -> None:
    """What the YAML says of one place of a struct against what is there."""
    if place.pointer:
        null = isinstance(member.value, Expression) and member.value.text == "0"
        if member.target is None and not null:
            raise member.fail(f"{name} of {spelling!r} is a pointer; give a buffer, with elements, or 0")
        given = None if member.target is None or member.target.part_of else member.dtype
        if place.pointee is not None and given not in (None, place.pointee):
            raise member.fail(f"{name} is {member.dtype}, but {spelling!r} points to {place.pointee} there")
        return
    if member.target is not None:
        raise member.fail(f"{name} of {spelling!r} is {place.dtype}, not a pointer")
    if member.dtype not in (None, place.dtype):
        raise member.fail(f"{name} is {member.dtype}, but {spelling!r} has {place.dtype} there")
    if isinstance(member.value, float) and not (place.dtype or "").startswith("float"):
        raise member.fail(f"{name} is {member.value:g}; {place.dtype} takes whole numbers")


def checked_variables(
    variables: tuple[KernelArgument, ...], known: tuple[DeviceVariable, ...], sizes: Mapping[str, int]
) -> tuple[KernelArgument, ...]:
    """The YAML's constants against the source's variables: type and size. Those that are structs, or hold addresses,
    get their places."""
    places = {each.name: each for each in known}
    return tuple(_variable_checked(each, places[each.symbol], sizes) for each in variables)


def _variable_checked(argument: KernelArgument, variable: DeviceVariable, sizes: Mapping[str, int]) -> KernelArgument:
    if argument.members or variable.address:
        return _places_of_variable(argument, variable)
    assert argument.elements is not None
    assert argument.buffer is not None
    if variable.dtype is not None and variable.dtype != argument.dtype:
        raise argument.fail(f"{argument.symbol} is {variable.dtype} in the source, not {argument.dtype}")
    if variable.constant and argument.buffer.role is not Role.INPUT:
        raise argument.fail(f"{argument.symbol} is __constant__, so its role is input")
    try:
        size = argument.elements.integer(sizes) * DTYPES[argument.dtype].bytes
    except ExpressionError as problem:
        raise argument.fail(f"elements: {problem}") from None
    if size > variable.bytes >= 0:
        raise argument.fail(f"{argument.symbol} has {variable.bytes} bytes in the source, and {size} here")
    return argument


def _places_of_variable(argument: KernelArgument, variable: DeviceVariable) -> KernelArgument:
    """A variable that is a struct, or an address: then the YAML may say what is at that address, and no more."""
    if variable.unfit:
        raise argument.fail(variable.unfit)
    if not variable.fields:
        raise argument.fail(
            f"{argument.symbol} is {variable.spelling!r} in the source, not a struct; give its dtype and elements"
        )
    if argument.members:
        return _placed(argument, variable.fields, variable.bytes, variable.spelling)
    if [each.path for each in variable.fields] != [""]:
        raise argument.fail(
            f"{argument.symbol} is {variable.spelling!r} in the source; give `struct:`, with "
            f"{', '.join(each.path for each in variable.fields[:5])}"
        )
    target = dataclasses.replace(argument, symbol="")
    pointer = StructMember(path="", dtype=argument.dtype, target=target, where=argument.where)
    whole = KernelArgument(
        name=argument.name, dtype="uint8", members=(pointer,), symbol=argument.symbol, where=argument.where
    )
    return _placed(whole, variable.fields, variable.bytes, variable.spelling)


# --- what is said of a kernel, as its key has it --------------------------------------------------------


def given_kernel(given: SourceKernel, unit: TranslationUnit, instance: str, text: str) -> SourceKernel:
    """A kernel as its file gives it with its source, of which nothing else is known yet. Its key is without sizes and
    without anybody's paths; an input file counts by its content."""
    left_out = ("source", "include", "sizes", "odd", "summary", "arguments", "constants")
    described = {key: node.plain() for key, node in given.keys.items() if key not in left_out}
    patterns = [
        [
            each.name,
            each.dtype,
            each.elements.text if each.elements else None,
            _value_text(each.value),
            _pattern(each.buffer),
            *map(_described_member, each.members),
            *filter(None, (each.hex, each.symbol, _part_text(each))),
        ]
        for each in (*given.arguments, *given.variables)
    ]
    key = content_key([described, patterns, text])
    return dataclasses.replace(given, unit=unit, entry=instance, instance=instance, content_key=key)


def _described_member(member: StructMember) -> list[object]:
    if member.target is not None and member.target.part_of:
        return [member.path, _part_text(member.target)]
    if member.target is None or member.target.elements is None:
        return [member.path, member.dtype, _value_text(member.value)]
    return [member.path, member.dtype, member.target.elements.text, _pattern(member.target.buffer)]


def _part_text(argument: KernelArgument) -> str:
    """Where an address in another buffer's memory is; empty of all others."""
    return f"{argument.part_of}[{argument.offset.text}]" if argument.offset is not None else ""


def _value_text(value: Expression | float | None) -> str | float | None:
    return value.text if isinstance(value, Expression) else value


def _pattern(buffer: Buffer | None) -> object:
    if buffer is None:
        return None
    fill = plain(buffer.fill)
    fill.pop("file")
    return [buffer.role.value, fill, plain(buffer.compare)]
