"""Horizontal fusion as a strategy (Li et al., CGO 2022), for two kernels and for more.

job --parse--> KernelGroup --analyse--> rejections, registers, r0 --space--> kind, level ... --emit--> one launch

Of three kernels and more, every pair is a workload of its own (`parts`); what the pairs saved when they were measured
decides how they are paired, and the launches that come of it are one Program, measured whole.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from fusiond.model.errors import RequestError
from fusiond.model.gpu.limits import BARRIER_IDS
from fusiond.model.keys import text_key
from fusiond.model.nouns import SAMPLER, Analysis, CompileFacts, Config, Job, Rejection, Workload, frozen
from fusiond.model.outcomes import Record
from fusiond.model.program import Program, SourceLanguage
from fusiond.strategy import Answers, Baseline, Inputs, StrategyBase, Target
from fusiond.strategy.composition import groups
from fusiond.strategy.space import EMPTY, Parameter, Space
from fusiond_hfuse import space
from fusiond_hfuse.analysis import pairing, partition
from fusiond_hfuse.analysis.fusion_schedule import FusionSchedule
from fusiond_hfuse.analysis.request import FusionRequest, GroupAnalysis, group_of, members, part_of
from fusiond_hfuse.codegen import emit, fuse, resources, verify
from fusiond_hfuse.frontend import kernel_file, launch_shapes, schema
from fusiond_hfuse.frontend.fusion_group import FusionSlot, KernelGroup
from fusiond_hfuse.frontend.launch_shapes import shape_of
from fusiond_hfuse.frontend.source_kernel import SourceKernel


class Hfuse(StrategyBase[FusionRequest, GroupAnalysis]):
    """Kernels that share nothing, as one: side by side in each thread block, or block by block in one launch."""

    name = "hfuse"
    version = fuse.VERSION
    job_keys: tuple[str, ...] = ("pair", "kernels", "granularity")
    names: Mapping[str, str] = frozen({"kernel": "kernels"})
    orders: tuple[str, ...] = (SAMPLER, "paper")
    documents: Mapping[str, Mapping[str, Any]] = frozen({"kernel": schema.kernel()})
    drafts: tuple[str, ...] = (".cu", ".cuh", ".ptx", ".py")

    def draft(self, path: str, name: str, inputs: Inputs, include: tuple[str, ...] = ()) -> str:
        from fusiond_hfuse.frontend import draft  # libclang takes long to load

        return draft.draft(path, name, inputs, include)

    # --- Job -> Workload ---

    def parse(self, job: Job, inputs: Inputs) -> Workload[FusionRequest]:
        names, where = members(job)
        read = _kernels(inputs, names, where)
        if job.search.order == "paper" and len(names) != 2:
            raise RequestError("`order: paper` is for two kernels", where=where)
        named = sorted(names, key=lambda name: (read[name].name, read[name].content_key))
        group = group_of(job, [read[name] for name in named])
        slots = tuple(_compiled_for(inputs, slot, where) for slot in group.slots)
        group = dataclasses.replace(group, slots=slots)
        for slot in group.slots:
            launch_shapes.buffers_of(slot)
            shape_of(slot, slot.kernel.block.shapes[0])
        hashes = {path: text_key(text) for each in read.values() for path, text in each.unit.files.items()}
        hashes |= {each.path: text_key(inputs.text(each.path, where=where)) for each in read.values()}
        fills = (argument.buffer.fill for each in read.values() for argument in each.buffers if argument.buffer)
        hashes |= {fill.file: fill.digest for fill in fills if fill.file and fill.digest}
        request = FusionRequest(group=group, job=job, names=frozen(dict(zip(group.letters, named, strict=True))))
        return self._workload(request, hashes)

    def _workload(self, request: FusionRequest, hashes: Mapping[str, str] | None = None) -> Workload[FusionRequest]:
        slots = request.group.slots
        content = [
            {"kernel": slot.kernel.name, "entry": slot.kernel.instance, "content": slot.kernel.content_key}
            for slot in slots
        ]
        members = tuple(slot.kernel.name for slot in slots)
        return Workload(
            strategy=self.name, strategy_version=self.version, name=",".join(members), members=members,
            sizes=frozen(request.group.sizes), content=content, payload=request, source_hashes=frozen(hashes),
        )  # fmt: skip

    # --- Workload -> Analysis ---

    def analyse(self, workload: Workload[FusionRequest], target: Target) -> Analysis[FusionRequest, GroupAnalysis]:
        request = workload.payload
        group = request.group
        facts = {slot.letter: resources.facts_of(target, slot) for slot in group.slots}
        own = {slot.letter: resources.own_problems(group, slot, target, facts[slot.letter]) for slot in group.slots}
        rejections = list(itertools.chain.from_iterable(own.values()))
        single = len(group.slots) == 1
        together = [] if rejections or single else resources.joint_problems(group, facts)
        known = GroupAnalysis(request=request, target=target)
        report: dict[str, object] = {"kernels": [resources.described(slot, facts[slot.letter]) for slot in group.slots]}
        if single:
            report["scalars"] = dict(shape_of(group.slots[0], group.slots[0].kernel.block.shapes[0]).scalars)
        if not rejections and not single and (alone := resources.alone_in_blocks(group, target)):
            report["only_block_by_block"] = alone
        whole = not rejections and not together
        if len(group.slots) > 2:
            pairs = {
                pair: resources.joint_problems(group.among("".join(pair)), facts)
                for pair in pairing.pairs(group)
                if not any(own[letter] for letter in pair)  # these can be fused with nothing
            }
            rejections += itertools.chain.from_iterable(pairs.values())
            known = dataclasses.replace(known, legal=tuple(p for p, why in pairs.items() if not why), whole=whole)
            report |= {"pairs": [pairing.written(["".join(pair)]) for pair in known.legal], "together": whole}
        report["bound"] = resources.even_bound(known) if whole and not single else None
        rejections += together
        return Analysis(
            workload=workload,
            report=frozen(report),
            rejections=tuple(dict.fromkeys(rejections)),
            alone=single,
            payload=known,
        )

    def parts(self, analysis: Analysis[FusionRequest, GroupAnalysis]) -> tuple[Job, ...]:
        """A job for every legal pair of three or more; equal pairs (a kernel that stands twice) once."""
        about = analysis.payload
        found: dict[str, Job] = {}
        for pair in about.legal:
            request = part_of(about.request, pair)
            found.setdefault(self._workload(request).key, request.job)
        return tuple(found.values())

    def space(self, analysis: Analysis[FusionRequest, GroupAnalysis], answers: Answers) -> Space:
        about = analysis.payload
        if len(about.group.slots) > 2:
            best = self._best(about, answers)
            return space.composed(about.group, about.target.limits, about.target.arch, whole=about.whole, best=best)
        if analysis.rejections:
            return EMPTY
        if analysis.alone:
            return space.unfused(about.group, about.target.limits)
        if about.request.job.search.order == "paper":
            return space.of_paper(about.group, about.target.limits)
        return space.fused(about.group, about.target.limits, about.target.arch)

    def seeds(
        self, analysis: Analysis[FusionRequest, GroupAnalysis], space_: Space, answers: Answers
    ) -> tuple[tuple[str, Config], ...]:
        about = analysis.payload
        if len(about.group.slots) > 2:
            return space.composed_seeds(about.group, about.target.limits, space_, self._best(about, answers))
        if about.request.job.search.order == "paper":
            return space.paper_order(space_)
        if analysis.alone:
            return tuple(("given", config) for config in itertools.islice(space_.points(), 1))
        facts = {slot.letter: resources.facts_of(about.target, slot) for slot in about.group.slots}
        natives = {letter: each.registers for letter, each in facts.items() if isinstance(each, CompileFacts)}
        return space.seeds(about.group, about.target.limits, space_, natives)

    def _best(self, about: GroupAnalysis, answers: Answers) -> dict[pairing.Pair, Config]:
        """The pairs that save most together, each with the config of its own record, in the letters of the group."""
        records: dict[pairing.Pair, Record] = {}
        for pair in about.legal:
            record = answers.get(self._workload(part_of(about.request, pair)).key)
            if isinstance(record, Record):
                records[pair] = record
        chosen = groups.matching({pair: pairing.saving(record) for pair, record in records.items()})
        configs = {pair: records[pair].config for pair in chosen}
        return {pair: pairing.translated(config, pair) for pair, config in configs.items() if config is not None}

    def baselines(self, analysis: Analysis[FusionRequest, GroupAnalysis]) -> tuple[Baseline, ...]:
        about = analysis.payload
        group = about.group
        knobs = space.unfused(group, about.target.limits)

        def baseline(name: str, detail: str, order: str = group.letters) -> Baseline:
            issue = {"sequential": "sequence", "given": "sequence", "graph": "graph"}.get(name, "streams")

            def program(config: Config) -> Program:
                return resources.carved(about, _apart(about, group, config, order=order, issue=issue))

            like = None if issue == "sequence" else "sequential"
            return Baseline(name=name, detail=detail, space=knobs, emit=program, like=like)

        if analysis.alone:
            plain = next(knobs.points())
            knobs = Space(parameters=tuple(Parameter(name=name, values=(value,)) for name, value in plain.items()))
            return (baseline("given", "as its file says"),)
        first, *_, last = group.names
        count = len(group.slots)
        back = group.letters[::-1]
        said = "two" if count == 2 else str(count)
        return (
            baseline("sequential", f"{', then '.join(group.names)}, on one stream"),
            baseline(f"streams_{group.letters}", f"{said} streams, {first} launched first"),
            baseline(f"streams_{back}", f"{said} streams, {last} launched first", back),
            baseline("graph", f"{said} streams as one CUDA graph"),
        )

    # --- Config -> Program ---

    def emit(
        self, analysis: Analysis[FusionRequest, GroupAnalysis], config: Config, answers: Answers
    ) -> Program | Rejection:
        about = analysis.payload
        if len(about.group.slots) > 2:
            return self._composed(about, config)
        if analysis.rejections:
            return analysis.rejections[0]
        if analysis.alone:
            problems = space.unfused(about.group, about.target.limits).problems(config)
            if problems:
                return Rejection(rule="not_in_space", nodes=about.group.names, detail="; ".join(problems))
            try:
                return resources.carved(about, _apart(about, about.group, config))
            except ValueError as problem:
                return Rejection(rule="compile", nodes=about.group.names, detail=str(problem))
        return self._fused(about, about.group, config)

    def _fused(self, about: GroupAnalysis, group: KernelGroup, config: Config) -> Program | Rejection:
        """A group as one launch."""
        limits = about.target.limits
        offered = space.fused(group, limits, about.target.arch)
        config = space.completed(config, offered, group)
        problems = offered.problems(config)
        if problems:
            return Rejection(rule="not_in_space", nodes=group.names, detail="; ".join(problems))
        try:
            group = group.at(config)
            schedule = _schedule(about, group, config)
            cap = resources.cap(about, group, schedule, config)
            if isinstance(cap, Rejection):
                return cap
            schedule = resources.traded(about, schedule, cap, config)
            program = emit.fused(group, schedule, cap)
        except (ValueError, RequestError) as problem:
            return Rejection(rule="shape", nodes=group.names, detail=str(problem))
        broken = verify.problems(schedule, program) + verify.register_problems(
            schedule, resources.launched(about, schedule, cap)
        )
        if broken:
            return Rejection(rule="invariant", nodes=group.names, detail="; ".join(broken))
        return resources.launchable(about, group, schedule, program)

    def _composed(self, about: GroupAnalysis, config: Config) -> Program | Rejection:
        """Fused pairs and single kernels, launched as the config says; or all in one launch.

        The config has all that it needs in itself, so it means the same at other sizes, for which no pair was ever
        measured."""
        group = about.group
        try:
            groups = pairing.read(config.text("groups"), group.letters)
            if groups == (group.letters,):
                if not about.whole:
                    raise ValueError("they cannot all be one launch")
                rest = Config.of({name: value for name, value in config.items() if name != "groups"})
                return self._fused(about, group, rest)
            programs: list[tuple[str, Program]] = []
            used = {"groups", "launch"}
            for letters, own in _own_configs(config, groups):
                used |= {f"{letters}.{name}" for name in own} if len(letters) > 1 else {f"{n}.{letters}" for n in own}
                program = self._single(about, letters, own) if len(letters) == 1 else self._pair(about, letters, own)
                if isinstance(program, Rejection):
                    return program
                programs.append((letters, program))
            launch = config.text("launch")
            if launch not in space.LAUNCHES or set(config) != used:
                raise ValueError(f"launch is {launch}, and {', '.join(sorted(set(config) ^ used))} fits no group")
        except (KeyError, TypeError, ValueError) as problem:
            return Rejection(rule="not_in_space", nodes=group.names, detail=f"{config}: {problem}")
        return resources.carved(about, emit.composed(group, programs, launch))

    def _pair(self, about: GroupAnalysis, letters: str, config: Config) -> Program | Rejection:
        part = about.group.among(letters)
        if not any(set(pair) == set(letters) for pair in about.legal):
            detail = f"{' and '.join(part.names)} cannot be fused"
            return Rejection(rule="not_in_space", nodes=part.names, detail=detail)
        return self._fused(about, part, config)

    def _single(self, about: GroupAnalysis, letter: str, config: Config) -> Program | Rejection:
        part = about.group.among(letter)
        own = {f"{name}.{letter}": value for name, value in config.items() if name != "alone"}
        wanted = Config.of({f"threads.{letter}": config.integer("alone"), **own})
        offered = space.unfused(part, about.target.limits)
        if len(wanted) < len(config) or offered.problems(wanted):
            return Rejection(rule="not_in_space", nodes=part.names, detail=f"{config} is not offered for {letter}")
        return _apart(about, part, wanted)

    def resolved(self, analysis: Analysis[FusionRequest, GroupAnalysis], config: Config, answers: Answers) -> Config:
        """`cap=paper` and `cap=native` as the number of registers that they come to, in a pair of a composition too."""
        about = analysis.payload
        values = dict(config)
        for name, value in config.items():
            if value in ("paper", "native") and (name == "cap" or name.endswith(".cap")):
                prefix = name.removesuffix("cap")
                own = {key.removeprefix(prefix): each for key, each in config.items() if key.startswith(prefix)}
                group = about.group.among(prefix.rstrip(".")) if prefix else about.group
                cap = resources.cap(about, group, _schedule(about, group, Config.of(own)), Config.of({"cap": value}))
                values[name] = value if isinstance(cap, Rejection) or cap.registers is None else cap.registers
        return Config.of(values)

    def inspect(self, program: Program, ptx: Mapping[str, str]) -> Rejection | None:
        """Nothing of the fused block may leak into the kernels in it: the PTX of every fused source is searched."""
        for source in program.sources:
            fused = any(entry.startswith("fused_") for entry in source.entries)
            if fused and source.name in ptx:
                compiled = source.language is SourceLanguage.PTX
                own = compiled or "::__syncthreads" in source.text  # the hardware's, where blocks are one side's alone
                barriers = range(0 if own else 1, BARRIER_IDS)
                trades = "setmaxnreg" in source.text
                leaks = verify.lint(ptx[source.name], barriers=tuple(barriers), trades=trades, compiled=compiled)
                if leaks:
                    return Rejection(rule="leak", nodes=(source.name,), detail="; ".join(leaks))
        return None

    def unfused(self, analysis: Analysis[FusionRequest, GroupAnalysis], config: Config) -> Program | None:
        about = analysis.payload
        if analysis.alone:
            return None
        whole = about.group.letters
        groups = pairing.read(config.text("groups"), whole) if "groups" in config else (whole,)
        threads: dict[str, int] = {}
        chosen = dict(config)
        for letters, own in _own_configs(config, groups):
            chosen |= own
            if len(letters) == 1:
                threads[letters] = own.integer("alone")
            elif "kind" not in own:
                return None
            else:
                schedule = _schedule(about, about.group.among(letters), own)
                threads |= {side.slot.letter: side.threads for side in schedule.sides}
        group = about.group.at({**chosen, **{f"threads.{letter}": each for letter, each in threads.items()}})
        return emit.unfused(group, threads, dict.fromkeys(threads))

    def odd_sizes(self, workload: Workload[FusionRequest]) -> Mapping[str, int] | None:
        group = workload.payload.group
        odd = {slot.places[name]: value for slot in group.slots for name, value in slot.kernel.odd.items()}
        return odd or None


def _kernels(inputs: Inputs, names: tuple[str, ...], where: str) -> dict[str, SourceKernel]:
    """The kernels of a job by their names there; all of PTX where one is. RequestError."""
    read: dict[str, SourceKernel] = {}
    for name in dict.fromkeys(names):
        if any(f"{ending}:" in f"{name}:" for ending in Hfuse.drafts):
            raise RequestError(
                f"{name} is a source; `fusiond init {name}` drafts the YAML that launches it", where=where
            )
        path = inputs.resolve("kernel", name, where=where)
        read[name] = kernel_file.read(inputs, path, where=where, form="alone" if len(names) == 1 else "")
    if len(names) > 1 and any(each.ptx is not None for each in read.values()):
        for name, each in read.items():
            read[name] = each if each.ptx else kernel_file.read(inputs, each.path, where=where, form="ptx")
    return read


def _compiled_for(inputs: Inputs, slot: FusionSlot, where: str) -> FusionSlot:
    """A slot whose PTX was compiled with macros of its own sizes: the file's may be others."""
    kernel = slot.kernel
    written = kernel.written_sizes & slot.sizes.keys()
    if not (kernel.why_ptx or kernel.forms) or all(kernel.sizes[name] == slot.sizes[name] for name in written):
        return slot
    form = "" if kernel.forms else "ptx"
    again = kernel_file.read(inputs, kernel.path, where=where, form=form, at=slot.sizes)
    return dataclasses.replace(slot, kernel=dataclasses.replace(again, sizes=kernel.sizes))


def _apart(
    about: GroupAnalysis, group: KernelGroup, config: Config, *, order: str = "", issue: str = "sequence"
) -> Program:
    """Kernels as they are, at a point of `space.unfused`. ValueError."""
    group = group.at(config)
    threads = {slot.letter: config.integer(f"threads{slot.suffix}") for slot in group.slots}
    wanted = {slot.letter: config.get(f"cap{slot.suffix}", "none") for slot in group.slots}
    caps = {letter: resources.own_cap(about, threads[letter], each) for letter, each in wanted.items()}
    return emit.unfused(group, threads, caps, order=order, issue=issue)


def _schedule(about: GroupAnalysis, group: KernelGroup, config: Config) -> FusionSchedule:
    return partition.schedule(group.at(config), config, about.target.limits.multiprocessors)


def _own_configs(config: Config, groups: tuple[str, ...]) -> Iterator[tuple[str, Config]]:
    """The letters of each launch, and its own part of a config: `ac.kind` as `kind`, `alone.b` as `alone`."""
    for letters in groups:
        if len(groups) == 1:
            values = {name: value for name, value in config.items() if name != "groups"}
        elif len(letters) == 1:
            values = {name[:-2]: value for name, value in config.items() if name.endswith(f".{letters}")}
        else:
            prefix = f"{letters}."
            values = {name.removeprefix(prefix): value for name, value in config.items() if name.startswith(prefix)}
        yield letters, Config.of(values)
