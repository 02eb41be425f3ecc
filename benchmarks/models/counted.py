"""What a training step is cut into, and what its regions and XLA's kernels move, without a GPU and without its arrays.

A step is cut by the functions that a user's call goes through. Each question is analysed and emitted as the daemon does
it, once however often it is asked, with the first seed's config; its kernels are counted (docs/counting.md).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import commands
from benchmarks.corpus import xla
from benchmarks.counting import summed
from benchmarks.models import models
from fusiond.devices.counting import child_process
from fusiond.model.errors import FusiondError
from fusiond.model.program import Program
from fusiond.requests import jobs, planning
from fusiond.requests.registry import Registry
from fusiond.service.frameworks import region_answers
from fusiond.service.frameworks.region_answers import Found, Question
from fusiond_stitching.analysis import traffic

GPU, ARCH, DEVICE = "h100", "sm_90", "cuda:0"
SECS = 120.0  #: For counting a region
LARGEST = 2 << 30  #: Bytes of the arrays of a region that is counted: counting may touch all of them


class Noting(region_answers.Asker):
    """In the place of a store: notes what is asked; of `programs` (by digest) it has answers that nobody measured."""

    def __init__(self, programs: Mapping[str, Program]) -> None:
        super().__init__(Path(tempfile.gettempdir()) / "fusiond-models-without-answers.sqlite")
        self.questions: list[Question] = []
        self._programs = programs
        region_answers._askers[self.db] = self

    def look(self, question: region_answers.Askable) -> Found:
        assert isinstance(question, Question)
        self.questions.append(question)
        program = self._programs.get(question.digest)
        return Found(state="unknown" if program is None else "fuse", evidence="counted", program=program, arch=ARCH)


def step(framework: str, s: models.Sizes, dtype: str, kept: dict[str, Any], keep: Callable[[], None]) -> dict[str, Any]:
    """The row of a step, XLA's own beside JAX's. `kept`: rows of regions by digest; new ones are put there, and `keep`
    is called. xla.Unavailable without jax's CUDA plugin."""
    began = time.monotonic()
    noting, segments = (cut_jax if framework == "jax" else cut_torch)(s, dtype)
    cut_secs = round(time.monotonic() - began, 1)
    programs = {}
    for digest, question in {each.digest: each for each in noting.questions}.items():
        programs[digest], row = region(question)
        if programs[digest] and kept.get(digest, {}).get("kernels") != row["kernels"]:
            row |= count(programs[digest])
        kept[digest] = {**kept.get(digest, {}), **row}
        keep()
        commands.say(f"  {kept[digest]}")
    row = {**totals(Counter(each.digest for each in noting.questions), kept, segments), "cut_secs": cut_secs}
    return row if framework == "torch" else {**row, **beside(s, dtype, programs, row["regions"])}


def region(question: Question) -> tuple[Any, dict[str, Any]]:
    """(the Program of the first seed, its row); or None, and the row says why there is nothing to try."""
    began = time.process_time()
    try:
        (job,) = jobs.read(question.path, question.job())
        prepared = planning.prepare(_plugins(), job)
        strategy: Any = prepared.strategy
        analysis = strategy.analyse(prepared.workload, planning.target_for_arch(ARCH))
        seeds = strategy.seeds(analysis, strategy.space(analysis, {}), {})
        found = strategy.emit(analysis, seeds[0][1], {}) if seeds else analysis.rejections[0]
    except FusiondError as problem:
        return None, {"name": question.name, "refused": str(problem)}
    if not isinstance(found, Program):
        return None, {"name": question.name, "refused": found.detail}
    secs, about = round(time.process_time() - began, 2), analysis.payload
    least = traffic.ideal_bytes(about.request.module)
    planned = traffic.moved(about.module(seeds[0][1]), strategy._seeded(about, seeds[0][1]).plan)
    row = {"name": question.name, "refused": "", "plan_secs": secs, "least_bytes": least, "planned_bytes": planned}
    return found, {**row, "kernels": len(list(found.launches))}


def count(program: Program) -> dict[str, Any]:
    """The figures of a region, or why it is not counted."""
    if sum(each.size_bytes for each in program.buffers) > LARGEST:
        return {"failed": "too large to be counted"}
    return summed(child_process.counted({"fused": program}, model=GPU, timeout_secs=SECS))


@functools.cache
def _plugins() -> Registry:
    return Registry.load()


def moved(row: Mapping[str, Any]) -> int:
    """Bytes of a region: what the planner reckons with, where it was not counted."""
    return int(row["planned_bytes"] if row["failed"] else row["dram_bytes"])


def totals(times: Mapping[str, int], kept: Mapping[str, Mapping[str, Any]], segments: Sequence[Any]) -> dict[str, Any]:
    """Of all regions, each as often as it is there, and of the segments that are none."""
    fused = {digest: kept[digest] for digest in times if not kept[digest]["refused"]}
    refused = Counter(each.reason for each in segments if each.state == "refused")
    refused.update({kept[digest]["refused"]: times[digest] for digest in times if digest not in fused})
    small = [each for each in segments if each.state == "library" and each.reason == "too little to fuse"]

    def total(value: Callable[[Mapping[str, Any]], int]) -> int:
        return sum(times[digest] * value(each) for digest, each in fused.items())

    return {
        "calls": sum(_calls(each) for each in segments if each.state == "library" and each not in small),
        "small": len(small),
        "refused": dict(refused),
        "regions": total(lambda each: 1),
        "different": len(fused),
        "launches": total(lambda each: each["kernels"]),
        "uncounted": total(lambda each: bool(each["failed"])),
        "dram_bytes": total(moved),
        "least_bytes": total(lambda each: each["least_bytes"]),
        "plan_secs": round(sum(each["plan_secs"] for each in fused.values()), 1),
        "digests": dict(times),
    }


def _calls(segment: Any) -> int:
    """Primitives or operators that compute something."""
    if hasattr(segment, "primitives"):
        return len(segment.primitives)
    from fusiond.torch.operators import MOVEMENT

    return sum(each not in MOVEMENT | {"aten.detach.default"} for each in segment.operators)


# --- JAX ------------------------------------------------------------------------------------------------


def _fused(s: models.Sizes, dtype: str, programs: Mapping[str, Program]) -> tuple[Noting, Any, Any]:
    """(what is asked, the step as a user fuses it, the shapes of its arguments)"""
    import jax

    from benchmarks.models import in_jax
    from fusiond.jax import fusing

    noting, shapes = Noting(programs), jax.eval_shape(lambda *given: given, *models.arrays(s))
    return noting, fusing.fuse(in_jax.step(s, dtype), always=True, device=DEVICE, db=noting.db), shapes


def cut_jax(s: models.Sizes, dtype: str) -> tuple[Noting, Sequence[Any]]:
    """(what `fusiond.jax.fuse(step)` asks, its segments)"""
    noting, fused, shapes = _fused(s, dtype, {})
    with mock.patch("fusiond.jax.fusing._platform", return_value="cuda"):
        return noting, importlib.import_module("fusiond.jax").explain(fused, *shapes).regions


def beside(s: models.Sizes, dtype: str, programs: Mapping[str, Program], regions: int) -> dict[str, Any]:
    """What XLA makes of the step, and what it compiles around these kernels: calls that it does not look into."""
    _, fused, shapes = _fused(s, dtype, programs)
    found = {}
    for name, function in (("xla", fused.__wrapped__), ("rest", fused)):
        with tempfile.TemporaryDirectory() as folder, mock.patch("fusiond.jax.fusing._platform", return_value="cuda"):
            text = xla.compiler()(function, shapes, Path(folder))
        called = text.count('custom_call_target="fusiond_region"')
        assert called == (regions if name == "rest" else 0), f"{called} regions are called, and there are {regions}"
        found[name] = dataclasses.asdict(xla.counted(text))
    found["rest"]["calls"] -= regions
    return found


# --- PyTorch --------------------------------------------------------------------------------------------


def cut_torch(s: models.Sizes, dtype: str) -> tuple[Noting, Sequence[Any]]:
    """(what the backend `fusiond` of `torch.compile` asks, its segments), of tensors without memory. They are on a
    processor: torch makes no gradients of a GPU's without one."""
    import torch
    from functorch.compile import make_boxed_func
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils import _pytree as trees

    import fusiond.torch.backend as backends
    from benchmarks.models import in_torch

    noting, segments = Noting({}), []

    def compiled(module: Any, part: str, default: Any, inner: Any) -> Any:
        options = backends.BackendOptions(always=True, device=DEVICE, db=noting.db)
        segments.extend(backends.Running(options, module, part, inner).regions())
        return make_boxed_func(module.forward)

    torch._dynamo.reset()

    def by_inductor(graph: Any, inputs: Any) -> Any:
        return backends._by_inductor(graph, inputs, compiled, compile_fx_inner)

    training = in_torch.step(s, dtype, backend=by_inductor)
    with FakeTensorMode():
        kinds = {"float32": torch.float32, "int32": torch.int32}
        training(*trees.tree_map(lambda of: torch.empty(of.shape, dtype=kinds[str(of.dtype)]), models.arrays(s)))
    return noting, segments
