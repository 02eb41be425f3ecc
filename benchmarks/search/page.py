"""docs/results-search.md from benchmarks/results/cpu/search.json: how near to the optimum the search comes."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks import runs
from benchmarks.pages import DOCS, table
from benchmarks.runs import RESULTS
from benchmarks.search import cost, tables

KEPT = RESULTS / "cpu" / "search.json"
PAGE = DOCS / "results-search.md"
AT = ("25", "50", "100")
COMMAND = "python -m benchmarks.search PACK..."
WORDS = {
    "gp": "fusiond (`gp`)",
    "gp:donors": "fusiond, knowing other devices",
    "tpe": "fusiond before (`tpe`)",
    "random": "random",
    "optuna:tpe": "Optuna TPE (multivariate, group)",
}
NEVER = 10**9


def keep(found: Sequence[Mapping[str, Any]], ahead: int, trials: int, *, held_out: bool = False) -> None:
    """Beside what is kept; in place of what was found before for the same samplers, spaces and asks ahead."""
    rows = [{**each, "ahead": ahead, "trials": trials} | ({"held_out": True} if held_out else {}) for each in found]
    known = {(each["sampler"], each["pack"], ahead) for each in rows}
    old = [each for each in kept().get("found", ()) if (each["sampler"], each["pack"], each["ahead"]) not in known]
    run = runs.new("search", "", COMMAND, "replayed", {})
    runs.write(KEPT, {**kept(), **run, "found": [*old, *rows]})


def keep_costs(found: Sequence[Mapping[str, Any]]) -> None:
    """In place of those that were kept."""
    run = kept() or runs.new("search", "", COMMAND, "replayed", {})
    runs.write(KEPT, run | {"costs": list(found)})


def keep_scores(found: Sequence[Mapping[str, Any]]) -> None:
    """In place of those of the same samplers and spaces."""
    run = kept() or runs.new("search", "", COMMAND, "replayed", {})
    known = {(each["sampler"], each["pack"]) for each in found}
    old = [each for each in run.get("scores", ()) if (each["sampler"], each["pack"]) not in known]
    runs.write(KEPT, run | {"scores": [*old, *found]})


def keep_constants(rows: Sequence[Sequence[str]]) -> None:
    """In place of those that were kept."""
    runs.write(KEPT, kept() | {"constants": list(rows)})


def constants(rows: Sequence[Sequence[str]]) -> str:
    """What each value of a constant comes to (`benchmarks.search.constants`)."""
    return table(("set", "95 % by 100", "trials more than as kept"), rows)


def kept() -> dict[str, Any]:
    """The document, empty where nothing is kept."""
    found: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else {}
    return found


def render(run: Mapping[str, Any]) -> str:
    """The page."""
    everything = run.get("found", ())
    found = [each for each in everything if not each.get("held_out")]
    parts = ["# How good the search is\n", HEAD]
    if not found:
        return "\n".join([*parts, f"Not measured yet: `{COMMAND} --keep`.\n"])
    for ahead, rows in _by_ahead(found):
        parts += [f"## {ahead}\n", _summary(rows)]
    if held_out := [each for each in everything if each.get("held_out")]:
        parts += ["## Spaces that nothing was chosen on\n", HELD_OUT]
        for ahead, rows in _by_ahead(held_out):
            parts += [f"{ahead}:\n", _summary(rows)]
        parts += [PAIRED, _paired([each for each in held_out if each["ahead"] == 1])]
    if tried := run.get("constants"):
        parts += ["## Constants chosen in other spaces\n", CONSTANTS, constants(tried)]
    alone = [each for each in found if each["ahead"] == 1]
    parts += ["## Beside each other, seed by seed\n", PAIRED, _paired(alone)]
    parts += ["## Space by space\n", _spaces(alone)]
    if scores := run.get("scores"):
        named = [{**each, "sampler": _word(each["sampler"])} for each in scores]
        trials = " or ".join(str(each) for each in sorted({each["trials"] for each in scores}))
        parts += ["## In seconds, as the community scores it\n", SCORES.format(trials=trials), tables.scores(named)]
    parts += ["## Choosing among the finalists\n", FINALS]
    if costs := run.get("costs"):
        parts += ["## What an ask costs\n", COSTS, cost.render(costs)]
    machine = run["machine"]
    parts.append(
        f"`{run['command']} --keep`, {run['date'][:10]}, Python {machine['python']}, {machine['processor']}.\n"
    )
    return "\n".join(parts)


def _by_ahead(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """The runs with as many asks out at once, and how that is called."""
    for ahead in sorted({each["ahead"] for each in rows}):
        name = "One ask at a time" if ahead == 1 else f"{ahead} asks out at once"
        yield name, [each for each in rows if each["ahead"] == ahead]


def _summary(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ("sampler (runs, spaces)", *(f"@{each}" for each in AT), "95 % by 50", "by 100", "median trials to 95 %")
    by_sampler = sorted(_by(rows, "sampler").items(), key=lambda each: not each[0].startswith("gp"))
    return table(head, [_row(name, mine) for name, mine in by_sampler])


def _row(name: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    needed = [each["trials_to_95"] or NEVER for each in rows]
    median = statistics.median(needed)
    spaces = len({each["pack"] for each in rows})
    return [
        f"{_word(name)} ({len(rows)}, {spaces})",
        *(f"{_mean(rows, each):.3f}" for each in AT),
        *(f"{sum(each <= most for each in needed) / len(rows):.0%}" for most in (50, 100)),
        f"{median:.0f}" if median < NEVER else f">{max(each['trials'] for each in rows)}",
    ]


def _paired(rows: Sequence[Mapping[str, Any]]) -> str:
    """Mean differences to `gp` over (space, seed) that both have, with twice their standard error."""
    own = {(each["pack"], each["seed"]): each for each in rows if each["sampler"] == "gp"}
    lines = []
    for name, mine in _by(rows, "sampler").items():
        both = [(own[each["pack"], each["seed"]], each) for each in mine if (each["pack"], each["seed"]) in own]
        if name in ("gp", "gp:donors") or len(both) < 2:
            continue
        cells = []
        for at in AT:
            by_space: dict[str, list[float]] = {}
            for one, other in both:
                by_space.setdefault(one["pack"], []).append(one["share"][at] - other["share"][at])
            means = [statistics.mean(each) for each in by_space.values()]
            error = statistics.stdev(means) / len(means) ** 0.5 if len(means) > 1 else 0.0
            cells.append(f"{statistics.mean(means):+.3f} ± {2 * error:.3f}")
        lines.append([f"{_word(name)} ({len(both)})", *cells])
    return table(("fusiond minus", *(f"@{each}" for each in AT)), lines)


def _spaces(rows: Sequence[Mapping[str, Any]]) -> str:
    samplers = list(_by(rows, "sampler"))
    lines = []
    for pack, mine in _by(rows, "pack").items():
        by_sampler = _by(mine, "sampler")
        cells = [
            f"{_mean(by_sampler[each], '50'):.2f}, {_mean(by_sampler[each], '100'):.3f}" if each in by_sampler else ""
            for each in samplers
        ]
        lines.append([pack, *cells])
    return table(("space: @50, @100", *(_word(each) for each in samplers)), lines)


def _by(rows: Iterable[Mapping[str, Any]], key: str) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for each in rows:
        found.setdefault(each[key], []).append(each)
    return found


def _mean(rows: Sequence[Mapping[str, Any]], at: str) -> float:
    return statistics.mean(each["share"][at] for each in rows)


def _word(name: str) -> str:
    return WORDS.get(name, f"Kernel Tuner {name.partition(':')[2]}" if name.startswith("kt:") else name)


def _said(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 120, break_on_hyphens=False, break_long_words=False) + "\n"


HEAD = _said(
    """Spaces of real GPU measurements, replayed: every config was measured once, by others (the AutoTuningAssociation's
    benchmark hub, MIT), and a search that asks for it is told its recorded samples. A *share* is the optimum's time
    divided by that of the answer after so many trials. The search is told the median of five samples behind three
    warm-ups; its answer is the best of its three best by the median of all samples, as after fusiond's finals. A failed
    config costs a trial. fusiond's study is driven as the tuner drives it; Kernel Tuner runs in its own simulation mode
    on the same times, one config at a time. The sampler's constants were chosen on these ten spaces; on those below,
    which nothing was chosen on, it comes out about equal. Written by `python -m benchmarks.search --page`."""
)
PAIRED = _said(
    """The mean over spaces of the difference in share, for the same seeds, with twice its standard error."""
)
COSTS = _said(
    """Of fusiond's own sampler, in milliseconds of processor time on a shared machine; the wall's beside it.
    `python -m benchmarks.search --cost --keep`."""
)
SCORES = _said(
    """How far above the expectation of random choice the best time so far is, over the recorded seconds in which that
    expectation goes from 1 to 95 % of the way from the median to the optimum: 1 is the optimum throughout, 0 is random
    choice (package `autotuning_methodology`; the curve is the mean over seeds, told times). Searches end after {trials}
    trials, and a failed config costs its seconds. Five searches at random are not their expectation: they come out
    above 0 in some spaces and below in others, and some of them end before the range does. `--score --trials 300`."""
)
FINALS = _said(
    """Three finalists that are measured afresh lose 0.028 % on the mean (0.13 % in the worst of 20 searches) to the
    best that was tried, on resampled raw samples of the ten. Racing six or nine of them at equal cost loses 0.031 and
    0.032 %: it does not pay, so it is not done. `python -m benchmarks.search.finals PACK...`."""
)
CONSTANTS = _said(
    """The ten and the 23 above, five seeds: each value alone, beside the constants as they are kept (which were chosen
    on the ten), with the mean over spaces of the difference in trials to 95 % and twice its standard error; a search
    that misses it by 100 counts as 200. In the last row each space has every constant at the value that was best, by
    these trials, in the other 32 spaces (in 32 of the 33 `EVEN=0.6`, in all `FAILURE_SHARPNESS=2.0`, in five more
    besides). With five more seeds the same choices reach 95 % in 148 of 165, 90 %, and as kept in 150: 290 and 299
    of 330 in all, 88 and 91 %. No value is better than what is kept by more than its error, so none is taken.
    `python -m benchmarks.search.constants FOUND 5 PACK... --keep`."""
)
HELD_OUT = _said(
    """Other kernels and devices, in public repositories: the hub's own (convolutions, dedispersion, pnpoly), those of
    the first paper on Kernel Tuner, of its visualization and dashboard, and of a paper on constructing spaces
    (hotspot, expdist, GEMM; some are the union of several incomplete runs). They were read for trying and are not
    part of fusiond. Eight are of kernels that are among the ten, on other devices. Six other settings of the sampler
    were tried on most of them (a third model, with lengths that are not fitted; that model only where the search
    stalls; a best that is inflated; a tighter prior of the lengths; a higher median of the noise; half of the values
    clipped); none differed beyond chance, and none was taken. Fits that grow apart, and moves next to the best where
    a search stalls, were looked at here, too; neither differs beyond chance. On 45 spaces (the ten, these and twelve
    more of the hub's older files) 410 of 450 searches with ten seeds reach 95 % by 100 trials, 91 %; in the ten and
    these 299 of 330 (150 of 165 with the last five seeds). Of the 40 that miss it, 33 are in five spaces of which
    0.02 to 0.22 % are that good: a convolution with streams and one on an MI50 (ten each), one on a W6600 and pnpoly
    on a Titan (five each), and a convolution on an A100 (three). Tried on the 45, ten seeds each: a feature of
    equality for parameters of up to eight values (405 of 450; it finds 17 that were missed, and misses 22 that were
    found) or of up to four (400); whole numbers from 0 on as labels (410); both models at each ask, as a mixture
    (409). Five seeds each: the sum of the improvements that both expect (201 of 225 instead of 203). On 41 of them,
    moves along each parameter in turn instead of the most promising one find three searches more and lose three.
    None is better, so none is taken. With 3 % of multiplicative noise on what is told (one factor a config), 450
    searches of the 45 spaces lose 0.005 +- 0.004 of the share at 100 trials to those without (the mean over spaces,
    with twice its standard error), and 403 instead of 410 reach 95 %. `--keep --held-out`."""
)
