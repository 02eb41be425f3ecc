"""A module for people: its instructions, and which of them are one kernel. A large one is drawn as its kernels."""

from collections import Counter
from collections.abc import Mapping

from fusiond.model.drawing import MOST_NODES, DrawnGraph, DrawnNode, Edge
from fusiond.model.english import counted
from fusiond_stitching.analysis.fusion import Fusion
from fusiond_stitching.frontend.graph import HloModule

_SILENT = ("constant", "iota")  #: What every kernel has for itself is not drawn


def graph(module: HloModule, fusion: Fusion) -> DrawnGraph:
    """An instruction that several kernels compute stands in the first of them; one that is computed on the way, as a
    broadcast is, with the first that reads it."""
    group = _groups(module, fusion)
    title = f"The module in {counted(len(fusion.groups), 'kernel')}"
    silent = {each.name for each in module.instructions if each.opcode in _SILENT}
    for each in module.instructions:  # of a constant, too
        if each.operands and silent.issuperset(each.operands) and each.name not in module.outputs:
            silent.add(each.name)
    shown = [each for each in module.instructions if each.name not in silent]
    if len(shown) > MOST_NODES:
        return _of_groups(module, fusion, group, title)
    nodes = tuple(
        DrawnNode(name=each.name, text=f"{each.opcode} {each.shape}", group=group.get(each.name, -1)) for each in shown
    )
    edges = (
        Edge(source=operand, target=each.name)
        for each in shown
        for operand in dict.fromkeys(each.operands)
        if operand not in silent
    )
    return DrawnGraph(title=title, nodes=nodes, edges=tuple(edges))


def _groups(module: HloModule, fusion: Fusion) -> dict[str, int]:
    """Instruction -> the number of its kernel; parameters and calls have none."""
    found: dict[str, int] = {}
    for number, group in enumerate(fusion.groups):
        for name in group.members:
            found.setdefault(name, number)
    for each in reversed(module.instructions):
        for operand in each.operands if each.name in found else ():
            if operand not in fusion.calls and module.by_name[operand].opcode != "parameter":
                found.setdefault(operand, found[each.name])
    return found


def _of_groups(module: HloModule, fusion: Fusion, group: Mapping[str, int], title: str) -> DrawnGraph:
    """A node for each kernel, with how many instructions it has, and for each call."""
    sizes = Counter(group.values())
    nodes = {
        f"kernel {number}": DrawnNode(
            name=f"kernel {number}", text=f"{each.root}: {counted(sizes[number], 'instruction')}", group=number
        )
        for number, each in list(enumerate(fusion.groups))[:MOST_NODES]
    }
    edges = dict[tuple[str, str], Edge]()
    for each in module.instructions:
        here = f"kernel {group[each.name]}" if each.name in group else None
        for operand in each.operands:
            there = f"kernel {group[operand]}" if operand in group else None
            if here in nodes and there in nodes and here != there and here is not None and there is not None:
                edges[there, here] = Edge(source=there, target=here)
    more = "" if len(fusion.groups) <= MOST_NODES else f" (the first {MOST_NODES})"
    return DrawnGraph(title=title + more, nodes=tuple(nodes.values()), edges=tuple(edges.values()))
