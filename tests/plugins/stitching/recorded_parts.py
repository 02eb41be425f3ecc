"""Parts of modules, and records of how each was fastest, as the strategy is given them."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import fusiond_stitching.plugin as plugin
from fusiond.model.nouns import Analysis, Config
from fusiond.model.outcomes import Record, Verdict
from fusiond.requests.planning import prepare
from fusiond.strategy import Target
from fusiond_stitching import space
from fusiond_stitching.analysis import parts, planner, split_reductions
from fusiond_stitching.analysis.composition import Way
from fusiond_stitching.analysis.planner import PlannedModule
from fusiond_stitching.frontend import fills, importer
from fusiond_stitching.frontend.graph import HloModule
from fusiond_stitching.strategy import Stitching

from .jobs import H100, job, registry

TWICE = """HloModule twice

add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[64,96] parameter(0)
  w = f32[96,96] parameter(1)
  zero = f32[] constant(0)
  e = f32[64,96] exponential(x)
  s = f32[64] reduce(e, zero), dimensions={1}, to_apply=add
  b = f32[64,96] broadcast(s), dimensions={0}
  y = f32[64,96] divide(e, b)
  h = f32[64,96] dot(y, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  again = f32[64,96] exponential(h)
  sum = f32[64] reduce(again, zero), dimensions={1}, to_apply=add
  wide = f32[64,96] broadcast(sum), dimensions={0}
  ROOT z = f32[64,96] divide(again, wide)
}
"""


"""Softmax, a library call, softmax."""


FOUND = {"dots": "library"}


@dataclasses.dataclass(frozen=True)
class Split:
    """A catalogue module under the packed seed."""

    module: HloModule
    planned: PlannedModule
    fills: dict

    @staticmethod
    @functools.cache
    def of(name: str) -> Split:
        module = importer.read((plugin.MODULES / f"{name}.hlo").read_text(), name)
        cut = split_reductions.reductions(module, H100.multiprocessors)
        large = cut is not module
        offered = space.offered(H100, dots="library", large=large)
        seed = dict(space.seeds(H100, offered, dots="library", large=large))["packed"]
        planned = planner.plan(cut, space.policy(seed, H100, dots="library"), H100)
        return Split(cut, planned, fills.read(module, None, lambda node: ("", "")))

    def parts(self) -> dict[str, parts.Part]:
        return parts.of_plan(self.module, self.planned, self.fills, dots="library")


def analysed(text_: str, folder: Path | None = None, target: Target | None = None) -> Analysis:
    path = str(folder / "job.yaml") if folder else "job.yaml"
    target = target or Target(arch="sm_90", limits=H100, facts=lambda source: None)
    return Stitching().analyse(prepare(registry(), job(text_, path)).workload, target)


def recorded(workload, config: Config | None, time_us: float | None = 10.0) -> Record:
    return Record(
        strategy="stitching", workload_name=workload.name, workload_key=workload.key, sizes={}, device_name="fake",
        device_key="k", env_key="e", verdict=Verdict.FUSE, config=config, program_key="p", time_us=time_us,
        baseline="unfused", baseline_us=20.0, speedup=2.0, ci95=(1.9, 2.1), verified=True, evidence="measured",
        trials=3, found_at="2026-01-01T00:00:00Z",
    )  # fmt: skip


def known(analysis: Analysis, ways: dict[str, Way | None], *, rest: Way | None = None, **times: float):
    """Records of an analysis' parts: name -> way; None: no candidate was ever measured; others have none."""
    found = {}
    for each in Stitching().parts(analysis):
        workload = prepare(registry(), each).workload
        way = ways.get(workload.name, rest)
        if way is not None:
            config = Config.of(dataclasses.asdict(way))
            found[workload.key] = recorded(workload, config, times.get(workload.name, 10.0))
        elif workload.name in ways:
            found[workload.key] = recorded(workload, None, None)
    return found
