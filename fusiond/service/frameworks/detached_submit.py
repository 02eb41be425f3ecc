"""Submits questions from a separate process, for a program that ends before its thread has done so.

echo '{"db": PATH, "jobs": [{"path": ..., "text": ..., "workload": ...}]}' | python -m
fusiond.service.frameworks.detached_submit
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusiond.service.frameworks.region_answers import Askable

log = logging.getLogger("fusiond.service.frameworks")

PRIORITY = -100  #: Of jobs that a program hands in: behind those that a person does


def hand_in(db: Path, jobs: Iterable[tuple[str, str, str]]) -> None:
    """Jobs (path, text, workload), but those that are waiting already. DaemonError, RequestError."""
    from fusiond.model.outcomes import JobState
    from fusiond.service.client.client import Client

    with Client(db=db) as client:
        waiting = {row.workload_name for row in client.jobs([JobState.QUEUED, JobState.RUNNING], limit=1000)}
        for path, text, workload in jobs:
            if workload not in waiting:
                client.submit(path, text, priority=PRIORITY)


def leave(db: Path, questions: Iterable[Askable]) -> None:
    """Have another process hand them in, and do not wait for it. Nothing is started where no daemon is."""
    from fusiond.service.daemon import lock

    jobs = [{"path": each.path, "text": each.job(), "workload": each.workload} for each in questions]
    if not jobs or not sys.executable or lock.holder(db) is None:
        return
    quiet = subprocess.DEVNULL
    command = [sys.executable, "-m", "fusiond.service.frameworks.detached_submit"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True)
    assert child.stdin is not None
    child.stdin.write(json.dumps({"db": str(db), "jobs": jobs}).encode())
    child.stdin.close()
    child.returncode = 0  # nobody waits for it


def main() -> int:
    """What `leave` starts."""
    from fusiond.model.errors import FusiondError

    asked = json.load(sys.stdin)
    try:
        hand_in(Path(asked["db"]), [(each["path"], each["text"], each["workload"]) for each in asked["jobs"]])
    except FusiondError as problem:
        log.info("not handed in: %s", problem)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
