"""`fusiond run`: tunes a job in this process, shows progress, and prints the answer as `best` does."""

import argparse
import shlex
from contextlib import closing
from pathlib import Path

from fusiond.cli import answer_text, options, output
from fusiond.cli.render import display
from fusiond.model.system import files
from fusiond.requests import content_lookup, jobs
from fusiond.requests.isolation import registry as plugins
from fusiond.service.client import in_process
from fusiond.store.database import Store
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
    wanted = in_process.checked(registry, read)
    documents = []
    with closing(Store.open(options.database(arguments))) as store:
        store.recover()
        content_lookup.index(store, registry)
        content_lookup.remember(store.path, registry, arguments.job, text, jobs.read(arguments.job, text), wanted)
        rows = [tuner.enqueue(store, each, resume=True) for each in wanted]
        for row, prepared in zip(rows, wanted, strict=True):
            with display(plain=arguments.json) as shown:
                again = f"fusiond run {shlex.quote(arguments.job)}"
                found = in_process.tune(
                    store, registry, row, shown, again=again, when_busy=arguments.when_busy, prepared=prepared
                )
            documents.append(found)
            if not arguments.json:
                output.say(*answer_text.lines(documents[-1]))
    if arguments.json:
        options.say_json(documents[0] if len(documents) == 1 else documents)
    return 0
