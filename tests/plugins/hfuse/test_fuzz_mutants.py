"""Faults put into fused random kernels: each must show in what test_fuzz.py compares, in one of a few pairs.

A fault may do nothing to one pair (an arena that nobody shares cannot overlap), hence a few.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fusiond.model.nouns import Analysis, Config, Value
from fusiond.model.program import Launch, Program, Scalar
from fusiond.requests.registry import Registry
from fusiond.strategy import Target
from fusiond_hfuse.analysis import partition
from fusiond_hfuse.codegen import hidden_arguments, sides
from fusiond_hfuse.strategy import Hfuse

from .fuzzing import JointRunner, analysed, differences
from .generator import Generated, Seeded, kernel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SEEDS = range(20_000, 20_400)
PAIRS = 25  #: In so many pairs that a fault can be put into, it must show once
SCHEDULES = (0, 3, 11, 17)

WARP = {"kind": "horizontal", "level": "warp", "order": "ab"}
BLOCK = {"kind": "horizontal", "level": "block", "order": "ab"}
KINDS: dict[str, dict[str, Value]] = {
    "pad": {**WARP, "map": "pad"},
    "stride": {**WARP, "map": "stride", "blocks": 2},
    "sequential": {**BLOCK, "assign": "sequential"},
    "interleaved": {**BLOCK, "assign": "interleaved"},
    "ticket": {**BLOCK, "assign": "ticket"},
    "multiprocessor": {**BLOCK, "assign": "multiprocessor"},
    "virtual": {**BLOCK, "assign": "sequential", "virtual": 2},
    "vertical": {"kind": "vertical", "order": "ab"},
}


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is done to a fused text: a pattern is replaced, wherever it stands."""

    kind: str
    pattern: str
    new: str | Callable[[re.Match[str]], str]
    needs: str = "__syncthreads"  #: Stands in both kernels


def _count(change: int) -> Callable[[re.Match[str]], str]:
    """The last number of a match, changed."""
    return lambda match: re.sub(r"(\d+)(\D*)$", lambda last: f"{int(last[1]) + change}{last[2]}", match[0])


SHAPED = r"\(fusiond_thread % (\d+), fusiond_thread / \1"
AXES = r"\(fusiond_block % fusiond_grid_x, fusiond_block / fusiond_grid_x"
READ = r"{}\[(?!me\]|\d|\])"  #: A thread looks at a cell that is another one's
COMMON = r"\1* const \2 = reinterpret_cast<\1*>(fusiond_common);"

FAULTS = {
    # barriers
    "a's barrier dropped": Fault("pad", r"FUSIOND_BARRIER\(1, \d+\);", ";"),
    "b's barrier dropped": Fault("pad", r"FUSIOND_BARRIER\(2, \d+\);", ";"),
    "one barrier for both": Fault("pad", r"FUSIOND_BARRIER\(2,", "FUSIOND_BARRIER(1,"),
    "ids swapped where some wait": Fault("pad", r"(?<=_a \{)((?:.|\n)*?)FUSIOND_BARRIER\(1,", r"\1FUSIOND_BARRIER(2,"),
    "a count too small": Fault("pad", r"FUSIOND_BARRIER\(1, \d+\)", _count(-32)),
    "a count too large": Fault("pad", r"FUSIOND_BARRIER\(2, \d+\)", _count(32)),
    "a vertical barrier dropped": Fault("vertical", r"FUSIOND_BARRIER\(2, \d+\);", ";"),
    # threads
    "b's threads not counted from 0": Fault("pad", r"thread - \d+", "thread", "me"),
    "b's threads a warp too high": Fault("pad", r"thread - \d+", _count(-32), "me"),
    "the boundary a warp too low": Fault("pad", r"if \(thread < \d+\)", _count(-32), "me"),
    "x and y of a thread swapped": Fault("pad", SHAPED, r"(fusiond_thread / \1, fusiond_thread % \1", "threadIdx"),
    "a block one layer too deep": Fault("pad", r"dim3\((\d+), (\d+), (\d+)\)", r"dim3(\1, \2, \3 + 1)", "me"),
    # blocks
    "a block too many": Fault("pad", r"if \(block < fusiond_([ab])", r"if (block < 1 + fusiond_\1", "me"),
    "a block too few": Fault("pad", r"if \(block < fusiond_([ab])", r"if (block + 1 < fusiond_\1", "me"),
    "x and y of a block swapped": Fault("pad", AXES, "(fusiond_block / fusiond_grid_x, fusiond_block % fusiond_grid_x"),
    "a grid too wide": Fault("pad", r"dim3\(fusiond_grid_x", "dim3(1 + fusiond_grid_x", "me"),
    "the wrong side's block": Fault("vertical", r"if \(block < fusiond_b", "if (block + 1 < fusiond_b", "me"),
    # shared memory
    "a helper's array not cloned": Fault("pad", r"__shared__ (T) (partial)\[32\];", COMMON, "partial"),
    "a static array not cloned": Fault("pad", r"__shared__ ([\w ]+?) (tile\d)\[\w+\];", COMMON, READ.format(r"tile\d")),
    # block level
    "sequential: b's blocks not counted from 0": Fault("sequential", r"    block -= [^;]+;", "", "me"),
    "sequential: a does b's work too": Fault(
        "sequential", r"        return;\n    \}\n    block -= ", "    }\n    block -= 0 * ", "me"
    ),
    "sequential: a block of a's too many": Fault("sequential", r"if \(block < fus", "if (block <= fus", "me"),
    "sequential: threads missing": Fault("sequential", r"if \(thread < \d+\)", _count(-32), "me"),
    "sequential: a barrier dropped": Fault("sequential", r"::__syncthreads\(\);", ";"),
    "sequential: surplus threads stay": Fault("sequential", r"if \(thread < \d+\)", _count(32), "me"),
    "interleaved: b's blocks not counted from 0": Fault("interleaved", r"    block -= before_a;", "", "me"),
    "interleaved: a runs the launch's block": Fault("interleaved", r"(?m)^ +before_a,$", "block,", "me"),
    "interleaved: nobody's turn": Fault("interleaved", r"__umulhi\(block \+ 1", "__umulhi(block", "me"),
    "interleaved: shares off by one": Fault("interleaved", r"__umulhi\(block \+ 1", "__umulhi(block + 2", "me"),
    "ticket: always the first": Fault("ticket", r"atomicAdd\(fusiond_tickets, 1u\)", "0", "me"),
    "ticket: every second": Fault(
        "ticket", r"atomicAdd\(fusiond_tickets, 1u\)", "atomicAdd(fusiond_tickets, 2u)", "me"
    ),
    "ticket: one for each thread": Fault("ticket", r"if \(thread == 0\) ticket", "ticket", "me"),
    "ticket: not waited for": Fault("ticket", r"    ::__syncthreads\(\);\n    unsigned", "unsigned", "me"),
    "multiprocessor: a block for all": Fault(
        "multiprocessor", r"atomicAdd\(fusiond_tickets \+ side, 1u\)", "atomicAdd(fusiond_tickets + side, 0u)", "me"
    ),
    "multiprocessor: beyond a grid's end": Fault("multiprocessor", r"while \(block >=", "while (block >", "me"),
    "multiprocessor: the other grid's end": Fault("multiprocessor", r"side == 0 \? fus", "side == 1 ? fus", "me"),
    "multiprocessor: not waited for": Fault("multiprocessor", r"    ::__syncthreads\(\);\n", "", "me"),
    # virtual blocks
    "virtual: one barrier for all": Fault("virtual", r"fusiond_barrier\{fusiond_virtual\}", "fusiond_barrier{0}"),
    "virtual: one slice for all": Fault(
        "virtual", r"fusiond_arena \+ virtual_\w \* fusiond_\w_slice", "fusiond_arena", READ.format(r"(pool|tile\d)")
    ),
    "virtual: the same block twice": Fault("virtual", r"block \* 2 \+ virtual_", "block * 2 + 0 * virtual_", "me"),
    "virtual: beyond a grid's end": Fault("virtual", r"if \(block_(\w) <", r"if (block_\1 <=", "me"),
    "virtual: threads not counted from 0": Fault("virtual", r"thread % \d+,", "thread,", "me"),
    # strided
    "stride: too long a step": Fault("stride", r"at \+= fusiond_blocks", "at += fusiond_blocks + 1", "me"),
    "stride: from block 0": Fault("stride", r"at = block;", "at = 0;", "me"),
    "stride: the same block again": Fault("stride", r"(?m)^ +at,$", "block,", "me"),
    "stride: no barrier between blocks": Fault("stride", r"if \(at != block\) FUSIOND_BARRIER\(\d, \d+\);", ""),
}


class Pairs:
    """Random pairs, in the order of their seeds; each is read once."""

    def __init__(self, folder: Path, registry: Registry, target: Target) -> None:
        self._folder = folder
        self._registry = registry
        self.target = target
        self.analysis = functools.cache(self._analysis)
        self.kernels = functools.cache(self._kernels)

    @staticmethod
    def _kernels(seed: int) -> tuple[Generated, Generated]:
        choices = Seeded(seed)
        return kernel(choices, "x"), kernel(choices, "y")

    def _analysis(self, seed: int) -> Analysis:
        folder = self._folder / str(seed)
        folder.mkdir()
        return analysed(folder, self._registry, self.target, self.kernels(seed))

    def with_text(self, needs: str) -> Iterator[Analysis]:
        for seed in SEEDS:
            if all(re.search(needs, each.source) for each in self.kernels(seed)):
                yield self.analysis(seed)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory, registry: Registry, cpu_target: Target) -> Pairs:
    return Pairs(tmp_path_factory.mktemp("pairs"), registry, cpu_target)


@pytest.fixture(scope="module")
def joint(tmp_path_factory: pytest.TempPathFactory, scheduler_library: Path) -> JointRunner:
    return JointRunner(tmp_path_factory.mktemp("joint"), scheduler_library)


def given_blocks(analysis: Analysis, kind: str, target: Target) -> Config | None:
    """A config of that kind with the given block sizes, if the space has it."""
    group = analysis.payload.group
    values = dict(KINDS[kind])
    space = Hfuse().space(analysis, {})
    if virtual := values.pop("virtual", None):
        values |= {each.name: virtual for each in space.parameters if each.name.startswith("virtual.")}
    if kind == "vertical":
        common = partition.common(group, target.limits)
        values["threads"] = common[0] if common else 0
    else:
        values |= {f"threads.{each}": partition.counts(group, each, target.limits)[0] for each in group.letters}
    config = Config.of(values)
    return None if space.problems(config) else config


def with_launch(program: Program, **changes: object) -> Program:
    return dataclasses.replace(
        program,
        steps=(*program.steps[:-1], dataclasses.replace(program.steps[-1], **changes)),  # type: ignore[arg-type]
    )


def with_fault(program: Program, fault: Fault) -> Program | None:
    (source,) = program.sources
    text, found = re.subn(fault.pattern, fault.new, source.text)
    if not found or text == source.text:
        return None
    if "fusiond_common" in text:
        text = f"__shared__ unsigned long long fusiond_common[4096];\n{text}"
    return dataclasses.replace(program, sources=(dataclasses.replace(source, text=text),))


def shows(joint: JointRunner, mutant: Program, reference: Program) -> bool:
    joint.joined(mutant, reference)
    wanted = joint.run(reference)
    assert isinstance(wanted, dict)
    return any(differences(reference, wanted, joint.run(mutant, order=order)) for order in SCHEDULES)


def killed(
    pairs: Pairs, joint: JointRunner, kind: str, needs: str, change: Callable[[Program, Analysis], Program | None]
) -> bool:
    tried = 0
    for analysis in pairs.with_text(needs):
        config = given_blocks(analysis, kind, pairs.target)
        if config is None:
            continue
        program = Hfuse().emit(analysis, config, {})
        assert isinstance(program, Program)
        mutant = change(program, analysis)
        if mutant is None:
            continue
        reference = Hfuse().unfused(analysis, config)
        assert reference is not None
        if shows(joint, mutant, reference):
            return True
        tried += 1
        if tried == PAIRS:
            break
    print(f"tried {tried} pairs")
    return False


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.sampled(8)
def test_a_fault_shows(pairs: Pairs, joint: JointRunner, name: str) -> None:
    fault = FAULTS[name]
    assert killed(pairs, joint, fault.kind, fault.needs, lambda program, _: with_fault(program, fault))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_shows_without_a_fault(pairs: Pairs, joint: JointRunner, kind: str) -> None:
    for analysis, _ in zip(pairs.with_text("__syncthreads"), range(3), strict=False):
        config = given_blocks(analysis, kind, pairs.target)
        if config is not None:
            program, reference = Hfuse().emit(analysis, config, {}), Hfuse().unfused(analysis, config)
            assert isinstance(program, Program)
            assert reference is not None
            assert not shows(joint, program, reference)


def test_overlapping_arenas_show(pairs: Pairs, joint: JointRunner) -> None:
    def overlapping(program: Program, analysis: Analysis) -> Program | None:
        launch = program.steps[-1]
        assert isinstance(launch, Launch)
        config = given_blocks(analysis, "pad", pairs.target)
        assert config is not None
        if not hidden_arguments.offset_letters(partition.schedule(analysis.payload.group, config, 1)):
            return None
        return with_launch(program, arguments=(*launch.arguments[:-1], Scalar(dtype="uint32", value=0)))

    assert killed(pairs, joint, "pad", READ.format("pool"), overlapping)


def test_grids_of_the_other_side_show(pairs: Pairs, joint: JointRunner) -> None:
    """The lengths of a's grid and of b's are handed over the wrong way round."""

    def swapped(program: Program, analysis: Analysis) -> Program | None:
        config = given_blocks(analysis, "pad", pairs.target)
        assert config is not None
        axes = [len(sides.grid_axes(slot)) for slot in analysis.payload.group.slots]
        offsets = len(hidden_arguments.offset_letters(partition.schedule(analysis.payload.group, config, 1)))
        launch = program.steps[-1]
        assert isinstance(launch, Launch)
        given = list(launch.arguments)
        at = len(given) - offsets - sum(axes)
        grids = given[at : at + sum(axes)]
        if axes[0] != axes[1] or grids[: axes[0]] == grids[axes[0] :]:
            return None
        return with_launch(
            program, arguments=(*given[:at], *grids[axes[0] :], *grids[: axes[0]], *given[at + sum(axes) :])
        )

    assert killed(pairs, joint, "pad", "me", swapped)


def test_a_counter_that_is_not_zeroed_shows(pairs: Pairs, joint: JointRunner) -> None:
    def unzeroed(program: Program, _: Analysis) -> Program | None:
        return dataclasses.replace(program, steps=program.steps[1:])

    assert killed(pairs, joint, "ticket", "me", unzeroed)
