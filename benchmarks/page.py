"""docs/results-fusiond.md from benchmarks/results/cpu: what fusiond itself costs, and how often it is right."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEPT = HERE / "results" / "cpu"
PAGE = HERE.parent / "docs" / "results-fusiond.md"
Run = Mapping[str, Any]

WIDTH = 120


def render(kept: Mapping[str, Run]) -> str:
    """The page; a benchmark that has not been run yet has its line, too."""
    parts = ["# What fusiond itself costs\n", HEAD]
    for name, title, words in SECTIONS:
        parts.append(f"## {title}\n")
        run = kept.get(name)
        if run is None:
            parts.append(f"Not measured yet: `python -m benchmarks {name}`.\n")
            continue
        parts += [*words(run["result"]), _origin(run)]
    return "\n".join(parts)


def read(folder: Path = KEPT) -> dict[str, Run]:
    """What `python -m benchmarks` has kept: name -> run."""
    found = {}
    for name, _, _ in SECTIONS:
        path = folder / f"{name}.json"
        if path.is_file():
            found[name] = json.loads(path.read_text())
    return found


def _origin(run: Run) -> str:
    machine = run["machine"]
    load = machine.get("load_at_start")
    busy = "" if load is None else f", load {load} when it began"
    where = f"{machine['cores']} cores of {machine['processor']}{busy}, Python {machine['python']}"
    return f"`{run['command']}`, {run['date'][:10]}, {where}.\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(str, each))} |\n" for each in lines)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _said(*words: str) -> str:
    """A paragraph."""
    return textwrap.fill(" ".join(words), WIDTH, break_on_hyphens=False, break_long_words=False) + "\n"


HEAD = _said(
    "Written by `python -m benchmarks --page` from `benchmarks/results/cpu/`. `python -m",
    "benchmarks` measures everything again, one after the other, and writes this page; it needs no GPU, and an idle",
    "machine. Read the ratios, not the times: the machines are shared.",
)


# --- the sections ---------------------------------------------------------------------------------------


def _verdict(result: Run) -> Iterable[str]:
    yield _said(
        f"Simulated, {result['runs']:,} runs a row: three finalists of one true speed-up, five processes each,",
        f"`least_gain` {result['least_gain']}. Every process shifts its ratios by a common amount, every pair by its",
        "own: *quiet* by 0.3 % and 0.2 % (standard deviations), *usual* by 0.6 % and 0.4 %, *noisy* by 1.5 % and 1.0",
        "%. On top of the usual noise, sample by sample: *drift*, the device becomes 10 % slower within each",
        "process; *bimodal*, the clock jumps between two states 16 % apart, every 12 samples on the average;",
        "*outliers*, one sample in 20 takes 1.2 to 3 times as long; *all* three. These figures are assumptions, not",
        "measurements. The canary and the session's clock would throw many of these batches away before. The last",
        "column is what pooling the samples of one process would say.",
    )
    rows = [
        (
            each["noise"],
            f"{each['true_gain']:.2f}",
            *(_percent(each[name]) for name in ("fuse", "undecided", "keep", "pooled_says_faster")),
        )
        for each in result["table"]
    ]
    yield _table(("noise", "true gain", "`fuse`", "`undecided`", "`keep`", 'pooled samples say "faster"'), rows)
    worst = max(each["fuse"] for each in result["table"] if each["true_gain"] <= 1.0)
    least = min(each["fuse"] for each in result["table"] if each["true_gain"] == 1.03)
    yield _said(
        f"A true 1.00 is called `fuse` in {_percent(worst)} of the runs at most (goal: under 2 %), a true 1.03 is",
        f"found in {_percent(least)} at least (goal: over 90 %).",
    )


def _control(result: Run) -> Iterable[str]:
    counts = ", ".join(f"{count} `{name}`" for name, count in sorted(result["verdicts"].items()))
    yield _said(
        "Unfused programs of the catalogue against copies of themselves, measured as finalists are, on the",
        f"`{result['device']}` device ({result['evidence']}): {counts}. `fuse` would be a mistake; `undecided` is",
        "none.",
    )
    rows = [
        (each["name"], each["verdict"], each.get("speedup", ""), " to ".join(map(str, each.get("ci95", ()))))
        for each in result["controls"]
    ]
    yield _table(("program", "verdict", "ratio", "95 % interval"), rows)


def _pipeline(result: Run) -> Iterable[str]:
    recorded = result["recorded"]
    yield _said(
        f"Compile times (nvcc {recorded['nvcc']}, {recorded['arch']}) and measuring times of {recorded['candidates']}",
        f"candidates of `{recorded['workload']}`, recorded once, are replayed through the real tuner, with the",
        "measuring scaled so that the cores, the device or both are the limit. The ideal is the same work in the",
        "same order by a tuner that costs nothing. The cores are emulated: a replayed compiler sleeps. Goal: at",
        "least 90 % of the ideal.",
    )
    rows = [
        (
            each["cores"],
            each["limited_by"],
            each["space"],
            f"{each['makespan_secs']:.1f} s",
            f"{each['ideal_secs']:.1f} s",
            _percent(each["of_ideal"]),
            _percent(each["device_busy"]),
        )
        for each in result["table"]
    ]
    yield _table(("cores", "limited by", "space", "took", "ideal", "of the ideal", "device busy"), rows)


def _tuner(result: Run) -> Iterable[str]:
    yield _said(
        f"A job of {result['trials']} trials on the fake device. *In all*: a measurement takes no time, so this is",
        "everything, the fake device's own work included. *Waiting*: a measurement takes",
        f"{result['waiting_ms']['measuring']:.0f} ms, and this is for how long the device then waits from one trial",
        "to the next. Optuna alone: ask and tell, the same sampler, the same space. Goal: 10 ms.",
    )
    rows = [
        ("in all", f"{result['fusiond_ms']['mean']:.1f} ms"),
        ("of that, the fake device", f"{result['fake_device_ms']['mean']:.1f} ms"),
        ("waiting", f"{result['waiting_ms']['mean']:.1f} ms"),
        ("Optuna alone", f"{result['optuna_ms']['mean']:.1f} ms"),
    ]
    yield _table(("a trial", "mean"), rows)


def _worker(result: Run) -> Iterable[str]:
    yield _said(
        f"The `{result['device']}` device, {result['rounds']} rounds, medians. On a GPU most of it is the new",
        "context.",
    )
    rows = [
        ("an answer of a child that is there", f"{result['there_ms']:.0f} ms"),
        ("the first answer after the child was killed", f"{result['killed_ms']:.0f} ms"),
        ("so replacing it costs", f"{result['replacing_ms']:.0f} ms"),
        ("the slowest", f"{result['slowest_ms']:.0f} ms"),
    ]
    yield _table(("", "time"), rows)


def _best(result: Run) -> Iterable[str]:
    yield _said(
        f"Processor time of whole processes from a cold shell, {result['rounds']} rounds, interleaved. Beside a",
        f"bare Python, `fusiond best` by name takes {result['ratio_name_to_bare']} times as much (goal: 1.5), of a",
        f"job whose files are remembered {result['ratio_job_to_bare']} times (goal: 4), and to hand in a job that",
        f"waits already {result['ratio_submit_to_bare']} times.",
    )
    names = {
        "bare": "a bare Python: `python -c pass`",
        "name": "`fusiond best --workload NAME`",
        "name_json": "`python -m fusiond best --workload NAME --json`",
        "job": "`fusiond best JOB.yaml`",
        "submit": "`fusiond submit JOB.yaml`, the second time",
    }
    rows = [
        (words, f"{result[f'{name}_ms']['least']:.0f} ms", f"{result[f'{name}_ms']['median']:.0f} ms")
        for name, words in names.items()
    ]
    yield _table(("", "least", "median"), rows)


def _store(result: Run) -> Iterable[str]:
    ratio = result["ratios"]["start_lookup_to_bare"]
    yield _said(
        f"{result['records']:,} records in a file of {result['file_bytes'] / 2**20:.0f} MiB. Starting Python with",
        f"what `fusiond best` imports takes {ratio} times as long as with `sqlite3` and `json` alone.",
    )
    rows = [(f"look-up: {name}", f"{each['median']:.0f} us") for name, each in result["lookup_us"].items()]
    rows.append(("an acknowledged trial, its fsync included", f"{result['acknowledged_trial_us']['median']:.0f} us"))
    yield _table(("", "median"), rows)


def _store_scale(result: Run) -> Iterable[str]:
    shell, rates = result["best_from_a_shell_ms"], result["look_ups_per_sec"]
    near, queue, size = result["suggestion_ms"], result["queue_us"], result["bytes_per_trial"]
    yield _said(
        f"{result['records']:,} records of {result['names']:,} names, {result['queued']:,} queued jobs, and the same",
        "questions where there are few, or asked as they were before.",
    )
    rows = [
        ("`fusiond best` from a shell", f"{shell['large']} ms", f"{shell['small']} ms among 1,000 records"),
        (
            "look-ups a second in one process",
            f"{rates['kept_open']:,}",
            f"{rates['opened_each_time']:,} when the file is opened for each",
        ),
        ("the same, of 50 names again and again", f"{rates['asked_before']:,}", ""),
        ("suggesting a name", f"{near['neighbours']} ms", f"{near['every_name']:,} ms when every name is compared"),
        ("a submission", f"{queue['submit_many']} us", f"{queue['submit_few']} us with 10 queued"),
        (
            "a claim that finds nothing for its device",
            f"{queue['claim_nothing_many']} us",
            f"{queue['predicate_many']} us when each job is asked about",
        ),
        ("a page of 50 jobs", f"{queue['page_many']} us", f"{queue['page_few']} us of 10 jobs"),
        ("a trial in the file", f"{size['compressed']:,} bytes", f"{size['as_text']:,} bytes with plans as text"),
    ]
    yield _table(("", "", "beside"), rows)


def _isolation(result: Run) -> Iterable[str]:
    yield _said(
        "Strategies run in child processes. What that costs, beside the same work in the process itself (`plan`: whole",
        "commands; `submit`: a daemon that is warm; `emit`: one config). The next answer after a child was killed took",
        f"{result['replace_ms']} ms.",
    )
    rows = [
        (f"{what} {job}", f"{found['children_ms']} ms", f"{found['here_ms']} ms", found["ratio"])
        for what in ("plan", "submit", "emit")
        for job, found in result[what].items()
    ]
    yield _table(("", "in children", "in the process", "ratio"), rows)


def _soak(result: Run) -> Iterable[str]:
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in result["counts"].items())
    yield _said(
        f"{result['minutes']:g} minutes on the fake device: {counts}. Jobs at the end: {result['jobs']}.",
        "The median of the last quarter beside that of the second one:",
    )
    rows = [(name, f"{ratio:.2f}", f"{result['tolerances'][name]:.2f}") for name, ratio in result["ratios"].items()]
    yield _table(("", "ratio", "at most"), rows)


def _http(result: Run) -> Iterable[str]:
    yield _said(
        f"{result['clients']} clients over the Unix socket, {result['records']:,} records, beside a search that wrote",
        f"{result['trials_meanwhile']} trials meanwhile; {result['machine']['cores']} cores for all of them.",
        "Goal: 1,000 look-ups a second, p99 under 20 ms.",
        f"Questions all over the records are answered at {result['ratio_spread_to_bare']} times the rate of a bare",
        "uvicorn and starlette that answer with one document.",
    )
    names = {"spread": "questions all over", "hot": "a hundred questions", "bare": "bare uvicorn and starlette"}
    rows = [
        (words, f"{found['per_second']:,.0f}", f"{found['p50_ms']} ms", f"{found['p99_ms']} ms")
        for name, words in names.items()
        for found in (result[name],)
    ]
    yield _table(("", "a second", "median", "p99"), rows)


def _cpu_device(result: Run) -> Iterable[str]:
    yield _said(
        "Kernels of the catalogue, the least of several runs each, beside serial C++ loops of the same compiler",
        f"({result['compiler']}).",
    )
    rows = [
        (
            name,
            f"{each['cpu_device_ms']:.0f} ms",
            f"{each['in_order_ms']:.0f} ms",
            each["ratio_to_in_order"],
            each.get("ratio_to_as_threads", ""),
        )
        for name, each in result.items()
        if isinstance(each, dict) and "cpu_device_ms" in each
    ]
    columns = ("kernel", "cpu device", "loop in the order of memory", "ratio", "ratio to a loop in the threads' order")
    yield _table(columns, rows)
    if "scatter" in result:
        yield _said(
            "Robust standard deviation of the ratios of equal launches, by the device's clock (processor time) and by",
            "the wall's, of the same launches; `busy` is beside two processes a core that never rest.",
        )
        scatter = [
            (name, f"{each['device_percent']:.1f} %", f"{each['wall_percent']:.1f} %")
            for name, each in result["scatter"].items()
        ]
        yield _table(("cores", "processor time", "wall clock"), scatter)


def _data_plane(result: Run) -> Iterable[str]:
    yield _said(
        f"References on two seeds and two candidates, with an input of {result['mib']} MiB: processor time of all,",
        "beside the way before, which drew for every run with NumPy's fastest generator (SFC64).",
    )
    rows = [
        (
            name,
            f"{each['kept']['draws']} draws, {each['kept']['cpu_secs']:.2f} s",
            f"{each['drawn_again']['draws']} draws, {each['drawn_again']['cpu_secs']:.2f} s",
            each["ratio"],
            f"{result['generators'][name]['ours_ns']:.1f} ns, {result['generators'][name]['sfc64_ns']:.1f} ns",
        )
        for name, each in result["pairs"].items()
    ]
    yield _table(("input", "now", "before", "ratio", "an element: now, before"), rows)
    bus = result["bus"]
    yield _said(
        f"One checked run with the buffers of hist and maxpool ({sum(bus['program']['bytes'].values()) / 1e6:.0f} MB),",
        "counted on the driver without a GPU that the tests have:",
    )
    planes = (("drawn, kept and compared on the device", "device"), ("by the host", "host"))
    moved = [
        (name, f"{bus[key]['bytes_up']} B", f"{bus[key]['bytes_down']} B", sum(bus[key]["calls"].values()))
        for name, key in planes
    ]
    yield _table(("data", "up", "down", "copies and fills"), moved)


def _watching(result: Run) -> Iterable[str]:
    yield _said(
        "What `fusiond capture` costs a launch of three parameters: processor time of a program on the driver without",
        f"a GPU that the tests have, {result['launches']:,} launches of each. A launch that is noted takes",
        f"{result['more_us']['noted']:.2f} us more (goal: under {result['limit_us']:.0f} us), and",
        f"{result['trace_bytes']} bytes; one behind the last that was asked for",
        f"{result['more_us']['noted enough']:.2f} us.",
    )


def _proofs(result: Run) -> Iterable[str]:
    real, small = result["real"], result["small"]
    secs = max(each["proving_secs"] for each in real.values())
    memory = max(each["memory_mb"] for each in real.values())
    yield _said(
        "What a block reads of its own block program it has computed itself: proved of every plan before its code is",
        "built, for all blocks at once. All plans of a module together (those of `fusiond plan`, and the packed one",
        "without rows in registers), in a process of its own; memory is all that the process had, planning among it.",
        f"At most {secs:.3f} s of processor time and {memory} MB (goal: under 5 s and 500 MB). The last column is at a",
        "small size: the check that looks at each element of each block, over this one.",
    )
    rows = [
        (
            name,
            f"{each['elements']:.1e}",
            each["instructions"],
            f"{each['planning_secs']:.3f} s",
            f"{each['proving_secs']:.3f} s",
            f"{each['memory_mb']} MB",
            f"{small[name]['ratio']} ({small[name]['elements']} elements)",
        )
        for name, each in real.items()
    ]
    yield _table(
        ("module", "elements", "instructions", "planning", "proving", "memory", "each element, over proving"), rows
    )


SECTIONS: Sequence[tuple[str, str, Callable[[Run], Iterable[str]]]] = (
    ("verdict", "How often the verdict is right", _verdict),
    ("control", "Native against native", _control),
    ("pipeline", "Compiling while the device measures", _pipeline),
    ("tuner", "A trial, beside building and running it", _tuner),
    ("worker", "A lost child process", _worker),
    ("best", "`fusiond best`", _best),
    ("store", "The store", _store),
    ("store_scale", "A large store beside a small one", _store_scale),
    ("http", "Look-ups over HTTP", _http),
    ("isolation", "Planning in child processes", _isolation),
    ("soak", "A daemon under kills, look-ups and prunes", _soak),
    ("data_plane", "Inputs, references and comparisons", _data_plane),
    ("cpu_device", "The cpu device", _cpu_device),
    ("proofs", "Proofs of stitching's plans", _proofs),
    ("watching", "Capturing launches on a GPU", _watching),
)
