"""Keeps counts in the build cache, under a key of all that decides them."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fusiond
from fusiond.build import assemblers, nvcc, nvdisasm
from fusiond.build.cache import BuildCache, default_folder, of_folder
from fusiond.devices.counting.model import Gpu
from fusiond.devices.counting.run import BUDGET, count
from fusiond.model.keys import content_key, plain, text_key
from fusiond.model.program import Program, SourceLanguage

_HERE = Path(__file__).parent


def counted(
    program: Program,
    gpu: Gpu,
    *,
    label: str = "native",
    seed: int = 0,
    budget: int | None = BUDGET,
    host: Mapping[str, Path] | None = None,
    cache: BuildCache | None = None,
) -> list[dict[str, Any]]:
    """The rows of a Program, as JSON has them: those of `run.count`, each with `program_bound_us`, the bound of all of
    it, which is None where a launch was not counted. CountError and DeviceError as `run.count`."""
    cache = cache or of_folder(default_folder())
    rows = known(program, gpu, seed=seed, budget=budget, cache=cache)
    if rows is None:
        found = count(program, gpu=gpu, seed=seed, host=host, budget=budget, cache=cache)
        rows = [{**dataclasses.asdict(each), "program_bound_us": found.bound_us} for each in found.rows]
        cache.put(_key(program, gpu, seed, budget), ".json", json.dumps(rows).encode())
    return [{**row, "program": label} for row in rows]


def known(
    program: Program, gpu: Gpu, *, seed: int = 0, budget: int | None = BUDGET, cache: BuildCache | None = None
) -> list[dict[str, Any]] | None:
    """The rows where they were counted before; None where they were not: nothing is counted."""
    kept = (cache or of_folder(default_folder())).get(_key(program, gpu, seed, budget), ".json")
    return None if kept is None else list(json.loads(kept.read_text()))


def _key(program: Program, gpu: Gpu, seed: int, budget: int | None) -> str:
    tools = [nvcc.version(), str(nvdisasm.find() or "")]
    if any(each.language is SourceLanguage.PTX for each in program.sources):
        tools += [each.version for each in assemblers.found()]
    return content_key(["count", fusiond.__version__, _code(), tools, plain(gpu), program.key, seed, budget])


@functools.cache
def _code() -> str:
    """Of this package: whoever changes how it counts counts anew."""
    files = sorted(path for folder in (_HERE, _HERE / "runtime") for path in folder.iterdir() if path.is_file())
    return text_key("\n".join(f"{path.name}\n{path.read_text()}" for path in files))
