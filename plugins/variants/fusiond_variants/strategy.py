"""Variants as a strategy: of several implementations of one computation, the fastest correct one is the answer.

job --parse--> Variants --analyse--> those with the reference's arguments --space--> variant, its knobs --emit--> one

A variant is read, shaped and written by whichever strategy takes documents of kernels, as a job of that one document
alone; what it is given, and what it is compared with, is the reference's.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Analysis, Config, Job, Rejection, Scrutiny, Workload, frozen
from fusiond.model.outcomes import Record
from fusiond.model.program import Program
from fusiond.strategy import IMPLEMENTATION, NO_ANSWERS, Answers, Baseline, Inputs, StrategyBase, Target
from fusiond.strategy.space import EMPTY, Space
from fusiond_variants import space
from fusiond_variants.codegen.adopt import adopted, mismatch
from fusiond_variants.frontend import request
from fusiond_variants.frontend.request import Variant, VariantsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantsAnalysis:
    """An Analysis' payload."""

    usable: Mapping[str, Analysis[Any, Any]] = field(repr=False)
    """Name -> the variant's own analysis; the reference first."""
    reference: Program | None  #: As given; None where it cannot run


class Variants(StrategyBase[VariantsRequest, VariantsAnalysis]):
    """Implementations of one computation, judged and tuned, whoever wrote them."""

    name = "variants"
    version = 1
    names: Mapping[str, str] = frozen({IMPLEMENTATION: "variants"})
    job_keys: tuple[str, ...] = ("variants", "reference", "precision")

    def parse(self, job: Job, inputs: Inputs) -> Workload[VariantsRequest]:
        found = request.read(job, inputs)
        hashes = {path: text for each in found.variants for path, text in each.workload.source_hashes.items()}
        names = tuple(each.name for each in found.variants)
        return Workload(
            strategy=self.name, strategy_version=self.version, name=",".join(names), members=names,
            sizes=found.variants[0].workload.sizes, content=request.content(found), payload=found,
            source_hashes=frozen(hashes),
        )  # fmt: skip

    def analyse(
        self, workload: Workload[VariantsRequest], target: Target
    ) -> Analysis[VariantsRequest, VariantsAnalysis]:
        asked = workload.payload
        first, *others = asked.variants
        usable: dict[str, Analysis[Any, Any]] = {}
        reports: list[Mapping[str, Any]] = []
        rejections: list[Rejection] = []
        reference: Program | None = None
        for each in (first, *others):
            analysis = each.strategy.analyse(each.workload, target)
            reports.append({"name": each.name, **analysis.report})
            problem, program = _checked(each, analysis, reference)
            if problem is None:
                usable[each.name] = analysis
                reference = reference or program
            else:
                rejections.append(problem)
            if reference is None:
                break
        function = asked.function
        report = {"reference": first.name if function is None else function.name, "variants": reports}
        return Analysis(
            workload=workload, report=frozen(report), rejections=tuple(rejections), alone=True,
            scrutiny=Scrutiny(function=function, numbers=_numbers(reports), precision=asked.precision != "any"),
            payload=VariantsAnalysis(usable=frozen(usable), reference=reference),
        )  # fmt: skip

    def space(self, analysis: Analysis[VariantsRequest, VariantsAnalysis], answers: Answers) -> Space:
        about = analysis.payload
        if about.reference is None:
            return EMPTY
        asked = analysis.workload.payload
        own = {name: asked.variant(name).strategy.space(each, NO_ANSWERS) for name, each in about.usable.items()}
        return space.union(own)

    def seeds(
        self, analysis: Analysis[VariantsRequest, VariantsAnalysis], space_: Space, answers: Answers
    ) -> tuple[tuple[str, Config], ...]:
        """Every variant as its file gives it."""
        if analysis.payload.reference is None:
            return ()
        return tuple((name, self._given(analysis, name)) for name in analysis.payload.usable)

    def baselines(self, analysis: Analysis[VariantsRequest, VariantsAnalysis]) -> tuple[Baseline, ...]:
        reference = analysis.payload.reference
        if reference is None:
            return ()
        name = next(iter(analysis.payload.usable))
        detail = f"{name}, as its file says"
        return (Baseline(name=name, detail=detail, space=EMPTY, emit=functools.partial(_same, reference)),)

    def emit(
        self, analysis: Analysis[VariantsRequest, VariantsAnalysis], config: Config, answers: Answers
    ) -> Program | Rejection:
        about = analysis.payload
        if about.reference is None:
            return analysis.rejections[0]
        try:
            name, own = space.own_config(config)
            variant = analysis.workload.payload.variant(name)
            theirs = about.usable[name]
        except (KeyError, TypeError) as problem:
            return Rejection(rule="not_in_space", nodes=analysis.workload.members, detail=f"{config}: {problem}")
        program = variant.strategy.emit(theirs, own, NO_ANSWERS)
        return program if isinstance(program, Rejection) else adopted(about.reference, program)

    def resolved(
        self, analysis: Analysis[VariantsRequest, VariantsAnalysis], config: Config, answers: Answers
    ) -> Config:
        name, own = space.own_config(config)
        strategy = analysis.workload.payload.variant(name).strategy
        return space.of_variant(name, strategy.resolved(analysis.payload.usable[name], own, NO_ANSWERS))

    def figures(
        self, analysis: Analysis[VariantsRequest, VariantsAnalysis], record: Record | None, answers: Answers
    ) -> Mapping[str, float]:
        asked = len(analysis.workload.payload.variants)
        return {"variants": asked, "variants_refused": asked - len(analysis.payload.usable)}

    def odd_sizes(self, workload: Workload[VariantsRequest]) -> Mapping[str, int] | None:
        return workload.payload.odd or None

    def _given(self, analysis: Analysis[VariantsRequest, VariantsAnalysis], name: str) -> Config:
        variant, theirs = analysis.workload.payload.variant(name), analysis.payload.usable[name]
        own = variant.strategy.space(theirs, NO_ANSWERS)
        return space.of_variant(name, next(own.points()))


def _checked(
    variant: Variant, analysis: Analysis[Any, Any], reference: Program | None
) -> tuple[Rejection | None, Program | None]:
    """Why a variant is left out; its program as given, where it is not."""
    if analysis.rejections:
        return analysis.rejections[0], None
    ways = variant.strategy.baselines(analysis)
    if not ways:
        return Rejection(rule="nothing", nodes=(variant.name,), detail=f"{variant.path}: nothing of it can run"), None
    try:
        program = ways[0].emit(next(ways[0].space.points()))
    except RequestError as problem:
        return Rejection(rule="shape", nodes=(variant.name,), detail=str(problem)), None
    if reference is not None:
        why = mismatch(reference, program)
        if why:
            return Rejection(rule="arguments", nodes=(variant.name,), detail=f"{variant.path}: {why}"), None
    return None, program


def _numbers(reports: list[Mapping[str, Any]]) -> Mapping[str, int | float]:
    """The first variant's scalars by name, as far as its strategy reports them."""
    return frozen(reports[0].get("scalars"))


def _same(program: Program, config: Config) -> Program:
    return program
