"""`fusiond plan`: shows a strategy's analysis, space, seeds and rejections for a job. Runs nothing on a device."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusiond.cli import counts, options, output, render
from fusiond.cli.answer_text import config_text, figures
from fusiond.devices.counting.model import H100, Gpu, gpu_of
from fusiond.model.english import counted
from fusiond.model.errors import RequestError, StoreError
from fusiond.requests import jobs
from fusiond.requests.isolation import registry as plugins
from fusiond.requests.planning import Plan, emit_bundles, plan, with_config, with_counts

if TYPE_CHECKING:
    from fusiond.store.database import Store

FACTS = ("program", "launch", "threads", "registers", "spilled", "shared", "barriers", "occupancy", "limited by")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB.yaml")
    parser.add_argument("--arch", metavar="sm_90", help="plan for this architecture, whether it is here or not")
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="the first seed, changed: shown, and written by --emit",
    )
    parser.add_argument(
        "--count", action="store_true", help="count what each launch would pay on an H100, on the processor"
    )
    parser.add_argument("--svg", metavar="FILE", help="with --count: a picture of it, the roofline of the GPU")
    parser.add_argument("--emit", metavar="DIR", help="write two bundles: DIR/native and DIR/candidate")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    chosen = options.settings(arguments.set, where="--set")
    read = jobs.read(arguments.job)
    registry = plugins.load(strategies={job.strategy for job in read})
    with _store(arguments) as store:
        plans = [plan(registry, job, arch=arguments.arch, store=store) for job in read]
    if arguments.emit is not None:
        for index, each in enumerate(plans):
            folder = Path(arguments.emit)
            emit_bundles(registry, each, chosen, folder if len(plans) == 1 else folder / str(index))
    if chosen:
        plans = [with_config(each, chosen) for each in plans]
    plans = _counted(arguments, plans)
    documents = [each.as_json() for each in plans]
    refused = [f"{each.workload.name}: {each.refused}" for each in plans if each.refused]
    for line in refused:
        output.complain(f"fusiond: error: {line}")
    if arguments.json:
        options.say_json(documents[0] if len(documents) == 1 else documents)
        return RequestError.exit_status if refused else 0
    for each, document in zip(plans, documents, strict=True):
        _print(document, each.description)
    for written in (arguments.svg, arguments.emit):
        if written is not None:
            output.say(f"wrote {written}")
    return RequestError.exit_status if refused else 0


def _counted(arguments: argparse.Namespace, plans: list[Plan]) -> list[Plan]:
    """With what --count says of them, drawn where --svg is given."""
    if arguments.svg is not None and (not arguments.count or len(plans) > 1):
        raise RequestError("a picture is of what --count says of one workload", where="--svg")
    if arguments.count:
        plans = [with_counts(each, _gpu(each).name) for each in plans]
    if arguments.svg is not None:
        counts.draw(plans[0].counted or (), Path(arguments.svg).expanduser())
    return plans


def _gpu(found: Plan) -> Gpu:
    """The GPU that is counted for; an H100 where the job's device is the processor."""
    arch = found.target.arch
    return gpu_of(arch if arch.startswith("sm_") else H100.arch)


@contextmanager
def _store(arguments: argparse.Namespace) -> Iterator[Store | None]:
    """The store, which knows what parts and probes came to; None for an architecture, of which it knows nothing, and
    where none can be read, since planning needs none."""
    if arguments.arch is not None:
        yield None
        return
    from fusiond.store.database import Store

    try:
        store = Store.open(options.database(arguments), create=False)
    except StoreError:
        yield None
        return
    with store:
        yield store


def _probes(found: Mapping[str, Any]) -> str:
    text = f"{found['wanted']} wanted, {found['known']} known, {found['missing']} missing"
    limited = found["limit"] is not None and found["limit"] < found["missing"]
    return text + (f" (a run measures {found['limit']} of them)" if limited else "")


def _print(document: Mapping[str, Any], description: str) -> None:
    workload, space = document["workload"], document["space"]
    sizes = ", ".join(f"{name}={value}" for name, value in workload.get("sizes", {}).items())
    output.say(f"{workload['name']} [{document['strategy']}]" + (f" at {sizes}" if sizes else ""))
    output.say(f"parts: {document['parts']}, probes: {_probes(document['probes'])}, points: {space['points']}")
    if document["figures"]:
        output.say(f"figures: {figures(document['figures'])}")
    if description:  # the strategy's own words; the figures are in --json
        output.say("", *description.rstrip().split("\n"), "")
    else:
        report = [(name, _short(value)) for name, value in document["analysis"].items()]
        render.table("analysis", ("what", "value"), report)
    parameters = [(name, ", ".join(map(str, values))) for name, values in space["parameters"].items()]
    render.table("space", ("parameter", "values"), parameters)
    for text in space["restrictions"]:
        output.say(f"restriction: {text}")
    render.table("seeds", ("#", "config"), [(index, config_text(seed)) for index, seed in enumerate(document["seeds"])])
    if "set" in document:
        output.say(f"set: {config_text(document['set'])}")
    if document["facts"]:
        render.table("what the compiler says (not measured)", FACTS, [_facts(each) for each in document["facts"]])
    if "counted" in document:
        counts.show(document["counted"])
    if document["rejections"]:
        rows = [(each["rule"], ", ".join(each["nodes"]), each["detail"]) for each in document["rejections"]]
        render.table("rejections", ("rule", "nodes", "detail"), rows)
    for note in document["notes"]:
        output.say(f"note: {note}")


def _facts(facts: Mapping[str, Any]) -> tuple[object, ...]:
    if facts["occupancy"] is None:
        return (facts["candidate"], facts["launch"], facts["threads"], "", "", "", "", "", facts["problem"])
    occupancy = f"{100 * facts['occupancy']:.0f} % ({counted(facts['blocks_per_sm'], 'block')})"
    return (
        *(facts[name] for name in ("candidate", "launch", "threads", "registers", "spill_bytes", "shared_bytes")),
        facts["barriers"],
        occupancy,
        facts["problem"] or facts["limited_by"],
    )


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 400 else text[:397] + "..."
