"""One fusiond at a time measures on a device, whoever started it: a lock file per device, held by the kernel's
flock."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fusiond import faults
from fusiond.errors import DeviceError, Interrupted
from fusiond.keys import text_key
from fusiond.model import DeviceInfo

POLL_SECS = 0.2


def lock_path(device: DeviceInfo) -> Path:
    """The same path for every user of this machine. `FUSIOND_LOCKS` names another folder."""
    folder = Path(os.environ.get("FUSIOND_LOCKS") or tempfile.gettempdir())
    return folder / f"fusiond-{(device.uuid and text_key(device.uuid)[:16]) or device.name.replace(':', '-')}.lock"


@contextlib.contextmanager
def device_lock(device: DeviceInfo, *, stop: Callable[[], bool], waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a device. Calls `waiting` once when somebody else has it; raises Interrupted when `stop` says so
    meanwhile."""
    path = lock_path(device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Other users must be able to lock it too, and nobody may lead us elsewhere by a link.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as problem:
        doing = f"cannot open the lock {path}"
        raise faults.of_system(problem, doing) or DeviceError(f"{doing}: {problem.strerror}") from None
    try:
        with contextlib.suppress(PermissionError):
            os.chmod(path, 0o666)
        told = False
        while not _locked(handle):
            if not told:
                waiting()
                told = True
            if stop():
                raise Interrupted(f"stopped while waiting for {device.name}")
            time.sleep(POLL_SECS)
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
