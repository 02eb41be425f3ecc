"""Drafts a kernel's YAML from its file: the signature and the launch, and `"?"` for the rest."""

import dataclasses
import itertools
import re
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
    return _text(
        KernelDraft(
            path=path, unit=unit, parsed=parsed, instance=instance, include=include, flags=flags,
            remarks=tuple(remarks), launched=tuple(launches.launches(code, way.name)),
        )
    )  # fmt: skip


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
        chosen = name or (kernels[0] if len(kernels) == 1 else "")
        if not chosen:
            raise RequestError(f"there are {len(kernels)} kernels in it: {', '.join(kernels)}; say which", where=path)
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
    return _text(KernelDraft(path=path, unit=unit, parsed=parsed, remarks=(remark,), block=block, name=name))


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


def _text(draft: KernelDraft) -> str:
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


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[\w.]+", text) else f'"{text}"'
