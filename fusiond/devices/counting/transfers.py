"""Asynchronous copies and their barriers: `cp.async`, `mbarrier`, `cp.async.bulk`, tensor maps. runtime/transfers.cpp
executes them, each copy at once."""

from collections.abc import Sequence
from typing import Any

from fusiond.devices.counting.rows import NOTHING, SPACES, CodeRows, unknown
from fusiond.devices.counting.tensor_map import FIELDS
from fusiond.model.ptx.flat import PtxInstruction
from fusiond.model.ptx.operands import Negated, Operand, PtxAddress, PtxName, PtxNumber, PtxTensorAddress

_REDUCTIONS = ("", "add", "min", "max", "inc", "dec", "and", "or", "xor")
_KINDS = {
    "u32": (0, 4), "b32": (0, 4), "u64": (0, 8), "b64": (0, 8), "s32": (1, 4), "s64": (1, 8),
    "f32": (2, 4), "f64": (2, 8),
}  # fmt: skip


def copy(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    """All that begins with `cp`."""
    spaces = [each.partition("::")[0] for each in words if each.partition("::")[0] in SPACES]
    if "bulk" in words:
        _bulk(rows, at, words, spaces)
    elif "mbarrier" in words:  # an arrival when the copies so far are done; without .noinc one more is waited for
        count = rows.places.constant(1 if "noinc" in words else 0)
        fields = {**rows.where(at, at.operands[0], words), "elements": 0, "b": count, "c": rows.places.constant(0)}
        rows.emit(at, "mbarrier.arrive", d=rows.places.temporary(8), **fields)
    elif words[0] == "async" and words[1] in ("ca", "cg"):
        _small(rows, at, spaces)
    elif words[0] == "async" and words[1] in ("commit_group", "wait_group", "wait_all"):
        rows.emit(at, "nop")
    else:
        raise unknown(at)


def _small(rows: CodeRows, at: PtxInstruction, spaces: Sequence[str]) -> None:
    to, source, size, *more = at.operands
    fields = _ends(rows, at, to, source, spaces)
    fields |= {"c": NOTHING, "e": NOTHING}
    for each in more:  # a policy has 64 bits
        name = each.name if isinstance(each, Negated) else each
        bytes_ = rows.places.size(name) if isinstance(name, PtxName) else 4
        if bytes_ == 0:
            fields["e"] = rows.value(each, "pred", at)
        elif bytes_ == 4:
            fields["c"] = rows.value(each, "u32", at)
    if not isinstance(size, PtxNumber) or size.bits not in (4, 8, 16):
        raise unknown(at)
    rows.emit(at, "cp.async", **(fields | {"bytes": size.bits}))


def _ends(rows: CodeRows, at: PtxInstruction, to: Operand, source: Operand, spaces: Sequence[str]) -> dict[str, Any]:
    """The fields of a copy's two addresses."""
    a, to_offset, to_wide = rows.pointer(at, to)
    b, offset, wide = rows.pointer(at, source)
    return {
        "a": a, "b": b, "immediate": to_offset, "flags": 4 * to_wide | 8 * wide, "space": SPACES[spaces[0]],
        "vector": [offset, *[0] * 7],
    }  # fmt: skip


def _bulk(rows: CodeRows, at: PtxInstruction, words: Sequence[str], spaces: Sequence[str]) -> None:
    if "commit_group" in words or "wait_group" in words or "prefetch" in words:
        rows.emit(at, "nop")
        return
    if "tensor" in words:
        _tensor(rows, at, words)
        return
    to, source, size, *more = at.operands
    fields = _ends(rows, at, to, source, spaces)
    fields |= {"bytes": SPACES[spaces[1]], "c": rows.value(size, "u32", at), "e": NOTHING}
    fields["vector"][6] = _blocks(rows, at, words)
    if "reduce" in words:
        kind = _KINDS.get(words[-1])
        if kind is None:
            raise unknown(at)
        fields["vector"][2:5] = [_reduction(at, words), *kind]
    if any(word.startswith("mbarrier::") for word in words):
        _waiting(rows, at, more[0], fields)
    rows.emit(at, "cp.async.bulk", **fields)


def _blocks(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> int:
    """The mask of the blocks of the cluster that a copy goes to: behind the mbarrier, before a policy."""
    if "multicast::cluster" not in words:
        return NOTHING
    return rows.value(at.operands[-2 if "L2::cache_hint" in words else -1], "u16", at)


def _reduction(at: PtxInstruction, words: Sequence[str]) -> int:
    found = [each for each in words if each in _REDUCTIONS]
    if "reduce" in words and not found:
        raise unknown(at)
    return _REDUCTIONS.index(found[0]) if found else 0


def _waiting(rows: CodeRows, at: PtxInstruction, mbarrier: Operand, fields: dict[str, Any]) -> None:
    """The mbarrier that a copy's bytes are taken from."""
    e, offset, wide = rows.pointer(at, mbarrier)
    fields["e"], fields["vector"][1] = e, offset
    fields["flags"] |= 16 * wide


def _tensor(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    """Of tiles; `im2col` and gathers are not known here."""
    if any(word.startswith(("im2col", "tile::")) for word in words):
        raise unknown(at)
    store = not isinstance(at.operands[1], PtxTensorAddress)
    tensor, inside = (at.operands[0], at.operands[1]) if store else (at.operands[1], at.operands[0])
    if not isinstance(tensor, PtxTensorAddress):
        raise unknown(at)
    a, offset, wide = rows.pointer(at, inside)
    b, map_offset, map_wide = rows.pointer(at, PtxAddress(tensor.base, tensor.base.offset))
    where = [rows.value(each, "b32", at) for each in tensor.coordinates.items]
    vector = [map_offset, 0, *(where + [0] * 5)[:5], store | _reduction(at, words) << 8]
    fields: dict[str, Any] = {
        "a": a, "immediate": offset, "b": b, "flags": 4 * wide | 8 * map_wide, "space": SPACES["shared"],
        "elements": len(where), "vector": vector, "c": _blocks(rows, at, words), "e": NOTHING,
    }  # fmt: skip
    if not store:
        _waiting(rows, at, at.operands[2], fields)
    rows.emit(at, "cp.async.bulk.tensor", **fields)


def tensormap(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    """`tensormap.replace.tile.FIELD [map], (ordinal,) value`, and the copy with a fence."""
    if words[0] == "cp_fenceproxy":
        fields = _ends(rows, at, at.operands[0], at.operands[1], ["global"])
        fields |= {"bytes": SPACES["shared"], "c": rows.value(at.operands[2], "u32", at), "e": NOTHING}
        fields["vector"][5:7] = [1, NOTHING]  # once a warp
        rows.emit(at, "cp.async.bulk", **fields)
        return
    known = next((each for each in words if each in FIELDS), None)
    if words[:2] != ["replace", "tile"] or known is None:
        raise unknown(at)
    begin, size, step = FIELDS[known]
    where, *ordinal, value = at.operands
    if ordinal:
        assert isinstance(ordinal[0], PtxNumber)
        begin += ordinal[0].bits * step
    fields = rows.where(at, where, words)
    fields["immediate"] += begin
    fields |= {"bytes": size, "b": rows.value(value, "b64" if size == 8 else "b32", at)}
    fields["flags"] |= 2 * (size == 8)
    rows.emit(at, "tensormap.replace", **fields)


def mbarrier(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    what = words[0]
    one, zero = rows.places.constant(1), rows.places.constant(0)
    if what == "pending_count":
        rows.emit(
            at, "mbarrier.pending_count", d=rows.result(at.operands[0], 4, at), a=rows.value(at.operands[1], "b64", at)
        )
    elif what in ("init", "inval"):
        fields = rows.where(at, at.operands[0], words)
        if what == "init":
            fields["b"] = rows.value(at.operands[1], "u32", at)
        rows.emit(at, f"mbarrier.{what}", **fields)
    elif what in ("test_wait", "try_wait"):
        target, where, waited = at.operands[:3]
        parity = "parity" in words
        fields = {**rows.where(at, where, words), "b": rows.value(waited, "u32" if parity else "b64", at)}
        rows.emit(at, "mbarrier.wait.parity" if parity else "mbarrier.wait", d=rows.result(target, 0, at), **fields)
    elif what in ("arrive", "arrive_drop"):
        target, rest = at.operands[0], at.operands[1:]
        if isinstance(target, PtxAddress):  # no state is asked for
            target, rest = PtxName("_"), at.operands
        bytes_ = "expect_tx" in words
        number = rows.value(rest[1], "u32", at) if len(rest) > 1 else one
        fields = {**rows.where(at, rest[0], words), "b": one if bytes_ else number, "c": number if bytes_ else zero}
        rows.emit(at, "mbarrier.arrive", d=rows.result(target, 8, at), elements=2 * (what == "arrive_drop"), **fields)
    elif what in ("expect_tx", "complete_tx"):
        fields = {**rows.where(at, at.operands[0], words), "b": zero, "c": rows.value(at.operands[1], "u32", at)}
        rows.emit(at, "mbarrier.arrive", d=rows.places.temporary(8), elements=1 + 4 * (what == "complete_tx"), **fields)
    else:
        raise unknown(at)


def arrived(rows: CodeRows, at: PtxInstruction, mbarrier: Operand, size: int) -> None:
    """Behind `st.async` and `red.async`: so many bytes have come."""
    fields = {**rows.where(at, mbarrier, ["shared"]), "b": rows.places.constant(0), "c": rows.places.constant(size)}
    rows.emit(at, "mbarrier.arrive", d=rows.places.temporary(8), elements=5, **fields)
