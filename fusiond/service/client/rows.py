"""A job as the client returns it: a `JobRow` that a notebook can display."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from fusiond.store.job_rows import JobRow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownRow(JobRow):
    """Equal to the same row without its store."""

    db: Path | None = field(default=None, repr=False)  #: The store that it came from

    @classmethod
    def of(cls, row: JobRow, db: Path) -> ShownRow:
        """The row, with its store."""
        return cls(**{each.name: getattr(row, each.name) for each in dataclasses.fields(JobRow)}, db=db)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JobRow):
            return NotImplemented
        return all(getattr(self, each.name) == getattr(other, each.name) for each in dataclasses.fields(JobRow))

    def __hash__(self) -> int:
        return hash(self.id)

    def _repr_html_(self) -> str | None:
        """What Jupyter shows: how far it is, its search as a picture."""
        if self.db is None:
            return None
        from fusiond.service.web import notebook  # a template engine, which nobody else here needs

        return notebook.job(self.db, self.id) or None
