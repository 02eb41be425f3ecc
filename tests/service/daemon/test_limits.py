"""What one connection may cost: everything beyond is answered with its status, and the daemon goes on."""

import contextlib
import datetime
import ipaddress
import json
import re
import select
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from prometheus_client.parser import text_string_to_metric_families

from fusiond.model.errors import DaemonError, RequestError, StoreError
from fusiond.model.outcomes import JobState
from fusiond.service.client.client import Client
from fusiond.service.daemon import openapi, tls
from fusiond.service.daemon.app import App
from fusiond.service.daemon.config import DaemonConfig, UpstreamAddress
from fusiond.service.daemon.limits import BODY_BYTES, HttpLimits
from fusiond.service.daemon.metrics import Metrics, State
from fusiond.service.daemon.upstream_client import Unreachable, Upstream
from fusiond.service.daemon.upstream_server import Endpoints
from fusiond.service.daemon.upstream_sync import Between
from fusiond.store.database import Store
from fusiond.store.exchange import tokens
from tests.service.daemon.conftest import running

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


# --- `/metrics`, read by Prometheus' own parser, and `/openapi.json` held to what is served -------------


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """(name, labels) -> value."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_a_daemon_did_and_is(store: Store, service_of: Callable[..., Any], job_file: Callable[..., Path]) -> None:
    with service_of(store) as (service, client):
        (job,) = client.submit(job_file(trials=3))
        for _ in client.watch(job):
            pass
        transport = httpx.HTTPTransport(uds=str(client.socket))
        with httpx.Client(transport=transport, base_url="http://fusiond") as http:
            assert http.get("/best", params={"pair": "hist,maxpool"}).status_code == 200
            assert http.get("/best", params={"pair": "a,b"}).status_code == 404
            assert http.get("/best", params={"pair": "a"}).status_code == 400
            store.set_sick(service.workers[0].device.key, service.workers[0].device.uuid, "it fell over")
            response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(response.text)
    assert found["fusiond_trials_total", (("outcome", "measured"),)] == 3
    assert found["fusiond_jobs_ended_total", (("state", "done"),)] == 1
    states = {labels[0][1]: value for (name, labels), value in found.items() if name == "fusiond_jobs"}
    assert states == {state.value: float(state is JobState.DONE) for state in JobState}
    matches = {labels[0][1]: value for (name, labels), value in found.items() if name == "fusiond_lookups_total"}
    assert matches == {"exact": 1, "unknown": 1, "refused": 1}
    assert found["fusiond_lookup_seconds_count", ()] == 3
    assert found["fusiond_device_busy", (("device", "cpu"),)] == 0
    assert found["fusiond_device_sick", (("device", "cpu"),)] == 1
    assert found["fusiond_store_bytes", ()] > 4096
    assert found["fusiond_store_up", ()] == 1
    assert all(name.startswith("fusiond_") for name, _ in found)


def test_a_store_that_cannot_be_read_is_a_figure() -> None:
    def look() -> State:
        raise StoreError("the disk is gone")

    found = samples(Metrics(look).text().decode())
    assert found["fusiond_store_up", ()] == 0
    assert ("fusiond_uptime_seconds", ()) in found


def test_every_route_is_described_with_its_methods(store: Store, service_of: Callable[..., Any]) -> None:
    with service_of(store) as (_, client):
        transport = httpx.HTTPTransport(uds=str(client.socket))
        with httpx.Client(transport=transport, base_url="http://fusiond") as http:
            document = http.get("/openapi.json").json()
    assert set(document["paths"]) == {each.path for each in App(Mock()).starlette().routes}  # type: ignore[attr-defined]
    check_references(document)
    check_references(openapi.document(Endpoints(None).routes()))  # type: ignore[arg-type]


def check_references(document: Any) -> None:
    schemas = document["components"]["schemas"]

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"].rpartition("/")[2]} if "$ref" in value else set()
            return own.union(*(references(each) for each in value.values()))
        return set().union(*(references(each) for each in value)) if isinstance(value, list) else set()

    assert references(document) <= set(schemas)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            named = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
            assert named == ({"id"} if "{id}" in path else set())


def test_what_goes_on_between_boxes_is_counted() -> None:
    kept = {"own": 3, "imported": 2, "claims": 1}
    there = {"upstream": "https://box", "rests": True, "behind": 4}
    state = State(jobs={}, devices=[], store_bytes=1, exchange=kept, upstreams=[there])
    metrics = Metrics(lambda: state)
    metrics.served("push", "new", 2)
    metrics.served("push", "refused", 0)  # nothing of it: no series
    metrics.called("https://box", "answer", "failed", 2.0)
    found = samples(metrics.text().decode())
    assert found["fusiond_exchange_requests_total", (("request", "push"), ("result", "new"))] == 2
    assert ("fusiond_exchange_requests_total", (("request", "push"), ("result", "refused"))) not in found
    where = ("upstream", "https://box")
    assert found["fusiond_upstream_calls_total", (("call", "answer"), ("result", "failed"), where)] == 1
    assert found["fusiond_upstream_call_seconds_sum", ()] == 2
    assert (found["fusiond_upstream_up", (where,)], found["fusiond_upstream_behind", (where,)]) == (0, 4)
    assert {dict(labels)["kind"]: value for (name, labels), value in found.items()
            if name == "fusiond_exchange_entries"} == kept  # fmt: skip


def test_the_dashboard_asks_for_what_is_there(service_of: Any, tmp_path: Path) -> None:
    """Every figure of packaging/grafana/fusiond.json is one that /metrics has, with the labels that group it."""
    path = Path(__file__).parents[3] / "packaging" / "grafana" / "fusiond.json"
    dashboard = json.loads(path.read_text())
    asked = [each["expr"] for panel in dashboard["panels"] for each in panel["targets"]]
    with Store.open(tmp_path / "fusiond.sqlite") as store, contextlib.ExitStack() as opened:
        between = Between(store, [UpstreamAddress(url="http://127.0.0.1:9")], 0.1)
        service, client = opened.enter_context(service_of(store, between=between))
        job = tmp_path / "job.yaml"
        job.write_text("strategy: toy\npair: [a, b]\nsearch: {trials: 2}\n")
        (id,) = client.submit(job)
        list(client.watch(id))
        service.metrics.looked_up("exact", 0.001)
        service.metrics.served("answer", "found")
        service.metrics.judged("right")
        service.metrics.called("https://box", "answer", "ok", 0.01)
        text = ""
        while "fusiond_jobs_ended_total{" not in text:  # those who watch are told first
            text = service.metrics.text().decode()
    names = set(re.findall(r"^# TYPE (\S+)", text, flags=re.M))
    assert len(asked) >= 12
    for expression in asked:
        (figure,) = set(re.findall(r"fusiond_\w+", expression))
        assert figure.removesuffix("_bucket") in names, figure
        for label in re.findall(r"by \((\w+)\)", expression):
            assert re.search(rf"^{figure}\{{[^}}]*\b{label}=", text, flags=re.M), (figure, label)
    used = {name.removesuffix("_bucket") for each in asked for name in re.findall(r"fusiond_\w+", each)}
    left = {each for each in names - used if not each.endswith("_created")}
    assert left <= {"fusiond_build_info"}, left  # nothing that is measured is left out


# --- HTTPS by the daemon itself -------------------------------------------------------------------------


def certificate(folder: Path, *, name: str = "box", ip: str = "127.0.0.1") -> tuple[Path, Path]:
    """A certificate that signs itself, for an address, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who).issuer_name(who).public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(ip))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))
    paths[1].chmod(0o600)
    return paths


def test_pages_and_upstreams_over_https(store: Store, tmp_path: Path) -> None:
    own, key = certificate(tmp_path)
    strange, _ = certificate(tmp_path, name="strange")
    urls: list[str] = []
    settings = DaemonConfig(poll_secs=0.05, web=("127.0.0.1", 0), tls_cert=own, tls_key=key)
    between = Between(store, (), 5.0)
    token = tokens.new()
    between.exchange.add_token("b", "read", tokens.digest(token))
    with running(store, config=settings, announce=urls.append, between=between, limits=HttpLimits(header_secs=0.3)):
        (url,) = urls
        assert url.startswith("https://127.0.0.1:")
        base = url.partition("/?")[0]
        trusted: Any = tls.client(own)
        moved = httpx.get(url, verify=trusted, headers={"accept": "text/html"})
        assert moved.status_code == 303
        assert "secure" in moved.headers["set-cookie"].lower()
        assert httpx.get(f"{base}/health", verify=trusted).status_code == 401
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{base}/health")
        with pytest.raises(httpx.HTTPError):  # plain HTTP to a port of HTTPS
            httpx.get(f"{base.replace('https', 'http')}/health")
        wanted = {"family": "0" * 32, "device": "1" * 32, "cache": "warm", "sizes": None}
        known = Upstream(UpstreamAddress(url=base, token=token, authority=own), 5.0)
        assert known.answer(**wanted) is None  # asked, and nothing is known there
        known.close()
        for address in (
            UpstreamAddress(url=base, token=token, authority=strange),
            UpstreamAddress(url=base, token=token),
        ):
            with pytest.raises(Unreachable, match="certificate verify failed"):
                Upstream(address, 5.0).answer(**wanted)
        late = ssl.create_default_context(cafile=str(own))
        host, port = base.removeprefix("https://").split(":")
        with late.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host) as half:
            half.sendall(b"GET /health HT")
            assert half.recv(100).startswith(b"HTTP/1.1 408 ")  # the limits of a connection hold here, too


def test_a_renewed_certificate_is_shown_after_sighup(store: Store, tmp_path: Path) -> None:
    own, key = certificate(tmp_path)
    urls: list[str] = []
    settings = DaemonConfig(poll_secs=0.05, web=("127.0.0.1", 0), tls_cert=own, tls_key=key)
    with running(store, config=settings, announce=urls.append) as (service, _):
        service._reread = lambda: settings
        base = urls[0].partition("/?")[0]
        before = own.read_text()
        new, new_key = certificate(tmp_path, name="new")
        new.rename(own)
        service._on_signal(signal.SIGHUP, None)
        seen = before
        host, port = base.removeprefix("https://").split(":")
        while seen == before:  # the old key beside the new certificate is refused, and changes nothing
            if not service._to_reread.is_set() and new_key.exists():
                assert ssl.get_server_certificate((host, int(port))) == before
                new_key.rename(key)
                service._on_signal(signal.SIGHUP, None)
            seen = ssl.get_server_certificate((host, int(port)))
        assert seen.split() == own.read_text().split()


def test_what_is_no_certificate_is_one_line(tmp_path: Path) -> None:
    own, key = certificate(tmp_path)
    other, other_key = certificate(tmp_path, name="other")
    (tmp_path / "empty").write_text("")
    (tmp_path / "empty").chmod(0o600)
    wrong: list[tuple[Path, Path, str]] = [
        (own, other_key, "not a certificate and its key"), (tmp_path / "empty", key, "not a certificate and its key"),
        (own, tmp_path / "empty", "not a certificate and its key"), (tmp_path / "none", key, "cannot be read"),
        (own, tmp_path / "none", "cannot be read"),
    ]  # fmt: skip
    for cert, secret, why in wrong:
        with pytest.raises(RequestError, match=why):
            tls.server(cert, secret)
    other_key.chmod(0o604)
    with pytest.raises(RequestError, match="can be read by everybody"):
        tls.server(other, other_key)
    for authority in (tmp_path / "none", tmp_path / "empty"):
        with pytest.raises(RequestError):
            tls.client(authority)
