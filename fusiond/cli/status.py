"""`fusiond status`: shows the daemon, its devices, the queue and the latest answers. Works without a daemon."""

import argparse
import contextlib
from typing import Any

from fusiond.cli import options, output
from fusiond.cli.counts import size
from fusiond.model.english import counted, shortened
from fusiond.model.errors import DaemonError, NothingKnown, RequestError
from fusiond.service.client.client import Client
from fusiond.service.wire import answer_entry

LATEST = 5  #: Answers that are shown


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--watch",
        metavar="SECS",
        nargs="?",
        type=float,
        const=1.0,
        help="show devices and queue until Ctrl-C, every SECS seconds (default 1)",
    )
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    with Client(db=options.database(arguments)) as client:
        if arguments.watch is not None:
            if arguments.json:
                raise RequestError("goes on for ever, and --json is one document", where="--watch")
            if not 0.1 <= arguments.watch <= 3600:
                raise RequestError(f"is {arguments.watch:g}; write 0.1 to 3600 seconds", where="--watch")
            from fusiond.cli import live_status  # rich takes longer to load than all of the rest

            with contextlib.suppress(KeyboardInterrupt):  # that is how one ends it
                live_status.watch(client, lambda: _document(client), arguments.watch)
            return 0
        document = _document(client)
    if arguments.json:
        options.say_json(document)
    else:
        _say(document)
    return 0


def _document(client: Client) -> dict[str, Any]:
    try:
        daemon = client.health()
    except DaemonError as problem:
        daemon = {"state": "absent", "why": str(problem)}
    try:
        store = client.store
        known = {"path": str(store.path), "bytes": store.size_bytes(), "jobs": store.jobs_by_state()}
        answers = [answer_entry(each) for each in store.answers(limit=LATEST)]
    except NothingKnown:
        known, answers = {"path": str(client.db), "bytes": 0, "jobs": {}}, []
    return {"daemon": daemon, "store": known, "answers": answers}


def _say(document: dict[str, Any]) -> None:
    daemon, store = document["daemon"], document["store"]
    if daemon["state"] == "absent":
        output.say("daemon     none answers (`fusiond serve` starts one)")
    else:
        output.say(
            f"daemon     {daemon['state']}, pid {daemon['pid']}, version {daemon['version']}, "
            f"up {_duration(daemon['uptime_secs'])}"
        )
    for each in daemon.get("workers", ()):
        doing = f"runs {each['job']}{_progress(each.get('progress'))}" if each["job"] else "idle"
        waits = f"; waits: {shortened(each['waiting'], 160)}" if each["waiting"] else ""
        output.say(f"device     {each['device']}: {doing}{waits}")
    output.say(f"store      {store['path']} ({size(store['bytes'])})")
    jobs = [counted(count, f"{state} job") for state, count in store["jobs"].items() if count]
    output.say(f"jobs       {', '.join(jobs) or 'none'}")
    for place, each in enumerate(document["answers"]):
        output.say(f"{'answers' if place == 0 else '':<10} {each['found_at'][:16]}  {each['workload']} on "
                   f"{each['device']}: {each['verdict']}{_gain(each)}")  # fmt: skip


def _progress(found: dict[str, Any] | None) -> str:
    """`: hist,maxpool, part 2 of 3, search 12/64, about 40 s left`."""
    if found is None:
        return ""
    part = f", part {found['part']} of {found['parts']}" if found["part"] is not None else ""
    where = f"final {found['final']} of {found['finals']}" if found["final"] is not None else found["phase"]
    trials = f" {found['done']}/{found['budget']}" if found["budget"] and found["final"] is None else ""
    left = f", about {_duration(found['left_secs'])} left" if found["left_secs"] is not None else ""
    return f": {found['workload']}{part}, {where}{trials}{left}"


def _gain(each: dict[str, Any]) -> str:
    return f", {each['speedup']:.3f}x" if each["speedup"] is not None else ""


def _duration(secs: float) -> str:
    """As people say it, by its two largest units."""
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    parts: list[str] = []
    rest = int(secs)
    for name, unit in units:
        count, rest = divmod(rest, unit)
        parts += [f"{count} {name}"] if count or parts else []
    return " ".join(parts[:2]) or "0 s"
