"""Reduces the messages of nvcc and ptxas to one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

_NVCC_ERROR = re.compile(r"^(.*?)(?:\((\d+)\)|:(\d+)(?::\d+)?): (?:catastrophic |fatal )?error(?: #[\w-]+)?: (.*)$")
_NVCC_FATAL = re.compile(r"^nvcc (?:fatal|error)\s*:\s*(.*)$")
_PTXAS_ERROR = re.compile(r"^ptxas(?:-\w+)? (?:\S+, line (\d+); )?(?:error|fatal)\s*:\s*(.*)$")


def readable(messages: str, work: Path) -> str:
    """Without the folder of this run, so that equal sources give equal messages."""
    return messages.replace(f"{work}/", "").strip()


def of_nvcc(lines: Iterable[str]) -> str | None:
    """The first error as `file:line: message`; one in a line that was appended only where there is no other."""
    appended = None
    for line in lines:
        if match := _NVCC_ERROR.match(line):
            file, brackets, colon, message = match.groups()
            if not file.startswith(("entry ", "symbol ")):
                return f"{file}:{brackets or colon}: {message}"
            appended = appended or f"{file}: {message}"
        elif (match := _NVCC_FATAL.match(line)) or (match := _PTXAS_ERROR.match(line)):
            return match.group(match.lastindex or 0)
    return appended


def of_ptxas(lines: Iterable[str], place: Callable[[int], str]) -> str | None:
    """The first error; `place` says what to call a line of the PTX, 0 for errors that name none."""
    for line in lines:
        if match := _PTXAS_ERROR.match(line):
            return f"{place(int(match.group(1) or 0))}: {match.group(2)}"
    return None
