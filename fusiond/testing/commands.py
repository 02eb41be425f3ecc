"""Runs commands and C++ compilers for tests."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusiond.build import gxx


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


def compiled(source: Path) -> list[str]:
    """The words that a C++ program prints, which must compile without a warning. AssertionError with what the compiler
    or the program said."""
    out = source.with_suffix("")
    command = [gxx.find() or "g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(out)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([str(out)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()
