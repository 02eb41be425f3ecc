"""Basic blocks of a kernel, and where diverged lanes meet again: the immediate post-dominator."""

from __future__ import annotations

from collections.abc import Sequence


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
    dominators = _post_dominators(following, leave)
    found = [-1] * count
    for k, end in enumerate(ends):
        if targets[end] is not None and falls[end] and dominators[k] not in (None, leave):
            found[end] = leaders[dominators[k] or 0]
    return found


def _post_dominators(following: Sequence[Sequence[int]], leave: int) -> list[int | None]:
    """Immediate post-dominators (Cooper, Harvey, Kennedy); None for blocks from which no end is reached."""
    before: list[list[int]] = [[] for _ in range(leave + 1)]
    for k, after in enumerate(following):
        for each in after:
            before[each].append(k)
    order, seen = [], {leave}
    stack = [(leave, iter(before[leave]))]
    while stack:
        node, rest = stack[-1]
        for each in rest:
            if each not in seen:
                seen.add(each)
                stack.append((each, iter(before[each])))
                break
        else:
            order.append(node)
            stack.pop()
    rank = {node: k for k, node in enumerate(order)}  # the end has the highest
    found: list[int | None] = [None] * (leave + 1)
    found[leave] = leave

    def common(a: int, b: int) -> int:
        while a != b:
            while rank[a] < rank[b]:
                a = _known(found[a])
            while rank[b] < rank[a]:
                b = _known(found[b])
        return a

    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            new: int | None = None
            for each in following[node]:
                if found[each] is not None:
                    new = each if new is None else common(each, new)
            if new != found[node]:
                found[node], changed = new, True
    return found


def _known(node: int | None) -> int:
    assert node is not None
    return node
