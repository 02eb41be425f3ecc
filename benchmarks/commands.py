"""What the commands of the strategies' benchmarks have in common: options, devices, folders, mistakes in one line."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import runs
from benchmarks.runs import RESULTS, Run, slug
from fusiond.devices.base import DeviceProvider
from fusiond.model.errors import FusiondError, RequestError
from fusiond.model.nouns import DeviceInfo
from fusiond.requests.planning import choose_device
from fusiond.requests.registry import Registry


def parser(benchmark: str, about: str | None, *, quick: str) -> argparse.ArgumentParser:
    """--device, --quick, --out and --page. `about` is the command's docstring, `quick` the help of --quick."""
    made = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{benchmark}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--device", default="auto", help="cuda:0, cpu; default: this machine's GPU")
    made.add_argument("--quick", action="store_true", help=f"{quick}: to see that it works")
    made.add_argument("--out", type=Path, metavar="DIR", help="where JSON goes; default: benchmarks/results")
    made.add_argument(
        "--go-on", action="store_true", help="write into the last run of this device in --out; what it has stays"
    )
    made.add_argument("--page", action="store_true", help=f"write docs/results-{benchmark}.md, and nothing else")
    return made


def only(made: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Adds --only, of these names."""
    made.add_argument("--only", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(names)}")


def check_only(given: argparse.Namespace, names: Sequence[str], what: str) -> None:
    """RequestError for a name after --only that is none of these."""
    unknown = sorted(set(given.only) - set(names))
    if unknown:
        raise RequestError(f"unknown {what} {unknown[0]!r}; there are {', '.join(names)}")


def page(path: Path, text: str, kept: Iterable[Run]) -> None:
    """Write a page, and say what it does not show."""
    path.write_text(text, encoding="utf-8")
    say(f"wrote docs/{path.name}")
    for run in kept:
        if not run.get("vouched", True):
            model = run["device"].get("model")
            say(f"not shown: {run['date']}, {model}: no `python -m benchmarks.agreement` there says that rulers agree")


def said(made: argparse.ArgumentParser, given: argparse.Namespace, options: Iterable[str]) -> str:
    """The command as it is kept: those of the options that were given. What names a folder of this machine is not to
    be among them."""
    words = [made.prog]
    for name in options:
        value = getattr(given, name.replace("-", "_"))
        if value != made.get_default(name.replace("-", "_")):
            words.append(f"--{name}")
            if not isinstance(value, bool):
                words += map(str, value) if isinstance(value, list) else [str(value)]
    return " ".join(words)


def status(do: Callable[[], None]) -> int:
    """The exit status: 0 done, 2 the request was wrong, which is told in one line."""
    try:
        do()
    except (FusiondError, ValueError) as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The device that was asked for, and the folder for what is found on it."""

    registry: Registry
    provider: DeviceProvider
    device: DeviceInfo
    folder: Path

    @property
    def emulated(self) -> bool:
        return self.device.evidence != "measured"

    def described(self) -> dict[str, object]:
        return runs.described(self.device)


def begun(folder: Path, given: argparse.Namespace, run: Run) -> tuple[Run, Path]:
    """The run, or the last one like it in this folder with --go-on, and where it is kept."""
    if given.go_on:
        for earlier in sorted(folder.glob(f"{run['benchmark']}*.json"), reverse=True):
            known: Run = json.loads(earlier.read_text(encoding="utf-8"))
            if all(known[each] == run[each] for each in ("evidence", "device", "driver", "fusiond")):
                known.setdefault("gone_on", []).append({"date": run["date"], "command": run["command"]})
                return {**run, **known}, earlier
    return run, runs.path(folder, run)


def put(rows: list[dict[str, Any]], new: dict[str, Any], *keys: str) -> None:
    """A row into a table, in the place of the one that is about the same."""
    same = [number for number, each in enumerate(rows) if all(each[key] == new[key] for key in keys)]
    if same:
        rows[same[0]] = new
    else:
        rows.append(new)


def place(benchmark: str, given: argparse.Namespace, *, without: str, small: str = "") -> Place:
    """RequestError where no GPU is and none but it was asked for (`without`: the options that need none; `small`:
    what else --quick makes small), and for emulated times among the results."""
    registry = Registry.load()
    provider, device = choose_device(registry, given.device)
    emulated = device.evidence != "measured"
    if emulated and given.device == "auto":
        raise RequestError(
            f"no GPU is here. What is known without one: {without}. To try the benchmark out with {small}emulated "
            "times, which are not results: --device cpu --quick"
        )
    usual = Path(tempfile.gettempdir()) / f"fusiond-{benchmark}-emulated" if emulated else RESULTS / slug(device.model)
    folder = given.out or usual
    if emulated and folder.resolve().is_relative_to(RESULTS.resolve()):
        raise RequestError("emulated times are not results: name a folder outside benchmarks/results", where="--out")
    return Place(registry=registry, provider=provider, device=device, folder=folder)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
