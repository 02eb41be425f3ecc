"""FusionStitching as a strategy (Long et al., 2018): an HLO module in few kernels.

job --parse--> Module, fills --analyse--> plans, kernel counts --space--> rules, packing, barriers, grain, threads ...
    --emit--> fusion, schedules, shared memory, CUDA C++ --> Program

A config is a policy; the policy and the module decide everything else (`planner`). What the device has answered for the
performance library's keys (`probes`) steers the choice of schedules. Dots are plain kernels that are not counted, in
the candidates and in the unfused ways alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from fusiond.documents import Node
from fusiond.errors import RequestError
from fusiond.keys import text_key
from fusiond.model import Analysis, Config, DeviceLimits, Job, Rejection, Workload, frozen
from fusiond.program import Fill, Program
from fusiond.space import EMPTY, Space
from fusiond.strategy import Baseline, Inputs, Known, Probe, StrategyBase, Target
from fusiond_stitching import emit, fills, lower, perflib, planner, policy, probes, report, verify
from fusiond_stitching import space as spaces
from fusiond_stitching.graph import Module
from fusiond_stitching.planner import Planned
from fusiond_stitching.policy import Policy

DOTS = ("library", "stitched", "any")
PROBES = 0
"""How many missing entries of the performance library a job has measured, unless it says more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A Workload's payload."""

    module: Module
    fills: Mapping[str, Fill]
    dots: str
    probes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysed:
    """An Analysis' payload."""

    asked: Asked
    limits: DeviceLimits = field(repr=False)
    text: str = ""
    tuned: Config = field(default_factory=lambda: Config(()))
    """The seed whose schedules the performance library is asked about."""
    missing: tuple[perflib.Key, ...] = ()
    """The entries that it needs."""


class Stitching(StrategyBase):
    """Element-wise work, reductions, transposes and the rest between library calls, stitched through shared memory."""

    name = "stitching"
    version = 1
    job_keys: tuple[str, ...] = ("module", "inputs", "dots", "probes")

    # --- Job -> Workload ---

    def parse(self, job: Job, inputs: Inputs) -> Workload:
        if job.sizes:
            raise RequestError("a module has its sizes in itself; lower it again for others", where=job.where("sizes"))
        if "module" not in job.request:
            raise RequestError(
                "the key 'module' is missing: a catalogue name, or the path of an HLO text", where=job.path
            )
        root = _node(job, "module")
        name = root.text()
        if "/" not in name and PurePath(name).suffix in (".hlo", ".txt"):
            name = f"./{name}"
        path = inputs.resolve("module", name, where=root.where)
        text = inputs.text(path, where=root.where)
        module = lower.read(text, path)
        if not any(module.fusable(each) for each in module.instructions):
            raise RequestError("there is nothing to fuse: no instruction but library calls", where=path)

        def file(node: Node) -> tuple[str, str]:
            given = node.text()
            found = inputs.resolve("file", given if "/" in given else f"./{given}", where=node.where)
            return found, inputs.digest(found, where=node.where)

        filled = fills.read(module, _node(job, "inputs") if "inputs" in job.request else None, file)
        dots = _node(job, "dots").choice(*DOTS) if "dots" in job.request else DOTS[0]
        probes = _node(job, "probes").integer(least=0, most=10_000) if "probes" in job.request else PROBES
        title = PurePath(path).stem
        hashes = {path: text_key(text)}
        hashes |= {each.file: each.digest for each in filled.values() if each.file and each.digest}
        return Workload(
            strategy=self.name,
            strategy_version=self.version,
            name=title,
            members=(title,),
            sizes=frozen(),
            content={
                "module": lower.digest(module),
                "fills": {name: [each.kind, each.low, each.high, each.digest] for name, each in sorted(filled.items())},
                "dots": dots,
            },
            payload=Asked(module=module, fills=frozen(filled), dots=dots, probes=probes),
            source_hashes=frozen(hashes),
        )

    # --- Workload -> Analysis ---

    def analyse(self, workload: Workload, target: Target) -> Analysis:
        asked = _asked(workload.payload)
        limits = target.limits
        module = asked.module
        offered = spaces.offered(limits, dots=asked.dots)
        seeds = dict(spaces.seeds(limits, offered, dots=asked.dots))
        plans = {
            "unfused": planner.plan(module, self._unfused(limits), limits),
            "xla_rules": planner.plan(module, self._xla(limits), limits),
            "paper": planner.plan(module, self._policy(asked, seeds["paper"], limits), limits),
            "packed": planner.plan(module, self._policy(asked, seeds["packed"], limits), limits),
            "barriers": planner.plan(module, self._policy(asked, seeds["barriers"], limits), limits),
        }
        stitched = min(("packed", "paper"), key=lambda name: report.kernels(plans[name]) or len(module.instructions))
        plans["stitched"] = plans[stitched]
        found = report.report(module, plans, "stitched")
        rejections = self._rejections(asked, plans)
        payload = Analysed(
            asked=asked,
            limits=limits,
            text=report.described(found),
            tuned=seeds[stitched],
            missing=plans["stitched"].missing,
        )
        return Analysis(workload=workload, report=frozen(found), rejections=rejections, payload=payload)

    def _rejections(self, asked: Asked, plans: Mapping[str, Planned]) -> tuple[Rejection, ...]:
        """What cannot be emitted at all: then nothing is tuned, and the plans are still worth reading."""
        module = asked.module
        found = [Rejection(rule="library", nodes=(name,), detail=reason) for name, reason in module.foreign.items()]
        found += [
            Rejection(rule="shared_memory", nodes=(module.name,), detail=problem)
            for name in ("unfused", "xla_rules")
            for problem in plans[name].problems
        ]
        if not found:
            program = emit.program(module, plans["unfused"].plan, fills=asked.fills)
            found += [program] if isinstance(program, Rejection) else []
        return tuple(found)

    def describe(self, analysis: Analysis) -> str:
        return _known(analysis).text

    def probes(self, analysis: Analysis) -> tuple[Probe, ...]:
        about = _known(analysis)
        if analysis.rejections:
            return ()
        found = []
        rules = self._policy(about.asked, about.tuned, about.limits)
        for key in about.missing[: about.asked.probes]:
            program = probes.program(about.asked.module, key, rules)
            if program is not None:
                found.append(Probe(key=key.text, program=program))
        return tuple(found)

    # --- Analysis -> Config ---

    def space(self, analysis: Analysis, known: Known) -> Space:
        about = _known(analysis)
        return EMPTY if analysis.rejections else spaces.offered(about.limits, dots=about.asked.dots)

    def seeds(self, analysis: Analysis, space_: Space, known: Known) -> tuple[tuple[str, Config], ...]:
        about = _known(analysis)
        return () if analysis.rejections else spaces.seeds(about.limits, space_, dots=about.asked.dots)

    def baselines(self, analysis: Analysis) -> tuple[Baseline, ...]:
        about = _known(analysis)
        module = about.asked.module
        if analysis.rejections:
            return ()
        knobs = spaces.unfused(about.limits)

        def baseline(name: str, detail: str, made: Any, *, issue: str = "streams", like: str | None = None) -> Baseline:
            def program(config: Config) -> Program:
                rules = made(about.limits, threads=config.integer("threads"))
                found = self._emitted(about, rules, f"{module.name}:{name}", known={})
                if isinstance(found, Rejection):
                    raise RequestError(f"{name}: {found.detail}", where=module.name)
                return dataclasses.replace(found, issue=issue)

            return Baseline(name=name, detail=detail, space=knobs, emit=program, like=like)

        return (
            baseline("unfused", "one kernel per instruction", self._unfused),
            baseline("unfused_graph", "the same as a CUDA graph", self._unfused, issue="graph", like="unfused"),
            baseline("xla_rules", "XLA's fusion rules of 2018, re-implemented in outline", self._xla),
            baseline("xla_rules_graph", "the same as a CUDA graph", self._xla, issue="graph", like="xla_rules"),
        )

    # --- Config -> Program ---

    def emit(self, analysis: Analysis, config: Config, known: Known) -> Program | Rejection:
        about = _known(analysis)
        if analysis.rejections:
            return analysis.rejections[0]
        module = about.asked.module
        problems = spaces.offered(about.limits, dots=about.asked.dots).problems(config)
        if problems:
            return Rejection(rule="not_in_space", nodes=(module.name,), detail="; ".join(problems))
        rules = self._policy(about.asked, config, about.limits)
        found = self._emitted(about, rules, module.name, known=known)
        if isinstance(found, Rejection):
            return found
        return dataclasses.replace(found, issue=spaces.issue(config))

    def _emitted(
        self, about: Analysed, rules: Policy, name: str, *, known: Mapping[str, object]
    ) -> Program | Rejection:
        module = about.asked.module
        planned = planner.plan(module, rules, about.limits, perflib.Library(known))
        if planned.problems:
            return Rejection(rule="shared_memory", nodes=(module.name,), detail="; ".join(planned.problems))
        broken = verify.problems(module, planned.plan)
        if broken:
            return Rejection(rule="invariant", nodes=(module.name,), detail="; ".join(broken[:5]))
        return emit.program(module, planned.plan, fills=about.asked.fills, name=name)

    def resolved(self, analysis: Analysis, config: Config, known: Known) -> Config:
        """`shared` in bytes."""
        about = _known(analysis)
        try:
            rules = self._policy(about.asked, config, about.limits)
        except (KeyError, TypeError):
            return config
        return Config.of({**config, "shared": rules.shared_limit})

    def _policy(self, asked: Asked, config: Config, limits: DeviceLimits) -> Policy:
        return spaces.policy(config, limits, dots=asked.dots)

    def _unfused(self, limits: DeviceLimits, *, threads: int = spaces.THREADS[0]) -> Policy:
        rules = policy.unfused(threads=threads, multiprocessors=max(1, limits.multiprocessors))
        return dataclasses.replace(rules, shared_limit=min(spaces.DEFAULT_SHARED_BYTES, limits.shared_bytes_per_block))

    def _xla(self, limits: DeviceLimits, *, threads: int = spaces.THREADS[0]) -> Policy:
        rules = policy.xla_rules(threads=threads, multiprocessors=max(1, limits.multiprocessors))
        return dataclasses.replace(rules, shared_limit=min(spaces.DEFAULT_SHARED_BYTES, limits.shared_bytes_per_block))


def _node(job: Job, key: str) -> Node:
    """A key of the job as a checked tree."""
    return _tree(job, key, job.request[key])


def _tree(job: Job, key: str, value: Any) -> Node:
    inner = value
    if isinstance(value, Mapping):
        inner = {name: _tree(job, f"{key}.{name}", each) for name, each in value.items()}
    elif isinstance(value, list | tuple):
        inner = tuple(_tree(job, f"{key}[{at}]", each) for at, each in enumerate(value))
    return Node(job.path, key, job.lines.get(key, 1), inner)


def _asked(payload: Any) -> Asked:
    assert isinstance(payload, Asked)
    return payload


def _known(analysis: Analysis) -> Analysed:
    assert isinstance(analysis.payload, Analysed)
    return analysis.payload
