"""Values that launches of their own (scatters in place, scans) compute instead of reading."""

import math
from collections.abc import Collection, Iterable

from fusiond_stitching.analysis.fusion import CHAIN, library
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.frontend.graph import EXPENSIVE, MOVEMENT, SOURCES, HloInstruction, HloModule

FAR_LESS = 64  #: What is so much smaller than a value costs nothing to be read beside it


def absorbed(module: HloModule, policy: FusionPolicy) -> frozenset[str]:
    """What scatters in place and scans read, to be computed by their kernels, an update or a trip at a time:
    element-wise values and gathers (nothing else where every instruction has a kernel of its own). What others read,
    too, is among them where these compute it again from no more than they would read of it."""
    if policy.rules == "none" or not module.launches:
        return frozenset()
    bases = frozenset(module.in_place.values())
    found: set[str] = set()
    for each in reversed(module.instructions):
        possible = each.name not in bases and _possible(module, each, policy)
        if possible and _suits_readers(module, each, found, policy) and not _costs_more(module, each):
            found.add(each.name)
    return frozenset(found)


def _possible(module: HloModule, each: HloInstruction, policy: FusionPolicy) -> bool:
    """Whether a thread can compute it at an index of its own, and nobody needs it in memory."""
    if each.opcode in SOURCES or each.opcode in ("reduce", "scatter", "dot"):
        return False
    if each.name in module.is_output or library(module, each, policy) or _read_by_library(module, each, policy):
        return False
    scans = (module[user] for user in module.users[each.name] if module[user].opcode == "scan")
    return not any(_before(scan, each.name) for scan in scans)


def _read_by_library(module: HloModule, each: HloInstruction, policy: FusionPolicy) -> bool:
    """Whether a library call reads it, perhaps behind reshapes."""
    users = (module[user] for user in module.users[each.name] if user not in module.launches)
    return any(
        library(module, user, policy) or (user.opcode == "reshape" and _read_by_library(module, user, policy))
        for user in users
    )


def _suits_readers(module: HloModule, each: HloInstruction, found: Collection[str], policy: FusionPolicy) -> bool:
    """Whether launches are all that read it, or others that can do without it in memory."""
    users = module.users[each.name]
    inside = [user for user in users if user in found or user in module.launches]
    if not inside:
        return False
    if len(inside) == len(users) or each.opcode in MOVEMENT:
        return True
    return policy.recompute and _again(module, each, found, policy)


def _costs_more(module: HloModule, each: HloInstruction) -> bool:
    """A costly value that is spread over the windows of the updates would be computed once for each of them."""
    most = max(_evaluated(module, user) for user in module.users[each.name])
    return each.opcode in EXPENSIVE and 2 * each.elements <= most


def _again(module: HloModule, each: HloInstruction, found: Collection[str], policy: FusionPolicy) -> bool:
    """Whether those who read a value may compute it: element by element, where that moves no more than storing it and
    reading it each time."""
    users = _users(module, each.name)
    outside = [user for user in users if user.name not in module.launches and user.name not in found]
    once = all((user.elementwise or user.opcode == "gather") and user.elements == each.elements for user in outside)
    if not each.elementwise or not once:
        return False
    read, computed = _behind(module, (each.name,), policy)
    besides, anyway = _behind(module, [name for user in outside for name in user.operands if name != each.name], policy)
    wide = [name for name in read - besides if FAR_LESS * module[name].elements > each.elements]
    steps = [name for name in computed - anyway if FAR_LESS * module[name].elements > each.elements]
    read_bytes = sum(module[name].size_bytes for name in wide)
    return len(steps) <= CHAIN and (len(users) - 1) * read_bytes <= len(users) * each.size_bytes


def _users(module: HloModule, name: str) -> list[HloInstruction]:
    """Who computes with a value, through what only moves it."""
    found: dict[str, HloInstruction] = {}
    stack, seen = list(module.users[name]), set(module.users[name])
    while stack:
        user = module[stack.pop()]
        if user.opcode not in MOVEMENT or user.name in module.is_output:
            found[user.name] = user
            continue
        stack += [each for each in module.users[user.name] if each not in seen]
        seen.update(module.users[user.name])
    return list(found.values())


def _behind(module: HloModule, names: Iterable[str], policy: FusionPolicy) -> tuple[set[str], set[str]]:
    """(what values are computed from: sources, calls, reductions; the element-wise instructions between)."""
    read: set[str] = set()
    computed: set[str] = set()
    stack = list(names)
    seen = set(stack)
    while stack and len(computed) <= FAR_LESS:
        found = module[stack.pop()]
        movement = found.opcode in MOVEMENT or found.opcode == "gather"
        if (found.elementwise or movement) and not library(module, found, policy):
            computed |= {found.name} if found.elementwise else set()
            new = [operand for operand in found.operands if operand not in seen]
            seen.update(new)
            stack += new
        elif found.opcode != "constant":
            read.add(found.name)
    return read, computed


def _before(scan: HloInstruction, operand: str) -> bool:
    """Whether a loop wants an operand in memory: its threads would compute it many times."""
    loop = scan.attributes["loop"]
    return any(name == operand and own in loop.before for name, own in zip(scan.operands, loop.inputs, strict=True))


def _evaluated(module: HloModule, launch: str) -> int:
    """How often what a scatter in place, a scan or any other reads is computed, if it is computed there."""
    if launch in module.in_place:
        return module[module[launch].operands[2]].elements
    if launch not in module.launches:
        return module[launch].elements
    loop = module[launch].attributes["loop"]
    return loop.trips * math.prod(loop.axes)  # type: ignore[no-any-return]
