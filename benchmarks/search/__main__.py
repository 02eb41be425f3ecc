"""How near to the optimum a search comes on recorded spaces: `python -m benchmarks.search PACK...`.

    python -m benchmarks.search PACK... --trials 100 --seeds 5 --json      a line of JSON for each search
    python -m benchmarks.search PACK... --ahead 16                         so many asks are out at once
    python -m benchmarks.search PACK... --sampler gp random optuna:tpe     several samplers beside each other

A share is the optimum's time divided by that of the incumbent; `random` is drawn without replacement. The study is
fusiond's own, driven as the tuner drives it. Without --json: a table.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import commands
from benchmarks.search import samplers, tables
from benchmarks.search.drive import Recorded, curve
from fusiond.model.errors import RequestError
from fusiond_replay import t4


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 done, 2 the request was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__, add_help=True)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("packs", nargs="*", type=Path, metavar="PACK", help="a recorded space")
    parser.add_argument("--trials", type=int, default=100, help="of each search (100)")
    parser.add_argument("--seeds", type=int, default=5, help="searches of each pack and sampler (5)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--ahead", type=int, default=1, help="asks that are out at once (1)")
    parser.add_argument("--sampler", nargs="+", default=["gp"], metavar="NAME", help=", ".join(samplers.NAMES))
    parser.add_argument("--json", action="store_true", help="a line of JSON for each search")
    given = parser.parse_args(argv)

    def do() -> None:
        if not given.packs:
            raise RequestError("name at least one recorded space", where="PACK")
        for option in ("trials", "seeds", "ahead"):
            if getattr(given, option) < 1:
                raise RequestError(f"is {getattr(given, option)}; it must be at least 1", where=f"--{option}")
        found = []
        spaces = [Recorded(t4.read(path)) for path in given.packs]
        for name, seed, sampler, each in _searches(given, spaces):
            found.append((name, seed, sampler, each))
            if given.json:
                print(json.dumps(each.document(name, seed, sampler)), flush=True)
        if not given.json:
            print(tables.render(found, spaces))

    return commands.status(do)


def _name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def _searches(given: argparse.Namespace, spaces: Sequence[Recorded]) -> Iterator[tables.Found]:
    chosen = {name: samplers.named(name, spaces) for name in given.sampler}
    for path, recorded in zip(given.packs, spaces, strict=True):
        name = _name(path)
        for sampler, search in chosen.items():
            for seed in range(given.first_seed, given.first_seed + given.seeds):
                tried = search(recorded, seed, given.trials, given.ahead)
                if not tried:
                    break
                yield name, seed, sampler, curve(recorded, tried, given.trials)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
