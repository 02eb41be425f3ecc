"""`fusiond submit`: hands a job to the daemon; `--wait` follows it until it ends."""

import argparse

from fusiond.cli import options
from fusiond.service.client.client import Client


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB.yaml")
    parser.add_argument("--wait", action="store_true", help="follow the job until it ends; exit status 1 if it failed")
    parser.add_argument("--priority", type=int, default=0, metavar="P", help="higher goes first (default 0)")
    parser.add_argument(
        "--socket", metavar="FILE", help="the daemon's socket (default: where the store's daemon listens)"
    )
    options.add_search(parser)
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    with Client(arguments.socket, options.database(arguments)) as client:
        given = {name: getattr(arguments, name) for name in ("device", "trials", "seed", "priority")}
        ids = client.submit(arguments.job, **given)
        if not arguments.wait:
            document = {"id": ids[0]} if len(ids) == 1 else {"id": ids[0], "ids": list(ids)}
            return options.answer(arguments, document, *ids)
        from fusiond.cli.render import display  # with rich, which handing a job in does without
        from fusiond.model.outcomes import JobState
        from fusiond.service.wire import job_document

        for job in ids:
            with display(plain=arguments.json) as shown:
                for progress in client.watch(job):
                    shown.show(progress)
        rows = [client.show(job) for job in ids]
    documents = [job_document(row) for row in rows]
    lines = (f"{row.id} {row.state.value}" for row in rows)
    options.answer(arguments, documents[0] if len(documents) == 1 else documents, *lines)
    return 0 if all(row.state is JobState.DONE for row in rows) else 1
