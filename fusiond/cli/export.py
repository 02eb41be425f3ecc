"""`fusiond export`: writes trials in the exchange format T4 or as a table, and answers as a table or signed for other
machines. Works without a daemon.

T4 (Kernel Tuner, KTT, BAT: schema 1.0.0 of its results) has milliseconds. What was measured is called `time`; what was
emulated or counted has a name of its own there, so that nobody takes it for a time of a GPU.
"""

import argparse
import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fusiond.cli import options, output
from fusiond.model.english import counted
from fusiond.model.errors import RequestError
from fusiond.model.outcomes import Outcome, Trial
from fusiond.service.client.client import Client
from fusiond.service.wire import answer_entry
from fusiond.store.jobs import JobRow

SCHEMA = "1.0.0"
INVALIDITY = {
    Outcome.MEASURED: "correct", Outcome.REFUSED: "constraints", Outcome.BUILD_FAILED: "compile",
    Outcome.TIMED_OUT: "timeout",
    **dict.fromkeys((Outcome.WRONG_RESULT, Outcome.WRONG_UNFUSED), "correctness"),
    **dict.fromkeys((Outcome.LAUNCH_REFUSED, Outcome.CRASHED, Outcome.WORKER_DIED, Outcome.TOO_NOISY), "runtime"),
}  # fmt: skip
"""What was pruned has no result: nobody tried it."""
TIMES = {"measured": "time", "emulated": "emulated_time", "counted": "bound"}  #: Evidence -> what a value is called


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "id", metavar="ID", nargs="?", help="the job whose trials are meant; --csv without it: the answers"
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--t4", metavar="FILE", help="write T4 (JSON); - is standard output")
    which.add_argument(
        "--answers",
        metavar="FILE",
        help="write the answers, signed, as JSON lines for `fusiond import`; - is standard output",
    )
    which.add_argument("--csv", metavar="FILE", help="write a table with a head line; - is standard output")
    parser.add_argument("--own", action="store_true", help="with --answers: without those that were imported")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    target = arguments.t4 or arguments.csv or arguments.answers
    if arguments.json and target == "-":
        raise RequestError("and a document on standard output exclude each other; name a file", where="--json")
    if arguments.answers:
        return _answers(arguments)
    with Client(db=options.database(arguments)) as client:
        if arguments.id is None:
            if arguments.t4:
                raise RequestError("T4 holds the trials of one job; name it", where="ID")
            entries = [answer_entry(each) for each in client.store.answers(limit=-1)]
            text, count, noun = _table(entries), len(entries), "answer"
        else:
            row = client.show(arguments.id)
            trials = client.store.trials(row.id, "candidate", skip=True)
            evidence = _evidence(client, row)
            found = t4(row, trials, evidence) if arguments.t4 else None
            text = json.dumps(found, indent=1) + "\n" if found else _table(_lines(trials, evidence))
            count, noun = len(found["results"]) if found else len(trials), "trial"
    if target == "-":
        output.say(*text.rstrip("\n").split("\n"))
    else:
        options.write(Path(target).expanduser(), text, where="FILE")
        options.answer(arguments, {"written": target, f"{noun}s": count}, f"{counted(count, noun)} in {target}")
    return 0


def _answers(arguments: argparse.Namespace) -> int:
    """This box's answers, signed by its key, and those that were imported, signed by others."""
    if arguments.id is not None:
        raise RequestError("is a job; --answers writes the answers of the store", where="ID")
    from fusiond.store.exchange import transfer  # cryptography: the other forms do without
    from fusiond.store.exchange.database import Exchange
    from fusiond.store.exchange.records import publish
    from fusiond.store.exchange.signing import Signer

    with Client(db=options.database(arguments)) as client, Exchange.beside(client.db) as exchange:
        signer = Signer.of(client.store.path)
        publish(client.store, exchange, signer)
        keys = exchange.keys(own=True if arguments.own else None)
        if arguments.answers == "-":
            for line in transfer.lines(exchange, keys):
                output.say_text(f"{line}\n")
            return 0
        count = transfer.write(exchange, Path(arguments.answers).expanduser(), keys)
    document = {"written": arguments.answers, "answers": count, "signer": signer.public}
    text = f"{counted(count, 'answer')} in {arguments.answers}, those of this box signed by {signer.public}"
    return options.answer(arguments, document, text)


def t4(row: JobRow, trials: Iterable[Trial], evidence: str) -> dict[str, Any]:
    """A job's trials as T4 has them."""
    name = TIMES[evidence]
    results = []
    for trial in trials:
        if trial.outcome not in INVALIDITY:
            continue
        samples = trial.measurement.span_us if trial.measurement is not None else ()
        valid = trial.outcome is Outcome.MEASURED and bool(samples)
        result: dict[str, Any] = {
            "configuration": dict(trial.config),
            "objectives": [name],
            "times": {"runtimes": [each / 1e3 for each in samples] if evidence == "measured" else []},
            "invalidity": INVALIDITY[trial.outcome],
            "correctness": int(valid),
            "measurements": [],
        }
        if valid and trial.time_us is not None:
            result["measurements"] = [{"name": name, "value": trial.time_us / 1e3, "unit": "ms"}]
            if trial.ratio is not None:
                result["measurements"].append({"name": "unfused_over_fused", "value": trial.ratio, "unit": ""})
        results.append(result)
    metadata = {"device": row.device, "kernel": row.workload_name, "evidence": evidence, "job": row.id}
    return {"schema_version": SCHEMA, "metadata": metadata, "results": results}


def _evidence(client: Client, row: JobRow) -> str:
    """Of the device that a job ran on."""
    found = (each.info.evidence for each in client.store.devices() if each.info.key == row.device_key)
    return next(found, "measured")


def _lines(trials: Sequence[Trial], evidence: str) -> list[dict[str, Any]]:
    knobs = list(dict.fromkeys(name for trial in trials for name in trial.config))
    return [
        {
            "trial": trial.sequence,
            "origin": trial.origin,
            "outcome": trial.outcome.value,
            f"{TIMES[evidence]}_us": trial.time_us,
            "unfused_over_fused": trial.ratio,
            **{name: trial.config.get(name) for name in knobs},
            "reason": trial.reason,
        }
        for trial in trials
    ]


def _table(entries: Sequence[dict[str, Any]]) -> str:
    """Comma-separated, a head line first; what is not a number or text stands as JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(entries[0]) if entries else ["nothing"], lineterminator="\n")
    writer.writeheader()
    for each in entries:
        writer.writerow({name: _cell(value) for name, value in each.items()})
    return text.getvalue()


def _cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, str) and value[:1] in "=+-@\t\r":
        return f"'{value}"
    return value
