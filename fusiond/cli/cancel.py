"""`fusiond cancel`: stop a job, or take it off the queue; through the daemon, or in the store when none answers."""

from __future__ import annotations

import argparse

from fusiond.cli import options, output
from fusiond.client.client import Client
from fusiond.wire import job_document


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    with Client(db=options.database(arguments)) as client:
        row = client.cancel(arguments.id)
    if arguments.json:
        options.say_json(job_document(row))
    elif row.state.ended:
        output.say(f"job {row.id} is {row.state.value}")
    else:
        output.say(f"job {row.id} stops after the running measurement")
    return 0
