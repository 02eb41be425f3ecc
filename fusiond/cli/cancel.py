"""`fusiond cancel`: stops jobs or removes them from the queue, through the daemon or directly in the store."""

import argparse

from fusiond.cli import options, output
from fusiond.service.client.client import Client
from fusiond.service.wire import job_document


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="+")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    with Client(db=options.database(arguments)) as client:
        known = [client.show(each).id for each in arguments.ids]  # a mistake in one of them stops none
        rows = [client.cancel(each) for each in dict.fromkeys(known)]
    if arguments.json:
        documents = [job_document(row) for row in rows]
        options.say_json(documents[0] if len(arguments.ids) == 1 else documents)
        return 0
    for row in rows:
        if row.state.ended:
            output.say(f"job {row.id} is {row.state.value}")
        else:
            output.say(f"job {row.id} stops after the running measurement")
    return 0
