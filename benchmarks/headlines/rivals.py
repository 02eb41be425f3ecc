"""What a user would take today in the place of a headline's fused program, in the same pairs with it.

issue    other ways to issue our own unfused kernels (`benchmarks.rivals.hfuse`)
torch    torch.compile, and in mode max-autotune-no-cudagraphs
triton   Triton's kernels (`triton_kernels`), and Liger's where they are installed
jax      jax.jit
cupy     CuPy, an operation at a time
"""

from __future__ import annotations

import importlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import runs
from benchmarks.headlines.catalogue import HEADLINES, Headline
from benchmarks.headlines.functions import EPSILON, FUNCTIONS, Function
from benchmarks.rivals import child, hfuse, mincut, rival_rows
from benchmarks.rivals.base import About, Rival
from benchmarks.rivals.called import Called
from benchmarks.rivals.frameworks import Framework, Jax, Torch, lacks
from benchmarks.rivals.rival_rows import Row
from fusiond.build.exporting.bundle import read_bundle
from fusiond.devices.base import MORE, Loaded
from fusiond.devices.cuda.description import index_of
from fusiond.devices.cuda.executor import CudaExecutor
from fusiond.devices.timing import Sampling
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import Purpose
from fusiond.model.program import Program, Role

GROUPS = ("issue", "torch", "triton", "jax", "cupy")
CLOSE = 1e-3  #: Over the largest element: the order of a long sum is another
AUTOTUNED = "max-autotune-no-cudagraphs"
RANKS = 3  #: Of rivals in a group, at most
TRIES = 2  #: Of a rival that was cut by the end of its slice
CUT = "was cut when its slice was over"
SHORT_US = 200.0  #: Calls of a framework are enqueued in a row until a sample is five times as long
Index = Mapping[str, dict[str, Any]]
WAYS = ("priorities", "green contexts", "programmatic dependent launch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A function as its user writes it, in a framework; `make` gives it from the function and the framework."""

    name: str
    what: str
    function: Function
    modules: tuple[str, ...]
    framework: Callable[[], Framework]
    make: Callable[[Function, Any], Callable[..., Any]]
    close: float = CLOSE

    def missing(self) -> str:
        return next(filter(None, (lacks(each, f"pip install {each}") for each in self.modules)), "")

    def load(self, executor: CudaExecutor, program: Program, about: About) -> Loaded:
        framework = self.framework()
        call = self.make(self.function, framework)
        given = {each.name: each.elements for each in program.buffers if each.role in (Role.INPUT, Role.INOUT)}
        shapes = next(
            (
                each for each in (self.function.shapes, self.function.tiny)
                if all(math.prod(each[int(name.removeprefix("in_"))]) == size for name, size in given.items())
            ),
            None,
        )  # fmt: skip
        if shapes is None:
            raise LookupError(f"the inputs of {program.name} are not those of {self.function.name}")
        ready: dict[str, Any] = {}

        def run(arrays: Mapping[str, Any]) -> Mapping[str, Any]:
            if not ready:  # an input that nothing depends on has no buffer; its shapes are made once
                for number, shape in enumerate(shapes):
                    name = f"in_{number}"
                    ready[name] = arrays[name].reshape(shape) if name in given else _nothing(framework, shape)
            made = call(*ready.values())
            return {f"out_{number}": each.reshape(-1) for number, each in enumerate(made)}

        return Called(executor.cuda, executor.spans, program, framework, run)


def _nothing(framework: Framework, shape: tuple[int, ...]) -> Any:
    import numpy as np

    return framework.given(np.zeros(math.prod(shape), np.float32)).reshape(shape)


def of(headline: Headline, group: str) -> Iterator[Rival]:
    """The rivals of a headline in a group, the quickest to be had first."""
    if group == "issue":
        yield from (each for each in hfuse.RIVALS if each.name in WAYS)
    elif headline.strategy == "mincut":
        yield from (each for each in mincut.RIVALS if isinstance(each, mincut.Arrays) and each.module == group)
    elif headline.name in FUNCTIONS:
        yield from _written(FUNCTIONS[headline.name], group)


def _written(function: Function, group: str) -> Iterator[Rival]:
    def rival(name: str, what: str, make: Callable[[Function, Any], Callable[..., Any]]) -> Rival:
        framework = Jax if group == "jax" else Torch
        modules = {"jax": ("jax",), "torch": ("torch",), "triton": ("torch", "triton")}[group]
        if name == "Liger":
            modules = (*modules, "liger_kernel")
        return Written(name=name, what=what, function=function, modules=modules, framework=framework, make=make)

    if group == "jax":
        yield rival("jax.jit", "JAX, compiled by XLA; wall clock of calls in a row", _jitted)
    elif group == "torch":
        yield rival("torch.compile", "PyTorch, compiled by Inductor", _compiled(None))
        yield rival(f"torch.compile, {AUTOTUNED}", "the same, its kernels tuned", _compiled(AUTOTUNED))
    elif group == "triton":
        if function.triton is not None:
            yield rival("Triton", "a kernel in Triton", _in_triton)
        if function.liger is not None:
            yield rival("Liger", "Liger's kernel in Triton", _liger)


def _jitted(function: Function, framework: Any) -> Callable[..., Any]:
    made: Callable[..., Any] = framework.jax.jit(function.jax(framework.jax))
    return made


def _compiled(mode: str | None) -> Callable[[Function, Any], Callable[..., Any]]:
    def make(function: Function, framework: Any) -> Callable[..., Any]:
        compile_ = framework.torch.compile
        made: Callable[..., Any] = compile_(function.torch(framework.torch), fullgraph=True, dynamic=False, mode=mode)
        return made

    return make


def _in_triton(function: Function, framework: Any) -> Callable[..., Any]:
    assert function.triton is not None
    return function.triton(framework.torch, importlib.import_module("triton"))


def _liger(function: Function, framework: Any) -> Callable[..., Any]:
    assert function.liger is not None
    call = getattr(importlib.import_module("liger_kernel.transformers.functional"), function.liger)
    if function.name == "layer_norm":
        return lambda x, scale, shift: (call(x, scale, shift, EPSILON),)
    return lambda x: (call(x),)


class Group:
    """Rivals of one group beside all headlines that have a fused program, in this process: a framework is imported
    once. Those that are quick to be had come first for all headlines."""

    def __init__(
        self, name: str, index: Index, bundles: Path, out: Path, device: DeviceInfo, say: Callable[[str], None]
    ) -> None:
        self._name, self._index, self._bundles, self._out = name, index, bundles, out
        self._device, self._say = device, say
        self._executor: CudaExecutor | None = None

    def measure(self, until: float) -> int:
        """The exit status: 0 all have their rows, 75 the time was over before, or the context is broken: the others are
        for another process."""
        for rank in range(RANKS):
            for headline in HEADLINES.values():
                rivals = list(of(headline, self._name)) if self._name in headline.rivals else []
                if rank < len(rivals) and (not self._row(headline, rivals[rank], until) or self._broken()):
                    return MORE
        return 0

    def _broken(self) -> bool:
        """After an error that sticks every later call fails, whoever makes it."""
        try:
            if self._executor is not None:
                self._executor.cuda.Context.synchronize()
        except Exception:  # of a class that PyCUDA has
            return True
        return False

    def _row(self, headline: Headline, rival: Rival, until: float) -> bool:
        """Whether there was time for it, if it was wanted."""
        where = self._out / f"{headline.name}.json"
        if not where.exists():
            return True
        found = json.loads(where.read_text(encoding="utf-8"))
        if found["device"]["model"] != self._device.model or not found.get("finalists"):
            return True
        rows = found["rivals"]
        known = rows.get(rival.name)
        if known is not None and (known.get("problem") != CUT or known["tries"] >= TRIES):
            return True
        if time.monotonic() > until:
            return False
        row: Row = {"name": rival.name, "group": self._name, "what": rival.what}
        tries = 1 + (known or {}).get("tries", 0)
        rows[rival.name] = {**row, "problem": CUT, "tries": tries}  # what it stays if it hangs, or breaks the process
        runs.write(where, found)
        missing = rival.missing()
        rows[rival.name] = row | ({"problem": missing} if missing else self._measured(headline, rival, found))
        runs.write(where, found)
        self._say(f"{headline.name}: {rival.name}: {rival_rows.said(rows[rival.name])}")
        return True

    def _measured(self, headline: Headline, rival: Rival, found: Mapping[str, Any]) -> Row:
        entries = {each["name"]: each for each in self._index[headline.name]["entries"]}
        fused = (found["conclusion"] or {}).get("winner") or found["finalists"]["fused"][0]
        folder = self._bundles / headline.name
        unfused = folder / entries[found["finalists"]["unfused"][0]]["path"]
        side = {"application": headline.name, **found["sizes"]} if headline.strategy == "mincut" else {}
        about = {**side, "bundles": {hfuse.UNFUSED: str(unfused)}}
        plan = Sampling(purpose=Purpose.BASELINE, warm_up_secs=0.2, pairs=16, budget_secs=0.5, short_us=SHORT_US)
        try:
            if self._executor is None:
                self._executor = CudaExecutor.open(index_of(self._device.name), primary=True)
            program, binaries = read_bundle(folder / entries[fused]["path"])
            row = child.measured(self._executor, program, binaries, rival, about, plan=plan)
        except Exception as problem:  # whatever another's library raises is its reason
            return {"problem": child.reason(problem)}
        return row | {"beside": fused}
