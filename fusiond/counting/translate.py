"""A kernel's PTX -> the code that the library runs: operations by number, operands by place.

Straight instructions keep their names in PTX, which the library's table knows; what it does not know is an error by
name, never a wrong count. Some become several operations in a row (`setp` with a third operand, vectors of registers);
only the first of them is counted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from fusiond.counting import flow, layout
from fusiond.counting.code import BARRIER, BRANCH, CODE, EXIT, PLAIN, PtxCode
from fusiond.counting.layout import PtxImage
from fusiond.counting.places import LANES, Places
from fusiond.ptx.flat import PtxInstruction, PtxKernel, PtxModule
from fusiond.ptx.operands import Negated, Operand, PtxAddress, PtxName, PtxNumber, PtxVector, RegisterPair, float_value
from fusiond.ptx.tree import SIZES, PtxError

SPACES = {"global": 1, "shared": 2, "local": 3, "param": 4, "const": 5}
_TRIPLES = ("tid", "ntid", "ctaid", "nctaid")
SPECIALS = {
    **{f"%{of}.{axis}": 3 * k + j for k, of in enumerate(_TRIPLES) for j, axis in enumerate("xyz")},
    **{"%laneid": 12, "%warpid": 13, "%lanemask_eq": 14, "%lanemask_lt": 15, "%lanemask_le": 16, "%lanemask_ge": 17},
    **{"%lanemask_gt": 18, "%dynamic_smem_size": 19, "%total_smem_size": 20, "%smid": 21, "%nsmid": 22},
}  # fmt: skip
NOTHING = -(2**31)
_NO_OPERATION = (
    "membar", "fence", "nanosleep", "griddepcontrol", "prefetch", "prefetchu", "discard", "applypriority", "setmaxnreg",
)  # fmt: skip
_CHANGES = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
_BARRIERS = {"sync": 0, "arrive": 1, "popc": 2, "and": 3, "or": 4}


def translate(
    module: PtxModule, kernel: PtxKernel, image: PtxImage, number: Callable[[str], int], *, workspace: int = 0
) -> PtxCode:
    """The code of a kernel. `number` gives an operation's number by its name, -1 for none; `workspace` is the address
    of what a cooperative launch's grid barrier needs. PtxError for what is not known."""
    return _Translator(module, kernel, image, number, workspace).code()


class _Translator:
    def __init__(
        self, module: PtxModule, kernel: PtxKernel, image: PtxImage, number: Callable[[str], int], workspace: int
    ) -> None:
        self._kernel, self._image, self._number, self._workspace = kernel, image, number, workspace
        self._layout = layout.of_kernel(module, kernel)
        self._places = Places(kernel)
        self._rows: list[dict[str, Any]] = []
        self._from: list[PtxInstruction] = []
        self._specials: list[tuple[int, int]] = []

    def code(self) -> PtxCode:
        starts = []
        for instruction in self._kernel.instructions:
            starts.append(len(self._rows))
            self._one(instruction)
            self._rows[starts[-1]]["counted"] = 1
        if not self._rows or self._rows[-1]["kind"] != EXIT:
            self._one(PtxInstruction("ret", (), None, 0, 0, 0))
        starts.append(len(self._rows) - 1)
        labels = {label: starts[at] for label, at in self._kernel.labels.items()}
        targets: list[int | None] = []
        for row, instruction in zip(self._rows, self._from, strict=True):
            label = row.pop("label", None)
            if label is not None and label not in labels:
                raise PtxError(f"there is no label {label}", instruction.line)
            targets.append(labels[label] if label is not None else None)
        falls = [
            row["guard"] != -1 or not (row["kind"] == EXIT or target is not None)
            for row, target in zip(self._rows, targets, strict=True)
        ]
        meeting = flow.meeting_points(targets, falls)
        made = np.zeros(len(self._rows), CODE)
        made["reconverge"] = meeting
        for k, row in enumerate(self._rows):
            for name, value in row.items():
                made[k][name] = value
            if targets[k] is not None:
                made[k]["target"] = targets[k]
        places, specials = self._places, tuple(self._specials)
        return PtxCode(made, tuple(self._from), places.register_bytes, places.constants(), specials, self._layout)

    # --- operands ---

    def _in(self, operand: Operand, type_: str, at: PtxInstruction) -> int:
        """The place of an operand that is read as of this type."""
        size = SIZES[type_]
        if isinstance(operand, PtxNumber):
            bits = operand.bits
            if operand.float_bytes and type_ in ("f32", "f64") and operand.float_bytes != size:
                value = float_value(operand)
                bits = int.from_bytes(struct.pack("<d" if size == 8 else "<f", value), "little")
            return self._places.constant(bits, size == 8)
        if isinstance(operand, Negated):
            found = self._places.temporary(0)
            self._emit(at, "not.pred", d=found, a=self._in(operand.name, "pred", at))
            return found
        if not isinstance(operand, PtxName):
            raise PtxError(f"{at.opcode} with an operand that it cannot have", at.line)
        if operand.name in self._places.of:
            have = self._places.size(operand)
            if have == 8 and 0 < size < 8:  # the lower part of a wide register
                low = self._places.temporary(4)
                self._emit(at, "cvt.u32.u64", d=low, a=self._places.of[operand.name])
                return low
            if have is not None and 0 < have < 8 and size == 8:
                raise PtxError(f"{at.opcode} reads {operand.name}, which has {8 * have} bits, as 64", at.line)
            return self._places.of[operand.name]
        if operand.name in SPECIALS:
            self._places.of[operand.name] = self._places.room(4)
            self._specials.append((self._places.of[operand.name], SPECIALS[operand.name]))
            return self._places.of[operand.name]
        if operand.name == "WARP_SZ":
            return self._places.constant(LANES, size == 8)
        if operand.name in ("%envreg1", "%envreg2"):
            half = self._workspace >> 32 if operand.name == "%envreg1" else self._workspace
            return self._places.constant(half)
        return self._places.constant(self._address(operand, at), size == 8)

    def _address(self, name: PtxName, at: PtxInstruction) -> int:
        """A variable's address in its own space (a generic one for global memory, which is the same)."""
        for places in (self._layout.shared, self._layout.local, self._layout.parameters, self._image.constants):
            if name.name in places:
                return places[name.name] + name.offset
        if name.name in self._image.globals:
            return self._image.address(name.name) + name.offset
        raise PtxError(f"{name.name} is not known", at.line)

    def _out(self, operand: Operand, size: int, at: PtxInstruction) -> int:
        if isinstance(operand, PtxName) and operand.name == "_":
            return self._places.temporary(size)
        if not isinstance(operand, PtxName) or operand.name not in self._places.of:
            raise PtxError(f"{at.opcode} with a result that is not a register", at.line)
        return self._places.of[operand.name]

    # --- instructions ---

    def _emit(self, at: PtxInstruction, operation: str | None, *, kind: int = PLAIN, **fields: Any) -> None:
        number = -1
        if operation is not None:
            number = self._number(operation)
            if number < 0:
                raise PtxError(f"{at.opcode} is not known here", at.line)
        row: dict[str, Any] = {"operation": number, "kind": kind, "guard": -1, "target": -1, **fields}
        row.setdefault("counted", 0)
        if at.guard is not None:
            negated = isinstance(at.guard, Negated)
            name = at.guard.name if isinstance(at.guard, Negated) else at.guard
            row["guard"] = self._in(name, "pred", at)
            row["negated"] = row.get("negated", 0) | negated
        self._rows.append(row)
        self._from.append(at)

    def _one(self, at: PtxInstruction) -> None:
        base, *rest = at.opcode.split(".")
        if base in ("ret", "exit"):
            self._emit(at, None, kind=EXIT)
        elif base == "trap":
            self._emit(at, "trap")
        elif base == "bra":
            target = at.operands[0]
            assert isinstance(target, PtxName)
            self._emit(at, None, kind=BRANCH, label=target.name)
        elif base in ("bar", "barrier"):
            self._barrier(at, rest)
        elif base in _NO_OPERATION or (base == "cp" and "bulk" not in rest and at.opcode.startswith("cp.async.wait")):
            self._emit(at, "nop")
        elif base in ("ld", "ldu", "st"):
            self._access(at, base, rest)
        elif base in ("atom", "red"):
            self._atomic(at, base, rest)
        elif base == "mov":
            self._move(at, rest[-1])
        elif base == "cvta":
            self._cvta(at, rest)
        elif base == "setp":
            self._setp(at, rest)
        elif base == "shfl":
            self._shuffle(at)
        elif base in ("ldmatrix", "stmatrix"):
            self._matrices(at, base, rest)
        elif "cc" in rest or base in ("addc", "subc", "madc"):
            self._carried(at, base, rest)
        else:
            self._plain(at, base, rest)

    def _shuffle(self, at: PtxInstruction) -> None:
        result = at.operands[0]
        assert isinstance(result, PtxName | RegisterPair)
        first, second = (result.first, result.second) if isinstance(result, RegisterPair) else (result, None)
        a, b, c, e = (self._in(operand, "b32", at) for operand in at.operands[1:])
        inside = -1 if second is None else self._out(second, 0, at)
        self._emit(at, at.opcode, d=self._out(first, 4, at), a=a, b=b, c=c, e=e, target=inside)

    def _matrices(self, at: PtxInstruction, base: str, rest: list[str]) -> None:
        """8 x 8 matrices of 16 bits between shared memory and the registers of a warp: of matrix m, lane l has two
        neighbours of row l / 4, at 2 * (l % 4), or of that column (`trans`); lane 8 * m + r has the address of row r. A
        shuffle for the address, then a plain access: as many wavefronts, and as many bytes."""
        where, data = (at.operands[1], at.operands[0]) if base == "ldmatrix" else at.operands
        items = data.items if isinstance(data, PtxVector) else (data,)
        if rest[-1] != "b16" or "m8n8" not in rest:
            raise PtxError(f"{at.opcode} is not known here", at.line)
        fields = self._where(at, where, rest)
        lane = self._in(PtxName("%laneid"), "u32", at)
        row, pair, inside = (self._places.temporary(4) for _ in range(3))
        turned = "trans" in rest
        self._emit(at, "shr.u32", d=row, a=lane, b=self._places.constant(2))
        self._emit(at, "and.b32", d=pair, a=lane, b=self._places.constant(3))
        begin = self._places.temporary(4)  # addresses in shared memory have 32 bits
        if fields["flags"] & 4:
            self._emit(at, "cvt.u32.u64", d=begin, a=fields["a"])
        else:
            self._emit(at, "mov.b32", d=begin, a=fields["a"])
        everyone, clamp = self._places.constant(0xFFFFFFFF), self._places.constant(0x1F)
        for matrix, item in enumerate(items):
            halves = []
            for half in range(2 if turned else 1):
                source, place = (self._places.temporary(4) for _ in range(2))
                if turned:  # rows 2 * (l % 4) and the one behind it, column l / 4
                    self._emit(at, "mad.lo.u32", d=source, a=pair, b=self._places.constant(2),
                               c=self._places.constant(8 * matrix + half))  # fmt: skip
                    self._emit(at, "shl.b32", d=inside, a=row, b=self._places.constant(1))
                else:
                    self._emit(at, "add.u32", d=source, a=row, b=self._places.constant(8 * matrix))
                    self._emit(at, "shl.b32", d=inside, a=pair, b=self._places.constant(2))
                self._emit(at, "shfl.sync.idx.b32", d=place, a=begin, b=source, c=clamp, e=everyone, target=-1)
                self._emit(at, "add.u32", d=place, a=place, b=inside)
                halves.append(place)
            self._matrix(at, base, item, halves, fields["immediate"])

    def _matrix(self, at: PtxInstruction, base: str, item: Operand, halves: list[int], offset: int) -> None:
        """A lane's register of a matrix: its two halves apart, where they do not lie side by side."""
        size = 4 if len(halves) == 1 else 2
        common = {"space": SPACES["shared"], "immediate": offset, "flags": 0, "bytes": size, "elements": 1}
        if base == "ldmatrix":
            parts = [self._out(item, 4, at)] if size == 4 else [self._places.temporary(4) for _ in halves]
            for place, part in zip(halves, parts, strict=True):
                self._emit(at, "ld", a=place, vector=[part] + [0] * 7, **common)
            if size == 2:
                self._emit(at, "pack.b32", d=self._out(item, 4, at), a=parts[0], b=parts[1])
            return
        value = self._in(item, "b32", at)
        parts = [value] if size == 4 else [self._places.temporary(4) for _ in halves]
        if size == 2:
            self._emit(at, "low.b32", d=parts[0], a=value)
            self._emit(at, "high.b32", d=parts[1], a=value)
        for place, part in zip(halves, parts, strict=True):
            self._emit(at, "st", a=place, vector=[part] + [0] * 7, **common)

    def _carried(self, at: PtxInstruction, base: str, rest: list[str]) -> None:
        """Arithmetic of several words (`add.cc`, `madc.hi`, ...): the carry is a word of its own, 0 or 1."""
        type_ = rest[-1]
        size, word = SIZES[type_], f"u{8 * SIZES[type_]}"
        target, *operands = at.operands
        a, b, *third = (self._in(each, type_, at) for each in operands)
        if base.startswith("mad"):  # a product in front of what goes on with its third operand
            product = self._places.temporary(size)
            self._emit(at, f"mul.{rest[0]}.{type_}", d=product, a=a, b=b)
            a, b = product, third[0]
        operation = "sub" if base.startswith("sub") else "add"
        takes = base in ("addc", "subc", "madc")
        carry = self._places.of.setdefault("%cc", -1)
        if carry == -1:
            carry = self._places.of["%cc"] = self._places.room(4)
        over, total = self._over(at, operation, word, a, b)
        if takes:
            taken = carry
            if size == 8:
                taken = self._places.temporary(8)
                self._emit(at, "cvt.u64.u32", d=taken, a=carry)
            again, total = self._over(at, operation, word, total, taken)
            both = self._places.temporary(4)
            self._emit(at, "or.b32", d=both, a=over, b=again)
            over = both
        if "cc" in rest:
            self._emit(at, "mov.b32", d=carry, a=over)
        self._emit(at, f"mov.b{8 * size}", d=self._out(target, size, at), a=total)

    def _over(self, at: PtxInstruction, operation: str, word: str, a: int, b: int) -> tuple[int, int]:
        """(1 where a sum or a difference does not fit, else 0; what fits of it)."""
        total = self._places.temporary(int(word[1:]) // 8)
        less, over = self._places.temporary(0), self._places.temporary(4)
        self._emit(at, f"{operation}.{word}", d=total, a=a, b=b)
        first, second = (total, a) if operation == "add" else (a, b)
        self._emit(at, f"setp.lt.{word}", d=less, a=first, b=second)
        self._emit(at, "selp.b32", d=over, a=self._places.constant(1), b=self._places.constant(0), c=less)
        return over, total

    def _plain(self, at: PtxInstruction, base: str, rest: list[str]) -> None:
        """An instruction whose first operand is its result."""
        read, written = _types(base, rest)
        given = [self._in(operand, type_, at) for operand, type_ in zip(at.operands[1:], read, strict=False)]
        places: dict[str, Any] = dict(zip("abce", given, strict=False))
        if len(at.operands) - 1 != len(places):
            raise PtxError(f"{at.opcode} with {len(at.operands)} operands", at.line)
        size, target = SIZES[written], at.operands[0]
        have = self._places.size(target) if isinstance(target, PtxName) else None
        name = ".".join([base, *rest])
        if have == 8 and 0 < size < 8:  # a narrow result in a wide register
            small = self._places.temporary(4)
            self._emit(at, name, d=small, **places)
            widened = "cvt.s64.s32" if written.startswith("s") else "cvt.u64.u32"
            self._emit(at, widened, d=self._out(target, 8, at), a=small)
        else:
            self._emit(at, name, d=self._out(target, size, at), **places)

    def _move(self, at: PtxInstruction, type_: str) -> None:
        target, source = at.operands
        size = SIZES[type_]
        if isinstance(source, PtxVector):
            parts = source.items
            part = f"b{8 * size // len(parts)}"
            while len(parts) > 1:
                wider = f"b{2 * int(part[1:])}"
                joined = []
                for low, high in zip(parts[::2], parts[1::2], strict=True):
                    last = len(parts) == 2
                    name = target if last else self._places.named_temporary(SIZES[wider])
                    a, b = self._in(low, part, at), self._in(high, part, at)
                    self._emit(at, f"pack.{wider}", d=self._out(name, SIZES[wider], at), a=a, b=b)
                    joined.append(name)
                parts, part = tuple(joined), wider
        elif isinstance(target, PtxVector):
            whole = self._in(source, type_, at)
            self._unpack(at, whole, 8 * size, target.items)
        else:
            self._emit(at, f"mov.{type_}", d=self._out(target, size, at), a=self._in(source, type_, at))

    def _unpack(self, at: PtxInstruction, whole: int, bits: int, targets: tuple[Operand, ...]) -> None:
        half = len(targets) // 2
        # A register may be among its own parts' targets: take it all apart before any of them is written.
        held = [self._places.temporary(bits // 16) for _ in range(2)]
        self._emit(at, f"low.b{bits}", d=held[0], a=whole)
        self._emit(at, f"high.b{bits}", d=held[1], a=whole)
        for place, part in zip(held, (targets[:half], targets[half:]), strict=True):
            if len(part) == 1:
                self._emit(at, f"mov.b{bits // 2}", d=self._out(part[0], bits // 16, at), a=place)
            else:
                self._unpack(at, place, bits // 2, part)

    def _cvta(self, at: PtxInstruction, rest: list[str]) -> None:
        target, source = at.operands
        names = [each for each in rest if each in SPACES]
        back = "to" in rest
        a, d = self._in(source, "u64", at), self._out(target, 8, at)
        space = names[0] if names else ""
        if space == "global":
            self._emit(at, "mov.b64", d=d, a=a)
        else:
            self._emit(at, f"cvta.{'to.' if back else ''}{space}", d=d, a=a)

    def _setp(self, at: PtxInstruction, rest: list[str]) -> None:
        rest = [each for each in rest if each != "ftz"]
        target, first, second, *third = at.operands
        p, q = (target.first, target.second) if isinstance(target, RegisterPair) else (target, None)
        a, b = self._in(first, rest[-1], at), self._in(second, rest[-1], at)
        name = f"setp.{rest[0]}.{rest[-1]}"
        if not third and q is None:
            self._emit(at, name, d=self._out(p, 0, at), a=a, b=b)
            return
        found, other = (self._places.temporary(0) for _ in range(2))
        self._emit(at, name, d=found, a=a, b=b)
        self._emit(at, "not.pred", d=other, a=found)
        for place in (found, other):
            if third:
                self._emit(at, f"{rest[1]}.pred", d=place, a=place, b=self._in(third[0], "pred", at))
        self._emit(at, "mov.pred", d=self._out(p, 0, at), a=found)
        if q is not None:
            self._emit(at, "mov.pred", d=self._out(q, 0, at), a=other)

    def _barrier(self, at: PtxInstruction, rest: list[str]) -> None:
        if rest[0] == "warp":
            self._emit(at, "bar.warp.sync", a=self._in(at.operands[0], "b32", at))
            return
        words = [each for each in rest if each not in ("cta", "aligned")]
        which = words[1] if words[0] == "red" else words[0]
        if which not in _BARRIERS:
            raise PtxError(f"{at.opcode} is not known here", at.line)
        operands = list(at.operands)
        apart = 0 if at.opcode.startswith("bar.") or "aligned" in rest else 4
        fields: dict[str, Any] = {"b": NOTHING, "immediate": _BARRIERS[which], "negated": apart}
        if words[0] == "red":
            held = operands.pop()
            if isinstance(held, Negated):
                fields["negated"], held = 2 | apart, held.name
            fields["c"] = self._in(held, "pred", at)
            fields["d"] = self._out(operands.pop(0), 4 if which == "popc" else 0, at)
        fields["a"] = self._in(operands[0], "b32", at)
        if len(operands) > 1:
            fields["b"] = self._in(operands[1], "b32", at)
        self._emit(at, None, kind=BARRIER, **fields)

    # --- memory ---

    def _where(self, at: PtxInstruction, operand: Operand, rest: list[str]) -> dict[str, Any]:
        assert isinstance(operand, PtxAddress)
        space = next((each for each in (word.partition("::")[0] for word in rest) if each in SPACES), "")
        fields: dict[str, Any] = {"space": SPACES.get(space, 0)}
        base = operand.base
        if isinstance(base, PtxName) and base.name in self._kernel.registers:
            wide = self._places.size(base) == 8
            fields |= {"a": self._places.of[base.name], "immediate": operand.offset, "flags": 4 if wide else 0}
        else:
            begin = base.bits if isinstance(base, PtxNumber) else self._address(base, at)
            fields |= {"a": self._places.constant(begin + operand.offset, True), "immediate": 0, "flags": 4}
        return fields

    def _access(self, at: PtxInstruction, base: str, rest: list[str]) -> None:
        type_ = rest[-1]
        if type_ not in SIZES or type_ == "b128":
            raise PtxError(f"{at.opcode} is not known here", at.line)
        where, data = (at.operands[1], at.operands[0]) if base != "st" else (at.operands[0], at.operands[1])
        items = data.items if isinstance(data, PtxVector) else (data,)
        fields = self._where(at, where, rest)
        flags = fields["flags"] | (1 if type_.startswith("s") else 0)
        wide = SIZES[type_] == 8
        for each in items:
            if isinstance(each, PtxName) and self._places.size(each) == 8:
                wide = True
        places = []
        for each in items:
            if base == "st":
                places.append(self._in(each, "b64" if wide else type_, at))
            else:
                places.append(self._out(each, 8 if wide else 4, at))
        fields |= {"flags": flags | (2 if wide else 0), "bytes": SIZES[type_], "elements": len(items)}
        self._emit(at, "ld" if base != "st" else "st", vector=places + [0] * (8 - len(places)), **fields)

    def _atomic(self, at: PtxInstruction, base: str, rest: list[str]) -> None:
        operation = next((each for each in rest if each in _CHANGES), "")
        type_ = next((each for each in reversed(rest) if each in SIZES), rest[-1])
        if type_ not in SIZES:
            raise PtxError(f"{at.opcode} is not known here", at.line)
        fields = self._where(at, at.operands[1 if base == "atom" else 0], rest)
        given = at.operands[2 if base == "atom" else 1 :]
        target = at.operands[0] if base == "atom" else PtxName("_")
        noftz = ".noftz" if "noftz" in rest else ""
        several = given[0].items if isinstance(given[0], PtxVector) else None
        for k, each in enumerate(several or (None,)):  # of a vector, its elements one after the other
            one = target.items[k] if isinstance(target, PtxVector) else target
            values = [self._in(value, type_, at) for value in (given if each is None else (each,))]
            here = {**fields, "immediate": fields["immediate"] + k * SIZES[type_]}
            here |= dict(zip("bc", values, strict=False)) | {"bytes": SIZES[type_], "elements": 1}
            self._emit(at, f"atom.{operation}{noftz}.{type_}", d=self._out(one, SIZES[type_], at), **here)


def _types(base: str, rest: list[str]) -> tuple[tuple[str, ...], str]:
    """The types of what an instruction reads, and of its result."""
    types = [each for each in rest if each in SIZES]
    last = types[-1] if types else "b32"
    if base == "cvt":
        return ((types[-1],) * 2, types[0])
    if base in ("mul", "mad") and "wide" in rest:
        wide = f"{last[0]}{2 * int(last[1:])}"
        return ((last, last, wide), wide)
    if base == "selp":
        return ((last, last, "pred"), last)
    if base in ("shl", "shr"):
        return ((last, "u32"), last)
    if base == "bfe":
        return ((last, "u32", "u32"), last)
    if base == "bfi":
        return ((last, last, "u32", "u32"), last)
    if base in ("popc", "clz", "bfind"):
        return ((last,), "u32")
    if base == "vote":
        return (("pred", "b32"), last)
    if base == "match":
        return ((last, "b32"), "b32")
    if base == "redux":
        return ((last, "b32"), last)
    return ((last,) * 4, last)
