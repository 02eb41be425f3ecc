"""`fusiond show`: shows one job. Works without a daemon."""

import argparse

from fusiond.cli import job_texts, options
from fusiond.model.english import shortened
from fusiond.service.client.client import Client
from fusiond.service.wire import job_document, job_entry


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    with Client(db=options.database(arguments)) as client:
        row = client.show(arguments.id)
    known = {name: value for name, value in job_entry(row).items() if value is not None}
    known["best"] = job_texts.ratio(row.best_ratio) or "nothing yet"
    known["trials"] = f"{row.trials} of {row.budget}"
    known.pop("budget", None)
    if row.device_share is not None:
        known["device_share"] = f"{row.device_share:.0%}"
    if row.problem:
        known["problem"] = shortened(row.problem)
    width = max(len(name) for name in known)
    lines = (f"{name:<{width}}  {value}" for name, value in known.items())
    return options.answer(arguments, job_document(row), *lines)
