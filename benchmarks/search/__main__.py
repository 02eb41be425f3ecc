"""How near to the optimum a search comes on recorded spaces: `python -m benchmarks.search PACK...`.

    python -m benchmarks.search PACK... --trials 100 --seeds 5 --json      a line of JSON for each search
    python -m benchmarks.search PACK... --ahead 16                         so many asks are out at once
    python -m benchmarks.search PACK... --sampler gp tpe random            several samplers beside each other
    python -m benchmarks.search PACK... --keep                             keep what is found for the page
    python -m benchmarks.search PACK... --score                            the community's score, in recorded seconds
    python -m benchmarks.search --cost [--keep]                            what an ask and its tell cost
    python -m benchmarks.search --page                                     docs/results-search.md from what is kept

A share is the optimum's time divided by that of the incumbent; `random` is drawn without replacement. The study is
fusiond's own, driven as the tuner drives it. Without --json: a table.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import commands
from benchmarks.search import community, cost, page, samplers, tables
from benchmarks.search.drive import Curve, Recorded, curve
from fusiond.errors import RequestError
from fusiond.model import Config
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
    parser.add_argument("--keep", action="store_true", help="write what is found to benchmarks/results/cpu/search.json")
    parser.add_argument("--held-out", action="store_true", help="keep them as spaces that nothing was chosen on")
    parser.add_argument("--score", action="store_true", help="the community's score of each sampler")
    parser.add_argument("--cost", action="store_true", help="time asks and tells on spaces of known sizes")
    parser.add_argument("--page", action="store_true", help="write docs/results-search.md")
    given = parser.parse_args(argv)

    def do() -> None:
        if given.page:
            page.PAGE.write_text(page.render(page.kept()), encoding="utf-8")
            return
        if given.cost:
            costs = [cost.measure(each) for each in cost.CASES.values()]
            if given.keep:
                page.keep_costs(costs)
            print(json.dumps(costs) if given.json else cost.render(costs))
            return
        if not given.packs:
            raise RequestError("name at least one recorded space", where="PACK")
        for option in ("trials", "seeds", "ahead"):
            if getattr(given, option) < 1:
                raise RequestError(f"is {getattr(given, option)}; it must be at least 1", where=f"--{option}")
        found = []
        tried: dict[tuple[str, str], list[Sequence[Config]]] = {}
        spaces = [Recorded(t4.read(path)) for path in given.packs]
        for name, seed, sampler, configs, each in _searches(given, spaces):
            found.append((name, seed, sampler, each))
            tried.setdefault((name, sampler), []).append(configs)
            if given.json and not given.score:
                print(json.dumps(each.document(name, seed, sampler)), flush=True)
        if given.keep and not given.score:
            page.keep(
                [each.document(*names) for *names, each in found], given.ahead, given.trials, held_out=given.held_out
            )
        if given.score:
            _score(given, spaces, tried)
            return
        if not given.json:
            print(tables.render(found, spaces))

    return commands.status(do)


def _score(
    given: argparse.Namespace,
    spaces: Sequence[Recorded],
    tried: Mapping[tuple[str, str], Sequence[Sequence[Config]]],
) -> None:
    recorded = {_name(path): each for path, each in zip(given.packs, spaces, strict=True)}
    scores = [
        {
            "pack": pack,
            "sampler": sampler,
            "runs": len(searches),
            "trials": given.trials,
            "score": round(community.score(recorded[pack], searches), 4),
        }
        for (pack, sampler), searches in tried.items()
    ]
    if given.keep:
        page.keep_scores(scores)
    print(json.dumps(scores) if given.json else tables.scores(scores))


def _name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def _searches(
    given: argparse.Namespace, spaces: Sequence[Recorded]
) -> Iterator[tuple[str, int, str, Sequence[Config], Curve]]:
    chosen = {name: samplers.named(name, spaces) for name in given.sampler}
    for path, recorded in zip(given.packs, spaces, strict=True):
        name = _name(path)
        for sampler, search in chosen.items():
            for seed in range(given.first_seed, given.first_seed + given.seeds):
                tried = search(recorded, seed, given.trials, given.ahead)
                if not tried:
                    break
                yield name, seed, sampler, tried, curve(recorded, tried, given.trials)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
