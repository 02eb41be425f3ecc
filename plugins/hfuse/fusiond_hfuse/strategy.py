"""Horizontal fusion as a strategy (Li et al., CGO 2022), for two kernels and for more.

job --parse--> Group --analyse--> rejections, registers, r0 --space--> kind, level, threads ... --emit--> one launch

Of three kernels and more, every pair is a workload of its own (`parts`); what the pairs saved when they were measured
decides who is fused with whom, and the launches that come of it are one Program, measured whole.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fusiond.cuda.limits import BARRIER_IDS, STATIC_SHARED_BYTES
from fusiond.cuda.occupancy import launch_problem
from fusiond.errors import RequestError, UnknownName
from fusiond.keys import text_key
from fusiond.model import (
    SAMPLER,
    Analysis,
    BuildFailed,
    CompileFacts,
    Config,
    Job,
    Record,
    Rejection,
    Value,
    Workload,
    frozen,
)
from fusiond.program import Launch, Program
from fusiond.search.space import EMPTY, Space
from fusiond.strategy import Answers, Baseline, Inputs, StrategyBase, Target
from fusiond_hfuse import space
from fusiond_hfuse.analysis import pairing, partition, registers
from fusiond_hfuse.codegen import emit, fuse, verify
from fusiond_hfuse.frontend import draft, kernel
from fusiond_hfuse.frontend.graph import SLOTS, WARP, Group, Kernel, Plan, Slot, volume


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A Workload's payload: the group, and what is needed to ask for parts of it."""

    group: Group
    job: Job = field(repr=False)
    names: Mapping[str, str]
    """Letter -> what the job calls the kernel: a catalogue name or a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysed:
    """An Analysis' payload: the group, what is legal in it, and what asks the compiler."""

    asked: Request
    target: Target = field(repr=False)
    legal: tuple[pairing.Pair, ...] = ()
    """The pairs that can be fused, of a group of three or more."""
    whole: bool = False
    """All of a group of three or more can be one launch."""

    @property
    def group(self) -> Group:
        return self.asked.group


class Hfuse(StrategyBase[Request, Analysed]):
    """Kernels that share nothing, as one: side by side in each thread block, or block by block in one launch."""

    name = "hfuse"
    version = 1
    job_keys: tuple[str, ...] = ("pair", "kernels", "granularity")
    names: Mapping[str, str] = frozen({"kernel": "pair"})
    orders: tuple[str, ...] = (SAMPLER, "paper")
    drafts: tuple[str, ...] = (".cu",)

    def draft(self, path: str, name: str, inputs: Inputs, include: tuple[str, ...] = ()) -> str:
        return draft.draft(path, name, inputs, include)

    # --- Job -> Workload ---

    def parse(self, job: Job, inputs: Inputs) -> Workload[Request]:
        names, where = _members(job)
        read: dict[str, tuple[str, Kernel]] = {}
        for name in dict.fromkeys(names):
            if any(f"{name}:".rfind(f"{ending}:") >= 0 for ending in self.drafts):
                raise RequestError(
                    f"{name} is a source; `fusiond init {name}` drafts the YAML that launches it", where=where
                )
            path = inputs.resolve("kernel", name, where=where)
            read[name] = path, kernel.read(inputs, path, where=where)
        if job.search.order == "paper" and len(names) > 2:
            raise RequestError("`order: paper` is for two kernels", where=where)
        named = sorted(names, key=lambda name: (read[name][1].name, read[name][1].content_key))
        group = _group(job, [read[name][1] for name in named])
        for slot in group.slots:
            kernel.buffers_of(slot)
            kernel.shape_of(slot, slot.kernel.block.shapes[0])
        kernels = [each for _, each in read.values()]
        hashes = {path: text_key(text) for each in kernels for path, text in each.unit.files.items()}
        hashes |= {each.path: text_key(inputs.text(each.path, where=where)) for each in kernels}
        hashes |= {
            argument.buffer.fill.file: argument.buffer.fill.digest
            for each in kernels
            for argument in each.buffers
            if argument.buffer is not None and argument.buffer.fill.file and argument.buffer.fill.digest
        }
        asked = Request(group=group, job=job, names=frozen(dict(zip(group.letters, named, strict=True))))
        return self._workload(asked, hashes)

    def _workload(self, asked: Request, hashes: Mapping[str, str] | None = None) -> Workload[Request]:
        slots = asked.group.slots
        return Workload(
            strategy=self.name,
            strategy_version=self.version,
            name=",".join(slot.kernel.name for slot in slots),
            members=tuple(slot.kernel.name for slot in slots),
            sizes=frozen(asked.group.sizes),
            content=[
                {"kernel": slot.kernel.name, "entry": slot.kernel.instance, "content": slot.kernel.content_key}
                for slot in slots
            ],
            payload=asked,
            source_hashes=frozen(hashes),
        )

    # --- Workload -> Analysis ---

    def analyse(self, workload: Workload[Request], target: Target) -> Analysis[Request, Analysed]:
        asked = workload.payload
        group = asked.group
        facts = {slot.letter: _facts(target, slot) for slot in group.slots}
        own = {slot.letter: _own_problems(group, slot, target, facts[slot.letter]) for slot in group.slots}
        rejections = [each for letter in group.letters for each in own[letter]]
        together = [] if rejections else _joint_problems(group, target, facts)
        known = Analysed(asked=asked, target=target)
        report: dict[str, object] = {"kernels": [_described(slot, facts[slot.letter]) for slot in group.slots]}
        alone = [] if rejections else _alone_in_blocks(group, target)
        if alone:
            report["only_block_by_block"] = alone
        if len(group.slots) > 2:
            legal = []
            for pair in pairing.pairs(group):
                problems = (
                    []
                    if own[pair[0]] or own[pair[1]]
                    else _joint_problems(group.among(pair[0] + pair[1]), target, facts)
                )
                rejections += problems
                if not own[pair[0]] and not own[pair[1]] and not problems:
                    legal.append(pair)
            known = dataclasses.replace(known, legal=tuple(legal), whole=not any(own.values()) and not together)
            report["pairs"] = [pairing.written([pair[0] + pair[1]]) for pair in legal]
            report["together"] = known.whole
            fusable = known.whole
        else:
            fusable = not rejections and not together
        report["bound"] = _even_bound(known) if fusable else None
        rejections += together
        return Analysis(
            workload=workload, report=frozen(report), rejections=tuple(dict.fromkeys(rejections)), payload=known
        )

    def parts(self, analysis: Analysis[Request, Analysed]) -> tuple[Job, ...]:
        """A job for every legal pair of three or more; equal pairs (a kernel that stands twice) once."""
        about = analysis.payload
        found: dict[str, Job] = {}
        for pair in about.legal:
            asked = _part(about.asked, pair)
            found.setdefault(self._workload(asked).key, asked.job)
        return tuple(found.values())

    def space(self, analysis: Analysis[Request, Analysed], answers: Answers) -> Space:
        about = analysis.payload
        if len(about.group.slots) > 2:
            best = self._best(about, answers)
            return space.composed(about.group, about.target.limits, about.target.arch, whole=about.whole, best=best)
        if analysis.rejections:
            return EMPTY
        if about.asked.job.search.order == "paper":
            return space.of_paper(about.group, about.target.limits)
        return space.fused(about.group, about.target.limits, about.target.arch)

    def seeds(
        self, analysis: Analysis[Request, Analysed], space_: Space, answers: Answers
    ) -> tuple[tuple[str, Config], ...]:
        about = analysis.payload
        if len(about.group.slots) > 2:
            return space.composed_seeds(about.group, about.target.limits, space_, self._best(about, answers))
        if about.asked.job.search.order == "paper":
            return space.paper_order(space_)
        facts = {slot.letter: _facts(about.target, slot) for slot in about.group.slots}
        natives = {letter: each.registers for letter, each in facts.items() if isinstance(each, CompileFacts)}
        return space.seeds(about.group, about.target.limits, space_, natives)

    def _best(self, about: Analysed, answers: Answers) -> dict[pairing.Pair, Config]:
        """The pairs that save most together, each with the config of its own record, in the letters of the group."""
        records: dict[pairing.Pair, Record] = {}
        for pair in about.legal:
            record = answers.get(self._workload(_part(about.asked, pair)).key)
            if isinstance(record, Record):
                records[pair] = record
        chosen = pairing.matching({pair: pairing.saving(record) for pair, record in records.items()})
        configs = {pair: records[pair].config for pair in chosen}
        return {pair: pairing.translated(config, pair) for pair, config in configs.items() if config is not None}

    def baselines(self, analysis: Analysis[Request, Analysed]) -> tuple[Baseline, ...]:
        about = analysis.payload
        group = about.group
        knobs = space.unfused(group, about.target.limits)

        def baseline(
            name: str, detail: str, *, order: str = group.letters, streams: bool = False, issue: str = "streams"
        ) -> Baseline:
            def program(config: Config) -> Program:
                threads = {letter: config.integer(f"threads.{letter}") for letter in group.letters}
                return emit.unfused(
                    group,
                    threads,
                    {each: _own_cap(about, threads[each], config.get(f"cap.{each}", "none")) for each in group.letters},
                    order=order,
                    streams=streams,
                    issue=issue,
                )

            return Baseline(
                name=name, detail=detail, space=knobs, emit=program, like=None if name == "sequential" else "sequential"
            )

        first, *_, last = group.names
        count = len(group.slots)
        back = group.letters[::-1]
        said = "two" if count == 2 else str(count)
        return (
            baseline("sequential", f"{', then '.join(group.names)}, on one stream"),
            baseline(f"streams_{group.letters}", f"{said} streams, {first} launched first", streams=True),
            baseline(f"streams_{back}", f"{said} streams, {last} launched first", order=back, streams=True),
            baseline("graph", f"{said} streams as one CUDA graph", streams=True, issue="graph"),
        )

    # --- Config -> Program ---

    def emit(self, analysis: Analysis[Request, Analysed], config: Config, answers: Answers) -> Program | Rejection:
        about = analysis.payload
        if len(about.group.slots) > 2:
            return self._composed(about, config)
        if analysis.rejections:
            return analysis.rejections[0]
        return self._fused(about, about.group, config)

    def _fused(self, about: Analysed, group: Group, config: Config) -> Program | Rejection:
        """A group as one launch."""
        limits = about.target.limits
        offered = space.fused(group, limits, about.target.arch)
        config = space.completed(config, offered)
        problems = offered.problems(config)
        if problems:
            return Rejection(rule="not_in_space", nodes=group.names, detail="; ".join(problems))
        try:
            plan = _plan(about, group, config)
            cap = _cap(about, group, plan, config)
            if isinstance(cap, Rejection):
                return cap
            plan = _traded(about, plan, cap, config)
            program = emit.fused(group, plan, cap, self.version)
        except (ValueError, RequestError) as problem:
            return Rejection(rule="shape", nodes=group.names, detail=str(problem))
        broken = verify.problems(plan, program) + verify.register_problems(plan, _launched(about, plan, cap))
        if broken:
            return Rejection(rule="invariant", nodes=group.names, detail="; ".join(broken))
        return _launchable(about, group, plan, program)

    def _composed(self, about: Analysed, config: Config) -> Program | Rejection:
        """Fused pairs and single kernels, launched as the config says; or all in one launch.

        The config has all that it needs in itself, so it means the same at other sizes, for which no pair was ever
        measured.
        """
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
        return emit.composed(group, programs, launch)

    def _pair(self, about: Analysed, letters: str, config: Config) -> Program | Rejection:
        part = about.group.among(letters)
        if not any(set(pair) == set(letters) for pair in about.legal):
            return Rejection(
                rule="not_in_space", nodes=part.names, detail=f"{' and '.join(part.names)} cannot be fused"
            )
        return self._fused(about, part, config)

    def _single(self, about: Analysed, letter: str, config: Config) -> Program | Rejection:
        part = about.group.among(letter)
        threads = config.integer("alone")
        own = {f"threads.{letter}": threads, f"cap.{letter}": config.get("cap", "none")}
        offered = space.unfused(part, about.target.limits)
        wanted = Config.of({each.name: own[each.name] for each in offered.parameters})
        if len(wanted) < len(config) or offered.problems(wanted):
            return Rejection(rule="not_in_space", nodes=part.names, detail=f"{config} is not offered for {letter}")
        return emit.unfused(part, {letter: threads}, {letter: _own_cap(about, threads, own[f"cap.{letter}"])})

    def resolved(self, analysis: Analysis[Request, Analysed], config: Config, answers: Answers) -> Config:
        """`cap=paper` and `cap=native` as the number of registers that they come to, in a pair of a composition too."""
        about = analysis.payload
        values = dict(config)
        for name, value in config.items():
            if value in ("paper", "native") and (name == "cap" or name.endswith(".cap")):
                prefix = name.removesuffix("cap")
                own = {key.removeprefix(prefix): each for key, each in config.items() if key.startswith(prefix)}
                group = about.group.among(prefix.rstrip(".")) if prefix else about.group
                cap = _cap(about, group, _plan(about, group, Config.of(own)), Config.of({"cap": value}))
                values[name] = value if isinstance(cap, Rejection) or cap.registers is None else cap.registers
        return Config.of(values)

    def inspect(self, program: Program, ptx: Mapping[str, str]) -> Rejection | None:
        """Nothing of the fused block may leak into the kernels in it: the PTX of every fused source is searched."""
        for source in program.sources:
            fused = any(entry.startswith("fused_") for entry in source.entries)
            if fused and source.name in ptx:
                barriers = range(fuse.lowest_barrier(source.text), BARRIER_IDS)
                trades = "setmaxnreg" in source.text
                leaks = verify.lint(ptx[source.name], barriers=tuple(barriers), trades=trades)
                if leaks:
                    return Rejection(rule="leak", nodes=(source.name,), detail="; ".join(leaks))
        return None

    def unfused(self, analysis: Analysis[Request, Analysed], config: Config) -> Program | None:
        about = analysis.payload
        threads: dict[str, int] = {}
        for letters, own in _own_configs(config, _groups(about.group, config)):
            if len(letters) == 1:
                threads[letters] = own.integer("alone")
            elif "kind" not in own:
                return None
            else:
                plan = _plan(about, about.group.among(letters), own)
                threads |= {side.slot.letter: side.threads for side in plan.sides}
        return emit.unfused(about.group, threads, dict.fromkeys(threads))

    def odd_sizes(self, workload: Workload[Request]) -> Mapping[str, int] | None:
        group = workload.payload.group
        odd = {f"{slot.prefix}.{name}": value for slot in group.slots for name, value in slot.kernel.odd.items()}
        return odd or None


def _plan(about: Analysed, group: Group, config: Config) -> Plan:
    return partition.plan(group, config, about.target.limits.multiprocessors)


def _groups(group: Group, config: Config) -> tuple[str, ...]:
    """The letters of each launch of a config."""
    return pairing.read(config.text("groups"), group.letters) if "groups" in config else (group.letters,)


def _own_configs(config: Config, groups: tuple[str, ...]) -> Iterator[tuple[str, Config]]:
    """Each group's own part of a config, without the group's name: `ac.kind` as `kind`, `alone.b` as `alone`."""
    for letters in groups:
        if len(groups) == 1:
            values = {name: value for name, value in config.items() if name != "groups"}
        elif len(letters) == 1:
            values = {stem: config[f"{stem}.{letters}"] for stem in ("alone", "cap") if f"{stem}.{letters}" in config}
        else:
            prefix = f"{letters}."
            values = {name.removeprefix(prefix): value for name, value in config.items() if name.startswith(prefix)}
        yield letters, Config.of(values)


# --- reading the job ------------------------------------------------------------------------------------


def _members(job: Job) -> tuple[tuple[str, ...], str]:
    """The names, and where they stand. `kernels:` of two is a pair by another name."""
    given = [key for key in ("pair", "kernels") if key in job.request]
    if not given:
        raise RequestError("the key 'pair' is missing: pair: [hist, maxpool]", where=job.path)
    key = given[0]
    where = job.where(key)
    if len(given) > 1:
        raise RequestError("'pair' and 'kernels' say the same; leave one out", where=where)
    members = job.request[key]
    if not isinstance(members, list | tuple) or not all(isinstance(each, str) and each for each in members):
        many = "two names of kernels" if key == "pair" else "names of kernels"
        raise RequestError(f"wanted is a list of {many}, or paths of their YAML files", where=where)
    if key == "pair" and len(members) != 2:
        hint = "; more go under 'kernels'" if len(members) > 2 else ""
        raise RequestError(f"a pair is two kernels; here are {len(members)}{hint}", where=where)
    if not 2 <= len(members) <= len(SLOTS):
        raise RequestError(f"wanted are 2 to {len(SLOTS)} kernels; here are {len(members)}", where=where)
    return tuple(members), where


def _group(job: Job, kernels: list[Kernel]) -> Group:
    granularity = job.request.get("granularity", 128)
    if isinstance(granularity, bool) or not isinstance(granularity, int) or not (
        WARP <= granularity <= 1024 and granularity % WARP == 0
    ):  # fmt: skip
        raise RequestError(
            f"is {granularity!r}; wanted is a multiple of {WARP} up to 1024 (the paper's is 128)",
            where=job.where("granularity"),
        )
    plain = [Slot(letter=letter, kernel=each, sizes=each.sizes, prefix="") for letter, each in zip(SLOTS, kernels)]  # noqa: B905
    slots = pairing.regrouped(plain, granularity).slots
    sizes = {slot.letter: dict(slot.kernel.sizes) for slot in slots}
    for key, value in job.sizes.items():
        prefix, _, name = key.rpartition(".")
        named = [slot for slot in slots if prefix == slot.kernel.name] or [
            slot for slot in slots if prefix == slot.letter
        ]
        if not named or any(name not in slot.kernel.sizes for slot in named):
            known = {f"{slot.prefix}.{size}" for slot in slots for size in slot.kernel.sizes}
            raise UnknownName("size", key, known, where=job.where(f"sizes.{key}"))
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**63:
            raise RequestError(f"is {value!r}; a whole number from 1 is wanted", where=job.where(f"sizes.{key}"))
        for slot in named:
            sizes[slot.letter][name] = value
    return Group(
        slots=tuple(dataclasses.replace(slot, sizes=frozen(sizes[slot.letter])) for slot in slots),
        granularity=granularity,
    )


def _part(asked: Request, pair: pairing.Pair) -> Request:
    """A pair of a larger group as a job of its own: the same search, on the same device, at the same sizes."""
    group = pairing.as_pair(asked.group, pair)
    names = [asked.names[letter] for letter in pair]
    request: dict[str, object] = {"pair": names, "granularity": group.granularity}
    job = dataclasses.replace(asked.job, request=frozen(request), sizes=frozen(group.sizes), lines=frozen())
    return Request(group=group, job=job, names=frozen(dict(zip("ab", names, strict=True))))


# --- what the compiler says -----------------------------------------------------------------------------


def _facts(target: Target, slot: Slot) -> CompileFacts | BuildFailed | None:
    """A kernel's own facts at its given block shape."""
    source = emit.native_source(slot, volume(slot.kernel.block.shapes[0]), None)
    found = target.facts(source)
    return found if found is None or isinstance(found, BuildFailed) else found.get(slot.kernel.instance)


def _described(slot: Slot, facts: CompileFacts | BuildFailed | None) -> dict[str, object]:
    shape = kernel.shape_of(slot, slot.kernel.block.shapes[0])
    known = facts if isinstance(facts, CompileFacts) else None
    return {
        "name": slot.kernel.name,
        "registers": known.registers if known else None,
        "shared_bytes": known.shared_bytes + int(shape.shared_bytes) if known else None,
        "barriers": known.barriers if known else None,
        "threads": volume(shape.block),
    }


def _own_problems(
    group: Group, slot: Slot, target: Target, facts: CompileFacts | BuildFailed | None
) -> list[Rejection]:
    """Why a kernel cannot be fused with anything."""
    found = list(slot.kernel.parsed.rejections)
    if isinstance(facts, BuildFailed):
        detail = f"{slot.kernel.name} does not build by itself: {facts.reason}"
        found.append(Rejection(rule="does_not_build", nodes=(slot.kernel.name,), detail=detail))
    if not partition.counts(group, slot.letter, target.limits):
        why = "within the limits of the device and of __launch_bounds__ gives a launch at these sizes"
        detail = f"{slot.kernel.lines['block']}: no block shape of {slot.kernel.name} {why}"
        found.append(Rejection(rule="block_shape", nodes=(slot.kernel.name,), detail=detail))
    return found


def _alone_in_blocks(group: Group, target: Target) -> list[str]:
    """Why kernels can only be fused block by block."""
    found = []
    for slot in group.slots:
        found += [each.detail for each in slot.kernel.parsed.beside]
        if not slot.kernel.parsed.beside and not partition.counts(group, slot.letter, target.limits, beside=True):
            found.append(
                f"{slot.kernel.lines['block']}: no block shape of {slot.kernel.name} is whole warps, and a partial "
                f"barrier counts warps"
            )
    return list(dict.fromkeys(found))


def _joint_problems(
    group: Group, target: Target, facts: Mapping[str, CompileFacts | BuildFailed | None]
) -> list[Rejection]:
    """Why kernels that could be fused cannot be one launch."""
    found = []
    static = [_static_bytes(slot, facts[slot.letter]) for slot in group.slots]
    fits = sum(static) <= STATIC_SHARED_BYTES
    moves = partition.static_bytes(group.slots) > STATIC_SHARED_BYTES
    if not fits and not (moves and partition.static_bytes(partition.placed(group)) <= STATIC_SHARED_BYTES):
        detail = (
            f"static shared arrays of {' and '.join(map(str, static))} bytes; together at most "
            f"{STATIC_SHARED_BYTES} compile, and they cannot all become dynamic"
        )
        found.append(Rejection(rule="static_shared", nodes=group.names, detail=detail))
    for first, second in itertools.pairwise(slot.kernel for slot in group.slots):
        if sorted(first.flags) != sorted(second.flags):
            detail = (
                f"{first.name} is compiled with {' '.join(first.flags) or 'no flags'}, {second.name} with "
                f"{' '.join(second.flags) or 'none'}; one source has one set of flags"
            )
            found.append(Rejection(rule="flags_differ", nodes=group.names, detail=detail))
            break
    return found


def _static_bytes(slot: Slot, facts: CompileFacts | BuildFailed | None) -> int:
    """Static shared memory: what ptxas says, else what the tree says, else nothing is known and the build will tell."""
    if isinstance(facts, CompileFacts):
        return facts.shared_bytes
    return slot.kernel.parsed.static_shared_bytes or 0


def _bound(known: Analysed, group: Group, plan: Plan) -> registers.Bound | None:
    """The paper's r0 for a plan; None where no compiler knows the kernels' registers."""
    used = _natives(known, plan)
    if used is None:
        return None
    shapes = {side.slot.letter: kernel.shape_of(side.slot, side.shape) for side in plan.sides}
    shared = sum(facts.shared_bytes for facts in used) + int(emit.arena_bytes(plan, shapes))
    return registers.bound(
        known.target.limits,
        threads=tuple(side.threads for side in plan.by_letter),
        registers=tuple(facts.registers for facts in used),
        shared_bytes=shared,
        block=plan.threads,
    )


def _natives(known: Analysed, plan: Plan) -> list[CompileFacts] | None:
    """What the compiler says of a plan's kernels by themselves, at its block sizes."""
    used: list[CompileFacts] = []
    for side in plan.by_letter:
        source = emit.native_source(side.slot, side.threads, None)
        found = known.target.facts(source)
        if found is None or isinstance(found, BuildFailed) or side.slot.kernel.instance not in found:
            return None
        used.append(found[side.slot.kernel.instance])
    return used


def _even_bound(known: Analysed) -> dict[str, object] | None:
    """r0 with all its terms at the paper's even split, for the report."""
    group = known.group
    split = partition.even(group, known.target.limits)
    if split is None or known.target.limits.registers_per_sm <= 0:
        return None
    threads = dict(zip(group.letters, split, strict=True))
    order = group.letters if len(group.slots) == 2 else "given"
    config = Config.of(
        {"kind": "horizontal", "order": order, **{f"threads.{letter}": each for letter, each in threads.items()}}
    )
    bound = _bound(known, group, partition.plan(group, config))
    return None if bound is None else {"threads": threads, **bound.as_json()}


def _cap(known: Analysed, group: Group, plan: Plan, config: Config) -> registers.Cap | Rejection:
    """What bounds the registers of a config's kernel; `paper` needs a compiler. So many blocks as no multiprocessor
    has are refused here, before anything is compiled."""
    wanted = config.get("cap", "none")
    if wanted == "none":
        return registers.Cap()
    if wanted == "native":
        used = _natives(known, plan)
        own = None if used is None else max(each.registers for each in used)
        return registers.Cap(registers=own and registers.as_native(known.target.limits, plan.threads, own))
    if wanted != "paper":
        blocks = _inherited(plan) if wanted == "given" else int(config.text("cap").removeprefix(space.FIT))
        if registers.fitting(known.target.limits, plan.threads, blocks) is None:
            detail = f"{blocks} blocks of {plan.threads} threads are more than a multiprocessor can have"
            return Rejection(rule="launch", nodes=group.names, detail=detail)
        return registers.Cap(blocks=blocks)
    bound = _bound(known, group, plan)
    if bound is None:
        return Rejection(
            rule="no_compiler_facts",
            nodes=group.names,
            detail="cap=paper needs the registers of all its kernels, and no compiler here tells them",
        )
    return registers.Cap(registers=bound.r0)


def _launched(known: Analysed, plan: Plan, cap: registers.Cap) -> int:
    """Registers of each thread at the launch of a kernel of which so many blocks fit; 0 where no step bounds them."""
    if not cap.blocks:
        return 0
    most = registers.fitting(known.target.limits, plan.threads, cap.blocks) or 0
    return most // registers.STEP * registers.STEP


def _traded(known: Analysed, plan: Plan, cap: registers.Cap, config: Config) -> Plan:
    """The plan with what each side has once one has given registers to the other. ValueError where there are none to
    give."""
    taker = config.get("taker", "none")
    if taker == "none":
        return plan
    kept, launched = config.integer("kept"), _launched(known, plan, cap)
    (giving,) = (side for side in plan.sides if side.slot.letter != taker)
    (taking,) = (side for side in plan.sides if side.slot.letter == taker)
    most = registers.traded(launched, giving.threads, taking.threads, kept)
    if most is None:
        raise ValueError(f"of {launched} registers a thread there are none to give where {kept} are kept")
    own = {giving.slot.letter: kept, taking.slot.letter: most}
    sides = tuple(dataclasses.replace(side, registers=own[side.slot.letter]) for side in plan.sides)
    return dataclasses.replace(plan, sides=sides)


def _inherited(plan: Plan) -> int:
    """The blocks that the kernels' own launch bounds ask for: what the most modest of them asks."""
    asked = [side.slot.kernel.parsed.resident_blocks for side in plan.sides]
    return min((blocks for blocks in asked if blocks), default=1)


def _own_cap(known: Analysed, threads: int, wanted: Value) -> int | None:
    """Registers that let so many blocks of a kernel by itself be resident as a config asks for."""
    if wanted == "none":
        return None
    return registers.fitting(known.target.limits, threads, int(str(wanted).removeprefix(space.FIT)))


def _launchable(known: Analysed, group: Group, plan: Plan, program: Program) -> Program | Rejection:
    """The program, unless no launch of it can succeed: too much shared memory, or more registers than there are.

    A cap above what the kernel uses without one is no idle cap: it lets ptxas take more (seen: 32 without, 48 under
    64).
    """
    limits = known.target.limits
    source = program.sources[0]
    launch = program.steps[-1]
    assert isinstance(launch, Launch)
    if launch.shared_bytes > limits.shared_bytes_per_block:  # so much is known without a compiler
        return _no_room(limits.shared_bytes_per_block, launch.shared_bytes, group)
    found = known.target.facts(source)
    facts = found.get(source.entries[0]) if isinstance(found, Mapping) else None
    static = sum(side.slot.kernel.parsed.static_shared_bytes or 0 for side in plan.sides)
    shared = launch.shared_bytes + (static if facts is None else facts.shared_bytes)
    if shared > limits.shared_bytes_per_block:
        return _no_room(limits.shared_bytes_per_block, shared, group)
    if facts is None:
        return program
    wanted = sum(side.registers * side.threads for side in plan.sides)
    if wanted > facts.registers * plan.threads:
        detail = f"ptxas launches it with {facts.registers} registers a thread, and its sides trade for more"
        return Rejection(rule="registers", nodes=group.names, detail=detail)
    problem = launch_problem(limits, facts.registers, shared, plan.threads)
    if problem is not None:
        return Rejection(rule="launch", nodes=group.names, detail=problem)
    return program


def _no_room(most: int, shared: int, group: Group) -> Rejection:
    detail = f"{shared} bytes of shared memory in one block; there are {most}"
    return Rejection(rule="shared_memory", nodes=group.names, detail=detail)
