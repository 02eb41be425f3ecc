"""The daemon's configuration file."""

import asyncio
import dataclasses
import errno
import json
import logging
import os
import re
import socket
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fusiond.model.errors import DaemonError, RequestError
from fusiond.model.events import JobEnded, JobStarted
from fusiond.model.inputs import documents
from fusiond.service.daemon import config, http
from fusiond.service.daemon import service as service_module
from fusiond.service.daemon import socket as sockets
from fusiond.service.daemon.config import DaemonConfig
from fusiond.service.daemon.http import Acceptor
from fusiond.service.daemon.logs import Limit, LogLines, Objects, follow
from fusiond.service.daemon.notify import Notifier
from fusiond.service.daemon.service import Service
from fusiond.store.database import Store
from tests import fake_daemon as daemon

SHIPPED = Path(__file__).parents[3] / "configs" / "fusiond.yaml"


def read(tmp_path: Path, text: str) -> config.DaemonConfig:
    path = tmp_path / "fusiond.yaml"
    path.write_text(text)
    return config.read(path)


def test_the_shipped_file_names_every_key_and_holds_the_defaults() -> None:
    assert config.read(SHIPPED) == config.DaemonConfig()
    keys = documents.parse(SHIPPED.read_text(), str(SHIPPED)).mapping()
    assert set(keys) == {field.name for field in dataclasses.fields(config.DaemonConfig)}


def test_everything_can_be_set(tmp_path: Path) -> None:
    text = "db: store/x.sqlite\nsocket: /run/x\ndevices: [cpu, 'cuda:1']\npoll_secs: 2\n"
    found = read(tmp_path, text + "when_busy: share\nlog_level: debug\nlog: json\n")
    assert found == config.DaemonConfig(
        db=tmp_path / "store/x.sqlite", socket=Path("/run/x"), devices=("cpu", "cuda:1"), poll_secs=2.0,
        when_busy="share", log_level="debug", log="json",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("poll_sec: 1\n", "fusiond.yaml:1: unknown key 'poll_sec'; did you mean 'poll_secs'?"),
        ("poll_secs: soon\n", "poll_secs: is 'soon'; a number is wanted"), ("poll_secs: 0\n", "must be from"),
        ("devices: [gpu]\n", "is 'gpu'; write all, cpu, cuda, cuda:0 or counted:h100"),
        ("devices: []\n", "names no device"), ("when_busy: never\n", "it can be share, wait, exclusive"),
        ("log_level: loud\n", "it can be debug"), ("db: 3\n", "a text is wanted"), ("- a\n", "a mapping is wanted"),
    ],
)  # fmt: skip
def test_mistakes_name_file_line_and_key(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(tmp_path, text)
    assert says in str(caught.value)
    assert "fusiond.yaml:1" in str(caught.value)


def test_it_is_found_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, everybodys = tmp_path / "own", tmp_path / "all"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(own))
    monkeypatch.setenv("XDG_CONFIG_DIRS", f"relative:{tmp_path / 'none'}:{everybodys}")
    assert config.find() is None
    for folder in (everybodys, own):
        (folder / "fusiond").mkdir(parents=True)
        (folder / "fusiond" / "fusiond.yaml").write_text("")
        assert config.find() == folder / "fusiond" / "fusiond.yaml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.find() == everybodys / "fusiond" / "fusiond.yaml"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("upstream: http://box.example", "write https://, or http:// of an SSH tunnel's end on this machine"),
        ("upstream: ftp://box", "write https://HOST[:PORT]"),
        ("upstream: https://anna:secret@box", "write https://HOST[:PORT]"),
        ("upstream: https://box:99999", "write https://HOST[:PORT]"),
        ("upstream: [https://box, https://box/]", "names one twice"),
        ("upstream: [{token_file: x}]", "url"),
        ("upstream: [{url: https://box, token_file: none}]", "cannot be read"),
        ("upstream: [{url: https://box, token_file: open}]", "can be read by others; `chmod 600` it"),
        ("upstream: [{url: https://box, token_file: empty}]", "holds no token"),
        ("upstream_secs: 0", "upstream_secs"),
    ],
)
def test_a_wrong_upstream_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    for name, content, mode in (("open", "x" * 40, 0o644), ("empty", "", 0o600)):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(mode)
    path = tmp_path / "fusiond.yaml"
    path.write_text(f"{text}\n")
    with pytest.raises(RequestError) as problem:
        config.read(path)
    assert says in str(problem.value)


def test_upstreams_and_their_tokens(tmp_path: Path) -> None:
    (tmp_path / "box.token").write_text("fusiond_abcdefghijklmnop\n")
    (tmp_path / "box.token").chmod(0o600)
    path = tmp_path / "fusiond.yaml"
    path.write_text("upstream: ['http://127.0.0.1:8080', {url: 'https://box/', token_file: box.token}]\n")
    found = config.read(path).upstream
    assert [each.url for each in found] == ["http://127.0.0.1:8080", "https://box"]
    assert [each.token for each in found] == ["", "fusiond_abcdefghijklmnop"]
    assert "abcdef" not in repr(found)  # in no log


# --- nobody's text can pretend to be a message of the log -----------------------------------------------


def record(message: str, *, problem: BaseException | None = None) -> logging.LogRecord:
    info = None if problem is None else (type(problem), problem, None)
    return logging.LogRecord("fusiond.x", logging.ERROR, __file__, 1, "%s", (message,), info)


def test_a_message_is_one_line_in_utc() -> None:
    text = LogLines().format(record("job a\n2026-01-31T12:00:00Z INFO MainThread: fusiond: all is well\x1b[2J\u202e"))
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ERROR MainThread: fusiond\.x: job a\\n2026-", text)
    assert text.endswith(r"all is well\x1b[2J\u202e")
    assert "\n" not in text


@pytest.mark.parametrize("character", ["\n", "\r", "\x85", "\u2028", "\x0c"])
def test_a_traceback_is_indented(character: str) -> None:
    text = LogLines().format(record("fell over", problem=ValueError(f"one{character}2026 INFO two\x07")))
    first, *others = text.splitlines()
    assert first.endswith("fell over")
    assert others
    assert all(line.startswith("    ") for line in others)
    assert "\x07" not in text


def test_an_object_is_one_line_with_what_its_thread_works_on() -> None:
    follow(JobStarted(job="k3f", workload="a,b", device="cuda:0", budget=4, known=0))
    try:
        found = json.loads(Objects().format(record("two\nlines \x1b", problem=ValueError("why"))))
    finally:
        follow(JobEnded(job="k3f", state="done"))
    assert found["message"] == "two\nlines \x1b"
    assert (found["level"], found["device"], found["job"]) == ("error", "cuda:0", "k3f")
    assert "ValueError: why" in found["traceback"]
    text = Objects().format(record("after"))
    assert "\n" not in text
    assert not {"job", "device", "trial"} & set(json.loads(text))


def test_a_kind_of_message_is_written_so_often_a_minute() -> None:
    clock = [0.0]
    limit = Limit(most=3, clock=lambda: clock[0])

    def passed(count: int, name: str = "fusiond.x") -> list[str]:
        made = [logging.LogRecord(name, logging.ERROR, __file__, 1, "lost %s", (at,), None) for at in range(count)]
        return [each.getMessage() for each in made if limit.filter(each)]

    assert passed(5) == ["lost 0", "lost 1", "lost 2"]
    assert passed(1, name="fusiond.y") == ["lost 0"]
    clock[0] = 61.0
    assert passed(2) == ["lost 0 (2 such messages were left out in the minute before)", "lost 1"]


# --- what systemd is told, by a socket that a test holds ------------------------------------------------


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
        ["READY=1", "STATUS=serving"], ["WATCHDOG=1"], ["STOPPING=1", "STATUS=running measurements are finished"],
    ]  # fmt: skip


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


# --- the Unix socket ------------------------------------------------------------------------------------


def test_only_its_user_can_open_it_whatever_the_umask_is(tmp_path: Path) -> None:
    path = tmp_path / "run" / "socket"
    before = os.umask(0)
    try:
        listener = sockets.listen(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert sockets.answers(path)
    listener.close()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run" / "socket"
    sockets.listen(path).close()
    assert path.exists()
    assert not sockets.answers(path)
    sockets.listen(path).close()


def test_a_live_socket_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "run" / "socket"
    first = sockets.listen(path)
    with pytest.raises(DaemonError, match="another daemon answers"):
        sockets.listen(path)
    assert sockets.answers(path)
    first.close()


def test_a_file_in_its_place_is_not_touched(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    (folder / "socket").write_text("precious")
    with pytest.raises(RequestError, match="not a socket"):
        sockets.listen(folder / "socket")
    assert (folder / "socket").read_text() == "precious"


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(RequestError, match="others may enter"):
        sockets.listen(folder / "socket")


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "run").symlink_to(tmp_path / "real")
    with pytest.raises(RequestError, match="expected a folder of your own"):
        sockets.listen(tmp_path / "run" / "socket")


# --- accepting while the process has no file descriptors left -------------------------------------------


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
