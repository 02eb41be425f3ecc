"""Counts in child processes, because a program's host code runs there. A crash becomes a row with its reason."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fusiond.build.exporting.bundle import write_bundle
from fusiond.build.working import working_folder
from fusiond.model.errors import MachineFault
from fusiond.model.program import Launch, Program
from fusiond.model.system import children, faults

TIMEOUT_SECS = 600.0
_NO_COUNTS = "what was written is not counts: does host code write to standard output?"


def counted(
    programs: Mapping[str, Program], *, model: str, whole: bool = False, timeout_secs: float = TIMEOUT_SECS
) -> list[dict[str, Any]]:
    """The rows of `python -m fusiond.devices.cpu.count --json` for programs by their labels, in their order; a program
    that cannot be counted has rows that say why. `whole`: launches are not sampled. Several at once, on all cores.

    MachineFault where the machine does not let it run."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = pool.map(lambda each: _rows(each, programs[each], model, whole, timeout_secs), programs)
        return [row for rows in found for row in rows]


def _rows(label: str, program: Program, model: str, whole: bool, timeout_secs: float) -> list[dict[str, Any]]:
    with working_folder("count") as folder:
        write_bundle(folder / "bundle", program, {})
        command = [sys.executable, "-m", "fusiond.devices.cpu.count", str(folder / "bundle"), "--json"]
        command += ["--whole"] if whole else []
        try:
            done = children.run([*command, "--label", label, "--gpu", model], timeout_secs=timeout_secs)
        except subprocess.TimeoutExpired:
            return _failed_rows(program, label, model, f"not counted: it takes longer than {timeout_secs:g} s")
    fault = faults.of_end(done.returncode, "counting")
    if fault is not None:
        raise fault
    said = (done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode == faults.TEMPORARY:
        raise MachineFault(said)
    if done.returncode < 0:
        return _failed_rows(program, label, model, f"counting died of {faults.signal_name(-done.returncode)}")
    rows = _rows_in(done.stdout)
    if rows is not None:
        return rows
    if not said:
        said = f"counting ended with status {done.returncode}" if done.returncode else _NO_COUNTS
    return _failed_rows(program, label, model, said)


def _rows_in(text: str) -> list[dict[str, Any]] | None:
    """None for what is not a document of rows: host code of the program writes to the same standard output."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    rows = document.get("counted") if isinstance(document, dict) else None
    return rows if isinstance(rows, list) and all(isinstance(each, dict) for each in rows) else None


def _failed_rows(program: Program, label: str, model: str, why: str) -> list[dict[str, Any]]:
    from fusiond.devices.counting.run import CountRow  # SciPy, below it, would cost each command a third of a second

    return [
        {
            **dataclasses.asdict(CountRow(program=label, launch=step.name, kernel=step.entry, failed=why, model=model)),
            "program_bound_us": None,
        }
        for step in program.steps
        if isinstance(step, Launch)
    ]
