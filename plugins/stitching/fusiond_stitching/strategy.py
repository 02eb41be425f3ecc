"""FusionStitching as a strategy (Long et al., 2018): an HLO module in few kernels.

job --parse--> HloModule, fills --analyse--> plans, kernel counts --space--> rules, packing, barriers, grain, threads,
    ... --emit--> fusion, schedules, shared memory, CUDA C++ --> Program

A config is a policy; the policy and the module decide everything else (`planner`). What the device has answered for the
performance library's keys (`probes`) steers the choice of schedules. Dots are plain kernels that are not counted, in
the candidates and in the unfused ways alike.

A group of the packed plan is a workload of its own (`parts`): its HLO text, and `group: true`. Equal groups are one. A
config with `schedules: measured` has each group run as its own record found it fastest (`composition`).
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from fusiond.model.errors import RequestError
from fusiond.model.gpu.limits import STATIC_SHARED_BYTES
from fusiond.model.nouns import Analysis, Config, DeviceLimits, Job, Rejection, Workload, frozen
from fusiond.model.outcomes import Record
from fusiond.model.program import Program
from fusiond.strategy import NO_ANSWERS, Answers, Baseline, Inputs, Probe, StrategyBase, Target
from fusiond.strategy.space import EMPTY, Space
from fusiond_stitching import report, requests
from fusiond_stitching import space as spaces
from fusiond_stitching.analysis import (
    forms,
    image_pipelines,
    parts,
    performance_library,
    planner,
    policy,
    traffic,
    verify,
)
from fusiond_stitching.analysis.composition import Composition, Way
from fusiond_stitching.analysis.parts import Part
from fusiond_stitching.analysis.planner import PlannedModule
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.codegen import emit, probes, tolerances
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloModule
from fusiond_stitching.module_analysis import StitchingAnalysis, one_form, unplanned
from fusiond_stitching.requests import StitchingRequest

_AS_XLA = ("-prec-div=false", "-prec-sqrt=false")
"""What nvcc is told to make of f32's `/` and sqrt what XLA's PTX has: div.full.f32 and sqrt.approx.f32."""


class Stitching(StrategyBase[StitchingRequest, StitchingAnalysis]):
    """Element-wise work, reductions, transposes and the rest between library calls, stitched through shared memory."""

    name = "stitching"
    version = 2
    job_keys: tuple[str, ...] = requests.KEYS
    names: Mapping[str, str] = frozen({"module": "module"})

    # --- Job -> Workload ---

    def parse(self, job: Job, inputs: Inputs) -> Workload[StitchingRequest]:
        return self._workload(*requests.read(job, inputs))

    def _workload(
        self, title: str, request: StitchingRequest, hashes: Mapping[str, str] | None = None
    ) -> Workload[StitchingRequest]:
        said = {name: each.content for name, each in sorted(request.fills.items())}
        content: dict[str, object] = {"module": importer.digest(request.module), "fills": said, "dots": request.dots}
        if request.group:
            content["group"] = True
        if request.accuracy != requests.STRICT:
            content["accuracy"] = request.accuracy
        if request.deterministic:
            content["deterministic"] = True
        return Workload(
            strategy=self.name,
            strategy_version=self.version,
            name=title,
            members=(title,),
            sizes=frozen(),
            content=content,
            payload=request,
            source_hashes=frozen(hashes),
        )

    def boundaries(self, text: str) -> tuple[str, ...]:
        module = importer.read(text, "the region")
        products = (f"{each.name}: a product of matrices" for each in module.instructions if each.opcode == "dot")
        return (*dict.fromkeys(module.foreign.values()), *products)

    # --- Workload -> Analysis ---

    def analyse(
        self, workload: Workload[StitchingRequest], target: Target
    ) -> Analysis[StitchingRequest, StitchingAnalysis]:
        request = workload.payload
        if request.group:
            return self._analyse_group(workload, target.limits)
        limits = target.limits
        images = image_pipelines.asked(request.module, request.job, target.others)
        about = dataclasses.replace(unplanned(request, limits), images=images)
        module = about.plain()
        seeds = dict(self._base_seeds(about))
        plans = {
            "unfused": planner.remembered(module, self._rules(policy.unfused, limits), limits),
            "xla_rules": planner.remembered(module, self._rules(policy.xla_rules, limits), limits),
            **{name: self._seeded(about, seeds[name]) for name in ("paper", "packed", "barriers")},
        }
        stitched = _fewest(plans)
        plans["stitched"] = plans[stitched]
        tuned = seeds["packed_shared" if stitched == "packed" else stitched]
        scheduled = self._seeded(about, tuned)
        frames = {
            each.name: self._stitched(dataclasses.replace(request, module=each), limits)
            for each in request.module.all_frames
        }
        modules = {"unfused": module, "xla_rules": module, **{name: about.module(each) for name, each in seeds.items()}}
        found = report.report(about.module(seeds[stitched]), plans, "stitched", frames, modules)
        rejections = self._rejections(about, plans, "paper")
        chosen = () if rejections else self._chosen(about, seeds["packed"], plans["packed"])
        found["parts"] = [
            {"name": each.name, "groups": len(roots), "bytes": each.bytes, "roots": list(roots)}
            for each, roots in chosen
        ]
        timed = request.dots == "library" and not rejections
        calls = probes.library_calls(request.module) if timed else None
        rules, groups = self._policy(request, tuned, limits), scheduled.fusion.groups
        entries = performance_library.wanted(about.module(tuned), rules, groups)
        payload = dataclasses.replace(
            about, text=report.described(found), tuned=tuned, calls=calls, entries=entries, parts=chosen
        )
        return Analysis(workload=workload, report=frozen(found), rejections=rejections, payload=payload)

    def _seeded(self, about: StitchingAnalysis, seed: Config) -> PlannedModule:
        return planner.remembered(about.module(seed), self._policy(about.request, seed, about.limits), about.limits)

    def _stitched(self, request: StitchingRequest, limits: DeviceLimits) -> PlannedModule:
        """The plan that the analysis of a module calls `stitched`."""
        about = unplanned(request, limits)
        seeds = dict(self._base_seeds(about))
        plans = {name: self._seeded(about, seeds[name]) for name in ("paper", "packed")}
        return plans[_fewest(plans)]

    def _chosen(
        self, about: StitchingAnalysis, packed: Config, planned: PlannedModule
    ) -> tuple[tuple[Part, tuple[str, ...]], ...]:
        """The groups of the packed plan to measure by themselves, each once: those first whose copies move most bytes
        together."""
        if not about.request.groups or planned.problems or len(planned.fusion.groups) < 2:
            return ()
        found: dict[str, tuple[Part, tuple[str, ...]]] = {}
        module, rules = about.module(packed), self._policy(about.request, packed, about.limits)
        bytes_ = traffic.by_program(module, planned.plan)
        for root, each in self._own(about, module, rules, planned).items():
            found[each.name] = each, (*found.get(each.name, (each, ()))[1], root)
        ordered = sorted(found.values(), key=lambda each: (-sum(bytes_[root] for root in each[1]), each[0].name))
        return tuple(ordered[: about.request.groups])

    def _own(
        self, about: StitchingAnalysis, module: HloModule, rules: FusionPolicy, planned: PlannedModule
    ) -> dict[str, Part]:
        """Root -> part, for the groups of a plan."""
        dots = "stitched" if rules.stitch_dots else "library"
        return parts.of_plan(module, planned, about.request.fills, dots=dots)

    def _analyse_group(
        self, workload: Workload[StitchingRequest], limits: DeviceLimits
    ) -> Analysis[StitchingRequest, StitchingAnalysis]:
        """Of a job for one group: nothing is fused or split here, and it has no parts."""
        request = workload.payload
        about = StitchingAnalysis(request=request, limits=limits, forms=one_form(request))
        name, first = spaces.alone_seeds(limits)[0]
        plans = {
            "unfused": planner.remembered(about.plain(), self._rules(policy.unfused, limits), limits),
            "xla_rules": planner.remembered(about.plain(), self._rules(policy.xla_rules, limits), limits),
            "stitched": parts.planned(about.module(), self._policy(request, first, limits), limits),
        }
        found = report.report(about.module(), plans, "stitched")
        found["parts"] = []
        rejections = self._rejections(about, plans, "stitched")
        only = parts.only(plans["stitched"])
        if not rejections and isinstance(only, str):
            rejections = (
                Rejection(rule="group", nodes=(request.module.name,), detail=f"with the seed {name}, {only}"),
            )
        payload = dataclasses.replace(about, text=report.described(found), tuned=first)
        alone = not rejections and len(plans["unfused"].plan.steps) == 1
        return Analysis(workload=workload, report=frozen(found), rejections=rejections, alone=alone, payload=payload)

    def _rejections(
        self, about: StitchingAnalysis, plans: Mapping[str, PlannedModule], shortest: str
    ) -> tuple[Rejection, ...]:
        """What cannot be emitted at all: then nothing is tuned, and the plans are still worth reading."""
        module = about.module()
        found = [
            Rejection(rule="shared_memory", nodes=(module.name,), detail=problem)
            for name in ("unfused", "xla_rules", shortest)
            for problem in plans[name].problems
        ]
        if not found and not plans["unfused"].plan.kernels:
            detail = "there is nothing to fuse: the library calls read and write all there is"
            found.append(Rejection(rule="nothing", nodes=(module.name,), detail=detail))
        if not found:
            # Every instruction's code stands in it somewhere, and it is much shorter than the unfused one.
            program = emit.program(module, plans[shortest].plan, fills=about.request.fills)
            found += [program] if isinstance(program, Rejection) else []
        return tuple(found)

    def describe(self, analysis: Analysis[StitchingRequest, StitchingAnalysis], answers: Answers = NO_ANSWERS) -> str:
        return analysis.payload.text

    def parts(self, analysis: Analysis[StitchingRequest, StitchingAnalysis]) -> tuple[Job, ...]:
        """A job for each group that is worth measuring by itself, and one for each loop body and branch in which there
        is something to fuse."""
        about = analysis.payload
        plain = about.plain()
        groups = (requests.within(requests.of_group(about.request, each).job, each, plain) for each, _ in about.parts)
        return (
            *((about.images.asked.job,) if about.images is not None else ()),
            *groups,
            *(requests.of_frame(about.request, each) for each in about.request.module.all_frames if _worth(each)),
        )

    def _records(self, about: StitchingAnalysis, answers: Answers) -> dict[str, Record]:
        """Part -> its record, where one is known in which a candidate was measured."""
        found = {}
        for part, _ in about.parts if answers else ():
            record = answers.get(self._workload(part.name, requests.of_group(about.request, part)).key)
            if isinstance(record, Record) and record.config is not None and record.time_us is not None:
                found[part.name] = record
        return found

    def _measured(self, about: StitchingAnalysis, answers: Answers) -> tuple[dict[str, Way], dict[str, float]]:
        """Part -> how it was fastest, and what it takes then, once."""
        found = self._records(about, answers).items()
        ways = {name: Way.of(each.config) for name, each in found if each.config}
        return ways, {name: each.time_us for name, each in found if each.time_us is not None}

    def probes(self, analysis: Analysis[StitchingRequest, StitchingAnalysis]) -> tuple[Probe, ...]:
        about = analysis.payload
        if analysis.rejections or about.request.group:
            return ()
        found = []
        rules = self._policy(about.request, about.tuned, about.limits)
        if about.calls is not None:
            found.append(Probe(key=probes.library_key(about.calls), program=about.calls))
        for key in about.entries:
            program = probes.program(about.module(about.tuned), key, rules)
            if program is not None:
                found.append(Probe(key=key.text, program=program))
        return tuple(found)

    def probe_limit(self, analysis: Analysis[StitchingRequest, StitchingAnalysis]) -> int | None:
        return analysis.payload.request.probes

    # --- Analysis -> Config ---

    def space(self, analysis: Analysis[StitchingRequest, StitchingAnalysis], answers: Answers) -> Space:
        about = analysis.payload
        return EMPTY if analysis.rejections else self._space(about, answers)

    def seeds(
        self, analysis: Analysis[StitchingRequest, StitchingAnalysis], space_: Space, answers: Answers
    ) -> tuple[tuple[str, Config], ...]:
        about = analysis.payload
        if analysis.rejections:
            return ()
        if about.request.group:
            return spaces.alone_seeds(about.limits)
        ways, times_us = self._measured(about, answers)
        counts = {part.name: len(roots) for part, roots in about.parts}
        wanted = defaultdict[int, float](float)
        for name, way in ways.items():
            wanted[way.threads] += counts[name] * times_us[name]
        threads = max(wanted, key=lambda each: (wanted[each], -each), default=None)
        found = spaces.seeds(
            about.limits,
            space_,
            dots=about.request.dots,
            large=about.forms.split,
            scatters=about.forms.scatters,
            ways=ways,
            threads=threads,
        )
        # What parts were measured for speaks for itself; else those that move least come first.
        measured = [each for each in found if "schedules" in each[1]][: 4 if ways else 0]
        others = [each for each in found if each not in measured]
        return (*measured, *sorted(others, key=lambda each: self._cost(about, each[1])))

    def _cost(self, about: StitchingAnalysis, config: Config) -> float:
        """Puts seeds in an order (`traffic.cost`); those that cost the same stay as they are."""
        if config.get("fusion") == spaces.IMAGES:
            return 0.0  # it reads and writes nothing twice
        plain, _ = spaces.parted(config)
        planned = self._seeded(about, plain)
        return math.inf if planned.problems else traffic.cost(about.module(plain), planned.plan)

    def _base_seeds(self, about: StitchingAnalysis) -> tuple[tuple[str, Config], ...]:
        """Where a search begins that knows of no parts."""
        large, scatters = about.forms.split, about.forms.scatters
        return spaces.seeds(about.limits, self._space(about), dots=about.request.dots, large=large, scatters=scatters)

    def baselines(self, analysis: Analysis[StitchingRequest, StitchingAnalysis]) -> tuple[Baseline, ...]:
        about = analysis.payload
        module = about.request.module
        if analysis.rejections:
            return ()
        knobs = spaces.unfused(about.limits, large=about.forms.split, scatters=about.forms.scatters)

        def baseline(name: str, detail: str, made: Any, *, issue: str = "streams", like: str | None = None) -> Baseline:
            def program(config: Config) -> Program:
                rules = self._rules(made, about.limits, threads=config.integer("threads"))
                rules = dataclasses.replace(rules, update_tiles=config.get("scatters") == forms.TILES)
                found = self._emitted(about, about.plain(config), rules, f"{module.name}:{name}", known={})
                if isinstance(found, Rejection):
                    raise RequestError(f"{name}: {found.detail}", where=module.name)
                return dataclasses.replace(found, issue=issue)

            return Baseline(name=name, detail=detail, space=knobs, emit=program, like=like)

        return (
            baseline("unfused", "one kernel per instruction", policy.unfused),
            baseline("unfused_graph", "the same as a CUDA graph", policy.unfused, issue="graph", like="unfused"),
            baseline("xla_rules", "XLA's fusion rules of 2018, re-implemented in outline", policy.xla_rules),
            baseline("xla_rules_graph", "the same as a CUDA graph", policy.xla_rules, issue="graph", like="xla_rules"),
        )

    # --- Config -> Program ---

    def emit(
        self, analysis: Analysis[StitchingRequest, StitchingAnalysis], config: Config, answers: Answers
    ) -> Program | Rejection:
        about = analysis.payload
        if analysis.rejections:
            return analysis.rejections[0]
        module = about.request.module
        try:
            plain, ways = spaces.parted(config)
            problems = self._space(about).problems(plain)
        except ValueError as problem:
            plain, ways, problems = config, {}, (str(problem),)
        if problems:
            return Rejection(rule="not_in_space", nodes=(module.name,), detail="; ".join(problems))
        rules = self._policy(about.request, plain, about.limits)
        found = self._emitted(about, about.module(plain), rules, module.name, known=answers, ways=ways)
        if about.images is not None and plain.text("fusion") == spaces.IMAGES and isinstance(found, Program):
            found = about.images.program(module, found, answers)
        if isinstance(found, Rejection):
            return found
        return dataclasses.replace(found, issue=spaces.issue(plain))

    def _space(self, about: StitchingAnalysis, known: Answers | None = None) -> Space:
        """Without `known`, what can be chosen whatever the parts' records say."""
        if about.request.group:
            return spaces.alone(about.limits)
        ways, _ = self._measured(about, known or {})
        large, scatters = about.forms.split, about.forms.scatters
        return spaces.offered(
            about.limits, dots=about.request.dots, large=large, scatters=scatters, ways=ways,
            images=about.images is not None,
        )  # fmt: skip

    def _emitted(
        self,
        about: StitchingAnalysis,
        module: HloModule,
        rules: FusionPolicy,
        name: str,
        *,
        known: Mapping[str, object],
        ways: Mapping[str, Way] | None = None,
    ) -> Program | Rejection:
        planned = self._planned(about, module, rules, known)
        if about.request.group and rules.rules == "stitch" and isinstance(only := parts.only(planned), str):
            return Rejection(rule="group", nodes=(module.name,), detail=only)
        if planned.problems:
            return Rejection(rule="shared_memory", nodes=(module.name,), detail="; ".join(planned.problems))
        plan = self._composition(about, module, rules, planned, ways).plan if ways else planned.plan
        broken = verify.problems(module, plan)
        if broken:
            return Rejection(rule="invariant", nodes=(module.name,), detail="; ".join(broken[:5]))
        made = emit.program(module, plan, fills=about.request.fills, name=name)
        if isinstance(made, Rejection):
            return made
        if module is not about.request.module:
            # The tolerance follows the length of the sums as they were asked for, not as they are split.
            wanted = tolerances.compares(about.request.module)
            buffers = [dataclasses.replace(each, compare=wanted.get(each.name, each.compare)) for each in made.buffers]
            made = dataclasses.replace(made, buffers=tuple(buffers))
        if about.request.accuracy == requests.AS_XLA:
            sources = tuple(dataclasses.replace(each, flags=_AS_XLA) for each in made.sources)
            made = dataclasses.replace(made, sources=sources)
        # Where a dot may be part of a kernel, it has to count everywhere, or nothing could be compared.
        return made if about.request.dots == "library" else emit.timed_whole(made)

    def _planned(
        self, about: StitchingAnalysis, module: HloModule, rules: FusionPolicy, answers: Mapping[str, object]
    ) -> PlannedModule:
        alone = about.request.group and rules.rules == "stitch"
        plan = parts.planned if alone else planner.remembered
        return plan(module, rules, about.limits, performance_library.known(answers))

    def _composition(
        self,
        about: StitchingAnalysis,
        module: HloModule,
        rules: FusionPolicy,
        planned: PlannedModule,
        ways: Mapping[str, Way],
    ) -> Composition:
        own = self._own(about, module, rules, planned)
        return Composition(
            module=module,
            found=planned,
            parts=own,
            rules=rules,
            limits=about.limits,
            ways={root: ways[each.name] for root, each in own.items() if each.name in ways},
            shared_limits=spaces.shared_limits(about.limits),
        )

    def resolved(
        self, analysis: Analysis[StitchingRequest, StitchingAnalysis], config: Config, answers: Answers
    ) -> Config:
        """`shared` in bytes, and what came of `schedules: measured`."""
        about = analysis.payload
        try:
            plain, ways = spaces.parted(config)
            rules = self._policy(about.request, plain, about.limits)
        except (KeyError, TypeError, ValueError):
            return config
        values = {**config, "shared": rules.shared_limit}
        if ways:
            module = about.module(plain)
            planned = planner.remembered(module, rules, about.limits, performance_library.known(answers))
            if not planned.problems:
                made = self._composition(about, module, rules, planned, ways)
                values["schedules"] = report.composed(made, self._measured(about, answers)[1])
        return Config.of(values)

    def figures(
        self, analysis: Analysis[StitchingRequest, StitchingAnalysis], record: Record | None, answers: Answers
    ) -> Mapping[str, float]:
        """How long the dots take (our plain kernels, not a library's), and what follows of it for the whole module:
        FusableRatio and the predicted end-to-end gain (section 6.4) over the fastest unfused way. Nothing follows where
        something else is left to a library: nobody has timed that."""
        about = analysis.payload
        calls, module = about.calls, about.request.module
        library_us = answers.get(probes.library_key(calls)) if calls is not None else None
        timed = all(module[name].opcode == "input" for name in module.foreign)
        return report.figures(record if timed else None, library_us if isinstance(library_us, float | int) else None)

    def _policy(self, request: StitchingRequest, config: Config, limits: DeviceLimits) -> FusionPolicy:
        given = Config.of({"fusion": "packed", **config}) if request.group else config
        return spaces.policy(given, limits, dots=request.dots)

    def _rules(
        self, rules: Callable[..., FusionPolicy], limits: DeviceLimits, *, threads: int = spaces.THREADS[0]
    ) -> FusionPolicy:
        found = rules(threads=threads, multiprocessors=max(1, limits.multiprocessors))
        return dataclasses.replace(found, shared_limit=min(STATIC_SHARED_BYTES, limits.shared_bytes_per_block))


def _fewest(plans: Mapping[str, PlannedModule]) -> str:
    """Of packed and the paper's, the plan with fewer kernels; one without a plan has too many."""
    counts = {name: report.kernels(plans[name]) for name in ("packed", "paper")}
    return min(counts, key=lambda name: (counts[name] is None, counts[name] or 0))


def _worth(frame: HloModule) -> bool:
    """Whether there is more in it than a reshape."""
    return sum(1 for each in frame.instructions if frame.fusable(each) and each.opcode != "reshape") > 1
