"""The handle of a CUDA graph, of whatever object a library has for one.

    an int, ctypes.c_void_p                    CUgraph and cudaGraph_t are the same pointer
    cuda.bindings: CUgraph, cudaGraph_t        int(graph)
    cuda.core: GraphDefinition, GraphBuilder   .handle, of .graph_definition
    torch.cuda.CUDAGraph(keep_graph=True)      .raw_cuda_graph()
    CuPy, NVIDIA Warp                          .graph

PyCUDA has no object for graphs: pass the handle. An executable graph (CUgraphExec, cuda.core's Graph) has no nodes that
can be asked for.
"""

from __future__ import annotations

import ctypes
from typing import Any

from fusiond.errors import RequestError

_HANDLES = ("CUgraph", "cudaGraph_t")
_EXECUTABLE = ("CUgraphExec", "cudaGraphExec_t")


def handle(graph: Any, where: str) -> int:
    """The handle of a graph. RequestError for an executable graph, and for what is not a graph at all."""
    found = _handle(graph, where, 0)
    if found is None or found <= 0:
        said = type(graph).__name__ if found is None else f"the handle {found}"
        raise RequestError(
            f"is {said}; expected a CUDA graph: a handle (int), CUgraph, torch's CUDAGraph, CuPy's Graph", where=where
        )
    return found


def _handle(graph: Any, where: str, depth: int) -> int | None:
    kind = type(graph).__name__
    if kind in _EXECUTABLE:
        raise RequestError("is an executable graph; expected the CUgraph that it was instantiated from", where=where)
    if isinstance(graph, bool) or graph is None or depth > 2:
        return None
    if kind in _HANDLES or isinstance(graph, int) or hasattr(graph, "__index__"):
        return int(graph)
    if isinstance(graph, ctypes.c_void_p):
        return graph.value or 0
    if callable(raw := getattr(graph, "raw_cuda_graph", None)):
        try:
            return _handle(raw(), where, depth + 1)
        except RuntimeError as problem:
            said = str(problem).partition("\n")[0][:80]
            raise RequestError(
                f"torch keeps the graph of a CUDAGraph(keep_graph=True) only ({said})", where=where
            ) from None
    for name in ("graph_definition", "graph", "handle"):
        if hasattr(graph, name):
            return _handle(getattr(graph, name), where, depth + 1)
    return None
