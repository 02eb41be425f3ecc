"""What fusing gains on this GPU, beside what a user would take today: `python -m benchmarks.headlines COMMAND`.

    write FOLDER --arch sm_90          here: every headline's programs as bundles (nothing is compiled there)
    measure NAME ... --bundles FOLDER  there: a verdict on each of these headlines, which share their processes
    beside GROUP --bundles FOLDER      there: the rivals of a group in the same pairs with the fused program
    page                               docs/results-gpu.md and what depends on it in other pages, from what is kept

Both that measure keep a file for each headline in --out, renewed at each step, and go on from it: the exit status is 75
where there is more to do than --minutes allow.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import commands, runs
from benchmarks.commands import say
from benchmarks.headlines import measure
from benchmarks.headlines.measure import HeadlineRun
from benchmarks.headlines.order import ORDER
from fusiond.devices import check
from fusiond.devices.base import MORE
from fusiond.devices.lock import device_lock
from fusiond.devices.supervisor import Supervisor
from fusiond.model.errors import RequestError
from fusiond.model.nouns import DeviceInfo

SCREENING_SHARE = 0.4  #: Of a measurement's time
TRIES = 2  #: Of a headline that failed
MEMORY_BYTES = 8 << 30
Index = Mapping[str, dict[str, Any]]


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 done, 1 something failed, 2 the request was wrong, 75 there is more to do."""
    given = _parser().parse_args(argv)
    found: list[int] = []
    return commands.status(lambda: found.append(given.do(given))) or found[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.headlines", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words = parser.add_subparsers(required=True, metavar="COMMAND")
    writing = words.add_parser("write", help="here: every headline's programs as bundles")
    writing.add_argument("folder", type=Path)
    writing.add_argument("--arch", default="sm_90", help="or cpu, at small sizes")
    writing.add_argument("--only", nargs="+", metavar="NAME", help=f"of {', '.join(ORDER)}")
    writing.set_defaults(do=_write)
    for name, do, what in (("measure", _measure, "NAME"), ("beside", _beside, "GROUP")):
        there = words.add_parser(name, help=(do.__doc__ or "").splitlines()[0])
        there.add_argument("what", metavar=what, nargs="+" if name == "measure" else None)
        there.add_argument("--bundles", type=Path, required=True, metavar="FOLDER")
        there.add_argument("--device", default="cuda:0")
        there.add_argument("--out", type=Path, required=True, metavar="FOLDER")
        there.add_argument("--minutes", type=float, default=10.0)
        there.add_argument("--figures", type=Path, metavar="FILE", help="what `fusiond calibrate --json` said")
        there.set_defaults(do=do)
    words.add_parser("page", help="docs/results-gpu.md").set_defaults(do=_page)
    return parser


# --- here -----------------------------------------------------------------------------------------------


def _write(given: argparse.Namespace) -> int:
    from benchmarks.headlines import headline_programs
    from fusiond.requests.registry import Registry

    unknown = sorted(set(given.only or ()) - set(ORDER))
    if unknown:
        raise RequestError(f"unknown headline {unknown[0]!r}; there are {', '.join(ORDER)}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = headline_programs.write_all(Registry.load(), given.folder, given.arch, given.only or ORDER, pool)
    for line in failed:
        say(f"not built: {line}")
    return int(bool(failed))


def _page(given: argparse.Namespace) -> int:
    from benchmarks.headlines import page

    for path in page.write():
        say(f"wrote {path}")
    return 0


# --- there ----------------------------------------------------------------------------------------------


def read_index(bundles: Path) -> Index:
    """RequestError where there is none."""
    return {each["name"]: each for each in check.read_index(bundles)}


def _measure(given: argparse.Namespace) -> int:
    """A verdict on each of these headlines."""
    index = read_index(given.bundles)
    unknown = sorted(set(given.what) - set(index))
    if unknown:
        raise RequestError(f"no headline {unknown[0]!r} in {given.bundles}; there are {', '.join(index)}")
    begun = time.monotonic()
    provider, device = check.find(given.device)
    found = {name: _document(given.out / f"{name}.json", index[name], device) for name in given.what}
    headlines = {
        name: HeadlineRun(
            entry=index[name], folder=given.bundles / name, found=document,
            keep=functools.partial(runs.write, given.out / f"{name}.json", document),
        )
        for name, document in found.items() if "problem" not in document
    }  # fmt: skip
    with (
        device_lock(device, stop=lambda: False, waiting=say),
        tempfile.TemporaryDirectory(prefix="fusiond-headlines-", dir=_in_memory()) as work,
    ):
        runner = Supervisor(provider, device)
        try:
            done = measure.measure(
                runner, headlines, Path(work), screen_until=begun + SCREENING_SHARE * 60 * given.minutes,
                until=begun + 60 * given.minutes, figures=_figures(given.figures),
            )  # fmt: skip
        finally:
            runner.close()
    for name, document in found.items():
        say(f"{name}: {told(document)}")
    return MORE if not done else int(any("problem" in each for each in found.values()))


def _in_memory() -> str | None:
    """A folder in memory for references, which are gigabytes; None where there is none with room."""
    folder = Path("/dev/shm")
    return str(folder) if folder.is_dir() and shutil.disk_usage(folder).free >= MEMORY_BYTES else None


def told(found: Mapping[str, Any]) -> str:
    """In a line."""
    if "problem" in found:
        return str(found["problem"])
    concluded = found["conclusion"]
    if concluded is None:
        return f"no verdict yet: {len(found['finals']['processes'])} processes"
    low, high = concluded["ci95"]
    return (
        f"{concluded['verdict']}: {concluded['winner']} {concluded['time_us']} us,"
        f" {concluded['speedup']:.3f}x ({low:.3f} to {high:.3f}) {concluded['opponent']}"
    )


def _document(where: Path, entry: Mapping[str, Any], device: DeviceInfo) -> measure.Document:
    """What an earlier run on this model left; a new one where there is none, or where it failed and may try again."""
    known = runs.kept_on(where, device)
    if known is not None and ("problem" not in known or known["tries"] >= TRIES):
        return known
    command = f"python -m benchmarks.headlines measure {entry['name']}"
    run = runs.new("headlines", "", command, device.evidence, runs.described(device))
    about = {"strategy": entry["strategy"], "what": entry["what"], "tries": 1 + (known or {}).get("tries", 0)}
    return run | measure.new(entry) | about


def _figures(path: Path | None) -> dict[str, float]:
    try:
        document = json.loads(path.read_text(encoding="utf-8")) if path else {}
    except (OSError, ValueError):
        return {}
    return {name: float(each) for name, each in document.get("figures", {}).items()}


def _beside(given: argparse.Namespace) -> int:
    """Rivals of one group, in the same pairs with the fused program."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the fused program needs memory, too
    from benchmarks.headlines import rivals

    if given.what not in rivals.GROUPS:
        raise RequestError(f"unknown group {given.what!r}; there are {', '.join(rivals.GROUPS)}")
    until = time.monotonic() + 60 * given.minutes
    _, device = check.find(given.device)
    if device.evidence != "measured":
        raise RequestError("rivals are measured on a GPU", where="--device")
    with device_lock(device, stop=lambda: False, waiting=say):
        group = rivals.Group(given.what, read_index(given.bundles), given.bundles, given.out, device, say)
        return group.measure(until)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
