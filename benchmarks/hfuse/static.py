"""What is known of the pairs without a GPU, for an architecture that is named.

- registers, spills, shared memory, barriers and theoretical occupancy of the native kernels, the even split with and
  without the register bound r0, and the vertical fusion: the facts that `fusiond plan` shows
- how long one fused candidate takes to be written, after parsing
- what the whole space of a pair costs the compiler: nvcc once for each text (launch bounds are part of it), ptxas once
  more for each number of registers
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import resource
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.hfuse import pairs
from benchmarks.hfuse.pairs import Pair
from fusiond.build import nvcc
from fusiond.build.cache import BuildCache
from fusiond.model.nouns import Analysis, Config, Rejection
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Launch, Program, Source
from fusiond.requests.launch_facts import kernel_facts
from fusiond.requests.planning import Prepared, prepare, reference, target_for_arch
from fusiond.requests.registry import Registry
from fusiond.strategy import Target

SHOWN = ("paper_even_split", "paper_r0", "vertical")  #: Seeds with columns of their own
MARGIN = 8
"""Registers that a candidate without a cap may have more than the native kernel that has most: what ptxas hands out at
once (a thread's are a multiple of eight)."""
GENERATED = 64  #: Candidates whose writing is timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A pair for one target, analysed."""

    pair: Pair
    prepared: Prepared
    target: Target
    analysis: Analysis


def known(registry: Registry, pair: Pair, target: Target) -> Known:
    prepared = prepare(registry, pairs.read(pair)[0])
    analysis = prepared.strategy.analyse(prepared.workload, target)
    return Known(pair=pair, prepared=prepared, target=target, analysis=analysis)


# --- the table ------------------------------------------------------------------------------------------


def columns(registry: Registry, pair: Pair, arch: str, *, only: Collection[str] | None = None) -> dict[str, Any]:
    """The static columns of one pair; a column that does not exist says why. `only`: of these seeds, not of all."""
    about = known(registry, pair, target_for_arch(arch))
    strategy, analysis = about.prepared.strategy, about.analysis
    programs: dict[str, Program] = {"native": reference(strategy, analysis)}
    refused: dict[str, str] = {each.rule: each.detail for each in analysis.rejections}
    space = strategy.space(analysis, {})
    seeds = {name: each for name, each in strategy.seeds(analysis, space, {}) if only is None or name in only}
    for name, config in seeds.items():
        program = strategy.emit(analysis, config, {})
        if isinstance(program, Rejection):
            refused[name] = f"{program.detail} ({program.rule})"
        else:
            programs[name] = program
    facts = kernel_facts(about.target, programs)
    workload = about.prepared.workload
    found: dict[str, Any] = {"pair": pair.name, "workload": workload.key, "sizes": dict(workload.sizes)}
    found["registers"] = {}
    for each in facts or ():
        entry = each.as_json()
        resolved = strategy.resolved(analysis, seeds[each.candidate], {}) if each.candidate in seeds else Config(())
        kept = {
            key: entry[key]
            for key in ("registers", "spill_bytes", "shared_bytes", "barriers", "threads", "blocks_per_sm")
        }
        kept |= {key: entry[key] for key in ("occupancy", "limited_by", "problem")}
        if each.candidate == "native":
            found.setdefault("native", {})[workload.members[ord(each.launch) - ord("a")]] = kept
            continue
        cap = seeds[each.candidate].get("cap", "none")
        found["registers"][each.candidate] = {"cap": cap, "registers": entry["registers"]}
        if each.candidate in SHOWN:
            found[each.candidate] = {"config": dict(resolved), **kept}
    found["bound"] = analysis.report["bound"]
    found["refused"] = refused
    return found


def over(found: Mapping[str, Any], caps: Collection[str] = ("native",)) -> dict[str, int]:
    """Seeds of a pair under one of these caps that have more registers than its native maximum and MARGIN: seed -> how
    many more than that maximum."""
    most = max(each["registers"] for each in found["native"].values())
    return {
        name: each["registers"] - most
        for name, each in found["registers"].items()
        if each["cap"] in caps and each["registers"] is not None and each["registers"] > most + MARGIN
    }


# --- what it costs --------------------------------------------------------------------------------------


def generation(registry: Registry, pair: Pair, arch: str) -> dict[str, Any]:
    """Milliseconds to write a fused candidate as a checked Program, its kernels being parsed. No compiler is asked."""
    silent = dataclasses.replace(target_for_arch(arch), facts=lambda source: None)
    begun = time.perf_counter()
    about = known(registry, pair, silent)
    parsed_ms = 1000 * (time.perf_counter() - begun)
    strategy, analysis = about.prepared.strategy, about.analysis
    spent, busy = [], []
    points = [each for each in strategy.space(analysis, {}).points() if each.get("cap", "none") == "none"]
    for config in points[:: max(1, len(points) // GENERATED)]:
        begun, computing = time.perf_counter(), time.process_time()
        program = strategy.emit(analysis, config, {})
        spent.append(1000 * (time.perf_counter() - begun))
        busy.append(1000 * (time.process_time() - computing))
        assert isinstance(program, Program), program
    return {
        "pair": pair.name,
        "parse_and_analyse_ms": round(parsed_ms, 1),
        "candidates": len(spent),
        "first_ms": round(spent[0], 2),
        "median_ms": round(statistics.median(spent), 2),
        "worst_ms": round(max(spent), 2),
        "median_cpu_ms": round(statistics.median(busy), 2),
        "worst_cpu_ms": round(max(busy), 2),
    }


def whole_space(
    registry: Registry, pair: Pair, arch: str, *, most_texts: int | None = None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Compile every partition in both orders under every cap, on all cores, with nothing in the cache.

    Runs are counted by what is in that cache afterwards, where equal work has one entry.
    """
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="fusiond-space-") as folder:
        cache = BuildCache(Path(folder))
        target = dataclasses.replace(target_for_arch(arch), facts=nvcc.NvccFacts(arch, cache=cache))
        about = known(registry, pair, target)
        natives = _runs(cache)
        begun, computing = time.perf_counter(), _cpu_secs()
        texts = _texts(registry, about, most_texts)
        written_secs = time.perf_counter() - begun
        say(f"{pair.name}: {len(texts)} texts written in {written_secs:.1f} s; nvcc")
        with ThreadPoolExecutor(threads) as pool:
            front = time.perf_counter()
            first = list(pool.map(lambda each: nvcc.build(each[1], arch, cache=cache), texts))
            front_secs = time.perf_counter() - front
            counted = _runs(cache)
            capped, refused, repeated = _capped(registry, about, texts)
            say(f"{pair.name}: nvcc and the first ptxas in {front_secs:.1f} s; {len(capped)} caps")
            back = time.perf_counter()
            second = list(pool.map(lambda source: nvcc.build(source, arch, cache=cache), capped))
            back_secs = time.perf_counter() - back
        wall_secs, cpu_secs = time.perf_counter() - begun, _cpu_secs() - computing
        runs = _runs(cache)
    failed = [each for each in (*first, *second) if isinstance(each, BuildFailed)]
    return {
        "pair": pair.name,
        "arch": arch,
        "texts": len(texts),
        "points": len(texts) + len(capped) + refused + repeated,
        "refused_by_a_static_limit": refused,
        "repeated": repeated,
        "nvcc_runs": runs["nvcc"] - natives["nvcc"],
        "ptxas_runs": runs["ptxas"] - natives["ptxas"],
        "ptxas_runs_without_a_cap": counted["ptxas"] - natives["ptxas"],
        "failed": len(failed),
        "reasons": dict(Counter(each.reason for each in failed).most_common(3)),
        "threads": threads,
        "secs": {
            "writing": round(written_secs, 2),
            "nvcc_and_first_ptxas": round(front_secs, 2),
            "ptxas_under_caps": round(back_secs, 2),
            "wall": round(wall_secs, 2),
            "cpu": round(cpu_secs, 2),
        },
    }


def _texts(registry: Registry, about: Known, most: int | None) -> list[tuple[Config, Source, int]]:
    """Every partition, side by side in one block, in both orders, uncapped: (config, fused source, threads of a
    block)."""
    silent = known(registry, about.pair, dataclasses.replace(about.target, facts=lambda source: None))
    strategy = about.prepared.strategy
    found: list[tuple[Config, Source, int]] = []
    for config in itertools.islice(_partitions(silent), most):
        program = strategy.emit(silent.analysis, config, {})
        if isinstance(program, Program):
            launch = program.steps[-1]
            assert isinstance(launch, Launch)
            found.append((config, program.source(launch.source), launch.block[0]))
    return found


def _partitions(about: Known) -> Iterator[Config]:
    """The points without a cap at the paper's level."""
    strategy = about.prepared.strategy
    fixed = {"kind": "horizontal", "level": "warp", "map": "pad", "cap": "none"}
    for config in strategy.space(about.analysis, {}).points():
        if all(config.get(name) == value for name, value in fixed.items()):
            yield config


def _capped(registry: Registry, about: Known, texts: list[tuple[Config, Source, int]]) -> tuple[list[Source], int, int]:
    """Each text under each cap, r0 among them, once; how many a static limit refuses; how many repeat another."""
    facts = about.target.facts
    alone = dataclasses.replace(about.target, facts=lambda source: None if source.name == "fused" else facts(source))
    strategy, analysis = about.prepared.strategy, known(registry, about.pair, alone).analysis
    caps = next(each.values for each in strategy.space(analysis, {}).parameters if each.name == "cap")
    found: dict[Source, None] = {}
    refused = repeated = 0
    for config, _, _ in texts:
        for cap in caps:
            if cap == "none":
                continue
            program = strategy.emit(analysis, Config.of({**config, "cap": cap}), {})
            if isinstance(program, Rejection):
                refused += 1
            elif program.source("fused") in found:
                repeated += 1
            else:
                found[program.source("fused")] = None
    return list(found), refused, repeated


def _cpu_secs() -> float:
    """Of this process and of the compilers that it ran."""
    return sum(each.ru_utime + each.ru_stime for each in map(resource.getrusage, (
        resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN,
    )))  # fmt: skip


def _runs(cache: BuildCache) -> dict[str, int]:
    """How often each compiler ran: an entry for each, a failure too."""
    suffixes = Counter(each.suffix for each in cache.folder.glob("??/*"))
    return {"nvcc": suffixes[".json"], "ptxas": suffixes[".cubin"] + suffixes[".no"]}
