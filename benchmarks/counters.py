"""The count against the counter: what `counted:` says of a launch, beside what Nsight Compute counts of it.

    python -m benchmarks.counters --bundles FOLDER --out FILE      there: ncu, on the programs of PROGRAMS
    python -m benchmarks.counters --bundles FOLDER --count FILE    here: the same programs counted, and put beside them;
                                                                   and the ranking of candidates by bound beside the
                                                                   one by time

FOLDER has the headlines' bundles. DRAM bytes are those of a launch that finds an empty cache (ncu flushes it before
each pass), where the count lets the L2 keep what earlier launches of the program left: a program of several launches
may pay less than ncu says.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import commands, runs
from benchmarks.commands import say
from fusiond.build.exporting.bundle import read_bundle
from fusiond.devices import check
from fusiond.devices.base import MORE
from fusiond.devices.cuda import counters
from fusiond.devices.lock import device_lock
from fusiond.model.errors import RequestError

PROGRAMS = tuple(
    (headline, role)
    for headline in ("softmax", "hist+maxpool", "layer_norm", "sobel")
    for role in ("unfused", "fused")
)  # fmt: skip
"""Of each, the first program of that role."""
METRICS: Mapping[str, tuple[str, ...]] = {
    "dram_bytes": ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    "read_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",),
    "write_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",),
    "instructions": ("smsp__thread_inst_executed.sum",),
    "warp_instructions": ("smsp__inst_executed.sum",),
}
"""Column of the count -> what ncu adds up to it. Atomics and reductions have other sectors, on both sides."""
RANKED = ("softmax", "hist+maxpool")  #: Headlines whose candidates are ranked both ways
SECS = 60.0
COUNT_SECS = 300.0


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 done, 1 nothing could be counted, 2 the request was wrong, 75 there is more to do."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bundles", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where the counters go; what it has is not asked again"
    )
    parser.add_argument("--count", type=Path, metavar="FILE", help="of that file: count the same here")
    parser.add_argument("--headlines", type=Path, metavar="DIR", help="with --count: their results, for the ranking")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no program after so long")
    given = parser.parse_args(argv)
    ended: list[int] = []

    def do() -> None:
        if (given.out is None) == (given.count is None):
            raise RequestError("one of the two is needed", where="--out or --count")
        ended.append(_there(given) if given.out else _here(given))

    return commands.status(do) or ended[0]


def programs(bundles: Path) -> dict[str, Path]:
    """`headline: program` -> bundle."""
    entries = {each["name"]: each["entries"] for each in check.read_index(bundles)}
    found = {}
    for headline, role in PROGRAMS:
        first = next((each for each in entries.get(headline, ()) if each["role"] == role), None)
        if first is not None:
            found[f"{headline}: {first['name']}"] = bundles / headline / first["path"]
    return found


# --- there ----------------------------------------------------------------------------------------------


def _there(given: argparse.Namespace) -> int:
    until = time.monotonic() + 60 * given.minutes
    _, device = check.find(given.device)
    new = runs.new("counters", "", "python -m benchmarks.counters", device.evidence, runs.described(device))
    run = runs.kept_on(given.out, device) or {**new, "counters": {}}
    why = counters.missing()
    with device_lock(device, stop=lambda: False, waiting=say):
        for name, bundle in programs(given.bundles).items():
            if "launches" in run["counters"].get(name, {}):
                continue
            if time.monotonic() > until:
                return MORE
            run["counters"][name] = {"problem": why} if why else by_ncu(bundle, device.name)
            runs.write(given.out, run)
            say(f"{name}: {run['counters'][name].get('problem') or 'counted'}")
    return int(not any("launches" in each for each in run["counters"].values()))


def by_ncu(bundle: Path, device: str) -> dict[str, Any]:
    """`launches`: kernel -> column -> what ncu counted, of the last launch of each; or the `problem`."""
    ncu = shutil.which("ncu")
    assert ncu is not None
    metrics = [each for column in METRICS.values() for each in column]
    command = counters.command(ncu, bundle, device, read_bundle(bundle)[0].launches, metrics)
    try:
        done = subprocess.run(
            command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, errors="replace",
            timeout=SECS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as problem:
        return {"problem": f"ncu: {type(problem).__name__}"}
    rows = {kernel: _columns(values) for kernel, values in counters.parse(done.stdout).items()}
    launches = {kernel: columns for kernel, columns in rows.items() if columns}
    if launches:
        return {"launches": launches}
    if "ERR_NVGPUCTRPERM" in done.stdout + done.stderr:
        return {"problem": "this user may not read the GPU's counters (ERR_NVGPUCTRPERM)"}
    said = next((line.strip() for line in reversed((done.stdout + done.stderr).splitlines()) if line.strip()), "")
    return {"problem": f"ncu ended with status {done.returncode} and said nothing of the kernels: {said}"[:300]}


def _columns(values: Mapping[str, float]) -> dict[str, float]:
    return {
        column: sum(values[each] for each in metrics)
        for column, metrics in METRICS.items()
        if all(each in values for each in metrics)
    }


# --- here -----------------------------------------------------------------------------------------------


def _here(given: argparse.Namespace) -> int:
    run = json.loads(given.count.read_text(encoding="utf-8"))
    found = programs(given.bundles)
    wanted = {name: bundle for name, bundle in found.items() if "launches" in run["counters"].get(name, {})}
    run["counted"] = counted(wanted, run["device"]["arch"])
    runs.write(given.count, run)
    run["ranking"] = {}
    for headline in RANKED:
        result = given.headlines / f"{headline}.json" if given.headlines else None
        if result is not None and result.exists():
            document = json.loads(result.read_text(encoding="utf-8"))
            run["ranking"][headline] = ranking(document, given.bundles / headline, run["device"]["arch"])
            runs.write(given.count, run)
    return 0


def ranking(document: Mapping[str, Any], folder: Path, arch: str) -> dict[str, Any]:
    """Of a headline's programs that were timed: (bound, time) of each in microseconds, and whether the order by bound
    is the order by time. Programs that are not those of the folder any more are left out."""
    index = {each["name"]: each for each in check.read_index(folder.parent)}[folder.name]["entries"]
    timed = {
        each["name"]: folder / each["path"] for each in index
        if each["program_key"] == document["entries"].get(each["name"], {}).get("program_key")
        and document["screened"].get(each["name"], {}).get("time_us")
    }  # fmt: skip
    bounds = {name: each["bound_us"] for name, each in counted(timed, arch).items() if each.get("bound_us")}
    both = {name: (bound, document["screened"][name]["time_us"]) for name, bound in bounds.items()}
    return {"programs": {name: list(each) for name, each in both.items()}, "spearman": spearman(list(both.values()))}


def counted(bundles: Mapping[str, Path], arch: str) -> dict[str, Any]:
    """Program -> kernel -> column -> what is counted of it, and its bound (`program_bound_us`); or the `problem`."""
    from fusiond.devices.counting import child_process
    from fusiond.devices.counting.model import GPUS, gpu_named

    model = next((name for name in GPUS if gpu_named(name).arch == arch), None)
    if model is None:
        return {name: {"problem": f"there is no model of {arch}"} for name in bundles}
    found: dict[str, Any] = {}
    for name, bundle in bundles.items():
        rows = child_process.counted({name: read_bundle(bundle)[0]}, model=model, timeout_secs=COUNT_SECS)
        failed = next((each["failed"] for each in rows if each["failed"]), None)
        if failed or not rows:
            found[name] = {"problem": failed or "no kernel is launched"}
            continue
        kernels: dict[str, dict[str, float]] = {}
        for row in rows:
            columns = dict(row) | {"warp_instructions": sum((row["warp_instructions"] or {}).values()) or None}
            kernels[row["kernel"]] = {each: columns[each] for each in METRICS if columns.get(each) is not None}
        found[name] = {
            "launches": kernels,
            "bound_us": rows[0]["program_bound_us"],
            "error": None if any(each["error"] is None for each in rows) else max(each["error"] for each in rows),
        }
        say(f"{name}: counted")
    return found


def errors(run: Mapping[str, Any]) -> Iterable[tuple[str, str, dict[str, tuple[float, float]]]]:
    """(program, kernel, column -> (counted, by ncu)) of each launch that both know."""
    for program, theirs in run["counters"].items():
        ours = run.get("counted", {}).get(program, {}).get("launches", {})
        short = {counters.function_name(kernel): columns for kernel, columns in ours.items()}
        for kernel, columns in theirs.get("launches", {}).items():
            name = counters.function_name(kernel)
            if name in short:
                both = {each: (short[name][each], value) for each, value in columns.items() if each in short[name]}
                yield program, name, both


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The correlation of ranks; None for fewer than three."""
    from scipy import stats

    if len(pairs) < 3:
        return None
    return round(float(stats.spearmanr(*zip(*pairs, strict=True)).statistic), 3)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
