"""What must hold of a fused kernel: of its plan and Program before it is built, and of its PTX afterwards."""

from __future__ import annotations

import re

from fusiond.program import Launch, Program, Scalar
from fusiond_hfuse import fuse
from fusiond_hfuse.graph import WARP, Plan
from fusiond_hfuse.kernel import shape_of

BARRIER_IDS = 16


def problems(plan: Plan, program: Program) -> tuple[str, ...]:
    """Every broken invariant, one line each.

    - whole warps: a side's threads are a multiple of 32, so that no warp serves two kernels and barrier counts are
      legal;
    - partition: the sides' threads lie end to end and fill the block (vertical: both are the whole block);
    - barriers: each side has an id of its own from 1 to 15; 0 stays with the hardware's whole-block barrier;
    - coverage: the grid has as many blocks as the kernel that has more of them;
    - arena: slot b's part begins behind slot a's, aligned, and both fit;
    - arguments: as many as the fused kernel has parameters.
    """
    found = []
    for side in plan.sides:
        if side.threads % WARP:
            found.append(f"side {side.slot.letter} has {side.threads} threads, which are no whole warps")
        if not 1 <= side.barrier < BARRIER_IDS:
            found.append(f"side {side.slot.letter} has the barrier {side.barrier}")
    first, second = plan.sides
    if first.barrier == second.barrier:
        found.append(f"both sides have the barrier {first.barrier}")
    if plan.kind == "horizontal":
        if first.first != 0 or second.first != first.threads:
            found.append("the sides' threads do not lie end to end")
    elif first.threads != second.threads or first.first or second.first:
        found.append("a vertical plan has two block sizes")
    (launch,) = program.steps
    assert isinstance(launch, Launch)
    if launch.block != (plan.threads, 1, 1):
        found.append(f"a block of {launch.block} for {plan.threads} threads")
    shapes = {side.slot.letter: shape_of(side.slot, side.shape) for side in plan.sides}
    blocks = max(shape.blocks for shape in shapes.values())
    if launch.grid != (blocks, 1, 1):
        found.append(f"a grid of {launch.grid} for {blocks} blocks")
    wanted = sum(len(side.slot.kernel.arguments) + len(fuse.grid_axes(side.slot)) for side in plan.sides)
    wanted += fuse.uses_offset(plan)
    if len(launch.arguments) != wanted:
        found.append(f"{len(launch.arguments)} arguments for {wanted} parameters")
    elif fuse.uses_offset(plan):
        found += _arena_problems(launch, shapes["a"].shared_bytes, shapes["b"].shared_bytes)
    return tuple(found)


def _arena_problems(launch: Launch, a_bytes: int, b_bytes: int) -> list[str]:
    offset = launch.arguments[-1]
    if not isinstance(offset, Scalar) or not isinstance(offset.value, int):
        return ["the last argument is no offset into the arena"]
    found = []
    if offset.value < a_bytes:
        found.append(f"slot b's shared memory begins at {offset.value}, inside slot a's {a_bytes} bytes")
    if offset.value % fuse.ARENA_ALIGNMENT:
        found.append(f"slot b's shared memory begins at {offset.value}, which is not aligned")
    if launch.shared_bytes < offset.value + b_bytes:
        found.append(f"{launch.shared_bytes} bytes of shared memory, and slot b's end at {offset.value + b_bytes}")
    return found


_ENTRY = re.compile(r"^\s*(?:\.visible\s+)?\.entry\s+([\w$]+)", re.MULTILINE)
_LEAKS = (
    (re.compile(r"\bbar(?:rier)?(?:\.cta)?\.(?:sync|arrive|red)(?:\.\w+)*\s+0\s*[,;]"), "the block's own barrier 0"),
    (re.compile(r"\bbar(?:rier)?(?:\.cta)?\.(?:sync|arrive|red)(?:\.\w+)*\s+%"), "a barrier whose id is in a register"),
    (re.compile(r"\bbarrier(?:\.cta)?\.(?:sync|arrive|red)\b"), "barrier.sync, which fusiond does not write"),
    (re.compile(r"%ntid\b"), "the fused block's size"),
    (re.compile(r"%tid\.[yz]\b"), "the y or z of a fused thread, which is one-dimensional"),
    (re.compile(r"%n?ctaid\.[yz]\b"), "the y or z of a fused grid, which is one-dimensional"),
    (re.compile(r"%nctaid\b"), "the fused grid's size"),
)


def lint(ptx: str, *, barriers: tuple[int, ...] = (1, 2)) -> tuple[str, ...]:
    """What leaks past the shadows in the PTX of a fused kernel, one line each; empty when nothing does.

    `barriers` are the ids that the two sides may use. nvcc writes tabs between an instruction and its operands. A
    leak of `%tid.x` alone cannot be told from the kernel's own reading of it (nvcc repeats that at will): the
    poisoned names in each namespace, and the front end's look for `::`, are what keeps it out.
    """
    found = []
    code = re.sub(r"//[^\n]*", "", ptx)
    if not _ENTRY.search(code):
        return ("there is no entry in it",)
    for number, line in enumerate(code.splitlines(), 1):
        for pattern, what in _LEAKS:
            if pattern.search(line):
                found.append(f"line {number}: {what}: {' '.join(line.split())}")
        match = re.search(r"\bbar\.sync\s+(\d+)", line)
        if match and int(match.group(1)) not in (0, *barriers):
            found.append(f"line {number}: barrier {match.group(1)} belongs to nobody: {' '.join(line.split())}")
    return tuple(found)
