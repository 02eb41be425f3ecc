"""docs/results-ptx.md out of the JSON file that is kept: nothing on it is typed by hand."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from benchmarks.foreign.fusing import BLOCKS, MORE, MOST, Row
from benchmarks.pages import DOCS, table
from benchmarks.runs import Run, newest

FINE = ("equal", "close", "varies")
"""Results that a pair may have."""
LONG = 5000
"""Lines of PTX of a pair from which on the time to write it is shown."""
PAGE = DOCS / "results-ptx.md"

HEAD = f"""\
# Fusion of PTX: results

Written by `python -m benchmarks.foreign --page` from the JSON file in benchmarks/results; do not edit it. Kernels of
other people's programs: nvcc compiles each program as it stands, a stand-in for libcudart runs its host code without a
GPU and keeps one launch, drawn at random, with what the host has put into memory before it; kernels before it are not
carried out. hfuse gets the PTX of the program and that launch, and nothing else. Registers and spills are ptxas's, of
the launches as they were. Both forms of a pair run in the PTX interpreter, on grids of at most {BLOCKS} blocks, fewer
where a launch takes more than {MOST:,} instructions of warps; all memory is compared bit for bit. A sum of floats by
atomic operations is made in another order when fused: such memory is compared with a tolerance and counted apart. So is
memory that a kernel fills otherwise when its own blocks begin in the reverse order (the last writer wins), or from a
clock.
Nothing here was measured on a GPU.
"""


def render(found: Iterable[Run]) -> str:
    return "\n".join([HEAD, *(part for run in newest(found, "static") for part in _run(run))])


def _run(run: Run) -> list[str]:
    parts = [f"`{run['command']}`, {run['date'][:10]}, nvcc {run['nvcc']}, seed {run['seed']}.\n"]
    if run["drawn"]:
        parts.append(_drawn(run["drawn"]))
    parts.append(_figures(run))
    parts.append(_overhead(run.get("overhead", ())))
    parts.append(_rules("Kernels that are no members", run["members"], "member"))
    parts.append(_unended(run["members"]))
    pairs = run.get("pairs", [])
    return [*parts, _rules("Pairs that do not fuse", pairs, "fused"), _results(pairs)]


def _drawn(drawn: Row) -> str:
    rows = [[each["name"], each["commit"][:10], *(str(each[key]) for key in ("programs", "kernels"))]
            for each in drawn["repositories"]]  # fmt: skip
    said = (
        f"{drawn['smaller']} of the programs ran with smaller numbers than their Makefile's, halved until a launch "
        "reached at most 64 MiB.\n\nPrograms that gave none:\n"
    )
    where = _listed("Where they are from", ("repository", "commit", "programs tried", "kernels"), rows)
    fell = table(("why", "programs"), [[reason, str(number)] for reason, number in drawn["fell"].items()])
    return f"{where}\n{said}\n{fell}"


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.1f} %)" if whole else "none of 0"


def _figures(run: Run) -> str:
    members = [each for each in run["members"] if each["member"]]
    rows = [["kernels that become members", _share(len(members), len(run["members"])), "95 %"]]
    pairs = run.get("pairs", [])
    if pairs:
        paired = {name for each in pairs for name in each["pair"]}
        fusing = {name for each in pairs if each["fused"] for name in each["pair"]}
        done = [each for each in pairs if each["fused"]]
        results = Counter(each.get("result", "") for each in done)
        ran = len([each for each in done if each.get("result")])
        rows += [
            ["of those in a pair, fused with another", _share(len(fusing), len(paired)), "90 %"],
            ["pairs that fuse", _share(len(done), len(pairs)), ""],
            [
                "kernels that end in the interpreter by themselves",
                _share(sum(each["runs"] for each in members), len(members)),
                "",
            ],
            ["pairs of such, run in the interpreter both ways", str(ran), "200"],
            ["of these, fused: equal to the last bit", _share(results["equal"], ran), ""],
            ["of these, fused: equal but for the order of sums", _share(results["close"], ran), ""],
            [
                "of these, fused: equal but for what a clock or the order of blocks decides",
                _share(results["varies"], ran),
                "",
            ],
            ["of these, fused: other results, or none", _share(ran - sum(results[each] for each in FINE), ran), "0"],
        ]
        for way in sorted({each["way"] for pair in done for each in pair["ways"]}):
            rows += _registers(way, [each for pair in done for each in pair["ways"] if each["way"] == way])
    times = [each["ms_per_5000_lines"] for each in run.get("written", []) if each.get("ms") and each["lines"] >= LONG]
    if times:
        said = f"{statistics.median(times):.0f} ms (at most {max(times):.0f} ms)"
        about = f"PTX to fused PTX, for 5,000 lines, {len(times)} pairs of at least as many, processor time, median"
        rows.append([about, said, "50 ms"])
    plans = [each["busy_secs"] for each in run.get("planned", []) if not each["failed"]]
    if plans:
        said = f"{statistics.median(plans):.2f} s (at most {max(plans):.2f} s)"
        rows.append(["`fusiond plan` once compiled, processor time, median", said, "1 s"])
    return "## Figures\n\n" + table(("", "found", "wanted"), rows)


def _registers(way: str, ways: Sequence[Row]) -> list[list[str]]:
    built = [each for each in ways if "registers" in each]
    fit = [each for each in built if each["fits"]]
    over = [each for each in built if each["registers"] > each["larger_side"] + MORE]
    spilt = [each for each in fit if each["spill_bytes"] and not each["spill_bytes_of_sides"]]
    more = [each["registers"] - each["larger_side"] for each in built]
    said = f"median {statistics.median(more):+.0f}, most {max(more):+d}" if more else ""
    return [
        [f"{way}: registers over the larger side's", said, f"+{MORE}"],
        [f"{way}: at most {MORE} more than the larger side", _share(len(built) - len(over), len(built)), "all"],
        [f"{way}: spills where neither side does and the register file allows it", _share(len(spilt), len(fit)), "0"],
    ]


def _overhead(rows: Sequence[Row]) -> str:
    head = ("way", "sides", "once: median", "most", "in bodies without barriers: most", "for a barrier: median", "most")
    keys = ("way", "sides", "once_median", "once_most", "inside_most", "barrier_median", "barrier_most")
    said = """\
PTX instructions that a thread runs because its kernel is a side of a fused one: once, outside the kernel's own body, on
the shortest way through; and in the body, for barriers. A thread has to find out whose it is, which block it works for
and, where a grid or a block has several axes, its place in them. ptxas removes some of these instructions.
"""
    return _listed("What fusion adds to a side", head, [[str(each[key]) for key in keys] for each in rows], said)


def _rules(heading: str, rows: Sequence[Row], key: str) -> str:
    found: dict[str, list[Row]] = {}
    for each in rows:
        if not each[key]:
            found.setdefault(str(each.get("rule") or each.get("why", "")), []).append(each)
    listed = sorted(found.items(), key=lambda one: -len(one[1]))
    return _listed(
        heading, ("rule", "number", "for example"), [[rule, str(len(all_)), _why(all_[0])] for rule, all_ in listed]
    )


def _unended(members: Sequence[Row]) -> str:
    """Kernels that cannot be compared, by what the interpreter says."""
    rows = [[each["kernel"], each["program"], _why(each)] for each in members if each["member"] and not each["runs"]]
    return _listed("Members that do not end in the interpreter by themselves", ("kernel", "program", "why"), rows)


def _results(pairs: Sequence[Row]) -> str:
    wrong = [each for each in pairs if each.get("result", "equal") not in FINE]
    rows = [[" + ".join(each["pair"]), each["result"], str(each.get("way_run", "")), _why(each)] for each in wrong]
    return _listed("Pairs without an equal result", ("pair", "result", "way", "why"), rows)


def _listed(heading: str, head: Sequence[str], rows: Sequence[Sequence[str]], said: str = "") -> str:
    return "\n".join([f"## {heading}\n", *([said] if said else []), table(head, rows) if rows else "None.\n"])


def _why(row: Row) -> str:
    return str(row.get("detail") or row.get("why") or "").replace("|", "/").split("\n")[0][:160]
