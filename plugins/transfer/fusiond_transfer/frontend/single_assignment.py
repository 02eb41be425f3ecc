"""Vectors that are written again get a name for each time: plans are made for single assignment (Kessler, section 3).

    k0 writes v; k1 reads v, writes v; k2 reads v   -->   k0 writes v; k1 reads v, writes v_2; k2 reads v_2

Each name has a place of its own, so that messages can be moved past the kernel, unless its `in_place` says that both
share one.
"""

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from fusiond_transfer.frontend.graph import Formula, Graph, GraphKernel

_WORD = re.compile(r"\b[A-Za-z_]\w*\b(?!\s*\()")


def renamed(graph: Graph) -> Graph:
    """The graph with every vector written once; the very same where it is so already."""
    count = Counter(name for kernel in graph.kernels for name in dict.fromkeys(kernel.writes))
    count.update(count.keys() & {*graph.inputs})
    if max(count.values(), default=0) < 2:
        return graph
    taken = {*graph.index, *(kernel.name for kernel in graph.kernels)}
    now: dict[str, str] = {name: name for name in graph.inputs}
    of: dict[str, str] = {}
    kernels = []
    for kernel in graph.kernels:
        before = {name: now.get(name, name) for name in kernel.reads}
        after: dict[str, str] = {}
        for name in kernel.writes:
            if name not in now:
                now[name] = after[name] = name
            elif name not in after:
                numbered = (f"{name}_{number}" for number in itertools.count(2))
                after[name] = next(each for each in numbered if each not in taken)
                taken.add(after[name])
                of[after[name]] = name
        now.update(after)
        kernels.append(_kernel(kernel, before, after))
    vectors = tuple(replace(graph.vector(old), name=new) for new, old in of.items() if old in graph.index)
    return replace(
        graph,
        vectors=(*graph.vectors, *vectors),
        kernels=tuple(kernels),
        outputs=tuple(now.get(name, name) for name in graph.outputs),
        carried=tuple((head, now.get(tail, tail)) for head, tail in graph.carried),
    )


def _kernel(kernel: GraphKernel, before: Mapping[str, str], after: Mapping[str, str]) -> GraphKernel:
    body = kernel.body
    if isinstance(body, Formula):
        texts = (_WORD.sub(lambda word: before.get(word[0], word[0]), text) for text in body.texts)
        body = Formula(texts=tuple(texts))
    return replace(
        kernel,
        reads=tuple(before[name] for name in kernel.reads),
        writes=tuple(after.get(name, name) for name in kernel.writes),
        whole=tuple(before.get(name, name) for name in kernel.whole),
        in_place=tuple((after.get(new, new), before.get(old, old)) for new, old in kernel.in_place),
        body=body,
    )
