"""The hooks: what this plugin brings, and what it wants to hear of."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fusiond.model.outcomes import Record, Trial
from fusiond.strategy import CatalogueEntry, Strategy
from fusiond.strategy.hookspecs import hookimpl
from stranger_plugin.strategy import SaxpyUnroll

if os.environ.get("STRANGER_BREAKS"):
    raise RuntimeError("the stranger's licence has run out")


@hookimpl
def register_strategies(register: Callable[[Strategy], None]) -> None:
    register(SaxpyUnroll())


@hookimpl
def register_workloads(register: Callable[[CatalogueEntry], None]) -> None:
    path = Path(__file__).parent / "small.yaml"
    register(CatalogueEntry(kind="saxpy", name="small", path=path, summary="a saxpy of a few thousand elements"))


@hookimpl
def trial_finished(trial: Trial) -> None:
    _note(f"trial {trial.config} {trial.outcome.value}")


@hookimpl
def record_changed(record: Record) -> None:
    _note(f"record {record.workload_name} {record.verdict.value}")


def _note(line: str) -> None:
    path = os.environ.get("STRANGER_NOTES")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
