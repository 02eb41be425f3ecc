"""The fused kernel at block level: which side a block belongs to, and that side's work.

sequential        all blocks of the first, then all of the next
interleaved       in proportion, by the block's number and an upper product
ticket            the same, in the order in which blocks begin to run
multiprocessor    each multiprocessor in proportion (POD-Attention, Kamath et al., ASPLOS 2025, section 4)
"""

from __future__ import annotations

from fusiond_hfuse.analysis.fusion_schedule import FusedSide, FusionSchedule
from fusiond_hfuse.codegen.hidden_arguments import MULTIPROCESSORS
from fusiond_hfuse.codegen.sides import blocks_of, units_of, work


def by_block(schedule: FusionSchedule) -> list[str]:
    """Which side this block belongs to, and that side's work. Threads beyond a side's own leave at once."""
    if schedule.assign == "multiprocessor":
        return _by_multiprocessor(schedule)
    lines = []
    if schedule.assign == "ticket":
        lines += [
            "    __shared__ unsigned int ticket;",
            "    if (thread == 0) ticket = atomicAdd(fusiond_tickets, 1u);",
            "    ::__syncthreads();",
        ]
    lines.append(f"    unsigned int block = {'ticket' if schedule.assign == 'ticket' else 'blockIdx.x'};")
    for side in schedule.sides[:-1]:
        letter, blocks = side.slot.letter, units_of(side)
        if schedule.assign == "sequential":
            lines += [*_where(f"block < {blocks}", schedule, side, "block"), f"    block -= {blocks};"]
        else:
            before = f"before_{letter}"
            lines += [
                f"    const unsigned int {before} = __umulhi(block, fusiond_{letter}_ratio);",
                *_where(f"__umulhi(block + 1, fusiond_{letter}_ratio) > {before}", schedule, side, before),
                f"    block -= {before};",
            ]
    return lines + _if_own(schedule, schedule.sides[-1], "block", "    ")


def _by_multiprocessor(schedule: FusionSchedule) -> list[str]:
    """A ticket of the multiprocessor says which side it would have next; the side's own counter, which of its blocks.
    Where that side has none left, the next one that has (POD-Attention, section 4)."""
    count = len(schedule.sides)
    own = " : ".join([f"side == {at} ? {units_of(side)}" for at, side in enumerate(schedule.sides[:-1])])
    lines = [
        "    __shared__ unsigned int whose, which;",
        "    if (thread == 0) {",
        "        unsigned int multiprocessor;",
        '        asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));',
        f"        multiprocessor = {count} + multiprocessor % {MULTIPROCESSORS};",
        "        unsigned int ticket = atomicAdd(fusiond_tickets + multiprocessor, 1u);",
        f"        unsigned int side = {count - 1};",
    ]
    for at, side in enumerate(schedule.sides[:-1]):
        ratio = f"fusiond_{side.slot.letter}_ratio"
        lines += [
            f"        if (side == {count - 1}) {{" if at else "        {",
            f"            const unsigned int before = __umulhi(ticket, {ratio});",
            f"            if (__umulhi(ticket + 1, {ratio}) > before) side = {at};",
            "            ticket -= before;",
            "        }",
        ]
    lines += [
        "        unsigned int block = atomicAdd(fusiond_tickets + side, 1u);",
        f"        while (block >= ({own} : {units_of(schedule.sides[-1])})) {{",
        f"            side = side + 1 == {count} ? 0 : side + 1;",
        "            block = atomicAdd(fusiond_tickets + side, 1u);",
        "        }",
        "        whose = side;",
        "        which = block;",
        "    }",
        "    ::__syncthreads();",
        "    const unsigned int block = which;",
    ]
    for at, side in enumerate(schedule.sides[:-1]):
        lines += _where(f"whose == {at}", schedule, side, "block")
    return lines + _if_own(schedule, schedule.sides[-1], "block", "    ")


def _where(condition: str, schedule: FusionSchedule, side: FusedSide, block: str) -> list[str]:
    """A side's work in blocks of which a condition holds, and nothing else in them."""
    return [f"    if ({condition}) {{", *_if_own(schedule, side, block, "        "), "        return;", "    }"]


def _if_own(schedule: FusionSchedule, side: FusedSide, block: str, indent: str) -> list[str]:
    """A side's work in a block that is its own, by as many threads as it has there."""
    lanes = side.threads * side.virtual
    if side.virtual == 1:
        if lanes == schedule.threads:
            return work(schedule, side, "thread", block, indent.removeprefix("    "))
        return [f"{indent}if (thread < {lanes}) {{", *work(schedule, side, "thread", block, indent), f"{indent}}}"]
    letter = side.slot.letter
    inside = f"thread < {lanes} && " if lanes < schedule.threads else ""
    return [
        f"{indent}const unsigned int virtual_{letter} = thread / {side.threads};",
        f"{indent}const unsigned int block_{letter} = {block} * {side.virtual} + virtual_{letter};",
        f"{indent}if ({inside}block_{letter} < {blocks_of(side)}) {{",
        *work(schedule, side, f"thread % {side.threads}", f"block_{letter}", indent),
        f"{indent}}}",
    ]
