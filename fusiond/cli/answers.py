"""`fusiond answers`: lists the known answers, newest first. Works without a daemon."""

import argparse
import datetime
import json
import re
from typing import Any

from fusiond.cli import job_texts, options, output, render
from fusiond.cli.prune import age_secs
from fusiond.model.english import counted
from fusiond.model.errors import NothingKnown, RequestError
from fusiond.model.outcomes import Record, Verdict
from fusiond.service.client.client import Client
from fusiond.service.wire import answer_entry
from fusiond.store.exchange.find import exchange_of
from fusiond.store.format import now

COLUMNS = ("found (UTC)", "workload", "strategy", "device", "evidence", "verdict", "gain", "95 %", "against")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", metavar="D", help="only of this device: its name, model or key")
    parser.add_argument("--strategy", metavar="S", help="only of this strategy")
    parser.add_argument(
        "--verdict", action="append", choices=[each.value for each in Verdict], help="only these (may be repeated)"
    )
    parser.add_argument("--since", metavar="T", help="only what was found since: 36h, 30d, 8w, or a date as 2026-11-24")
    parser.add_argument("--imported", action="store_true", help="what other boxes found, in place of this one's")
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="at most this many (default 50)")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    limit = max(1, arguments.limit)
    since = None if arguments.since is None else _moment(arguments.since)
    if arguments.imported:
        return _imported(arguments, limit, since)
    with Client(db=options.database(arguments)) as client:
        try:
            found = client.store.answers(
                limit=limit + 1,
                strategy=arguments.strategy,
                verdicts=[Verdict(each) for each in arguments.verdict or ()],
                device=options.device(arguments),
                since=since,
            )
        except NothingKnown:  # no store yet
            found = []
    if len(found) > limit:
        found = found[:limit]
        output.complain(f"fusiond: the last {counted(limit, 'answer')}; --limit N shows more")
    document = [answer_entry(each) for each in found]
    return render.listing(arguments, document, COLUMNS, map(row, found), "no answers")


def _imported(arguments: argparse.Namespace, limit: int, since: str | None) -> int:
    """Entries of the exchange, the last that came first; whose they are, and what this box has found of them."""
    exchange = exchange_of(options.database(arguments))
    found: list[dict[str, Any]] = []
    names = exchange.signers() if exchange is not None else {}
    for each in exchange.listed(own=False) if exchange is not None else ():
        assert exchange is not None
        body = json.loads(exchange.envelope(each["key"]) or "{}").get("body")
        if body is None or not _wanted(arguments, body, since):
            continue
        found.append({
            "key": each["key"], "workload": body["workload"]["name"], "strategy": body["strategy"],
            "sizes": body["workload"]["sizes"], "device": body["device"]["model"], "device_key": body["device"]["key"],
            "evidence": body["evidence"], "verdict": body["verdict"], "speedup": body["speedup"],
            "found_at": body["found_at"], "signer": each["signer"], "trusted": names.get(each["signer"]),
            "refuted": each["refuted"],
        })  # fmt: skip
        if len(found) == limit:
            break
    rows = [
        (
            render.when(each["found_at"]), *(each[name] for name in ("workload", "strategy", "device", "evidence")),
            each["verdict"], job_texts.ratio(each["speedup"]),
            each["trusted"] or f"{each['signer'][:12]} (not trusted)", each["refuted"],
        )
        for each in found
    ]  # fmt: skip
    return render.listing(arguments, found, (*COLUMNS[:-2], "signed by", "here"), rows, "no imported answers")


def _wanted(arguments: argparse.Namespace, body: dict[str, Any], since: str | None) -> bool:
    device = options.device(arguments)
    return (
        arguments.strategy in (None, body["strategy"])
        and (not arguments.verdict or body["verdict"] in arguments.verdict)
        and device in (None, body["device"]["model"], body["device"]["key"], body["device"]["name"])
        and (since is None or body["found_at"] >= since)
    )


def row(record: Record) -> tuple[str | None, ...]:
    """An answer as a line of a table."""
    entry = answer_entry(record)
    interval = entry["ci95"]
    gain = job_texts.ratio(entry["speedup"]) or (f"bound {record.speedup:.3f}x" if entry["bound_ratio"] else None)
    between = f"{interval[0]:.3f} .. {interval[1]:.3f}" if interval else None
    found = render.when(record.found_at), record.workload_name, record.strategy, record.device_name, record.evidence
    return (*found, record.verdict.value, gain, between, record.baseline)


def _moment(text: str) -> str:
    """A time of day as it is stored: so long ago, or a date."""
    if re.fullmatch(r"\d{1,6}\s*[hdwHDW]", text.strip()):
        return now(ago_secs=age_secs(text))
    try:
        found = datetime.datetime.fromisoformat(text.strip())
        return now(at=found.replace(tzinfo=found.tzinfo or datetime.UTC).timestamp())
    except (ValueError, OverflowError):
        raise RequestError(f"is {text[:40]!r}; write 36h, 30d, 8w or a date as 2026-11-24", where="--since") from None
