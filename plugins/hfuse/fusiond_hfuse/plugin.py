"""The hooks of horizontal fusion."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

from fusiond.model.errors import PluginError
from fusiond.model.inputs import documents
from fusiond.strategy import CatalogueEntry, Strategy
from fusiond.strategy.hookspecs import hookimpl

KERNELS = Path(__file__).parent / "kernels"


@hookimpl
def register_strategies(register: Callable[[Strategy], None]) -> None:
    if importlib.util.find_spec("clang") is None:
        raise PluginError("libclang is not installed: pip install libclang==18.1.1")
    from fusiond_hfuse.strategy import Hfuse

    register(Hfuse())


@hookimpl
def register_workloads(register: Callable[[CatalogueEntry], None]) -> None:
    for path in sorted(KERNELS.glob("*.yaml")):
        keys = documents.parse(path.read_text(encoding="utf-8"), str(path)).mapping()
        summary = keys["summary"].text() if "summary" in keys else ""
        register(CatalogueEntry(kind="kernel", name=path.stem, path=path, summary=summary))
