"""What commands leave, for tests."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FinishedCommand:
    """What a finished command left."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON document and nothing else."""
        return json.loads(self.out)
