"""Arguments of a fused kernel beside those of its members: addresses in the arena, shares of blocks, counters.

Their order is that of `fuse.parameters`: offsets, ratios, slices, the number of launched blocks, the counters.
"""

from fusiond_hfuse.analysis.fusion_schedule import FusionSchedule

TICKETED = ("ticket", "multiprocessor")
"""Ways to assign blocks that are settled when a block begins to run, by counters in global memory."""
MULTIPROCESSORS = 512  #: Counters of tickets by multiprocessor; two that share one share its tickets, too

_GRID_WORDS = 4


def alignment(schedule: FusionSchedule) -> int:
    """Of the arena and of each side's part in it, in bytes."""
    return max(side.slot.kernel.parsed.alignment for side in schedule.sides)


def offset_letters(schedule: FusionSchedule) -> tuple[str, ...]:
    """The slots whose part of the arena begins behind another one's: their places are arguments. At block level none,
    since no two sides are in one block."""
    if schedule.level == "block":
        return ()
    return tuple(side.slot.letter for side in schedule.by_letter if side.slot.kernel.parsed.uses_dynamic_shared)[1:]


def ratio_letters(schedule: FusionSchedule) -> tuple[str, ...]:
    """The sides whose share of the blocks, as a fraction of 2^32 of what is left, is an argument."""
    return () if schedule.assign in ("", "sequential") else tuple(side.slot.letter for side in schedule.sides[:-1])


def slice_letters(schedule: FusionSchedule) -> tuple[str, ...]:
    """The slots of which a fused block has several blocks, each with a slice of the arena: its bytes are arguments."""
    return tuple(
        side.slot.letter
        for side in schedule.by_letter
        if side.virtual > 1 and side.slot.kernel.parsed.uses_dynamic_shared
    )


def counters(schedule: FusionSchedule) -> int:
    """How many words of counters the launch is handed, 0: none. Tickets (one, or one for each side and each
    multiprocessor), and what barriers of grids need."""
    return max([_tickets(schedule), *(place + _GRID_WORDS for place in grid_places(schedule).values())])


def _tickets(schedule: FusionSchedule) -> int:
    return {"ticket": 1, "multiprocessor": len(schedule.sides) + MULTIPROCESSORS}.get(schedule.assign, 0)


def grid_places(schedule: FusionSchedule) -> dict[str, int]:
    """Letter -> word where its grid's barrier counts, of the slots that have such but for the first: the driver gives
    a launch only one (CUDA's `grid_workspace` has two words)."""
    letters = [side.slot.letter for side in schedule.by_letter if side.slot.kernel.parsed.cooperative][1:]
    return {letter: -(-_tickets(schedule) // 2) * 2 + _GRID_WORDS * at for at, letter in enumerate(letters)}
