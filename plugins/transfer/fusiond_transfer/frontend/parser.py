"""Reads a kernel graph's YAML file; docs/transfer.md describes the format.

Every mistake is a RequestError with file, line and key.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from fusiond.model.errors import RequestError, UnknownName
from fusiond.model.inputs import documents, values
from fusiond.model.inputs.documents import Node
from fusiond.model.language import expressions, extents
from fusiond.model.language.dtypes import DTYPES
from fusiond.model.nouns import Job, frozen
from fusiond.strategy import Inputs
from fusiond_transfer.frontend import generator, row_wise, single_assignment, sub_vectors, verify
from fusiond_transfer.frontend.generator import Shape, usual_fill
from fusiond_transfer.frontend.graph import (
    DEVICE,
    HOST,
    MEMORIES,
    Body,
    Formula,
    Graph,
    GraphKernel,
    Mix,
    RegionDocument,
    Text,
    Vector,
)
from fusiond_transfer.frontend.sub_vectors import Span

KEYS = (
    "graph", "summary", "sizes", "odd", "dtype", "elements", "fill", "vectors", "inputs", "outputs", "placed",
    "kernels", "generate", "loop", "carried", "iterations", "limits", "adjacent", "regions",
    "memory",
)  # fmt: skip
VECTOR_KEYS = ("dtype", "elements", "fill", "compare", "memory")
KERNEL_KEYS = (
    "name", "on", "reads", "writes", "in_place", "body", "source", "entry", "values", "grid", "block", "shared",
    "rows", "whole",
)  # fmt: skip
NOT_GENERATED = ("inputs", "outputs", "kernels", "vectors", "loop", "carried", "adjacent", "placed", "regions")
REGION_KEYS = ("keys", "sizes", "reads", "writes")
GENERATE_KEYS = ("kernels", "inputs", "indegree", "outdegree", "device_percent", "seed")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
MAX_GENERATED = 20_000
MOST_GRID = (2**31 - 1, 65535, 65535)
MOST_BLOCK = (1024, 1024, 64)
DEFAULT_ITERATIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A graph at its sizes, and what the file says of sizes. `content` is all of it but sizes and paths."""

    graph: Graph
    sizes: Mapping[str, int]
    odd: Mapping[str, int]
    content: Any
    sources: Mapping[str, str]  #: Path -> text of the files beside the graph's


def read(inputs: Inputs, path: str, job: Job) -> Read:
    """Read the graph of a job, whose sizes overrule those of the file."""
    document = inputs.document(path, where=job.where("graph"))
    keys = document.mapping(known=KEYS, required=("graph",))
    if not _NAME.fullmatch(keys["graph"].text()):
        raise keys["graph"].fail(f"is {keys['graph'].text()[:80]!r}; expected a name of letters, digits, _ and -")
    known = values.sizes(keys.get("sizes"))
    odd = values.sizes(keys.get("odd"), known=known)
    known |= values.job_sizes(job, known)
    reader = _Reader(inputs, path, keys, known)
    graph = _checked(reader, document)
    described = {key: node.plain() for key, node in keys.items() if key not in ("summary", "sizes", "odd")}
    files = {each.name: each.fill.digest for each in graph.vectors if each.fill.digest}
    return Read(
        graph=graph,
        sizes=known,
        odd=odd,
        content=[described, dict(sorted(reader.sources.items())), *([files] if files else [])],
        sources={reader.paths[name]: text for name, text in reader.sources.items()},
    )


def of_text(text: str, path: str) -> Graph:
    """The graph of a file's text that names no other file; `path` is for messages. RequestError."""
    document = documents.parse(text, path)
    keys = document.mapping(known=KEYS, required=("graph",))
    return _checked(_Reader(None, path, keys, values.sizes(keys.get("sizes"))), document)


def _checked(reader: _Reader, document: Node) -> Graph:
    graph = dataclasses.replace(reader.graph(), sizes=tuple(reader.sizes.items()))
    if not graph.cut:  # pieces have their own names, and are written once
        graph = single_assignment.renamed(graph)
    _refuse(graph, document, reader.keys)
    return graph


class _Reader:
    """The parts of one file. `inputs`: where other files are read from; None where there are none."""

    def __init__(self, inputs: Inputs | None, path: str, keys: Mapping[str, Node], sizes: Mapping[str, int]) -> None:
        self._inputs = inputs
        self._path = path
        self.keys = keys
        self.sizes = sizes
        self._sizes = {name: extents.size(name, value) for name, value in sizes.items()}
        self.sources: dict[str, str] = {}
        self.paths: dict[str, str] = {}

    def graph(self) -> Graph:
        keys = self.keys
        usual = Vector(name="_", elements=self._sizes.get("elements", 1), fill=usual_fill("uint32"))
        default = self._vector("_", keys, usual)
        if "generate" in keys:
            return self._generated(keys["generate"], default)
        for name in ("inputs", "outputs", "kernels"):
            if name not in keys:
                raise RequestError(f"the key {name!r} is missing", where=self._path)
        inputs = _names(keys["inputs"])
        nodes = keys["kernels"].sequence()
        drafts = [self._draft(node) for node in nodes]
        vectors = self._vectors(inputs, drafts, default)
        spans = self._spans(nodes, {name: each.elements for name, each in vectors.items()})
        elements = {name: each.elements for name, each in vectors.items()}
        elements |= {name: each.end - each.first for name, each in spans.items()}
        kernels = tuple(
            dataclasses.replace(draft, body=self._body(draft, node, elements))
            for draft, node in zip(drafts, nodes, strict=True)
        )
        loop = "loop" in keys and keys["loop"].boolean()
        carried = keys["carried"].mapping() if "carried" in keys else {}
        graph = Graph(
            name=keys["graph"].text(),
            vectors=tuple(vectors.values()),
            kernels=kernels,
            inputs=inputs,
            outputs=_names(keys["outputs"]),
            placed=_names(keys["placed"]) if "placed" in keys else (),
            loop=loop,
            carried=tuple((name, node.text()) for name, node in carried.items()),
            limit_bytes=self._limit(),
            adjacent=tuple(_names(node) for node in self._listed("adjacent")),
            regions=tuple(self._region(node, vectors) for node in self._listed("regions")),
            iterations=self._iterations(loop=loop),
        )
        return sub_vectors.resolved(graph, spans) if spans else graph

    def _listed(self, key: str) -> Sequence[Node]:
        return self.keys[key].sequence() if key in self.keys else ()

    def _iterations(self, *, loop: bool) -> int:
        if "iterations" not in self.keys:
            return DEFAULT_ITERATIONS if loop else 1
        iterations = self._integer(self.keys["iterations"])
        if not 1 <= iterations <= 1000:
            raise self.keys["iterations"].fail(f"is {iterations}; it must be from 1 to 1000")
        return iterations

    def _vectors(self, inputs: Sequence[str], drafts: Sequence[GraphKernel], default: Vector) -> dict[str, Vector]:
        """What is read in or written, with what the file says of it."""
        own = self.keys["vectors"].mapping() if "vectors" in self.keys else {}
        keys = {name: node.mapping(known=VECTOR_KEYS) for name, node in own.items()}
        written = [sub_vectors.whole_name(name) for draft in drafts for name in draft.writes]
        found = {name: self._vector(name, keys.get(name, {}), default) for name in dict.fromkeys([*inputs, *written])}
        for name, node in own.items():
            if name not in found:
                raise UnknownName("vector", name, found, where=node.where)
        return found

    def _spans(self, kernels: Sequence[Node], elements: Mapping[str, int]) -> dict[str, Span]:
        """What kernels name in parts, as it stands there."""
        found: dict[str, Span] = {}
        names: list[Node] = []
        for kernel in kernels:
            keys = kernel.mapping()
            names += (name for key in ("reads", "writes", "whole") if key in keys for name in keys[key].sequence())
        for region in self._listed("regions"):
            keys = region.mapping()
            names += (name for key in ("reads", "writes") if key in keys for name in keys[key].mapping().values())
        for node in names:
            name = node.text()
            try:
                span = sub_vectors.span(name, elements, self._number)
            except sub_vectors.PartError as problem:
                raise node.fail(str(problem)) from None
            if span is not None:
                found[name] = span
        return found

    def _number(self, text: str) -> int:
        return expressions.parse_formula(text).integer(self._sizes)

    def _limit(self) -> int | None:
        if "limits" not in self.keys:
            return None
        limits = self.keys["limits"].mapping(known=("device_bytes",), required=("device_bytes",))
        return int(self._integer(limits["device_bytes"]))

    def _generated(self, node: Node, default: Vector) -> Graph:
        for name in NOT_GENERATED:
            if name in self.keys:
                raise self.keys[name].fail("stands beside 'generate', which makes all of it")
        keys = node.mapping(known=GENERATE_KEYS, required=GENERATE_KEYS[:4])
        shape = Shape(
            kernels=keys["kernels"].integer(least=1, most=MAX_GENERATED),
            inputs=keys["inputs"].integer(least=1, most=MAX_GENERATED),
            indegree=_span(keys["indegree"]),
            outdegree=_span(keys["outdegree"]),
            device_percent=keys["device_percent"].integer(least=0, most=100) if "device_percent" in keys else 50,
            seed=keys["seed"].integer(least=0) if "seed" in keys else 0,
        )
        graph = generator.random_graph(shape, elements=default.elements, name=self.keys["graph"].text())
        vectors = tuple(dataclasses.replace(default, name=each.name) for each in graph.vectors)
        return dataclasses.replace(graph, vectors=vectors, limit_bytes=self._limit())

    def _vector(self, name: str, keys: Mapping[str, Node], default: Vector) -> Vector:
        """A vector by keys of its own, or of the file."""
        dtype = keys["dtype"].choice(*DTYPES) if "dtype" in keys else default.dtype
        usual = default.fill if dtype == default.dtype else usual_fill(dtype)
        return Vector(
            name=name,
            dtype=dtype,
            elements=self._integer(keys["elements"]) if "elements" in keys else default.elements,
            fill=values.fill(keys["fill"], dtype, self._file) if "fill" in keys else usual,
            compare=values.comparison(keys.get("compare"), dtype),
            memory=keys["memory"].choice(*MEMORIES) if "memory" in keys else default.memory,
        )

    # --- kernels ---

    def _draft(self, node: Node) -> GraphKernel:
        keys = node.mapping(known=KERNEL_KEYS, required=("name", "on", "writes"))
        in_place = keys["in_place"].mapping() if "in_place" in keys else {}
        return GraphKernel(
            name=keys["name"].text(),
            on=keys["on"].choice(HOST, DEVICE),
            reads=_names(keys["reads"]) if "reads" in keys else (),
            writes=_names(keys["writes"]),
            in_place=tuple((new, old.text()) for new, old in in_place.items()),
            rows=keys["rows"].text() if "rows" in keys else "",
            whole=_names(keys["whole"]) if "whole" in keys else (),
        )

    def _body(self, draft: GraphKernel, node: Node, elements: Mapping[str, int]) -> Body:
        keys = node.mapping()
        if "body" in keys and "source" in keys:
            raise keys["source"].fail("stands beside 'body'; one of them says what the kernel computes")
        if "body" in keys:
            return _formulas(draft, keys["body"], elements)
        if "source" not in keys:
            for name in ("entry", "values", "grid", "block", "shared"):
                if name in keys:
                    raise keys[name].fail("is for kernels with a 'source'")
            return Mix()
        if "entry" not in keys:
            raise node.fail("the key 'entry' is missing")
        return Text(
            text=self._beside(keys["source"])[1],
            entry=_identifier(keys["entry"]),
            values=tuple(self._word(each) for each in keys["values"].sequence()) if "values" in keys else (),
            grid=self._dims(keys.get("grid"), MOST_GRID),
            block=self._dims(keys.get("block"), MOST_BLOCK),
            shared_bytes=self._integer(keys["shared"]) if "shared" in keys else 0,
        )

    def _region(self, node: Node, vectors: Mapping[str, Vector]) -> RegionDocument:
        """A document for another strategy that describes several kernels, under the name of its kind."""
        keys = node.mapping(required=("reads", "writes"))
        kinds = [name for name in keys if name not in REGION_KEYS]
        if len(kinds) != 1:
            raise node.fail("needs one document, such as `pipeline: ./file.yaml`, beside keys, sizes, reads and writes")
        path, text = self._beside(keys[kinds[0]])
        given = keys["sizes"].mapping() if "sizes" in keys else {}
        more = keys["keys"].mapping() if "keys" in keys else {}
        return RegionDocument(
            name=PurePath(path).stem,
            kind=kinds[0],
            path=path,
            text=text,
            keys=frozen({name: each.plain() for name, each in more.items()}),
            sizes=frozen({name: self._integer(each) for name, each in given.items()}),
            reads=_passed(keys["reads"], vectors),
            writes=_passed(keys["writes"], vectors),
        )

    def _beside(self, node: Node) -> tuple[str, str]:
        """(path, text) of a file beside the graph's."""
        inputs, path = self._named(node)
        name = node.text()
        self.paths[name], self.sources[name] = path, inputs.text(path, where=node.where)
        return path, self.sources[name]

    def _named(self, node: Node) -> tuple[Inputs, str]:
        if self._inputs is None:
            raise node.fail("names a file, and there are no files here")
        return self._inputs, self._inputs.beside(self._path, node.text(), where=node.where)

    def _word(self, node: Node) -> int:
        """A value that an entry can take: it has 32 bits there."""
        value = self._integer(node)
        if not -(2**31) <= value < 2**31:
            raise node.fail(f"is {value}; an int has 32 bits")
        return value

    def _dims(self, node: Node | None, most: tuple[int, int, int]) -> tuple[int, int, int]:
        if node is None:
            return (1, 1, 1)
        values = (
            [self._integer(each) for each in node.sequence()]
            if isinstance(node.value, tuple)
            else [self._integer(node)]
        )
        if not 1 <= len(values) <= 3 or min(values) < 1:
            raise node.fail("expected one to three numbers, each at least 1")
        if any(value > limit for value, limit in zip(values, most, strict=False)) or (
            most is MOST_BLOCK and math.prod(values) > MOST_BLOCK[0]
        ):
            raise node.fail(f"is {values}; a launch has at most {list(most)}, a block {MOST_BLOCK[0]} threads")
        return (*values, 1, 1)[:3]  # type: ignore[return-value]

    def _integer(self, node: Node) -> int:
        """A number, or an expression over the sizes."""
        return values.integer(node, self._sizes)

    def _file(self, node: Node) -> tuple[str, str]:
        """An .npy file beside the graph's, and the key of what it holds."""
        inputs, path = self._named(node)
        return path, inputs.digest(path, where=node.where)


# --- small values ---------------------------------------------------------------------------------------


def _names(node: Node) -> tuple[str, ...]:
    return tuple(each.text() for each in node.sequence())


def _passed(node: Node, vectors: Mapping[str, Vector]) -> Mapping[str, str]:
    """Of a region: its name -> the vector."""
    found = {name: each.text() for name, each in node.mapping().items()}
    if not found:
        raise node.fail("names nothing; expected {name in the document: vector}")
    for each in node.mapping().values():
        if sub_vectors.whole_name(each.text()) not in vectors:
            raise UnknownName("vector", each.text(), vectors, where=each.where)
    return frozen(found)


def _formulas(draft: GraphKernel, node: Node, elements: Mapping[str, int]) -> Formula:
    """One formula, or one for each output."""
    given = node.mapping() if isinstance(node.value, dict) else {draft.writes[0]: node}
    for name, each in given.items():
        if name not in draft.writes:
            raise each.fail(f"{draft.name} does not write {name!r}")
    missing = [name for name in draft.writes if name not in given]
    if missing:
        raise node.fail(f"there is no formula for {missing[0]}")
    texts = tuple(str(given[name].value) for name in draft.writes)
    if all(name in elements for name in (*draft.reads, *draft.writes)):
        problem = sub_vectors.unfit(texts, draft, elements)
        if problem:
            raise node.fail(problem)
    return Formula(texts=texts)


def _identifier(node: Node) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w{0,63}", node.text()):
        raise node.fail(f'is {node.text()[:80]!r}; expected the name of an extern "C" function')
    return node.text()


def _span(node: Node) -> tuple[int, int]:
    values = [each.integer(least=1, most=100) for each in node.sequence()]
    if len(values) != 2 or values[0] > values[1]:
        raise node.fail("expected the least and the most, such as [2, 3]")
    return values[0], values[1]


def _refuse(graph: Graph, document: Node, keys: Mapping[str, Node]) -> None:
    """Raise the first problem, at the place in the file that it is about."""
    for problem in verify.problems(graph):
        raise RequestError(problem.text, where=_where(problem.place, document, keys))
    for number, kernel in enumerate(graph.kernels):
        wrong = row_wise.problem(graph, kernel)
        if wrong is not None:
            key = "rows" if kernel.rows else "whole"
            raise RequestError(wrong, where=_where(("kernels", number, key), document, keys))


def _where(place: Sequence[str | int], document: Node, keys: Mapping[str, Node]) -> str:
    if place and place[0] == "vectors" and ("vectors" not in keys or place[1] not in keys["vectors"].value):
        place = ("elements",) if "elements" in keys else ("sizes",)
    node = document
    for step in place:
        if isinstance(step, int):
            if not isinstance(node.value, tuple) or step >= len(node.value):
                break
            node = node.value[step]
        else:
            if not isinstance(node.value, dict) or step not in node.value:
                break
            node = node.value[step]
    return node.where
