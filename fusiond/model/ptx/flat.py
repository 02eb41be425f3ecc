"""A function as one list of instructions with typed operands, resolved scopes and unique names, for the interpreter
and for data-flow analyses."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fusiond.model.ptx import operands, parser
from fusiond.model.ptx.operands import (
    Negated,
    Operand,
    PtxAddress,
    PtxGroup,
    PtxName,
    PtxNumber,
    PtxTensorAddress,
    PtxVector,
    RegisterPair,
)
from fusiond.model.ptx.tree import (
    SIZES,
    Directive,
    Function,
    Instruction,
    Label,
    Module,
    PtxBlock,
    PtxError,
    PtxRegisters,
    Variable,
)


@dataclass(frozen=True, slots=True)
class PtxInstruction:
    opcode: str  #: With its modifiers: `ld.global.nc.v4.f32`
    operands: tuple[Operand, ...]
    guard: PtxName | Negated | None
    line: int  #: In the PTX
    file: int
    source_line: int
    """The source file's number and line, as `.loc` has them; 0 where it was compiled without -lineinfo."""


@dataclass(frozen=True, slots=True)
class PtxVariable:
    name: str
    space: str  #: `global`, `shared`, `const`, `local` or `param`
    type: str
    elements: int | None  #: None: an array of no length (dynamic shared memory)
    alignment: int
    values: tuple[int | PtxName, ...] = ()  #: Its first elements' bits, or addresses; the others are 0

    @property
    def size_bytes(self) -> int:
        return SIZES[self.type] * (self.elements or 0)


@dataclass(frozen=True, slots=True)
class PtxKernel:
    name: str
    parameters: tuple[PtxVariable, ...]
    registers: Mapping[str, str]  #: Register -> type; `%r<5>` is written out
    variables: tuple[PtxVariable, ...]  #: Of the kernel's own: shared and local ones, and the parameters of its calls
    instructions: tuple[PtxInstruction, ...]
    labels: Mapping[str, int]  #: Label -> the number of the instruction that it stands before
    returns: tuple[PtxVariable, ...] = ()  #: Of a function
    branch_targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The label of a table -> the labels in it, for `brx.idx`."""


@dataclass(frozen=True, slots=True)
class PtxModule:
    files: Mapping[int, str]
    variables: tuple[PtxVariable, ...]
    kernels: Mapping[str, PtxKernel]
    functions: Mapping[str, PtxKernel] = field(default_factory=dict)  #: Those with a body, that are called


def parse(text: str) -> PtxModule:
    """The straight form of a PTX text. PtxError where it is not understood."""
    return flattened(parser.parse(text))


def flattened(module: Module) -> PtxModule:
    files: dict[int, str] = {}
    for item in module.items:
        if isinstance(item, Directive) and item.kind == "file":
            files[int(item.words[1])] = item.words[2].strip('"')
    with_bodies = [each for each in module.functions if each.body is not None]
    return PtxModule(
        files=files,
        variables=tuple(variable(each) for each in module.variables),
        kernels={each.name: _Flattener(each).kernel() for each in with_bodies if each.kind == "entry"},
        functions={each.name: _Flattener(each).kernel() for each in with_bodies if each.kind == "func"},
    )


def variable(declared: Variable, name: str = "") -> PtxVariable:
    """A variable with its initial values as numbers."""
    values: list[int | PtxName] = []
    for each in operands.of_words([word for word in declared.initial if word not in "{}"], declared.line):
        if not isinstance(each, PtxName | PtxNumber):
            raise PtxError("initial values that are not understood", declared.line)
        values.append(each.bits if isinstance(each, PtxNumber) else each)
    elements = len(values) if declared.elements is None and values else declared.elements
    return PtxVariable(
        name or declared.name, declared.space, declared.type, elements, declared.alignment, tuple(values)
    )


class _Flattener:
    """Walks a function's blocks with the names that each of them declares."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._registers: dict[str, str] = {}
        self._variables: list[PtxVariable] = []
        self._instructions: list[PtxInstruction] = []
        self._labels: dict[str, int] = {}
        self._targets: dict[str, tuple[str, ...]] = {}
        self._scopes: list[dict[str, str]] = []
        self._taken: set[str] = set()
        self._loc = (0, 0)

    def kernel(self) -> PtxKernel:
        function = self._function
        assert function.body is not None
        given = tuple(variable(each) for each in function.parameters)
        returns = tuple(variable(each) for each in function.returns)
        for each in (*given, *returns):
            if each.space == "reg":
                self._registers[each.name] = each.type
        self._block(function.body)
        return PtxKernel(
            function.name, given, self._registers, tuple(self._variables), tuple(self._instructions), self._labels,
            returns, self._targets,
        )  # fmt: skip

    def _block(self, block: PtxBlock) -> None:
        scope = self._scope(block)
        self._scopes.append(scope)
        label = ""
        for each in block.statements:
            if isinstance(each, Instruction):
                self._instructions.append(self._instruction(each))
            elif isinstance(each, Label):
                label = scope[each.name]
                self._labels[label] = len(self._instructions)
                continue
            elif isinstance(each, PtxBlock):
                self._block(each)
            elif isinstance(each, Directive):
                self._directive(each, label)
            elif isinstance(each, Variable):
                self._variables.append(variable(each, scope[each.name]))
            label = ""
        self._scopes.pop()

    def _scope(self, block: PtxBlock) -> dict[str, str]:
        """What a block declares, each name with one that the function has nowhere else."""
        found: dict[str, str] = {}
        for each in block.statements:
            if isinstance(each, PtxRegisters):
                for name in each.each():
                    found[name] = self._unique(name)
                    self._registers[found[name]] = each.type
            elif isinstance(each, Variable | Label):
                found[each.name] = self._unique(each.name)
        return found

    def _unique(self, name: str) -> str:
        unique = name if name not in self._taken else f"{name}.{len(self._taken)}"
        self._taken.add(unique)
        return unique

    def _directive(self, directive: Directive, label: str) -> None:
        if directive.kind == "loc":
            self._loc = (int(directive.words[1]), int(directive.words[2]))
        elif directive.kind == "branchtargets":
            self._targets[label] = tuple(self._named(each) for each in directive.words[1:] if each != ",")

    def _instruction(self, at: Instruction) -> PtxInstruction:
        guard: PtxName | Negated | None = None
        if at.guard:
            name = PtxName(self._named(at.guard.lstrip("!")))
            guard = Negated(name) if at.guard[0] == "!" else name
        typed = tuple(self._resolved(each) for each in operands.parse(at))
        return PtxInstruction(at.opcode, typed, guard, at.line, *self._loc)

    def _named(self, name: str) -> str:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return name

    def _name(self, name: PtxName) -> PtxName:
        found = self._named(name.name)
        return name if found == name.name else PtxName(found, name.offset)

    def _resolved(self, operand: Operand) -> Operand:
        if isinstance(operand, PtxName):
            return self._name(operand)
        if isinstance(operand, PtxNumber):
            return operand
        if isinstance(operand, PtxAddress):
            base = operand.base
            return operand if isinstance(base, PtxNumber) else PtxAddress(self._name(base), operand.offset)
        if isinstance(operand, PtxVector):
            return PtxVector(tuple(self._resolved(each) for each in operand.items))
        if isinstance(operand, PtxGroup):
            return PtxGroup(tuple(self._resolved(each) for each in operand.items))
        if isinstance(operand, Negated):
            return Negated(self._name(operand.name))
        if isinstance(operand, RegisterPair):
            return RegisterPair(self._name(operand.first), self._name(operand.second))
        coordinates = PtxVector(tuple(self._resolved(each) for each in operand.coordinates.items))
        more = tuple(self._resolved(each) for each in operand.more)
        return PtxTensorAddress(self._name(operand.base), coordinates, more)


def names(given: Operand) -> Iterator[str]:
    """The names in an operand."""
    if isinstance(given, PtxName):
        yield given.name
    elif isinstance(given, PtxAddress):
        yield from names(given.base)
    elif isinstance(given, PtxVector | PtxGroup):
        for each in given.items:
            yield from names(each)
    elif isinstance(given, Negated):
        yield given.name.name
    elif isinstance(given, RegisterPair):
        yield from (given.first.name, given.second.name)
    elif isinstance(given, PtxTensorAddress):
        yield given.base.name
        for each in (*given.coordinates.items, *given.more):
            yield from names(each)


__all__ = ["PtxError", "PtxInstruction", "PtxKernel", "PtxModule", "PtxVariable", "flattened", "names", "parse"]
