"""Everything that is to be done on a GPU box: `python run_all.py`. Needs the standard library only to begin with.

    python run_all.py --list                  what there is to do, in units of a minute at most, in its order
    python run_all.py --minutes 8.5 --call 1  the first ten minutes; ends within that time
    python run_all.py --minutes 3 --call 2    what did not end well once more, then the rest of the correctness sweep
    python run_all.py --units control job:*   only these, done already or not
    python run_all.py                         all of it, on cuda:0
    python run_all.py --device cpu            tries the folder out where there is no GPU (built with --arch cpu)

After every unit all results are in one file (--archive; results.tar.gz): what the units wrote, raw samples and stores
with them. The same command goes on with what is left, and on a fresh machine, too: `--after results.tar.gz` names the
file that came back from the last one. Exit status 0 when every unit that could be run did well.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import fnmatch
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.gpu_box import box
from tools.gpu_box.box import Box
from tools.gpu_box.units import FIRST, SECOND, Unit, units

TAIL = 6000  #: Characters of a unit's output that are kept
LEAST_SECS = 5.0  #: No unit that can go on later is begun with less time than this
MARGIN_SECS, MARGIN_SHARE = 6.0, 0.2  #: Of a unit's time, left to it for ending: the less of the two
ENDING_SECS = 4.0  #: Left at the end of a command for ending what runs then
MORE = 75
ENDED = ("done", "failed", "timed out")
LEFT = "to be gone on with"
MOST_BYTES = 16_000_000  #: Of the archive: what can be carried away from most machines


def main(here: Box) -> int:
    """The exit status: 0 every unit that could be run did well, 1 not all did, 2 the request was wrong."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=here.folder / "results")
    parser.add_argument("--archive", type=Path, help="all results in one file; default: OUT.tar.gz")
    parser.add_argument("--after", type=Path, metavar="ARCHIVE", help="go on from this one, where OUT is not there yet")
    parser.add_argument("--minutes", type=float, default=600.0, help="in all, with unpacking and packing")
    parser.add_argument("--call", type=int, nargs="+", help="only the units of these calls: 1, 2, 3, 4")
    parser.add_argument("--units", nargs="+", metavar="NAME", help="only these, * stands for anything")
    parser.add_argument("--list", action="store_true", help="say what there is to do, and how it went so far")
    given = parser.parse_args()
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if given.after is not None and not given.out.exists():
        go_on_from(given.after, given.out)
    every = units(here, given.device, given.out)
    report = earlier(given.out)
    try:
        wanted = chosen(every, given.units, given.call, report["units"])
    except ValueError as problem:
        parser.error(str(problem))
    if given.list:
        print("\n".join(listed(every, report["units"])))
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    here.unpack()
    environment = here.environment(given.out / "work")
    box.keep_awake()
    session = {
        "date": now(),
        "command": " ".join(["python run_all.py", *sys.argv[1:]]),
        "machine": box.machine(given.device),
        "manifest": here.manifest(),
        "setup_secs": round(time.monotonic() - begun, 1),
    }
    report["runs"].append(session)
    archive = given.archive or given.out.with_name(f"{given.out.name}.tar.gz")
    run = Run(here, report, given.out, archive, environment)
    if given.units is not None:  # whoever names a unit wants it, and has the time for it
        wanted = [dataclasses.replace(each, skip="") if each.forced else each for each in wanted]
    again = {each.name for each in wanted if given.units is not None or each.call not in (given.call or (each.call,))}
    run.all_of(wanted, begun + 60 * given.minutes, again=again)
    session["secs"] = round(time.monotonic() - begun, 1)
    run.keep(every)
    return run.told(every)


class Run:
    """One command's way through the units."""

    def __init__(
        self, here: Box, report: dict[str, Any], out: Path, archive: Path, environment: dict[str, str]
    ) -> None:
        self.here = here
        self.report, self.out, self.archive, self.environment = report, out, archive, environment
        self.entries: dict[str, dict[str, Any]] = {each["name"]: each for each in report["units"]}
        self.ran: list[str] = []
        self._pack_secs = 1.0

    def all_of(self, wanted: Sequence[Unit], end: float, *, again: Collection[str] = ()) -> None:
        """Each in its turn, until nothing is left or no time is; those of `again` from their beginning, however they
        ended before. What can go on goes to the end of its call, unless only the whole of it is worth anything."""
        for name in again:
            self.entries.pop(name, None)
        queue = [each for each in wanted if self.entries.get(each.name, {}).get("state") not in ENDED]
        while queue:
            unit = queue.pop(0)
            left = end - time.monotonic() - 2 * self._pack_secs - ENDING_SECS
            before = self.entries.get(unit.name, {})
            entry = one(self.here, unit, self.out, self.environment, left, before)
            if unit.name not in self.ran:
                self.ran.append(unit.name)
            if entry["state"] != "skipped" or before.get("state") in (None, "skipped"):
                self.entries[unit.name] = entry
            if entry["state"] == LEFT:
                place = (
                    0
                    if unit.whole
                    else max([number + 1 for number, each in enumerate(queue) if each.call == unit.call], default=0)
                )
                queue.insert(place, unit)
            if entry["state"] != "skipped":
                self.keep([*wanted, unit])

    def keep(self, every: Sequence[Unit]) -> None:
        """The report, and all results as one file."""
        begun = time.monotonic()
        order = {each.name: number for number, each in enumerate(every)}
        self.report["units"] = sorted(self.entries.values(), key=lambda each: order.get(each["name"], len(order)))
        save(self.report, self.out)
        snapshots(self.out)
        left_out = pack(self.out, self.archive)
        if left_out != self.report.get("left_out", []):
            self.report["left_out"] = left_out
            save(self.report, self.out)
            pack(self.out, self.archive)
        self._pack_secs = time.monotonic() - begun

    def told(self, every: Sequence[Unit]) -> int:
        """The last lines, and the exit status."""
        failed = [name for name in self.ran if self.entries[name]["state"] in ("failed", "timed out")]
        left = [
            each.name for each in every
            if not each.skip and self.entries.get(each.name, {}).get("state") not in ENDED
        ]  # fmt: skip
        print(f"{len(self.ran)} units; failed: {', '.join(failed) or 'none'}; left to do: {' '.join(left) or 'none'}")
        print(f"results in {self.archive} ({self.archive.stat().st_size / 1e6:.1f} MB)", flush=True)
        return 1 if failed else 0


def chosen(
    every: list[Unit], words: list[str] | None, calls: list[int] | None, before: Sequence[dict[str, Any]] = ()
) -> list[Unit]:
    """The units that are named, of the calls that are; before those of the second one, what of the first did not end
    well, once more. ValueError where there is none such."""
    found = [each for each in every if calls is None or each.call in calls]
    if before and calls is not None and SECOND in calls and FIRST not in calls and not words:
        ended = {each["name"]: each["state"] for each in before}
        again = [each for each in every if each.call == FIRST and ended.get(each.name) not in ("done", "skipped")]
        found = sorted(again, key=lambda each: ended.get(each.name) == "failed") + found
    if not found:
        raise ValueError(f"no call {calls}; there are {sorted({each.call for each in every})}")
    for word in words or ():
        if not fnmatch.filter([each.name for each in every], word):
            raise ValueError(f"no unit {word!r}; --list names them")
    return [each for each in found if not words or any(fnmatch.fnmatchcase(each.name, word) for word in words)]


def earlier(out: Path) -> dict[str, Any]:
    """What was done here before."""
    try:
        report: dict[str, Any] = json.loads((out / "run_all.json").read_text())
    except FileNotFoundError:
        report = {"runs": [], "units": []}
    return report


def save(report: dict[str, Any], out: Path) -> None:
    """All of it or none: a box may go away at any moment."""
    unfinished = out / "run_all.json.new"
    unfinished.write_text(json.dumps(report, indent=1) + "\n")
    unfinished.replace(out / "run_all.json")


def listed(every: list[Unit], entries: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each unit."""
    states = {each["name"]: f"{each['state']} {each.get('reason', '')}".rstrip() for each in entries}
    for unit in every:
        known = states.get(unit.name, f"can not be run: {unit.skip}" if unit.skip else "")
        goes = f" x {unit.goes}" if unit.goes > 1 else ""
        yield f"{unit.call} {unit.name:36} {unit.secs:3.0f} s{goes:4}  {unit.what}" + (f"  [{known}]" if known else "")


# --- one unit -------------------------------------------------------------------------------------------


def one(
    here: Box, unit: Unit, out: Path, environment: dict[str, str], left_secs: float, before: dict[str, Any]
) -> dict[str, Any]:
    """Run one unit; how it ended, as it goes into the report."""
    entry: dict[str, Any] = {"name": unit.name, "what": unit.what, "command": here.shown(unit.command), "begun": now()}
    lacking = [each for each in unit.needs if not box.there(each)]
    secs = min(unit.secs, left_secs)
    if unit.skip or lacking:
        entry |= {"state": "skipped", "reason": unit.skip or f"not installed: {', '.join(lacking)}"}
    elif secs < (min(LEAST_SECS, unit.secs) if unit.goes > 1 else unit.secs):
        entry |= {"state": "skipped", "reason": "no time left"}
    else:
        entry |= executed(here, unit, out, environment, secs)
        entry["goes"] = before.get("goes", 0) + 1
        entry["all_secs"] = round(before.get("all_secs", 0.0) + entry["secs"], 1)
        if entry["state"] == "timed out" and unit.goes > 1:
            entry["state"] = LEFT
        whole = secs == unit.secs  # of a session's last seconds nobody is to blame that they were not enough
        if entry["state"] == LEFT and entry["goes"] >= unit.goes and whole:
            entry |= {"state": "timed out", "reason": f"{unit.goes} times {unit.secs:.0f} s were not enough"}
    took = f" ({entry['secs']:.0f} s)" if "secs" in entry else ""
    print(f"{unit.name}: {entry['state']} {entry.get('reason', '')}".rstrip() + took, flush=True)
    return entry


def executed(here: Box, unit: Unit, out: Path, environment: dict[str, str], limit_secs: float) -> dict[str, Any]:
    begun = time.monotonic()
    log = out / f"{unit.name.replace(':', '-')}.log"
    printed = log.with_suffix(".out")
    own = max(1.0, limit_secs - min(MARGIN_SECS, MARGIN_SHARE * limit_secs))
    words = [each.replace("{secs}", f"{own:.1f}").replace("{minutes}", f"{own / 60:.3f}") for each in unit.command]
    # What can go on and does not know its time is told to end, and gets the rest for finishing what it is at.
    wait_secs = own if unit.goes > 1 and words == list(unit.command) else limit_secs
    with log.open("w") as errors, printed.open("w") as output:
        child = subprocess.Popen(
            words, cwd=here.source, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
        try:
            status: int | None = child.wait(wait_secs)
            state = "done" if status == 0 else LEFT if status == MORE else "failed"
        except subprocess.TimeoutExpired:
            status, state = None, "timed out"
        finally:  # also after Ctrl-C, which is not for its session
            end_all(child)
    text = printed.read_text(errors="replace")
    printed.unlink()
    result = out / unit.result if unit.result else None
    if result is not None and text.lstrip().startswith(("{", "[")):
        result.write_text(text)
    return {
        "state": state,
        "status": status,
        "secs": round(time.monotonic() - begun, 1),
        "result": unit.result or None,
        "output": text[-TAIL:],
        "errors": log.read_text(errors="replace")[-TAIL:],
    }


def end_all(child: subprocess.Popen[bytes]) -> None:
    """A unit, and every process that it began: none may keep the device from the next one. Kindly first; a device's
    worker ends with whoever began it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(5)


# --- what comes back ------------------------------------------------------------------------------------


def snapshots(out: Path) -> None:
    """The units' stores as they are at this moment, whoever has them open, beside the results."""
    folder = out / "stores"
    for path in sorted((out / "work").glob("*.sqlite")):
        folder.mkdir(exist_ok=True)
        copy = folder / f"{path.name}.new"
        copy.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(path)) as store, contextlib.closing(sqlite3.connect(copy)) as target:
            store.backup(target)
        copy.replace(folder / path.name)
        artifacts = path.with_suffix(".artifacts")
        if artifacts.is_dir():
            made_again = shutil.ignore_patterns("bundles", "work")
            shutil.copytree(artifacts, folder / artifacts.name, dirs_exist_ok=True, ignore=made_again)


def go_on_from(archive: Path, out: Path) -> None:
    """An earlier machine's results, and its stores where the units look for them."""
    unfinished = out.with_name(f"{out.name}.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    with tarfile.open(archive) as packed:
        packed.extractall(unfinished, filter="data")
    (inside,) = unfinished.iterdir()
    (inside / "work").mkdir()
    for each in (inside / "stores").glob("*"):
        copy = shutil.copytree if each.is_dir() else shutil.copyfile
        copy(each, inside / "work" / each.name)
    inside.replace(out)
    unfinished.rmdir()


def pack(out: Path, archive: Path) -> list[str]:
    """All results as one file; the units' folder of work is none. What made it too large is left out, stores first, and
    named."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_suffix(".new")
    found = sorted(each for each in out.rglob("*") if each.is_file() and "work" not in each.relative_to(out).parts[:1])
    large = sorted(found, key=lambda each: (each.suffix == ".sqlite", each.stat().st_size))
    left_out: list[Path] = []
    while True:
        with tarfile.open(unfinished, "w:gz", compresslevel=1) as packed:
            for each in found:
                if each not in left_out:
                    packed.add(each, arcname=f"{out.name}/{each.relative_to(out)}")
        if unfinished.stat().st_size <= MOST_BYTES or not large:
            break
        left_out.append(large.pop())
    unfinished.replace(archive)
    return [str(each.relative_to(out)) for each in left_out]


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
