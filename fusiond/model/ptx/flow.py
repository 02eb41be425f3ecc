"""Where paths of a control-flow graph meet again: immediate post-dominators of blocks, and of instructions."""

import functools
import operator
from collections.abc import Sequence


def post_dominators(following: Sequence[Sequence[int]], leave: int) -> list[int | None]:
    """The immediate post-dominator of each block; None for blocks from which `leave`, behind the last, is not reached.

    A block's post-dominators are bits of a number: its own, and those that all blocks that follow it have."""
    whole = (1 << leave + 2) - 1  # one bit more than there are blocks stays where the end is not reached
    behind = [*[whole] * leave, 1 << leave]
    changed = True
    while changed:
        changed = False
        for block in reversed(range(leave)):
            found = functools.reduce(operator.and_, (behind[each] for each in following[block]), whole) | 1 << block
            changed |= found != behind[block]
            behind[block] = found
    owners = {bits: block for block, bits in enumerate(behind)}
    return [owners.get(bits & ~(1 << block)) for block, bits in enumerate(behind[:leave])]


def meeting_points(targets: Sequence[int | None], falls: Sequence[bool]) -> list[int]:
    """For each instruction that branches, the instruction at which its paths meet; -1 for none (they end first), and
    for the instructions that do not branch.

    `targets` are the instructions to which each may jump, `falls` whether the next one may follow it."""
    count = len(targets)
    leaders = sorted(
        {0}
        | {each for each in targets if each is not None}
        | {at + 1 for at in range(count) if (targets[at] is not None or not falls[at]) and at + 1 < count}
    )
    block_of = {leader: k for k, leader in enumerate(leaders)}
    ends = [*(each - 1 for each in leaders[1:]), count - 1]
    leave = len(leaders)  # a block behind all ends
    following: list[list[int]] = []
    for end in ends:
        target = targets[end]
        after = [] if target is None else [block_of[target]]
        if falls[end] and end + 1 < count:
            after.append(block_of[end + 1])
        following.append(after or [leave])
    dominators = post_dominators(following, leave)
    found = [-1] * count
    for k, end in enumerate(ends):
        if targets[end] is not None and falls[end] and dominators[k] not in (None, leave):
            found[end] = leaders[dominators[k] or 0]
    return found
