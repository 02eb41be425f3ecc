"""Expands calls of functions in place, so that a kernel is one list of instructions.

    call.uni (retval0), twice, (param0);   -->   the body of `twice`: its parameter twice_param_0 is param0, its result
                                                 retval0; its registers and local arrays have names of this call, and
                                                 `ret` is a branch behind it

A call through a pointer is a comparison for each function whose address the module takes and that has as many
parameters and results, and a call of it behind that; any other address fails. What is recursive or without a body stays
a call, which nothing here runs (`vprintf` and `__assertfail` apart).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from fusiond.devices.counting.layout import function_addresses
from fusiond.model.ptx import flat
from fusiond.model.ptx.flat import PtxInstruction, PtxKernel, PtxModule, PtxVariable
from fusiond.model.ptx.operands import Negated, Operand, PtxGroup, PtxName, PtxNumber

Given: TypeAlias = Sequence[Operand]

EXPANDED = "call.expanded"  #: The opcode that is left of a call, in front of the body
LOST = "trap.call"  #: Fails where a pointer was to none of the functions that it may be
MOST = 200_000  #: Instructions of a kernel, beyond which no call is expanded any more


def expanded(module: PtxModule) -> PtxModule:
    if not module.functions:
        return module
    pointed = _pointed_to(module)
    kernels = {name: _Expansion(module, kernel, pointed).kernel() for name, kernel in module.kernels.items()}
    return dataclasses.replace(module, kernels=kernels)


def _pointed_to(module: PtxModule) -> dict[str, int]:
    """The functions whose addresses a variable or a `mov` has, by what stands for these."""
    named = {value.name for each in module.variables for value in each.values if isinstance(value, PtxName)}
    for code in (*module.kernels.values(), *module.functions.values()):
        for each in code.instructions:
            if each.opcode.partition(".")[0] == "mov":
                named.update(name for operand in each.operands[1:] for name in flat.names(operand))
    return {name: address for name, address in function_addresses(module).items() if name in named}


class _Expansion:
    def __init__(self, module: PtxModule, kernel: PtxKernel, pointed: Mapping[str, int]) -> None:
        self._functions, self._kernel, self._pointed = module.functions, kernel, pointed
        self._registers = dict(kernel.registers)
        self._variables = list(kernel.variables)
        self._instructions: list[PtxInstruction] = []
        self._labels: dict[str, int] = {}
        self._targets = dict[str, tuple[str, ...]]()
        self._shared: set[str] = set()
        self._calls = 0

    def kernel(self) -> PtxKernel:
        if any(each.opcode.partition(".")[0] == "call" for each in self._kernel.instructions):
            self._body(self._kernel, {}, "", ())
            return dataclasses.replace(
                self._kernel, registers=self._registers, variables=tuple(self._variables),
                instructions=tuple(self._instructions), labels=self._labels, branch_targets=self._targets,
            )  # fmt: skip
        return self._kernel

    def _body(self, function: PtxKernel, names: Mapping[str, Operand], end: str, within: tuple[str, ...]) -> None:
        """A function's instructions; `end`: where its `ret` goes, empty for the kernel's own."""

        def renamed(label: str) -> str:
            found = names.get(label)
            return found.name if isinstance(found, PtxName) else label

        at: dict[int, list[str]] = {}
        for label, place in function.labels.items():
            at.setdefault(place, []).append(renamed(label))
        for label, targets in function.branch_targets.items():
            self._targets[renamed(label)] = tuple(renamed(each) for each in targets)
        for k, each in enumerate(function.instructions):
            self._labels |= {label: len(self._instructions) for label in at.get(k, ())}
            one = dataclasses.replace(each, operands=_put(each.operands, names), guard=_put(each.guard, names))
            base, _, rest = one.opcode.partition(".")
            if base == "call" and self._called(one, (*within, function.name)):
                continue
            if end and base == "ret":
                one = dataclasses.replace(one, opcode="bra", operands=(PtxName(end),))
            elif end and base in ("ld", "st"):
                words = ("param::func" if word == "param" else word for word in rest.split("."))
                one = dataclasses.replace(one, opcode=".".join((base, *words)))
            self._instructions.append(one)
        self._labels |= {label: len(self._instructions) for label in at.get(len(function.instructions), ())}

    def _called(self, call: PtxInstruction, within: tuple[str, ...]) -> bool:
        """The body of what is called; False where it stays a call."""
        groups = [each for each in call.operands if isinstance(each, PtxGroup)]
        target = next((each.name for each in call.operands if isinstance(each, PtxName)), "")
        before = isinstance(call.operands[0], PtxGroup)
        results = groups[0].items if before else ()
        given = groups[before].items if len(groups) > before else ()
        if target in self._registers:
            return self._called_by_address(call, target, given, results, within)
        function = self._functions.get(target)
        if function is None or target in within or len(self._instructions) > MOST:
            return False
        if len(results) != len(function.returns) or len(given) != len(function.parameters):
            return False
        self._expand(call, target, given, results, within)
        return True

    def _expand(self, call: PtxInstruction, target: str, given: Given, results: Given, within: tuple[str, ...]) -> None:
        """Put a function's body in the place of a call, between what moves arguments and results."""
        self._calls += 1
        function, mark = self._functions[target], f".{self._calls}"
        names: dict[str, Operand] = {}
        for name, type_ in function.registers.items():
            names[name] = PtxName(name + mark)
            self._registers[name + mark] = type_
        for variable in function.variables:
            self._variable(variable, mark, names)
        names |= {label: PtxName(label + mark) for label in (*function.labels, *function.branch_targets)}
        both = zip((*function.parameters, *function.returns), (*given, *results), strict=True)
        names |= {parameter.name: operand for parameter, operand in both if parameter.space == "param"}
        back, end = f"{target}.back{mark}", f"{target}.end{mark}"
        mark_of_it = dataclasses.replace(call, opcode=EXPANDED, operands=(PtxName(target),))
        if call.guard is not None:  # the others go round it
            around = call.guard.name if isinstance(call.guard, Negated) else Negated(call.guard)
            mark_of_it = dataclasses.replace(call, opcode="bra", operands=(PtxName(end),), guard=around)
        plain = dataclasses.replace(call, guard=None)

        def move(type_: str, *operands: Operand) -> None:
            self._instructions.append(dataclasses.replace(plain, opcode=f"mov.{type_}", operands=operands))

        self._instructions.append(mark_of_it)
        for parameter, operand in zip(function.parameters, given, strict=True):
            if parameter.space == "reg":
                move(parameter.type, names[parameter.name], operand)
        self._body(function, names, back, within)
        self._labels[back] = len(self._instructions)
        for parameter, operand in zip(function.returns, results, strict=True):
            if parameter.space == "reg":
                move(parameter.type, operand, names[parameter.name])
        self._labels[end] = len(self._instructions)

    def _called_by_address(
        self, call: PtxInstruction, register: str, given: Given, results: Given, within: tuple[str, ...]
    ) -> bool:
        """Each function that it may be, where it is that one; False where there is none."""
        other = call.guard
        found = False
        for name, address in self._pointed.items():
            function = self._functions[name]
            if (len(function.returns), len(function.parameters)) != (len(results), len(given)) or name in within:
                continue
            chosen = self._compared("eq", call, register, address, call.guard)
            operands = tuple(PtxName(name) if each == PtxName(register) else each for each in call.operands)
            if self._called(dataclasses.replace(call, operands=operands, guard=chosen), within):
                found, other = True, self._compared("ne", call, register, address, other)
        if found:
            self._instructions.append(dataclasses.replace(call, opcode=LOST, operands=(), guard=other))
        return found

    def _compared(
        self, how: str, call: PtxInstruction, register: str, address: int, guard: PtxName | Negated | None
    ) -> PtxName:
        """A predicate: whether a register is, or is not, an address, and the guard holds."""
        found = PtxName(f"{register}.{how}.{address}.{len(self._instructions)}")
        self._registers[found.name] = "pred"
        operands: tuple[Operand, ...] = (found, PtxName(register), PtxNumber(address))
        opcode = f"setp.{how}.u64"
        if guard is not None:
            opcode, operands = f"setp.{how}.and.u64", (*operands, guard)
        self._instructions.append(dataclasses.replace(call, opcode=opcode, operands=operands, guard=None))
        return found

    def _variable(self, variable: PtxVariable, mark: str, names: dict[str, Operand]) -> None:
        """Of local and argument variables each call has its own, a shared one is the same for all."""
        if variable.space not in ("local", "param"):
            if variable.name not in self._shared:
                self._shared.add(variable.name)
                self._variables.append(variable)
            return
        self._variables.append(dataclasses.replace(variable, name=variable.name + mark))
        names[variable.name] = PtxName(variable.name + mark)


def _put(given: Any, names: Mapping[str, Operand]) -> Any:
    """An operand, a guard or several, with other names."""
    if isinstance(given, PtxName):
        found = names.get(given.name)
        return PtxName(found.name, found.offset + given.offset) if isinstance(found, PtxName) else found or given
    if isinstance(given, tuple):
        return tuple(_put(each, names) for each in given)
    if given is None or isinstance(given, int | PtxNumber):
        return given
    parts = {each.name: _put(getattr(given, each.name), names) for each in dataclasses.fields(given)}
    return dataclasses.replace(given, **parts)
