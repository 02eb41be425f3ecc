"""Seams of a module: the dots and other operations that a library computes in the user's program.

A dot is a launch too, a plain kernel that stands in for the library's. A foreign call has none: it is done as late as
can be, before the first launch that reads what it gives, or before the call that does, so all that it reads is there.
Values that only foreign calls see, and results that are theirs alone, have no buffers: the operation says which these
are.
"""

from collections.abc import Mapping, Sequence

from fusiond.model.program import Launch, Pointer, Seam
from fusiond_stitching.frontend.graph import HloInstruction, HloModule


def seams(module: HloModule, launches: Sequence[Launch], dots: Mapping[str, str]) -> tuple[Seam, ...]:
    """All of them, in the order in which they must be done. `dots`: launch -> the dot that it stands in for."""
    places = {each.name: at for at, each in enumerate(launches)}
    found: list[tuple[int, int, Seam]] = []
    for call, at in _calls(module, launches).items():
        found.append((at, 0, _foreign(module, call, launches[at].name if at < len(launches) else None)))
    for name, dot in dots.items():
        found.append((places[name], 1, _dot(module, name, module[dot])))
    return tuple(seam for *_, seam in sorted(found, key=lambda each: each[:2]))


# --- dots -----------------------------------------------------------------------------------------------


def _dot(module: HloModule, launch: str, dot: HloInstruction) -> Seam:
    """Its operands are in buffers, whatever they are: of a constant it reads a copy."""
    return Seam(
        name=dot.name,
        operation=_product(module, dot),
        reads=tuple(module.buffer_of(module.base(each).name) for each in dot.operands),
        writes=(module.buffer_of(dot.name),),
        stand_in=launch,
    )


def _product(module: HloModule, dot: HloInstruction) -> str:
    a, b = (each.shape for each in module.operands(dot))
    pairs = [
        f"{key} {_set(dot.attributes[f'lhs_{key}'])} with {_set(dot.attributes[f'rhs_{key}'])}"
        for key in ("contracting", "batch")
        if dot.attributes[f"lhs_{key}"]
    ]
    return ", ".join([f"dot {dot.shape} = {a} x {b}", *pairs])


def _set(dimensions: Sequence[int]) -> str:
    return f"{{{','.join(map(str, dimensions))}}}"


# --- foreign calls --------------------------------------------------------------------------------------


def _calls(module: HloModule, launches: Sequence[Launch]) -> dict[str, int]:
    """Call -> the launch before which it must be done (their number: after the last), in topological order."""
    first: dict[str, int] = {}
    for at, each in reversed(list(enumerate(launches))):
        first.update({argument.buffer: at for argument in each.arguments if isinstance(argument, Pointer)})
    done: dict[str, int] = {}
    leaves = [name for name in module.number if name in module.foreign and module[name].opcode != "input"]
    for name in reversed(leaves):
        call = module[name].attributes["call"]
        waiting = [module[user].attributes["call"] for user in _users(module, name)]
        at = min([first.get(module.stand_ins.get(name, ""), len(launches)), *(done[each] for each in waiting)])
        done[call] = min(done.get(call, at), at)
    return {call: done[call] for call in dict.fromkeys(module[name].attributes["call"] for name in leaves)}


def _users(module: HloModule, name: str) -> list[str]:
    """The foreign instructions that read a value, perhaps through reshapes."""
    found, stack = [], [name]
    while stack:
        for user in module.users[stack.pop()]:
            if user in module.foreign:
                found.append(user)
            elif module[user].opcode == "reshape" and user not in module.is_output:
                stack.append(user)
    return found


def _foreign(module: HloModule, call: str, before: str | None) -> Seam:
    leaves = [name for name in module.foreign if module[name].attributes.get("call") == call]
    operands = module.operands(module[leaves[0]])
    read = [module.base(each.name).name for each in operands]
    given = [_told(module, module[name], name) for name in leaves if module[name].dtype != "none"]
    taken = [_told(module, each, base) for each, base in zip(operands, read, strict=True)]
    return Seam(
        name=call,
        operation=f"{module[leaves[0]].opcode} {', '.join(given) or 'nothing'} = {', '.join(taken) or 'nothing'}",
        reads=tuple(module.buffer_of(name) for name in read if _buffered(module, name)),
        writes=tuple(module.buffer_of(name) for name in leaves if name in module.stand_ins),
        before=before,
    )


def _buffered(module: HloModule, name: str) -> bool:
    return name in module.stand_ins or (name not in module.foreign and module[name].opcode != "constant")


def _told(module: HloModule, instruction: HloInstruction, base: str) -> str:
    """A value's shape, and what it is where it has no buffer."""
    shape = instruction.shape
    if _buffered(module, base):
        return shape
    if module[base].opcode == "constant":
        values = module[base].attributes.get("values", ())  # none of a type that is not known
        return f"{shape} constant" + (f" {values[0]:g}" if len(values) == 1 else f" {base}")
    return f"{shape} (result {module.outputs.index(base)})" if base in module.is_output else f"{shape} {base}"
