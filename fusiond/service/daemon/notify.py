"""Notifies systemd for units of `Type=notify`: sd_notify(3), a datagram to NOTIFY_SOCKET.

Nothing is said where nobody asked for it. Ten lines of a protocol that does not change need no dependency.
"""

import contextlib
import os
import socket
from collections.abc import MutableMapping


class Notifier:
    """Takes its variables out of the environment: the compilers and children that are started later have no say."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")
        pid, usecs = environment.pop("WATCHDOG_PID", ""), environment.pop("WATCHDOG_USEC", "")
        mine = pid in ("", str(os.getpid())) and usecs.isascii() and usecs.isdigit()
        self.watchdog_secs = int(usecs) / 1e6 if mine else 0.0
        """Systemd ends a daemon that is not `alive` for so long; 0: it does not watch."""

    def ready(self, status: str) -> None:
        """It serves."""
        self._tell(f"READY=1\nSTATUS={status}")

    def alive(self) -> None:
        """All that must live does."""
        self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        self._tell("STOPPING=1\nSTATUS=running measurements are finished")

    def _tell(self, text: str) -> None:
        if not self._address.startswith(("/", "@")):
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(text.encode(), address)
