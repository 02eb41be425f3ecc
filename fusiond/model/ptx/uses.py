"""Which of the memory behind each parameter a kernel reads and writes.

Flow-insensitive: a register may hold the address of whatever any instruction puts into it, and shared memory whatever
is stored there. Addresses are followed from `ld.param` through arithmetic, moves, selections and conversions; what was
loaded from global memory in elements of 8 bytes may be any address, and so may be narrower ones that nothing else is
known of. Pointer arithmetic keeps to its pointer: what is added to a parameter that is declared as a pointer (`.ptr`),
be it from memory, as the index of a gather, or another parameter, as a stride, is an offset. By a tensor map any
address may be reached that the kernel puts into one. A parameter below 8 bytes is never taken for an address. Nothing
is ever said not to be written that is.
"""

import functools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fusiond.model.ptx import flat
from fusiond.model.ptx.flat import PtxInstruction, PtxKernel
from fusiond.model.ptx.operands import Operand, PtxAddress, PtxNumber, PtxTensorAddress, PtxVector
from fusiond.model.ptx.tree import Module

_SPACES = {"global", "shared", "shared::cta", "shared::cluster", "local", "const", "param"}
_SUMS = {"add", "sub", "mad", "or"}
_READS = {"ld", "ldu", "prefetch", "prefetchu", "applypriority", "tex", "tld4", "suld", "txq", "suq", "fence"}
_ELSEWHERE = {"ldmatrix", "stmatrix", "mbarrier", "tcgen05", "clusterlaunchcontrol"}
"""Their addresses are of shared or of tensor memory, whatever they say."""
_WIDE = {"b64", "u64", "s64", "f64", "b128"}
_CHIP = "[]"  #: Stands for all memory on the chip among the registers


@dataclass(frozen=True, slots=True)
class ParameterUse:
    """Of the memory that a parameter points to."""

    read: bool
    written: bool
    types: frozenset[str] = field(default=frozenset(), compare=False)
    """Of the elements that are read and written by its address (`f32`, `b32`), as far as that is known."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Of all memory that a kernel may reach."""

    parameters: tuple[ParameterUse, ...]
    variables: Mapping[str, ParameterUse]  #: Of the module, in global and constant memory
    anywhere: bool  #: It follows addresses that it has found in memory, or hands some to a function


def of_parameters(module: Module, entry: str) -> tuple[ParameterUse, ...]:
    """By each of an entry's parameters, in order; a number used as an address counts too. KeyError, PtxError."""
    return of_memory(module, entry).parameters


def of_memory(module: Module, entry: str, pointers: Collection[int] = ()) -> MemoryUse:
    """The same, and by the module's variables; `pointers`: parameters that are, though nothing in it declares them.
    KeyError, PtxError."""
    whole = flat.flattened(module)
    kernel = whole.kernels[entry]
    declared = module.function(entry).parameters
    known = sum(1 << k for k, each in enumerate(declared) if ".ptr" in each.attributes or k in pointers)
    variables = [each.name for each in whole.variables if each.space in ("global", "const")]
    count = len(kernel.parameters)
    wide = sum(1 << k for k, each in enumerate(kernel.parameters) if (each.elements or 0) and each.size_bytes >= 8)
    following = _Uses(kernel, known, wide | (1 << len(variables)) - 1 << count, variables)
    found = following.all()
    return MemoryUse(found[:count], dict(zip(variables, found[count:], strict=True)), following.anywhere)


class _Uses:
    """A set of parameters is a number with a bit for each. Behind them: any address; what is one only where there is no
    other; in memory on the chip, what was copied there."""

    def __init__(self, kernel: PtxKernel, pointers: int, wide: int, variables: Sequence[str]) -> None:
        self._kernel, self._pointers, self._wide = kernel, pointers, wide
        names = [*(each.name for each in kernel.parameters), *variables]
        self._count = len(names)
        self._any, self._narrow, self._copied = (1 << self._count + k for k in range(3))
        self._places = {name: 1 << k for k, name in enumerate(names)}
        self._held: dict[str, int] = {}
        self.anywhere = False  #: Whether an address is used that is no parameter's; known after `all`

    def all(self) -> tuple[ParameterUse, ...]:
        changed = True
        while changed:
            changed = False
            for each in self._kernel.instructions:
                changed |= self._followed(each)
        read = written = mapped = 0
        types: dict[int, set[str]] = {}
        for each in self._kernel.instructions:
            if each.opcode.startswith("tensormap.replace") and ".global_address" in each.opcode:
                mapped |= self._of(each.operands[-1])
        for each in self._kernel.instructions:
            if each.opcode.partition(".")[0] == "call":
                read = written = self._any
                break
            for address, reads, writes in _accesses(each):
                reached = self._reached(address) | (mapped if isinstance(address, PtxTensorAddress) else 0)
                read |= reached * reads
                written |= reached * writes
                types.setdefault(reached, set()).add(each.opcode.rpartition(".")[2])
        self.anywhere = bool((read | written) & self._any)
        read, written = (self._wide if each & self._any else each for each in (read, written))
        return tuple(
            ParameterUse(
                bool(read >> k & 1),
                bool(written >> k & 1),
                frozenset().union(*(found for reached, found in types.items() if reached >> k & 1)),
            )
            for k in range(self._count)
        )

    def _followed(self, each: PtxInstruction) -> bool:
        """Whether a register that it sets, or memory on the chip, may hold more than was known."""
        words = each.opcode.split(".")
        addresses = [given for given in each.operands if isinstance(given, PtxAddress | PtxTensorAddress)]
        first, *rest = each.operands or (PtxNumber(0),)
        values = [given for given in rest if given not in addresses]
        changed = False
        if addresses and _on_chip(words):
            copied = self._copied if words[0] == "cp" else 0
            changed |= self._add(_CHIP, functools.reduce(operator.or_, map(self._of, values), copied))
        if first in addresses:
            return changed
        made = self._loaded(words, addresses[0]) if addresses else self._computed(words, rest)
        for name in flat.names(first):
            if self._kernel.registers.get(name) not in (None, "pred"):
                changed |= self._add(name, made)
        return changed

    def _add(self, name: str, made: int) -> bool:
        before = self._held.get(name, 0)
        self._held[name] = before | made
        return made & ~before != 0

    def _loaded(self, words: list[str], address: Operand) -> int:
        if words[0] == "ld" and "param" in words:
            own = self._of(address)
            return own if own or {*flat.names(address)} <= self._places.keys() else self._any
        anything = self._any if not _WIDE.isdisjoint(words) else self._narrow
        stored = self._held.get(_CHIP, 0) if _on_chip(words) else 0
        known = stored & ~self._copied | (anything if stored & self._copied else 0)
        return known | (0 if _only_on_chip(words) else anything)

    def _computed(self, words: list[str], sources: list[Operand]) -> int:
        total = 0
        for held in map(self._of, sources):
            if words[0] in _SUMS and bool(held & self._pointers) != bool(total & self._pointers):
                total = held if held & self._pointers else total
            else:
                total |= held
        packed = words[0] == "mov" and any(isinstance(each, PtxVector) for each in sources)
        return self._any if packed and total == self._narrow else total

    def _reached(self, address: Operand) -> int:
        """The parameters whose memory an address may be of; `_any` of all."""
        held = self._of(address)
        return self._any if held == self._narrow else held & ~self._narrow

    def _of(self, operand: Operand) -> int:
        total = 0
        for name in flat.names(operand.base if isinstance(operand, PtxTensorAddress) else operand):
            total |= self._places.get(name, 0) & self._wide | self._held.get(name, 0)
        return total


def _on_chip(words: list[str]) -> bool:
    """Whether an instruction may reach shared, local or tensor memory."""
    return "global" not in words or any(word.startswith("shared") for word in words)


def _only_on_chip(words: list[str]) -> bool:
    return "local" in words or ("global" not in words and any(word.startswith("shared") for word in words))


def _accesses(each: PtxInstruction) -> Iterator[tuple[Operand, bool, bool]]:
    """The operands by which an instruction may reach global memory: whether it reads there, and whether it writes."""
    addresses = [given for given in each.operands if isinstance(given, PtxAddress | PtxTensorAddress)]
    words = each.opcode.split(".")
    spaces = [word for word in words if word in _SPACES]
    if not addresses or words[0] in _ELSEWHERE or (spaces and not {"global", "const"}.intersection(spaces)):
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
