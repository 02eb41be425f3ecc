"""What the pages of results have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
