"""What a kernel reads and writes: of the memory that each of its parameters points to.

Flow-insensitive: a register may hold the address of whatever any instruction puts into it. Addresses are followed from
`ld.param` through arithmetic, moves, selections and conversions; a value that was loaded from memory, or that a call
gave, may be any address. Pointer arithmetic keeps to its pointer: what is added to a parameter that is declared as a
pointer (`.ptr`), be it from memory, as the index of a gather, or another parameter, as a stride, is an offset. By a
tensor map any address may be reached that the kernel puts into one. Nothing is ever said not to be written that is;
numbers below 8 bytes are never taken for addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusiond.ptx import flat
from fusiond.ptx.flat import PtxInstruction, PtxKernel
from fusiond.ptx.operands import Operand, PtxAddress, PtxTensorAddress
from fusiond.ptx.tree import Module

_SPACES = {"global", "shared", "shared::cta", "shared::cluster", "local", "const", "param"}
_SUMS = {"add", "sub", "mad", "or"}
_READS = {"ld", "ldu", "prefetch", "prefetchu", "applypriority", "tex", "tld4", "suld", "txq", "suq", "fence"}
_ELSEWHERE = {"ldmatrix", "stmatrix", "mbarrier", "tcgen05", "clusterlaunchcontrol"}
"""Their addresses are of shared or of tensor memory, whatever they say."""


@dataclass(frozen=True, slots=True)
class ParameterUse:
    """Of the memory that a parameter points to."""

    read: bool
    written: bool


def of_parameters(module: Module, entry: str) -> tuple[ParameterUse, ...]:
    """By each of an entry's parameters, in order; a number used as an address counts too. KeyError, PtxError."""
    kernel = flat.flattened(module).kernels[entry]
    declared = module.function(entry).parameters
    pointers = sum(1 << k for k, each in enumerate(declared) if ".ptr" in each.attributes)
    wide = sum(1 << k for k, each in enumerate(kernel.parameters) if (each.elements or 0) and each.size_bytes >= 8)
    return _Uses(kernel, pointers, wide).all()


class _Uses:
    """A set of parameters is a number with a bit for each; the bit behind them stands for any address."""

    def __init__(self, kernel: PtxKernel, pointers: int, wide: int) -> None:
        self._kernel, self._pointers, self._wide = kernel, pointers, wide
        self._any = 1 << len(kernel.parameters)
        self._places = {each.name: 1 << k for k, each in enumerate(kernel.parameters)}
        self._held: dict[str, int] = {}

    def all(self) -> tuple[ParameterUse, ...]:
        changed = True
        while changed:
            changed = False
            for each in self._kernel.instructions:
                changed |= self._followed(each)
        read = written = mapped = 0
        for each in self._kernel.instructions:
            if each.opcode.startswith("tensormap.replace") and ".global_address" in each.opcode:
                mapped |= self._of(each.operands[-1])
        for each in self._kernel.instructions:
            if each.opcode.partition(".")[0] == "call":
                read = written = self._any
                break
            for address, reads, writes in _accesses(each):
                reached = self._of(address) | (mapped if isinstance(address, PtxTensorAddress) else 0)
                read |= reached * reads
                written |= reached * writes
        read, written = (self._wide if each & self._any else each for each in (read, written))
        count = len(self._kernel.parameters)
        return tuple(ParameterUse(bool(read >> k & 1), bool(written >> k & 1)) for k in range(count))

    def _followed(self, each: PtxInstruction) -> bool:
        """Whether a register that it sets may hold more than was known."""
        if not each.operands or isinstance(each.operands[0], PtxAddress | PtxTensorAddress):
            return False
        first, *rest = each.operands
        made = self._made(each, rest)
        changed = False
        for name in flat.names(first):
            if self._kernel.registers.get(name) not in (None, "pred") and made & ~self._held.get(name, 0):
                self._held[name] = self._held.get(name, 0) | made
                changed = True
        return changed

    def _made(self, each: PtxInstruction, sources: list[Operand]) -> int:
        words = each.opcode.split(".")
        loaded = [given for given in sources if isinstance(given, PtxAddress | PtxTensorAddress)]
        if loaded:
            own = self._of(loaded[0]) if words[0] == "ld" and "param" in words else 0
            names = {*flat.names(loaded[0])}
            return own if own or names <= self._places.keys() else self._any
        total = 0
        for held in map(self._of, sources):
            if words[0] in _SUMS and bool(held & self._pointers) != bool(total & self._pointers):
                total = held if held & self._pointers else total
            else:
                total |= held
        return total

    def _of(self, operand: Operand) -> int:
        total = 0
        for name in flat.names(operand.base if isinstance(operand, PtxTensorAddress) else operand):
            total |= self._places.get(name, 0) & self._wide | self._held.get(name, 0)
        return total


def _accesses(each: PtxInstruction) -> Iterator[tuple[Operand, bool, bool]]:
    """The operands by which an instruction may reach global memory: whether it reads there, and whether it writes."""
    addresses = [given for given in each.operands if isinstance(given, PtxAddress | PtxTensorAddress)]
    words = each.opcode.split(".")
    spaces = [word for word in words if word in _SPACES]
    if not addresses or words[0] in _ELSEWHERE or (spaces and "global" not in spaces):
        return
    if words[0] == "cp" and len(spaces) > 1:
        if spaces[0] == "global":
            yield addresses[0], words[1] == "reduce", True
        elif len(addresses) > 1:
            yield addresses[1], True, False
        return
    reads = words[0] in _READS or words[:2] == ["wmma", "load"] or "prefetch" in words
    writes = words[0] in ("st", "sust") or words[:2] == ["wmma", "store"]
    for address in addresses:
        yield address, reads or not writes, writes or not reads
