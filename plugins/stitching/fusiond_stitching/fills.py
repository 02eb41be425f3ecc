"""What a module's inputs hold while it is measured: as the job says, else by what the module does with them.

Floats are uniform in -1 .. 1. Whole numbers that index something (a gather, a scatter, a dynamic-slice) stay inside
it, those that are compared with an iota inside that; others are 0 .. 9. A fill is part of the workload's key.
"""

from __future__ import annotations

from collections.abc import Callable

from fusiond.documents import Node
from fusiond.program import Fill
from fusiond_stitching.graph import DTYPES, Instruction, Module

MOST = 9
_KINDS = ("zeros", "constant", "uniform", "normal", "integers", "iota")
_PASSED = frozenset({"reshape", "broadcast", "transpose", "slice", "copy", "convert", "concatenate", "clamp", "select",
                     "add", "maximum", "minimum", "reverse"})  # fmt: skip
_DEEP = 12
"""How many instructions an index is followed through."""


def default(module: Module, name: str) -> Fill:
    """The fill of a parameter that the job says nothing about."""
    instruction = module[name]
    kind = DTYPES[instruction.dtype]
    if "float" in kind:
        return Fill(kind="uniform", low=-1.0, high=1.0)
    if kind == "bool":
        return Fill(kind="integers", low=0, high=1)
    limit = _limit(module, name, _DEEP)
    return Fill(kind="integers", low=0, high=max(0, limit) if limit is not None else MOST)


def _limit(module: Module, name: str, depth: int) -> int | None:
    """The largest index that everybody who reads it as one allows; None when nobody does."""
    found: int | None = None
    if depth == 0:
        return None
    for user in module.users[name]:
        reader = module[user]
        limits = [_as_index(module, reader, place) for place, each in enumerate(reader.operands) if each == name]
        if reader.opcode in _PASSED:
            limits.append(_limit(module, user, depth - 1))
        if reader.opcode == "compare":
            other = next((each for each in reader.operands if each != name), name)
            limits.append(_iota_size(module, other, depth))
        for limit in limits:
            if limit is not None:
                found = limit if found is None else min(found, limit)
    return found


def _as_index(module: Module, reader: Instruction, place: int) -> int | None:
    if not reader.operands:
        return None
    attributes = reader.attributes
    dims = module[reader.operands[0]].dims
    found: int | None = None
    if reader.opcode == "gather" and place == 1:
        sizes = attributes["slice_sizes"]
        found = min((dims[at] - sizes[at] for at in attributes["start_index_map"]), default=None)
    if reader.opcode == "scatter" and place == 1:
        found = min((dims[at] - 1 for at in attributes["scatter_dims_to_operand_dims"]), default=None)
    if reader.opcode == "dynamic-slice" and place >= 1:
        found = dims[place - 1] - attributes["sizes"][place - 1]
    if reader.opcode == "dynamic-update-slice" and place >= 2:
        found = dims[place - 2] - module[reader.operands[1]].dims[place - 2]
    return found


def _iota_size(module: Module, name: str, depth: int) -> int | None:
    instruction = module[name]
    if instruction.opcode == "iota":
        size: int = instruction.dims[instruction.attributes["dimension"]]
        return size - 1
    if instruction.opcode in _PASSED and depth:
        return _iota_size(module, instruction.operands[0], depth - 1)
    return None


def said(fill: Fill) -> str | dict[str, object]:
    """A fill as a job says it: what `read` reads."""
    if fill.kind in ("zeros", "iota"):
        return fill.kind
    if fill.kind == "file":
        return {"file": fill.file}
    return {fill.kind: fill.low if fill.kind == "constant" else [fill.low, fill.high]}


def read(module: Module, node: Node | None, file: Callable[[Node], tuple[str, str]]) -> dict[str, Fill]:
    """Buffer -> fill for all parameters; `node` is the job's `inputs`, `file` finds an .npy file (path, content key).
    RequestError for a name or a fill that does not fit."""
    found = {module.buffer_of(name): default(module, name) for name in module.parameters}
    if node is None:
        return found
    by_buffer = {module.buffer_of(name): module[name] for name in module.parameters}
    for name, each in node.mapping(known=tuple(found)).items():
        found[name] = _fill(each, by_buffer[name], file)
    return found


def _fill(node: Node, parameter: Instruction, file: Callable[[Node], tuple[str, str]]) -> Fill:
    if isinstance(node.value, str):
        return Fill(kind=node.choice("zeros", "iota"))
    keys = node.mapping(known=(*_KINDS, "file"))
    if len(keys) != 1:
        raise node.fail("holds one way to fill, such as {uniform: [0, 1]}")
    ((kind, value),) = keys.items()
    if kind == "file":
        path, digest = file(value)
        return Fill(kind="file", file=path, digest=digest)
    if kind in ("zeros", "iota"):
        return Fill(kind=kind)
    if kind == "constant":
        return Fill(kind="constant", low=value.number())
    pair = value.sequence()
    if len(pair) != 2:
        raise value.fail("two numbers are wanted, such as [0, 1]")
    dtype = DTYPES[parameter.dtype]
    if kind == "integers":
        return Fill(kind=kind, low=pair[0].integer(), high=pair[1].integer(least=pair[0].integer()))
    if "float" not in dtype:
        raise value.fail(f"{kind} fills floats; for {dtype} there is integers: [low, high]")
    low = pair[0].number()
    return Fill(kind=kind, low=low, high=pair[1].number(least=low if kind == "uniform" else 0.0))
