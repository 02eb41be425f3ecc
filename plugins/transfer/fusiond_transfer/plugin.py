"""The hooks of transfer fusion."""

from collections.abc import Callable
from pathlib import Path

from fusiond.strategy import CatalogueEntry, Strategy
from fusiond.strategy.hookspecs import hookimpl
from fusiond_transfer.strategy import Transfer

GRAPHS = Path(__file__).parent / "graphs"


@hookimpl
def register_strategies(register: Callable[[Strategy], None]) -> None:
    register(Transfer())


@hookimpl
def register_workloads(register: Callable[[CatalogueEntry], None]) -> None:
    for path in sorted(GRAPHS.glob("*.yaml")):
        # Every start of fusiond comes by here: the one line is found without parsing the whole file.
        lines = path.read_text(encoding="utf-8").splitlines()
        summary = next((line.partition(":")[2].strip() for line in lines if line.startswith("summary:")), "")
        register(CatalogueEntry(kind="graph", name=path.stem, path=path, summary=summary))
