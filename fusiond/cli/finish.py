"""`fusiond finish`: ends a job's search now and measures the finals."""

import argparse

from fusiond.cli import options
from fusiond.service.client.client import Client
from fusiond.service.wire import job_document


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    with Client(db=options.database(arguments)) as client:
        row = client.finish(arguments.id)
    when = "after the running trial" if row.owner else "when it runs again"
    state = f"is {row.state.value}" if row.state.ended else f"ends its search {when}; its finals come next"
    return options.answer(arguments, job_document(row), f"job {row.id} {state}")
