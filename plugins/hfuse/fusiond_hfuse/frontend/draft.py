"""A kernel's YAML from its file: the signature, the launch where the host's code has one, and `"?"` for the rest."""

from __future__ import annotations

import re
from pathlib import PurePath

from fusiond.errors import RequestError, UnknownName
from fusiond.inputs.documents import UNKNOWN
from fusiond.language.dtypes import DTYPES, is_float
from fusiond.strategy import Inputs
from fusiond_hfuse.frontend import includes, recheck, slicing
from fusiond_hfuse.frontend.graph import Parameter, Parsed, Unit, Variable
from fusiond_hfuse.frontend.launches import Launched, launches
from fusiond_hfuse.frontend.parse import parse_unit

_WHOLE = ("int16", "uint16", "int32", "uint32", "int64", "uint64")


def draft(path: str, name: str, inputs: Inputs, include: tuple[str, ...]) -> str:
    """The YAML text for a kernel of a `.cu` file. `name` is its own, with or without namespaces and template arguments
    (`maxpool<float, 5>`); empty where the file has one. `include`: folders, relative to the file, that headers are
    looked for in. RequestError for what cannot be read, or is not clear."""
    unit = includes.expand(inputs, path, include, yaml=path, where=path)
    code = recheck.blanked(unit.text.encode())
    known = slicing.kernels(unit)
    entry, instance = _entry(path, name, known)
    last = entry.rpartition("::")[2]
    if not instance:
        written = [each.instance for each in launches(code, last, ()) if each.instance]
        instance = next((f"{entry}{each}" for each in written if re.fullmatch(r"<[\w\s,:*&]*>", each)), "")
    asked = {"instance": instance or None, "defines": (), "where": path}
    sliced = slicing.sliced(unit, entry, **asked)  # type: ignore[arg-type]
    parsed = parse_unit(sliced, entry, name=last, **asked)  # type: ignore[arg-type]
    if parsed.settable:  # once the host has set them, they are no reason to refuse
        symbols = tuple(each.name for each in parsed.settable)
        again = parse_unit(sliced, entry, name=last, variables=symbols, **asked)  # type: ignore[arg-type]
        parsed = again.replaced(settable=parsed.settable)
    names = tuple(each.name for each in parsed.parameters)
    launched = list(launches(code, last, names))
    return "\n".join(_lines(path, unit, parsed, instance, launched, include)) + "\n"


def _entry(path: str, name: str, known: frozenset[str]) -> tuple[str, str]:
    """The kernel that is meant, and its instance."""
    if not known:
        raise RequestError("there is no kernel in it", where=path)
    plain, bracket, rest = name.partition("<")
    plain = plain.strip()
    if not plain:
        if len(known) > 1:
            raise RequestError(f"there are {len(known)} kernels in it: {', '.join(sorted(known))}; say which: "
                               f"{PurePath(path).name}:{min(known)}", where=path)  # fmt: skip
        (plain,) = known
    meant = [each for each in known if each == plain] or [each for each in known if each.endswith(f"::{plain}")]
    if len(meant) != 1:
        raise UnknownName("kernel", plain, known, where=path)
    return meant[0], f"{meant[0]}<{rest}" if bracket else ""


def _lines(
    path: str, unit: Unit, parsed: Parsed, instance: str, launched: list[Launched], include: tuple[str, ...]
) -> list[str]:
    how = launched[0] if launched else None
    last = parsed.entry.rpartition("::")[2]
    sizes = [each.name for each in parsed.parameters if each.name and _is_size(each)]
    lines = [f'# Drafted by `fusiond init`. "{UNKNOWN}" stands for what the source does not say.']
    lines += [f"# Not read: {each}" for each in unit.missing]
    lines += [f"# Cannot be fused as it is: {each.detail}" for each in parsed.rejections]
    lines += [f"# Launched in {PurePath(unit.where(each.line)).name}: {each.text}" for each in launched]
    lines += [f"kernel: {last}", f"source: {PurePath(path).name}", f"entry: {_quoted(parsed.entry)}"]
    lines += [f"instance: {_quoted(instance)}"] if instance else []
    lines += [f"include: [{', '.join(map(_quoted, include))}]"] if include else []
    if sizes:
        lines.append("sizes: {" + ", ".join(f'{_name(each)}: "{UNKNOWN}"' for each in sizes) + "}")
    lines.append("arguments:")
    for number, each in enumerate(parsed.parameters):
        lines += [f"  - {line}" for line in _argument(each, each.name or f"unnamed_{number}")]
    if parsed.settable:
        lines.append("constants:")
        lines += [f"  - {_constant(each)}" for each in parsed.settable]
    block = [_length(each) for each in how.block] if how and how.block else [f'"{UNKNOWN}"']
    grid = [_quoted(each) for each in how.grid] if how and how.grid else [f'"{UNKNOWN}"']
    lines += [f"block: {{shape: [{', '.join(block)}]}}", f"grid: [{', '.join(grid)}]"]
    if parsed.uses_dynamic_shared:
        shared = _quoted(how.shared) if how and how.shared else f'"{UNKNOWN}"'
        lines.append(f"shared: {shared}")
    return lines


def _argument(each: Parameter, name: str) -> list[str]:
    name = _name(name)
    if each.pointer:
        dtype = each.dtype or UNKNOWN
        head = f'{{name: {name}, dtype: {_word(dtype)}, elements: "{UNKNOWN}", '
        if not each.constant:
            return [head + "role: inout, fill: zeros}"]
        fill = "{uniform: [0, 1]}" if each.dtype is not None and is_float(each.dtype) else f'"{UNKNOWN}"'
        return [head + f"role: input, fill: {fill}}}"]
    if each.fields:
        numbers = ", ".join(f'"{field.path}": "{UNKNOWN}"' for field in each.fields)
        return [f"{{name: {name}, struct: {{{numbers}}}}}"]
    value = each.name if _is_size(each) and each.name else f'"{UNKNOWN}"'
    return [f"{{name: {name}, dtype: {_word(each.dtype or UNKNOWN)}, value: {value}}}"]


def _constant(each: Variable) -> str:
    """A variable that the host sets."""
    size = DTYPES[each.dtype].bytes if each.dtype is not None else 0
    elements = str(each.bytes // size) if size and each.bytes > 0 else f'"{UNKNOWN}"'
    fill = "fill: {uniform: [0, 1]}" if each.dtype is not None and is_float(each.dtype) else f'fill: "{UNKNOWN}"'
    role = fill if each.constant else "role: inout, fill: zeros"
    dtype = _word(each.dtype or UNKNOWN)
    return f"{{symbol: {_quoted(each.name)}, dtype: {dtype}, elements: {elements}, {role}}}"


def _is_size(each: Parameter) -> bool:
    return not each.pointer and not each.enumeration and each.dtype in _WHOLE


def _length(text: str) -> str:
    """Of a block: a number, worked out."""
    return text if text.isdigit() else f'"{UNKNOWN}"'


def _word(text: str) -> str:
    return f'"{text}"' if text == UNKNOWN else text


def _name(text: str) -> str:
    """YAML takes `on` and `no` for true and false."""
    return f'"{text}"' if text.lower() in ("on", "off", "yes", "no", "true", "false", "null") else text


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[\w.]+", text) else f'"{text}"'
