"""The data in a module's inputs while it is measured: as the job says, or as the module's use of them suggests.

Floats are uniform in -1 .. 1. Whole numbers that index something (a gather, a scatter, a dynamic-slice) stay inside
it, those that are compared with an iota inside that; others are 0 .. 9. Stand-ins for what a foreign instruction would
give are filled like inputs, with what is known of it: random bits are any bits, a sorted iota holds numbers of the
iota, a status that is compared with 0 says that all went well. A fill is part of the workload's key.
"""

import math

from fusiond.model.inputs import values
from fusiond.model.inputs.documents import Node
from fusiond.model.program import Fill
from fusiond_stitching.frontend.graph import DTYPES, HloInstruction, HloModule, behind

MOST = 9
_PASSED = frozenset({"reshape", "broadcast", "transpose", "slice", "copy", "convert", "concatenate", "clamp", "select",
                     "add", "maximum", "minimum", "reverse"})  # fmt: skip
_BITWISE = frozenset({"shift-left", "shift-right-logical", "shift-right-arithmetic", "and", "or", "xor"})
_DEEP = 12  #: How many instructions an index is followed through


def default(module: HloModule, name: str) -> Fill:
    """The fill of a parameter or of a foreign result that the job says nothing about."""
    instruction = module[name]
    kind = DTYPES[instruction.dtype]
    if kind == "bool":
        return Fill(kind="integers", low=0, high=1)
    if "float" in kind:
        return _drawn(module, instruction) or Fill(kind="uniform", low=-1.0, high=1.0)
    limit = _limit(module, name, _DEEP)
    if limit is not None:
        return Fill(kind="integers", low=0, high=max(0, limit))
    if instruction.opcode == "custom-call" and _is_status(module, name):
        return Fill(kind="zeros")
    drawn = _drawn(module, instruction)
    if drawn is not None and drawn.kind == "uniform" and drawn.low < drawn.high:
        return Fill(kind="integers", low=int(drawn.low), high=int(drawn.high) - 1)
    if name in module.foreign and (instruction.opcode.startswith("rng") or _is_bits(module, name, _DEEP)):
        bits = int(instruction.dtype[1:])
        signed = instruction.dtype.startswith("s")
        # Fills hold their bounds as floats: of 64 bits, those that a float holds exactly.
        most = 2 ** min(bits - signed, 53) - 1
        return Fill(kind="integers", low=-most if signed else 0, high=most)
    if instruction.opcode == "sort":
        within = _iota_size(module, instruction.operands[instruction.attributes["result"]], _DEEP)
        return Fill(kind="integers", low=0, high=MOST if within is None else max(0, within))
    return Fill(kind="integers", low=0, high=MOST)


def _drawn(module: HloModule, instruction: HloInstruction) -> Fill | None:
    """The fill that says what an `rng` does, when its two parameters are constants; None for everything else."""
    distribution = instruction.attributes.get("distribution")
    if distribution not in ("uniform", "normal") or len(instruction.operands) != 2:
        return None
    numbers = []
    for operand in instruction.operands:
        source = module.base(operand)
        source = module[source.operands[0]] if source.opcode == "copy" else source
        if source.opcode != "constant" or source.elements != 1 or source.name in module.foreign:
            return None
        numbers.append(float(source.attributes["values"][0]))
    low, high = numbers
    if not (math.isfinite(low) and math.isfinite(high)) or (high < low if distribution == "uniform" else high < 0):
        return None
    return Fill(kind=distribution, low=low, high=high)


def _is_status(module: HloModule, name: str) -> bool:
    """Whoever reads it compares it with 0, as jax does with what LAPACK says: anything else means NaN everywhere."""
    users = [module[each] for each in module.users[name]]
    while users and all(each.opcode in ("reshape", "broadcast") for each in users):
        users = [module[each] for user in users for each in module.users[user.name]]
    return bool(users) and all(
        each.opcode == "compare" and any(_is_zero(module, operand) for operand in each.operands) for each in users
    )


def _is_zero(module: HloModule, name: str) -> bool:
    source = behind(module, name, "reshape", "broadcast")
    return source.opcode == "constant" and set(source.attributes.get("values", ())) == {0}


def _is_bits(module: HloModule, name: str, depth: int) -> bool:
    """Somebody takes it apart bit by bit."""
    for user in module.users[name] if depth else ():
        reader = module[user]
        if reader.opcode in _BITWISE or (reader.opcode in _PASSED and _is_bits(module, user, depth - 1)):
            return True
    return False


def _limit(module: HloModule, name: str, depth: int) -> int | None:
    """The largest index that everybody who reads it as one allows; None when nobody does."""
    limits: list[int | None] = []
    for user in module.users[name] if depth else ():
        reader = module[user]
        limits += [_as_index(module, reader, place) for place, each in enumerate(reader.operands) if each == name]
        if reader.opcode in _PASSED and user not in module.foreign:
            limits.append(_limit(module, user, depth - 1))
        if reader.opcode == "compare":
            other = next((each for each in reader.operands if each != name), name)
            limits.append(_iota_size(module, other, depth))
    return min((each for each in limits if each is not None), default=None)


def _as_index(module: HloModule, reader: HloInstruction, place: int) -> int | None:
    if not reader.operands or reader.name in module.foreign:
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


def _iota_size(module: HloModule, name: str, depth: int) -> int | None:
    instruction = module[name]
    if name in module.foreign:
        return None
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


def read(module: HloModule, node: Node | None, file: values.FindFile) -> dict[str, Fill]:
    """Buffer -> fill for all parameters and stand-ins; `node` is the job's `inputs`, `file` finds an .npy file (path,
    content key). RequestError for a name or a fill that does not fit."""
    given = (*module.parameters, *module.stand_ins)
    found = {module.buffer_of(name): default(module, name) for name in given}
    if node is None:
        return found
    by_buffer = {module.buffer_of(name): module[name] for name in given}
    for name, each in node.mapping(known=tuple(found)).items():
        found[name] = values.fill(each, DTYPES[by_buffer[name].dtype], file)
    return found
