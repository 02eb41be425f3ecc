"""The space of a pair, and where to begin in it.

kind         horizontal | vertical
threads.a    when horizontal: threads of each side, together no more than a block has
threads.b
threads      when vertical: both kernels at one block size
order        who has the low thread ids; when vertical, who goes first
cap          none | paper | a number of registers      (only where registers mean something)
"""

from __future__ import annotations

from fusiond.model import Config, DeviceLimits, Value
from fusiond.space import EMPTY, Parameter, Space
from fusiond_hfuse import partition
from fusiond_hfuse.graph import Pair, volume
from fusiond_hfuse.kernel import thread_counts

CAPS = (32, 40, 48, 64, 80, 96)
"""Register caps beside `none` and `paper`. One above what a kernel uses without is not idle: ptxas then uses
more."""


def fused(pair: Pair, limits: DeviceLimits) -> Space:
    """All ways to fuse the pair; an empty space when no two block sizes go together."""
    sides = {letter: partition.choices(pair, letter, limits) for letter in "ab"}
    both = partition.common(pair, limits)
    kinds: list[str] = []
    if partition.even(pair, limits) is not None:
        kinds.append("horizontal")
    if both:
        kinds.append("vertical")
    if not kinds:
        return EMPTY
    parameters = [Parameter(name="kind", values=tuple(kinds))]
    restrictions = []
    if "horizontal" in kinds:
        when = "kind == 'horizontal'"
        parameters += [Parameter(name=f"threads.{letter}", values=sides[letter], when=when) for letter in "ab"]
        restrictions.append(f"threads.a + threads.b <= {limits.threads_per_block}")
    if "vertical" in kinds:
        parameters.append(Parameter(name="threads", values=both, when="kind == 'vertical'"))
    parameters.append(Parameter(name="order", values=("ab", "ba")))
    if limits.registers_per_sm > 0:
        parameters.append(Parameter(name="cap", values=("none", "paper", *CAPS)))
    return Space(parameters=tuple(parameters), restrictions=tuple(restrictions))


def unfused(pair: Pair, limits: DeviceLimits) -> Space:
    """The knobs of the unfused kernels: the same block sizes and register caps, so that the comparison is fair."""
    parameters = []
    for slot in pair.slots:
        given = volume(slot.kernel.block.shapes[0])
        counts = thread_counts(slot, pair.granularity, limits.threads_per_block)
        parameters.append(Parameter(name=f"threads.{slot.letter}", values=tuple(dict.fromkeys([given, *counts]))))
    if limits.registers_per_sm > 0:
        parameters += [Parameter(name=f"cap.{slot.letter}", values=("none", *CAPS)) for slot in pair.slots]
    return Space(parameters=tuple(parameters))


def seeds(pair: Pair, limits: DeviceLimits, space: Space) -> tuple[tuple[str, Config], ...]:
    """What the paper would choose without profiling, and the plain ways; only points of the space, each once."""
    caps = any(parameter.name == "cap" for parameter in space.parameters)
    given = [volume(slot.kernel.block.shapes[0]) for slot in pair.slots]
    wanted: list[tuple[str, dict[str, Value]]] = []
    split = partition.even(pair, limits)
    if split is not None:
        even: dict[str, Value] = {"kind": "horizontal", "threads.a": split[0], "threads.b": split[1], "order": "ab"}
        wanted.append(("paper_even_split", even))
        if caps:
            wanted.append(("paper_r0", {**even, "cap": "paper"}))
    wanted.append(("given_blocks", {"kind": "horizontal", "threads.a": given[0], "threads.b": given[1], "order": "ab"}))
    both = partition.common(pair, limits)
    if both:
        at = next((threads for threads in given if threads in both), both[0])
        wanted.append(("vertical", {"kind": "vertical", "threads": at, "order": "ab"}))
    found: dict[Config, str] = {}
    for name, values in wanted:
        if caps:
            values = {"cap": "none", **values}
        if not space.problems(values):
            found.setdefault(Config.of(values), name)
    return tuple((name, config) for config, name in found.items())
