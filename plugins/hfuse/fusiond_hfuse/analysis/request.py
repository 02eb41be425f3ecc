"""The request of a job for hfuse: its kernels as a group, and parts of the group."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from fusiond.model.errors import RequestError, UnknownName
from fusiond.model.nouns import Job, frozen
from fusiond.strategy import Target
from fusiond_hfuse.analysis import pairing
from fusiond_hfuse.frontend.fusion_group import SLOTS, FusionSlot, KernelGroup
from fusiond_hfuse.frontend.source_kernel import WARP, SourceKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionRequest:
    """A Workload's payload: the group, and what is needed to ask for parts of it."""

    group: KernelGroup
    job: Job = field(repr=False)
    names: Mapping[str, str]  #: Letter -> what the job calls the kernel: a catalogue name or a path


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAnalysis:
    """An Analysis' payload: the group, what is legal in it, and what asks the compiler."""

    request: FusionRequest
    target: Target = field(repr=False)
    legal: tuple[pairing.Pair, ...] = ()  #: The pairs that can be fused, of a group of three or more
    whole: bool = False  #: All of a group of three or more can be one launch

    @property
    def group(self) -> KernelGroup:
        return self.request.group


def members(job: Job) -> tuple[tuple[str, ...], str]:
    """The names, and where they stand. `kernels:` of two is a pair by another name."""
    given = [key for key in ("pair", "kernels") if key in job.request]
    if not given:
        raise RequestError("the key 'pair' is missing: pair: [hist, maxpool]", where=job.path)
    key = given[0]
    where = job.where(key)
    if len(given) > 1:
        raise RequestError("'pair' and 'kernels' say the same; leave one out", where=where)
    members = job.request[key]
    if not isinstance(members, list | tuple) or not all(isinstance(each, str) and each for each in members):
        many = "two names of kernels" if key == "pair" else "names of kernels"
        raise RequestError(f"expected a list of {many}, or paths of their YAML files", where=where)
    if key == "pair" and len(members) != 2:
        hint = "; more go under 'kernels'" if len(members) > 2 else ""
        raise RequestError(f"a pair is two kernels; found {len(members)}{hint}", where=where)
    if not 1 <= len(members) <= len(SLOTS):
        raise RequestError(f"expected 1 to {len(SLOTS)} kernels; found {len(members)}", where=where)
    return tuple(members), where


def group_of(job: Job, kernels: list[SourceKernel]) -> KernelGroup:
    group = pairing.regrouped([(each, each.sizes) for each in kernels], _granularity(job))
    sizes = _sizes(job, group.slots)
    slots = (dataclasses.replace(slot, sizes=frozen(sizes[slot.letter])) for slot in group.slots)
    return dataclasses.replace(group, slots=tuple(slots))


def _granularity(job: Job) -> int:
    given = job.request.get("granularity", 128)
    if isinstance(given, bool) or not isinstance(given, int) or not (WARP <= given <= 1024 and given % WARP == 0):
        raise RequestError(
            f"is {given!r}; expected a multiple of {WARP} up to 1024 (the paper's is 128)",
            where=job.where("granularity"),
        )
    return given


def _sizes(job: Job, slots: tuple[FusionSlot, ...]) -> dict[str, dict[str, int]]:
    """Letter -> the kernel's sizes, with what the job says of them: of a kernel by its name, or of one slot of it."""
    sizes = {slot.letter: dict(slot.kernel.sizes) for slot in slots}
    for key, value in job.sizes.items():
        prefix, _, name = key.rpartition(".")
        named = [slot for slot in slots if prefix in (slot.kernel.name, slot.prefix)] or [
            slot for slot in slots if prefix == slot.letter
        ]
        if not named or any(name not in slot.kernel.sizes for slot in named):
            known = {place for slot in slots for place in slot.places.values()}
            raise UnknownName("size", key, known, where=job.where(f"sizes.{key}"))
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**63:
            raise RequestError(f"is {value!r}; expected a whole number from 1", where=job.where(f"sizes.{key}"))
        for slot in named:
            sizes[slot.letter][name] = value
    return sizes


def part_of(request: FusionRequest, pair: pairing.Pair) -> FusionRequest:
    """A pair of a larger group as a job of its own: the same search, on the same device, at the same sizes."""
    slots = [request.group.slot(letter) for letter in pair]
    group = pairing.regrouped([(each.kernel, each.sizes) for each in slots], request.group.granularity)
    names = [request.names[letter] for letter in pair]
    keys: dict[str, object] = {"pair": names, "granularity": group.granularity}
    job = dataclasses.replace(request.job, request=frozen(keys), sizes=frozen(group.sizes), lines=frozen())
    return FusionRequest(group=group, job=job, names=frozen(dict(zip("ab", names, strict=True))))
