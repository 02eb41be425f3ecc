"""TLS, for the pages and the API over TCP and towards upstreams: 1.2 and later, with the defaults of Python's ssl."""

import ssl
from pathlib import Path

from fusiond.model.errors import RequestError


def server(certificate: Path, key: Path) -> ssl.SSLContext:
    """What a server shows and signs with: a PEM file with its certificate and the chain after it, and one with its
    private key. RequestError where they cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if key.stat().st_mode & 0o007:
            raise RequestError(f"{key} can be read by everybody; `chmod 600` it", where="tls_key")
    except OSError as problem:
        raise RequestError(f"{key} cannot be read: {problem.strerror}", where="tls_key") from None
    try:
        # Without a password that somebody would have to type.
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except ssl.SSLError as problem:
        why = " ".join((problem.reason or str(problem)).replace("_", " ").lower().split())
        raise RequestError(
            f"{certificate} and {key} are not a certificate and its key, in PEM without a password ({why})",
            where="tls_cert",
        ) from None
    except OSError as problem:
        raise RequestError(f"{certificate} cannot be read: {problem.strerror}", where="tls_cert") from None
    return context


def client(authority: Path | None) -> ssl.SSLContext | bool:
    """Whom a client trusts: the authority of this PEM file alone; None: whoever httpx does. RequestError."""
    if authority is None:
        return True
    try:
        return ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(authority))
    except ssl.SSLError:
        raise RequestError(f"{authority} holds no certificate in PEM", where="ca_file") from None
    except OSError as problem:
        raise RequestError(f"{authority} cannot be read: {problem.strerror}", where="ca_file") from None
