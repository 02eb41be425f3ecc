"""What systemd is told, by a socket that a test holds."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fusiond.service.daemon import service as service_module
from fusiond.service.daemon.config import DaemonConfig
from fusiond.service.daemon.notify import Notifier
from fusiond.service.daemon.service import Service
from fusiond.store.database import Store
from fusiond.testing import daemon


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Its socket, and what NOTIFY_SOCKET says."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.settimeout(20)
        path = str(tmp_path / "notify")
        listener.bind(path if request.param == "path" else "\0" + path)
        yield listener, path if request.param == "path" else "@" + path


def test_it_is_told_and_the_environment_is_not_handed_on(systemd: tuple[socket.socket, str]) -> None:
    listener, address = systemd
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid()), "A": "b"}
    notifier = Notifier(environment)
    assert environment == {"A": "b"}
    assert notifier.watchdog_secs == 60
    notifier.ready("serving")
    notifier.alive()
    notifier.stopping()
    said = [listener.recv(1000).decode().splitlines() for _ in range(3)]
    assert said == [
        ["READY=1", "STATUS=serving"],
        ["WATCHDOG=1"],
        ["STOPPING=1", "STATUS=running measurements are finished"],
    ]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/nowhere/at/all", "WATCHDOG_USEC": "x"},
        {"NOTIFY_SOCKET": "vsock:2:1", "WATCHDOG_USEC": "5000", "WATCHDOG_PID": "1"},
    ],
)
def test_nobody_asked(environment: dict[str, str]) -> None:
    notifier = Notifier(environment)
    assert notifier.watchdog_secs == 0
    notifier.ready("serving")
    notifier.stopping()


def until(listener: socket.socket, wanted: str) -> list[str]:
    """The messages up to the one that begins so."""
    found: list[str] = []
    while not found or not found[-1].startswith(wanted):
        found.append(listener.recv(1000).decode())
    return found


@pytest.fixture
def watched(systemd: tuple[socket.socket, str], store: Store, monkeypatch: pytest.MonkeyPatch) -> Service:
    monkeypatch.setattr(service_module, "BEAT_SECS", 0.01)
    environment = {"NOTIFY_SOCKET": systemd[1], "WATCHDOG_USEC": "40000"}
    return Service(store, DaemonConfig(poll_secs=0.05), daemon.work(store, 0.01), notifier=Notifier(environment))


def test_a_service_is_ready_alive_and_stopping(systemd: tuple[socket.socket, str], watched: Service) -> None:
    with ThreadPoolExecutor(1) as pool:
        status = pool.submit(watched.run)
        assert until(systemd[0], "READY=1") == [f"READY=1\nSTATUS=serving {watched.database}"]
        until(systemd[0], "WATCHDOG=1")
        until(systemd[0], "WATCHDOG=1")
        watched.stopping.set()
        assert "WATCHDOG" not in until(systemd[0], "STOPPING=1")[-1]
        assert status.result(20) == 0


@pytest.mark.slow
@pytest.mark.parametrize("hangs", ["http", "worker"])
def test_the_watchdog_is_not_fed_while_a_part_hangs(
    systemd: tuple[socket.socket, str], watched: Service, monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    with ThreadPoolExecutor(1) as pool:
        status = pool.submit(watched.run)
        until(systemd[0], "WATCHDOG=1")
        if hangs == "http":
            monkeypatch.setattr(service_module, "SILENT_SECS", -1.0)
        else:
            watched._threads.append(dead := threading.Thread())
        systemd[0].settimeout(0.5)
        with pytest.raises(TimeoutError):  # after those that were under way
            until(systemd[0], "never")
        monkeypatch.setattr(service_module, "SILENT_SECS", 10.0)
        if hangs == "worker":
            watched._threads.remove(dead)
        systemd[0].settimeout(20)
        until(systemd[0], "WATCHDOG=1")
        watched.stopping.set()
        assert status.result(20) == 0
