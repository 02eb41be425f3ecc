"""`fusiond store`: checks, backs up and restores the store."""

import argparse
import dataclasses
from pathlib import Path

from fusiond.cli import options, output
from fusiond.model.english import counted
from fusiond.model.errors import NothingKnown, RequestError
from fusiond.service.daemon import lock
from fusiond.store import backup
from fusiond.store.check import Finding, check, forget
from fusiond.store.database import Store


def configure(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", metavar="check | backup | restore", required=True)
    checking = commands.add_parser("check", help="read everything, and compare it with what was written")
    checking.add_argument(
        "--forget", action="store_true", help="remove the damaged rows and what hangs on them, and go on without"
    )
    options.add_store(checking)
    for name, summary in (
        ("backup", "write a copy, which is a store itself, to FILE; the store may be in use"),
        ("restore", "put a backup in the store's place; what stood there is kept beside it"),
    ):
        copying = commands.add_parser(name, help=summary)
        copying.add_argument("file", metavar="FILE")
        options.add_store(copying)


def run(arguments: argparse.Namespace) -> int:
    database = options.database(arguments)
    if arguments.what == "restore":
        return _restore(database, _file(arguments), json=arguments.json)
    if not database.is_file():
        raise NothingKnown(f"there is no store at {database} yet; `fusiond run` or `fusiond serve` makes it")
    if arguments.what == "backup":
        return _backup(database, _file(arguments), json=arguments.json)
    if arguments.forget:
        with Store.open(database, create=False) as store:
            gone = forget(store)
        output.complain(f"fusiond: {counted(gone, 'row')} removed")
    return _check(database, json=arguments.json)


def _check(database: Path, *, json: bool) -> int:
    Store.open(database, create=False).close()  # one of an earlier version has no digests yet
    found = check(database)
    if json:
        options.say_json(
            {"store": str(database), "intact": not found, "findings": [dataclasses.asdict(each) for each in found]}
        )
    elif not found:
        output.say(f"{database}: intact, every row and artifact is what was written")
    else:
        output.say(*_lines(found))
        output.say(f"{database}: {counted(len(found), 'finding')}")
    return 1 if found else 0


def _lines(found: list[Finding]) -> list[str]:
    return [line for each in found for line in (f"{each.where}: {each.problem}", f"    remedy: {each.remedy}")]


def _backup(database: Path, file: Path, *, json: bool) -> int:
    copied = backup.backup(database, file)
    _warn(copied)
    if json:
        options.say_json({"file": str(file), "bytes": copied.bytes, "artifacts": copied.artifacts})
    else:
        output.say(
            f"{file}: {copied.bytes / (1 << 20):.1f} MiB, with {counted(copied.artifacts, 'artifact')} beside it"
        )
    return 0


def _restore(database: Path, file: Path, *, json: bool) -> int:
    holder = lock.holder(database)
    if holder is not None:
        raise RequestError(f"a daemon (pid {holder.pid}) serves this store; stop it first", where=str(database))
    with lock.kept_out(database):
        copied = backup.restore(file, database)
    _warn(copied)
    if json:
        aside = str(copied.aside) if copied.aside else None
        options.say_json({"store": str(database), "artifacts": copied.artifacts, "aside": aside})
    else:
        output.say(f"{database}: restored from {file}")
        if copied.aside:
            output.say(f"the store that was there is kept as {copied.aside}")
    return 0


def _warn(copied: backup.Copied) -> None:
    if copied.damaged:
        first = copied.damaged[0]
        output.complain(
            f"fusiond: the copy holds damage ({counted(len(copied.damaged), 'finding')}; the first: {first.where}: "
            f"{first.problem}); `fusiond store check` says more"
        )


def _file(arguments: argparse.Namespace) -> Path:
    if not arguments.file.strip():
        raise RequestError("is empty; name a file", where="FILE")
    return Path(arguments.file).expanduser().absolute()
