"""What one connection may cost: everything beyond is answered with its status, and the daemon goes on."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import pytest

from fusiond.model.errors import DaemonError
from fusiond.service.client.client import Client
from fusiond.service.daemon.limits import BODY_BYTES, HttpLimits

Serving = Callable[..., AbstractContextManager[tuple[Any, Client]]]
SHORT = HttpLimits(header_secs=0.2, body_secs=0.3, idle_secs=0.2, answer_secs=0.2, connections=4, linger_secs=0.2)


@contextmanager
def connected(client: Client) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as found:
        found.settimeout(20)
        found.connect(str(client.socket))
        yield found


def everything(connection: socket.socket) -> bytes:
    """What the daemon sends until it closes the connection."""
    found = b""
    while data := connection.recv(65536):
        found += data
    return found


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def problem(answer: bytes) -> str:
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    return str(error["problem"])


@pytest.mark.parametrize("chunked", [False, True])
def test_a_long_body_is_read_to_its_end_and_answered_with_413(serving: Serving, chunked: bool) -> None:
    """A client that writes without looking must see the answer, and no broken pipe."""
    with serving() as (_, client), connected(client) as connection:
        framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % (9 * BODY_BYTES // 8)
        connection.sendall(b"POST /jobs HTTP/1.1\r\nhost: x\r\n" + framing + b"\r\n\r\n")
        part = b"x" * (BODY_BYTES // 8)
        for _ in range(9):
            connection.sendall(b"%x\r\n" % len(part) + part + b"\r\n" if chunked else part)
        if chunked:
            connection.sendall(b"0\r\n\r\n")
        answer = connection.recv(65536)
        assert status(answer) == 413
        assert problem(answer) == "is longer than 8 MB"
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert status(everything(connection)) == 200  # the same connection serves on


@pytest.mark.parametrize("size", [BODY_BYTES, BODY_BYTES + 1])
def test_the_limit_is_exact(serving: Serving, size: int) -> None:
    with (
        serving() as (_, client),
        httpx.Client(transport=httpx.HTTPTransport(uds=str(client.socket)), base_url="http://x") as http,
    ):
        assert http.post("/jobs", content=b"x" * size).status_code == (400 if size == BODY_BYTES else 413)


def test_a_long_header_is_a_431(serving: Serving) -> None:
    with serving() as (_, client), connected(client) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nx: " + b"y" * 100_000)
        answer = everything(connection)
        assert status(answer) == 431
        assert "longer than 65536 bytes" in problem(answer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begun", "missing"),
    [
        (b"GET /health HT", "the rest of the request's header did not come within 0.2 s"),
        (b"POST /jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{", "body did not come within 0.3 s"),
    ],
)
def test_a_request_that_does_not_end_is_a_408(serving: Serving, begun: bytes, missing: str) -> None:
    with serving(limits=SHORT) as (_, client), connected(client) as connection:
        connection.sendall(begun)
        answer = everything(connection)
        assert status(answer) == 408
        assert missing in problem(answer)


def test_drops_of_a_header_do_not_keep_it_open(serving: Serving) -> None:
    with serving(limits=SHORT) as (_, client), connected(client) as connection:
        connection.settimeout(0.02)
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        answer = b""
        while not answer:
            connection.sendall(b"x: y\r\n")
            try:
                answer = connection.recv(65536)
            except TimeoutError:
                continue
        assert status(answer) == 408


@pytest.mark.parametrize("request_before", [b"", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_an_idle_connection_is_closed_without_a_word(serving: Serving, request_before: bytes) -> None:
    with serving(limits=SHORT) as (_, client), connected(client) as connection:
        connection.sendall(request_before)
        assert everything(connection).count(b"HTTP/1.1") == (1 if request_before else 0)


def flood(connection: socket.socket) -> None:
    """Ask again and again, and read nothing."""
    while True:
        connection.sendall(b"GET /nothing-of-this-name-is-here HTTP/1.1\r\nhost: x\r\n\r\n")


def test_an_answer_that_nobody_reads_is_given_up(serving: Serving) -> None:
    with serving(limits=SHORT) as (_, client):
        with connected(client) as connection, pytest.raises((BrokenPipeError, ConnectionResetError)):
            flood(connection)
        assert client.health()["state"] == "serving"


@pytest.mark.slow
@pytest.mark.parametrize("requests", [1, 200, 300, 400, 500, 600])
def test_an_idle_connection_is_closed_though_its_last_answers_are_unread(serving: Serving, requests: int) -> None:
    """Some of these fill what the kernel holds, and not so much more that the daemon would pause."""
    with serving(limits=SHORT) as (_, client):
        with connected(client) as connection:
            connection.sendall(requests * b"GET /nothing-of-this-name-is-here HTTP/1.1\r\nhost: x\r\n\r\n")
            waiting = select.poll()
            waiting.register(connection, 0)
            assert waiting.poll(20_000)  # the other side has hung up
        assert client.health()["state"] == "serving"


def test_half_open_requests_do_not_keep_others_out(serving: Serving) -> None:
    with serving(limits=SHORT) as (_, client):
        opened = []
        for _ in range(SHORT.connections):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(20)
            connection.connect(str(client.socket))
            connection.sendall(b"GET /")
            opened.append(connection)
        with connected(client) as another:
            another.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = everything(another)
            assert status(answer) == 503
            assert problem(answer) == "4 connections are open; try again"
        for each in opened:
            assert status(everything(each)) == 408
            each.close()
        assert client.health()["state"] == "serving"


def test_the_client_says_that_the_daemon_is_busy(serving: Serving) -> None:
    limits = HttpLimits(connections=2)
    with (
        serving(limits=limits) as (_, client),
        connected(client),
        connected(client),
        pytest.raises(DaemonError, match=r"^the daemon refused: 2 connections are open; try again$"),
    ):
        client.health()
