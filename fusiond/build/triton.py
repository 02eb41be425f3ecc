"""Triton kernels to PTX: each config comes from the build cache or from a child process (`triton_child`)."""

import dataclasses
import functools
import importlib.util
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusiond.build import compiler
from fusiond.build.cache import default_folder, of_folder
from fusiond.build.working import working_folder
from fusiond.model.keys import content_key, plain
from fusiond.model.outcomes import BuildFailed
from fusiond.model.ptx.triton import TritonConfig, TritonSource

OLDEST = (3, 4)
DEFAULT_ARCH = "sm_90"
SECS_EACH = 120.0  #: For one config, and as much for Python and Triton to start
_RECIPE = 1  #: Part of every key: raise it when the same input comes to give another output here
_SUFFIX = ".triton"


@functools.cache
def version() -> str:
    """Of the Triton that is installed beside fusiond, which is not imported for it; empty where there is none."""
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        return ""
    match = re.search(
        r"^__version__ = ['\"]([^'\"]+)['\"]", Path(found.origin).read_text(encoding="utf-8"), re.MULTILINE
    )
    return match[1] if match else ""


def environment() -> dict[str, str]:
    """Of a device's environment, what comes of the Triton that compiles for it."""
    return {"triton": version()} if version() else {}


def problem() -> str:
    """Why no kernel in Triton can be compiled here, with what helps; empty where it can."""
    if not version():
        return "it is a kernel in Triton, and no Triton is there: pip install 'fusiond[triton]'"
    numbers = tuple(int(each) for each in re.findall(r"\d+", version())[:2])
    if numbers < OLDEST:
        return f"Triton {version()} is there, and {'.'.join(map(str, OLDEST))} or later is wanted"
    return ""


def compiled(source: TritonSource) -> str | BuildFailed:
    """What became of each config, as `fusiond.model.ptx.triton.read` reads it; or why nothing is compiled at all."""
    why = problem()
    if why:
        return BuildFailed(reason=why)
    source = dataclasses.replace(source, arch=source.arch or DEFAULT_ARCH)
    cache = of_folder(default_folder())
    keys = [_key(source, each) for each in source.configs]
    found = [cache.get(key, _SUFFIX) for key in keys]
    known: list[Any] = [None if each is None else json.loads(each.read_text()) for each in found]
    missing = [config for config, each in zip(source.configs, known, strict=True) if each is None]
    if missing:
        made = _run(dataclasses.replace(source, configs=tuple(missing)))
        if isinstance(made, BuildFailed):
            return made
        rest = iter(made)
        for place, key in enumerate(keys):
            if known[place] is None:
                known[place] = each = next(rest)
                cache.put(key, _SUFFIX, json.dumps(each))
    return json.dumps(known)


def _key(source: TritonSource, config: TritonConfig) -> str:
    return content_key([_RECIPE, "triton", version(), plain(dataclasses.replace(source, configs=(config,)))])


def _run(source: TritonSource) -> list[Any] | BuildFailed:
    with working_folder("triton") as work:
        asked, answered = work / "asked.json", work / "answered.json"
        asked.write_text(json.dumps(plain(source)))
        command = [sys.executable, "-m", "fusiond.build.triton_child", str(asked), str(work), str(answered)]
        done = compiler.attempt(command, work, SECS_EACH * (1 + len(source.configs)))
        if isinstance(done, compiler.Retriable):
            return done.failed
        if not answered.is_file():
            last = next((each for each in reversed(done.stderr.splitlines()) if each.strip()), "")
            return BuildFailed(reason=f"Triton ended with status {done.returncode} {last[:300]}".strip())
        found = json.loads(answered.read_text())
    return BuildFailed(reason=found["problem"]) if isinstance(found, Mapping) else list(found)
