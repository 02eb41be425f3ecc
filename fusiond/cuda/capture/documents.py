"""Captured launches as documents: a strategy's draft of a kernel with every "?" filled in from the launch.

Lengths, grids and scalars are those of one launch; where launches of several sizes show it, they are formulas of the
whole numbers that the kernel is handed. Of memory the length is known, and what it holds where it was kept (`--data`);
else it is filled with numbers that do no harm as indices.
"""

import collections
import itertools
import json
import operator
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fusiond.cuda.capture.code import KernelCode, dtype
from fusiond.cuda.capture.regions import MemoryRegion, Regions
from fusiond.cuda.capture.trace import CapturedArgument, CapturedLaunch, CapturedPlace
from fusiond.cuda.recording.group_job import drawn_fill
from fusiond.model.gpu.demangling import demangled
from fusiond.model.inputs import documents
from fusiond.model.inputs.documents import UNKNOWN
from fusiond.model.language.dtypes import DTYPES, is_float
from fusiond.model.language.narrow import numpy_dtype
from fusiond.model.ptx.tree import SIZES
from fusiond.model.ptx.uses import ParameterUse

MOST_LAUNCHES, _LOOKED_AT = 32, 10_000  #: Of different sizes, that formulas are looked for in, and of all


def plain_name(mangled: str) -> str:
    """A kernel's own name, as a file and a kernel may be called."""
    function = re.split(r"[<(]", demangled(mangled))[0].split()[-1]
    return re.sub(r"\W", "_", function.rpartition("::")[2])[:40].strip("_") or "kernel"


class Undescribed(Exception):
    """A launch that no document can be written of; the text is why, in one line."""


def representative(launches: Sequence[CapturedLaunch]) -> CapturedLaunch:
    """The launch of a kernel that a document is about: one whose memory was kept, else the first of the commonest
    shape."""
    shape = operator.attrgetter("grid", "block", "shared_bytes")
    counts = collections.Counter(map(shape, launches))
    kept = next((each for each in launches if each.data), None)
    return kept or max(launches, key=lambda each: counts[shape(each)])


def described(
    launches: Sequence[CapturedLaunch],
    regions: Regions,
    draft: str,
    code: KernelCode | None,
    folder: Path | None,
    name: str = "",
) -> str:
    """A kernel's YAML: the draft, filled in by the first of its launches. Undescribed.

    launches: the others are for formulas. folder: where files of contents are written, if at all. name: of the kernel,
    where it is not the draft's."""
    root = documents.drafted(draft, "draft")[0].plain()
    root["kernel"] = name or root["kernel"]
    comments = [each for each in draft.split("\n") if each.startswith("#")][1:]
    first, alike = launches[0], {_numbers(launches[0]): launches[0]}
    for each in launches[:_LOOKED_AT]:
        if each.block == first.block and _shape(each) == _shape(first) and len(alike) < MOST_LAUNCHES:
            alike.setdefault(_numbers(each), each)
    try:
        filled = _Filling(root, list(alike.values()), regions, code, folder).document()
    except _NoFormula:
        filled = _Filling(root, [first], regions, code, folder).document()
    return "\n".join(["# Captured: what one launch was handed.", *comments, *_lines(filled)]) + "\n"


def _numbers(launch: CapturedLaunch) -> Any:
    lengths = tuple(place.size_bytes for each in launch.arguments for _, place in each.places)
    return launch.grid, launch.shared_bytes, lengths, tuple(each.data for each in launch.arguments if not each.places)


def _shape(launch: CapturedLaunch) -> Any:
    """What launches of several sizes have in common: where there are addresses, and which lie in one allocation."""
    first: dict[int, int] = {}
    return [
        [(at, first.setdefault(place.allocation.number, len(first)), place.offset == 0) for at, place in each.places]
        for each in launch.arguments
    ]


_Addresses = list[tuple[int, int, int]]
"""Those of a launch in one region: (offset, number of the argument, where in it)."""


class _NoFormula(Exception):
    """Something is not a formula of the whole numbers that are handed over."""


class _Filling:
    """A draft that is filled in. `launches`: the one that it is about first."""

    def __init__(
        self,
        root: dict[str, Any],
        launches: Sequence[CapturedLaunch],
        regions: Regions,
        code: KernelCode | None,
        folder: Path | None,
    ) -> None:
        self._root, self._launches, self._regions, self._code, self._folder = root, launches, regions, code, folder
        self._launch = launches[0]
        self._given: list[dict[str, Any]] = root["arguments"]
        if len(self._given) != len(self._launch.arguments):
            took = f"{len(self._given)} parameters, and the launch has {len(self._launch.arguments)} arguments"
            raise Undescribed(f"{root['entry']} takes {took}")
        self._sizes = self._varying()
        self._used: set[str] = set()
        self._wholes: dict[MemoryRegion, _Addresses] = {}
        for number, argument in enumerate(self._launch.arguments):
            for at, place in argument.places:
                self._wholes.setdefault(regions.of(place), []).append((place.offset, number, at))
        wholes = self._wholes.items()
        lengths = [(each.high - min(whole)[0]) // DTYPES[self._kind(whole)].bytes for each, whole in wholes]
        self._least = max(min(lengths, default=1), 1)

    def document(self) -> dict[str, Any]:
        arguments = [{"name": said["name"], **self._argument(number, said)} for number, said in enumerate(self._given)]
        found = {key: value for key, value in self._root.items() if key not in ("sizes", "arguments", "constants")}
        if "constants" in self._root:
            found["constants"] = [self._variable(each) for each in self._root["constants"]]
        found["block"] = {"shape": _trimmed(list(self._launch.block))}
        lengths = zip(*(each.grid for each in self._launches), strict=True)
        found["grid"] = _trimmed([self._formula(each) for each in lengths])
        if self._launch.shared_bytes or "shared" in self._root:
            found["shared"] = self._formula([each.shared_bytes for each in self._launches])
        for said in arguments:
            if said["name"] in self._used:
                said["value"] = said["name"]
        sizes = {name: values[0] for name, values in self._sizes.items() if name in self._used}
        first: dict[str, Any] = {key: found.pop(key) for key in ("kernel", "source", "entry")}
        return {**first, **({"sizes": sizes} if sizes else {}), "arguments": arguments, **found}

    # --- arguments ---

    def _argument(self, number: int, said: Mapping[str, Any]) -> dict[str, Any]:
        argument = self._launch.arguments[number]
        if "bytes" in said or "struct" in said:
            return self._struct(number, argument)
        if argument.place is not None:
            return self._pointed(number, 0, argument.place)
        if "elements" in said:
            use = self._use(number)
            if any(argument.data) and (use.read or use.written):
                raise Undescribed(f"argument {number} points to memory that the capture has not seen")
            return {"dtype": "uint64", "value": 0}
        return self._scalar(argument, said["dtype"])

    def _use(self, number: int) -> ParameterUse:
        return self._code.uses.parameters[number] if self._code is not None else ParameterUse(True, True)

    def _scalar(self, argument: CapturedArgument, kind: str) -> dict[str, Any]:
        size = len(argument.data)
        if kind == UNKNOWN or DTYPES[kind].bytes != size or DTYPES[kind].packed is None:
            kind = f"uint{8 * size}"
        if kind not in DTYPES:
            return {"bytes": argument.data.hex()}
        (value,) = struct.unpack(f"<{DTYPES[kind].packed}", argument.data)
        if not abs(value) < 2**63:
            return {"bytes": argument.data.hex()}
        return {"dtype": kind, "value": value if isinstance(value, float) else int(value)}

    def _struct(self, number: int, argument: CapturedArgument) -> dict[str, Any]:
        data = bytearray(argument.data)
        held = {}
        for at, place in argument.places:
            data[at : at + 8] = bytes(8)
            held[str(at)] = self._pointed(number, at, place)
        return {"bytes": data.hex(), **({"struct": held} if held else {})}

    def _pointed(self, number: int, at: int, place: CapturedPlace) -> dict[str, Any]:
        """A buffer from the lowest address that the launch has in a region to the region's end; the other addresses lie
        in that buffer."""
        whole = self._wholes[self._regions.of(place)]
        _, first, first_at = min(whole)
        places = [(self._place(each, first, first_at), self._place(each, number, at)) for each in self._launches]
        if (number, at) != (first, first_at):
            said = self._given[first]
            name = said["name"] if "bytes" not in said and "struct" not in said else f"{said['name']}.{first_at}"
            offsets = [other.offset - low.offset for low, other in places]
            return {"part_of": name, **({"offset": self._formula(offsets)} if any(offsets) else {})}
        kind = self._kind(whole)
        ends = [self._regions.of(low).high - low.offset for low, _ in places]
        elements = [max(-(-each // DTYPES[kind].bytes), 1) for each in ends]
        role = "inout" if any(self._use(each).written for _, each, _ in whole) else "input"
        fill = self._fill(place, kind, elements[0])
        return {"dtype": kind, "elements": self._formula(elements), "role": role, "fill": fill}

    def _kind(self, whole: _Addresses) -> str:
        """What a buffer's elements are, so that each address in it is one's."""
        low, number, _ = min(whole)
        said = self._given[number].get("dtype", UNKNOWN)
        kind = dtype(self._use(number)) if said == UNKNOWN else str(said)
        while any((offset - low) % DTYPES[kind].bytes for offset, _, _ in whole):
            kind = f"uint{4 * DTYPES[kind].bytes}"
        return kind

    @staticmethod
    def _place(launch: CapturedLaunch, number: int, at: int) -> CapturedPlace:
        return next(place for offset, place in launch.arguments[number].places if offset == at)

    def _fill(self, place: CapturedPlace, kind: str, elements: int) -> Any:
        for kept, path in self._launch.data:
            if kept.allocation == place.allocation and kept.offset <= place.offset and path.is_file():
                return self._file(path, place.offset - kept.offset, kind, elements) or drawn_fill(kind, self._least)
        return drawn_fill(kind, self._least)

    def _file(self, path: Path, offset: int, kind: str, elements: int) -> dict[str, str] | None:
        if self._folder is None:
            return None
        held = path.read_bytes()[offset : offset + elements * DTYPES[kind].bytes]
        if len(held) < elements * DTYPES[kind].bytes:
            return None
        name = f"{path.name}-{offset}-{kind}.npy"
        np.save(self._folder / name, np.frombuffer(held, numpy_dtype(kind)))
        return {"file": name}

    def _variable(self, said: dict[str, Any]) -> dict[str, Any]:
        """A variable of the module's: how long it is the PTX says, and what the host has put there, the data."""
        if self._code is None or "struct" in said:
            return said
        names = {demangled(each): each for each in self._code.uses.variables}
        name = names.get(said["symbol"], said["symbol"])
        declared = next((each for each in self._code.module.variables if each.name == name), None)
        if declared is None:
            return said
        use = self._code.uses.variables[name]
        kind = dtype(use) if said["dtype"] == UNKNOWN else said["dtype"]
        size = SIZES[declared.type] * (declared.elements or 1)
        kind = "uint8" if size % DTYPES[kind].bytes else kind
        elements = size // DTYPES[kind].bytes
        fill: Any = drawn_fill(kind, self._least)
        for place, path in self._launch.data:
            if place.allocation.name == name and place.offset == 0:
                fill = self._file(path, 0, kind, elements) or fill
        role = {"role": "inout"} if use.written else {}
        return {"symbol": said["symbol"], "dtype": kind, "elements": elements, **role, "fill": fill}

    # --- formulas ---

    def _varying(self) -> dict[str, list[int]]:
        """The whole numbers that differ between the launches, by the names of the parameters."""
        found = {}
        for number, said in enumerate(self._given):
            if "value" not in said or said["dtype"] == UNKNOWN or is_float(said["dtype"]):
                continue
            values = [int.from_bytes(each.arguments[number].data, "little", signed=True) for each in self._launches]
            if min(values) >= 1 and len(set(values)) > 1:
                found[said["name"]] = values
        return found

    def _formula(self, numbers: Sequence[int]) -> int | str:
        """Of the sizes, what came to these numbers in all launches. _NoFormula."""
        if len(set(numbers)) == 1:
            return numbers[0]
        products = list(self._sizes.items())
        for one, other in itertools.combinations_with_replacement(self._sizes, 2):
            both = zip(self._sizes[one], self._sizes[other], strict=True)
            products.append((f"{one} * {other}", [a * b for a, b in both]))
        for text, values in products:
            found = self._in_terms_of(text, values, numbers)
            if found:
                self._used.update(re.findall(r"[A-Za-z_]\w*", text))
                return found
        raise _NoFormula

    def _in_terms_of(self, text: str, values: Sequence[int], numbers: Sequence[int]) -> str:
        pairs = list(zip(values, numbers, strict=True))
        factor, rest = divmod(numbers[0], values[0])
        if factor and not rest and all(number == factor * value for value, number in pairs):
            return text if factor == 1 else f"{factor} * {text}"
        x, y, z = self._launch.block
        steps = {"block.x": x, "block.y": y, "block.z": z, "block.x * block.y": x * y}
        for step, length in (*steps.items(), *((str(2**k), 2**k) for k in range(1, 13))):
            if length > 1 and all(number == -(-value // length) for value, number in pairs):
                return f"ceil_div({text}, {step})"
        offset = numbers[0] - values[0]
        if len(set(values)) > 2 and all(number == value + offset for value, number in pairs):
            return f"{text} + {offset}" if offset > 0 else f"{text} - {-offset}"
        return ""


def _trimmed(lengths: list[Any]) -> list[Any]:
    """Without lengths of 1 at the end."""
    while len(lengths) > 1 and lengths[-1] == 1:
        lengths = lengths[:-1]
    return lengths


# --- as text --------------------------------------------------------------------------------------------


def _lines(document: Mapping[str, Any]) -> Iterable[str]:
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"{key}:"
            yield from (f"  - {flow(each)}" for each in value)
        else:
            yield f"{key}: {flow(value)}"


def flow(value: Any) -> str:
    """A value in YAML's flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(key)}: {flow(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str):
        plain = re.fullmatch(r"(\./)?[A-Za-z_][\w./-]*", value)
        return value if plain and value.lower() not in _WORDS else json.dumps(value)
    return json.dumps(value)


_WORDS = ("on", "off", "yes", "no", "true", "false", "null")


def job(strategy: str, kernels: Sequence[str], remarks: Sequence[str]) -> str:
    """A job file of kernels' files beside it."""
    key = "pair" if len(kernels) == 2 else "kernels"
    lines = [*(f"# {each}" for each in remarks), f"strategy: {strategy}", f"{key}: {flow([f'./{k}' for k in kernels])}"]
    return "\n".join([*lines, "accept_constant: true", ""])  # a kernel may write zeros for what it is tried with
