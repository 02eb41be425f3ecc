"""The hooks of min-cut fusion."""

from collections.abc import Callable
from pathlib import Path

from fusiond.model.inputs import documents
from fusiond.strategy import CatalogueEntry, Strategy
from fusiond.strategy.hookspecs import hookimpl
from fusiond_mincut.strategy import Mincut

PIPELINES = Path(__file__).parent / "pipelines"


@hookimpl
def register_strategies(register: Callable[[Strategy], None]) -> None:
    register(Mincut())


@hookimpl
def register_workloads(register: Callable[[CatalogueEntry], None]) -> None:
    for path in sorted(PIPELINES.glob("*.yaml")):
        keys = documents.parse(path.read_text(encoding="utf-8"), str(path)).mapping()
        summary = keys["summary"].text() if "summary" in keys else ""
        register(CatalogueEntry(kind="pipeline", name=path.stem, path=path, summary=summary))
