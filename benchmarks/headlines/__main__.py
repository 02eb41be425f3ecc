"""What fusing gains on this GPU, beside what a user would take today: `python -m benchmarks.headlines COMMAND`.

    write FOLDER --arch sm_90        here: every headline's programs as bundles (nothing is compiled there)
    measure NAME --bundles FOLDER    there: a verdict on one headline, in about a quarter of a minute
    beside GROUP --bundles FOLDER    there: the rivals of a group in the same pairs with the fused program
    page                             docs/results-gpu.md and what depends on it in other pages, from what is kept

Both that measure keep a file for each headline in --out, renewed at each step, and go on from it: the exit status is 75
where there is more to do than --minutes allow.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import commands, runs
from benchmarks.commands import say
from benchmarks.headlines import measure
from benchmarks.headlines.order import ORDER
from fusiond.devices import check
from fusiond.devices.base import MORE
from fusiond.devices.lock import device_lock
from fusiond.devices.supervisor import Supervisor
from fusiond.errors import RequestError
from fusiond.model import DeviceInfo

SCREENING_SHARE = 0.45
"""Of a measurement's time."""
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
        there.add_argument("what", metavar=what)
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
    from benchmarks.headlines import field
    from fusiond.registry import Registry

    unknown = sorted(set(given.only or ()) - set(ORDER))
    if unknown:
        raise RequestError(f"unknown headline {unknown[0]!r}; there are {', '.join(ORDER)}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = field.write_all(Registry.load(), given.folder, given.arch, given.only or ORDER, pool)
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
    """A verdict on one headline."""
    index = read_index(given.bundles)
    if given.what not in index:
        raise RequestError(f"no headline {given.what!r} in {given.bundles}; there are {', '.join(index)}")
    begun = time.monotonic()
    until = begun + 60 * given.minutes
    provider, device = check.find(given.device)
    where = given.out / f"{given.what}.json"
    found = _known(where, device) or _new(index[given.what], device)
    with _device(device):
        runner = Supervisor(provider, device)
        try:
            with tempfile.TemporaryDirectory(prefix="fusiond-headline-") as work:
                done = measure.measure(
                    runner, index[given.what], given.bundles / given.what, Path(work), found,
                    screen_until=begun + SCREENING_SHARE * 60 * given.minutes, until=until,
                    keep=lambda: runs.write(where, found), figures=_figures(given.figures),
                )  # fmt: skip
        finally:
            runner.close()
    say(f"{given.what}: {told(found)}")
    if "problem" in found:
        return 1
    return 0 if done else MORE


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


def _new(entry: Mapping[str, Any], device: DeviceInfo) -> measure.Document:
    described = {"name": device.name, "model": device.model, "arch": device.arch, "env": dict(device.env)}
    command = f"python -m benchmarks.headlines measure {entry['name']}"
    run = runs.new("headlines", "", command, device.evidence, described)
    return run | measure.new(entry) | {"strategy": entry["strategy"], "what": entry["what"]}


def _known(where: Path, device: DeviceInfo) -> measure.Document | None:
    """What an earlier run on this model left, if it did not fail."""
    if not where.exists():
        return None
    found: measure.Document = json.loads(where.read_text(encoding="utf-8"))
    return found if found["device"]["model"] == device.model and "problem" not in found else None


@contextlib.contextmanager
def _device(device: DeviceInfo) -> Iterator[None]:
    with device_lock(device, stop=lambda: False, waiting=say):
        yield


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
    with _device(device):
        group = rivals.Group(given.what, read_index(given.bundles), given.bundles, given.out, device, say)
        return group.measure(until)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
