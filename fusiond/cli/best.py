"""`fusiond best`: the best known answer. It must be fast, so this file imports the standard library and `store.lookup`
only; `--export` alone imports what it needs."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from fusiond import __version__, driver
from fusiond.cli import answer, options
from fusiond.errors import NothingKnown, RequestError, StoreError, UnknownName
from fusiond.store import lookup


def configure(parser: argparse.ArgumentParser) -> None:
    options.add_store(parser)
    options.add_workload(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--source", action="store_true", help="print the generated source of the answer")
    form.add_argument("--export", metavar="DIR", help="write what a program needs to call the answer")


def run(arguments: argparse.Namespace) -> int:
    if arguments.json and arguments.source:
        raise RequestError("stands beside --json; one of them", where="--source")
    name = options.workload_name(arguments)
    database = options.database(arguments)
    document = find(database, name, device=options.device(arguments), sizes=options.sizes(arguments))
    if arguments.export is not None:
        from fusiond.cli.exporting import export  # builds the strategy's files: plugins and all

        files = export(database, document, Path(arguments.export))
        if arguments.json:
            options.say_json({**document, "files": [str(path) for path in files]})
        else:
            print("\n".join(str(path) for path in files))
    elif arguments.source:
        sys.stdout.write(_source(document))
    elif arguments.json:
        options.say_json(document)
    else:
        print("\n".join(answer.lines(document)))
    return 0


def find(database: Path, name: str, *, device: str | None, sizes: dict[str, int]) -> dict[str, Any]:
    """The document of `best --json`; NothingKnown, with what is known, when there is no such record."""
    document = lookup.best(
        database, name=name, device=device, sizes=sizes, driver=driver.version(), version=__version__
    )
    if document is not None:
        if document.get("match") == "stale":
            lookup.queue_recheck(database, document)
        return document
    if device is not None and not re.fullmatch(r"cpu|cuda(:[0-9]+)?", device):
        names = lookup.devices(database)
        if device not in names:
            raise UnknownName("device", device, {*names, "cpu", "cuda"}, where="--device")
    on = f" on {device}" if device else ""
    known = [each for each in lookup.suggestions(database) if each != name]
    hint = f"; known: {', '.join(known[:8])}" if known else "; `fusiond run JOB.yaml` finds out"
    raise NothingKnown(f"nothing is known about {name}{on} yet{hint}")


def _source(document: dict[str, Any]) -> str:
    path = document.get("source")
    if not path:
        raise NothingKnown("this answer has no generated source: nothing is fused")
    try:
        return Path(path).read_text()
    except OSError as problem:
        raise StoreError(f"the source of this answer cannot be read: {problem}") from None
