"""`fusiond jobs`: the jobs of the store, newest first. Works without a daemon."""

import argparse

from fusiond.cli import job_texts, options, output, render
from fusiond.model.english import counted, shortened
from fusiond.model.errors import NothingKnown
from fusiond.model.outcomes import JobState
from fusiond.service.client.client import Client
from fusiond.service.wire import job_entry
from fusiond.store.jobs import JobRow


def configure(parser: argparse.ArgumentParser) -> None:
    states = [state.value for state in JobState]
    parser.add_argument("--state", action="append", choices=states, help="only jobs in this state (may be repeated)")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="at most this many (default 50)")
    parser.add_argument("--before", metavar="ID", help="only jobs that came before this one: the next page")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    limit = max(1, arguments.limit)
    with Client(db=options.database(arguments)) as client:
        try:
            states = [JobState(each) for each in arguments.state or ()]
            rows, count = client.jobs(states, limit, before=arguments.before), client.count_jobs(states)
        except NothingKnown:  # no store yet: no jobs
            rows, count = (), 0
    if count > len(rows) == limit:
        more = f"--limit N shows more, --before {rows[-1].id} those that came before"
        which = "the newest " if arguments.before is None else ""
        output.complain(f"fusiond: {which}{len(rows)} of {counted(count, 'job')} ({more})")
    columns = ("id", "state", "workload", "device", "trials", "best", "created (UTC)", "problem")
    return render.listing(arguments, [job_entry(row) for row in rows], columns, map(_line, rows), "no jobs")


def _line(row: JobRow) -> tuple[object, ...]:
    what, trials = (row.id, row.state.value, row.workload_name, row.device), f"{row.trials}/{row.budget}"
    best, when = job_texts.ratio(row.best_ratio), render.when(row.created_at)
    return (*what, trials, best, when, shortened(_trouble(row), 200))


def _trouble(row: JobRow) -> str:
    """Why it failed, or what it waits for."""
    return row.problem or (f"waits: {row.waiting_for}" if row.waiting_for and not row.state.ended else "")
