"""What every workload of the catalogues, and every job of configs/jobs/gpu, would pay on a GPU that is not here, beside
the least possible: `python -m benchmarks.counting [--only NAME ...] [--gpu h100] [--seeds 3] [--cost] [--page]`.

The unfused program as given and the first seeds of its strategy are counted (docs/counting.md), at the sizes of the
papers and at those of models. The least possible is what the smallest of them must touch, and no more than all inputs
read once and all outputs written once. `--cost`: how long counting takes beside a plain run on the cpu device, in one
run. Nothing is measured on a GPU. The run is written after each workload, and goes on where it was (`--anew`: not).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import runs
from benchmarks.hfuse.pairs import PAIRS
from benchmarks.pages import DOCS, table
from fusiond.cli.counts import size
from fusiond.devices.counting import child_process
from fusiond.devices.counting.model import GPUS, gpu_named
from fusiond.devices.counting.run import count
from fusiond.devices.cpu.provider import CpuProvider
from fusiond.model.errors import FusiondError
from fusiond.model.inputs.fills import initial
from fusiond.model.nouns import Job
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program, Role
from fusiond.requests import jobs
from fusiond.requests.planning import Plan, plan, reference
from fusiond.requests.registry import Registry
from tools.gpu_box.build import catalogue, small

MODELS = Path(__file__).parents[1] / "configs" / "jobs" / "gpu"
SECS = 240.0
MOST_ERROR = 0.05  #: What sampling says less of is counted whole, where that takes no longer than this
WHOLE_SECS = 90.0
COSTS = ("hfuse:hist,maxpool", "mincut:harris", "stitching:lr_step", "transfer:fig2")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.counting", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="STRATEGY[:NAME]")
    parser.add_argument("--gpu", default="h100", help=f"one of {', '.join(GPUS)}; default: h100")
    parser.add_argument("--seeds", type=int, default=3, help="candidates of each workload; default: 3")
    parser.add_argument("--anew", action="store_true", help="count again what the last run has")
    parser.add_argument("--cost", action="store_true", help="only how long counting takes beside a plain run")
    parser.add_argument("--page", action="store_true", help="write the page of what is kept, and nothing else")
    return parser


def main(argv: Sequence[str]) -> int:
    given = _parser().parse_args(argv)
    gpu = gpu_named(given.gpu)
    where = runs.RESULTS / "static" / f"counting-{gpu.name}.json"
    run = runs.new("counting", "", " ".join(["python -m benchmarks.counting", *argv]), "static", {"model": gpu.name})
    before = next((each for each in runs.kept("counting", where.parent) if each["device"]["model"] == gpu.name), None)
    run["workloads"] = {} if before is None or given.anew else before["workloads"]
    run["cost"] = {} if before is None else before.get("cost", {})
    registry = Registry.load()
    names = [name for name, _ in asked(registry)]
    if given.page:
        DOCS.joinpath("results-counted.md").write_text(page(before or run, names), encoding="utf-8")
        return 0
    for name, job in () if given.cost else asked(registry):
        strategy = name.partition(":")[0]
        if (given.only and not {name, strategy} & set(given.only)) or name in run["workloads"]:
            continue
        run["workloads"][name] = of_workload(registry, job, gpu.name, gpu.arch, given.seeds)
        runs.write(where, run)
        sys.stdout.write(f"{name}: {run['workloads'][name].get('problem') or 'counted'}\n")
    if given.cost:
        run |= {name: before[name] for name in ("command", "date", "machine")} if before else {}
        run["cost"] = {name: cost(registry, name, job) for name, job in asked(registry) if name in COSTS}
        runs.write(where, run)
    DOCS.joinpath("results-counted.md").write_text(page(run, names), encoding="utf-8")
    return 0


def asked(registry: Registry) -> Iterator[tuple[str, Job]]:
    """The catalogues and the jobs for a GPU by their names; of pairs of kernels those of the paper, last: they are the
    largest."""
    paper = {frozenset((each.first, each.second)) for each in PAIRS}
    for path in sorted(MODELS.glob("*.yaml")):
        for job in jobs.read(path):
            if job.strategy != "hfuse":  # those are the paper's pairs
                yield f"{job.strategy}:{path.stem}.yaml", job
    for strategy, name, job in sorted(catalogue(registry), key=lambda each: each[0] == "hfuse"):
        if strategy != "hfuse" or frozenset(name.split(",")) in paper:
            yield f"{strategy}:{name}", job


def of_workload(registry: Registry, job: Job, gpu: str, arch: str, seeds: int) -> dict[str, Any]:
    """The figures of each program by its label, and the least possible; or the problem."""
    begun = time.monotonic()
    try:
        found = plan(registry, job, arch=arch)
        programs = chosen(found, seeds)
        rows = child_process.counted(programs, model=gpu, timeout_secs=SECS)
        unsure = {row["program"] for row in rows if row["failed"] is None and not is_sure(row["error"])}
        again = child_process.counted(
            {name: programs[name] for name in unsure}, model=gpu, whole=True, timeout_secs=WHOLE_SECS
        )
        sure = {row["program"] for row in again} - {row["program"] for row in again if row["failed"]}
        rows = [row for row in rows if row["program"] not in sure]
        rows += [row for row in again if row["program"] in sure]
    except FusiondError as problem:
        return {"problem": str(problem)}
    figures = {label: summed([row for row in rows if row["program"] == label]) for label in programs}
    least = [each["minimal_bytes"] for each in figures.values() if each["failed"] is None]
    ends = next(iter(programs.values())).buffers
    once = sum(each.size_bytes for each in ends if each.role is not Role.SCRATCH)
    return {
        "sizes": dict(found.workload.sizes),
        "programs": figures,
        "least_bytes": min([once, *least]),
        "secs": round(time.monotonic() - begun, 1),
    }


def chosen(found: Plan, seeds: int) -> dict[str, Program]:
    """The unfused program and the first seeds that differ from it and from one another."""
    programs, keys = {}, set()
    for name, program in found.programs.items():
        if program.key not in keys and len(programs) <= seeds:
            programs[name.removeprefix("seed:")] = program
        keys.add(program.key)
    return programs


def summed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of one program's launches."""
    failed = next((each["failed"] for each in rows if each["failed"]), None)
    if failed is not None or not rows:
        return {"failed": failed or "no kernel is launched", "launches": len(rows)}
    longest = max(rows, key=lambda each: each["bound_us"])
    whole = {
        name: sum(each[name] or 0 for each in rows) for name in ("dram_bytes", "minimal_bytes", "ptx_instructions")
    }
    sass = [each["instructions"] for each in rows]
    return {
        "failed": None,
        "launches": len(rows),
        **whole,
        "instructions": None if None in sass else sum(sass),
        "spill_bytes": sum(each["spill_bytes"] or 0 for each in rows),
        "bound_us": rows[0]["program_bound_us"],
        "binding": longest["binding"],
        "sampled": min(each["sampled"] for each in rows),
        "error": None if any(each["error"] is None for each in rows) else max(each["error"] for each in rows),
    }


def is_sure(error: float | None) -> bool:
    return error is not None and error <= MOST_ERROR


def cost(registry: Registry, name: str, job: Job) -> dict[str, float]:
    """Seconds of counting every block of the unfused program, and of running it on the cpu device, builds apart."""
    strategy, _, member = name.partition(":")
    found = plan(registry, small(registry, strategy, member, job))
    program, provider = reference(found.prepared.strategy, found.analysis), CpuProvider()
    binaries = {}
    for source in program.sources:
        built = provider.build(source, "cpu")
        if isinstance(built, BuildFailed):
            raise SystemExit(f"{name}: {built.reason}")
        binaries[source.name] = built.path
    count(program, budget=None)  # builds
    loaded = provider.executor("cpu").load(program, binaries)
    for buffer in program.buffers:
        loaded.write(buffer.name, initial(buffer, 0))
    counting, running = [], []
    for _ in range(5):
        begun = time.process_time()
        count(program, budget=None)
        middle = time.process_time()
        loaded.run(seed=0, checked=False)
        counting.append(middle - begun)
        running.append(time.process_time() - middle)
    secs = statistics.median(counting), statistics.median(running)
    return {"count_secs": round(secs[0], 4), "run_secs": round(secs[1], 4), "ratio": round(secs[0] / secs[1], 1)}


def page(run: Mapping[str, Any], names: Sequence[str]) -> str:
    """docs/results-counted.md; `names` are the workloads that should be on it."""
    head = ("workload", "program", "launches", "DRAM", "least", "x least", "bound", "bound by", "error")
    lines: list[tuple[str, ...]] = []
    lacking = [f"{name}: not run yet" for name in names if name not in run["workloads"]]
    for name, found in run["workloads"].items():
        if "problem" in found:
            lacking.append(f"{name}: {found['problem']}")
            continue
        for label, each in found["programs"].items():
            if each["failed"]:
                lacking.append(f"{name}, {label}: {each['failed']}")
                continue
            least = found["least_bytes"]
            lines.append((
                name.replace("|", " "), label, str(each["launches"]), size(each["dram_bytes"]), size(least),
                f"{each['dram_bytes'] / least:.2f}" if least else "", f"{each['bound_us']:.1f} us", each["binding"],
                "unknown" if each["error"] is None else f"{100 * each['error']:.1f} %",
            ))  # fmt: skip
    missing = "\n".join(f"- {line}" for line in lacking) or "None."
    costs = [
        (name, f"{each['count_secs'] * 1e3:.0f} ms", f"{each['run_secs'] * 1e3:.1f} ms", f"{each['ratio']:.0f}")
        for name, each in run["cost"].items()
    ]
    return f"""# What the catalogues would pay

By `{run["command"]}`
on {run["date"].partition("T")[0]}, for {run["device"]["model"]}, with nvcc {run["nvcc"]}, on the processor.

**Nothing on this page is measured on a GPU**: bytes are those that would go to and from DRAM, bounds are times that no
run can be shorter than ([counting.md](counting.md)). `reference` is the unfused program as given, the others are what
the strategies try first, before any search. `least` is what the smallest of a workload's programs must touch, and no
more than all inputs read once and all outputs written once. `error` is what sampling says of itself; where that is
unknown, or 100 % or more, the DRAM bytes are as near as one can tell.

{table(head, lines)}
## Not counted

{missing}

## What counting costs

Processor time of counting every block of an unfused program beside a plain run of it on the cpu device, at small sizes,
the median of five in one run:

{table(("workload", "counted", "run", "ratio"), costs)}"""


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
