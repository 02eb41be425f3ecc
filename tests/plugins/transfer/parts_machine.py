"""Random graphs whose kernels name parts of vectors, and NumPy as the machine that runs their Programs.

The machine knows nothing of plans: it has bytes, which are NaN until somebody writes them, and a kernel is what its
pointers point to, for as many elements as it is told: written = factor * the first read + the others.
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusiond.model.program import Alloc, Free, HostCall, Launch, Pointer, Program, Role, Scalar
from fusiond.model.program import Step as ProgramStep

Arrays = dict[str, NDArray[np.float64]]
LENGTH = 24


@dataclass(frozen=True, slots=True)
class Step:
    """What a kernel computes, as the graph names its operands."""

    name: str
    written: str
    reads: tuple[str, ...]
    factor: float


@dataclass(frozen=True, slots=True)
class Drawn:
    text: str
    steps: tuple[Step, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    length: int = LENGTH

    def given(self, seed: int) -> Arrays:
        draw = np.random.default_rng(seed)
        return {name: draw.integers(-8, 8, self.length).astype(float) for name in self.inputs}

    def computed(self, given: Arrays) -> Arrays:
        """The outputs, by NumPy."""
        values = {**given, **{each.written.partition("[")[0]: np.empty(self.length) for each in self.steps}}
        for step in self.steps:
            first, *others = (part(values, each) for each in step.reads)
            part(values, step.written)[:] = step.factor * first + sum(others)
        return {name: values[name] for name in self.outputs}


def part(values: Mapping[str, NDArray[np.float64]], text: str) -> NDArray[np.float64]:
    name, mark, bounds = text.partition("[")
    if not mark:
        return values[name]
    first, _, end = bounds.rstrip("]").partition(":")
    return values[name][int(first) : int(end)]


def drawn(seed: int, vectors: int = 6, *, length: int = LENGTH, bounds: int = 2, head: str = "") -> Drawn:
    """A graph of so many vectors, each written in up to `bounds` + 1 parts. `head`: more lines of the file."""
    draw = random.Random(seed)
    there = ["a", "b"]
    lines, steps = [], []
    for number in range(vectors):
        name = f"v{number}"
        cut = sorted({0, length, *(draw.randrange(1, length) for _ in range(draw.randrange(bounds + 1)))})
        for at, (first, end) in enumerate(itertools.pairwise(cut)):
            reads = []
            for vector in draw.sample(there, draw.randrange(1, min(3, len(there)) + 1)):
                start = draw.choice([first, draw.randrange(length - (end - first) + 1)])
                whole = end - first == length
                reads.append(vector if whole else f"{vector}[{start}:{start + end - first}]")
            factor = draw.choice([2.0, 3.0, -1.0])
            body = " + ".join([f"{factor} * {reads[0].partition('[')[0]}", *(r.partition("[")[0] for r in reads[1:])])
            written = f"{name}[{first}:{end}]" if len(cut) > 2 else name
            steps.append(Step(f"k{number}_{at}", written, tuple(reads), factor))
            side = draw.choice(["host", "device"])
            lines.append(f"  - {{name: k{number}_{at}, on: {side}, reads: {reads!r}, writes: [{written!r}], "
                         f"body: {body!r}}}")  # fmt: skip
        there.append(name)
    outputs = draw.sample(there[2:], 2)
    text = f"graph: parts\nelements: {length}\ndtype: float64\ninputs: [a, b]\noutputs: {outputs!r}\n{head}kernels:\n"
    return Drawn(text + "\n".join(lines) + "\n", tuple(steps), ("a", "b"), tuple(outputs), length)


def run(program: Program, steps: Sequence[Step], given: Arrays, seed: int | None = None) -> Arrays:
    """The outputs of a Program of float64, in the order of its list, or in a random one that it allows."""
    memory: dict[str, NDArray[np.float64]] = {}
    places: dict[str, tuple[str, int, int]] = {}
    for each in program.buffers:
        home, first, count = each.arena or each.name, int(each.offset_bytes) // 8, int(each.elements)
        places[each.name] = home, first, first + count
        if len(memory.get(home, ())) < first + count:
            memory[home] = np.full(first + count, np.nan)
    by_name = {each.name: each for each in steps}

    def at(name: str) -> NDArray[np.float64]:
        home, first, end = places[name]
        return memory[home][first:end]

    for each in program.buffers:
        if each.role is Role.INPUT:
            at(each.name)[:] = given[each.name]
    for step in program.steps if seed is None else _ordered(program.steps, seed):
        if isinstance(step, Launch | HostCall):
            name = step.name.partition("#")[0]
            own = by_name.get(name) or by_name[name.rpartition("_i")[0]]
            count = next(int(each.value) for each in step.arguments if isinstance(each, Scalar))
            pointers = [places[each.buffer] for each in step.arguments if isinstance(each, Pointer)]
            *reads, written = (memory[home][first : first + count] for home, first, _ in pointers)
            written[:] = own.factor * reads[0] + sum(reads[1:])
        elif isinstance(step, Alloc | Free):
            memory[step.arena][:] = np.nan
        for source, target in step.messages:
            at(target)[:] = at(source)
    return {each.name: at(each.name).copy() for each in program.buffers if each.role is Role.OUTPUT}


def _ordered(steps: Sequence[ProgramStep], seed: int) -> Iterator[ProgramStep]:
    draw, waiting, done = random.Random(seed), list(steps), set[str]()
    while waiting:
        first = {each.stream: each for each in reversed(waiting)}
        step = draw.choice([each for each in first.values() if done.issuperset(each.after)])
        waiting.remove(step)
        done.add(step.name)
        yield step
