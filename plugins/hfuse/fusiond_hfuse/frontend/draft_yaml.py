"""Writes the text of a drafted YAML file, with `"?"` for unknown values."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import PurePath

from fusiond.model.inputs.documents import UNKNOWN
from fusiond.model.language.dtypes import DTYPES, is_float
from fusiond_hfuse.frontend.launches import LaunchSite
from fusiond_hfuse.frontend.source_kernel import DeviceVariable, KernelParameter, Parsed, StructField, TranslationUnit

_WHOLE = ("int16", "uint16", "int32", "uint32", "int64", "uint64")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDraft:
    """What was found out about a kernel of a file."""

    path: str
    unit: TranslationUnit
    parsed: Parsed
    instance: str = ""  #: Empty where the kernel is not a template
    include: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    remarks: tuple[str, ...]  #: One line each: what was decided, and why
    block: tuple[int, ...] = ()
    name: str = ""  #: Those of a kernel of PTX: the block that it asks for, its name in C++
    launched: tuple[LaunchSite, ...] = ()  #: The launches in the file


def text(draft: KernelDraft) -> str:
    own = draft.parsed
    parts = (_comments(draft), _identity(draft), _sizes(own), _arguments(own), _constants(own), _launch(draft))
    return "\n".join(itertools.chain.from_iterable(parts)) + "\n"


def _comments(draft: KernelDraft) -> list[str]:
    unfit = ((each.name, each.unfit) for each in draft.parsed.parameters)
    return [
        f'# Drafted by `fusiond init`. "{UNKNOWN}" stands for what the source does not say.',
        *(f"# {each}" for each in draft.remarks),
        *(f"# Not read: {each}" for each in draft.unit.unread),
        *(f"# Cannot be fused as it is: {each.detail}" for each in draft.parsed.rejections),
        *(f"# Cannot be passed: {name}: {why}" for name, why in unfit if why),
        *(f"# Launched in {PurePath(draft.unit.where(each.line)).name}: {each.text}" for each in draft.launched),
    ]


def _identity(draft: KernelDraft) -> list[str]:
    """Which kernel it is, and how its source is compiled."""
    entry = draft.parsed.entry
    name = (draft.name or entry).rpartition("::")[2]
    lines = [f"kernel: {name}", f"source: {PurePath(draft.path).name}", f"entry: {_quoted(entry)}"]
    if draft.instance:
        lines.append(f"instance: {_quoted(draft.instance)}")
    if draft.include:
        lines.append(f"include: [{', '.join(map(_quoted, draft.include))}]")
    if draft.flags:
        lines.append(f"flags: [{', '.join(map(_quoted, draft.flags))}]")
    return lines


def _sizes(parsed: Parsed) -> list[str]:
    sizes = [each.name for each in parsed.parameters if each.name and _is_size(each)]
    return ["sizes: {" + ", ".join(f'{named(each)}: "{UNKNOWN}"' for each in sizes) + "}"] if sizes else []


def _arguments(parsed: Parsed) -> list[str]:
    if not parsed.parameters:
        return ["arguments: []"]
    found = (_argument(each, each.name or f"unnamed_{number}") for number, each in enumerate(parsed.parameters))
    return ["arguments:", *(line for each in found for line in _item(each))]


def _constants(parsed: Parsed) -> list[str]:
    """Variables of the source that the host has to set."""
    if not parsed.settable:
        return []
    return ["constants:", *(line for each in parsed.settable for line in _item(_constant(each)))]


def _item(lines: list[str]) -> list[str]:
    """An item of a list."""
    first, *more = lines
    return [f"  - {first}", *(f"  {line}" for line in more)]


def _launch(draft: KernelDraft) -> list[str]:
    """Block, grid and dynamic shared memory: only PTX tells any of it."""
    unknown = f'"{UNKNOWN}"'
    block = [str(each) for each in draft.block] or [unknown]
    shared = [f"shared: {unknown}"] if draft.parsed.uses_dynamic_shared else []
    return [f"block: {{shape: [{', '.join(block)}]}}", f"grid: [{unknown}]", *shared]


def _argument(each: KernelParameter, name: str) -> list[str]:
    name = named(name)
    if each.pointer:
        dtype = each.dtype or UNKNOWN
        head = f'{{name: {name}, dtype: {_word(dtype)}, elements: "{UNKNOWN}", '
        if not each.constant:
            return [head + "role: inout, fill: zeros}"]
        fill = "{uniform: [0, 1]}" if each.dtype is not None and is_float(each.dtype) else f'"{UNKNOWN}"'
        return [head + f"role: input, fill: {fill}}}"]
    if each.bytes and not each.fields and not each.record:  # an empty struct: what it stands for is in its type
        return [f'{{name: {name}, bytes: "{"00" * each.bytes}"}}']
    if each.record:
        return [f'{{name: {name}, bytes: "{UNKNOWN}"}}  # {each.bytes} bytes of {each.spelling}, in hexadecimal']
    if each.fields:
        if not any(field.pointer for field in each.fields):
            numbers = ", ".join(f'"{field.path}": "{UNKNOWN}"' for field in each.fields)
            return [f"{{name: {name}, struct: {{{numbers}}}}}"]
        members = [f'    "{field.path}": {_member(field)}' for field in each.fields]
        return [f"name: {name}", "  struct:", *(f"  {line}" for line in members)]
    value = each.name if _is_size(each) and each.name else f'"{UNKNOWN}"'
    return [f"{{name: {name}, dtype: {_word(each.dtype or UNKNOWN)}, value: {value}}}"]


def _member(field: StructField) -> str:
    """A number in a struct, or what it points to: whether the kernel writes to it cannot be told."""
    if not field.pointer:
        return f'"{UNKNOWN}"'
    return f'{{dtype: {_word(field.pointee or UNKNOWN)}, elements: "{UNKNOWN}", role: inout, fill: zeros}}'


def _constant(each: DeviceVariable) -> list[str]:
    """A variable that the host sets; of one that is a pointer what it points to."""
    if [field.path for field in each.fields] == [""]:
        return [f"{{symbol: {_quoted(each.name)}, {_member(each.fields[0])[1:]}"]
    if each.fields:
        members = [f'    "{field.path}": {_member(field)}' for field in each.fields]
        return [f"symbol: {_quoted(each.name)}", "  struct:", *(f"  {line}" for line in members)]
    size = DTYPES[each.dtype].bytes if each.dtype is not None else 0
    elements = str(each.bytes // size) if size and each.bytes > 0 else f'"{UNKNOWN}"'
    fill = "fill: {uniform: [0, 1]}" if each.dtype is not None and is_float(each.dtype) else f'fill: "{UNKNOWN}"'
    role = fill if each.constant else "role: inout, fill: zeros"
    dtype = _word(each.dtype or UNKNOWN)
    return [f"{{symbol: {_quoted(each.name)}, dtype: {dtype}, elements: {elements}, {role}}}"]


def _is_size(each: KernelParameter) -> bool:
    return not each.pointer and not each.enumeration and each.dtype in _WHOLE


def _word(text: str) -> str:
    return f'"{text}"' if text == UNKNOWN else text


def named(text: str) -> str:
    """YAML takes `on` and `no` for true and false."""
    return f'"{text}"' if text.lower() in ("on", "off", "yes", "no", "true", "false", "null") else text


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[\w.]+", text) else f'"{text}"'
