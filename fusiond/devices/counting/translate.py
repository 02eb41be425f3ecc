"""A kernel's PTX -> the code that the library runs: operations by number, operands by place.

Straight instructions keep their names in PTX, which the library's table knows; what it does not know is an error by
name, never a wrong count. Some become several operations in a row (`setp` with a third operand, vectors of registers);
only the first of them is counted.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from fusiond.devices.counting import accesses, matrices, transfers
from fusiond.devices.counting.calls import EXPANDED
from fusiond.devices.counting.layout import PtxImage
from fusiond.devices.counting.rows import ARGUMENT, BARRIER, EXIT, NOTHING, CodeRows, PtxCode, pair, unknown
from fusiond.model.ptx.flat import PtxInstruction, PtxKernel, PtxModule
from fusiond.model.ptx.operands import Negated, Operand, PtxGroup, PtxName, PtxVector
from fusiond.model.ptx.tree import SIZES, PtxError

_NO_OPERATION = (
    "membar", "fence", "nanosleep", "griddepcontrol", "prefetch", "prefetchu", "discard", "applypriority", "setmaxnreg",
    "brkpt", "pmevent",
)  # fmt: skip
_BARRIERS = {"sync": 0, "arrive": 1, "popc": 2, "and": 3, "or": 4}
_TEXTURES = ("tex", "tld4", "txq", "suld", "sust", "sured", "suq")
_CLOCKS = ("%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi")
Handler: TypeAlias = Callable[[CodeRows, PtxInstruction, Sequence[str]], None]
_VIDEO = ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax")


def translate(
    module: PtxModule, kernel: PtxKernel, image: PtxImage, number: Callable[[str], int], *, workspace: int = 0
) -> PtxCode:
    """The code of a kernel whose calls are expanded. `number` gives an operation's number by its name, -1 for none;
    `workspace` is the address of what a cooperative launch's grid barrier needs. PtxError for what is not known."""
    rows, starts = CodeRows(module, kernel, image, number, workspace), []
    for instruction in kernel.instructions:
        starts.append(len(rows.made))
        _one(rows, instruction)
        rows.made[starts[-1]]["counted"] = 1
    if not rows.made or rows.made[-1]["kind"] != EXIT or kernel.instructions[-1].guard is not None:
        _one(rows, PtxInstruction("ret", (), None, 0, 0, 0))
    starts.append(len(rows.made) - 1)
    return rows.code(starts)


def _one(rows: CodeRows, at: PtxInstruction) -> None:
    base, *words = at.opcode.split(".")
    if base in _KNOWN:
        _KNOWN[base](rows, at, words)
    elif base in ("ret", "exit"):
        rows.emit(at, None, kind=EXIT)
    elif base == "trap":
        rows.emit(at, at.opcode)
    elif base in _TEXTURES:
        raise PtxError(f"{at.opcode} is not known here: textures and surfaces are not run", at.line)
    elif base in _NO_OPERATION or at.opcode == EXPANDED:
        rows.emit(at, "nop")
    elif "cc" in words or base in ("addc", "subc", "madc"):
        _carried(rows, at, base, words)
    elif base.rstrip("24") in _VIDEO:
        _video(rows, at, base, words)
    else:
        _plain(rows, at, base, words)


# --- control ---


def _branch(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    target = at.operands[0]
    assert isinstance(target, PtxName)
    rows.branch(at, target.name)


def _branch_by_index(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    """`brx.idx`: a comparison and a branch for each label, one after another."""
    index, table = at.operands
    labels = rows.kernel.branch_targets.get(table.name if isinstance(table, PtxName) else "")
    if labels is None:
        raise unknown(at)
    given = rows.value(index, "u32", at)
    for k, label in enumerate(labels):
        chosen = rows.places.temporary(0)
        rows.emit(at, "mov.pred", d=chosen, a=rows.places.constant(0), guard=NOTHING)
        rows.emit(at, "setp.eq.u32", d=chosen, a=given, b=rows.places.constant(k))
        rows.branch(at, label, chosen)


def _call(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    """What is left of calls: the two functions that a kernel may have from the driver."""
    if at.opcode == EXPANDED:
        rows.emit(at, "nop")
        return
    groups = [each.items for each in at.operands if isinstance(each, PtxGroup)]
    target = next((each.name for each in at.operands if isinstance(each, PtxName)), "")
    if target in _FROM_THE_DRIVER:
        places = []
        for operand, size in zip(groups[-1], _FROM_THE_DRIVER[target], strict=False):
            assert isinstance(operand, PtxName)
            places.append(rows.places.temporary(size))
            _argument(rows, at, "ld", operand, size, places[-1])
        rows.emit(at, target.strip("_"), **dict(zip("abc", places, strict=False)))
        if target == "vprintf":
            (result,) = groups[0]
            assert isinstance(result, PtxName)
            _argument(rows, at, "st", result, 4, rows.places.constant(0))
    else:
        known = target in rows.functions
        why = "calls itself, or has too many calls in it" if known else "has no body here"
        if target in rows.kernel.registers:
            target, why = "what a register points to", "is known only when it runs"
        raise PtxError(f"{at.opcode} of {target}, which {why}", at.line)


_FROM_THE_DRIVER: Mapping[str, Sequence[int]] = {"vprintf": (8, 8), "__assertfail": (8, 8, 4)}
"""Bytes of the arguments that are looked at."""


def _argument(rows: CodeRows, at: PtxInstruction, operation: str, name: PtxName, size: int, place: int) -> None:
    """A value of a call, from or to where it is handed over."""
    where = rows.places.constant(rows.address(name, at), True)
    flags = 4 | 2 * (size == 8)
    rows.emit(at, operation, space=ARGUMENT, a=where, flags=flags, bytes=size, elements=1, vector=[place])


# --- what lanes do together ---


def _among_lanes(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    """`shfl`, `match`, `elect`: a result, and a predicate where one is asked for."""
    first, second = pair(at.operands[0])
    types = (words[-1] if words[-1] in SIZES else "b32", *("b32",) * 3)
    values = [rows.value(operand, type_, at) for operand, type_ in zip(at.operands[1:], types, strict=False)]
    found = -1 if second is None else rows.result(second, 0, at)
    rows.emit(at, at.opcode, d=rows.result(first, 4, at), target=found, **dict(zip("abce", values, strict=False)))


def _barrier(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    if words[0] == "warp":
        rows.emit(at, "bar.warp.sync", a=rows.value(at.operands[0], "b32", at))
        return
    if words[0] == "cluster":
        rows.emit(at, f"barrier.cluster.{words[1]}")
        return
    plain = [each for each in words if each not in ("cta", "aligned")]
    which = plain[1] if plain[0] == "red" else plain[0]
    if which not in _BARRIERS:
        raise unknown(at)
    operands = list(at.operands)
    apart = 0 if at.opcode.startswith("bar.") or "aligned" in words else 4
    fields: dict[str, Any] = {"b": NOTHING, "immediate": _BARRIERS[which], "negated": apart}
    if plain[0] == "red":
        held = operands.pop()
        if isinstance(held, Negated):
            fields["negated"], held = 2 | apart, held.name
        fields["c"] = rows.value(held, "pred", at)
        fields["d"] = rows.result(operands.pop(0), 4 if which == "popc" else 0, at)
    fields["a"] = rows.value(operands[0], "b32", at)
    if len(operands) > 1:
        fields["b"] = rows.value(operands[1], "b32", at)
    rows.emit(at, None, kind=BARRIER, **fields)


# --- arithmetic ---


def _carried(rows: CodeRows, at: PtxInstruction, base: str, words: Sequence[str]) -> None:
    """Arithmetic of several words (`add.cc`, `madc.hi`, ...): the carry is a word of its own, 0 or 1."""
    type_ = words[-1]
    size, word = SIZES[type_], f"u{8 * SIZES[type_]}"
    target, *operands = at.operands
    a, b, *third = (rows.value(each, type_, at) for each in operands)
    if base.startswith("mad"):  # a product in front of what goes on with its third operand
        product = rows.places.temporary(size)
        rows.emit(at, f"mul.{words[0]}.{type_}", d=product, a=a, b=b)
        a, b = product, third[0]
    operation = "sub" if base.startswith("sub") else "add"
    takes = base in ("addc", "subc", "madc")
    carry = rows.places.of.setdefault("%cc", -1)
    if carry == -1:
        carry = rows.places.of["%cc"] = rows.places.room(4)
    over, total = _over(rows, at, operation, word, a, b)
    if takes:
        taken = carry
        if size == 8:
            taken = rows.places.temporary(8)
            rows.emit(at, "cvt.u64.u32", d=taken, a=carry)
        again, total = _over(rows, at, operation, word, total, taken)
        both = rows.places.temporary(4)
        rows.emit(at, "or.b32", d=both, a=over, b=again)
        over = both
    if "cc" in words:
        rows.emit(at, "mov.b32", d=carry, a=over)
    rows.emit(at, f"mov.b{8 * size}", d=rows.result(target, size, at), a=total)


def _over(rows: CodeRows, at: PtxInstruction, operation: str, word: str, a: int, b: int) -> tuple[int, int]:
    """(1 where a sum or a difference does not fit, else 0; what fits of it)."""
    total = rows.places.temporary(int(word[1:]) // 8)
    less, over = rows.places.temporary(0), rows.places.temporary(4)
    rows.emit(at, f"{operation}.{word}", d=total, a=a, b=b)
    first, second = (total, a) if operation == "add" else (a, b)
    rows.emit(at, f"setp.lt.{word}", d=less, a=first, b=second)
    rows.emit(at, "selp.b32", d=over, a=rows.places.constant(1), b=rows.places.constant(0), c=less)
    return over, total


def _plain(rows: CodeRows, at: PtxInstruction, base: str, words: Sequence[str]) -> None:
    """An instruction whose first operand is its result."""
    if base in ("min", "max") and len(at.operands) == 4:  # of three: the first two, and then the third
        first, second, third, fourth = at.operands
        _plain(rows, dataclasses.replace(at, operands=(first, second, third)), base, words)
        _plain(rows, dataclasses.replace(at, operands=(first, first, fourth)), base, words)
        return
    read, written = _types(base, words)
    given = [rows.value(operand, type_, at) for operand, type_ in zip(at.operands[1:], read, strict=False)]
    places: dict[str, Any] = dict(zip("abce", given, strict=False))
    if len(at.operands) - 1 != len(places):
        raise PtxError(f"{at.opcode} with {len(at.operands)} operands", at.line)
    size, target = SIZES[written], at.operands[0]
    have = rows.places.size(target) if isinstance(target, PtxName) else None
    name = ".".join([base, *words])
    if have == 8 and 0 < size < 8:  # a narrow result in a wide register
        small = rows.places.temporary(4)
        rows.emit(at, name, d=small, **places)
        widened = "cvt.s64.s32" if written.startswith("s") else "cvt.u64.u32"
        rows.emit(at, widened, d=rows.result(target, 8, at), a=small)
    else:
        rows.emit(at, name, d=rows.result(target, size, at), **places)


def _move(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    target, source = at.operands
    type_ = words[-1]
    size = SIZES[type_]
    if isinstance(source, PtxName) and source.name in _CLOCKS:
        upper = "hi" in source.name
        place = rows.places.temporary(8) if upper else rows.result(target, size, at)
        rows.emit(at, "clock.b64" if upper or size == 8 else "clock.b32", d=place)
        if upper:
            rows.emit(at, "high.b64", d=rows.result(target, size, at), a=place)
    elif size == 16:
        _move_wide(rows, at, target, source)
    elif isinstance(source, PtxVector):
        parts = source.items
        part = f"b{8 * size // len(parts)}"
        while len(parts) > 1:
            wider = f"b{2 * int(part[1:])}"
            joined = []
            for low, high in zip(parts[::2], parts[1::2], strict=True):
                last = len(parts) == 2
                name = target if last else rows.places.named_temporary(SIZES[wider])
                a, b = rows.value(low, part, at), rows.value(high, part, at)
                rows.emit(at, f"pack.{wider}", d=rows.result(name, SIZES[wider], at), a=a, b=b)
                joined.append(name)
            parts, part = tuple(joined), wider
    elif isinstance(target, PtxVector):
        _unpack(rows, at, rows.value(source, type_, at), 8 * size, target.items)
    else:
        rows.emit(at, f"mov.{type_}", d=rows.result(target, size, at), a=rows.value(source, type_, at))


def _move_wide(rows: CodeRows, at: PtxInstruction, target: Operand, source: Operand) -> None:
    """Of 128 bits: registers of two halves, or pairs of registers."""
    into, out_of = accesses.halves(rows, at, target), accesses.halves(rows, at, source)
    held = [rows.places.temporary(8) for _ in into]
    for places in (zip(held, out_of, strict=True), zip(into, held, strict=True)):
        for d, a in places:
            rows.emit(at, "mov.b64", d=d, a=a)


def _unpack(rows: CodeRows, at: PtxInstruction, whole: int, bits: int, targets: tuple[Operand, ...]) -> None:
    half = len(targets) // 2
    # A register may be among its own parts' targets: take it all apart before any of them is written.
    held = [rows.places.temporary(bits // 16) for _ in range(2)]
    rows.emit(at, f"low.b{bits}", d=held[0], a=whole)
    rows.emit(at, f"high.b{bits}", d=held[1], a=whole)
    for place, part in zip(held, (targets[:half], targets[half:]), strict=True):
        if len(part) == 1:
            rows.emit(at, f"mov.b{bits // 2}", d=rows.result(part[0], bits // 16, at), a=place)
        else:
            _unpack(rows, at, place, bits // 2, part)


def _setp(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    words = [each for each in words if each != "ftz"]
    target, first, second, *third = at.operands
    (p, q), type_ = pair(target), words[-1]
    name = f"setp.{words[0]}.{type_.removesuffix('x2')}"
    if type_ in ("f16x2", "bf16x2"):  # p of the lower halves, q of the upper ones
        for half, register in (("low", p), ("high", q)):
            if register is not None:
                found = _compared_halves(rows, at, name, first, second, half)
                if third:
                    rows.emit(at, f"{words[1]}.pred", d=found, a=found, b=rows.value(third[0], "pred", at))
                rows.emit(at, "mov.pred", d=rows.result(register, 0, at), a=found)
        return
    a, b = rows.value(first, type_, at), rows.value(second, type_, at)
    if not third and q is None:
        rows.emit(at, name, d=rows.result(p, 0, at), a=a, b=b)
        return
    found, other = (rows.places.temporary(0) for _ in range(2))
    rows.emit(at, name, d=found, a=a, b=b)
    rows.emit(at, "not.pred", d=other, a=found)
    for place in (found, other):
        if third:
            rows.emit(at, f"{words[1]}.pred", d=place, a=place, b=rows.value(third[0], "pred", at))
    rows.emit(at, "mov.pred", d=rows.result(p, 0, at), a=found)
    if q is not None:
        rows.emit(at, "mov.pred", d=rows.result(q, 0, at), a=other)


def _compared_halves(rows: CodeRows, at: PtxInstruction, name: str, first: Operand, second: Operand, half: str) -> int:
    parts = [rows.places.temporary(4) for _ in range(2)]
    for part, operand in zip(parts, (first, second), strict=True):
        rows.emit(at, f"{half}.b32", d=part, a=rows.value(operand, "b32", at))
    found = rows.places.temporary(0)
    rows.emit(at, name, d=found, a=parts[0], b=parts[1])
    return found


def _set(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    """`set`: a comparison whose result is a number: 1.0, or all bits; of halves by two, one for each."""
    compare, result, type_ = words[0], words[-2], words[-1]
    if len(at.operands) != 3:
        raise unknown(at)
    target, first, second = at.operands
    name = f"setp.{compare}.{type_.removesuffix('x2')}"
    yes = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80, "f16x2": 0x3C00, "bf16x2": 0x3F80}.get(result)
    if type_ in ("f16x2", "bf16x2"):
        chosen = [rows.places.temporary(4) for _ in range(2)]
        for half, place in zip(("low", "high"), chosen, strict=True):
            found = _compared_halves(rows, at, name, first, second, half)
            true = rows.places.constant(0xFFFF if yes is None else yes)
            rows.emit(at, "selp.b32", d=place, a=true, b=rows.places.constant(0), c=found)
        rows.emit(at, "pack.b32", d=rows.result(target, 4, at), a=chosen[0], b=chosen[1])
        return
    found = rows.places.temporary(0)
    rows.emit(at, name, d=found, a=rows.value(first, type_, at), b=rows.value(second, type_, at))
    true = rows.places.constant(0xFFFFFFFF if yes is None else yes)
    rows.emit(at, "selp.b32", d=rows.result(target, 4, at), a=true, b=rows.places.constant(0), c=found)


def _video(rows: CodeRows, at: PtxInstruction, base: str, words: Sequence[str]) -> None:
    """`vabsdiff4.u32.u32.u32.add`, ...: parts of registers, without selectors of parts: a third operand that nothing is
    added to would fill parts that are not selected."""
    types = [each for each in words if each in ("u32", "s32")]
    target, first, second, *third = at.operands
    more = set(words) - {"u32", "s32", "sat", "add"}
    if len(types) != 3 or more or ("add" in words and len(third) != 1):
        raise unknown(at)
    signs = sum(1 << k for k, each in enumerate(types) if each == "s32")
    places = {name: rows.value(each, "b32", at) for name, each in zip("abc", (first, second, *third), strict=False)}
    flags = signs | 8 * ("sat" in words) | 16 * ("add" in words)
    rows.emit(at, base, d=rows.result(target, 4, at), flags=flags, **places)


def _rank(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    """`getctarank`: which block of the cluster an address is in."""
    a = rows.value(at.operands[1], words[-1], at)
    if words[-1] == "u32":
        a, narrow = rows.places.temporary(8), a
        rows.emit(at, "cvt.u64.u32", d=a, a=narrow)
    rows.emit(at, "getctarank", d=rows.result(at.operands[0], 4, at), a=a, flags="shared::cluster" in words)


def _mapped(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    """`mapa`: an address of shared memory in a block of the cluster."""
    type_ = words[-1]
    target, address, rank = at.operands
    a, b = rows.value(address, type_, at), rows.value(rank, "u32", at)
    near = "shared::cluster" in words
    rows.emit(at, f"mapa.{type_}", d=rows.result(target, SIZES[type_], at), a=a, b=b, flags=near)


def _policy(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    rows.emit(at, "mov.b64", d=rows.result(at.operands[0], 8, at), a=rows.places.constant(0, True))


def _is_in(rows: CodeRows, at: PtxInstruction, words: Sequence[str]) -> None:
    space = words[0] if words[0] == "shared::cluster" else words[0].partition("::")[0]
    rows.emit(at, f"isspacep.{space}", d=rows.result(at.operands[0], 0, at), a=rows.value(at.operands[1], "u64", at))


_TYPES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "testp": (("",), "pred"),
    **dict.fromkeys(("bmsk", "szext", "shl", "shr"), (("", "u32"), "")),
    "selp": (("", "", "pred"), ""),
    "bfe": (("", "u32", "u32"), ""),
    "bfi": (("", "", "u32", "u32"), ""),
    **dict.fromkeys(("popc", "clz", "bfind"), (("",), "u32")),
    "vote": (("pred", "b32"), ""),
    "redux": (("", "b32"), ""),
    **dict.fromkeys(("dp4a", "dp2a"), (("b32",) * 3, "b32")),
}
"""Of what an instruction reads, and of its result; empty: its own. All others have their own alone."""


def _types(base: str, words: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """The types of what an instruction reads, and of its result."""
    types = [each for each in words if each in SIZES]
    last = types[-1] if types else "b32"
    if base == "cvt":
        return (("s32", "s32", "b32"), "b32") if "pack" in words else ((last,) * 2, types[0])
    if base in ("mul", "mad") and "wide" in words:
        wide = f"{last[0]}{2 * int(last[1:])}"
        return (last, last, wide), wide
    read, written = _TYPES.get(base, (("",) * 4, ""))
    return tuple(each or last for each in read), written or last


_KNOWN: Mapping[str, Handler] = {
    "bra": _branch, "brx": _branch_by_index, "call": _call,
    **dict.fromkeys(("bar", "barrier"), _barrier), **dict.fromkeys(("shfl", "elect", "match"), _among_lanes),
    **dict.fromkeys(("ld", "ldu"), accesses.load), "st": accesses.store,
    **dict.fromkeys(("atom", "red"), accesses.atomic),
    "mov": _move, "cvta": accesses.cvta, "setp": _setp, "set": _set, "mapa": _mapped, "getctarank": _rank,
    "createpolicy": _policy, "isspacep": _is_in, **dict.fromkeys(("ldmatrix", "stmatrix"), matrices.move),
    "movmatrix": matrices.transposed, "mma": matrices.mma, "wmma": matrices.wmma, "wgmma": matrices.wgmma,
    "cp": transfers.copy, "mbarrier": transfers.mbarrier, "tensormap": transfers.tensormap,
}  # fmt: skip
