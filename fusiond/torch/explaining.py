"""Explains a compiled model: which regions are fused, which are not, and why."""

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from fusiond.service.frameworks.regions import Region, Report

__all__ = ["CompiledGraphs", "Region", "Report", "explain", "opened"]


class CompiledGraphs:
    """What is known of the graphs of one compilation."""

    def __init__(self, context: object) -> None:
        self.context = _weak(context)
        self.notes: list[str] = []
        self.graphs: list[Callable[[], Sequence[Region] | None]] = []


_records: list[CompiledGraphs] = []
_guard = threading.Lock()
MOST = 1000  #: Compilations that are remembered


def opened() -> CompiledGraphs:
    """The record of the compilation that is under way in this thread."""
    record = CompiledGraphs(_compiling())
    with _guard:
        _records.append(record)
        del _records[:-MOST]
    return record


def explain(compiled: Any = None) -> Report:
    """What of a compiled model or function is fused, what not, and why, for all shapes that it was called with; without
    an argument, of all that fusiond has compiled in this process. Nothing runs."""
    wanted = None if compiled is None else _context_of(compiled)
    with _guard:
        records = [each for each in _records if wanted is None or each.context() is wanted]
    notes = [note for each in records for note in each.notes]
    regions = [region for each in records for graph in each.graphs for region in graph() or ()]
    empty = "nothing was compiled by fusiond yet: call the model first"
    return Report(regions=tuple(regions), notes=tuple(dict.fromkeys(notes)), empty=empty)


def _weak(value: object) -> Callable[[], object]:
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def _compiling() -> object:
    """torch's object for the call of `torch.compile` whose function is being compiled: dynamo hands backends nothing
    that names it, but it is on the stack."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "compile_wrapper" and "self" in frame.f_locals:
            return frame.f_locals["self"]
    return None


def _context_of(compiled: Any) -> object:
    found = getattr(compiled, "dynamo_ctx", None)
    if found is not None:
        return found
    for cell in getattr(compiled, "__closure__", None) or ():
        if hasattr(cell.cell_contents, "callback"):
            return cell.cell_contents
    return compiled
