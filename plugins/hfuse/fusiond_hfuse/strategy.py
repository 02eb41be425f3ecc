"""Horizontal fusion of two kernels as a strategy (Li et al., CGO 2022).

job --parse--> Pair --analyse--> rejections, registers, r0 --space--> kind, threads, order, cap --emit--> one launch
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from fusiond.cuda.occupancy import launch_problem
from fusiond.errors import RequestError, UnknownName
from fusiond.keys import text_key
from fusiond.model import Analysis, BuildFailed, CompileFacts, Config, Job, Rejection, Workload, frozen
from fusiond.program import Launch, Program
from fusiond.space import EMPTY, Space
from fusiond.strategy import Baseline, Inputs, Known, StrategyBase, Target
from fusiond_hfuse import emit, export, kernel, partition, registers, space, verify
from fusiond_hfuse.graph import SLOTS, WARP, Kernel, Pair, Plan, Slot, volume

STATIC_SHARED_BYTES = 48 * 1024
"""What the static `__shared__` arrays of one kernel may have together; ptxas refuses more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysed:
    """An Analysis' payload: the pair, and what asks the compiler."""

    pair: Pair
    target: Target = field(repr=False)


class Hfuse(StrategyBase):
    """Two kernels that share nothing, as one: each thread block runs a block of either, side by side."""

    name = "hfuse"
    version = 1
    job_keys: tuple[str, ...] = ("pair", "kernels", "granularity")

    # --- Job -> Workload ---

    def parse(self, job: Job, inputs: Inputs) -> Workload:
        names, where = _members(job)
        kernels = []
        for name in names:
            path = inputs.resolve("kernel", name, where=where)
            kernels.append(kernel.read(inputs, path, where=where))
        kernels.sort(key=lambda each: (each.name, each.content_key))
        pair = _pair(job, kernels[0], kernels[1])
        for slot in pair.slots:
            kernel.buffers_of(slot)
            kernel.shape_of(slot, slot.kernel.block.shapes[0])
        hashes = {path: text_key(text) for each in kernels for path, text in each.unit.files.items()}
        hashes |= {each.path: text_key(inputs.text(each.path, where=where)) for each in kernels}
        hashes |= {
            argument.buffer.fill.file: argument.buffer.fill.digest
            for each in kernels
            for argument in each.arguments
            if argument.buffer is not None and argument.buffer.fill.file and argument.buffer.fill.digest
        }
        return Workload(
            strategy=self.name,
            strategy_version=self.version,
            name=",".join(each.name for each in kernels),
            members=tuple(each.name for each in kernels),
            sizes=frozen({f"{slot.prefix}.{name}": value for slot in pair.slots for name, value in slot.sizes.items()}),
            content=[{"kernel": each.name, "entry": each.instance, "content": each.content_key} for each in kernels],
            payload=pair,
            source_hashes=frozen(hashes),
        )

    # --- Workload -> Analysis ---

    def analyse(self, workload: Workload, target: Target) -> Analysis:
        pair = _payload(workload.payload)
        facts = {slot.letter: _facts(target, slot) for slot in pair.slots}
        rejections = [each for slot in pair.slots for each in slot.kernel.parsed.rejections]
        rejections += _impossible(pair, target, facts)
        known = Analysed(pair=pair, target=target)
        report = {
            "kernels": [_described(slot, facts[slot.letter]) for slot in pair.slots],
            "bound": None if rejections else _even_bound(known),
        }
        return Analysis(
            workload=workload, report=frozen(report), rejections=tuple(dict.fromkeys(rejections)), payload=known
        )

    def space(self, analysis: Analysis, known: Known) -> Space:
        if analysis.rejections:
            return EMPTY
        about = _known(analysis)
        return space.fused(about.pair, about.target.limits)

    def seeds(self, analysis: Analysis, space_: Space, known: Known) -> tuple[tuple[str, Config], ...]:
        about = _known(analysis)
        return space.seeds(about.pair, about.target.limits, space_)

    def baselines(self, analysis: Analysis) -> tuple[Baseline, ...]:
        about = _known(analysis)
        knobs = space.unfused(about.pair, about.target.limits)

        def baseline(name: str, detail: str, *, order: str = "ab", streams: bool = False) -> Baseline:
            def program(config: Config) -> Program:
                return emit.unfused(
                    about.pair,
                    {letter: config.integer(f"threads.{letter}") for letter in SLOTS},
                    {letter: _own_cap(config, letter) for letter in SLOTS},
                    order=order,
                    streams=streams,
                )

            return Baseline(
                name=name, detail=detail, space=knobs, emit=program, like=None if name == "sequential" else "sequential"
            )

        first, second = (slot.kernel.name for slot in about.pair.slots)
        return (
            baseline("sequential", f"{first}, then {second}, on one stream"),
            baseline("streams_ab", f"two streams, {first} launched first", streams=True),
            baseline("streams_ba", f"two streams, {second} launched first", order="ba", streams=True),
        )

    # --- Config -> Program ---

    def emit(self, analysis: Analysis, config: Config, known: Known) -> Program | Rejection:
        if analysis.rejections:
            return analysis.rejections[0]
        about = _known(analysis)
        pair = about.pair
        names = tuple(slot.kernel.name for slot in pair.slots)
        problems = space.fused(pair, about.target.limits).problems(config)
        if problems:
            return Rejection(rule="not_in_space", nodes=names, detail="; ".join(problems))
        try:
            plan = partition.plan(pair, config)
            cap = _cap(about, plan, config)
            if isinstance(cap, Rejection):
                return cap
            program = emit.fused(pair, plan, cap, self.version)
        except (ValueError, RequestError) as problem:
            return Rejection(rule="shape", nodes=names, detail=str(problem))
        broken = verify.problems(plan, program)
        if broken:
            return Rejection(rule="invariant", nodes=names, detail="; ".join(broken))
        return _launchable(about, plan, program)

    def resolved(self, analysis: Analysis, config: Config) -> Config:
        """`cap=paper` as the number of registers that it comes to."""
        if analysis.rejections or config.get("cap") != "paper":
            return config
        about = _known(analysis)
        bound = _bound(about, partition.plan(about.pair, config))
        return config if bound is None else Config.of({**config, "cap": bound.r0})

    def unfused(self, analysis: Analysis, config: Config) -> Program | None:
        if "kind" not in config:
            return None
        pair = _known(analysis).pair
        plan = partition.plan(pair, config)
        threads = {letter: plan.side(letter).threads for letter in SLOTS}
        return emit.unfused(pair, threads, dict.fromkeys(SLOTS))

    def odd_sizes(self, workload: Workload) -> Mapping[str, int] | None:
        pair = _payload(workload.payload)
        odd = {f"{slot.prefix}.{name}": value for slot in pair.slots for name, value in slot.kernel.odd.items()}
        return odd or None

    def export(self, analysis: Analysis, config: Config, program: Program) -> Mapping[str, str]:
        about = _known(analysis)
        return export.files(about.pair, partition.plan(about.pair, config), program)


# --- reading the job ------------------------------------------------------------------------------------


def _members(job: Job) -> tuple[tuple[str, str], str]:
    """The two names, and where they stand. `kernels:` of two is a pair by another name."""
    given = [key for key in ("pair", "kernels") if key in job.request]
    if not given:
        raise RequestError("the key 'pair' is missing: pair: [hist, maxpool]", where=job.path)
    key = given[0]
    where = job.where(key)
    if len(given) > 1:
        raise RequestError("'pair' and 'kernels' say the same; leave one out", where=where)
    members = job.request[key]
    if not isinstance(members, list | tuple) or not all(isinstance(each, str) and each for each in members):
        raise RequestError("wanted is a list of two names of kernels, or paths of their YAML files", where=where)
    if len(members) != 2:
        raise RequestError(f"this version pairs two kernels; here are {len(members)}", where=where)
    return (members[0], members[1]), where


def _pair(job: Job, first: Kernel, second: Kernel) -> Pair:
    granularity = job.request.get("granularity", 128)
    if isinstance(granularity, bool) or not isinstance(granularity, int) or not (
        WARP <= granularity <= 1024 and granularity % WARP == 0
    ):  # fmt: skip
        raise RequestError(
            f"is {granularity!r}; wanted is a multiple of {WARP} up to 1024 (the paper's is 128)",
            where=job.where("granularity"),
        )
    same = first.name == second.name
    slots = [
        Slot(letter=letter, kernel=each, sizes=each.sizes, prefix=letter if same else each.name)
        for letter, each in zip(SLOTS, (first, second), strict=True)
    ]
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
    a, b = (
        Slot(letter=slot.letter, kernel=slot.kernel, sizes=frozen(sizes[slot.letter]), prefix=slot.prefix)
        for slot in slots
    )
    return Pair(slots=(a, b), granularity=granularity)


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
        "shared_bytes": known.shared_bytes + shape.shared_bytes if known else None,
        "barriers": known.barriers if known else None,
        "threads": volume(shape.block),
    }


def _impossible(pair: Pair, target: Target, facts: Mapping[str, CompileFacts | BuildFailed | None]) -> list[Rejection]:
    """Why these two cannot be fused at all, beyond what their sources say."""
    found = []
    names = tuple(slot.kernel.name for slot in pair.slots)
    for slot in pair.slots:
        failed = facts[slot.letter]
        if isinstance(failed, BuildFailed):
            detail = f"{slot.kernel.name} does not build by itself: {failed.reason}"
            found.append(Rejection(rule="does_not_build", nodes=(slot.kernel.name,), detail=detail))
        if not kernel.thread_counts(slot, pair.granularity, target.limits.threads_per_block):
            detail = (
                f"{slot.kernel.lines['block']}: no block shape of {slot.kernel.name} is a whole number of warps, and a "
                f"partial barrier counts warps"
            )
            found.append(Rejection(rule="block_shape", nodes=(slot.kernel.name,), detail=detail))
    static = [_static_bytes(slot, facts[slot.letter]) for slot in pair.slots]
    if sum(static) > STATIC_SHARED_BYTES:
        detail = (
            f"static shared arrays of {static[0]} and {static[1]} bytes; together at most {STATIC_SHARED_BYTES} compile"
        )
        found.append(Rejection(rule="static_shared", nodes=names, detail=detail))
    first, second = (slot.kernel for slot in pair.slots)
    if sorted(first.flags) != sorted(second.flags):
        detail = (
            f"{first.name} is compiled with {' '.join(first.flags) or 'no flags'}, {second.name} with "
            f"{' '.join(second.flags) or 'none'}; one source has one set of flags"
        )
        found.append(Rejection(rule="flags_differ", nodes=names, detail=detail))
    if not found and not space.fused(pair, target.limits).parameters:
        detail = f"no two of their block sizes fit a block of {target.limits.threads_per_block} threads"
        found.append(Rejection(rule="block_shape", nodes=names, detail=detail))
    return found


def _static_bytes(slot: Slot, facts: CompileFacts | BuildFailed | None) -> int:
    """Static shared memory: what ptxas says, else what the tree says, else nothing is known and the build will tell."""
    if isinstance(facts, CompileFacts):
        return facts.shared_bytes
    return slot.kernel.parsed.static_shared_bytes or 0


def _bound(known: Analysed, plan: Plan) -> registers.Bound | None:
    """The paper's r0 for a plan; None where no compiler knows the kernels' registers."""
    used: dict[str, CompileFacts] = {}
    for side in plan.sides:
        source = emit.native_source(side.slot, side.threads, None)
        found = known.target.facts(source)
        if found is None or isinstance(found, BuildFailed) or side.slot.kernel.instance not in found:
            return None
        used[side.slot.letter] = found[side.slot.kernel.instance]
    shapes = {side.slot.letter: kernel.shape_of(side.slot, side.shape) for side in plan.sides}
    shared = sum(facts.shared_bytes for facts in used.values()) + emit.arena_bytes(plan, shapes)
    return registers.bound(
        known.target.limits,
        threads=(plan.side("a").threads, plan.side("b").threads),
        registers=(used["a"].registers, used["b"].registers),
        shared_bytes=shared,
        block=plan.threads,
    )


def _even_bound(known: Analysed) -> dict[str, object] | None:
    """r0 with all its terms at the paper's even split, for the report."""
    split = partition.even(known.pair, known.target.limits)
    if split is None or known.target.limits.registers_per_sm <= 0:
        return None
    config = Config.of({"kind": "horizontal", "threads.a": split[0], "threads.b": split[1], "order": "ab"})
    bound = _bound(known, partition.plan(known.pair, config))
    return None if bound is None else {"threads": {"a": split[0], "b": split[1]}, **asdict(bound)}


def _cap(known: Analysed, plan: Plan, config: Config) -> int | Rejection | None:
    """The register cap of a config; `paper` needs a compiler."""
    wanted = config.get("cap", "none")
    if wanted == "none":
        return None
    if wanted != "paper":
        return config.integer("cap")
    bound = _bound(known, plan)
    if bound is None:
        return Rejection(
            rule="no_compiler_facts",
            nodes=tuple(slot.kernel.name for slot in known.pair.slots),
            detail="cap=paper needs the registers of both kernels, and no compiler here tells them",
        )
    return bound.r0


def _own_cap(config: Config, letter: str) -> int | None:
    wanted = config.get(f"cap.{letter}", "none")
    return None if wanted == "none" else config.integer(f"cap.{letter}")


def _launchable(known: Analysed, plan: Plan, program: Program) -> Program | Rejection:
    """The program, unless no launch of it can succeed: too much shared memory, or more registers than there are.

    A cap above what the kernel uses without one is no idle cap: it lets ptxas take more (seen: 32 without, 48 under
    64).
    """
    limits = known.target.limits
    names = tuple(slot.kernel.name for slot in known.pair.slots)
    source = program.sources[0]
    launch = program.steps[0]
    assert isinstance(launch, Launch)
    static = sum(slot.kernel.parsed.static_shared_bytes or 0 for slot in known.pair.slots)
    found = known.target.facts(source)
    facts = found.get(source.entries[0]) if isinstance(found, Mapping) else None
    if facts is not None:
        static = facts.shared_bytes
    shared = static + launch.shared_bytes
    if shared > limits.shared_bytes_per_block:
        detail = f"{shared} bytes of shared memory in one block; there are {limits.shared_bytes_per_block}"
        return Rejection(rule="shared_memory", nodes=names, detail=detail)
    if facts is None:
        return program
    problem = launch_problem(limits, facts.registers, shared, plan.threads)
    if problem is not None:
        return Rejection(rule="launch", nodes=names, detail=problem)
    return program


def _payload(value: object) -> Pair:
    assert isinstance(value, Pair)
    return value


def _known(analysis: Analysis) -> Analysed:
    assert isinstance(analysis.payload, Analysed)
    return analysis.payload
