"""Detects other users of a device, and handles them.

share       measure beside others; what was measured so is marked
wait        no job begins while others are there; a batch with others in it is thrown away, and taken again when they
            are gone (meanwhile the job has no process and no memory on the device)
exclusive   as `wait`, but a job in which others appear is put back into the queue and goes on when they are gone;
            another job may run meanwhile, on another device
"""

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass

from fusiond.model.errors import Interrupted

POLL_SECS = 2.0


class Policy(enum.StrEnum):
    SHARE = "share"
    WAIT = "wait"
    EXCLUSIVE = "exclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """`busy` says who is there, or None; `stop` whether the job is to end; `waiting` is told once that it waits."""

    policy: Policy = Policy.SHARE
    busy: Callable[[], str | None] = lambda: None
    stop: Callable[[], bool] = lambda: False
    waiting: Callable[[str], None] = lambda who: None
    poll_secs: float = POLL_SECS

    def wait(self) -> None:
        """Until nobody else is there. Interrupted when the job is to end meanwhile, or leaves them the device."""
        who = self.busy()
        if who is None or self.policy is Policy.SHARE:
            return
        if self.policy is Policy.EXCLUSIVE:
            raise Interrupted(f"put back, since {who}")
        self.waiting(who)
        while self.busy() is not None:
            if self.stop():
                raise Interrupted(f"stopped while waiting: {who}")
            time.sleep(self.poll_secs)
