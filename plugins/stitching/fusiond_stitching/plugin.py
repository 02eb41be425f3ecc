"""The hooks of the plugin: the strategy, and the HLO modules of its catalogue."""

from collections.abc import Callable
from pathlib import Path

from fusiond.model.inputs import documents
from fusiond.strategy import CatalogueEntry, Strategy
from fusiond.strategy.hookspecs import hookimpl
from fusiond_stitching.strategy import Stitching

MODULES = Path(__file__).parent / "modules"


@hookimpl
def register_strategies(register: Callable[[Strategy], None]) -> None:
    register(Stitching())


@hookimpl
def register_workloads(register: Callable[[CatalogueEntry], None]) -> None:
    index = MODULES / "index.yaml"
    for name, node in documents.parse(index.read_text(encoding="utf-8"), str(index)).mapping().items():
        register(CatalogueEntry(kind="module", name=name, path=MODULES / f"{name}.hlo", summary=node.text()))
