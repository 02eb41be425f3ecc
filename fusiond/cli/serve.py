"""`fusiond serve`: runs the daemon in the foreground. docs/operating.md has a systemd unit."""

import argparse
import contextlib
import dataclasses
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusiond.build.working import sweep
from fusiond.cli import options, output
from fusiond.devices.cuda.nvml import busy
from fusiond.devices.probe import probe
from fusiond.model.errors import NothingKnown, RequestError
from fusiond.model.events import Events
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import JobState
from fusiond.requests import content_lookup
from fusiond.requests.isolation import registry as plugins
from fusiond.requests.registry import Registry
from fusiond.service.client.in_process import checked
from fusiond.service.daemon import config, logs
from fusiond.service.daemon.app import BestQuery, JobQuestion, Submission
from fusiond.service.daemon.config import DaemonConfig
from fusiond.service.daemon.notify import Notifier
from fusiond.service.daemon.service import DaemonWork, Service
from fusiond.service.daemon.upstream_sync import Between
from fusiond.service.daemon.worker import Stop
from fusiond.store.database import Store
from fusiond.store.exchange import find
from fusiond.store.jobs import JobRow
from fusiond.tuning import tuner
from fusiond.tuning.contention import Policy
from fusiond.tuning.tuner import Tuner


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="the configuration (configs/fusiond.yaml explains its keys; default: ~/.config/fusiond/fusiond.yaml, then "
        "/etc/xdg/fusiond/fusiond.yaml, where there is one)",
    )
    parser.add_argument("--log", choices=("text", "json"), help="how the log is written, instead of what it says there")
    parser.add_argument(
        "--web", metavar="HOST:PORT", help="serve the pages there, too; prints the URL with its token (port 0: any)"
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="the certificate of --web, in PEM: the pages are HTTPS then")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key, in PEM")
    parser.add_argument("--socket", metavar="FILE", help="the socket (default: beside the store)")
    parser.add_argument("--db", metavar="FILE", help="the store (default: what the configuration says, or FUSIOND_DB)")


def run(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    os.umask(0o077)  # whatever the daemon and its compilers make is its user's alone
    logs.to_stderr("debug" if arguments.debug else settings.log_level, settings.log)
    swept = sweep()
    if swept:
        logging.getLogger("fusiond").info("%d bytes of killed compilers' files removed", swept)
    registry = plugins.load(fresh=True)
    for state in registry.states:
        if state.problem:
            logging.getLogger("fusiond").error("plugin %s did not load: %s", state.name, state.problem)
    with closing(Store.open(settings.db or options.database(arguments))) as store:
        content_lookup.index(store, registry)
        now = _Now(when_busy=settings.when_busy)

        def reread() -> DaemonConfig:
            found = _settings(arguments)
            logs.to_stderr("debug" if arguments.debug else found.log_level, found.log)
            now.when_busy = found.when_busy
            return found

        # A socket that one user can open is nobody's upstream.
        shares = bool(settings.web or settings.upstream)
        between = Between(store, settings.upstream, settings.upstream_secs) if shares else None
        # The end of a terminal ends what runs in it; elsewhere SIGHUP is how one has a configuration read again.
        terminal = sys.stderr.isatty()
        does = work(store, registry, lambda: Policy(now.when_busy), between)
        again = None if terminal else reread
        service = Service(store, settings, does, notifier=Notifier(), reread=again, between=between)
        service.announce = output.say
        service.events.subscribe(registry.notify)
        service.handle_signals()
        return service.run()


@dataclass(slots=True)
class _Now:
    """What a SIGHUP may change while the daemon runs."""

    when_busy: str


def work(
    store: Store, registry: Registry, policy: Callable[[], Policy] = lambda: Policy.WAIT, between: Between | None = None
) -> DaemonWork:
    """What the daemon does, with the real tuner."""
    ask = between.ask if between is not None else None
    missed = Missed()

    def submit(submission: Submission) -> tuple[JobRow, ...]:
        options = {"device": submission.device, "trials": submission.trials, "seed": submission.seed}
        wanted = plugins.read(registry, submission.path, submission.text, **options)
        ready = checked(registry, wanted)
        if submission.text is not None:
            if set(options.values()) != {None}:
                wanted = plugins.read(registry, submission.path, submission.text)
            content_lookup.remember(store.path, registry, submission.path, submission.text, wanted, ready)
        return tuple(tuner.enqueue(store, each, priority=submission.priority) for each in ready)

    def again(id: str) -> JobRow:
        row = store.named_job(id)
        (ready,) = checked(registry, (store.load_job(row.id),))
        return tuner.enqueue(store, ready, priority=row.priority)

    def run_job(row: JobRow, device: DeviceInfo, events: Events, stop: Stop) -> JobState:
        made = Tuner(store, registry, events, policy=policy(), busy=busy)
        return made.run(row.id, stop, device)

    def best(question: JobQuestion) -> tuple[dict[str, Any] | NothingKnown, ...]:
        return content_lookup.best_of_jobs(
            store.path,
            registry,
            content_lookup.ready(registry, plugins.read(registry, question.path, question.text), question.sizes),
            device=question.device,
            cache=question.cache,
            elsewhere=ask,
        )

    def elsewhere(question: BestQuery) -> dict[str, Any] | None:
        """By a name: what it stands for here is asked there."""
        families = find.known_name(store.path, question.name, question.cache)
        asks = between is not None and between.listens and not missed.lately(question)
        if not families and not asks:
            return None
        found = content_lookup.imported(
            store.path,
            registry,
            content_lookup.families(registry, question.name, None),
            device=question.device,
            sizes=question.sizes,
            cache=question.cache,
            elsewhere=ask if asks else None,
        )
        if found is not None:
            content_lookup.queue_check_of_name(store.path, registry, question.name, None, found)
        return found

    def answered(row: JobRow, device: DeviceInfo) -> str | None:
        job = store.load_job(row.id)
        wanted = content_lookup.ready(registry, (job,))
        (found,) = content_lookup.best_of_jobs(store.path, registry, wanted, device=device.name, elsewhere=ask)
        given = found.get("imported") if isinstance(found, dict) and found["match"] != "nearest" else None
        return str(given["name"]) if given is not None and given["trusted"] else None

    def devices() -> tuple[DeviceInfo, ...]:
        return tuple(info for _, info in registry.devices())

    def look(device: DeviceInfo) -> str | None:
        return probe(registry.provider(device.name, where="device"), device)

    return DaemonWork(
        run_job=run_job,
        submit=submit,
        best=best,
        devices=devices,
        busy=busy,
        probe=look,
        again=again,
        plugins=lambda: [dataclasses.asdict(each) for each in registry.states],
        elsewhere=elsewhere,
        answered=answered,
    )


class Missed:
    """Questions that nobody had an answer to a short while ago: they are not asked again at once."""

    def __init__(self, secs: float = 10.0, most: int = 1000) -> None:
        self._secs, self._most = secs, most
        self._asked: dict[str, float] = {}

    def lately(self, question: BestQuery) -> bool:
        """Whether this was asked within the time; from now on it was."""
        key = repr(question)
        before, now = self._asked.pop(key, -self._secs), time.monotonic()
        self._asked[key] = now if now - before >= self._secs else before
        if len(self._asked) > self._most:
            with contextlib.suppress(StopIteration, KeyError, RuntimeError):
                del self._asked[next(iter(self._asked))]
        return now - before < self._secs


def _settings(arguments: argparse.Namespace) -> DaemonConfig:
    path = Path(arguments.config) if arguments.config else config.find()
    settings = config.read(path) if path is not None else DaemonConfig()
    if arguments.web:
        web = config.address(arguments.web)
        if web is None:
            raise RequestError(f"is {arguments.web[:40]!r}; write HOST:PORT, as 127.0.0.1:8080", where="--web")
        settings = dataclasses.replace(settings, web=web)
    for name in ("tls_cert", "tls_key", "db", "socket", "log"):
        if given := getattr(arguments, name):
            value: Any = given if name == "log" else Path(given).expanduser()
            settings = dataclasses.replace(settings, **{name: value})
    if (settings.tls_cert is None) != (settings.tls_key is None):
        missing = "tls_key" if settings.tls_key is None else "tls_cert"
        raise RequestError("is missing; a certificate and its key go together", where=missing)
    if settings.tls_cert is not None and settings.web is None:
        raise RequestError("is of the pages over TCP; say where with --web HOST:PORT", where="tls_cert")
    return settings
