"""Options that several commands share, and the one way to print JSON. Standard library only: `best` imports it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

from fusiond.cli import output
from fusiond.model.errors import RequestError
from fusiond.store.location import default_name

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` alone would cost more than a lookup
    import argparse
    from pathlib import Path
    from typing import Any


def add_store(parser: argparse.ArgumentParser) -> None:
    """`--db`, `--json`."""
    parser.add_argument(
        "--db", metavar="FILE", help="the store (default: FUSIOND_DB, else in the user's data directory)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output, nothing else")


def add_search(parser: argparse.ArgumentParser) -> None:
    """`--device`, `--trials`, `--seed`: what stands above the job file."""
    parser.add_argument("--device", metavar="D", help="cpu, cuda:N, auto: instead of what the job says")
    parser.add_argument(
        "--trials", type=int, metavar="N", help="how many candidates to try, instead of what the job says"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="the search's seed, instead of what the job says")


def add_busy(parser: argparse.ArgumentParser) -> None:
    """`--when-busy`: as the daemon's `when_busy`."""
    parser.add_argument(
        "--when-busy",
        choices=("wait", "share", "exclusive"),
        default="wait",
        help="while another process computes on the GPU: wait for its end (the default), measure beside it, or stop",
    )


def add_workload(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """`--pair A,B | --workload NAME`, `--device`, `--size`."""
    which = parser.add_mutually_exclusive_group(required=required)
    which.add_argument("--pair", metavar="A,B", help="two kernels, in any order")
    which.add_argument("--workload", metavar="NAME", help="a workload by its name")
    parser.add_argument("--device", metavar="D", help="cpu, cuda, cuda:N, or a device's model or key")
    parser.add_argument("--size", metavar="NAME=V", action="append", default=[], help="a size, for example a.n=5000000")


def add_cache(parser: argparse.ArgumentParser) -> None:
    """`--cache warm|cold`."""
    parser.add_argument(
        "--cache", choices=("warm", "cold"), help="the answer for warm caches (the default) or cold ones"
    )


def cache(arguments: argparse.Namespace) -> str | None:
    """`--cache`; None where it was not given."""
    given: str | None = arguments.cache
    return given


def database(arguments: argparse.Namespace) -> Path:
    """The store that was asked for: `--db`, FUSIOND_DB, or the user's own."""
    from pathlib import Path  # 7 ms that `best` does without

    return Path(database_name(arguments))


def database_name(arguments: argparse.Namespace) -> str:
    """The same, as a string."""
    if arguments.db is not None and not str(arguments.db).strip():
        raise RequestError("is empty; name a file", where="--db")
    path = default_name() if arguments.db is None else os.path.expanduser(arguments.db)
    if os.path.isdir(path):
        where = "FUSIOND_DB" if arguments.db is None else "--db"
        raise RequestError(f"{path} is a folder; name a file", where=where)
    return path


def workload_name(arguments: argparse.Namespace) -> str:
    """The name as it is looked up: for a pair, the two names sorted and joined by a comma."""
    if arguments.workload is not None:
        name = _text(str(arguments.workload).strip(), "--workload")
        if not name:
            raise RequestError("a name is wanted", where="--workload")
        return name
    members = [each.strip() for each in _text(str(arguments.pair), "--pair").split(",")]
    if len(members) != 2 or not all(members):
        raise RequestError(f"{arguments.pair!r} is not a pair; write two names with a comma between", where="--pair")
    return ",".join(sorted(members))


def name_of(text: str) -> str:
    """A workload as it is looked up, given as WORKLOAD: a pair's names in order."""
    members = [each.strip() for each in _text(str(text), "WORKLOAD").split(",")]
    if not all(members):
        raise RequestError("a name is wanted; of a pair, both with a comma between", where="WORKLOAD")
    return ",".join(sorted(members))


def sizes(arguments: argparse.Namespace) -> dict[str, int]:
    """`--size a.n=5000000 --size b.n=100` as a mapping; underscores and `1e6` are accepted."""
    found: dict[str, int] = {}
    for text in arguments.size:
        name, sign, value = (each.strip() for each in str(text).partition("="))
        if not sign or not name:
            raise RequestError(f"{text!r} is not NAME=NUMBER", where="--size")
        if name in found:
            raise RequestError(f"{name} is given twice", where="--size")
        found[_text(name, "--size")] = _whole(value)
        if found[name] < 1:
            raise RequestError(f"{name} is {found[name]}; a size is from 1", where="--size")
    return found


def _text(value: str, where: str) -> str:
    """A word of the command line that is looked up; bytes that are not UTF-8 come as what no database takes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{value!r} is not UTF-8 text", where=where) from None
    return value


def device(arguments: argparse.Namespace) -> str | None:
    """`--device`, for a look-up."""
    return None if arguments.device is None else _text(str(arguments.device), "--device")


def asked(arguments: argparse.Namespace, cache_else: str | None = None) -> dict[str, Any]:
    """`--device`, `--size` and `--cache` of a look-up, by what it calls them."""
    return {"device": device(arguments), "sizes": sizes(arguments), "cache": cache(arguments) or cache_else}


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if abs(number) <= 2**53 and number == int(number):
        return int(number)
    raise RequestError(f"{text[:80]!r} is not a whole number", where="--size")


def settings(pairs: list[str], *, where: str) -> Mapping[str, str]:
    """`name=value` options as a mapping of texts."""
    found: dict[str, str] = {}
    for text in pairs:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise RequestError(f"{text!r} is not NAME=VALUE", where=where)
        found[name.strip()] = value.strip()
    return found


def write(path: Path, text: str, *, where: str) -> None:
    """RequestError where a file that an option names cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise RequestError(f"{path} cannot be written: {problem.strerror}", where=where) from None


def answer(arguments: argparse.Namespace, document: Any, *lines: str) -> int:
    """A command's answer, as a document with `--json`, else in lines; the exit status 0."""
    if arguments.json:
        say_json(document)
    else:
        output.say(*lines)
    return 0


def say_json(document: Any) -> None:
    """The one JSON document of a command, on standard output; in ASCII, so that it does nothing to a terminal."""
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")
