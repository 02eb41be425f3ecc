"""Seeded random graphs with the paper's parameters (Kessler, section 5.1).

A random graph has so many kernels and inputs; every kernel reads and writes a number of vectors drawn evenly from an
interval, and is on the device with a probability. What it reads is drawn evenly from all vectors there are by then;
what nobody reads is an output. The paper gives neither its seeds nor how it draws the vectors that are read.
"""

import random
from dataclasses import dataclass

from fusiond.model.language.dtypes import is_float, whole_numbers
from fusiond.model.program import Fill
from fusiond_transfer.frontend.graph import DEVICE, HOST, Graph, GraphKernel, Vector


def usual_fill(dtype: str) -> Fill:
    """What inputs hold unless a file says otherwise."""
    if is_float(dtype):
        return Fill(kind="uniform")
    least, most = whole_numbers(dtype)
    return Fill(kind="integers", low=max(least, -(2**7)) if most < 2**31 - 1 else 0, high=min(most, 2**31 - 1))


def written_fill(fill: Fill) -> object:
    """As it stands in a file."""
    if fill.kind in ("zeros", "iota"):
        return fill.kind
    return {fill.kind: fill.low if fill.kind == "constant" else [fill.low, fill.high]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The paper's parameters; degrees are (least, most), both included."""

    kernels: int
    inputs: int
    indegree: tuple[int, int]
    outdegree: tuple[int, int]
    device_percent: int = 50
    seed: int = 0


def random_graph(shape: Shape, *, elements: int = 4096, name: str = "random") -> Graph:
    """The random graph of a shape and its seed."""
    generator = random.Random(f"transfer {shape.seed}")
    names = [f"v{number}" for number in range(shape.inputs)]
    kernels: list[GraphKernel] = []
    for number in range(shape.kernels):
        on = DEVICE if generator.randrange(100) < shape.device_percent else HOST
        wanted = generator.randint(*shape.indegree)
        reads = tuple(names[each] for each in generator.sample(range(len(names)), min(wanted, len(names))))
        writes = tuple(f"v{len(names) + each}" for each in range(generator.randint(*shape.outdegree)))
        kernels.append(GraphKernel(name=f"k{number}", on=on, reads=reads, writes=writes))
        names += writes
    read = {each for kernel in kernels for each in kernel.reads}
    return Graph(
        name=name,
        vectors=tuple(Vector(name=each, elements=elements, fill=usual_fill("uint32")) for each in names),
        kernels=tuple(kernels),
        inputs=tuple(names[: shape.inputs]),
        outputs=tuple(each for each in names[shape.inputs :] if each not in read),
    )
