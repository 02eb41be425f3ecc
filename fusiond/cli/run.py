"""`fusiond run`: tune a job here and now, with progress, and print the answer as `best` does."""

from __future__ import annotations

import argparse
import shlex
from contextlib import closing
from pathlib import Path

from fusiond.cli import answer, options, output
from fusiond.cli.render import display
from fusiond.client import here
from fusiond.isolation import registry as plugins
from fusiond.requests import contents, jobs
from fusiond.store.database import Store
from fusiond.system import files
from fusiond.tuning import tuner


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB.yaml")
    options.add_search(parser)
    options.add_busy(parser)
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    text = files.read_text(Path(arguments.job), where=arguments.job)
    read = jobs.read(arguments.job, text, device=arguments.device, trials=arguments.trials, seed=arguments.seed)
    registry = plugins.load()
    wanted = here.checked(registry, read)
    documents = []
    with closing(Store.open(options.database(arguments))) as store:
        store.recover()
        contents.index(store, registry)
        contents.remember(store.path, registry, arguments.job, text, jobs.read(arguments.job, text), wanted)
        rows = [tuner.enqueue(store, each, resume=True) for each in wanted]
        for row, prepared in zip(rows, wanted, strict=True):
            with display(plain=arguments.json) as shown:
                again = f"fusiond run {shlex.quote(arguments.job)}"
                found = here.tune(
                    store, registry, row, shown, again=again, when_busy=arguments.when_busy, prepared=prepared
                )
            documents.append(found)
            if not arguments.json:
                output.say(*answer.lines(documents[-1]))
    if arguments.json:
        options.say_json(documents[0] if len(documents) == 1 else documents)
    return 0
