"""Boxes and their upstream: pushes, misses, claims; and upstreams that are dead, slow, or lie."""

import contextlib
import dataclasses
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from fusiond import __version__
from fusiond.model.errors import NothingKnown
from fusiond.model.events import Events
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import JobState
from fusiond.requests import jobs
from fusiond.service.client import connection as client_connection
from fusiond.service.client.client import Client
from fusiond.service.daemon import upstream_client as calls
from fusiond.service.daemon import upstream_sync as module
from fusiond.service.daemon.app import BestQuery
from fusiond.service.daemon.config import DaemonConfig, UpstreamAddress
from fusiond.service.daemon.upstream_sync import Between
from fusiond.store.database import Store
from fusiond.store.exchange import find, tokens
from fusiond.store.exchange.entry import LINE_BYTES, ExchangeEntry, canonical
from fusiond.store.exchange.records import with_programs
from fusiond.store.exchange.signing import Signer
from fusiond.store.jobs import JobRow
from tests import fake_daemon as daemon
from tests.service.daemon.conftest import running
from tests.service.daemon.test_limits import samples

JOB = "strategy: toy\npair: [hist, maxpool]\nsizes: {a.n: 500}\nsearch: {trials: 3}\n"
FAMILY = daemon.workload_of(jobs.read("/job.yaml", JOB)[0]).content_family_key


def tuned(store: Store, text: str = JOB) -> JobRow:
    row = daemon.submit(store, jobs.read("/job.yaml", text)[0])
    store.claim("nobody")
    daemon.MakeBelieve(store, 0.0).run(row, daemon.DEVICE, Events(), lambda: False)
    return row


def imported(store: Store, between: Between, sizes: dict[str, int] | None = None) -> dict[str, Any] | None:
    """What the daemon does on a miss: look among the imports, then ask."""

    def look() -> dict[str, Any] | None:
        return find.best_of(
            store.path, families={FAMILY}, sizes=sizes, device=None, devices=[daemon.DEVICE.key], cache="warm",
            driver=None, version=__version__,
        )  # fmt: skip

    return look() or (
        look() if between.ask(FAMILY, (daemon.DEVICE.key,), "warm", canonical(sizes) if sizes else None) else None
    )


def entries_of(between: Between) -> list[ExchangeEntry]:
    found = [with_programs(between.exchange, key) for key in between.exchange.keys(own=None)]
    return [each for each in found if each is not None]


@dataclass(frozen=True)
class Box:
    store: Store
    between: Between
    client: Client


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Callable[..., Box]]:
    """A daemon with a make-believe device and these upstreams; `begin` is done with its store before it starts."""
    with contextlib.ExitStack() as opened:

        def start(
            name: str,
            *addresses: UpstreamAddress,
            begin: Callable[[Store], object] = lambda store: None,
            secs: float = 5.0,
            trial_secs: float = 0.0,
            web: Callable[[str], None] | None = None,
        ) -> Box:
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            store = opened.enter_context(Store.open(folder / "fusiond.sqlite"))
            store.save_device(daemon.DEVICE)
            begin(store)
            between = Between(store, addresses, secs)

            def elsewhere(question: BestQuery) -> dict[str, Any] | None:
                return imported(store, between)

            def answered(row: JobRow, device: DeviceInfo) -> str | None:
                found = imported(store, between, dict(store.load_job(row.id).sizes))
                return found["imported"]["name"] if found is not None else None

            work = dataclasses.replace(daemon.work(store, trial_secs), elsewhere=elsewhere, answered=answered)
            config = DaemonConfig(poll_secs=0.05, web=("127.0.0.1", 0) if web else None)
            _, client = opened.enter_context(running(store, config=config, announce=web, between=between, work=work))
            return Box(store, between, client)

        yield start


@pytest.fixture
def upstream(box: Callable[..., Box]) -> tuple[Box, Callable[[str], UpstreamAddress]]:
    """A box upstream, and how others reach it with a token of these rights."""
    urls: list[str] = []
    found = box("upstream", web=urls.append)
    base = urls[0].partition("/?")[0]

    def address(rights: str) -> UpstreamAddress:
        token = tokens.new()
        found.between.exchange.add_token(token[-8:].replace("-", "x").replace("_", "x"), rights, tokens.digest(token))
        return UpstreamAddress(url=base, token=token)

    return found, address


def until(done: Callable[[], object]) -> None:
    """For a thread of the daemon's to have done it; the test's own time limit ends what never is."""
    waiting = threading.Event()
    while not done():
        waiting.wait(0.02)


Upstream = tuple[Box, Callable[[str], UpstreamAddress]]


def test_what_goes_between_boxes_is_as_openapi_says_and_is_counted(box: Callable[..., Box], upstream: Upstream) -> None:
    up, address = upstream
    first = box("a", address("write"), begin=tuned)
    until(lambda: up.between.exchange.count()["imported"] == 1)
    (entry,) = entries_of(up.between)
    question = {"family": FAMILY, "device": daemon.DEVICE.key}
    claim = {"question": "q", "holder": "h", "secs": 5}
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "/exchange/answer", {"params": {**question, "programs": "1"}}),
        ("GET", "/exchange/answer", {"params": {**question, "device": "0" * 32}}),
        ("POST", "/exchange/answers", {"content": f"{entry.line()}\nnonsense"}),
        ("POST", "/exchange/claims", {"json": claim}),
        ("POST", "/exchange/claims", {"json": {**claim, "holder": "another"}}),
        ("POST", "/exchange/claims/release", {"json": {"question": "q", "holder": "h"}}),
        ("POST", "/exchange/claims", {"json": {**claim, "secs": 0}}),
    ]
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(up.client.socket)), base_url="http://fusiond") as http:
        document = http.get("/openapi.json").json()
        for method, path, options in calls:
            operation = document["paths"][path][method.lower()]
            response = http.request(method, path, **options)
            described = operation["responses"].get(str(response.status_code), operation["responses"]["default"])
            schema = {**described["content"]["application/json"]["schema"], "components": document["components"]}
            Draft202012Validator(schema).validate(response.json())
            if "json" in options and response.status_code == 200:  # what is sent is as it says, too
                sent = operation["requestBody"]["content"]["application/json"]["schema"]
                Draft202012Validator({**sent, "components": document["components"]}).validate(options["json"])
        told = samples(http.get("/metrics").text)
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(first.client.socket)), base_url="http://fusiond") as http:
        pushed = samples(http.get("/metrics").text)
    counted = {
        (dict(labels)["request"], dict(labels)["result"]): value
        for (name, labels), value in told.items() if name == "fusiond_exchange_requests_total"
    }  # fmt: skip
    assert counted == {
        ("push", "new"): 1, ("push", "known"): 1, ("push", "refused"): 1, ("answer", "found"): 1,
        ("answer", "unknown"): 1, ("claim", "granted"): 1,
        ("claim", "held"): 1,
    }  # fmt: skip
    assert told["fusiond_exchange_entries", (("kind", "imported"),)] == 1
    where = ("upstream", first.between.upstreams[0].url)
    assert pushed["fusiond_upstream_calls_total", (("call", "push"), ("result", "ok"), where)] == 1
    assert (pushed["fusiond_upstream_up", (where,)], pushed["fusiond_upstream_behind", (where,)]) == (1, 0)


def test_what_an_upstream_did_not_take_is_pushed_later(
    box: Callable[..., Box], upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    up, address = upstream
    monkeypatch.setattr(calls, "REST_SECS", 0.05)
    monkeypatch.setattr(module, "BEAT_SECS", 0.1)
    reader = address("read")
    first = box("a", reader, begin=tuned)  # may not write
    until(lambda: first.between.upstreams[0]._told)
    assert first.between.exchange.mark(reader.url) == 0
    up.between.exchange.remove_token(reader.token[-8:].replace("-", "x").replace("_", "x"))
    up.between.exchange.add_token("again", "write", tokens.digest(reader.token))
    until(lambda: up.between.exchange.count()["imported"] == 1)
    until(lambda: first.between.exchange.mark(reader.url) > 0)


@pytest.mark.slow
def test_two_boxes_do_not_tune_the_same_at_the_same_time(
    box: Callable[..., Box], upstream: Upstream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "LOOK_SECS", 0.2)
    _, address = upstream
    first = box("a", address("write"), trial_secs=0.15)
    second = box("b", address("write"), trial_secs=0.0)
    second.between.exchange.trust(Signer.of(first.store.path).public, "anna's box")
    path = tmp_path / "job.yaml"
    path.write_text(JOB.replace("trials: 3", "trials: 8"))
    (one,) = first.client.submit(path)
    until(lambda: first.store.named_job(one).state is JobState.RUNNING and first.store.trials(one))
    (two,) = second.client.submit(path)
    until(lambda: second.store.named_job(two).state is JobState.WAITING)
    assert "tunes the same" in second.store.named_job(two).waiting_for
    (other,) = second.client.submit(path, JOB.replace("500", "501"))  # another question is nobody's
    until(lambda: second.store.named_job(other).state is JobState.DONE)
    until(lambda: second.store.named_job(two).state.ended)
    row = second.store.named_job(two)
    assert (row.state, row.trials) == (JobState.DONE, 0)
    assert first.store.named_job(one).state is JobState.DONE
    assert "answered meanwhile by anna's box" in str(row.finding)


# --- who may do what ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tokens_have_rights(box: Callable[..., Box], upstream: Upstream) -> None:
    up, address = upstream
    read, write = address("read"), address("write")
    query = {"family": "a" * 32, "device": "b" * 32}
    claim = {"question": "q", "holder": "h", "secs": 60}

    def said(address: UpstreamAddress | None, method: str, path: str, **options: Any) -> int:
        headers = {"authorization": f"Bearer {address.token}"} if address is not None else {}
        return httpx.request(method, read.url + path, headers=headers, **options).status_code

    wrong = UpstreamAddress(url=read.url, token="fusiond_" + "x" * 43)
    for each, expected in ((None, 401), (wrong, 403)):
        for path in ("/exchange/answer", "/exchange/answers", "/exchange/claims", "/best", "/", "/jobs"):
            assert said(each, "POST" if path in ("/exchange/answers", "/exchange/claims") else "GET", path) == expected
    for each in (read, write):
        assert said(each, "GET", "/exchange/answer", params=query) == 404
        assert said(each, "GET", "/best", params={"pair": "x,y"}) == 404
        for method, path in (("GET", "/"), ("GET", "/jobs"), ("POST", "/jobs"), ("POST", "/judge"),
                             ("POST", "/jobs/x/cancel"), ("POST", "/best"), ("GET", "/page/jobs/x")):  # fmt: skip
            assert said(each, method, path) == 403, path
    assert said(read, "POST", "/exchange/answers", content=b"x") == 403
    assert said(read, "POST", "/exchange/claims", json=claim) == 403
    assert said(write, "POST", "/exchange/claims", json=claim) == 200
    assert said(write, "POST", "/exchange/answers", content=b"x") == 200  # a line that is refused
    assert up.between.exchange.count() == {"own": 0, "imported": 0}


# --- upstreams that are dead, slow, or lie --------------------------------------------------------------


@contextlib.contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[UpstreamAddress]:
    """A listener that does this to whoever connects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    threading.Thread(target=one, args=[connection], daemon=True).start()

        def one(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                connection.recv(65536)
                answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield UpstreamAddress(url=f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            over.set()
            thread.join()


def reply(body: bytes, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{more}connection: close\r\n\r\n".encode() + body


def drip(text: bytes) -> Callable[[socket.socket], None]:
    """A byte now and then: never silent for long, and never done."""

    def answer(connection: socket.socket) -> None:
        for each in text:
            connection.sendall(bytes([each]))
            threading.Event().wait(0.15)

    return answer


def sends(data: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(data)


BAD: dict[str, Callable[[socket.socket], None]] = {
    "hangs up": lambda connection: None,
    "says nothing": lambda connection: threading.Event().wait(3) and None,
    "drips its header": drip(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100),
    "drips its body": drip(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + b"{" * 100),
    "speaks no HTTP": sends(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "fails": sends(reply(b"{}", "500 Internal Server Error")),
    "leads elsewhere": sends(reply(b"", "302 Found", "location: http://127.0.0.1:1/\r\n")),
    "answers nonsense": sends(reply(b"<html>")),
    "answers no entry": sends(reply(b"{}")),
    "answers deeply": sends(reply(b"[" * 100_000)),
    "answers without an end": lambda connection: connection.sendall(
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (2 * LINE_BYTES + 100_000)
    ),
}


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", BAD)
def test_a_bad_upstream_costs_a_little_time_and_nothing_else(how: str, box: Callable[..., Box], tmp_path: Path) -> None:
    with server(BAD[how]) as address:
        found = box("a", address, begin=tuned, secs=0.4)
        assert (
            client_connection.ask(found.client.socket, "GET", "/best", query=[("pair", "hist,maxpool")])["match"]
            == "exact"
        )  # its own
        with pytest.raises(NothingKnown):
            client_connection.ask(found.client.socket, "GET", "/best", query=[("pair", "a,b")])
        assert not found.between.ask("0" * 32, (daemon.DEVICE.key,), "warm", None)
        path = tmp_path / "job.yaml"
        path.write_text(JOB.replace("500", "700"))
        (job,) = found.client.submit(path)  # no claim is to be had, and it is tuned all the same
        until(lambda: found.store.named_job(job).state is JobState.DONE)
        assert found.between.exchange.count()["imported"] == 0
        assert found.between.exchange.mark(address.url) == 0  # it was told nothing


def test_one_that_is_dead_is_left_alone_for_a_while(box: Callable[..., Box]) -> None:
    asked: list[int] = []

    def note(connection: socket.socket) -> None:
        asked.append(1)

    with server(note) as address:
        found = box("a", address, secs=0.5)
        for _ in range(20):
            assert not found.between.ask(FAMILY, (daemon.DEVICE.key,), "warm", None)
        assert len(asked) <= 2  # a kept connection may be tried anew
        assert not found.between.listens


def lies(entry: ExchangeEntry) -> dict[str, str]:
    """What an upstream may answer that is not its to say."""
    signer = Signer(bytes(32))
    device = {**entry.body["device"], "memory_bytes": 7 << 30}
    device["key"] = dataclasses.replace(daemon.DEVICE, memory_bytes=7 << 30).key
    other = signer.sign({**entry.body, "device": device}, {})
    content = signer.sign({**entry.body, "workload": {**entry.body["workload"], "content_family_key": "0" * 32}}, {})
    forged = json.loads(entry.line())
    forged["body"]["speedup"] = 9.0
    unsigned = json.loads(signer.sign({**entry.body, "speedup": 9.0}, {}).line())
    unsigned["signature"] = "0" * 128
    return {
        "of another device": other.line(),
        "of another content": content.line(),
        "changed": json.dumps(forged),
        "unsigned": json.dumps(unsigned),
        "cut short": entry.line()[:-40],
    }


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["of another device", "of another content", "changed", "unsigned", "cut short"])
def test_an_answer_that_was_not_asked_for_or_not_signed_is_refused(how: str, box: Callable[..., Box]) -> None:
    source = box("source", begin=tuned)
    until(lambda: source.between.exchange.count()["own"] == 1)
    (entry,) = entries_of(source.between)
    with server(sends(reply(lies(entry)[how].encode()))) as address:
        found = box("a", address)
        assert not found.between.ask(FAMILY, (daemon.DEVICE.key,), "warm", None)
        assert found.between.exchange.count() == {"own": 0, "imported": 0}
    with server(sends(reply(entry.line().encode()))) as address:
        assert box("b", address).between.ask(FAMILY, (daemon.DEVICE.key,), "warm", None)  # as it is, it is taken
