"""Finds the data that decide what a program does: buffers whose values reach an address or a branch.

A launch of which only some blocks were run leaves buffers that do not hold right values. That does no harm to counts
unless a later launch goes by those values. What may be is found in the PTX alone, without regard to the order of
instructions: a register depends on all that any instruction may put into it.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from fusiond.model.program import Bytes, HostCall, Launch, Pointer, Program
from fusiond.model.ptx.flat import PtxInstruction, PtxKernel, names
from fusiond.model.ptx.operands import Operand, PtxAddress, PtxGroup, PtxName, PtxTensorAddress

ANY = "*"  #: An address of which nobody knows where it is from
_ENDS = ("ret", "exit", "bra", "brx", "bar", "barrier", "trap")
_ON_CHIP = ("ldmatrix", "wgmma")  #: What puts values from shared memory into its first operand


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """What a kernel does with the memory behind its parameters (or its module's variables, by name), or `ANY`."""

    reads: frozenset[str]
    writes: frozenset[str]
    steering: frozenset[str]  #: Whose values may reach an address or a branch


def uses(kernel: PtxKernel, pointers: Collection[str]) -> Uses:
    """Of a kernel whose parameters `pointers` are, or hold, addresses."""
    return _Analysis(kernel, pointers).uses()


class _Analysis:
    def __init__(self, kernel: PtxKernel, pointers: Collection[str]) -> None:
        self._kernel = kernel
        self._own = {each.name for each in kernel.variables}
        self._arguments = {each.name for each in kernel.variables if each.space == "param"}  # of calls
        self._parameters = {each.name for each in kernel.parameters}
        self._pointers = set(pointers)
        self._places: dict[str, set[str]] = defaultdict(set)  # register -> what it may point into
        self._values: dict[str, set[str]] = defaultdict(set)  # register -> whose values it may depend on
        self._on_chip: set[str] = set()  # the same of shared and local memory, as a whole
        self._mapped: set[str] = set()  # what tensor maps that the kernel makes may point into
        self._reads: set[str] = set()
        self._writes: set[str] = set()
        self._steering: set[str] = set()

    def uses(self) -> Uses:
        size, before = 0, -1
        while size != before:
            for each in self._kernel.instructions:
                self._one(each)
            known = [*self._places.values(), *self._values.values(), self._on_chip, self._mapped]
            size, before = sum(map(len, [*known, self._reads, self._writes, self._steering])), size
        return Uses(reads=frozenset(self._reads), writes=frozenset(self._writes), steering=frozenset(self._steering))

    def _one(self, at: PtxInstruction) -> None:
        base, *rest = at.opcode.split(".")
        guard = self._of(self._values, [at.guard] if at.guard is not None else [])
        addresses = [each for each in at.operands if isinstance(each, PtxAddress)]
        if addresses or base in _ENDS:
            self._steering |= guard
        if base == "brx":
            self._steering |= self._of(self._values, at.operands[:1])
        if base in ("ld", "ldu", "st", "atom", "red") and addresses:
            self._access(at, base, rest, addresses[0])
            return
        if base in ("cp", "tensormap") or (base == "wmma" and addresses):
            self._copy(at, base, rest)
            return
        target, sources = at.operands[:1], at.operands[1:]
        if target and isinstance(target[0], PtxAddress):  # no result
            target, sources = (), at.operands
        values, places = guard | self._of(self._values, sources), self._of(self._places, sources)
        if addresses:
            self._steering |= self._of(self._values, addresses)
        if base == "stmatrix":
            self._on_chip |= values
        elif base in _ON_CHIP:
            values |= self._on_chip
        self._give(_names(target), values, places)

    def _give(self, registers: Iterable[str], values: set[str], places: Collection[str] = ()) -> None:
        for name in registers:
            self._values[name] |= values
            self._places[name].update(places)

    def _copy(self, at: PtxInstruction, base: str, rest: list[str]) -> None:
        """Between global and shared memory, or registers (`wmma.load`, `wmma.store`): the target stands first, but for
        what is loaded to registers. A tensor map's values are where it points to."""
        ends = [each for each in at.operands if isinstance(each, PtxAddress | PtxTensorAddress)]
        self._steering |= self._of(self._values, ends)
        if base == "tensormap" and "replace" in rest:  # into shared memory, as a rule
            self._on_chip |= self._of(self._values, at.operands[1:])
            self._mapped |= self._of(self._places, at.operands[1:])
            return
        given = self._on_chip | self._of(self._values, at.operands)
        spaces = [each.partition("::")[0] for each in rest]
        spaces = [each for each in spaces if each in ("global", "shared")]
        for k, each in enumerate(ends[:2] if base != "wmma" else ends[:1]):
            space = spaces[k] if k < len(spaces) else "global"
            if space != "shared" or isinstance(each, PtxTensorAddress):
                given |= self._moved(
                    each, written=rest[0] == "store" if base == "wmma" else k == 0, again="reduce" in rest
                )
        if base == "wmma" and rest[0] == "load":
            self._give(_names(at.operands[:1]), given)
        else:
            self._on_chip |= given

    def _moved(self, end: PtxAddress | PtxTensorAddress, *, written: bool, again: bool) -> set[str]:
        """The memory at an end of a copy in global memory, where that is read (`again`: though it is written)."""
        where = self._of(self._places, [end])
        if isinstance(end, PtxTensorAddress):
            where |= self._mapped
        memory = self._memory(where)
        if written:
            self._writes |= memory
        if written and not again:
            return set()
        self._reads |= memory
        return memory

    def _memory(self, where: set[str]) -> set[str]:
        return where & self._pointers or where - self._parameters or {ANY}

    def _access(self, at: PtxInstruction, base: str, rest: list[str], address: PtxAddress) -> None:
        spaces = {word.partition("::")[0] for word in rest}
        data = at.operands[1:] if base in ("st", "red") else at.operands[2:]
        target = at.operands[:1] if base not in ("st", "red") else ()
        self._steering |= self._of(self._values, [address.base])
        where = self._of(self._places, [address.base])
        found: set[str] = set()
        if "param" in spaces:
            pointing, handed = where, self._handed(address)
            if base == "st":
                self._give(handed, self._of(self._values, data), self._of(self._places, data))
            for name in handed:
                found |= self._values[name]
                pointing = pointing | self._places[name]
        else:
            pointing = set()
            generic = not spaces & {"global", "shared", "local", "const"}
            memory = self._memory(where)
            if generic or spaces & {"global", "const"}:
                if base != "st":
                    found |= memory
                    self._reads |= memory
                if base not in ("ld", "ldu"):
                    self._writes |= memory
            if generic or spaces & {"shared", "local"}:
                found |= self._on_chip
                self._on_chip |= self._of(self._values, data)
        self._give(_names(target), found, pointing)

    def _handed(self, address: PtxAddress) -> set[str]:
        """The arguments of calls that an address may be of."""
        name = address.base.name if isinstance(address.base, PtxName) else ""
        return {name} if name in self._arguments else set() if name in self._parameters else self._arguments

    def _of(self, table: Mapping[str, set[str]], operands: Iterable[Operand]) -> set[str]:
        found: set[str] = set()
        for name in _names(operands):
            found |= table.get(name, set())
            variable = name not in self._kernel.registers and name not in self._own and not name.startswith("%")
            if table is self._places and variable:
                found.add(name)  # a parameter, or a variable of the module
        return found


def _names(operands: Iterable[Operand]) -> Iterator[str]:
    for each in operands:
        if not isinstance(each, PtxGroup):  # of a call that was expanded: the function's body stands behind it
            yield from names(each)


# --- of a program ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    whole: Mapping[str, str]  #: Launch that must run whole -> why
    buffers: frozenset[str]  #: Whose contents at the start decide what is done, as the others' do not
    steered: frozenset[str]  #: Launches that go by values in memory: what their blocks do may be anything
    touched: Mapping[str, tuple[frozenset[str], frozenset[str]]]
    """Launch -> arenas (buffers that are in none: their own names) that it reads, and that it writes."""


def needs(program: Program, of_launch: Callable[[Launch], tuple[PtxKernel, Mapping[str, str]]]) -> Needs:
    """`of_launch` gives a launch's kernel, and which buffer each variable of its module is. Buffers of one arena are
    taken as one."""
    arenas = {each.name: each.arena or each.name for each in program.buffers}
    everything = frozenset(arenas.values())
    needed: set[str] = set()
    whole: dict[str, str] = {}
    touched: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
    steered: set[str] = set()
    for step in reversed(program.steps):
        if isinstance(step, Launch):
            kernel, symbols = of_launch(step)
            behind = _behind(kernel, step, arenas) | {name: {arenas[each]} for name, each in symbols.items()}
            found = uses(kernel, [name for name, each in behind.items() if each])

            def held(names: Iterable[str], behind: Mapping[str, set[str]] = behind) -> set[str]:
                # A variable that is not a buffer is kept under its own name: it too holds values.
                parts = [everything if each == ANY else behind.get(each, {each}) for each in names]
                return set().union(*parts)

            reads, writes, steering = (held(each) for each in (found.reads, found.writes, found.steering))
            touched[step.name] = frozenset(reads), frozenset(writes)
            if found.steering:
                steered.add(step.name)
            if steering & writes:
                whole[step.name] = f"it goes by what it writes itself ({_said(steering & writes)})"
            if writes & needed:
                whole[step.name] = f"a later step goes by the values in {_said(writes & needed)}"
            if step.name in whole:
                needed |= reads
            needed |= steering
        elif step.messages:
            needed |= {arenas[source] for source, target in step.messages if arenas[target] in needed}
        elif isinstance(step, HostCall):
            needed |= {arenas[each] for each in step.touched}
    buffers = frozenset(name for name, arena in arenas.items() if arena in needed)
    return Needs(whole=whole, buffers=buffers, steered=frozenset(steered), touched=touched)


def _behind(kernel: PtxKernel, step: Launch, arenas: Mapping[str, str]) -> dict[str, set[str]]:
    """Parameter -> arenas that it points into."""
    found: dict[str, set[str]] = {}
    for parameter, argument in zip(kernel.parameters, step.arguments, strict=False):
        inside = argument.pointers if isinstance(argument, Bytes) else ()
        names = [argument.buffer] if isinstance(argument, Pointer) else [name for _, name in inside]
        found[parameter.name] = {arenas[each] for each in names}
    return found


def _said(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:3])
