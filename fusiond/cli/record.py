"""`fusiond record`: measures the whole space of a job and writes it to a file that can be replayed."""

import argparse
import dataclasses
import shlex
from contextlib import closing
from pathlib import Path

from fusiond.cli import options, output
from fusiond.cli.render import display
from fusiond.model.errors import RequestError
from fusiond.requests import content_lookup, jobs
from fusiond.requests.isolation import registry as plugins
from fusiond.service.client import in_process
from fusiond.store.database import Store
from fusiond.strategy import recorded_space
from fusiond.tuning import tuner

MOST_TRIALS, MOST_SECS = 1_000_000, 30 * 24 * 3600.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB.yaml")
    parser.add_argument("--out", metavar="FILE", type=Path, help="the file (NAME-DEVICE.jsonl.gz)")
    parser.add_argument("--device", metavar="D", help="cpu, cuda:N, counted:h100: instead of what the job says")
    options.add_busy(parser)
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    read = jobs.read(arguments.job, device=arguments.device, trials=MOST_TRIALS, seed=None)
    read = tuple(
        dataclasses.replace(
            each, search=dataclasses.replace(each.search, timeout_secs=MOST_SECS, patience=None, sanitize=False)
        )
        for each in read
    )
    if arguments.out is not None and not arguments.out.absolute().parent.is_dir():
        raise RequestError(f"there is no folder {arguments.out.parent}", where="--out")
    registry = plugins.load()
    wanted = in_process.checked(registry, read)
    if arguments.out is not None and len(wanted) > 1:
        raise RequestError(f"stands for {len(wanted)} jobs, and --out names one file", where=arguments.job)
    with closing(Store.open(options.database(arguments))) as store:
        store.recover()
        content_lookup.index(store, registry)
        for prepared in wanted:
            row = tuner.enqueue(store, prepared, resume=True)
            with display(plain=False) as shown:
                again = f"fusiond record {shlex.quote(arguments.job)}"
                in_process.tune(
                    store, registry, row, shown, again=again, when_busy=arguments.when_busy, prepared=prepared
                )
            name, device = prepared.workload.name, prepared.job.device
            plain = "".join(each if each.isalnum() or each in "._-" else "-" for each in f"{name}-{device}")
            path = arguments.out or Path(f"{plain}.jsonl.gz")
            trials = store.trials(row.id)
            parameters, rows = recorded_space.of_trials(trials)
            sizes = dict(prepared.workload.sizes)
            recorded_space.write(
                path, name, parameters, rows, device=device, kernel=prepared.workload.strategy, sizes=sizes, warmups=0
            )
            failed = sum(bool(each.failure) for each in rows)
            output.say(f"{path}: {len(rows)} configs, {failed} of them failed, of {len(trials)} tried")
    return 0
