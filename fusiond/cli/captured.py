"""`fusiond capture DIR`: shows a capture and writes files of it."""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusiond.cli import options, output, render
from fusiond.cuda.capture import copies, runner, trace
from fusiond.cuda.capture.documents import Undescribed, representative
from fusiond.cuda.capture.picked_kernels import Picking, by_kernel
from fusiond.cuda.capture.report import CaptureReport, report
from fusiond.cuda.capture.trace import CapturedTrace
from fusiond.model.errors import RequestError

MOST_GROUPS = 20
SUBMITTED = 10


def run(folder: Path, arguments: argparse.Namespace) -> int:
    found = trace.read(folder)[0]
    if not found.kernels:
        raise RequestError("no kernel was launched", where=str(folder))
    target = Path(arguments.to or folder).expanduser()
    if arguments.pick:
        return _pick(found, target, arguments)
    made = report(found, runner.gpu(folder), count=arguments.count)
    if arguments.submit:
        return _submit(made, target / "groups", arguments)
    if arguments.html:
        return _page(made, folder, Path(arguments.html).expanduser(), arguments)
    if arguments.json:
        return options.answer(arguments, made.as_json())
    _show(made.as_json())
    return 0


def _show(made: Mapping[str, Any]) -> None:
    rows = [
        (
            *(each[name] for name in ("number", "name", "launches")),
            None if each["mean_us"] is None else f"{each['mean_us']:.1f}",
            *(_lengths(each["grid"]), _lengths(each["block"]), each["registers"]),
            *(f"{100 * each['occupancy']:.0f} %", f"{each['waves']:.2f}"),
            "" if each["bound_us"] is None else f"{each['bound_us']:.2f} us, {each['bound_by']}",
            each["without_ptx"],
        )
        for each in made["kernels"]
    ]
    heads = ("#", "kernel", "launches", "us", "grid", "block", "registers", "occupancy", "waves", "at least", "")
    render.table(f"kernels (occupancy and waves: {made['gpu']})", heads, rows)
    groups = [
        (
            ",".join(map(str, each["kernels"])),
            " + ".join(each["names"]),
            " + ".join(map(_lengths, each["grids"])),
            each["count"],
            f"{each['hidden_us'] * each['count']:.1f}",
            "; ".join(each["reasons"]),
        )
        for each in made["groups"][:MOST_GROUPS]
    ]
    if groups:
        render.table(
            "launches that do not need each other", ("pick", "kernels", "grids", "times", "hides us", ""), groups
        )
        output.say("hides: an estimate, by which they are ordered: what one launch of all of them could save")
    if len(made["groups"]) > MOST_GROUPS:
        output.say(f"and {len(made['groups']) - MOST_GROUPS} more, in --json")
    output.say(*(f"copies {each['direction']}: {each['count']}, {each['bytes']} bytes" for each in made["copies"]))
    output.say(*(f"note: {each}" for each in made["notes"]))


def _lengths(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)).removesuffix("x1").removesuffix("x1")


def _pick(found: CapturedTrace, folder: Path, arguments: argparse.Namespace) -> int:
    if arguments.pick == "copies":
        folder.mkdir(parents=True, exist_ok=True)
        graph, job = folder / "copies.yaml", folder / "job_copies.yaml"
        graph.write_text(copies.graph(found, "copies"), encoding="utf-8")
        job.write_text("strategy: transfer\ngraph: ./copies.yaml\n", encoding="utf-8")
        return _wrote([graph, job], arguments)
    numbers = _numbers(arguments.pick, found)
    shown = by_kernel(found)
    launches = [representative(shown[found.kernels[number - 1]]) for number in numbers]
    try:
        remarks = _remarks(found, numbers)
        files = Picking(found, folder).job(launches, remarks=remarks)
    except Undescribed as why:
        raise RequestError(str(why), where="--pick") from None
    if not arguments.json:
        output.say(*(f"note: {each}" for each in remarks))
    return _wrote(files, arguments)


def _remarks(found: CapturedTrace, numbers: Sequence[int]) -> list[str]:
    """What has to be known of kernels that are picked together."""
    if len(numbers) == 1:
        return []
    wanted = Counter(numbers)
    beside = [each for each in report(found).groups if wanted <= Counter(each.numbers)]
    if beside:
        return list(beside[0].reasons)
    return ["in the capture they are never launched without one of them needing another, or what comes between"]


def _numbers(text: str, found: CapturedTrace) -> list[int]:
    try:
        numbers = [int(each) for each in text.split(",")]
    except ValueError:
        raise RequestError(f"is {text!r}; expected numbers of kernels, such as 3,7", where="--pick") from None
    for each in numbers:
        if not 1 <= each <= len(found.kernels):
            raise RequestError(f"there is no kernel {each}; there are 1 to {len(found.kernels)}", where="--pick")
    return numbers


def _submit(made: CaptureReport, folder: Path, arguments: argparse.Namespace) -> int:
    """Hand in the groups that are estimated to hide most; those that no document can be written of are named."""
    from fusiond.service.client.client import Client

    handed: list[dict[str, Any]] = []
    with Client(None, options.database(arguments)) as client:
        for each in made.groups:
            if len(handed) == SUBMITTED:
                break
            remarks = [f"captured: {each.count} times", *each.reasons]
            picking = Picking(made.trace, folder / str(len(handed) + 1))  # kernels come in several shapes
            try:
                *_, job = picking.job(each.launches, remarks=remarks)
                handed.append({"kernels": list(each.numbers), "job": str(job), "ids": list(client.submit(job))})
            except (Undescribed, RequestError) as why:
                output.complain(f"{','.join(map(str, each.numbers))} is not handed in: {why}")
    options.answer(arguments, {"submitted": handed}, *(f"{' '.join(each['ids'])}  {each['job']}" for each in handed))
    return 0 if handed else 1


def _page(made: CaptureReport, folder: Path, file: Path, arguments: argparse.Namespace) -> int:
    from fusiond.service.web import pages  # Jinja2 and starlette, for this alone

    options.write(file, pages.capture(made.as_json(), folder.resolve().name), where="--html")
    return _wrote([file], arguments)


def _wrote(files: Sequence[Path], arguments: argparse.Namespace) -> int:
    return options.answer(arguments, {"written": [*map(str, files)]}, *(f"wrote {each}" for each in files))
