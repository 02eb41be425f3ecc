"""`fusiond init`: the draft of a graph, by how the name of the file ends from which it begins."""

from __future__ import annotations

import re
from pathlib import PurePath

from fusiond.strategy import Inputs
from fusiond_transfer.analysis import trace_report
from fusiond_transfer.analysis.trace_costs import probe_keys
from fusiond_transfer.frontend.importing import nsight

ENDINGS = (".sqlite",)
"""Nsight Systems' export."""


def drafted(path: str, name: str, inputs: Inputs) -> str:
    """The YAML. `name` is the graph's; empty: the file's."""
    path = inputs.beside(path, PurePath(path).name, where=path)
    plain = re.sub(r"\W+", "_", name or PurePath(path).stem).strip("_")[:60] or "imported"
    called = f"_{plain}" if plain[0].isdigit() else plain
    trace = nsight.read(path)
    answers = inputs.answered(trace.model, probe_keys()) if trace.model else {}
    return trace_report.draft(trace, called, answers).yaml()
