"""Ed25519 by the `cryptography` library: the key of this machine, and signatures with it.

The private key lies beside the store, for its owner alone, and never leaves the machine: it is in no backup of the
store and in no export.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fusiond.model.errors import StoreError
from fusiond.store.exchange.entry import SIGNED, ExchangeEntry, Refused, canonical, digest
from fusiond.store.file_permissions import FILE_MODE, make_folder

_SECRET_BYTES = 32


def key_file(store: Path) -> Path:
    """Where the private key of a store's box lies: `fusiond.sqlite` -> `fusiond.key`."""
    return store.with_suffix(".key")


class Signer:
    """The key of this box."""

    def __init__(self, secret: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = self._key.public_key().public_bytes_raw().hex()  #: 64 hexadecimal digits: what others trust

    @classmethod
    def of(cls, store: Path) -> Signer:
        """The key beside a store; made when it is missing. StoreError for one that cannot be read, is damaged, or can
        be read by others."""
        path = key_file(store)
        with contextlib.suppress(FileNotFoundError):
            return cls(_read(path))
        _make(path)
        return cls(_read(path))

    def sign(self, body: dict[str, Any], programs: dict[str, dict[str, Any]]) -> ExchangeEntry:
        """The entry of a body, whose `signer` this fills in."""
        signed = {**body, "signer": self.public}
        signature = self._key.sign(SIGNED + canonical(signed).encode())
        return ExchangeEntry(signed, digest(signed), signature.hex(), programs)


def verify(entry: ExchangeEntry) -> None:
    """Refused where the signature is not that of the entry's signer over its body."""
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(entry.signer))
        key.verify(bytes.fromhex(entry.signature), SIGNED + canonical(entry.body).encode())
    except (InvalidSignature, ValueError):
        raise Refused("signature: is not that of its signer") from None


def _read(path: Path) -> bytes:
    """FileNotFoundError where there is none."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            found = os.fstat(stream.fileno())
            text = stream.read(1000)
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise StoreError(f"{path}: the signing key cannot be read: {problem.strerror}") from None
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
        raise StoreError(f"{path}: others can read the signing key; `chmod 600` it, or move it away for a new one")
    try:
        secret = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) != _SECRET_BYTES:
        raise StoreError(f"{path}: not a signing key, or a damaged one; move it away, and a new one is made")
    return secret


def _make(path: Path) -> None:
    """All of it or none; whoever is first wins."""
    work = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        make_folder(path.parent)
        with open(os.open(work, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE), "w") as stream:
            stream.write(secrets.token_bytes(_SECRET_BYTES).hex() + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(work, path)
    except OSError as problem:
        raise StoreError(f"{path}: the signing key cannot be written: {problem.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            work.unlink()
