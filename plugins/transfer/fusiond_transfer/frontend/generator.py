"""Seeded random graphs with the paper's parameters, and its regular shapes (Kessler, section 5.1).

A random graph has so many kernels and inputs; every kernel reads and writes a number of vectors drawn evenly from an
interval, and is on the device with a probability. What it reads is drawn evenly from all vectors there are by then;
what nobody reads is an output. The paper gives neither its seeds nor how it draws the vectors that are read.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from fusiond.language.dtypes import is_float, whole_numbers
from fusiond.program import Fill
from fusiond_transfer.frontend.graph import DEVICE, HOST, Graph, GraphKernel, Vector

WORDS = Fill(kind="integers", low=0, high=2**31 - 1)
"""What inputs hold unless a file says otherwise."""


def usual_fill(dtype: str) -> Fill:
    """The same for any element type, as far as it reaches."""
    if is_float(dtype):
        return Fill(kind="uniform")
    least, most = whole_numbers(dtype)
    return Fill(kind="integers", low=max(least, -(2**7)) if most < 2**31 - 1 else 0, high=min(most, 2**31 - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The paper's parameters; degrees are (least, most), both included."""

    kernels: int
    inputs: int
    indegree: tuple[int, int]
    outdegree: tuple[int, int]
    device_percent: int = 50
    seed: int = 0


@dataclass(slots=True)
class _Growing:
    elements: int
    names: list[str] = field(default_factory=list)
    kernels: list[GraphKernel] = field(default_factory=list)

    def finished(self, name: str, inputs: int) -> Graph:
        read = {each for kernel in self.kernels for each in kernel.reads}
        made = [each for kernel in self.kernels for each in kernel.writes]
        vectors = tuple(Vector(name=each, elements=self.elements, fill=WORDS) for each in self.names)
        return Graph(
            name=name,
            vectors=vectors,
            kernels=tuple(self.kernels),
            inputs=tuple(self.names[:inputs]),
            outputs=tuple(each for each in made if each not in read),
        )


def random_graph(shape: Shape, *, elements: int = 4096, name: str = "random") -> Graph:
    """The random graph of a shape and its seed."""
    generator = random.Random(f"transfer {shape.seed}")
    graph = _Growing(elements, [f"v{number}" for number in range(shape.inputs)])
    for number in range(shape.kernels):
        on = DEVICE if generator.randrange(100) < shape.device_percent else HOST
        wanted = generator.randint(*shape.indegree)
        reads = generator.sample(range(len(graph.names)), min(wanted, len(graph.names)))
        writes = [f"v{len(graph.names) + each}" for each in range(generator.randint(*shape.outdegree))]
        kernel = GraphKernel(
            name=f"k{number}", on=on, reads=tuple(graph.names[each] for each in reads), writes=tuple(writes)
        )
        graph.kernels.append(kernel)
        graph.names += writes
    return graph.finished(name, shape.inputs)


def out_tree(kernels: int, *, elements: int = 4096, device_percent: int = 100, seed: int = 0) -> Graph:
    """Each kernel reads one vector and writes two; the first reads the input."""
    sides = _sides(kernels, device_percent, seed)
    graph = _Growing(elements, ["v0"])
    for number, on in enumerate(sides):
        writes = (f"v{2 * number + 1}", f"v{2 * number + 2}")
        graph.kernels.append(GraphKernel(name=f"k{number}", on=on, reads=(f"v{number}",), writes=writes))
        graph.names += writes
    return graph.finished("out_tree", 1)


def in_tree(kernels: int, *, elements: int = 4096, device_percent: int = 100, seed: int = 0) -> Graph:
    """Each kernel reads two vectors and writes one; the last writes the output."""
    sides = _sides(kernels, device_percent, seed)
    graph = _Growing(elements, [f"v{number}" for number in range(kernels + 1)])
    for number, on in enumerate(sides):
        reads, write = (f"v{2 * number}", f"v{2 * number + 1}"), f"v{kernels + 1 + number}"
        graph.kernels.append(GraphKernel(name=f"k{number}", on=on, reads=reads, writes=(write,)))
        graph.names.append(write)
    return graph.finished("in_tree", kernels + 1)


def chain(kernels: int, *, elements: int = 4096, device_percent: int = 100, seed: int = 0) -> Graph:
    """Each kernel reads what the one before wrote."""
    sides = _sides(kernels, device_percent, seed)
    graph = _Growing(elements, ["v0"])
    for number, on in enumerate(sides):
        graph.kernels.append(GraphKernel(name=f"k{number}", on=on, reads=(f"v{number}",), writes=(f"v{number + 1}",)))
        graph.names.append(f"v{number + 1}")
    return graph.finished("chain", 1)


def _sides(kernels: int, device_percent: int, seed: int) -> list[str]:
    generator = random.Random(f"transfer sides {seed}")
    return [DEVICE if generator.randrange(100) < device_percent else HOST for _ in range(kernels)]
