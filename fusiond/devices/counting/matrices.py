"""Matrix products (`mma`, `wmma`, `wgmma`) and the moves of their fragments; runtime/matrices.cpp executes them."""

import re
import struct
from collections.abc import Sequence

from fusiond.devices.counting.rows import CodeRows, unknown
from fusiond.model.ptx.flat import PtxInstruction
from fusiond.model.ptx.operands import Operand, PtxName, PtxNumber
from fusiond.model.ptx.tree import PtxError

TYPES = {
    name: code
    for code, name in enumerate(
        ("f16", "bf16", "tf32", "f32", "f64", "s8", "u8", "s4", "u4", "b1", "e4m3", "e5m2", "s32")
    )
}
_BITS = {"f16": 16, "bf16": 16, "f64": 64, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1, "e4m3": 8, "e5m2": 8}
_SATURATE, _XOR = 1, 2
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_SHAPES = {
    16: ("m16n8k8", "m16n8k16"), 32: ("m16n8k4", "m16n8k8"), 64: ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"),
    8: ("m8n8k16", "m16n8k16", "m16n8k32"), 4: ("m8n8k32", "m16n8k32", "m16n8k64"),
    1: ("m8n8k128", "m16n8k128", "m16n8k256"),
}  # fmt: skip
"""Of mma, by the bits of an element of A."""


def move(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    """`ldmatrix`, `stmatrix`: 8 x 8 matrices of 16 bits between shared memory and the registers of a warp."""
    load = at.opcode.startswith("ld")
    where, data = (at.operands[1], at.operands[0]) if load else at.operands
    items = rows.items(data)
    if words[-1] != "b16" or "m8n8" not in words:
        raise unknown(at)
    places = [rows.result(each, 4, at) if load else rows.value(each, "b32", at) for each in items]
    fields = rows.where(at, where, words)
    fields["flags"] |= "trans" in words
    fields |= {"elements": len(items), "bytes": 16, "vector": places}
    rows.emit(at, "ldmatrix" if load else "stmatrix", **fields)


def transposed(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    """`movmatrix`."""
    target, source = at.operands
    rows.emit(at, "movmatrix", d=rows.result(target, 4, at), a=rows.value(source, "b32", at))


def mma(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    if "sp" in words or any(word.startswith(("sp::", "kind::", "block_scale")) for word in words):
        raise unknown(at)
    shape, types = _shape(at, words), [each for each in words if each in TYPES]
    if len(types) == 2:  # mma.m8n8k4 and m16n8k8 may leave A and B out: halves
        types = [types[0], "f16", "f16", types[1]]
    quads = types[1:2] == ["f16"] and shape == (8, 8, 4)
    counts = "popc" in words and not {"and", "xor"} & set(words)
    if len(types) != 4 or len(at.operands) != 4 or "mul" in words or counts:
        raise unknown(at)
    if not quads and (
        not {"row", "col"} <= set(words) or "m{}n{}k{}".format(*shape) not in _SHAPES[_BITS.get(types[1], 32)]
    ):
        raise unknown(at)
    work = _work(rows, at, shape, types, words, [rows.items(each) for each in at.operands])
    layouts = [each for each in words if each in ("row", "col")]
    flags = (layouts[0] == "col") | 2 * (layouts[1] == "row")
    rows.emit(at, "mma.quads" if quads else "mma", vector=[work], flags=flags)


def wmma(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    """Parts of matrices are kept as `mma` has them; what a lane has twice is the same."""
    shape, types = _shape(at, words), [each for each in words if each in TYPES]
    if words[0] == "mma":
        if len(types) == 2:
            types = [types[0], "f16", "f16", types[1]]
        work = _work(rows, at, shape, types, words, [rows.items(each) for each in at.operands])
        rows.emit(at, "mma", vector=[work])
        return
    load, which = words[0] == "load", "abcd".index(words[1])
    data, where = (at.operands[0], at.operands[1]) if load else (at.operands[1], at.operands[0])
    groups: list[tuple[Operand, ...]] = [(), (), (), ()]
    groups[{0: 1, 1: 2}.get(which, 3)] = rows.items(data)
    work = _work(rows, at, shape, types * 4, words, groups, loaded=load)
    by_columns = "col" in words
    m, n, k = shape
    tall, wide = ((m, k), (k, n), (m, n))[min(which, 2)]
    stride = at.operands[2] if len(at.operands) > 2 else PtxNumber(tall if by_columns else wide)
    fields = rows.where(at, where, words)
    fields["flags"] |= 8 * by_columns
    fields |= {"elements": min(which, 2), "b": rows.value(stride, "u32", at), "vector": [work]}
    rows.emit(at, f"wmma.{words[0]}", **fields)


def wgmma(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    """A warp's 16 of the 64 rows. What is asynchronous is done at once."""
    if words[0] in ("fence", "commit_group", "wait_group"):
        rows.emit(at, "nop")
        return
    if words[0] != "mma_async" or "sp" in words:
        raise unknown(at)
    m, n, k = _shape(at, words)
    types = [each for each in words if each in TYPES]
    d, a, b, scale, *numbers = at.operands
    kinds = [types[0], types[1], types[-1], types[0]]
    signs = [] if types[0] == "s32" else [_number(each, at) for each in numbers[:2]]
    turns = [_number(each, at) for each in numbers[len(signs) :]]
    shared = isinstance(a, PtxName)
    turned_a, turned_b = (*turns, 0, 0)[:2] if shared else (0, (*turns, 0)[0])
    flags = shared | 2 * turned_a | 4 * turned_b | 8 * (-1 in signs[:1]) | 16 * (-1 in signs[1:])
    of_a = (a,) if isinstance(a, PtxName) else rows.items(a)
    if m != 64 or k * _BITS.get(kinds[1], 32) != 256:
        raise unknown(at)
    # A and B as descriptors are numbers of 64 bits; the accumulators are those of one warp.
    groups: list[tuple[Operand, ...]] = [rows.items(d), of_a, (b,), ()]
    wide = {1: "b64", 2: "b64"} if shared else {2: "b64"}
    work = _work(rows, at, (16, n, k), kinds, words, groups, wide=wide, again=True)
    rows.emit(at, "wgmma", vector=[work], flags=flags, c=rows.value(scale, "pred", at))


def _work(
    rows: CodeRows,
    at: PtxInstruction,
    shape: tuple[int, int, int],
    types: Sequence[str],
    words: Sequence[str],
    groups: Sequence[tuple[Operand, ...]],
    *,
    loaded: bool = False,
    wide: dict[int, str] | None = None,
    again: bool = False,
) -> int:
    """The list of a product in the pool: `Work` of runtime/matrices.cpp. `groups`: D, A, B, C, and `types` as many;
    `loaded`: results all; `again`: C is D."""
    d_type, a_type, b_type, c_type = types
    flags = _SATURATE * ("satfinite" in words) | _XOR * ("xor" in words)
    counts = [len(each) for each in groups]
    if again:
        counts[3] = counts[0]
    places: list[int] = []
    for k, (group, type_) in enumerate(zip(groups, types, strict=True)):
        kind = (wide or {}).get(k, "b64" if type_ == "f64" else "b32")
        size = 8 if kind == "b64" else 4
        written = loaded or k == 0
        places += [rows.result(each, size, at) if written else rows.value(each, kind, at) for each in group]
    head = [*shape, *(TYPES[each] for each in (a_type, b_type, c_type, d_type)), flags, *counts]
    return rows.places.words(struct.pack(f"<{len(head) + len(places)}i", *head, *places))


def _shape(at: PtxInstruction, words: Sequence[str]) -> tuple[int, int, int]:
    found = next((match for each in words if (match := _SHAPE.fullmatch(each))), None)
    if found is None:
        raise unknown(at)
    m, n, k = (int(each) for each in found.groups())
    return m, n, k


def _number(operand: Operand, at: PtxInstruction) -> int:
    if not isinstance(operand, PtxNumber):
        raise PtxError(f"{at.opcode} with an operand that is not a number", at.line)
    return operand.bits - (1 << 64) if operand.bits >> 63 else operand.bits
