"""A kernel by the PTX that a library compiled for it, and its parameters by its arguments."""

import dataclasses
import functools

from fusiond.cuda.recording.arguments import NULL, Argument, Array, Unseen
from fusiond.cuda.recording.origins import Drafted, PtxOrigin, RecordedParameter
from fusiond.model.language.dtypes import DTYPES
from fusiond.model.ptx import parser, uses
from fusiond.model.ptx.tree import PtxError


def parameter(argument: Argument) -> RecordedParameter:
    """What takes such an argument. Unseen."""
    if isinstance(argument, Array) or argument == NULL:
        held = argument.dtype if argument.dtype in DTYPES else None
        return RecordedParameter(pointer=True, written=False, dtype=held)
    if argument.dtype not in DTYPES or DTYPES[argument.dtype].packed is None:
        raise Unseen(f"takes a {argument.dtype}, which a job cannot pass by itself")
    return RecordedParameter(pointer=False, written=False, dtype=argument.dtype)


def origin(text: str, entry: str, parameters: tuple[RecordedParameter, ...]) -> PtxOrigin:
    """A kernel of such parameters; what of their memory it writes, the PTX says. Unseen."""
    found = _read(text, entry, parameters)
    if isinstance(found, str):
        raise Unseen(found)
    return found


@functools.lru_cache(maxsize=256)
def _read(text: str, entry: str, parameters: tuple[RecordedParameter, ...]) -> PtxOrigin | str:
    """Why it cannot be known, is a text."""
    if text.count(".version") != 1:
        return "is linked of several modules"
    try:
        module = parser.parse(text)
        used = uses.of_memory(module, entry, [k for k, each in enumerate(parameters) if each.pointer])
    except (PtxError, KeyError) as problem:
        return f"has PTX that cannot be read: {problem}"
    if any(each.written for each in used.variables.values()):
        return "writes to a variable of its module"
    if len(used.parameters) != len(parameters):
        return f"takes {len(used.parameters)} values, and is handed {len(parameters)}"
    found = []
    for each, use in zip(parameters, used.parameters, strict=True):
        if not each.pointer and (use.read or use.written):
            return "uses a number as an address"
        found.append(dataclasses.replace(each, written=use.written))
    shared = any(each.space == "shared" and not each.size_bytes for each in module.variables)
    return PtxOrigin(text, entry, (), Drafted(entry, None, tuple(found), shared))
