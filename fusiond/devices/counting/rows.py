"""Builds the code of a kernel that the library runs, row by row: operations by number, operands by location."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusiond.devices.counting import layout
from fusiond.devices.counting.layout import REGISTER_BYTES, PtxImage, PtxLayout
from fusiond.model.ptx import flow
from fusiond.model.ptx.flat import PtxInstruction, PtxKernel, PtxModule
from fusiond.model.ptx.operands import (
    Negated,
    Operand,
    PtxAddress,
    PtxName,
    PtxNumber,
    PtxVector,
    RegisterPair,
    float_value,
)
from fusiond.model.ptx.tree import SIZES, PtxError

CODE = np.dtype(
    [
        ("operation", "i4"), ("kind", "u1"), ("negated", "u1"), ("unused", "u1"), ("counted", "u1"),
        ("space", "u1"), ("bytes", "u1"), ("elements", "u1"), ("flags", "u1"), ("guard", "i4"),
        ("d", "i4"), ("a", "i4"), ("b", "i4"), ("c", "i4"), ("e", "i4"), ("target", "i4"), ("reconverge", "i4"),
        ("immediate", "i8"), ("vector", "i4", 8),
    ],
    align=True,
)  # fmt: skip
"""A row for each operation that the library runs."""
PLAIN, BRANCH, EXIT, BARRIER = range(4)  #: Kinds of a row
LANES = 32
SPACES = {"global": 1, "shared": 2, "local": 3, "param": 4, "const": 5}
ARGUMENT = 6  #: The space of what a call hands over
NOTHING = -(2**31)  #: The place of an operand that is not there
_TRIPLES = ("tid", "ntid", "ctaid", "nctaid")
_OF_CLUSTERS = ("cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid")
_SPECIALS = {
    **{f"%{of}.{axis}": 3 * k + j for k, of in enumerate(_TRIPLES) for j, axis in enumerate("xyz")},
    **{"%laneid": 12, "%warpid": 13, "%lanemask_eq": 14, "%lanemask_lt": 15, "%lanemask_le": 16, "%lanemask_ge": 17},
    **{"%lanemask_gt": 18, "%dynamic_smem_size": 19, "%total_smem_size": 20, "%smid": 21, "%nsmid": 22},
    **{f"%{of}.{axis}": 23 + 3 * k + j for k, of in enumerate(_OF_CLUSTERS) for j, axis in enumerate("xyz")},
    **{"%cluster_ctarank": 35, "%cluster_nctarank": 36},
}  # fmt: skip
_FIXED = {"%gridid": 0, "WARP_SZ": LANES, "%envreg0": 0}


@dataclass(frozen=True, slots=True)
class PtxCode:
    """A kernel that can be run."""

    instructions: NDArray[np.void]
    sources: tuple[PtxInstruction, ...]  #: Of each of them, the instruction that it came from
    register_bytes: int
    constants: NDArray[np.uint8]
    specials: NDArray[np.int32]  #: (offset of a register, which special value is put there), shape (n, 2)
    layout: PtxLayout


class Places:
    """A place is an offset in bytes: of a register from 0 on, of a constant its complement."""

    def __init__(self, kernel: PtxKernel) -> None:
        self._types = kernel.registers
        self._end = 0
        self._pool = bytearray()
        self._pooled: dict[tuple[int, bool], int] = {}
        self._fresh = 0
        self.of: dict[str, int] = {name: self.room(SIZES[type_]) for name, type_ in kernel.registers.items()}
        """Register -> its place."""

    def room(self, size: int) -> int:
        """A new register of so many bytes a lane (0: a predicate)."""
        place = self._end
        self._end += REGISTER_BYTES[size]
        return place

    def temporary(self, size: int) -> int:
        """A register that the kernel does not name."""
        return self.of[self.named_temporary(size).name]

    def named_temporary(self, size: int) -> PtxName:
        """The same as an operand."""
        self._fresh += 1
        name = f".t{self._fresh}"
        self.of[name] = self.room(size)
        return PtxName(name)

    def constant(self, bits: int, wide: bool = False) -> int:
        """A number of 4 bytes, or 8: the same for every lane."""
        bits &= 2**64 - 1 if wide else 2**32 - 1
        if (bits, wide) not in self._pooled:
            self._pooled[bits, wide] = len(self._pool)
            self._pool += bits.to_bytes(8 if wide else 4, "little") * LANES
            self._pool += bytes(-len(self._pool) % 64)
        return ~self._pooled[bits, wide]

    def words(self, data: bytes) -> int:
        """Bytes that are the same for a warp: a list that an operation reads itself."""
        place = len(self._pool)
        self._pool += data + bytes(-len(data) % 64)
        return ~place

    def size(self, name: PtxName) -> int | None:
        """Bytes of a register of the kernel; None for anything else."""
        type_ = self._types.get(name.name)
        return None if type_ is None else SIZES[type_]

    @property
    def register_bytes(self) -> int:
        """Of all registers of a warp, with room to read past the last."""
        return -(-(self._end + 512) // 256) * 256

    def constants(self) -> NDArray[np.uint8]:
        """The pool, aligned for vector loads."""
        pool = np.frombuffer(bytes(self._pool) + bytes(512), np.uint8)
        found = layout.aligned(pool.size)
        found[:] = pool
        return found


class CodeRows:
    """What an instruction's translation may use."""

    def __init__(
        self, module: PtxModule, kernel: PtxKernel, image: PtxImage, number: Callable[[str], int], workspace: int
    ) -> None:
        self.kernel, self._image, self._number, self._workspace = kernel, image, number, workspace
        self.layout = layout.of_kernel(module, kernel)
        self.places = Places(kernel)
        self.made: list[dict[str, Any]] = []
        self.functions = frozenset(module.functions)
        self._from: list[PtxInstruction] = []
        self._specials: list[tuple[int, int]] = []
        self._arguments = {each.name for each in kernel.variables if each.space == "param"}

    def code(self, starts: Sequence[int]) -> PtxCode:
        """`starts`: the first row of each instruction."""
        labels = {label: starts[at] for label, at in self.kernel.labels.items()}
        targets: list[int | None] = []
        for row, instruction in zip(self.made, self._from, strict=True):
            label = row.pop("label", None)
            if label is not None and label not in labels:
                raise PtxError(f"there is no label {label}", instruction.line)
            targets.append(labels[label] if label is not None else None)
        falls = [
            row["guard"] != -1 or not (row["kind"] == EXIT or target is not None)
            for row, target in zip(self.made, targets, strict=True)
        ]
        meeting = flow.meeting_points(targets, falls)
        made = np.zeros(len(self.made), CODE)
        made["reconverge"] = meeting
        for k, (row, target) in enumerate(zip(self.made, targets, strict=True)):
            for name, value in (row if target is None else {**row, "target": target}).items():
                made[k][name] = value
        places, specials = self.places, np.array(self._specials, np.int32).reshape(-1, 2)
        return PtxCode(made, tuple(self._from), places.register_bytes, places.constants(), specials, self.layout)

    # --- operands ---

    def value(self, operand: Operand, type_: str, at: PtxInstruction) -> int:
        """The place of an operand that is read as of this type."""
        size = SIZES[type_]
        if isinstance(operand, PtxNumber):
            bits = operand.bits
            if type_ == "pred":
                bits = 0xFFFFFFFF if bits else 0
            if operand.float_bytes and type_ in ("f32", "f64") and operand.float_bytes != size:
                value = float_value(operand)
                bits = int.from_bytes(struct.pack("<d" if size == 8 else "<f", value), "little")
            return self.places.constant(bits, size == 8)
        if isinstance(operand, Negated):
            found = self.places.temporary(0)
            self.emit(at, "not.pred", d=found, a=self.value(operand.name, "pred", at))
            return found
        if not isinstance(operand, PtxName):
            raise PtxError(f"{at.opcode} with an operand that it cannot have", at.line)
        if operand.name in self.places.of:
            have = self.places.size(operand)
            if have == 8 and 0 < size < 8:  # the lower part of a wide register
                low = self.places.temporary(4)
                self.emit(at, "cvt.u32.u64", d=low, a=self.places.of[operand.name])
                return low
            if have is not None and 0 < have < 8 and size == 8:
                raise PtxError(f"{at.opcode} reads {operand.name}, which has {8 * have} bits, as 64", at.line)
            return self.places.of[operand.name]
        if operand.name in _SPECIALS:
            self.places.of[operand.name] = self.places.room(4)
            self._specials.append((self.places.of[operand.name], _SPECIALS[operand.name]))
            return self.places.of[operand.name]
        if operand.name in _FIXED:
            return self.places.constant(_FIXED[operand.name], size == 8)
        if operand.name in ("%envreg1", "%envreg2"):
            half = self._workspace >> 32 if operand.name == "%envreg1" else self._workspace
            return self.places.constant(half)
        return self.places.constant(self.address(operand, at), size == 8)

    def address(self, name: PtxName, at: PtxInstruction) -> int:
        """A variable's address in its own space (a generic one for global memory, which is the same)."""
        for places in (self.layout.shared, self.layout.local, self.layout.parameters, self._image.constants):
            if name.name in places:
                return places[name.name] + name.offset
        if name.name in self._image.globals or name.name in self._image.functions:
            return self._image.address(name.name) + name.offset
        raise PtxError(f"{name.name} is not known", at.line)

    def result(self, operand: Operand, size: int, at: PtxInstruction) -> int:
        """The place of a register that is written, of so many bytes a lane."""
        if isinstance(operand, PtxName) and operand.name == "_":
            return self.places.temporary(size)
        if not isinstance(operand, PtxName) or operand.name not in self.places.of:
            raise PtxError(f"{at.opcode} with a result that is not a register", at.line)
        return self.places.of[operand.name]

    def where(self, at: PtxInstruction, operand: Operand, words: Sequence[str]) -> dict[str, Any]:
        """The fields of an address: a place, an offset, and the space that the opcode's words name."""
        if not isinstance(operand, PtxAddress):
            raise PtxError(f"{at.opcode} with an operand that is not an address", at.line)
        word = next((each for each in words if each.partition("::")[0] in SPACES), "")
        space = SPACES.get(word.partition("::")[0], 0)
        base = operand.base
        if space == SPACES["param"] and (
            word == "param::func" or at.opcode.startswith("st") or getattr(base, "name", "") in self._arguments
        ):
            space = ARGUMENT
        place, offset, wide = self.pointer(at, operand)
        return {"space": space, "a": place, "immediate": offset, "flags": 4 if wide else 0}

    def pointer(self, at: PtxInstruction, operand: Operand) -> tuple[int, int, bool]:
        """(place, offset, whether it has 64 bits) of an address."""
        if not isinstance(operand, PtxAddress):
            raise PtxError(f"{at.opcode} with an operand that is not an address", at.line)
        base = operand.base
        if isinstance(base, PtxName) and base.name in self.kernel.registers:
            return self.places.of[base.name], operand.offset, self.places.size(base) == 8
        begin = base.bits if isinstance(base, PtxNumber) else self.address(base, at)
        return self.places.constant(begin + operand.offset, True), 0, True

    def items(self, operand: Operand) -> tuple[Operand, ...]:
        return operand.items if isinstance(operand, PtxVector) else (operand,)

    # --- rows ---

    def emit(self, at: PtxInstruction, operation: str | None, *, kind: int = PLAIN, **fields: Any) -> None:
        """One row; PtxError where there is no such operation. It is guarded as its instruction is."""
        number = -1
        if operation is not None:
            number = self._number(operation)
            if number < 0:
                raise unknown(at)
        row: dict[str, Any] = {"operation": number, "kind": kind, "guard": -1, "target": -1, **fields}
        row.setdefault("counted", 0)
        if "vector" in row:
            row["vector"] = [*row["vector"], *[0] * (8 - len(row["vector"]))]
        if at.guard is not None and row["guard"] == -1:
            negated = isinstance(at.guard, Negated)
            name = at.guard.name if isinstance(at.guard, Negated) else at.guard
            row["guard"] = self.value(name, "pred", at)
            row["negated"] = row.get("negated", 0) | negated
        self.made.append(row)
        self._from.append(at)

    def branch(self, at: PtxInstruction, label: str, predicate: int | None = None) -> None:
        """To a label, where the guard holds, or this predicate instead."""
        self.emit(at, None, kind=BRANCH, label=label, **({} if predicate is None else {"guard": predicate}))


def unknown(at: PtxInstruction) -> PtxError:
    return PtxError(f"{at.opcode} is not known here", at.line)


def pair(operand: Operand) -> tuple[PtxName, PtxName | None]:
    """`d|p`, or `d` alone."""
    if isinstance(operand, RegisterPair):
        return operand.first, operand.second
    assert isinstance(operand, PtxName)
    return operand, None
