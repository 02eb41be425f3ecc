"""The register bound of Li et al., CGO 2022, section III-B / Fig. 6, lines 13 to 16.

    b1 = SMNRegs / (d1 * NRegs(S1))         blocks of kernel 1 that fit one multiprocessor by its registers
    b2 = SMNRegs / (d2 * NRegs(S2))         and so on, for each kernel of a group
    b0 = min(b1, b2, SMShMem / ShMem(F), SMNThreads / d0)
    r0 = SMNRegs / (b0 * d0)

The idea: let as many fused blocks be resident as there would be of either kernel alone, unless threads or shared
memory allow fewer anyhow. Counts of blocks are whole numbers. d0 is the fused block's size, which the paper fixes and
fusiond does not.
"""

import bisect
import functools
from dataclasses import dataclass

from fusiond.model.gpu.occupancy import occupancy
from fusiond.model.nouns import DeviceLimits

SLACK = 6
"""Registers that a fused thread may have beyond the kernel that takes most, for what its side is told; that a resident
block goes for them only where it would spill otherwise (resources.py)."""
STEP = 8  #: Registers are allocated per thread in steps of 256 / 32
LEAST = 16  #: ptxas takes no lower bound


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterCap:
    """What bounds the registers of a fused kernel: a number, or how many of its blocks must fit a multiprocessor. At
    most one of them."""

    registers: int | None = None
    blocks: int = 0  #: 0 where nothing is asked for


WARPGROUP = 128  #: Threads that change their registers together (PTX ISA, setmaxnreg)
LEAST_KEPT, MOST_TAKEN = 24, 256  #: What setmaxnreg takes, in steps of 8


def traded(launched: int, giver: int, taker: int, kept: int) -> int | None:
    """The registers of each of `taker` threads when `giver` threads of a block that is launched with `launched` for
    each keep `kept`; None where that gains nothing."""
    most = (launched * (giver + taker) - kept * giver) // taker // STEP * STEP
    return min(most, MOST_TAKEN) if LEAST_KEPT <= kept < launched < most else None


@functools.cache
def fitting(limits: DeviceLimits, threads: int, blocks: int) -> int | None:
    """The most registers that a thread may have where so many blocks of `threads` are to be resident; None where no
    number that ptxas takes for a bound does that."""
    found = bisect.bisect_right(
        range(LEAST, limits.registers_per_thread + 1), -blocks,
        key=lambda count: -occupancy(limits, count, 0, threads).blocks_per_sm,
    )  # fmt: skip
    return LEAST + found - 1 if found else None


def as_native(limits: DeviceLimits, threads: int, registers: int) -> int | None:
    """What a thread of a fused block may take whose kernels take up to `registers` by themselves: `SLACK` more, as far
    as that costs no resident block. (Unbounded, ptxas has been seen to take 104 more.)"""
    whole = -(-registers // STEP) * STEP
    resident = [each for each in range(1, limits.blocks_per_sm + 1) if (fitting(limits, threads, each) or 0) >= whole]
    most = fitting(limits, threads, max(resident, default=1))
    return None if most is None else max(LEAST, min(registers + SLACK, most))


def bound(
    limits: DeviceLimits, *, threads: tuple[int, ...], registers: tuple[int, ...], shared_bytes: int, block: int
) -> dict[str, int | None]:
    """r0 for kernels of d1, d2 ... threads and NRegs registers in a fused block of `block` threads and `shared_bytes`,
    with its terms, by the paper's names; `by_shared` is None where the fused kernel has no shared memory.

    r0 is rounded down to what ptxas can allocate, and kept between 16 and the target's most. b0 is at least 1: a
    kernel that does not fit even once has no bound to keep."""
    alone = [limits.registers_per_sm // (count * max(used, 1)) for count, used in zip(threads, registers, strict=True)]
    by_shared = limits.shared_bytes_per_sm // shared_bytes if shared_bytes else None
    by_threads = limits.threads_per_sm // block
    b0 = max(1, min([*alone, by_threads] + ([] if by_shared is None else [by_shared])))
    r0 = min(limits.registers_per_sm // (b0 * block) // STEP * STEP, limits.registers_per_thread)
    own = {f"b{number}": blocks for number, blocks in enumerate(alone, 1)}
    return {**own, "by_shared": by_shared, "by_threads": by_threads, "b0": b0, "r0": max(LEAST, r0)}
