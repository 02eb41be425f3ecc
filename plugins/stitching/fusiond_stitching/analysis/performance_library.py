"""The performance library (section 4.4): how long one instruction takes under one schedule.

A key is the paper's: opcode, shape, split_dim, sword, sched_type and threads, and for a reduce how its threads meet.
The times are probes: measured on the device, kept in the store, used for ever. What is not known yet is estimated.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fusiond.model.keys import content_key
from fusiond_stitching.analysis.fusion import FusionCandidate, FusionGroup
from fusiond_stitching.analysis.plan import BoxChunk, Chunk
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.analysis.propagate import named, required
from fusiond_stitching.frontend.graph import EXPENSIVE, HloInstruction, HloModule

TRIED = 4  #: Candidates of a group that the library is asked about: those with the best estimates
PREFIX = "stitching:"
VERSION = 2  #: Of the probes' code: part of every key


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What a time is remembered under."""

    opcode: str
    dtype: str
    operands: tuple[tuple[str, tuple[int, ...]], ...]  #: (dtype, dims) of each
    dims: tuple[int, ...]
    chunk: Chunk
    schedule: str  #: Its name (section 4.1), where it has one
    blocks: int
    threads: int
    attributes: str  #: What else decides the work: reduced dimensions, permutations
    warp: bool
    example: str = field(default="", compare=False)  #: An instruction of the module at hand that has this key

    @property
    def text(self) -> str:
        """The key under which the store keeps it."""
        return PREFIX + content_key([VERSION, dataclasses.replace(self, example="")])


Library: TypeAlias = Mapping[str, float]
"""A key's text -> microseconds."""


def known(answers: Mapping[str, object]) -> Library:
    """The times among what the device has answered."""
    return {
        key: float(time_us)
        for key, time_us in answers.items()
        if isinstance(time_us, float | int) and key.startswith(PREFIX)
    }


def ordered(module: HloModule, policy: FusionPolicy, group: FusionGroup, library: Library) -> Iterator[FusionCandidate]:
    """A group's candidates, the best first (section 4.3). The search for the best is pruned: a candidate whose sum has
    passed the best one's is left at once. The others are put in order only when shared memory refuses the best."""
    if len(group.candidates) == 1:
        yield group.candidates[0]
        return
    if not library:
        best = _least(module, policy, group)
        yield best
        yield from (each for each in _sorted(module, policy, group) if each is not best)
        return
    guess = _sorted(module, policy, group)
    times = []
    for each in guess[:TRIED]:
        found = [library.get(key.text) for key in keys(module, policy, group.members, each)]
        if None in found:
            yield from guess
            return
        times.append(sum(time_us for time_us in found if time_us is not None))
    measured = sorted(range(len(times)), key=lambda at: (times[at], at))
    yield from (guess[at] for at in measured)
    yield from guess[TRIED:]


def wanted(module: HloModule, policy: FusionPolicy, groups: Sequence[FusionGroup]) -> tuple[Key, ...]:
    """The entries that tuning these groups looks up, each once: those of the groups that take longest first."""
    found: list[tuple[float, list[Key]]] = []
    for group in groups:
        if len(group.candidates) > 1:
            chosen = _sorted(module, policy, group)[:TRIED]
            entries = [key for each in chosen for key in keys(module, policy, group.members, each)]
            found.append((estimate(module, policy, group.members, chosen[0]), entries))
    found.sort(key=lambda each: -each[0])
    return tuple(dict.fromkeys(key for _, entries in found for key in entries))


def _sorted(module: HloModule, policy: FusionPolicy, group: FusionGroup) -> list[FusionCandidate]:
    return sorted(group.candidates, key=lambda each: (estimate(module, policy, group.members, each), each.blocks))


def _least(module: HloModule, policy: FusionPolicy, group: FusionGroup) -> FusionCandidate:
    """The first of `_sorted`."""
    best, least = group.candidates[0], (math.inf, 0)
    for each in group.candidates:
        found = (estimate(module, policy, group.members, each, least[0]), each.blocks)
        if found < least:
            best, least = each, found
    return best


def keys(module: HloModule, policy: FusionPolicy, members: Sequence[str], candidate: FusionCandidate) -> Iterator[Key]:
    """The entries whose sum is a candidate's time: reduces, expensive element-wise instructions and the root. What is
    cheap is inlined and left out (section 4.3)."""
    for name in members:
        instruction = module[name]
        if instruction.opcode == "reduce" or instruction.opcode in EXPENSIVE or name == members[-1]:
            chunk = candidate.chunks[name]
            yield key_of(module, policy, instruction, chunk, candidate.blocks)


def key_of(module: HloModule, policy: FusionPolicy, instruction: HloInstruction, chunk: Chunk, blocks: int) -> Key:
    schedule = named(instruction.dims, chunk)
    plain = {name: each for name, each in instruction.attributes.items() if name not in ("computation", "values")}
    return Key(
        opcode=instruction.opcode,
        dtype=instruction.dtype,
        dims=instruction.dims,
        chunk=chunk,
        operands=tuple((each.dtype, each.dims) for each in module.operands(instruction)),
        schedule=str(schedule) if schedule else "",
        blocks=blocks,
        threads=policy.threads,
        attributes=repr(sorted(plain.items())),
        warp=policy.warp,
        example=instruction.name,
    )


def estimate(
    module: HloModule, policy: FusionPolicy, members: Sequence[str], candidate: FusionCandidate, most: float = math.inf
) -> float:
    """A rough time (no unit): waves of blocks, times what one block does. It only puts schedules in an order. Infinite
    as soon as it has passed `most`."""
    resident = max(1, 1024 // policy.threads) * policy.multiprocessors
    waves = -(-candidate.blocks // resident)
    block = traffic = 0.0
    for name in members:
        instruction = module[name]
        chunk = candidate.chunks[name]
        local = chunk.size
        dims = instruction.dims
        if instruction.opcode == "reduce":
            source = module[instruction.operands[0]]
            chunk, dims = required(instruction, 0, source, chunk), source.dims
            local = chunk.size
            block += 100
        block += (8 if instruction.opcode in EXPENSIVE else 2) * -(-local // policy.threads) + 4
        traffic += candidate.blocks * local * (1 + _scattered(chunk, dims))
        if waves * (block + 300) + traffic / (32 * policy.multiprocessors) > most:
            return math.inf
    return waves * (block + 300) + traffic / (32 * policy.multiprocessors)


def _scattered(chunk: Chunk, dims: tuple[int, ...]) -> float:
    """What it costs that neighbouring threads read far apart: runs shorter than a 32-byte sector's eight floats."""
    if not isinstance(chunk, BoxChunk) or not dims:
        return 0.0
    run = 1
    for size, dim in zip(reversed(chunk.local), reversed(dims), strict=True):
        run *= size
        if size != dim:
            break
    return max(0.0, 8.0 / max(1, run) - 1.0)
