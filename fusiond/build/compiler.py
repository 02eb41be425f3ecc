"""How compilers are run: again when the machine failed them, so that what they say is about their input."""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fusiond import children, faults
from fusiond.errors import MachineFault

log = logging.getLogger(__name__)

PAUSES_SECS = (0.2, 1.0)
"""Before the second attempt and the third; after that it is for the job to wait."""
ASK_SECS = 30.0
_NOT_RUN = (126, 127)
"""What the shell says of a command that it cannot start."""


def run(command: Sequence[str], work: Path, timeout_secs: float) -> subprocess.CompletedProcess[str]:
    """Run a compiler in the folder `work`, where its temporary files go as well.

    A negative `returncode` is a signal of its own doing (SIGSEGV and the like), which came every time. Raises
    MachineFault when it was killed from outside, cannot be started, or lacks space, memory or descriptors, time after
    time; subprocess.TimeoutExpired when it does not end.
    """
    for pause_secs in (*PAUSES_SECS, None):
        done, fault = _once(command, work, timeout_secs)
        if done is not None and (fault is None and done.returncode >= 0):
            return done
        if pause_secs is None:
            break
        log.info("%s; trying once more", fault or f"{Path(command[0]).name} ended by signal")
        time.sleep(pause_secs)
    if fault is not None:
        raise fault
    assert done is not None
    return done


def ask(command: Sequence[str]) -> str:
    """What a compiler prints about itself; empty when it is not one. Raises MachineFault as `run` does: an answer that
    was cut short would be taken for another compiler's."""
    try:
        done = run(command, Path(tempfile.gettempdir()), ASK_SECS)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout + done.stderr


def _once(
    command: Sequence[str], work: Path, timeout_secs: float
) -> tuple[subprocess.CompletedProcess[str] | None, MachineFault | None]:
    """What it did, and the machine's part in that."""
    # Messages are read here, so they must be English; temporary files go where they are deleted.
    environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(work)}
    tool = Path(command[0]).name
    try:
        done = children.run(command, timeout_secs=timeout_secs, cwd=work, environment=environment)
    except OSError as problem:
        return None, MachineFault(f"{tool} cannot be run: {faults.lacks(problem)}")
    fault = faults.of_end(done.returncode, tool)
    if fault is None and done.returncode in _NOT_RUN:
        fault = MachineFault(f"{tool} cannot be run: {done.stderr.strip()[:300]}")
    if fault is None and done.returncode > 0:
        fault = faults.of_compiler(done.stderr + done.stdout, tool)
    return done, fault
