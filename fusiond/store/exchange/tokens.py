"""Tokens for programs on other machines: 256 random bits, stored as a digest."""

import hashlib
import secrets

RIGHTS = ("read", "write")  #: `write` includes `read`


def new() -> str:
    return f"fusiond_{secrets.token_urlsafe(32)}"


def digest(token: str) -> str:
    """SHA-256: there is nothing to guess in 256 random bits, so that no slower hash is needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
