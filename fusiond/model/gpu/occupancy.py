"""How many blocks of a kernel are resident on one multiprocessor, and why no more: the occupancy calculator's rules.

    registers   handed out per warp, in units of `register_granularity`, in four partitions of the register file
    shared      static + dynamic + what the system reserves, rounded up to its granularity, per block
    threads     in whole warps
    blocks      a plain limit
    barriers    named barriers come from a pool that the resident blocks share

The same as `cuda_occupancy.h` of the toolkit with the shared-memory carve-out at its default, at which all of it can
be had (tests compare the two). What a launch asks for so that its blocks have it: `carveout_pct`.
"""

from dataclasses import dataclass

from fusiond.model.nouns import DeviceLimits

PARTITIONS = 4
"""Warp schedulers per multiprocessor; each owns a quarter of the registers, and no warp can use another's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """What fits on one multiprocessor."""

    blocks_per_sm: int
    warps_per_sm: int
    ratio: float  #: Resident warps / the most that there could be: 0 to 1
    limited_by: str
    """`registers`, `shared`, `threads`, `blocks` or `barriers`; the first in this order when several bind alike."""


def occupancy(limits: DeviceLimits, registers: int, shared_bytes: int, threads: int, *, barriers: int = 0) -> Occupancy:
    """Occupancy of a kernel: `registers` per thread; `shared_bytes` (static + dynamic), `threads`, `barriers` per
    block.

    A launch that is refused (see `launch_problem`) has zero blocks, limited by what refuses it."""
    if threads < 1:
        raise ValueError(f"a block of {threads} threads")
    fitting = {
        "registers": _by_registers(limits, registers, threads),
        "shared": _by_shared(limits, shared_bytes),
        "threads": 0 if threads > limits.threads_per_block else _most_warps(limits) // _warps(limits, threads),
        "blocks": limits.blocks_per_sm,
        "barriers": _by_barriers(limits, barriers),
    }
    blocks = min(fitting.values())
    warps = blocks * _warps(limits, threads)
    return Occupancy(
        blocks_per_sm=blocks,
        warps_per_sm=warps,
        ratio=warps / _most_warps(limits),
        limited_by=next(name for name, fit in fitting.items() if fit == blocks),
    )


def carveout_pct(limits: DeviceLimits, registers: int, shared_bytes: int, threads: int, *, barriers: int = 0) -> int:
    """How much of a multiprocessor's shared memory, in per cent of the most that it can have, the blocks take that are
    resident by `occupancy`: what has to be asked for so that they are. What the system reserves in each block counts,
    too: a kernel without shared memory needs some."""
    blocks = occupancy(limits, registers, shared_bytes, threads, barriers=barriers).blocks_per_sm
    if not limits.shared_bytes_per_sm:
        return 0
    return min(100, -(-100 * blocks * _taken(limits, shared_bytes) // limits.shared_bytes_per_sm))


def launch_problem(limits: DeviceLimits, registers: int, shared_bytes: int, threads: int) -> str | None:
    """Why the driver would refuse this launch, in one line; None when it would not.

    `shared_bytes` is static + dynamic."""
    if threads > limits.threads_per_block:
        return f"{threads} threads per block, at most {limits.threads_per_block} are allowed"
    if shared_bytes > limits.shared_bytes_per_block:
        return f"{shared_bytes} bytes of shared memory per block, at most {limits.shared_bytes_per_block} are there"
    if registers > limits.registers_per_thread:
        return f"{registers} registers per thread, at most {limits.registers_per_thread} are allowed"
    wanted = _registers_per_block(limits, registers, threads)
    if wanted > limits.registers_per_block:
        return (
            f"{threads} threads of {registers} registers take {wanted} registers per block as they are handed out,"
            f" at most {limits.registers_per_block} are there"
        )
    return None


def _warps(limits: DeviceLimits, threads: int) -> int:
    return -(-threads // limits.warp_size)


def _most_warps(limits: DeviceLimits) -> int:
    return limits.threads_per_sm // limits.warp_size


def _registers_per_warp(limits: DeviceLimits, registers: int) -> int:
    return _round_up(registers * limits.warp_size, limits.register_granularity)


def _registers_per_block(limits: DeviceLimits, registers: int, threads: int) -> int:
    """As the hardware checks it: as if every partition held equally many warps."""
    return _registers_per_warp(limits, registers) * _round_up(_warps(limits, threads), PARTITIONS)


def _by_registers(limits: DeviceLimits, registers: int, threads: int) -> int:
    if registers == 0 or limits.registers_per_sm == 0:  # registers mean nothing on this device
        return limits.blocks_per_sm
    too_many = _registers_per_block(limits, registers, threads) > limits.registers_per_block
    if too_many or registers > limits.registers_per_thread:
        return 0
    warps_per_partition = limits.registers_per_sm // PARTITIONS // _registers_per_warp(limits, registers)
    return warps_per_partition * PARTITIONS // _warps(limits, threads)


def _by_shared(limits: DeviceLimits, shared_bytes: int) -> int:
    if shared_bytes > limits.shared_bytes_per_block:
        return 0
    taken = _taken(limits, shared_bytes)
    return limits.shared_bytes_per_sm // taken if taken else limits.blocks_per_sm


def _taken(limits: DeviceLimits, shared_bytes: int) -> int:
    """Of the multiprocessor's shared memory, by one block."""
    return _round_up(shared_bytes + limits.shared_bytes_reserved, limits.shared_granularity_bytes)


def _by_barriers(limits: DeviceLimits, barriers: int) -> int:
    if barriers == 0 or limits.barriers_per_sm == 0:
        return limits.blocks_per_sm
    return limits.barriers_per_sm // barriers


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
