"""What choosing the sampler's constants is worth in spaces that they were not chosen on.

    python -m benchmarks.search.constants FOUND SEEDS PACK... [--keep]

Each value of TRIED is tried alone, beside the kept ones. Then each space is searched with every constant at the value
that was best in the *other* spaces (leave one out): fewest trials to 95 % of the optimum on the average, a search that
misses it by TRIALS counting as 2 * TRIALS. FOUND gets a line of JSON for each search, and none that is there is run
again: an interrupted run goes on, and spaces, seeds and values can be added later.
"""

from __future__ import annotations

import importlib
import json
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.search import page, samplers
from benchmarks.search.drive import Recorded, curve
from fusiond_replay import t4

TRIALS = 100
TRIED = """
    features.EVEN=0.6 features.MOST_TWOS=4 gaussian.LENGTH=0.5,1.0 gaussian.LENGTH_SPREAD=1.0,2.0
    gaussian.NOISE=0.0001,0.01 gaussian.SIGNAL_WEIGHT=0.5,6.0 models.GROWTH=1.1,1.35
    safety.FAILURE_SHARPNESS=2.0,8.0 sampler.MOVES=3 sampler.STALL=20,1000 sampler.START=6,16 values.CLIPPED=0.15,0.5
"""
"""Of the modules of fusiond.search."""


def main(path: Path, seeds: int, packs: Sequence[Path]) -> list[list[str]]:
    """A row for each value: how many searches reach 95 %, and its trials beside those of what is kept."""
    spaces = {each.name.split(".")[0]: Recorded(t4.read(each)) for each in packs}
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    known = {(each["set"], each["pack"], each["seed"]): each["near"] for each in map(json.loads, lines)}

    def costs(setting: str, pack: str) -> list[int]:
        for seed in range(seeds):
            if (setting, pack, seed) not in known:
                with path.open("a", encoding="utf-8") as log:
                    near = known[setting, pack, seed] = _searched(setting, spaces[pack], seed)
                    log.write(json.dumps({"set": setting, "pack": pack, "seed": seed, "near": near}) + "\n")
        return [known[setting, pack, seed] or 2 * TRIALS for seed in range(seeds)]

    def best(values: Sequence[str], without: str) -> str:
        return min(values, key=lambda each: sum(sum(costs(each, pack)) for pack in spaces if pack != without))

    constants = [each.split("=") for each in TRIED.split()]
    each_alone = [["", *(f"{name}={value}" for value in values.split(","))] for name, values in constants]
    rows = {each: [costs(each, pack) for pack in spaces] for values in each_alone for each in values}
    chosen = {pack: ",".join(filter(None, (best(values, pack) for values in each_alone))) for pack in spaces}
    rows["chosen in the other spaces"] = [costs(setting, pack) for pack, setting in chosen.items()]
    print("\n".join(f"{pack}: {setting or 'as kept'}" for pack, setting in chosen.items()))
    return [_row(*each, rows[""]) for each in rows.items()]


def _searched(setting: str, space: Recorded, seed: int) -> int | None:
    """Trials to 95 % with these constants."""
    kept = []
    for home, name, value in (re.split("[.=]", each, maxsplit=2) for each in setting.split(",") if each):
        module = importlib.import_module(f"fusiond.search.{home}")
        kept.append((module, name, getattr(module, name)))
        setattr(module, name, json.loads(value))
    try:
        return curve(space, samplers.own("gp", space, seed, TRIALS, 1), TRIALS).trials_to_near
    finally:
        for each in kept:
            setattr(*each)


def _row(name: str, mine: Sequence[Sequence[int]], kept: Sequence[Sequence[int]]) -> list[str]:
    reach = statistics.mean(cost <= TRIALS for space in mine for cost in space)
    apart = [statistics.mean(one) - statistics.mean(other) for one, other in zip(mine, kept, strict=True)]
    error = 2 * statistics.stdev(apart) / len(apart) ** 0.5
    return [name or "as kept", f"{reach:.1%}", f"{statistics.mean(apart):+.1f} ± {error:.1f}"]


if __name__ == "__main__":
    given = [each for each in sys.argv[1:] if each != "--keep"]
    if len(given) < 3:
        sys.exit("usage: python -m benchmarks.search.constants FOUND SEEDS PACK... [--keep]")
    found = main(Path(given[0]), int(given[1]), [Path(each) for each in given[2:]])
    print(page.constants(found))
    if "--keep" in sys.argv:
        page.keep_constants(found)
