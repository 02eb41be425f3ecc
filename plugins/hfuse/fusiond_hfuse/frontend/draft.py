"""Drafts a kernel's YAML from its file: the signature and the launch, and `"?"` for the rest."""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from fusiond.model.errors import RequestError, UnknownName
from fusiond.model.inputs.documents import UNKNOWN
from fusiond.model.language.dtypes import DTYPES, is_float
from fusiond.model.nouns import NamedPtx
from fusiond.model.program import Source
from fusiond.model.ptx import parser
from fusiond.model.ptx.tree import PtxError
from fusiond.strategy import Inputs
from fusiond_hfuse.frontend import clang_tree, includes, launches, ptx_kernel, signatures, slicing, triton_draft
from fusiond_hfuse.frontend.clang_tree import Reading
from fusiond_hfuse.frontend.kernel_parser import parse_kernel
from fusiond_hfuse.frontend.launches import LaunchSite
from fusiond_hfuse.frontend.source_kernel import (
    UNREAD,
    DeviceVariable,
    KernelParameter,
    Parsed,
    StructField,
    TranslationUnit,
)
from fusiond_hfuse.frontend.triton_draft import named

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


def draft(path: str, name: str, inputs: Inputs, include: tuple[str, ...]) -> str:
    """The YAML text for a kernel of a `.cu`, `.ptx` or `.py` file. `name` is its own, with or without namespaces and
    template arguments (`maxpool<float, 5>`); empty where the file has one. `include`: folders, relative to the file,
    that headers are looked for in. RequestError for what cannot be read, or is not clear."""
    if path.endswith(".ptx"):
        return _of_ptx(path, name, inputs)
    if path.endswith(".py"):
        return triton_draft.draft(path, name, inputs)
    unit = includes.expand(inputs, path, include, yaml=path, where=path)
    code = clang_tree.blanked(unit.text.encode())
    flags = ("-std=c++20",) if _CONCEPT.search(code) else ()
    remarks = [f"Flag: {each}, for a `concept`" for each in flags]
    entry, instance = _entry(path, name, slicing.kernels(unit, (), flags), unit)
    instance = instance or launches.named(entry, code)
    way = Reading(entry=entry, name=entry.rpartition("::")[2], where=path, instance=instance or None, flags=flags)
    try:
        unit, parsed = parse_kernel(unit, way)
        if parsed.rejections and parsed.rejections[0].rule == UNREAD:
            remarks.append(f"Fused as PTX: {parsed.rejections[0].detail}")
            parsed = dataclasses.replace(parsed, rejections=())
    except RequestError as problem:
        compiled = _compiled(inputs, unit, entry, instance or entry, flags)
        if compiled is None:
            raise
        parsed = compiled
        remarks.append(f"Fused as PTX, whose kernels have no names of parameters: {problem}")
    if parsed.settable:  # once the host has set them, they are not a reason to refuse
        set_ = {f"`__{'constant' if each.constant else 'device'}__ {each.name}`" for each in parsed.settable}
        left = (each for each in parsed.rejections if not any(one in each.detail for one in set_))
        parsed = dataclasses.replace(parsed, rejections=tuple(left))
    known = KernelDraft(
        path=path, unit=unit, parsed=parsed, instance=instance, include=include, flags=flags, remarks=tuple(remarks),
        launched=tuple(launches.launches(code, way.name)),
    )  # fmt: skip
    return "\n".join([*_lines(known), ""])


_CONCEPT = re.compile(r"\bconcept\s+\w+\s*=")


def _compiled(
    inputs: Inputs, unit: TranslationUnit, entry: str, instance: str, flags: tuple[str, ...]
) -> Parsed | None:
    """What a kernel's PTX tells of its signature; None where it is not compiled."""
    overload = instance.endswith(")")
    made = inputs.compiled(Source(name="draft", text=unit.whole, entries=() if overload else (instance,), flags=flags))
    if not isinstance(made, NamedPtx):
        return None
    mangled = signatures.overload(made.text, instance) if overload else made.names[instance]
    _, parsed = ptx_kernel.read(made.text, mangled, entry, entry)
    return dataclasses.replace(parsed, entry=entry, parameters=signatures.described(mangled, parsed.parameters))


def _of_ptx(path: str, name: str, inputs: Inputs) -> str:
    text = inputs.text(path, where=path)
    try:
        kernels = tuple(parser.parse(text).entries)
        chosen = triton_draft.chosen(name, kernels, path)
        alike = [each for each in kernels if name and f" {name}(" in f" {signatures.demangled(each)}"]
        entry = chosen if chosen in kernels or len(alike) != 1 else alike[0]
        ptx, parsed = ptx_kernel.read(text, entry, entry, path)
    except PtxError as problem:
        raise RequestError(problem.reason, where=f"{path}:{problem.line}") from None
    variables = (each for each in ptx.variables if each.space in ("const", "global") and not each.initial)
    settable = tuple(
        DeviceVariable(name=each.name, bytes=each.size_bytes, dtype=None, constant=each.space == "const")
        for each in variables
        if each.elements
    )
    parsed = dataclasses.replace(parsed, parameters=signatures.described(entry, parsed.parameters), settable=settable)
    unit = TranslationUnit(text=text, files={path: text})
    function = signatures.demangled(entry)
    remark, name = f"{function}: PTX has no names of parameters", re.split(r"[<(]", function)[0].split()[-1]
    block = ptx.limits.get("reqntid", ())
    known = KernelDraft(path=path, unit=unit, parsed=parsed, remarks=(remark,), block=block, name=name)
    return "\n".join([*_lines(known), ""])


def _entry(path: str, name: str, known: frozenset[str], unit: TranslationUnit) -> tuple[str, str]:
    """The kernel that is meant, and its instance."""
    if not known and not (name and "__global__" in unit.text):
        raise RequestError("contains no kernel", where=path)
    plain = re.split(r"[<(]", name)[0]
    rest, plain = name[len(plain) :], plain.strip()
    if not plain:
        if len(known) > 1:
            raise RequestError(f"there are {len(known)} kernels in it: {', '.join(sorted(known))}; say which: "
                               f"{PurePath(path).name}:{min(known)}", where=path)  # fmt: skip
        (plain,) = known
    meant = [each for each in known if each == plain] or [each for each in known if each.endswith(f"::{plain}")]
    if len(meant) != 1:
        left_out = slicing.condition_round(unit, plain)
        if left_out is not None and not meant:
            raise RequestError(f"`{left_out[1]}` leaves out {plain}", where=unit.where(left_out[0]))
        raise UnknownName("kernel", plain, known, where=path)
    return meant[0], f"{meant[0]}{rest}" if rest else ""


# --- the text -------------------------------------------------------------------------------------------


def _comments(draft: KernelDraft) -> Iterator[str]:
    own = draft.parsed
    yield f'# Drafted by `fusiond init`. "{UNKNOWN}" stands for what the source does not say.'
    yield from (f"# {each}" for each in draft.remarks)
    yield from (f"# Not read: {each}" for each in draft.unit.unread)
    yield from (f"# Cannot be fused as it is: {each.detail}" for each in own.rejections)
    yield from (f"# Cannot be passed: {each.name}: {each.unfit}" for each in own.parameters if each.unfit)
    for site in draft.launched:
        yield f"# Launched in {PurePath(draft.unit.where(site.line)).name}: {site.text}"


def _lines(draft: KernelDraft) -> Iterator[str]:
    own, unknown = draft.parsed, f'"{UNKNOWN}"'
    yield from _comments(draft)
    yield f"kernel: {(draft.name or own.entry).rpartition('::')[2]}"
    yield f"source: {PurePath(draft.path).name}"
    yield f"entry: {_quoted(own.entry)}"
    if draft.instance:
        yield f"instance: {_quoted(draft.instance)}"
    for key, listed in (("include", draft.include), ("flags", draft.flags)):
        if listed:
            yield f"{key}: [{', '.join(map(_quoted, listed))}]"
    sizes = [f"{named(each.name)}: {unknown}" for each in own.parameters if each.name and _is_size(each)]
    if sizes:
        yield f"sizes: {{{', '.join(sizes)}}}"
    yield "arguments:" if own.parameters else "arguments: []"
    for number, parameter in enumerate(own.parameters):
        yield from _item(_argument(parameter, parameter.name or f"unnamed_{number}"))
    if own.settable:  # variables of the source that the host has to set
        yield "constants:"
    for variable in own.settable:
        yield from _item(_constant(variable))
    yield f"block: {{shape: [{', '.join(map(str, draft.block)) or unknown}]}}"  # only PTX tells any of it
    yield f"grid: [{unknown}]"
    if own.uses_dynamic_shared:
        yield f"shared: {unknown}"


def _item(lines: list[str]) -> list[str]:
    """An item of a list."""
    first, *more = lines
    return [f"  - {first}", *(f"  {line}" for line in more)]


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
        return [f"name: {name}", *_struct(each.fields)]
    value = each.name if _is_size(each) and each.name else f'"{UNKNOWN}"'
    return [f"{{name: {name}, dtype: {_word(each.dtype or UNKNOWN)}, value: {value}}}"]


def _struct(fields: tuple[StructField, ...]) -> list[str]:
    return ["  struct:", *(f'      "{field.path}": {_member(field)}' for field in fields)]


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
        return [f"symbol: {_quoted(each.name)}", *_struct(each.fields)]
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


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[\w.]+", text) else f'"{text}"'
