"""Accepting while the process has no file descriptors left."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from pathlib import Path

import pytest

from fusiond.service.daemon import http
from fusiond.service.daemon.http import Acceptor


class Lacking(socket.socket):
    """A listener whose next `accept`s fail as they do without file descriptors."""

    failures = 0
    accepted = 0

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        found = super().accept()
        self.accepted += 1
        return found


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


def test_a_lack_of_descriptors_pauses_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http, "PAUSE_SECS", 0.01)
    listener = Lacking(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "socket"))
    listener.listen(8)
    listener.failures = 20

    async def ask() -> list[bytes]:
        acceptor = Acceptor(listener, Greeting)
        answers = []
        for _ in range(3):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "socket"))
            answers.append(await asyncio.wait_for(reader.read(), 10))
            writer.close()
            await writer.wait_closed()
        acceptor.close()
        await acceptor.wait_closed()
        return answers

    with caplog.at_level(logging.INFO), listener:
        assert asyncio.run(ask()) == [b"hello"] * 3
    assert (listener.failures, listener.accepted) == (0, 3)
    assert [each.message for each in caplog.records if each.name == http.__name__] == [
        "new connections wait: no file descriptors left in this process"
    ]


def test_another_error_is_not_hidden(tmp_path: Path) -> None:
    class Broken(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            raise OSError(errno.EBADF, "Bad file descriptor")

    async def accept() -> None:
        with Broken(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            acceptor = Acceptor(listener, Greeting)
            acceptor.close()
            with pytest.raises(OSError, match="Bad file"):
                acceptor._accept()

    asyncio.run(accept())
