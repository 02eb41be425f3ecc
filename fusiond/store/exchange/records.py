"""Converts records to entries, and entries to what a job can measure again."""

import json
from typing import Any

from fusiond import __version__
from fusiond.model.keys import plain
from fusiond.model.nouns import Config, DeviceInfo, frozen
from fusiond.model.outcomes import Record, Verdict
from fusiond.model.program import Program, decode, encode
from fusiond.store.database import Store
from fusiond.store.exchange.database import Exchange
from fusiond.store.exchange.entry import ExchangeEntry, Refused, canonical, digest, of_document
from fusiond.store.exchange.signing import Signer

_AT_ONCE = 200
_AS_SAID = (
    "strategy", "strategy_version", "cache", "evidence", "time_us", "baseline", "baseline_us", "speedup", "verified",
    "trials", "processes", "ended", "found_at",
)  # fmt: skip
"""Fields of a Record that stand in an entry as they are."""


def publish(store: Store, exchange: Exchange, signer: Signer) -> int:
    """Sign the answers of today that were found since the last time, and keep them among the entries; how many."""
    devices = {each.info.key: each.info for each in store.devices()}
    published = 0
    target = f"own {signer.public}"
    while True:
        since = exchange.mark(target)
        numbered = store.answers_after(since, _AT_ONCE)
        if not numbered:
            return published
        entries = (entry_of(store, signer, record, devices) for _, record in numbered if record is not None)
        published += exchange.put([each for each in entries if each is not None], own=True)[0]
        exchange.set_mark(target, numbered[-1][0])


def entry_of(store: Store, signer: Signer, record: Record, devices: dict[str, DeviceInfo]) -> ExchangeEntry | None:
    """A record as an entry; None for one that no other box could look up: an earlier version wrote it without what its
    content is, its device is not in the store any more, or it is replayed."""
    info = devices.get(record.device_key)
    keys = store.keys_of(record.workload_key)
    if info is None or keys is None or info.evidence == "replayed":
        return None
    family_key, content_family_key = keys
    if not record.content_key or not content_family_key:
        return None
    programs: dict[str, dict[str, Any]] = {}
    body = {
        **{name: getattr(record, name) for name in _AS_SAID},
        "fusiond": __version__,
        "workload": {
            "key": record.workload_key,
            "family_key": family_key,
            "content_key": record.content_key,
            "content_family_key": content_family_key,
            "name": record.workload_name,
            "sizes": dict(record.sizes),
        },
        "device": {
            **{name: getattr(info, name) for name in ("key", "model", "arch", "memory_bytes", "mig", "evidence")},
            "name": record.device_name,
            "limits": plain(info.limits),
        },
        "environment": dict(store.environment(record.env_key)),
        "verdict": record.verdict.value,
        "config": dict(record.config) if record.config is not None else None,
        "program": _carried(store, record.program_key, programs),
        "baseline_config": dict(record.baseline_config) if record.baseline_config is not None else None,
        "unfused": _carried(store, record.baseline_program_key, programs),
        "ci95": list(record.ci95) if record.ci95 is not None else None,
        "checks": list(record.checks),
        "figures": dict(record.figures),
        "counted": [dict(each) for each in record.counted],
    }
    try:
        entry = signer.sign(json.loads(canonical(body)), programs)
        return of_document({**entry.head(), "programs": programs})
    except (Refused, ValueError):  # what others would refuse is not sent: a figure that is not a number, say
        return None


def _carried(store: Store, program_key: str | None, programs: dict[str, dict[str, Any]]) -> dict[str, str] | None:
    """Name a program by its key and the digest of its plan, which goes into `programs`. Of data in a file the plan
    says the digest, and not where it lies."""
    program = store.program(program_key) if program_key is not None else None
    if program is None:
        return None
    plan: dict[str, Any] = json.loads(canonical(plain(encode(program))))
    for each in plan["buffers"]:
        each["fill"]["file"] = None
    name = digest(plan)
    programs[name] = plan
    return {"key": program.key, "digest": name}


def with_programs(exchange: Exchange, key: str) -> ExchangeEntry | None:
    """A stored entry with the programs that are here; None when there is none of that key."""
    text = exchange.envelope(key)
    if text is None:
        return None
    head = json.loads(text)
    found = {}
    for each in (head["body"]["program"], head["body"]["unfused"]):
        plan = exchange.program(each["digest"]) if each is not None else None
        if plan is not None:
            found[each["digest"]] = json.loads(plan)
    return ExchangeEntry(head["body"], head["key"], head["signature"], found)


def program_of(entry: ExchangeEntry, which: str) -> Program:
    """Its `program` or `unfused`, to be built and run: only of a signer that is trusted. Refused where it does not
    travel with the entry, is not what its key says, or needs files that did not travel."""
    named = entry.body[which]
    plan = entry.programs.get(named["digest"]) if named is not None else None
    if plan is None:
        raise Refused(f"the {'fused' if which == 'program' else 'unfused'} program did not come with it")
    try:
        program = decode(plan)
        key = program.key
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
        raise Refused(f"{which}: {problem}") from None
    if key != named["key"]:
        raise Refused(f"{which}: the plan is not that of its key")
    if any(each.fill.kind == "file" for each in program.buffers):
        raise Refused("its data are in a file, which did not travel")
    if any(each.include_dirs for each in program.sources):
        raise Refused("it includes headers of the box that it comes from")
    return program


def record_of(entry: ExchangeEntry, device: DeviceInfo) -> Record:
    """What an entry says, as a record of a device here that is equal to its own."""
    body, workload = entry.body, entry.body["workload"]
    config, baseline_config = body["config"], body["baseline_config"]
    return Record(
        **{name: body[name] for name in _AS_SAID},
        workload_name=workload["name"],
        workload_key=workload["key"],
        content_key=workload["content_key"],
        sizes=frozen(workload["sizes"]),
        device_name=device.name,
        device_key=device.key,
        env_key=device.env_key,
        verdict=Verdict(body["verdict"]),
        config=Config.of(config) if config is not None else None,
        program_key=body["program"]["key"] if body["program"] is not None else None,
        baseline_program_key=body["unfused"]["key"] if body["unfused"] is not None else None,
        baseline_config=Config.of(baseline_config) if baseline_config is not None else None,
        ci95=(body["ci95"][0], body["ci95"][1]) if body["ci95"] is not None else None,
        checks=tuple(body["checks"]),
        figures=frozen(body["figures"]),
        counted=tuple(body["counted"]),
    )
