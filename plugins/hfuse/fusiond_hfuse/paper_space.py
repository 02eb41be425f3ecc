"""The search of the paper itself (Li et al., CGO 2022, Figure 6), for `order: paper`."""

from __future__ import annotations

from fusiond.model.nouns import Config, DeviceLimits, Value
from fusiond.strategy.space import EMPTY, Parameter, Space
from fusiond_hfuse.analysis import partition
from fusiond_hfuse.frontend.fusion_group import KernelGroup


def of_paper(group: KernelGroup, limits: DeviceLimits) -> Space:
    """What Figure 6 of the paper tries (Li et al., CGO 2022): each partition of a block of `PAPER_THREADS` threads in
    steps of the granularity, without a register bound and with r0. Empty where the kernels have no such partition."""
    first, second = list(group.letters)
    whole = min(partition.PAPER_THREADS, limits.threads_per_block)
    own = {letter: sorted(partition.choices(group, letter, limits)) for letter in group.letters}
    split = [each for each in own[first] if whole - each in own[second]]
    if not split:
        return EMPTY
    values: dict[str, tuple[Value, ...]] = {
        "kind": ("horizontal",), "level": ("warp",), "map": ("pad",), "order": (group.letters,),
        f"threads.{first}": tuple(split), f"threads.{second}": tuple(whole - each for each in split),
    }  # fmt: skip
    if limits.registers_per_sm > 0:
        values["cap"] = ("none", "paper")
    return Space(
        parameters=tuple(Parameter(name=name, values=each) for name, each in values.items()),
        restrictions=(f"threads.{first} + threads.{second} == {whole}",),
    )


def paper_order(space: Space) -> tuple[tuple[str, Config], ...]:
    """The points of `of_paper` in the order of Figure 6: d1 from the smallest on, first without a bound."""

    def named(config: Config) -> str:
        letter = config.text("order")[0]
        return f"paper_{config[f'threads.{letter}']}{'_r0' if config.get('cap') == 'paper' else ''}"

    return tuple((named(config), config) for config in space.points())
