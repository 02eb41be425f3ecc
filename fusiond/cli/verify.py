"""`fusiond verify`: measure the recorded winner again, here, against the unfused way that it was measured against."""

from __future__ import annotations

import argparse
import dataclasses
from contextlib import closing

from fusiond import tuner
from fusiond.cli import answer, options, tuning
from fusiond.cli.best import find
from fusiond.cli.render import display
from fusiond.errors import NothingKnown
from fusiond.model import Job
from fusiond.registry import Registry
from fusiond.store.database import Store


def configure(parser: argparse.ArgumentParser) -> None:
    options.add_store(parser)
    options.add_workload(parser)


def run(arguments: argparse.Namespace) -> int:
    name = options.workload_name(arguments)
    database = options.database(arguments)
    before = find(database, name, device=arguments.device, sizes=options.sizes(arguments))
    if before["config"] is None:
        raise NothingKnown(f"no fused {name} was ever right and measured; there is no winner to verify")
    registry = Registry.load()
    with closing(Store.open(database, create=False)) as store, display(plain=arguments.json) as shown:
        store.recover()
        job = dataclasses.replace(recorded_job(store, before["workload"]["key"]), device=before["device"]["name"])
        row = tuner.submit(store, registry, job, kind="verify", priority=1)
        after = tuning.tune(store, registry, row, shown, again="fusiond verify")
    if arguments.json:
        options.say_json(after)
        return 0
    print(f"before    {answer.verdict(before)}, {before['found_at']}")
    print("\n".join(answer.lines(after)))
    return 0


def recorded_job(store: Store, workload_key: str) -> Job:
    """The job that tuned a workload last, with the files that it was tuned with."""
    for row in store.jobs(limit=1_000_000):
        if row.workload_key == workload_key:
            return store.load_job(row.id)
    raise NothingKnown("the job that found this answer is no longer in the store; `fusiond run` it again")
