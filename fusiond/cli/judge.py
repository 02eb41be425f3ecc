"""`fusiond judge`: checks whether a kernel correctly replaces another one, and how much faster it is."""

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any

from fusiond.cli import options, output
from fusiond.model.errors import RequestError
from fusiond.requests import jobs
from fusiond.requests.isolation import registry as plugins
from fusiond.tuning import judge

WRONG = 1  #: The exit status for a candidate that is wrong


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", metavar="REFERENCE.yaml", help="a kernel, or FILE.py:FUNCTION (NumPy or JAX)")
    parser.add_argument("candidate", metavar="CANDIDATE.yaml", help="a kernel with the same arguments")
    parser.add_argument("--device", metavar="D", default="auto", help="cpu, cuda:N, auto; default: auto")
    parser.add_argument(
        "--trials", type=int, default=1, metavar="N", help="of its configs to time, on a GPU; default: 1"
    )
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECS", help="of each check; default: 60")
    parser.add_argument("--any-precision", action="store_true", help="let the tolerances alone decide on precision")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output, nothing else")


def run(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.trials <= 1000:
        raise RequestError(f"is {arguments.trials}; it must be from 1 to 1000", where="--trials")
    registry = plugins.load()
    reference, candidate = (_path(each) for each in (arguments.reference, arguments.candidate))
    keys = dict(judge.implementations(registry, reference, candidate))
    if arguments.any_precision:
        keys["precision"] = "any"
    where = os.path.join(os.getcwd(), "judge.yaml")
    (job,) = jobs.read(where, json.dumps({**keys, "device": arguments.device}))

    def waiting(who: str) -> None:
        output.complain(f"fusiond: {arguments.device}: {who}")

    try:
        found = judge.judge(registry, job, trials=arguments.trials, timeout_secs=arguments.timeout, waiting=waiting)
    except RequestError as problem:
        if problem.where.startswith(where):  # a file that nobody has written
            raise RequestError(problem.problem) from None
        raise
    options.answer(arguments, found.as_json(), *_lines(found.as_json()))
    return 0 if found.right else WRONG


def _path(text: str) -> str:
    """A path as a job names one: a bare name would be one of the catalogue."""
    names_file = text.endswith((".yaml", ".yml", ".py")) or ".py:" in text
    return f"./{text}" if names_file and not os.path.isabs(text) else text


def _lines(said: Mapping[str, Any]) -> list[str]:
    rows = [("candidate", said["candidate"]), ("reference", said["reference"])]
    rows.append(("verdict", "right" if said["right"] else f"wrong: {said['problem']}"))
    if said["speedup"] is not None:
        interval = f" (95% interval {said['ci95'][0]:.3f} to {said['ci95'][1]:.3f})" if said["ci95"] else ""
        rows.append(("speed", f"{said['speedup']:.3f}x the reference's, {said['evidence']}{interval}"))
    if said["registers"] is not None:
        facts = f"{said['registers']} registers, {said['spill_bytes']} bytes spilled"
        rows.append(("compiler", f"{facts}, occupancy {100 * said['occupancy']:.0f} %" if said["occupancy"] else facts))
    rows += [("hint", each) for each in said["hints"]]
    rows.append(("seeds", ", ".join(map(str, said["seeds"]))))
    return [f"{name:9s} {text}" for name, text in rows]
