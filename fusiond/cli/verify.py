"""`fusiond verify`: measures the recorded winner again here, against the unfused way of its record."""

import argparse
import dataclasses
import shlex
from contextlib import closing

from fusiond.cli import answer_text, options
from fusiond.cli.best import find
from fusiond.cli.render import display
from fusiond.model.errors import NothingKnown, RequestError
from fusiond.requests import content_lookup
from fusiond.requests.isolation import registry as plugins
from fusiond.service.client import in_process
from fusiond.store.database import Store
from fusiond.tuning import tuner


def configure(parser: argparse.ArgumentParser) -> None:
    options.add_store(parser)
    options.add_workload(parser)
    options.add_cache(parser)
    options.add_busy(parser)


def run(arguments: argparse.Namespace) -> int:
    name = options.workload_name(arguments)
    database = options.database(arguments)
    before = find(database, name, **options.asked(arguments, "warm"))
    if before["match"] == "ambiguous":
        paths = ", ".join(str(each["path"] or each["strategy"]) for each in before["answers"])
        raise RequestError(f"{name} stands for several contents ({paths}); verify it in the folder of the file")
    if before["config"] is None:
        raise NothingKnown(f"no fused {name} was ever right and measured; there is no winner to verify")
    registry = plugins.load()
    with closing(Store.open(database, create=False)) as store, display(plain=arguments.json) as shown:
        store.recover()
        content_lookup.index(store, registry)
        job = in_process.recorded_job(store, before["workload"]["key"])
        search = dataclasses.replace(job.search, cache=before["cache"])
        wanted = dataclasses.replace(job, device=before["device"]["name"], search=search)
        row = tuner.submit(store, registry, wanted, kind="verify", priority=1)
        again = f"fusiond verify --workload {shlex.quote(name)}"
        after = in_process.tune(store, registry, row, shown, again=again, when_busy=arguments.when_busy)
    first = f"before    {answer_text.verdict(before)}, {before['found_at']}"
    return options.answer(arguments, after, first, *answer_text.lines(after))
