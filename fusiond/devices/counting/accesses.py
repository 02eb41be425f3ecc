"""Loads, stores and atomic operations, and conversions of addresses between spaces."""

from collections.abc import Sequence

from fusiond.devices.counting import transfers
from fusiond.devices.counting.layout import REGISTER_BYTES
from fusiond.devices.counting.rows import SPACES, CodeRows, unknown
from fusiond.model.ptx.flat import PtxInstruction
from fusiond.model.ptx.operands import Operand, PtxName, PtxNumber, PtxVector
from fusiond.model.ptx.tree import SIZES

_CHANGES = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


def load(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    _access(rows, at, words, at.operands[1], at.operands[0])


def store(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    _access(rows, at, words, at.operands[0], at.operands[1])
    if "async" in words:
        size = SIZES[words[-1]] * len(rows.items(at.operands[1]))
        transfers.arrived(rows, at, at.operands[2], size)


def _access(rows: CodeRows, at: PtxInstruction, words: Sequence[str], where: Operand, data: Operand) -> None:
    type_, store = words[-1], at.opcode.startswith("st")
    if type_ not in SIZES:
        raise unknown(at)
    items, fields = rows.items(data), rows.where(at, where, words)
    if type_ == "b128":
        places = [place for each in items for place in halves(rows, at, each)]
        wide, type_ = True, "b64"
    else:
        wide = SIZES[type_] == 8 or any(isinstance(each, PtxName) and rows.places.size(each) == 8 for each in items)
        if store:
            places = [rows.value(each, "b64" if wide else type_, at) for each in items]
        else:
            places = [rows.result(each, 8 if wide else 4, at) for each in items]
    fields["flags"] |= type_.startswith("s") | 2 * wide
    fields |= {"bytes": SIZES[type_], "elements": len(places)}
    rows.emit(at, "st" if store else "ld", vector=places, **fields)


def atomic(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    base = at.opcode.partition(".")[0]
    operation = next((each for each in words if each in _CHANGES), "")
    type_ = next((each for each in reversed(words) if each in SIZES), words[-1])
    if type_ not in SIZES or type_ == "b128":
        raise unknown(at)
    fields = rows.where(at, at.operands[1 if base == "atom" else 0], words)
    given = at.operands[2 if base == "atom" else 1 :]
    given = given[: 2 if operation == "cas" else 1]  # a policy, or an mbarrier, may stand behind
    target = at.operands[0] if base == "atom" else PtxName("_")
    noftz = ".noftz" if "noftz" in words else ""
    several = given[0].items if isinstance(given[0], PtxVector) else None
    for k, each in enumerate(several or (None,)):  # of a vector, its elements one after the other
        one = target.items[k] if isinstance(target, PtxVector) else target
        values = [rows.value(value, type_, at) for value in (given if each is None else (each,))]
        here = {**fields, "immediate": fields["immediate"] + k * SIZES[type_]}
        here |= dict(zip("bc", values, strict=False)) | {"bytes": SIZES[type_], "elements": 1}
        rows.emit(at, f"atom.{operation}{noftz}.{type_}", d=rows.result(one, SIZES[type_], at), **here)
    if "async" in words:
        transfers.arrived(rows, at, at.operands[-1], SIZES[type_] * len(several or (None,)))


def halves(rows: CodeRows, at: PtxInstruction, operand: Operand) -> list[int]:
    """The two places of 128 bits."""
    if isinstance(operand, PtxVector):
        return [rows.value(each, "b64", at) for each in operand.items]
    if isinstance(operand, PtxNumber):
        return [rows.places.constant(operand.bits, True), rows.places.constant(0, True)]
    place = rows.result(operand, 16, at)
    return [place, place + REGISTER_BYTES[8]]


def cvta(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    target, source = at.operands
    a, d = rows.value(source, "u64", at), rows.result(target, 8, at)
    space = next((each for each in words if each in SPACES), "")
    if space == "global":
        rows.emit(at, "mov.b64", d=d, a=a)
    else:
        rows.emit(at, f"cvta.{'to.' if 'to' in words else ''}{space}", d=d, a=a)
