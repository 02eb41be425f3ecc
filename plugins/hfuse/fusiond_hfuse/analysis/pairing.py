"""Pairing of more than two kernels: the pairs that save most together.

    savings of measured pairs   {(a, b): 30 us, (b, c): 50 us, (c, d): 40 us}
                          -->   a+b|c+d        70 us; b+c alone would save 50

A grouping is written as its groups, in the order of their letters: `a+c|b` is a and c fused, and b by itself.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fusiond.model.nouns import Config, Value
from fusiond.model.outcomes import Record, Verdict
from fusiond_hfuse.frontend.fusion_group import SLOTS, FusionSlot, KernelGroup
from fusiond_hfuse.frontend.source_kernel import SourceKernel

Pair = tuple[str, str]  #: Two letters, in the order in which their kernels stand in the pair's own workload


def saving(record: Record) -> float:
    """What a pair's record says that fusing it saves, in microseconds: nothing unless its verdict is to fuse."""
    if record.verdict is not Verdict.FUSE or record.time_us is None or record.config is None:
        return 0.0
    return record.baseline_us - record.time_us


# --- groupings ------------------------------------------------------------------------------------------


def written(groups: Iterable[str]) -> str:
    """Groups of letters as one text."""
    return "|".join(sorted("+".join(sorted(group)) for group in groups))


def read(text: str, letters: str) -> tuple[str, ...]:
    """The groups of a text. ValueError when these are not all the letters, each once, as `written` writes them."""
    groups = tuple(group.replace("+", "") for group in text.split("|"))
    if written(groups) != text or sorted("".join(groups)) != sorted(letters):
        raise ValueError(f"{text!r} is not a grouping of {letters}")
    return groups


def with_rest(pairs: Iterable[Pair], letters: str) -> str:
    """The grouping of some pairs, everybody else apart."""
    groups = ["".join(pair) for pair in pairs]
    return written([*groups, *(letter for letter in letters if not any(letter in group for group in groups))])


# --- a pair out of a group ------------------------------------------------------------------------------


def pairs(group: KernelGroup) -> Iterator[Pair]:
    """All pairs of slots, each in the order that makes equal pairs equal workloads."""

    def identity(slot: FusionSlot) -> tuple[object, ...]:
        return slot.kernel.name, slot.kernel.content_key, sorted(slot.sizes.items()), slot.letter

    ordered = sorted(group.slots, key=identity)
    for first, second in itertools.combinations(ordered, 2):
        yield first.letter, second.letter


def regrouped(given: Sequence[tuple[SourceKernel, Mapping[str, int]]], granularity: int) -> KernelGroup:
    """Kernels with their sizes as a group with letters from a on, each with the prefix that its sizes have there."""
    names = [kernel.name for kernel, _ in given]
    slots = []
    for letter, (kernel, sizes) in zip(SLOTS, given, strict=False):
        prefix = "" if len(names) == 1 else letter if names.count(kernel.name) > 1 else kernel.name
        slots.append(FusionSlot(letter=letter, kernel=kernel, sizes=sizes, prefix=prefix))
    return KernelGroup(slots=tuple(slots), granularity=granularity)


def translated(config: Config, pair: Pair) -> Config:
    """A pair's own config in the letters of the group: threads.a of the pair (c, b) becomes threads.c."""
    letters = dict(zip("ab", pair, strict=True))
    found: dict[str, Value] = {}
    for name, value in config.items():
        stem, dot, letter = name.rpartition(".")
        new = f"{stem}{dot}{letters[letter]}" if dot and letter in letters else name
        if name == "order" or (name == "taker" and value in letters):
            value = "".join(letters[each] for each in str(value))
        found[new] = value
    return Config.of(found)
