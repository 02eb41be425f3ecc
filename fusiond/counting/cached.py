"""What was counted before is not counted again: kept in the build cache, by all that decides it."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fusiond
from fusiond.build import nvcc, nvdisasm
from fusiond.build.cache import BuildCache, default_folder, of_folder
from fusiond.counting.model import Gpu
from fusiond.counting.run import BUDGET, count
from fusiond.keys import content_key, plain, text_key
from fusiond.program import Program

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
    tools = nvcc.version(), str(nvdisasm.find() or "")
    key = content_key(["count", fusiond.__version__, _code(), tools, plain(gpu), program.key, seed, budget])
    kept = cache.get(key, ".json")
    if kept is not None:
        rows = json.loads(kept.read_text())
    else:
        found = count(program, gpu=gpu, seed=seed, host=host, budget=budget, cache=cache)
        rows = [{**dataclasses.asdict(each), "program_bound_us": found.bound_us} for each in found.rows]
        cache.put(key, ".json", json.dumps(rows).encode())
    return [{**row, "program": label} for row in rows]


@functools.cache
def _code() -> str:
    """Of this package: whoever changes how it counts counts anew."""
    files = sorted(path for folder in (_HERE, _HERE / "runtime") for path in folder.iterdir() if path.is_file())
    return text_key("\n".join(f"{path.name}\n{path.read_text()}" for path in files))
