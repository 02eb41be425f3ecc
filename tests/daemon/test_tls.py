"""HTTPS by the daemon itself: certificates of an authority that the test makes, checked by httpx and by OpenSSL."""

from __future__ import annotations

import datetime
import ipaddress
import signal
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fusiond.model.errors import RequestError
from fusiond.service.daemon import tls
from fusiond.service.daemon.config import DaemonConfig, UpstreamAddress
from fusiond.service.daemon.limits import HttpLimits
from fusiond.service.daemon.upstream_client import Unreachable, Upstream
from fusiond.service.daemon.upstream_sync import Between
from fusiond.store.database import Store
from fusiond.store.exchange import tokens
from tests.daemon.conftest import running


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
