"""Which of a graph's sizes its Programs cannot be moved away from; docs/transfer.md lists them.

Texts and schedules are made at the sizes of a job. Nearly all of what they take from them is passed to the kernels;
what is decided by them is here. A graph of more than MANY_KERNELS has plain numbers: to carry formulas through its
Programs takes longer than to plan.
"""

import dataclasses
from collections.abc import Iterable, Iterator

from fusiond.model.language import expressions
from fusiond.model.language.extents import text_of
from fusiond.model.program.formulas import replaced
from fusiond_transfer.frontend import formula
from fusiond_transfer.frontend.graph import Formula, FusedBody, Graph, GraphKernel, Mix
from fusiond_transfer.frontend.sub_vectors import whole_name

MANY_KERNELS = 2_000


def settled(graph: Graph) -> Graph:
    """The graph, with plain numbers where it is large."""
    if len(graph.kernels) <= MANY_KERNELS:
        return graph
    return dataclasses.replace(
        graph, vectors=replaced(graph.vectors, int), kernels=tuple(replaced(each, int) for each in graph.kernels)
    )


def fixed(graph: Graph) -> set[str]:
    """The names of those sizes."""
    if graph.limit_bytes is not None or len(graph.kernels) > MANY_KERNELS:
        return {name for name, _ in graph.sizes}
    made = (kernel.body.fragment.fixed for kernel in graph.kernels if isinstance(kernel.body, FusedBody))
    return names(_decisive(graph)).union(*made)


def names(numbers: Iterable[int]) -> set[str]:
    """The sizes in some formulas."""
    return {name for number in numbers for name in expressions.parse_formula(text_of(number)).names}


def _decisive(graph: Graph) -> Iterator[int]:
    """The numbers that must stay as they are."""
    yield graph.iterations
    yield from graph.equal_bounds
    shared = [*graph.carried, *(pair for kernel in graph.kernels for pair in kernel.in_place)]
    for pair in shared:
        yield from _alike(graph.vector(name).elements for name in pair)
    for kernel in graph.kernels:
        writes = [graph.operand(name).elements for name in kernel.write_operands]
        if isinstance(kernel.body, Mix | Formula) and len(set(writes)) == 1:
            yield from _alike(writes)
        if isinstance(kernel.body, Formula):
            yield from _of_formulas(graph, kernel, kernel.body)


def _alike(numbers: Iterable[int]) -> list[int]:
    """All of some equal numbers, where they are not the same formula; else none."""
    found = list(numbers)
    return found if len({text_of(each) for each in found}) > 1 else []


def _of_formulas(graph: Graph, kernel: GraphKernel, body: Formula) -> Iterator[int]:
    reads = {whole_name(name): graph.operand(name).elements for name in kernel.read_operands}
    for text, output in zip(body.texts, kernel.write_operands, strict=True):
        parsed = formula.parse(text)
        lengths = [reads[name] for name in parsed.names]
        yield from (each for each in lengths if each == 1)
        written = graph.operand(output).elements
        if parsed.summed:
            yield written
        elif any(each > 1 for each in lengths):
            lengths.append(written)
        yield from _alike(each for each in lengths if each > 1)
