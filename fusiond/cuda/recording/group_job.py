"""A group of launches as a job for hfuse: its files, and the parameters of each kernel.

The kernels' sources and YAML files are written beside each other in the build cache's folder, under names that their
content gives: nobody else's launch of the same shapes asks anything else. What a kernel's parameters are, the draft
of the strategy says (`fusiond init`), for which the source is parsed in another process.
"""

import functools
import hashlib
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fusiond.build import cache
from fusiond.cuda.recording.arguments import NULL, SCRATCH, Argument, Array
from fusiond.cuda.recording.launches import RecordedLaunch
from fusiond.cuda.recording.origins import Drafted, Origin, PtxOrigin, RecordedParameter
from fusiond.model.inputs import documents
from fusiond.model.language.dtypes import DTYPES, is_float
from fusiond.model.nouns import Job

MOST_KERNELS = 26


class Unaskable(Exception):
    """These launches cannot be asked for; the text is why, in one line."""


@dataclass(frozen=True, slots=True)
class KernelsQuestion:
    """The question (`fusiond.service.frameworks.region_answers.Askable`)."""

    name: str
    device: str | None
    names: tuple[str, ...]  #: Of the kernels' YAML files, in the order of the launches
    search: Mapping[str, Any] | None = field(default=None, compare=False)
    """How the daemon searches; no part of what is asked."""

    @property
    def digest(self) -> str:
        return file_digest(self.device, *sorted(self.names))

    @property
    def loops(self) -> bool:
        return False  # a loop of a kernel's is in the kernel

    @property
    def workload(self) -> str:
        return ",".join(sorted(self.names))

    @property
    def path(self) -> str:
        return str(folder() / f"{self.digest}.yaml")

    def letter(self, number: int) -> str:
        """What the answer calls a launch: letters go by the names of the kernels."""
        order = sorted(range(len(self.names)), key=lambda each: (self.names[each], each))
        return "abcdefghijklmnopqrstuvwxyz"[order.index(number)]

    def job(self, search: Mapping[str, Any] | None = None) -> str:
        """The text of a job file."""
        files = [f"./{each}.yaml" for each in self.names]
        key = "pair" if len(files) == 2 else "kernels"
        lines = ["strategy: hfuse", f"{key}: {json.dumps(files)}"]
        lines += [f"device: {json.dumps(self.device)}"] if self.device else []
        lines += ["accept_constant: true"]  # a kernel may write zeros for what it is tried with
        search = search or self.search
        lines += [f"search: {json.dumps(dict(search))}"] if search else []
        return "\n".join([*lines, ""])


def folder() -> Path:
    """Where questions' files lie."""
    return cache.default_folder() / "questions"


def asked(
    launches: Sequence[RecordedLaunch],
    values: Sequence[Sequence[Any]],
    device: str | None,
    search: Mapping[str, Any] | None = None,
) -> KernelsQuestion:
    """The question, its files written. `values`: for each argument the number that is asked for, None of others.

    Unaskable, with the launch and the argument."""
    if len(launches) > MOST_KERNELS:
        raise Unaskable(f"there are {len(launches)} launches; at most {MOST_KERNELS} are fused")
    names = []
    for launch, numbers in zip(launches, values, strict=True):
        document = described(launch, numbers)
        name = f"{launch.origin.plain[:40]}_{file_digest(json.dumps(document))}"
        written(document, name, name)
        names.append(name)
    return KernelsQuestion(" + ".join(each.origin.plain for each in launches), device, tuple(names), search)


# --- a kernel's YAML ------------------------------------------------------------------------------------


def written(document: Mapping[str, Any], name: str, file: str) -> None:
    """Write a kernel's YAML under a name; the file's says what it holds."""
    _write(folder() / f"{file}.yaml", json.dumps({"kernel": name, **document}))  # JSON is YAML


def described(launch: RecordedLaunch, numbers: Sequence[Any]) -> dict[str, Any]:
    """A kernel's YAML, its source written. Unaskable."""
    given, draft = launch.arguments, drafted(launch.origin)
    if len(given) != len(draft.parameters):
        raise Unaskable(f"{launch.origin.name} takes {len(draft.parameters)} arguments, and is handed {len(given)}")
    described = []
    pointers = zip(given, draft.parameters, strict=True)
    elements = [_elements(each, to) for each, to in pointers if to.pointer and isinstance(each, Array)]
    least = min(elements, default=1)
    for place, (argument, parameter, value) in enumerate(zip(given, draft.parameters, numbers, strict=True)):
        try:
            described.append({"name": f"p{place}", **_argument(argument, parameter, value, least)})
        except Unaskable as why:
            raise Unaskable(f"argument {place} of {launch.origin.name} {why}") from None
    found = {
        "source": _source_file(launch.origin).name,
        "entry": draft.entry,
        "instance": draft.instance,
        "include": list(launch.origin.told.include) or None,
        "flags": list(launch.origin.told.flags) or None,
        "arguments": described,
        "block": {"shape": list(launch.block)},
        "grid": [str(each) for each in launch.grid],
        "shared": str(launch.shared_bytes) if draft.shared or launch.shared_bytes else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _elements(argument: Array, parameter: RecordedParameter) -> int:
    return argument.size_bytes // DTYPES[_held(argument, parameter)].bytes


def _held(argument: Array, parameter: RecordedParameter) -> str:
    """What a buffer is made of."""
    return parameter.dtype or (argument.dtype if argument.dtype in DTYPES else "uint8")


def _argument(argument: Argument, parameter: RecordedParameter, value: Any, least: int) -> dict[str, Any]:
    if parameter.pointer:
        if argument == NULL:
            return {"dtype": "uint64", "value": "0"}
        if argument.dtype == SCRATCH:
            return {"dtype": "uint8", "elements": str(value), "role": "scratch"}
        if not isinstance(argument, Array):
            raise Unaskable("is a bare address, whose extent is unknown")
        return _buffer(argument, parameter, least)
    if isinstance(argument, Array):
        raise Unaskable("is an array where the kernel takes a value")
    if parameter.struct:
        return {"bytes": argument.data.hex()}
    assert parameter.dtype is not None  # or the draft would have been refused
    other_kind = is_float(parameter.dtype) != argument.dtype.startswith("float")
    if other_kind or len(argument.data) != DTYPES[parameter.dtype].bytes or value is None:
        raise Unaskable(f"is {argument.dtype} where the kernel takes {parameter.dtype}")
    number = as_kind(value, argument.dtype, parameter.dtype)
    # As a YAML file has it: whole numbers are expressions, a float has a point.
    return {"dtype": parameter.dtype, "value": number if isinstance(number, float) else str(int(number))}


def _buffer(argument: Array, parameter: RecordedParameter, least: int) -> dict[str, Any]:
    elements, dtype = _elements(argument, parameter), _held(argument, parameter)
    if elements < 1 or argument.size_bytes % DTYPES[dtype].bytes:
        raise Unaskable(f"has {argument.size_bytes} bytes, which are not elements of {dtype}")
    role = {"role": "inout" if parameter.written else "input", "fill": drawn_fill(dtype, least)}
    return {"dtype": dtype, "elements": str(elements), **role}


def as_kind(value: int | float, given: str, wanted: str) -> int | float:
    """A number's bytes as another type of their length has them: -1 of `int32` is 4294967295 of `uint32`."""
    if is_float(wanted) or wanted == "bool" or given == wanted:
        return value
    return np.array(value, given).view(wanted).item()  # type: ignore[no-any-return]


def drawn_fill(dtype: str, least: int) -> dict[str, list[float]]:
    """For contents that nobody knows. Whole numbers may be places in any of the kernel's arrays, so they are below the
    length of the shortest."""
    if is_float(dtype):
        return {"uniform": [0, 1]}
    most = {"bool": 1, "int8": 127, "uint8": 255, "int16": 32767, "uint16": 65535}.get(dtype, 2**31 - 1)
    return {"integers": [0, min(least - 1, most)]}


# --- files and drafts -----------------------------------------------------------------------------------


def drafted(origin: Origin) -> Drafted:
    """What the source says of a kernel; the same for every launch of it. Unaskable."""
    if isinstance(origin, PtxOrigin):
        return origin.drafted
    found = _drafted(origin)
    if isinstance(found, str):
        raise Unaskable(found)
    return found


@functools.lru_cache(maxsize=256)
def _drafted(source: Origin) -> Drafted | str:
    from fusiond.model.errors import FusiondError
    from fusiond.requests.isolation import registry
    from fusiond.requests.jobs import JobInputs

    if source.told.unknown:
        return f"{source.name} is compiled with {source.told.unknown[0]}, which a job cannot say"
    path = str(_source_file(source))
    plugins = registry.load()
    strategy = plugins.strategy("hfuse", where=source.name)
    job = Job(strategy=strategy.name, request={}, sizes={}, path=path)
    try:
        text = strategy.draft(path, source.name, JobInputs(plugins, job), source.told.include)
    except FusiondError as problem:
        return " ".join(f"{source.name}: {problem}".split())[:300]
    keys = documents.drafted(text, source.plain)[0].mapping()
    if "constants" in keys:
        said = ", ".join(each.mapping()["symbol"].text() for each in keys["constants"].sequence())
        return f"{source.name} has variables that the host sets, or that keep their value: {said}"
    try:
        parameters = tuple(_parameter(each.mapping()) for each in keys["arguments"].sequence())
    except Unaskable as why:
        return f"{source.name}: {why}"
    instance = keys["instance"].text() if "instance" in keys else None
    return Drafted(keys["entry"].text(), instance, parameters, "shared" in keys)


def _parameter(keys: Mapping[str, documents.Node]) -> RecordedParameter:
    if "struct" in keys or "bytes" in keys:
        held = keys["struct"].mapping().values() if "struct" in keys else ()
        if any(isinstance(each.value, dict) for each in held):
            raise Unaskable(f"{keys['name'].text()} is a struct with addresses in it")
        return RecordedParameter(pointer=False, written=False, dtype=None, struct=True)
    dtype = None if keys["dtype"].value == documents.UNKNOWN else keys["dtype"].text()
    if "elements" in keys:
        return RecordedParameter(pointer=True, written=keys["role"].text() != "input", dtype=dtype)
    if dtype is None or DTYPES[dtype].packed is None:
        raise Unaskable(f"{keys['name'].text()} is not a number that can be passed by itself")
    return RecordedParameter(pointer=False, written=False, dtype=dtype)


def _source_file(origin: Origin) -> Path:
    """The source with its macros before it."""
    defines = "".join(f"#define {name} {value}\n" for name, value in origin.told.defines)
    suffix = ".ptx" if isinstance(origin, PtxOrigin) else ".cu"
    path = folder() / f"{origin.plain[:40]}_{file_digest(defines, origin.text)}{suffix}"
    _write(path, f"{defines}{origin.text}")
    return path


def _write(path: Path, text: str) -> None:
    """A file whose name says what it holds."""
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def file_digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]
