"""Every way for the lanes of a reduce to put their parts together, against NumPy; the init value counts once."""

import dataclasses
import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest

from fusiond_stitching.analysis.plan import (
    BlockProgram,
    BoxChunk,
    Chunk,
    ChunkSchedule,
    FlatChunk,
    Global,
    LaneExchange,
    Phase,
    Reduction,
    ScheduleKind,
    Shared,
    Split,
    Stage,
    StageResult,
    StitchedKernel,
    StitchingPlan,
)
from fusiond_stitching.codegen import emit
from fusiond_stitching.codegen.reduction import WARP, groups
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloModule

THREADS = 64
FORMS = [
    Reduction(lanes=1),
    *(Reduction(lanes=lanes, exchange=LaneExchange.WARP) for lanes in (2, 8, 32, THREADS)),
    *(Reduction(lanes=lanes, exchange=LaneExchange.SHARED) for lanes in (4, 32, THREADS)),
    *(Reduction(lanes=lanes, exchange=LaneExchange.SHARED, inner=False) for lanes in (2, 16, THREADS)),
]
SHAPES = {(7, 33): (1,), (33, 7): (0,), (3, 5, 40): (0, 2), (130,): (0,), (4, 0): (1,), (2, 7, 3): (1,)}
OPERATIONS = {
    "sum": ("add", 2.5, np.add),
    "greatest": ("maximum", 0.25, np.maximum),
    "product": ("multiply", -0.5, np.multiply),
    "odd": ("", 1.0, np.add),  # a sum that does not look like one: max(a, b) + min(a, b), which has no known identity
}


@dataclass(frozen=True)
class Reduce:
    name: str
    dims: tuple[int, ...]
    over: tuple[int, ...]
    operation: str
    form: Reduction

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(size for at, size in enumerate(self.dims) if at not in self.over)


def reduces() -> list[Reduce]:
    found = []
    for number, ((dims, over), operation, form) in enumerate(itertools.product(SHAPES.items(), OPERATIONS, FORMS)):
        found.append(Reduce(f"r{number}", dims, over, operation, form))
    return found


def shape(dims: tuple[int, ...]) -> str:
    return f"f32[{','.join(map(str, dims))}]"


def module_text(wanted: list[Reduce]) -> str:
    """All the reduces of a few parameters, in one module."""
    lines = ["HloModule reduces", ""]
    for name, (opcode, _, _) in OPERATIONS.items():
        lines += [f"{name} {{", "  a = f32[] parameter(0)", "  b = f32[] parameter(1)"]
        if opcode:
            lines.append(f"  ROOT c = f32[] {opcode}(a, b)")
        else:
            lines += ["  c = f32[] maximum(a, b)", "  d = f32[] minimum(a, b)", "  ROOT e = f32[] add(c, d)"]
        lines += ["}", ""]
    lines.append("ENTRY main {")
    lines += [f"  p{number} = {shape(dims)} parameter({number})" for number, dims in enumerate(SHAPES)]
    lines += [f"  start_{name} = f32[] constant({start})" for name, (_, start, _) in OPERATIONS.items()]
    places = {dims: number for number, dims in enumerate(SHAPES)}
    for number, each in enumerate(wanted):  # a parameter of its own kind for each, or equal ones would be merged
        start = f"s{number}"
        lines.append(f"  {start} = f32[] add(start_{each.operation}, z{number})")
        lines.append(
            f"  {each.name} = {shape(each.kept)} reduce(p{places[each.dims]}, {start}), "
            f"dimensions={{{','.join(map(str, each.over))}}}, to_apply={each.operation}"
        )
    zeros = [f"  z{number} = f32[] parameter({len(SHAPES) + number})" for number in range(len(wanted))]
    lines[lines.index("ENTRY main {") + 1 : lines.index("ENTRY main {") + 1] = zeros
    results = ", ".join(each.name for each in wanted)
    lines.append(f"  ROOT all = ({', '.join(shape(each.kept) for each in wanted)}) tuple({results})")
    return "\n".join([*lines, "}", ""])


def workspace_bytes(module: HloModule, stage: Stage, threads: int) -> int:
    """What the exchange of a stage needs in shared memory."""
    reduction = stage.reduction
    if reduction is None or reduction.exchange is LaneExchange.NONE or reduction.lanes == 1:
        return 0
    if reduction.exchange is LaneExchange.WARP and reduction.lanes <= WARP:
        return 0
    slots = threads // WARP if reduction.exchange is LaneExchange.WARP else threads
    return sum(-(-kind.size_bytes * slots // 16) * 16 for group in groups(module, stage) for kind in group.kinds)


def kernel(module: HloModule, number: int, each: Reduce) -> StitchedKernel:
    elements = math.prod(each.kept)
    chunk: Chunk = FlatChunk(3, -(-elements // 3)) if number % 3 == 0 else _box(each.kept, number)
    form = each.form
    stage = Stage(
        chunk=chunk, dims=each.kept, results=(StageResult(each.name, (Global(module.buffer_of(each.name)),)),),
        reduction=form,
    )  # fmt: skip
    needed = workspace_bytes(module, stage, THREADS)
    if needed:
        space = Shared(16, needed)
        stage = Stage(
            chunk=chunk, dims=each.kept, results=stage.results,
            reduction=Reduction(form.lanes, form.exchange, form.inner, space),
        )  # fmt: skip
    program = BlockProgram(
        name=each.name, blocks=chunk.parts, stages=(stage,), root=each.name,
        schedule=ChunkSchedule(0, 1, ScheduleKind.ROW), shared_bytes=16 + needed,
    )  # fmt: skip
    return StitchedKernel(
        name=each.name, phases=(Phase(programs=(program,)),), threads=THREADS, grid=chunk.parts,
        shared_bytes=16 + needed,
    )  # fmt: skip


def _box(dims: tuple[int, ...], number: int) -> BoxChunk:
    """Some splits, also with a last part that is shorter."""
    splits = []
    stride = 1
    for at, size in enumerate(dims):
        part = size if (number + at) % 2 == 0 else -(-size // 2)
        count = -(-size // part)
        splits.append(Split(part, count, stride) if count > 1 else Split(size))
        stride *= count
    return BoxChunk(tuple(splits))


@pytest.fixture(scope="module")
def everything():
    wanted = reduces()
    text = module_text(wanted)
    return wanted, importer.read(text, "reduces.hlo")


def inputs(module: HloModule) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    found = {}
    for name in module.parameters:
        each = module[name]
        place = module.buffer_of(name)
        array = (
            random.uniform(-1, 1, each.dims).astype(np.float32) if name.startswith("p") else np.zeros((), np.float32)
        )
        found[place] = array if array.size else np.zeros(1, np.float32)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2, 3, 4, 5))])
@pytest.mark.sampled(8)
def test_every_exchange(everything, runner, part):
    wanted, module = everything
    steps = [kernel(module, number, each) for number, each in enumerate(wanted) if number % 6 == part]
    program = emit.program(module, StitchingPlan(steps=tuple(steps)))
    given = inputs(module)
    for seed in (0, 1):
        got = runner.run(program, given, seed=seed)
        for number, each in enumerate(wanted):
            if number % 6 != part:
                continue
            place = list(SHAPES).index(each.dims)
            parameter = given[f"in_{place}"] if math.prod(each.dims) else np.zeros(each.dims, np.float32)
            _, start, function = OPERATIONS[each.operation]
            expected = function.reduce(parameter.reshape(each.dims).astype(np.float64), axis=each.over, initial=start)
            np.testing.assert_allclose(
                got[f"out_{number}"], np.asarray(expected).reshape(-1), rtol=2e-5, atol=1e-5, err_msg=str(each)
            )


def test_a_workspace_that_is_too_small_is_refused(everything):
    wanted, module = everything
    number = next(n for n, each in enumerate(wanted) if each.form.exchange is LaneExchange.SHARED)
    good = kernel(module, number, wanted[number])
    (stage,) = good.phases[0].programs[0].stages
    form = stage.reduction
    small = Reduction(form.lanes, form.exchange, form.inner, Shared(16, form.workspace.size_bytes - 16))
    bad = dataclasses.replace(stage, reduction=small)
    program = dataclasses.replace(good.phases[0].programs[0], stages=(bad,))
    made = emit.program(module, StitchingPlan(steps=(dataclasses.replace(good, phases=(Phase(programs=(program,)),)),)))
    assert made.rule == "no_code"
    assert "workspace" in made.detail
