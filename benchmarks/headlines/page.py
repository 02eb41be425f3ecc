"""docs/results-gpu.md, its plot, and the blocks of other pages that say what a GPU has shown, out of the files of
benchmarks/results. Nothing on them is typed by hand.

A block of a page stands between `<!-- gpu:NAME -->` and `<!-- /gpu:NAME -->`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import counters, runs
from benchmarks.agreement import RULERS, shown
from benchmarks.headlines.catalogue import HEADLINES
from benchmarks.pages import DOCS, table
from benchmarks.rivals import rival_rows
from benchmarks.runs import RESULTS, Run

NOT_YET = "not yet measured on a GPU"
ROOT = DOCS.parent
PLOT = "images/results-gpu.png"
STRATEGIES = ("hfuse", "mincut", "stitching", "transfer")

HEAD = """\
# On a GPU

Written by `make gpu-results` from the JSON files in benchmarks/results; do not edit it. What is on it comes from the
first ten minutes on a machine with a GPU ([gpu-box.md](gpu-box.md)): for each headline, programs that were built and
chosen before are compared with the unfused one on two seeds and screened, and the two best of either side are measured
again in five fresh processes. *Fused over unfused* is how many times as long the fastest unfused way takes, with its
95 % interval; a rival's figure is how many times as long the rival takes as the fused program, in pairs with it.
"""
NOTHING = """\
## What it will hold

**Nothing has been measured on a GPU yet.** The command is ready and rehearsed on the driver that the tests have in the
place of CUDA's; the tables below say what they will hold.
"""


def write(folder: Path = RESULTS, root: Path = ROOT) -> list[str]:
    """Write the page, its plot and the blocks; the paths from the root of the repository."""
    page = root / "docs" / "results-gpu.md"
    leases = newest(folder)
    written = []
    if leases and draw(leases[-1], root / "docs" / PLOT):
        written.append(f"docs/{PLOT}")
    page.write_text(render(leases, plot=bool(written)), encoding="utf-8")
    written.append("docs/results-gpu.md")
    for name, blocks in standing(leases, folder).items():
        path = root / name
        text = path.read_text(encoding="utf-8")
        changed = replaced(text, blocks)
        if changed != text:
            path.write_text(changed, encoding="utf-8")
            written.append(name)
    return written


# --- what is kept ---------------------------------------------------------------------------------------


Lease = dict[str, Run]  #: Of one device: benchmark -> its last run. `headlines` is always among them.


def newest(folder: Path) -> list[Lease]:
    """Of each device, in the order of their dates: those that somebody vouches for, and others that nobody does."""
    found: dict[str, Lease] = {}
    for benchmark in ("headlines", "agreement", "null", "steps", "counters", "calibration", "alive", "transfer"):
        for run in sorted(runs.kept(benchmark, folder), key=lambda each: str(each["date"])):
            if run["evidence"] == "measured":
                found.setdefault(str(run["device"]["model"]), {})[benchmark] = run
    leases = [each for each in found.values() if "headlines" in each]
    return sorted(leases, key=lambda each: str(each["headlines"]["date"]))


def concluded(run: Run) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name in HEADLINES:
        found = run["headlines"].get(name)
        if found is not None:
            yield name, found


# --- the page -------------------------------------------------------------------------------------------


def render(leases: Sequence[Lease], *, plot: bool = False) -> str:
    parts = [HEAD]
    if not leases:
        parts += [NOTHING, *_sections({})]
    for lease in reversed(leases):
        run = lease["headlines"]
        parts.append(f"## {run['device']['model']}\n\n{_origin(lease)}\n")
        if not run.get("vouched", True):
            parts.append("**The rulers do not agree here** (see below), so no figure of this run is shown elsewhere.\n")
        if plot and lease is leases[-1]:
            parts.append(f"![Fused over unfused, with intervals, and rivals]({PLOT})\n")
        parts += _sections(lease)
    return "\n".join(parts)


def _origin(lease: Lease) -> str:
    run = lease["headlines"]
    figures = lease.get("calibration", {}).get("figures", {})
    clock = f", {figures['steady_mhz']:.0f} MHz under work" if "steady_mhz" in figures else ""
    return (
        f"{run['date'][:10]}, driver {run['device']['env'].get('driver', run['driver'])}, nvcc {run['nvcc']}{clock};\n"
        f"`{run['command']}`."
    )


def _sections(lease: Lease) -> Iterator[str]:
    yield headline_table(lease.get("headlines"))
    yield from _transfer(lease.get("transfer"))
    yield "### Whole functions\n\n" + _steps(lease.get("steps"))
    yield "### Native against native\n\n" + _null(lease.get("null"))
    yield "### The rulers\n\n" + _agreement(lease.get("agreement"), lease.get("calibration"))
    yield "### The count against the counter\n\n" + _counters(lease.get("counters"))
    yield "### A program of each kind\n\n" + _alive(lease.get("alive"))


HEADLINE_COLUMNS = ("what", "unfused best", "fused", "fused over unfused", "rival", "verdict")


def headline_table(run: Run | None) -> str:
    rows = []
    for name, headline in HEADLINES.items():
        what = f"`{name}`: {headline.what}"
        found = (run or {}).get("headlines", {}).get(name)
        rows.append((what, *(cells(found) if found else (NOT_YET, "", "", "", ""))))
    return table(HEADLINE_COLUMNS, rows)


def cells(found: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """Of one headline, all columns but the first."""
    result = found["conclusion"]
    if result is None:
        return "", "", "", "", found.get("problem", "cut before its verdict")
    low, high = result["ci95"]
    rival = rival_rows.best(list(found["rivals"].values()))
    beside = (
        f"{rival['ratio']:.2f} ({rival['name']}{', wall clock' if rival['clock'] == 'wall' else ''})" if rival else ""
    )
    return (
        f"{result['opponent_us']:.1f} us", f"{result['time_us']:.1f} us",
        f"**{result['speedup']:.2f}** ({low:.2f} to {high:.2f})", beside, f"`{result['verdict']}`",
    )  # fmt: skip


def _transfer(run: Run | None) -> Iterator[str]:
    for row in (run or {}).get("overlap", ()):
        ways = [each for each in row.get("ways", ()) if each.get("ratio")]
        if not ways:
            continue
        best = max(ways, key=lambda each: float(each["ratio"]))
        share = f", {100 * best['share_of_ideal']:.0f} % of the ideal" if best.get("share_of_ideal") else ""
        yield (
            f"A vector of {4 * row['elements'] / 1e6:.0f} MB up, through a kernel that takes as long as the slower copy"
            f" does, and down: in {best['chunks']} chunks **{best['ratio']:.2f}** times as fast as whole{share}.\n"
        )


def _steps(run: Run | None) -> str:
    if run is None:
        return f"Steps a second of configs/jax's scripts at the sizes of models: {NOT_YET}.\n"
    rows = []
    for name, states in run["functions"].items():
        for state in ("unknown", "known"):
            found = states.get(state, {"problem": "not reached"})
            known = "nothing is known, no daemon" if state == "unknown" else "with answers"
            if "ratio" not in found:
                rows.append((f"`{name}`, {known}", "", "", found.get("problem", ""), ""))
                continue
            low, high = found["ci95"]
            rows.append((
                f"`{name}`, {known}", f"{found['jit_steps_per_sec']:.1f}", f"{found['fused_steps_per_sec']:.1f}",
                f"**{found['ratio']:.3f}** ({low:.3f} to {high:.3f})", f"{found['fused']} of {found['regions']}",
            ))  # fmt: skip
    return table(("function", "jax.jit, steps/s", "fused, steps/s", "ratio", "regions fused"), rows)


def _null(run: Run | None) -> str:
    if run is None:
        return f"Six programs of 20 us to 5 ms against copies of themselves, warm and cold: {NOT_YET}.\n"
    rows = [
        (each["name"], f"{each['time_us']:.1f} us" if "time_us" in each else "", f"`{each['verdict']}`",
         f"{each['speedup']} ({each['ci95'][0]} to {each['ci95'][1]})" if "ci95" in each else each.get("reason", ""))
        for each in run["controls"]
    ]  # fmt: skip
    return "Each must come out `keep`.\n\n" + table(("program", "time", "verdict", "ratio"), rows)


def _agreement(run: Run | None, calibration: Run | None) -> str:
    if run is None:
        return f"One kernel by fusiond, CUDA events, do_bench, the profiler and ncu: {NOT_YET}.\n"
    rows = [
        (f"{12 * each['elements'] / 1e6:.1f} MB", *(shown(each["times_us"].get(name, "")) for name in RULERS))
        for each in sorted(run["rows"], key=lambda each: int(each["elements"]))
    ]
    text = table(("moved", *RULERS), rows)
    text += f"\nThey {'agree' if run['agrees'] else '**do not agree**'} (within 5 % or 2 us, events apart).\n"
    figures = dict((calibration or {}).get("figures", {}))
    ceilings = {
        "copy": (figures.get("copy_gbs"), "GB/s"), "fp32": (figures.get("fp32_tflops"), "TFLOP/s"),
        "tensor cores, bfloat16": (run.get("ceilings", {}).get("tensor_tflops"), "TFLOP/s"),
        "an event": (figures.get("event_us"), "us"), "an empty kernel": (figures.get("empty_kernel_us"), "us"),
        "from one kernel to the next": (figures.get("kernel_gap_us"), "us"),
        "the same in a graph": (figures.get("graph_node_us"), "us"), "the gate": (figures.get("release_us"), "us"),
        "flushing the cache": (figures.get("flush_us"), "us"),
        "until a new process has answered": (run.get("ceilings", {}).get("first_answer_secs"), "s"),
    }  # fmt: skip
    known = [f"{name} {value:.4g} {unit}" for name, (value, unit) in ceilings.items() if isinstance(value, int | float)]
    return text + (f"\nMeasured there: {', '.join(known)}.\n" if known else "")


def _counters(run: Run | None) -> str:
    if run is None or not run.get("counted"):
        why = "" if run is None else ": ncu's figures are there, and are not put beside the count yet"
        return f"DRAM bytes, sectors and instructions, counted and by ncu: {NOT_YET}{why}.\n"
    rows, logs = [], []
    for program, kernel, columns in counters.errors(run):
        values = [columns.get(name) for name in counters.METRICS]
        rows.append((program.partition(":")[0], f"`{kernel}`", *(_error(each) for each in values)))
        logs += [abs(math.log(ours / theirs)) for ours, theirs in columns.values() if ours > 0 and theirs > 0]
    text = table(("headline", "kernel", *(name.replace("_", " ") for name in counters.METRICS)), rows)
    if logs:
        text += f"\nCounted over ncu's; the typical factor between the two is {math.exp(sum(logs) / len(logs)):.3f}.\n"
    lacking = [f"{name}: {each['problem']}" for name, each in run["counters"].items() if "problem" in each]
    text += "".join(f"\n- not counted by ncu: {line}" for line in lacking) + ("\n" if lacking else "")
    for headline, found in run.get("ranking", {}).items():
        if found["spearman"] is not None:
            text += (
                f"\nOf `{headline}`, {len(found['programs'])} programs in the order of their bounds beside the order of"
                f" their times: rank correlation {found['spearman']:.2f}.\n"
            )
    return text


def _error(pair: tuple[float, float] | None) -> str:
    if pair is None or not pair[1]:
        return ""
    return f"{pair[0] / pair[1]:.3f}"


def _alive(run: Run | None) -> str:
    if run is None:
        return f"Streams, graph, cooperative, copies, managed and mapped memory, and each strategy: {NOT_YET}.\n"
    rows = [(each["name"].removeprefix("alive/"), each["candidate"], each["outcome"], each.get("reason", ""))
            for each in run["results"]]  # fmt: skip
    return table(("", "program", "outcome", "reason"), rows)


# --- the plot -------------------------------------------------------------------------------------------


def draw(lease: Lease, where: Path) -> bool:
    """Speed-ups with intervals, and the best rival of each; whether there was something to draw."""
    rows = [(name, found) for name, found in concluded(lease["headlines"]) if found["conclusion"]]
    if not rows:
        return False
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 0.9 + 0.42 * len(rows)), dpi=120)
    for place, (_, found) in enumerate(reversed(rows)):
        result = found["conclusion"]
        low, high = result["ci95"]
        error = [[result["speedup"] - low], [high - result["speedup"]]]
        axes.errorbar(result["speedup"], place, xerr=error, fmt="o", color="C0", capsize=3,
                      label="fused" if place == 0 else None)  # fmt: skip
        rival = rival_rows.best(list(found["rivals"].values()))
        if rival is not None:  # as a speed over the same unfused way
            axes.plot(result["speedup"] / rival["ratio"], place, "x", color="C1")
            axes.annotate(rival["name"], (result["speedup"] / rival["ratio"], place), xytext=(4, 5),
                          textcoords="offset points", fontsize=6, color="C1")  # fmt: skip
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [name for name, _ in reversed(rows)])
    axes.set_xlabel("times as fast as the fastest unfused way (o fused, with 95 % interval; x best rival)")
    axes.set_title(str(lease["headlines"]["device"]["model"]), fontsize=10)
    figure.tight_layout()
    where.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(where, metadata={"Software": None})
    pyplot.close(figure)
    return True


# --- the blocks of other pages --------------------------------------------------------------------------


def standing(leases: Sequence[Lease], folder: Path) -> dict[str, dict[str, str]]:
    """File -> block -> what stands there, by what is vouched for."""
    vouched = [each for each in leases if each["headlines"].get("vouched", True)]
    last = vouched[-1] if vouched else {}
    model = str(last["headlines"]["device"]["model"]) if last else ""
    state = "**not yet measured on a GPU**; tested against a stand-in for the driver"
    if last:
        state = f"measured on an {model} ([figures](docs/results-gpu.md))"
    return {
        "README.md": {"state": state, "table": _readme_table(last)},
        "docs/results.md": {
            "gpu": f"measured on an {model}" if last else f"**{NOT_YET}**",
            **{name: _of_strategy(name, last, folder) for name in STRATEGIES},
        },
        "docs/frameworks.md": {"steps": _of_steps(last)},
        "docs/measuring.md": {"rulers": f"they agree on an {model} ([table](results-gpu.md))" if last else NOT_YET},
    }


def _of_strategy(strategy: str, last: Lease, folder: Path) -> str:
    if any(run["evidence"] == "measured" and run["vouched"] for run in runs.kept(strategy, folder)):
        return "measured"
    names = [name for name, found in concluded(last["headlines"])
             if found["strategy"] == strategy and found["conclusion"]] if last else []  # fmt: skip
    return f"[{len(names)} headline{'s' * (len(names) > 1)}](results-gpu.md)" if names else f"**{NOT_YET}**"


def _readme_table(last: Lease) -> str:
    """The headlines with a verdict, in short; nothing where there are none."""
    rows = [
        (f"`{name}`", *cells(found)) for name, found in (concluded(last["headlines"]) if last else ())
        if found["conclusion"]
    ]  # fmt: skip
    if not rows:
        return ""
    run = last["headlines"]
    told = f"On an {run['device']['model']}, {run['date'][:10]} ([all of it](docs/results-gpu.md)):"
    return f"\n{told}\n\n{table(('', *HEADLINE_COLUMNS[1:]), rows)}"


def _of_steps(last: Lease) -> str:
    found = last.get("steps", {}).get("functions", {}) if last else {}
    known = {name: each["known"] for name, each in found.items() if "ratio" in each.get("known", {})}
    if not known:
        return f"Steps per second are {NOT_YET}."
    said = ", ".join(f"`{name}` {each['ratio']:.2f} times `jax.jit`'s" for name, each in known.items())
    return f"Steps per second on a GPU: {said} ([results-gpu.md](results-gpu.md))."


def replaced(text: str, blocks: Mapping[str, str]) -> str:
    """ValueError for a block that the text does not have."""
    for name, body in blocks.items():
        pattern = re.compile(rf"(<!-- gpu:{name} -->).*?(<!-- /gpu:{name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"there is no block gpu:{name}")
        text = pattern.sub(lambda match, body=body: f"{match[1]}{body}{match[2]}", text)
    return text


def blocks_of(text: str) -> Iterable[str]:
    return re.findall(r"<!-- gpu:(\w+) -->", text)
