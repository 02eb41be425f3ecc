"""Rows of rivals: every rival of a strategy has one, with a measurement or with the reason why there is none."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import benches
from benchmarks.rivals.base import About, Rival
from fusiond.model.program import Program
from fusiond.model.system import children
from fusiond.tuning.measuring import Measurer

Row = dict[str, Any]
"""`name`, `what`, and either `problem` or what `benchmarks.rivals.child.measured` says: `ratio` (how many times as long
as ours it takes), `time_us`, `ours_us`, `clock`, `difference`, `samples`; `portion` where not
all rivals are timed on the same portion of the work."""

STRATEGIES = ("hfuse", "mincut")
TIMEOUT_SECS = 240.0
NO_GPU = "rivals are measured on a GPU"


def of(strategy: str) -> tuple[Rival, ...]:
    """The rivals of a strategy, all of them."""
    found: tuple[Rival, ...] = importlib.import_module(f"benchmarks.rivals.{strategy}").RIVALS
    return found


def named(text: str) -> Rival:
    """STRATEGY:NAME. LookupError when there is no such rival."""
    strategy, _, name = text.partition(":")
    for rival in of(strategy) if strategy in STRATEGIES else ():
        if rival.name == name:
            return rival
    raise LookupError(f"there is no rival {text!r}")


def rows(
    bench: benches.Bench,
    measurer: Measurer,
    strategy: str,
    ours: Program | None,
    about: About,
    *,
    programs: Mapping[str, Program] | None = None,
) -> list[Row]:
    """A row for each rival of a strategy beside `ours` (None: there is no answer to be beside). `programs`: those that
    rivals run, by the names under which they ask for their bundles."""
    bundle = None if bench.emulated or ours is None else measurer.bundle_now(ours)
    if not isinstance(bundle, Path):
        why = "there is nothing of ours to stand beside" if bundle is None else f"ours: {benches.problem(bundle)}"
        return without(strategy, NO_GPU if bench.emulated else why)
    made = {name: measurer.bundle_now(program) for name, program in (programs or {}).items()}
    bundles = {name: str(path) for name, path in made.items() if isinstance(path, Path)}
    rows = []
    for rival in of(strategy):
        command = [
            sys.executable, "-m", "benchmarks.rivals.child", str(bundle), "--rival", f"{strategy}:{rival.name}",
            "--device", bench.device.name, "--about", json.dumps({**about, "bundles": bundles}),
        ]  # fmt: skip
        rows.append(row(rival, command))
        bench.say(f"  {rival.name}: {said(rows[-1])}")
    return rows


def without(strategy: str, why: str) -> list[Row]:
    """All rivals of a strategy, none of them measured."""
    return [{"name": rival.name, "what": rival.what, "problem": why} for rival in of(strategy)]


def row(rival: Rival, command: Sequence[str], timeout_secs: float = TIMEOUT_SECS) -> Row:
    """What the child process for a rival says. Raises nothing: what goes wrong is the reason."""
    found: Row = {"name": rival.name, "what": rival.what}
    if missing := rival.missing():
        return found | {"problem": missing}
    return found | answer(command, timeout_secs)


def answer(command: Sequence[str], timeout_secs: float) -> Row:
    """The JSON document in the last line that a command prints, or a `problem`."""
    try:
        done = children.run(command, timeout_secs=timeout_secs)
    except subprocess.TimeoutExpired:
        return {"problem": f"did not end within {timeout_secs:g} s"}
    except OSError as problem:
        return {"problem": f"cannot be started: {problem}"}
    lines = done.stdout.splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    told = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return {"problem": f"{ended(done.returncode)}: {told}"[:300]}


def ended(status: int) -> str:
    """A child's end in words; a shell gives 128 and more for a signal."""
    number = -status if status < 0 else status - 128
    try:
        return f"ended by {signal.Signals(number).name}" if number > 0 else f"ended with status {status}"
    except ValueError:
        return f"ended with status {status}"


def said(found: Row) -> str:
    return str(found.get("problem") or f"{found['time_us']:.2f} us, {found['ratio']:.3f} times ours ({found['clock']})")


def best(found: Sequence[Row]) -> Row | None:
    """The fastest rival that was measured."""
    return min((each for each in found if each.get("ratio")), key=lambda each: float(each["ratio"]), default=None)


def cell(found: Sequence[Row] | None) -> str:
    """For a table: how much faster ours is than the best rival, and which one that is."""
    if found is None:
        return "not yet measured on a GPU"
    fastest = best(found)
    if fastest is None:
        return "no rival could be measured"
    mark = ", wall clock" if fastest.get("clock") == "wall" else ""
    mark += f", {fastest['portion']}" if "portion" in fastest else ""
    return f"{fastest['ratio']:.2f} ({fastest['name']}{mark})"


def told_absent(tables: Iterable[tuple[str, Sequence[Row] | None]]) -> str:
    """A list of the rivals without a figure, for a page: each reason once, with the works it is about. `tables`: (name
    of the work, its rivals). Empty when there is none."""
    about: dict[tuple[str, str], list[str]] = {}
    for name, found in tables:
        for each in found or ():
            if "problem" in each:
                about.setdefault((each["name"], each["problem"]), []).append(name)
    lines = [f"- {rival} ({', '.join(names)}): {why}" for (rival, why), names in about.items()]
    return "\n".join(["Rivals without a figure:", "", *lines, ""]) if lines else ""
