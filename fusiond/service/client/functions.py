"""fusiond inside a program, without a daemon: `fusiond.plan`, `tune`, `best`, `export`.

    (plan,) = fusiond.plan("job.yaml")                  what there is to try; nothing runs on a device
    (answer,) = fusiond.tune("job.yaml", trials=40)     measures here and now, as `fusiond run` does
    answer = fusiond.best("hist,maxpool")               what is known, or None
    fusiond.export(answer, "hist_maxpool")              what a program needs to call it

All of them raise what `fusiond.model.errors` names: RequestError for a user's mistake, with its file and line. What is
heavy is imported where it is needed, so that `best` starts as fast as a look-up.
"""

from __future__ import annotations

from pathlib import Path

from fusiond.service.client.answers import Answer
from fusiond.service.client.client import Client
from fusiond.store.location import default_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fusiond.requests.planning import Plan
    from fusiond.service.progress import Progress


def plan(
    job: Path | str,
    text: str | None = None,
    *,
    device: str | None = None,
    arch: str | None = None,
    db: Path | str | None = None,
) -> tuple[Plan, ...]:
    """What the strategy makes of each workload of a job file: space, seeds, what is refused, registers and occupancy
    where nvcc is there. `text` stands in for the file's content; `arch` (`sm_90`) plans for a GPU that is not here.
    `db`: a store that knows what parts and probes came to; planning needs none."""
    from fusiond.model.errors import StoreError
    from fusiond.requests import jobs, planning
    from fusiond.requests.isolation import registry
    from fusiond.store.database import Store

    plugins = registry.load()
    wanted = jobs.read(job, text, device=device)
    try:
        store = Store.open(_database(db), create=False)
    except StoreError:
        return tuple(planning.plan(plugins, each, arch=arch) for each in wanted)
    with store:
        return tuple(planning.plan(plugins, each, arch=arch, store=store) for each in wanted)


def tune(
    job: Path | str,
    text: str | None = None,
    *,
    device: str | None = None,
    trials: int | None = None,
    seed: int | None = None,
    when_busy: str = "wait",
    db: Path | str | None = None,
    listen: Callable[[Progress], None] | None = None,
) -> tuple[Answer, ...]:
    """Measure a job file's workloads here and now; the answer of each. A job that was interrupted goes on from where it
    was, and one that a daemon is at is followed. In the main thread, Ctrl-C ends the search with the finals of what is
    measured, and a second one stops (Interrupted) and keeps it. `listen` is told how it goes.

    `when_busy` is share, wait or exclusive: what to do about others on the device. Raises RequestError, DeviceError for
    a device that is not here, and FusiondError with the reason where a job ends without an answer."""
    from fusiond.model.system import files
    from fusiond.requests import content_lookup, jobs
    from fusiond.requests.isolation import registry
    from fusiond.service.client import in_process
    from fusiond.store.database import Store
    from fusiond.tuning import tuner

    text = files.read_text(Path(job), where=str(job)) if text is None else text
    plugins = registry.load()
    wanted = in_process.checked(plugins, jobs.read(job, text, device=device, trials=trials, seed=seed))
    with Store.open(_database(db)) as store:
        store.recover()
        content_lookup.index(store, plugins)
        content_lookup.remember(store.path, plugins, job, text, jobs.read(job, text), wanted)
        rows = [tuner.enqueue(store, each, resume=True) for each in wanted]
        heard = _Heard(listen)
        again = f"fusiond.tune({str(job)!r})"
        found = [
            in_process.tune(store, plugins, row, heard, again=again, when_busy=when_busy, prepared=each)
            for row, each in zip(rows, wanted, strict=True)
        ]
    return tuple(Answer.of(each) for each in found)


def best(
    name: str | None = None,
    *,
    job: Path | str | None = None,
    device: str | None = None,
    sizes: Mapping[str, int] | None = None,
    cache: str | None = None,
    db: Path | str | None = None,
) -> Answer | None:
    """`Client.best`: the best known answer for a name (a pair is `A,B`) or a job file, or None."""
    with Client(db=db) as client:
        return client.best(name, job=job, device=device, sizes=sizes, cache=cache)


def export(
    answer: Answer, folder: Path | str, *, unfused: bool = False, arch: str | None = None, db: Path | str | None = None
) -> tuple[Path, ...]:
    """Write what a program needs to call an answer (docs/export.md) into a folder: the files. The program is the one
    that was measured, word for word; `unfused`: what it was compared with. `arch`: built for that architecture.

    NothingKnown where the store does not hold the program, RequestError where other files are in the way."""
    from fusiond.service.client import exporting

    return tuple(
        exporting.export(_database(db), answer.document, Path(folder).expanduser(), unfused=unfused, arch=arch)
    )


class _Heard:
    """`here.Listener` for a function."""

    def __init__(self, listen: Callable[[Progress], None] | None) -> None:
        self._listen = listen

    def show(self, progress: Progress) -> None:
        if self._listen is not None:
            self._listen(progress)

    def say(self, line: str) -> None:
        import logging

        logging.getLogger("fusiond").info(line)


def _database(db: Path | str | None) -> Path:
    return Path(db).expanduser() if db is not None else default_path()
