"""Kernel graphs, written for tests.

graph = KernelGraph("fig2", elements=4096)
a, b, c = graph.inputs("A", "B", "C")
d, e = graph.device("k0", reads=(b, a), writes=("D", "E"))
f, g = graph.host("k1", reads=(e, b), writes=("F", "G"), body={"F": "E + B", "G": "E - B"})
graph.outputs(d, g)
graph.yaml()       -> a file for jobs (strategy: transfer, graph: ./fig2.yaml)
graph.build()      -> the Graph that such a file is read as
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fusiond.model.program import Fill
from fusiond_transfer.frontend import parser, sub_vectors
from fusiond_transfer.frontend.generator import written_fill
from fusiond_transfer.frontend.graph import DEVICE, HOST, MANAGED, MAPPED, Graph


class KernelGraph:
    """Grows a graph's file, in the order in which its kernels shall run."""

    def __init__(self, name: str, *, elements: int = 4096, dtype: str = "uint32") -> None:
        self.name = name
        self._elements = elements
        self._dtype = dtype
        self._keys: dict[str, Any] = {}
        self._vectors: dict[str, dict[str, Any]] = {}
        self._kernels: list[dict[str, Any]] = []
        self._lengths: dict[int, str] = {}  #: Elements of a vector -> the size that stands for them in the file

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
            self._declare(name, elements, dtype)
            if fill is not None:
                self._vectors[name]["fill"] = written_fill(fill)
        self._listed("inputs", names)
        if placed:
            self._listed("placed", names)
        return names

    def device(self, name: str, **kernel: Any) -> tuple[str, ...]:
        """A kernel on the device; see `kernel`."""
        return self.kernel(name, DEVICE, **kernel)

    def host(self, name: str, **kernel: Any) -> tuple[str, ...]:
        """A kernel on the host; see `kernel`."""
        return self.kernel(name, HOST, **kernel)

    def kernel(
        self,
        name: str,
        on: str,
        *,
        reads: Sequence[str] = (),
        writes: Sequence[str],
        in_place: Mapping[str, str] | None = None,
        body: Mapping[str, str] | str | None = None,
        elements: int | None = None,
        dtype: str | None = None,
    ) -> tuple[str, ...]:
        """A kernel; `body` is a formula for each output (a text where there is one), or left to the default. Gives the
        names of its outputs."""
        for each in writes:
            self._declare(sub_vectors.whole_name(each), elements, dtype)
        said = {"in_place": in_place and dict(in_place), "body": dict(body) if isinstance(body, Mapping) else body}
        kernel = {"name": name, "on": on, "reads": [*reads], "writes": [*writes]}
        self._kernels.append(kernel | {key: value for key, value in said.items() if value})
        return tuple(writes)

    def outputs(self, *names: str) -> None:
        """Vectors that are live on exit."""
        self._listed("outputs", names)

    def loop(self, carried: Mapping[str, str], *, iterations: int = 4) -> None:
        """The graph is a loop's body; `carried`: input -> the vector that it is in the next iteration."""
        self._keys |= {"loop": True, "carried": dict(carried), "iterations": iterations}

    def limit(self, device_bytes: int) -> None:
        """No more than this may be allocated on the device at any time."""
        self._keys["limits"] = {"device_bytes": device_bytes}

    def mapped(self, *names: str) -> None:
        """These vectors may lie in mapped memory, where the search measures that as faster."""
        self._in_memory(MAPPED, names)

    def managed(self, *names: str) -> None:
        """These vectors may lie in managed memory, where the search measures that as faster."""
        self._in_memory(MANAGED, names)

    def adjacent(self, *names: str) -> None:
        """These vectors must lie in memory in this order, next to each other."""
        self._keys.setdefault("adjacent", []).append([*names])

    def yaml(self) -> str:
        """The graph as the YAML file that a job can name."""
        sizes = {name: elements for elements, name in self._lengths.items()}
        keys = {"graph": self.name, "sizes": sizes, "inputs": [], "outputs": [], **self._keys}
        lines = [f"{key}: {json.dumps(value)}" for key, value in keys.items()]
        lines += ["vectors:", *(f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in self._vectors.items())]
        lines += ["kernels:", *(f"  - {json.dumps(each)}" for each in self._kernels)]
        return "\n".join(lines) + "\n"

    def build(self) -> Graph:
        """The graph; RequestError names the first thing that is wrong with it."""
        return parser.of_text(self.yaml(), f"graph {self.name}")

    def _declare(self, name: str, elements: int | None, dtype: str | None) -> None:
        length = self._elements if elements is None else elements
        size = self._lengths.setdefault(length, f"elements_{len(self._lengths)}" if self._lengths else "elements")
        self._vectors.setdefault(name, {}).setdefault("dtype", dtype or self._dtype)
        self._vectors[name].setdefault("elements", size)

    def _listed(self, key: str, names: Sequence[str]) -> None:
        self._keys.setdefault(key, []).extend(names)

    def _in_memory(self, memory: str, names: Sequence[str]) -> None:
        for name in names:
            self._vectors.setdefault(name, {})["memory"] = memory
