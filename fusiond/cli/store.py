"""`fusiond store`: checks, backs up and restores the store."""

import argparse
import dataclasses
from pathlib import Path

from fusiond.cli import options, output
from fusiond.model.english import counted
from fusiond.model.errors import NothingKnown, RequestError
from fusiond.service.daemon import lock
from fusiond.store import backup
from fusiond.store.check import check, forget
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
        return _restore(database, arguments)
    if not database.is_file():
        raise NothingKnown(f"there is no store at {database} yet; `fusiond run` or `fusiond serve` makes it")
    if arguments.what == "backup":
        return _backup(database, arguments)
    if arguments.forget:
        with Store.open(database, create=False) as store:
            gone = forget(store)
        output.complain(f"fusiond: {counted(gone, 'row')} removed")
    return _check(database, arguments)


def _check(database: Path, arguments: argparse.Namespace) -> int:
    Store.open(database, create=False).close()  # one of an earlier version has no digests yet
    found = check(database)
    findings = [dataclasses.asdict(each) for each in found]
    lines = [line for each in found for line in (f"{each.where}: {each.problem}", f"    remedy: {each.remedy}")]
    whole = counted(len(found), "finding") if found else "intact, every row and artifact is what was written"
    document = {"store": str(database), "intact": not found, "findings": findings}
    return options.answer(arguments, document, *lines, f"{database}: {whole}") or int(bool(found))


def _backup(database: Path, arguments: argparse.Namespace) -> int:
    file = _file(arguments)
    copied = backup.backup(database, file)
    _warn(copied)
    document = {"file": str(file), "bytes": copied.bytes, "artifacts": copied.artifacts}
    beside = f"with {counted(copied.artifacts, 'artifact')} beside it"
    return options.answer(arguments, document, f"{file}: {copied.bytes / (1 << 20):.1f} MiB, {beside}")


def _restore(database: Path, arguments: argparse.Namespace) -> int:
    file = _file(arguments)
    holder = lock.holder(database)
    if holder is not None:
        raise RequestError(f"a daemon (pid {holder.pid}) serves this store; stop it first", where=str(database))
    with lock.kept_out(database):
        copied = backup.restore(file, database)
    _warn(copied)
    aside = str(copied.aside) if copied.aside else None
    document = {"store": str(database), "artifacts": copied.artifacts, "aside": aside}
    kept = [f"the store that was there is kept as {aside}"] if aside else []
    return options.answer(arguments, document, f"{database}: restored from {file}", *kept)


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
