"""A kernel's YAML from its file: the signature, the launch where the host's code has one, and `"?"` for the rest."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path, PurePath

from fusiond.errors import RequestError, UnknownName
from fusiond.inputs.documents import UNKNOWN
from fusiond.language.dtypes import DTYPES, is_float
from fusiond.strategy import Inputs
from fusiond_hfuse.frontend import includes, recheck, slicing
from fusiond_hfuse.frontend.graph import Field, Parameter, Parsed, Unit, Variable
from fusiond_hfuse.frontend.launches import Launched, launches
from fusiond_hfuse.frontend.parse import parse_kernel

_MOST_ABOVE = 5
_MOST_PARTS = 300
_PLACES = ("", "include", "includes", "inc", "common", "Common", "common/inc", "src", "utils")
_OF_LIBRARIES = re.compile(r"<(?:cu|thrust/|cub/|cuda/|nv|npp|GL/|EGL/|GLES|mpi|omp|nccl|torch/|ATen/|c10/|[a-z_]+>)")
"""Headers that are a library's, or have no ending: in no folder of a project."""
_WRITTEN = re.compile(r"<[\w\s,:*&]*>")
"""Template arguments whose text says what they are."""
_WHOLE = ("int16", "uint16", "int32", "uint32", "int64", "uint64")


def draft(path: str, name: str, inputs: Inputs, include: tuple[str, ...]) -> str:
    """The YAML text for a kernel of a `.cu` file. `name` is its own, with or without namespaces and template arguments
    (`maxpool<float, 5>`); empty where the file has one. `include`: folders, relative to the file, that headers are
    looked for in. RequestError for what cannot be read, or is not clear."""
    unit, include, found = _with_headers(inputs, path, include)
    code = recheck.blanked(unit.text.encode())
    known = slicing.kernels(unit)
    plain = name.partition("<")[0].strip()
    if plain and not any(f"::{each}".endswith(f"::{plain}") for each in known):
        left_out = slicing.condition_round(unit, plain)
        if left_out is not None:
            line, condition = left_out
            raise RequestError(
                f"{plain} stands in what `{condition}` leaves out; write a YAML whose `defines:` decide it otherwise",
                where=unit.where(line),
            )
    entry, instance = _entry(path, name, known)
    last = entry.rpartition("::")[2]
    instances = [instance]
    if not instance:
        written = (each.instance for each in launches(code, last, ()) if _WRITTEN.fullmatch(each.instance))
        instances = [*dict.fromkeys(f"{entry}{each}" for each in written), ""]
    for instance in instances:
        reading = {"instance": instance or None, "defines": (), "where": path}
        try:
            sliced, parsed = parse_kernel(unit, entry, name=last, **reading)  # type: ignore[arg-type]
            break
        except RequestError as problem:  # `k<T><<<...>>>` stands in a template of the host's
            if instance == instances[-1] or not problem.problem.startswith(f"{instance}: use of undeclared"):
                raise
    if parsed.settable:  # once the host has set them, they are no reason to refuse
        set_ = {f"`__{'constant' if each.constant else 'device'}__ {each.name}`" for each in parsed.settable}
        left = (each for each in parsed.rejections if not any(one in each.detail for one in set_))
        parsed = parsed.replaced(rejections=tuple(left))
    names = tuple(each.name for each in parsed.parameters)
    launched = list(launches(code, last, names))
    return "\n".join(_lines(path, sliced, parsed, instance, launched, include, found)) + "\n"


def _with_headers(inputs: Inputs, path: str, include: tuple[str, ...]) -> tuple[Unit, tuple[str, ...], tuple[str, ...]]:
    """A file with its headers; the folders that they were looked for in, and those of them that nobody named: headers
    of a project lie above its sources, in folders that are called as everywhere."""
    unit = includes.expand(inputs, path, include, yaml=path, where=path)
    named: list[str] = []
    looked: set[str] = set()
    while wanted := [each for each in unit.missing if each not in looked and not _OF_LIBRARIES.match(each)]:
        looked.update(wanted)
        for header in wanted:
            folder = _folder_of(inputs, path, header[1:-1])
            if folder is not None:
                named.append(f"{folder}/{header[1:-1]}")
                include = tuple(dict.fromkeys([*include, folder]))
        unit = includes.expand(inputs, path, include, yaml=path, where=path)
    return unit, include, tuple(named)


def _folder_of(inputs: Inputs, path: str, header: str) -> str | None:
    """The nearest folder above a file that holds a header, itself or in one of the usual places, or in the `include` of
    a folder in it."""
    for above in range(_MOST_ABOVE):
        for place in (*_PLACES, *_parts_of(Path(path).parent.joinpath(*[".."] * above))):
            folder = "/".join([*[".."] * above, *([place] if place else [])]) or "."
            try:
                inputs.beside(path, f"{folder}/{header}", where="")
            except RequestError:
                continue
            return folder
    return None


@functools.lru_cache(maxsize=64)
def _parts_of(folder: Path) -> tuple[str, ...]:
    """The `include` folders of a project's parts: `containers/include`."""
    try:
        names = sorted(each.name for each in itertools.islice(folder.iterdir(), _MOST_PARTS))
    except OSError:
        return ()
    return tuple(f"{each}/include" for each in names if (folder / each / "include").is_dir())


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
    path: str,
    unit: Unit,
    parsed: Parsed,
    instance: str,
    launched: list[Launched],
    include: tuple[str, ...],
    found: tuple[str, ...],
) -> list[str]:
    how = launched[0] if launched else None
    last = parsed.entry.rpartition("::")[2]
    sizes = [each.name for each in parsed.parameters if each.name and _is_size(each)]
    lines = [f'# Drafted by `fusiond init`. "{UNKNOWN}" stands for what the source does not say.']
    lines += [f"# Found: {each}" for each in found]
    lines += [f"# Not read: {each}" for each in unit.missing]
    lines += [f"# Cannot be fused as it is: {each.detail}" for each in parsed.rejections]
    unfit = ((each.name, each.unfit) for each in parsed.parameters)
    lines += [f"# Cannot be passed: {name}: {why}" for name, why in unfit if why]
    lines += [f"# Launched in {PurePath(unit.where(each.line)).name}: {each.text}" for each in launched]
    lines += [f"kernel: {last}", f"source: {PurePath(path).name}", f"entry: {_quoted(parsed.entry)}"]
    lines += [f"instance: {_quoted(instance)}"] if instance else []
    lines += [f"include: [{', '.join(map(_quoted, include))}]"] if include else []
    if sizes:
        lines.append("sizes: {" + ", ".join(f'{_name(each)}: "{UNKNOWN}"' for each in sizes) + "}")
    lines.append("arguments:" if parsed.parameters else "arguments: []")
    for number, each in enumerate(parsed.parameters):
        first, *more = _argument(each, each.name or f"unnamed_{number}")
        lines += [f"  - {first}", *(f"  {line}" for line in more)]
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
    if each.bytes and not each.fields:  # an empty struct: what it stands for is in its type
        return [f'{{name: {name}, bytes: "{"00" * each.bytes}"}}']
    if each.fields:
        if not any(field.pointer for field in each.fields):
            numbers = ", ".join(f'"{field.path}": "{UNKNOWN}"' for field in each.fields)
            return [f"{{name: {name}, struct: {{{numbers}}}}}"]
        members = [f'    "{field.path}": {_member(field)}' for field in each.fields]
        return [f"name: {name}", "  struct:", *(f"  {line}" for line in members)]
    value = each.name if _is_size(each) and each.name else f'"{UNKNOWN}"'
    return [f"{{name: {name}, dtype: {_word(each.dtype or UNKNOWN)}, value: {value}}}"]


def _member(field: Field) -> str:
    """A number in a struct, or what it points to: there is no telling whether the kernel writes to it."""
    if not field.pointer:
        return f'"{UNKNOWN}"'
    return f'{{dtype: {_word(field.pointee or UNKNOWN)}, elements: "{UNKNOWN}", role: inout, fill: zeros}}'


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
