"""The hooks of transfer fusion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fusiond import documents
from fusiond.hookspecs import hookimpl
from fusiond.strategy import CatalogueEntry, Strategy
from fusiond_transfer.strategy import Transfer

GRAPHS = Path(__file__).parent / "graphs"


@hookimpl
def register_strategies(register: Callable[[Strategy], None]) -> None:
    register(Transfer())


@hookimpl
def register_workloads(register: Callable[[CatalogueEntry], None]) -> None:
    for path in sorted(GRAPHS.glob("*.yaml")):
        keys = documents.parse(path.read_text(encoding="utf-8"), str(path)).mapping()
        summary = keys["summary"].text() if "summary" in keys else ""
        register(CatalogueEntry(kind="graph", name=path.stem, path=path, summary=summary))
