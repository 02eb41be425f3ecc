"""`fusiond watch`: follows a job until it ends, through the daemon or the store."""

import argparse

from fusiond.cli import options, output
from fusiond.cli.render import ProgressLines
from fusiond.model.english import shortened
from fusiond.model.outcomes import JobState
from fusiond.service.client.client import Client
from fusiond.service.wire import job_document


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    with Client(db=options.database(arguments)) as client:
        # What happens is the answer here, so it goes to standard output; with --json the document does.
        with ProgressLines() if arguments.json else ProgressLines(_say) as shown:
            for progress in client.watch(arguments.id):
                shown.show(progress)
        row = client.show(arguments.id)
    if arguments.json:
        options.say_json(job_document(row))
    return 0 if row.state is JobState.DONE else 1


def _say(text: str) -> None:
    output.say(shortened(text))
