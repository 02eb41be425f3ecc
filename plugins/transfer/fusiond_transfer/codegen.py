"""Placeholder, replaced below."""

from __future__ import annotations

from collections.abc import Mapping

from fusiond.program import Program
from fusiond_transfer.script import Script


def files(plan: Script, program: Program) -> Mapping[str, str]:
    return {f"{source.name}.cu": source.text for source in program.sources}
