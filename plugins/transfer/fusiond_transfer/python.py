"""Kernel graphs from Python.

graph = KernelGraph("fig2", elements=4096)
a, b, c = graph.inputs("A", "B", "C")
d, e = graph.device("k0", reads=(b, a), writes=("D", "E"))
f, g = graph.host("k1", reads=(e, b), writes=("F", "G"), body={"F": "E + B", "G": "E - B"})
graph.outputs(d, g)
graph.build()      -> Graph, checked
graph.yaml()       -> the same as a file for jobs (strategy: transfer, graph: ./fig2.yaml)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fusiond.errors import RequestError, UnknownName
from fusiond.language import expressions
from fusiond.program import Fill, default_compare
from fusiond_transfer.frontend import single_assignment, sub_vectors, verify
from fusiond_transfer.frontend.generator import usual_fill
from fusiond_transfer.frontend.graph import (
    COPIED,
    DEVICE,
    HOST,
    MANAGED,
    MAPPED,
    Body,
    Formula,
    Graph,
    GraphKernel,
    Mix,
    Vector,
)


class KernelGraph:
    """Grows a graph, in the order in which its kernels shall run."""

    def __init__(self, name: str, *, elements: int = 4096, dtype: str = "uint32") -> None:
        self.name = name
        self._elements = elements
        self._dtype = dtype
        self._vectors: dict[str, Vector] = {}
        self._kernels: list[GraphKernel] = []
        self._inputs: list[str] = []
        self._outputs: list[str] = []
        self._placed: list[str] = []
        self._carried: list[tuple[str, str]] = []
        self._adjacent: list[tuple[str, ...]] = []
        self._loop = False
        self._iterations = 1
        self._limit_bytes: int | None = None
        self._in_place = False
        self._memory: dict[str, str] = {}

    def inputs(
        self,
        *names: str,
        elements: int | None = None,
        dtype: str | None = None,
        fill: Fill | None = None,
        placed: bool = False,
    ) -> tuple[str, ...]:
        """Vectors that are live on entry; `placed`: they lie on the device. Gives their names."""
        for name in names:
            self._declare(name, elements, dtype, fill)
        self._inputs += names
        if placed:
            self._placed += names
        return names

    def device(self, name: str, **kernel: object) -> tuple[str, ...]:
        """A kernel on the device; see `kernel`."""
        return self.kernel(name, DEVICE, **kernel)  # type: ignore[arg-type]

    def host(self, name: str, **kernel: object) -> tuple[str, ...]:
        """A kernel on the host; see `kernel`."""
        return self.kernel(name, HOST, **kernel)  # type: ignore[arg-type]

    def kernel(
        self,
        name: str,
        on: str,
        *,
        reads: Sequence[str] = (),
        writes: Sequence[str],
        in_place: Mapping[str, str] | None = None,
        body: Body | Mapping[str, str] | str | None = None,
        elements: int | None = None,
        dtype: str | None = None,
    ) -> tuple[str, ...]:
        """A kernel; `body` is a formula for each output (a text where there is one), or left to the default. Gives the
        names of its outputs. RequestError for a text where a sequence of names is wanted (its letters would be the
        names), and for one formula of several outputs."""
        for key, names in (("reads", reads), ("writes", writes)):
            if isinstance(names, str):
                raise RequestError(
                    f"{key} is the text {names[:80]!r}; expected a sequence of names, such as ({names[:80]!r},)",
                    where=f"graph {self.name}: {name}",
                )
        for each in writes:
            self._declare(sub_vectors.whole_name(each), elements, dtype, None)
        if isinstance(body, str):
            if len(writes) != 1:
                raise RequestError(
                    f"body is one formula for {len(writes)} outputs; expected a mapping from each to its own",
                    where=f"graph {self.name}: {name}",
                )
            body = {writes[0]: body}
        if isinstance(body, Mapping):
            body = Formula(texts=tuple(body[each] for each in writes if each in body))
        self._kernels.append(
            GraphKernel(
                name=name,
                on=on,
                reads=tuple(reads),
                writes=tuple(writes),
                in_place=tuple((in_place or {}).items()),
                body=body or Mix(),
            )
        )
        return tuple(writes)

    def outputs(self, *names: str) -> None:
        """Vectors that are live on exit."""
        self._outputs += names

    def loop(self, carried: Mapping[str, str], *, iterations: int = 4) -> None:
        """The graph is a loop's body; `carried`: input -> the vector that it is in the next iteration."""
        self._loop = True
        self._carried += carried.items()
        self._iterations = iterations

    def limit(self, device_bytes: int) -> None:
        """No more than this may be allocated on the device at any time."""
        self._limit_bytes = device_bytes

    def mapped(self, *names: str) -> None:
        """These vectors may lie in mapped memory: kernels of the device use them over the link, and they never
        cross. Whether that is faster the search measures."""
        self._memory.update(dict.fromkeys(names, MAPPED))

    def managed(self, *names: str) -> None:
        """These vectors may lie in managed memory, and be prefetched where they would be copied. Whether that is faster
        the search measures."""
        self._memory.update(dict.fromkeys(names, MANAGED))

    def written_again_in_place(self) -> None:
        """What is written again is stored where it was, where the kernel reads it; else it gets another place."""
        self._in_place = True

    def adjacent(self, *names: str) -> None:
        """These vectors must lie in memory in this order, next to each other."""
        self._adjacent.append(names)

    def build(self) -> Graph:
        """The graph; RequestError names the first thing that is wrong with it."""
        graph = Graph(
            name=self.name,
            vectors=tuple(replace(each, memory=self._memory.get(each.name, COPIED)) for each in self._vectors.values()),
            kernels=tuple(self._kernels),
            inputs=tuple(self._inputs),
            outputs=tuple(self._outputs),
            placed=tuple(self._placed),
            loop=self._loop,
            carried=tuple(self._carried),
            limit_bytes=self._limit_bytes,
            adjacent=tuple(self._adjacent),
            iterations=self._iterations,
        )
        for name in sorted(set(self._memory) - set(self._vectors)):
            raise UnknownName("vector", name, self._vectors, where=f"graph {self.name}: {self._memory[name]}")
        graph = self._resolved(graph)
        if not graph.cut:
            graph = single_assignment.renamed(graph, in_place=self._in_place)
        for problem in verify.problems(graph):
            raise RequestError(problem.text, where=f"graph {self.name}")
        for kernel in graph.kernels:
            if isinstance(kernel.body, Formula):
                self._check(graph, kernel, kernel.body)
        return graph

    def _resolved(self, graph: Graph) -> Graph:
        """With the parts of vectors that kernels name; their bounds are numbers here."""
        elements = {each.name: each.elements for each in graph.vectors}
        spans = {}
        for kernel in graph.kernels:
            for name in (*kernel.reads, *kernel.writes, *(each for pair in kernel.in_place for each in pair)):
                try:
                    span = sub_vectors.span(name, elements, lambda text: expressions.parse_formula(text).integer({}))
                except sub_vectors.PartError as problem:
                    raise RequestError(str(problem), where=f"graph {self.name}: {kernel.name}") from None
                if span is not None:
                    spans[name] = span
        return sub_vectors.resolved(graph, spans) if spans else graph

    def _check(self, graph: Graph, kernel: GraphKernel, body: Formula) -> None:
        named = replace(kernel, reads=kernel.read_operands, writes=kernel.write_operands)
        elements = {name: graph.operand(name).elements for name in (*named.reads, *named.writes)}
        wrong = sub_vectors.unfit(body.texts, named, elements)
        if wrong:
            raise RequestError(wrong, where=f"graph {self.name}: {kernel.name}")

    def yaml(self) -> str:
        """The graph as the YAML file that a job can name."""
        return written(self.build())

    def _declare(self, name: str, elements: int | None, dtype: str | None, fill: Fill | None) -> None:
        kind = dtype or self._dtype
        self._vectors.setdefault(
            name,
            Vector(
                name=name,
                dtype=kind,
                elements=self._elements if elements is None else elements,
                fill=fill or usual_fill(kind),
                compare=default_compare(kind),
            ),
        )


def written(graph: Graph) -> str:
    """A graph as YAML. ValueError for a kernel with a source of its own: that is a file beside the graph's."""
    vectors = [*(each for each in graph.vectors if each.name not in graph.home), *(each.vector for each in graph.cut)]
    lengths = dict.fromkeys(vector.elements for vector in vectors)
    named = {elements: f"elements_{number}" if number else "elements" for number, elements in enumerate(lengths)}
    lines = [
        f"graph: {json.dumps(graph.name)}",
        f"sizes: {json.dumps({name: elements for elements, name in named.items()})}",
    ]
    inputs, outputs = graph.as_given(graph.inputs), graph.as_given(graph.outputs)
    lines += [f"{key}: {json.dumps(names)}" for key, names in (("inputs", inputs), ("outputs", outputs))]
    if graph.placed:
        lines.append(f"placed: {json.dumps(graph.as_given(graph.placed))}")
    if graph.loop:
        carried = {graph.as_given((head,))[0]: graph.as_given((tail,))[0] for head, tail in graph.carried}
        lines += ["loop: true", f"carried: {json.dumps(carried)}", f"iterations: {graph.iterations}"]
    if graph.limit_bytes is not None:
        lines.append(f"limits: {{device_bytes: {graph.limit_bytes}}}")
    pieces = {each.pieces for each in graph.cut}
    adjacent = [graph.as_given(run) for run in graph.adjacent if run not in pieces]
    if adjacent:
        lines.append(f"adjacent: {json.dumps(adjacent)}")
    lines.append("vectors:")
    for vector in vectors:
        keys = [f"dtype: {vector.dtype}", f"elements: {named[vector.elements]}"]
        if vector.memory != COPIED:
            keys.append(f"memory: {vector.memory}")
        if vector.name in inputs:
            keys.append(f"fill: {_fill(vector.fill)}")
        lines.append(f"  {json.dumps(vector.name)}: {{{', '.join(keys)}}}")
    lines.append("kernels:")
    lines += [f"  - {_kernel(kernel)}" for kernel in graph.kernels]
    return "\n".join(lines) + "\n"


def _fill(fill: Fill) -> str:
    if fill.kind in ("zeros", "iota"):
        return fill.kind
    if fill.kind == "constant":
        return f"{{constant: {fill.low!r}}}"
    return f"{{{fill.kind}: [{fill.low!r}, {fill.high!r}]}}"


def _kernel(kernel: GraphKernel) -> str:
    keys = [
        f"name: {json.dumps(kernel.name)}",
        f"on: {json.dumps(kernel.on)}",
        f"reads: {json.dumps(kernel.read_operands)}",
    ]
    keys.append(f"writes: {json.dumps(kernel.write_operands)}")
    if kernel.in_place:
        keys.append(f"in_place: {json.dumps(dict(kernel.in_place))}")
    if isinstance(kernel.body, Formula):
        keys.append(f"body: {json.dumps(dict(zip(kernel.write_operands, kernel.body.texts, strict=True)))}")
    elif not isinstance(kernel.body, Mix):
        raise ValueError(f"{kernel.name} has a source of its own")
    return "{" + ", ".join(keys) + "}"
