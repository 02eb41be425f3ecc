"""The referee's false alarms: right kernels, each in a second form: `python -m benchmarks.judging`.

    python -m benchmarks.judging                  every kernel of hfuse's catalogue
    python -m benchmarks.judging CORPUS           and the pairs of a corpus (forms.py)
    python -m benchmarks.judging --page           docs/results-judging.md from the JSON file that is kept

Every kernel here is right, so that whatever is not called right is a false alarm, or a mistake of its author that the
page names.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import commands, runs
from benchmarks.commands import say
from benchmarks.judging import forms, page
from benchmarks.judging.forms import SecondForm
from benchmarks.runs import RESULTS
from fusiond.errors import RequestError

DEVICE, SECS = "cpu", 120.0
AGAIN = 5
"""Of so many pairs one is judged twice."""


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 done, 2 the request was wrong."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.judging", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("corpus", type=Path, nargs="?", metavar="CORPUS", help="a folder with pairs of foreign kernels")
    made.add_argument("--only", nargs="+", default=[], metavar="NAME", help="pairs of these names")
    made.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    made.add_argument("--page", action="store_true", help="write docs/results-judging.md, and nothing else")
    given = made.parse_args(argv)

    def do() -> None:
        if given.page:
            found = list(runs.kept("judging", given.out))
            commands.page(page.PAGE, page.render(found), found)
        else:
            _run(given, commands.said(made, given, ("only",)))

    return commands.status(do)


def _run(given: argparse.Namespace, command: str) -> None:
    # Right and wrong is what is kept, and that is no time: one file, and no device's.
    run = runs.new("judging", "", command, "static", {"name": DEVICE, "arch": None, "model": None})
    run |= {"origin": {}, "rows": []}
    where = runs.path(given.out, run)
    with tempfile.TemporaryDirectory(prefix="fusiond-judging-") as work:
        pairs = list(forms.catalogue(Path(work)))
        if given.corpus is not None:
            pairs += forms.foreign(given.corpus)
            run["origin"] = {"repositories": forms.origin(given.corpus).get("repositories", [])}
        chosen = [each for each in pairs if not given.only or each.name in given.only]
        for at, pair in enumerate(chosen):
            row = _judged(pair, again=at % AGAIN == 0)
            run["rows"].append(row)
            said = "right" if row["right"] else f"{'wrong' if row['right'] is False else 'refused'}: {row['problem']}"
            say(f"{pair.name}, {pair.form}: {said} ({row['secs']} s)")
            runs.write(where, run)
    say(f"wrote {where.name}; `python -m benchmarks.judging --page` makes docs/results-judging.md of it")


def _judged(pair: SecondForm, *, again: bool) -> dict[str, Any]:
    """The verdict of a process of its own, as a user asks for it, and how long it took: the first time, and again, when
    whatever can be kept is kept. `right` is None where the judge refused the request."""
    command = [sys.executable, "-m", "fusiond", "judge", str(pair.reference), str(pair.second)]
    row: dict[str, Any] = {"kernel": pair.name, "origin": pair.origin, "form": pair.form, "mistake": pair.mistake}
    for key in ("secs", "again_secs") if again else ("secs",):
        begun = time.perf_counter()
        try:
            done = subprocess.run(
                [*command, "--device", DEVICE, "--json"], capture_output=True, text=True, check=False, timeout=SECS
            )
        except subprocess.TimeoutExpired:
            return row | {"right": None, "problem": f"no verdict within {SECS:.0f} s", "secs": SECS}
        row[key] = round(time.perf_counter() - begun, 2)
    if done.returncode not in (0, 1) or not done.stdout.startswith("{"):  # an exception ends with 1, too
        # Messages name the file: not where it lies on this machine.
        said = done.stderr.strip().replace(f"{pair.second.parent}/", "").replace(f"{pair.reference.parent}/", "")
        return row | {"right": None, "problem": " ".join(said.split())[:300]}
    verdict = json.loads(done.stdout)
    if verdict["right"] != (done.returncode == 0):
        raise RequestError(f"the judge says {verdict['right']} and exits with {done.returncode}", where=pair.name)
    return row | {key: verdict[key] for key in ("right", "problem", "evidence")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
