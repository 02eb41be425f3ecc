"""A Program as JSON: the content of `plan.json` in a bundle."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fusiond.model.keys import plain
from fusiond.model.language.extents import Extent

if TYPE_CHECKING:
    from fusiond.model.program.buffers import Buffer
    from fusiond.model.program.program import Program

PLAN_VERSION = 2


def encode(program: Program) -> dict[str, Any]:
    """The JSON form of a plan: what `plan.json` in a bundle holds. Numbers that follow from the sizes stand there as
    they are at the Program's own; `formulas` has what they are at others, by JSON Pointer (RFC 6901)."""

    def tagged(value: object) -> dict[str, Any]:
        entry = {"is": type(value).__name__, **plain(value)}
        if not entry.get("numbers", True):  # what version 1 did not know is there only where it says something
            del entry["numbers"]
        for name in ("carveout_pct", "pitch_of"):
            if entry.get(name, 0) is None:
                del entry[name]
        return entry

    steps = []
    for step in program.steps:
        entry = tagged(step)
        if "arguments" in entry:
            entry["arguments"] = [tagged(each) for each in step.arguments]  # type: ignore[union-attr]
        steps.append(entry)
    found: dict[str, Any] = {
        "plan_version": PLAN_VERSION,
        "name": program.name,
        "buffers": described(program.buffers),
        "sources": plain(program.sources),
        "steps": steps,
        "issue": program.issue,
        "sizes": dict(program.sizes),
        "fixed": list(program.fixed),
        "seams": plain(program.seams),
    }
    return {**found, "formulas": {pointer: each.text for pointer, each in _extents(found, "")}}


def described(buffers: Iterable[Buffer]) -> list[dict[str, Any]]:
    """Buffers as JSON. `part_of` stands only in parts: keys are from before there were any."""
    found = [plain(each) for each in buffers]
    for entry in found:
        if entry["part_of"] is None:
            del entry["part_of"]
    return found


def _extents(value: Any, pointer: str) -> Iterator[tuple[str, Extent]]:
    if isinstance(value, Extent):
        yield pointer, value
    elif isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _extents(each, f"{pointer}/{name}")


def to_text(program: Program) -> str:
    """`plan.json` as text: stable, indented for people."""
    return json.dumps(encode(program), indent=1, sort_keys=True) + "\n"
