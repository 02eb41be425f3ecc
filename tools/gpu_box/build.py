"""Builds the folder that a GPU box without a registry runs: `python -m tools.gpu_box.build OUT [--wheels DIR]`.

    OUT.tar.gz          all of it, to carry there
    OUT/run_all.py      the one command there: `python run_all.py`
    OUT/source/         this repository's packages, benchmarks, tests and jobs, and what makes plugins known
    OUT/wheels/         what the box lacks, as wheels: fetched (wheels.py), and those in --wheels DIR (PyCUDA)
    OUT/bundles/        built here by nvcc for --arch: every workload of the catalogue, unfused and with the first seeds
                        of its strategy; a program of each kind of launch (smoke_programs.py); questions that only a
                        GPU can answer (questions.py); headlines/ (benchmarks/headlines); null/ (null.py)
    OUT/capture/        a program that is captured there, and what notes its launches (captures.py)
    OUT/manifest.json   date, commit, compiler, what is in it, and what could not be built and why

Bundles need no compiler there. `--arch cpu` builds the same for the processor, at small sizes, to try it out.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.headlines import headline_programs
from benchmarks.headlines.headline_programs import built
from benchmarks.headlines.order import ORDER
from benchmarks.hfuse.pairs import TINY
from fusiond import __version__
from fusiond.build import nvcc
from fusiond.devices.base import DeviceProvider
from fusiond.model.errors import FusiondError
from fusiond.model.nouns import Job
from fusiond.model.program import Program
from fusiond.requests import jobs
from fusiond.requests.planning import Plan, emitted, plan, prepare, reference, sound
from fusiond.requests.registry import Registry
from tools.gpu_box import captures, null, questions, smoke_programs, wheels

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
COPIED = ("fusiond", "plugins", "benchmarks", "tests", "tools", "configs", "pyproject.toml", "README.md")
REQUESTS: Mapping[str, tuple[str, str]] = {
    # strategy: (kind of its catalogue's entries, key of a job file)
    "hfuse": ("kernel", "pair"),
    "mincut": ("pipeline", "pipeline"),
    "stitching": ("module", "module"),
    "transfer": ("graph", "graph"),
}
SMALL: Mapping[str, Mapping[str, int]] = {
    "mincut": {"width": 64, "height": 48},
    "transfer": {"elements": 512, "side": 16},
}
"""For the processor: those of them that a workload has."""
QUESTION_SECS = 10.0
ALIVE = ("hfuse/hist+maxpool", "mincut/sobel", "stitching/lr_step", "transfer/fig2")
"""A workload of each strategy, for the first look."""
COMMANDS = """\
There, one command after the other, each in the folder to which the file was carried; OUT is the folder that comes back:

    tar xzf gpu-box.tar.gz && python3 gpu-box/run_all.py --minutes 8.5 --call 1 --archive $OUT/results.tar.gz
    tar xzf gpu-box.tar.gz && python3 gpu-box/run_all.py --minutes 3 --call 2 --archive $OUT/results.tar.gz \\
        --after results.tar.gz

Before the second one, put the results.tar.gz that came back beside gpu-box.tar.gz. Here, after each:

    make gpu-results RESULTS=results.tar.gz
"""


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 built, 1 some workload was not, 2 the request was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_box.build")
    parser.add_argument("out", type=Path, help="a folder that does not exist yet")
    parser.add_argument("--wheels", type=Path, help="wheels that cannot be fetched: PyCUDA, for the box's Python")
    parser.add_argument("--no-fetch", action="store_true", help="only the wheels in --wheels")
    parser.add_argument("--python", default="3.12", metavar="X.Y", help="of the box; default: 3.12")
    parser.add_argument(
        "--there",
        nargs="*",
        default=wheels.THERE,
        metavar="NAME",
        help="what the box has; default: what one with PyTorch and JAX has",
    )
    parser.add_argument("--arch", default="sm_90", help="sm_90, sm_80, ...; or cpu; default: sm_90")
    parser.add_argument("--small", action="store_true", help="small sizes of what is measured, to rehearse with")
    parser.add_argument("--seeds", type=int, default=2, help="candidates of each workload; default: 2")
    parser.add_argument("--only", nargs="*", metavar="STRATEGY[:NAME]", help="default: all of all strategies")
    given = parser.parse_args(argv)
    if given.out.exists():
        sys.stderr.write(f"{given.out} exists already\n")
        return 2
    if given.arch != "cpu" and (line := nvcc.missing()) is not None:
        sys.stderr.write(f"{line}\n")
        return 2
    given.out.mkdir(parents=True)
    _copy_source(given.out / "source")
    problem = ""
    if given.no_fetch:
        (given.out / "wheels").mkdir()
        for wheel in sorted(given.wheels.glob("*.whl")) if given.wheels else ():
            shutil.copyfile(wheel, given.out / "wheels" / wheel.name)
    else:
        problem = wheels.fetch(given.out / "wheels", own=given.wheels, python=given.python, there=given.there)
    shutil.copy(HERE / "run_all_entry.py", given.out / "run_all.py")
    begun = time.monotonic()
    registry, bundles = Registry.load(), given.out / "bundles"
    headlines = [name for name in ORDER if not given.only or {"headlines", f"headlines:{name}"} & set(given.only)]
    failed: list[str] = []
    if headlines:
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # compilers are processes of their own
            where = bundles / "headlines"
            failed += headline_programs.write_all(registry, where, given.arch, headlines, pool, tiny=given.small)
    if not given.only or "null" in given.only:
        write_null(registry, bundles, given.arch, small=given.small)
    if given.arch != "cpu" and (not given.only or "capture" in given.only):
        captures.write(given.out / "capture", given.arch)
    entries, others = write_bundles(registry, bundles, given.arch, given.seeds, given.only)
    failed += others
    manifest = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "fusiond": __version__,
        "commit": _commit(),
        "arch": given.arch,
        "nvcc": nvcc.version(),
        "headlines": headlines,
        "entries": len(entries),
        "candidates": sum(len(each["candidates"]) for each in entries),
        "build_secs": round(time.monotonic() - begun, 1),
        "python": None if given.no_fetch else given.python,
        "wheels": sorted(each.name for each in (given.out / "wheels").iterdir()),
        "not_built": failed + ([problem] if problem else []),
    }
    (given.out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    packed = _packed(given.out)
    said = f"{len(headlines)} headlines, {manifest['entries']} workloads, {len(manifest['wheels'])} wheels"
    sys.stdout.write(f"{packed}: {said}, {packed.stat().st_size / 2**20:.1f} MiB\n\n{COMMANDS}\n")
    for line in manifest["not_built"]:
        sys.stdout.write(f"not built: {line}\n")
    return 1 if manifest["not_built"] else 0


def _packed(folder: Path) -> Path:
    """The folder as one file to carry."""
    path = folder.with_name(f"{folder.name}.tar.gz")
    with tarfile.open(path, "w:gz", compresslevel=6) as archive:
        archive.add(folder, arcname=folder.name)
    return path


# --- bundles --------------------------------------------------------------------------------------------


def write_bundles(
    registry: Registry, folder: Path, arch: str, seeds: int, only: Sequence[str] | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """The entries of index.json, and a line for everything that could not be built."""
    provider = registry.provider("cpu" if arch == "cpu" else "cuda")
    entries: list[dict[str, Any]] = []
    failed: list[str] = []

    def made(asked: tuple[str, str, Job]) -> tuple[dict[str, Any] | None, list[str]]:
        strategy, name, job = asked
        try:
            if arch == "cpu":
                job = small(registry, strategy, name, job)
            found = plan(registry, job, arch=None if arch == "cpu" else arch)
            entry, lines = _workload(provider, found, folder, f"{strategy}/{name.replace(',', '+')}", seeds)
        except FusiondError as problem:
            return None, [f"{strategy} {name}: {problem}"]
        return entry, [f"{strategy} {name}: {line}" for line in lines]

    asked = [each for each in catalogue(registry) if not only or each[0] in only or f"{each[0]}:{each[1]}" in only]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # compilers are processes of their own
        for entry, lines in pool.map(made, asked):
            failed += lines
            entries += [entry] if entry is not None else []
    if not only or "alive" in only:
        entries += _alive(provider, entries, folder, arch)
    if not only or "questions" in only:
        entries += [_question(provider, each, folder, arch) for each in questions.QUESTIONS]
    folder.mkdir(exist_ok=True)
    (folder / "index.json").write_text(json.dumps({"entries": entries}, indent=1) + "\n")
    return entries, failed


def catalogue(registry: Registry) -> Iterator[tuple[str, str, Job]]:
    """Every workload that the strategies' catalogues name: (strategy, name, job). Kernels come in pairs."""
    for strategy, (kind, key) in REQUESTS.items():
        if strategy not in registry.strategies:
            continue
        names = sorted(registry.names(kind))
        chosen = [f"[{a}, {b}]" for a, b in itertools.combinations(names, 2)] if key == "pair" else names
        for each in chosen:
            (job,) = jobs.read("catalogue.yaml", f"strategy: {strategy}\n{key}: {each}\n")
            yield strategy, each.strip("[]").replace(", ", ","), job


def small(registry: Registry, strategy: str, name: str, job: Job) -> Job:
    """A workload of the catalogue for the processor."""
    wanted = SMALL.get(strategy, {})
    if REQUESTS[strategy][1] == "pair":
        wanted = {f"{member}.{size}": value for member in name.split(",") for size, value in TINY[member].items()}
    known = prepare(registry, job).workload.sizes
    return dataclasses.replace(job, device="cpu", sizes={size: wanted[size] for size in wanted if size in known})


def _workload(
    provider: DeviceProvider, found: Plan, folder: Path, name: str, seeds: int
) -> tuple[dict[str, Any], list[str]]:
    strategy, arch = found.prepared.strategy, found.target.arch
    native = provider.normalise(sound(strategy.name, reference(strategy, found.analysis)))
    problem = built(provider, native, arch, folder / name / "native")
    if problem:
        raise FusiondError(problem)
    candidates: list[dict[str, Any]] = []
    lines, keys = [], {native.key}
    for label, config in found.seeds:
        if len(candidates) == seeds:
            break
        program = emitted(strategy, found.analysis, config, {})
        if not isinstance(program, Program):
            continue  # a rule said no: nothing to run
        normal = provider.normalise(program)
        if normal.key in keys:
            continue
        keys.add(normal.key)
        path = f"{name}/{label}"
        problem = built(provider, normal, arch, folder / path)
        if problem:
            lines.append(f"{label}: {problem}")
        else:
            candidates.append({"name": label, "path": path, "config": dict(config)})
    sizes = dict(found.workload.sizes)
    return {"name": name, "native": f"{name}/native", "candidates": candidates, "sizes": sizes}, lines


def _alive(
    provider: DeviceProvider, entries: Sequence[dict[str, Any]], folder: Path, arch: str
) -> Iterator[dict[str, Any]]:
    """Every kind of launch beside a plain one; and of each strategy a workload that is there already."""
    made = {each.name: each for each in (smoke_programs.NATIVE, *smoke_programs.programs())}
    for name, program in made.items():
        if problem := built(provider, provider.normalise(program), arch, folder / "alive" / name):
            raise FusiondError(f"alive/{name}: {problem}")
    native, *kinds = (f"alive/{name}" for name in made)
    candidates = [{"name": path.removeprefix("alive/"), "path": path} for path in kinds]
    yield {"name": "alive/launches", "native": native, "candidates": candidates}
    yield from ({**each, "name": f"alive/{each['name']}"} for each in entries if each["name"] in ALIVE)


def write_null(registry: Registry, bundles: Path, arch: str, *, small: bool = False) -> None:
    """What is measured against itself, with an index of its own."""
    provider = registry.provider("cpu" if arch == "cpu" else "cuda")
    entries = [{"name": name, "native": path} for name, path in null.of_headlines(bundles)]
    for name, program in null.programs(tiny=small or arch == "cpu"):
        path = name.replace(" ", "-")
        if problem := built(provider, provider.normalise(program), arch, bundles / "null" / path):
            raise FusiondError(f"null/{name}: {problem}")
        entries.append({"name": name, "native": path})
    (bundles / "null" / "index.json").write_text(json.dumps({"entries": entries}, indent=1) + "\n")


def _question(provider: DeviceProvider, question: questions.Question, folder: Path, arch: str) -> dict[str, Any]:
    name = f"questions/{question.name}"
    candidates = []
    for index, entry in enumerate(("copy", *question.entries)):
        path = f"{name}/{'native' if index == 0 else f'{index}'}"
        problem = built(provider, provider.normalise(questions.program(entry)), arch, folder / path)
        if problem:
            raise FusiondError(f"{name}: {problem}")
        if index:
            candidates.append({"name": entry, "path": path})
    return {
        "name": name,
        "native": f"{name}/native",
        "candidates": candidates,
        "expect": "any",
        "timeout_secs": QUESTION_SECS,
        "question": question.text,
    }


# --- source ---------------------------------------------------------------------------------------------


def _copy_source(target: Path) -> None:
    """What git knows of or would take, and the metadata by which the plugins are found without an installation."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *COPIED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if not (ROOT / name).is_file():
            continue  # deleted, and not committed yet
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    metadata = target / f"fusiond-{__version__}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fusiond\nVersion: {__version__}\n")
    lines = ["[fusiond]", *(f"{name} = {value}" for name, value in project["entry-points"]["fusiond"].items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
