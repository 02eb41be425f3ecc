"""`fusiond cancel`: stops jobs or removes them from the queue, through the daemon or directly in the store."""

import argparse

from fusiond.cli import options
from fusiond.service.client.client import Client
from fusiond.service.wire import job_document


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="+")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    with Client(db=options.database(arguments)) as client:
        known = [client.show(each).id for each in arguments.ids]  # a mistake in one of them stops none
        rows = [client.cancel(each) for each in dict.fromkeys(known)]
    documents = [job_document(row) for row in rows]
    states = [f"is {row.state.value}" if row.state.ended else "stops after the running measurement" for row in rows]
    lines = (f"job {row.id} {state}" for row, state in zip(rows, states, strict=True))
    return options.answer(arguments, documents[0] if len(arguments.ids) == 1 else documents, *lines)
