"""Files of entries: one a line, written whole or not at all, read by strangers' hands."""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fusiond.model.errors import RequestError
from fusiond.store.exchange import signing
from fusiond.store.exchange.database import Exchange
from fusiond.store.exchange.entry import LINE_BYTES, ExchangeEntry, Refused, parse
from fusiond.store.exchange.records import with_programs

_AT_ONCE = 100  #: Entries in one transaction
MOST_TOLD = 20  #: Refused lines that are named one by one


@dataclass(slots=True, kw_only=True)
class Imported:
    """What became of the lines of a file."""

    new: int = 0
    known: int = 0
    refused: int = 0
    why: list[str] = field(default_factory=list)  #: The first of those that were refused: `LINE: reason`
    untrusted: set[str] = field(default_factory=set)  #: Signers of what is here now whose keys are not trusted


def write(exchange: Exchange, path: Path, keys: Iterable[str]) -> int:
    """The entries of these keys, a line each; how many. RequestError where the file cannot be written."""
    work = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    count = 0
    try:
        with open(work, "x", encoding="ascii", newline="\n") as stream:
            for line in lines(exchange, keys):
                stream.write(f"{line}\n")
                count += 1
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(work, path)
    except OSError as problem:
        raise RequestError(f"{path} cannot be written: {problem.strerror}", where="FILE") from None
    finally:
        with contextlib.suppress(OSError):
            work.unlink()
    return count


def lines(exchange: Exchange, keys: Iterable[str]) -> Iterator[str]:
    """The same as lines without their ends."""
    for key in keys:
        entry = with_programs(exchange, key)
        if entry is not None:
            yield entry.line()


def read(exchange: Exchange, texts: Iterable[bytes]) -> Imported:
    """Keep what is an entry, with a right signature; the rest is refused, line by line, and disturbs nothing else."""
    result = Imported()
    waiting: list[ExchangeEntry] = []
    trusted = {*exchange.signers(), *exchange.own_signers()}

    def flush() -> None:
        new, known = exchange.put(waiting)
        result.new, result.known = result.new + new, result.known + known
        waiting.clear()

    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            entry = parse(text)
            signing.verify(entry)
        except Refused as problem:
            result.refused += 1
            if len(result.why) < MOST_TOLD:
                result.why.append(f"line {number}: {problem}")
            continue
        if entry.signer not in trusted:
            result.untrusted.add(entry.signer)
        waiting.append(entry)
        if len(waiting) == _AT_ONCE:
            flush()
    flush()
    return result


def of_file(path: Path) -> Iterator[bytes]:
    """The lines of a file, bounded: one that is too long comes cut off, and its rest is thrown away. RequestError."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            if not path.is_file():
                raise RequestError(f"{path} is not a plain file", where="FILE")
            yield from bounded(stream.readline)
    except OSError as problem:
        raise RequestError(f"{path} cannot be read: {problem.strerror}", where="FILE") from None


def bounded(readline: Callable[[int], bytes]) -> Iterator[bytes]:
    """Lines by a file's `readline`, each of at most LINE_BYTES + 1 bytes."""
    while line := readline(LINE_BYTES + 1):
        yield line
        while len(line) > LINE_BYTES and not line.endswith(b"\n"):
            line = readline(1 << 20)
            if not line:
                break
