"""`fusiond explain`: explains the result of a job from the store. Works without a daemon."""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from fusiond.cli import bundling, causes, counts, job_texts, options, output, render
from fusiond.cli.answer_text import figures, microseconds, paid
from fusiond.model.english import counted
from fusiond.model.errors import RequestError
from fusiond.model.keys import plain
from fusiond.model.nouns import MEASURED, Rejection
from fusiond.model.outcomes import Measurement, Outcome, Record, Trial
from fusiond.service.client.client import Client
from fusiond.service.wire import job_entry
from fusiond.store.database import Store
from fusiond.store.jobs import JobRow

BASELINE, HFUSE = "baseline:", "hfuse"
STRUCK_OUT = "struck_out"
BOUND_BROKEN = "bound_broken"
Lost: TypeAlias = dict[int, tuple[str, Outcome, str]]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID")
    parser.add_argument("--bundle", metavar="DIR", help="write a trial as bundles: DIR/candidate and DIR/baseline")
    parser.add_argument(
        "--count",
        action="store_true",
        help="count on the processor what the best candidates and the fastest unfused way would pay, and ask the GPU's "
        "counters where ncu is there",
    )
    parser.add_argument("--html", metavar="FILE", help="write the job's page as one file")
    parser.add_argument("--trial", type=int, metavar="N", help="with --bundle: its number; default: the best one")
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    with Client(db=options.database(arguments)) as client:
        row = client.show(arguments.id)
        store = client.store
        rejections = store.rejections(row.id, skip=True)
        trials = store.trials(row.id, None, skip=True)
        finals = {key: list(each.values()) for key, each in store.finals(row.id, skip=True).items()}
        lost = store.lost_finals(row.id)
        history = _history(store, row)
        info = next((each.info for each in store.devices() if each.info.key == row.device_key), None)
        if arguments.html:
            return _page(store, row, arguments)
        if arguments.bundle:
            folder = Path(arguments.bundle).expanduser()
            return _wrote(bundling.write(store, row, trials, arguments.trial, folder), arguments)
        if arguments.trial is not None:
            raise RequestError("is for --bundle; name a folder", where="--trial")
        programs = causes.chosen(store, trials) if arguments.count else {}
        rows: list[Any] = causes.counted(store, programs, info) if programs else []
        hardware: list[str] = []
        if programs and info is not None and info.evidence == MEASURED:
            hardware = list(causes.hardware(store, info, programs))
        profiles = causes.profiles(store, trials, info)
    if arguments.json:
        document = _document(row, rejections, trials, finals, lost, history) | {"profiles": profiles}
        options.say_json(document | ({"counted": rows} if arguments.count else {}))
        return 0
    if not arguments.count:
        rows, hardware = causes.kept(profiles, trials)
    _print(row, rejections, trials, finals, lost, history, told=bool(rows))
    if arguments.count:
        counts.show(rows)
    output.say(*causes.sentences(rows))
    if row.strategy == HFUSE:
        output.say(*causes.because([each for each in rows if each["program"] == "native"]))
    output.say(*hardware)
    return 0


def _page(store: Store, row: JobRow, arguments: argparse.Namespace) -> int:
    from fusiond.service.web import pages  # Jinja2 and starlette, for this alone

    path = Path(arguments.html).expanduser()
    options.write(path, pages.standing_alone(store, row.id), where="--html")
    return _wrote([path], arguments)


def _wrote(paths: Sequence[Path], arguments: argparse.Namespace) -> int:
    written = [str(path) for path in paths]
    return options.answer(arguments, {"written": written}, *written)


def _history(store: Store, row: JobRow) -> list[Record]:
    """The answers to the job's question on its device, the one of today first."""
    return store.history(row.workload_key, row.device_key, row.search.cache) if row.device_key else []


def _document(
    row: JobRow,
    rejections: list[Rejection],
    trials: list[Trial],
    finals: dict[str, list[Measurement]],
    lost: Lost,
    history: list[Record],
) -> dict[str, Any]:
    return {
        "job": {**job_entry(row), "finding": row.finding or None},
        "rejections": [{"rule": each.rule, "nodes": list(each.nodes), "detail": each.detail} for each in rejections],
        "baselines": [_trial(each) for each in trials if each.role.startswith(BASELINE)],
        "trials": [_trial(each) for each in trials if not each.role.startswith(BASELINE)],
        "pruned": sum(each.outcome is Outcome.PRUNED for each in trials),
        "bounds_broken": [each.detail for each in rejections if each.rule == BOUND_BROKEN],
        "finals": {key: [_final(each) for each in found] for key, found in finals.items()},
        "lost": [
            {"process": process, "program": key, "outcome": outcome.value, "reason": reason}
            for process, (key, outcome, reason) in lost.items()
        ],
        "history": [
            {
                "verdict": each.verdict.value,
                "program": each.program_key,
                **{name: getattr(each, name) for name in ("found_at", "speedup", "replaced")},
            }
            for each in history
        ],
        "answer": _answer(history[0]) if history else None,
    }


def _answer(record: Record) -> dict[str, Any]:
    return {
        "verdict": record.verdict.value,
        "config": dict(record.config) if record.config else None,
        **{name: getattr(record, name) for name in ("baseline", "speedup", "processes", "ended")},
        "ci95": list(record.ci95) if record.ci95 else None,
        "checks": list(record.checks),
        "figures": dict(record.figures),
        "counted": [dict(each) for each in record.counted],
    }


_OF_TRIAL = ("sequence", "role", "origin", "reason", "ratio", "time_us", "worst_error")


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        **{name: getattr(trial, name) for name in _OF_TRIAL},
        "config": dict(trial.config),
        "resolved": dict(trial.resolved),
        "outcome": trial.outcome.value,
        "program": trial.program_key,
        "effort": None if trial.measurement is None else plain(trial.measurement.effort),
    }


def _final(measurement: Measurement) -> dict[str, Any]:
    return {
        **{name: getattr(measurement, name) for name in ("time_us", "ratio", "clock")},
        "effort": plain(measurement.effort),
    }


def _print(
    row: JobRow,
    rejections: list[Rejection],
    trials: list[Trial],
    finals: dict[str, list[Measurement]],
    lost: Lost,
    history: list[Record],
    *,
    told: bool,
) -> None:
    """`told`: what the answer's programs wait for is said elsewhere."""
    output.say(f"job {row.id} ({row.kind}) is {row.state.value}: {row.workload_name} [{row.strategy}] on {row.device}")
    output.say(*filter(None, (row.problem and f"problem: {row.problem}", row.finding)))
    _print_search(rejections, trials)
    if row.device_share is not None:
        output.say(f"{row.wall_secs:.1f} s, the device measured for {row.device_share:.0%} of it")
    _print_finals(rejections, trials, finals, lost)
    if history:
        _print_record(history[0], told=told)
    for newer, older in itertools.pairwise(history):
        why = newer.replaced or "no reason was recorded"
        output.say(f"before that, {older.found_at}: {_words(older)}; replaced: {why}")


def _print_search(rejections: list[Rejection], trials: list[Trial]) -> None:
    before = [each for each in rejections if each.rule not in (STRUCK_OUT, BOUND_BROKEN)]
    if before:
        rows = [(each.rule, ", ".join(each.nodes), each.detail) for each in before]
        render.table("what was rejected before anything ran", ("rule", "nodes", "why"), rows)
    render.table("unfused", ("#", "way", "config", "time", "outcome"), _baseline_rows(trials))
    render.table("fused", ("#", "origin", "config", "ratio", "time", "outcome"), _candidate_rows(trials))
    output.say(_counts(trials))
    for each in rejections:
        if each.rule == BOUND_BROKEN:
            output.say(f"A BOUND WAS WRONG: {each.detail}; nothing was left out for its bound from there on")


def _print_finals(
    rejections: list[Rejection], trials: list[Trial], finals: dict[str, list[Measurement]], lost: Lost
) -> None:
    measurements = [each.measurement for each in trials if each.measurement is not None]
    measurements += itertools.chain.from_iterable(finals.values())
    if measurements:
        output.say(_efforts(measurements))
    ways = {each.program_key: _way(each) for each in trials}

    def way(key: str) -> str:
        return ways.get(key, key[:8])

    if finals:
        measured = [(way(key), len(found), *_range(found)) for key, found in finals.items()]
        render.table("measured afresh", ("config", "processes", "least", "most"), measured)
    if gone := [(way(each.nodes[0]), each.detail) for each in rejections if each.rule == STRUCK_OUT]:
        render.table("struck out of the finals", ("config", "why"), gone)
    if lost:
        again = [(process, way(key), f"{outcome.value}: {why}") for process, (key, outcome, why) in lost.items()]
        render.table("processes of the finals that were repeated", ("process", "config", "why"), again)


def _print_record(record: Record, *, told: bool) -> None:
    output.say(_words(record))
    if record.ended:
        output.say(f"how it ended: {record.ended}")
    if record.figures:
        output.say(f"figures: {figures(record.figures)}")
    output.say(*(f"compared: {text}" for text in record.checks))
    if record.counted:
        counts.show(record.counted)
        output.say(f"why, by what is counted: {paid(record.counted)}")
        output.say(*(() if told else causes.sentences(record.counted)))


def _baseline_rows(trials: list[Trial]) -> list[tuple[object, ...]]:
    return [
        (each.sequence, each.role.removeprefix(BASELINE), each.config, _time(each), _outcome(each))
        for each in trials
        if each.role.startswith(BASELINE)
    ]


def _candidate_rows(trials: list[Trial]) -> list[tuple[object, ...]]:
    return [
        (each.sequence, each.origin, each.config, job_texts.ratio(each.ratio), _time(each), _outcome(each))
        for each in trials
        if not each.role.startswith(BASELINE)
    ]


def _way(trial: Trial) -> str:
    """A config; an unfused way's with its name."""
    name = trial.role.removeprefix(BASELINE) if trial.role.startswith(BASELINE) else ""
    return f"{name} {trial.config}".strip()


def _time(trial: Trial) -> str | None:
    return None if trial.time_us is None else microseconds(trial.time_us)


def _outcome(trial: Trial) -> str:
    return f"{trial.outcome.value}: {trial.reason}" if trial.reason else trial.outcome.value


def _counts(trials: list[Trial]) -> str:
    """`12 candidates: 9 measured, 2 build_failed, 1 refused`."""
    fused = [each.outcome for each in trials if not each.role.startswith(BASELINE)]
    found = [(outcome, fused.count(outcome)) for outcome in Outcome]
    parts = ", ".join(f"{count} {outcome.value}" for outcome, count in found if count)
    return counted(len(fused), "candidate") + (f": {parts}" if parts else "")


def _efforts(measurements: list[Measurement]) -> str:
    """What was thrown away and taken again, and how well the ratios are known."""
    efforts = [each.effort for each in measurements]
    known = sorted(each.half_width for each in efforts if each.half_width is not None)
    text = counted(len(measurements), "batch", "batches") + " of samples"
    if known:
        text += f", medians known to {100 * known[len(known) // 2]:.2f} % (the worst to {100 * known[-1]:.2f} %)"
    reasons = [reason for each in efforts for reason in each.thrown_away]
    wrong = (
        (sum(each.gate_failures for each in efforts), "run that began too early", "runs that began too early"),
        (sum(each.retries for each in efforts), "sample of no time", "samples of no time"),
        (len(reasons), "batch", "batches"),
    )
    again = [counted(*each) for each in wrong if each[0]]
    if again:
        text += f"; thrown away and taken again: {', '.join(again)}"
    if reasons:
        text += f" ({', '.join(sorted(set(reasons)))})"
    unsteady = sum(each.steady is False for each in efforts)
    return text + (f"; {unsteady} began though the clock was not steady" if unsteady else "")


def _range(found: list[Measurement]) -> tuple[str | None, str | None]:
    ratios = [each.ratio for each in found if each.ratio is not None]
    return (job_texts.ratio(min(ratios)), job_texts.ratio(max(ratios))) if ratios else (None, None)


def _words(record: Record) -> str:
    text = f"verdict: {record.verdict.value}, against {record.baseline}"
    if record.speedup is not None:
        text += f": {record.speedup:.3f}x"
    if record.ci95 is not None:
        text += f", 95% interval {record.ci95[0]:.3f} to {record.ci95[1]:.3f}"
    return text
