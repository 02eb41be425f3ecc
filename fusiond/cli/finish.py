"""`fusiond finish`: ends a job's search now and measures the finals."""

import argparse

from fusiond.cli import options, output
from fusiond.service.client.client import Client
from fusiond.service.wire import job_document


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    with Client(db=options.database(arguments)) as client:
        row = client.finish(arguments.id)
    if arguments.json:
        options.say_json(job_document(row))
    elif row.state.ended:
        output.say(f"job {row.id} is {row.state.value}")
    else:
        when = "after the running trial" if row.owner else "when it runs again"
        output.say(f"job {row.id} ends its search {when}; its finals come next")
    return 0
