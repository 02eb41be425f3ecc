"""Here, without a GPU: the programs of a headline, built and written as bundles. There nothing is compiled.

Unfused is every way of the strategy (one after the other, streams, a graph) as given, and the first of them with each
of its knobs turned (as `fusiond.tuning.baselines` goes through them). Fused are the strategy's seeds, and the first of
them with each knob turned. Of what is turned only so many are taken, evenly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contest import spread
from benchmarks.headlines.catalogue import HEADLINES, Headline
from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices.base import DeviceProvider
from fusiond.model.errors import FusiondError
from fusiond.model.nouns import Config
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program
from fusiond.requests import jobs
from fusiond.requests.planning import Plan, emitted, plan, reference, sound
from fusiond.requests.registry import Registry
from fusiond.strategy.space import Space

MOST_UNFUSED, MOST_FUSED = 24, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    name: str
    role: str  #: `unfused` or `fused`
    config: Config
    program: Program


def write(
    registry: Registry, headline: Headline, folder: Path, arch: str, pool: ThreadPoolExecutor, *, tiny: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """The headline's part of index.json, and a line for each program that could not be built. FusiondError where it
    cannot be planned, or its unfused program not be built."""
    emulated = arch == "cpu"
    provider = registry.provider("cpu" if emulated else "cuda")
    text = headline.job(tiny=emulated or tiny)
    (job,) = jobs.read(f"{headline.name}.yaml", text, device="cpu" if emulated else None)
    found = plan(registry, job, arch=None if emulated else arch)
    native = sound(headline.strategy, reference(found.prepared.strategy, found.analysis))
    wanted = [Entry(name="native", role="unfused", config=Config(()), program=native), *taken(found)]
    entries: list[dict[str, Any]] = []
    failed: list[str] = []
    keys: set[str] = set()
    distinct: list[tuple[Entry, Program]] = []
    for each in wanted:
        program = provider.normalise(each.program)
        if program.key not in keys:
            keys.add(program.key)
            distinct.append((each, program))

    def written(number: int) -> str:
        return built(provider, distinct[number][1], found.target.arch, folder / f"{number}")

    for number, problem in enumerate(pool.map(written, range(len(distinct)))):
        each, program = distinct[number]
        if problem:
            if number == 0:
                raise FusiondError(problem)
            failed.append(f"{each.name}: {problem}")
            continue
        entries.append({
            "name": each.name, "role": each.role, "config": dict(each.config), "path": f"{number}",
            "program_key": program.key,
        })  # fmt: skip
    about = {"name": headline.name, "strategy": headline.strategy, "what": headline.what}
    return {**about, "sizes": dict(found.workload.sizes), "entries": entries}, failed


def taken(found: Plan) -> Iterator[Entry]:
    """Every way unfused and fused, those as given and the seeds before what is turned."""
    strategy, analysis = found.prepared.strategy, found.analysis
    baselines = strategy.baselines(analysis)
    turned: list[Entry] = []
    for baseline in baselines:
        plain = next(baseline.space.points())
        yield Entry(
            name=baseline.name, role="unfused", config=plain,
            program=sound(strategy.name, baseline.emit(plain)),
        )  # fmt: skip
        if baseline.like is None:
            turned += [
                Entry(name=f"{baseline.name} {config}", role="unfused", config=config,
                      program=sound(strategy.name, baseline.emit(config)))
                for config in one_pass(baseline.space, plain)
            ]  # fmt: skip
    fused = list(_fused(found, found.seeds))
    yield from fused
    yield from spread(turned, MOST_UNFUSED)
    if found.seeds:
        label, seed = found.seeds[0]
        near = [(f"{label} {config}", config) for config in one_pass(found.space, seed)]
        yield from _fused(found, spread(near, MOST_FUSED - len(fused)))


def _fused(found: Plan, configs: Iterable[tuple[str, Config]]) -> Iterator[Entry]:
    strategy = found.prepared.strategy
    for label, config in configs:
        program = emitted(strategy, found.analysis, config, {})
        if isinstance(program, Program):  # else a rule said no: there is nothing to run
            yield Entry(name=label, role="fused", config=config, program=program)


def one_pass(space: Space, start: Config) -> Iterator[Config]:
    """Each other value of each knob, the rest as they are."""
    for parameter in space.parameters:
        for value in parameter.values:
            config = Config.of({**start, parameter.name: value})
            if config != start and not space.problems(config):
                yield config


def built(provider: DeviceProvider, program: Program, arch: str, folder: Path) -> str:
    """Build and write one bundle; what went wrong, in one line."""
    binaries = {}
    for source in program.sources:
        found = provider.build(source, arch)
        if isinstance(found, BuildFailed):
            return f"{source.name} does not build: {found.reason}"
        binaries[source.name] = found.path
    write_bundle(folder, program, binaries)
    return ""


def write_all(
    registry: Registry, folder: Path, arch: str, names: Iterable[str], pool: ThreadPoolExecutor, *, tiny: bool = False
) -> list[str]:
    """The headlines' bundles, and index.json; a line for each thing that could not be built. `tiny`: at small sizes, as
    always for a processor."""
    entries, failed = [], []
    for name in names:
        try:
            entry, lines = write(registry, HEADLINES[name], folder / name, arch, pool, tiny=tiny)
        except FusiondError as problem:
            failed.append(f"{name}: {problem}")
            continue
        entries.append(entry)
        failed += [f"{name}: {line}" for line in lines]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.json").write_text(json.dumps({"entries": entries}, indent=1) + "\n")
    return failed
