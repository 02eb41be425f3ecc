"""The space of a pair or a larger group, and its seeds. docs/hfuse.md says what each parameter means, and when."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fusiond.model.gpu.limits import BARRIER_IDS
from fusiond.model.nouns import Config, DeviceLimits, Value
from fusiond.strategy.space import EMPTY, Parameter, Space
from fusiond_hfuse.analysis import pairing, partition, registers
from fusiond_hfuse.frontend.fusion_group import KernelGroup
from fusiond_hfuse.frontend.source_kernel import WARP, volume

FIT = "fit"
CAPS = tuple(f"{FIT}{blocks}" for blocks in (2, 3, 4, 5, 6, 8, 12, 16))
"""As few registers as let so many blocks be resident: between two of these steps fewer registers gain nothing. (A cap
above what a kernel uses without one is not idle: ptxas then uses more.)"""
ASSIGNS = ("sequential", "interleaved", "ticket", "multiprocessor")
LAUNCHES = ("sequence", "streams", "graph")
BLOCKS = (1, 2, 4, 8)  #: Launched blocks per multiprocessor of a strided kernel

KEPT = (24, 32, 40, 56, 72, 96)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ways:
    """What decides in which ways a group can be one launch."""

    group: KernelGroup
    limits: DeviceLimits
    counts: Mapping[str, tuple[int, ...]]  #: Letter -> the block sizes of the side
    common: tuple[int, ...]  #: The block sizes of a vertical kernel
    virtual: Mapping[str, tuple[int, ...]]
    """Letter -> how many of its blocks may lie side by side, of those that have a choice."""
    warp: bool  #: The sides fit one block
    strides: bool  #: Each side can loop over its blocks
    trades: bool  #: One side can give registers to the other

    @property
    def caps(self) -> bool:
        """Registers mean something."""
        return self.limits.registers_per_sm > 0


def fused(group: KernelGroup, limits: DeviceLimits, arch: str) -> Space:
    """All ways to fuse a group into one launch; an empty space when there are none."""
    counts = {letter: _counts(group, letter, limits) for letter in group.letters}
    if not all(counts.values()):
        return EMPTY
    warp = partition.even(group, limits) is not None
    number = arch.removeprefix("sm_")
    hopper = number.isdigit() and int(number) >= 90  # and later: warpgroups can give registers to each other
    virtual = {
        slot.letter: max((partition.virtual(slot.kernel, each, limits) for each in counts[slot.letter]), key=len)
        for slot in group.slots
    }
    parsed = [slot.kernel.parsed for slot in group.slots]
    ways = _Ways(
        group=group, limits=limits, counts=counts, common=_common(group, limits), warp=warp,
        virtual={letter: values for letter, values in virtual.items() if len(values) > 1},
        strides=limits.multiprocessors > 0 and not any(each.parts or each.cooperative for each in parsed),
        trades=limits.registers_per_sm > 0 and warp and hopper and len(group.slots) == 2,
    )  # fmt: skip
    parameters = (*_shape_parameters(ways), *_register_parameters(ways))
    return Space(parameters=parameters, restrictions=tuple(_restrictions(ways)))


def _shape_parameters(ways: _Ways) -> Iterator[Parameter]:
    """How the launch is divided, and in blocks of how many threads."""
    yield Parameter(name="kind", values=("horizontal", "vertical") if ways.common else ("horizontal",))
    levels = ("warp", "block") if ways.warp else ("block",)
    yield Parameter(name="level", values=levels, when="kind == 'horizontal'")
    clusters = any(slot.kernel.parsed.cluster > 1 for slot in ways.group.slots)  # which blocks in a row make up
    yield Parameter(name="assign", values=ASSIGNS[:1] if clusters else ASSIGNS, when="level == 'block'")
    for letter, values in ways.counts.items():
        yield Parameter(name=f"threads.{letter}", values=values, when="kind == 'horizontal'")
    yield from _choices(ways.group)
    for letter, values in ways.virtual.items():
        yield Parameter(name=f"virtual.{letter}", values=values, when="level == 'block'")
    if ways.warp:
        yield Parameter(name="map", values=("pad", "stride") if ways.strides else ("pad",), when="level == 'warp'")
    if ways.warp and ways.strides:
        yield Parameter(name="blocks", values=BLOCKS, when="map == 'stride'")
    if ways.common:
        yield Parameter(name="threads", values=ways.common, when="kind == 'vertical'")
    yield Parameter(name="order", values=_orders(ways.group))


def _choices(group: KernelGroup) -> Iterator[Parameter]:
    """What a kernel in Triton is compiled with: `BLOCK.a`. Macros that have a list are tuned of a kernel by itself."""
    for slot in (each for each in group.slots if each.kernel.forms or not each.prefix):
        for name, values in slot.kernel.tuned.items():
            yield Parameter(name=name + slot.suffix, values=values)


def _register_parameters(ways: _Ways) -> Iterator[Parameter]:
    if ways.caps:
        given = ("given",) if any(slot.kernel.parsed.resident_blocks for slot in ways.group.slots) else ()
        yield Parameter(name="cap", values=("native", "none", "paper", *given, *CAPS))
    if ways.trades:
        yield Parameter(name="taker", values=("none", *ways.group.letters), when="level == 'warp'")
        yield Parameter(name="kept", values=KEPT, when="taker != 'none'")


def _restrictions(ways: _Ways) -> Iterator[str]:
    yield from _own_restrictions(ways)
    if ways.warp:
        yield from _fitting(ways.counts, ways.limits)
        yield from _warpgroups(ways.group)
    if ways.trades:
        yield from _trades(ways.group, ways.limits)
    if ways.caps:
        yield from _resident_together(ways)


def _counts(group: KernelGroup, letter: str, limits: DeviceLimits) -> tuple[int, ...]:
    """The block sizes of a side. Of more than two sides, only the given one and those that double a warp: with every
    multiple of the granularity for each, there would be millions of partitions that hardly differ."""
    counts = partition.counts(group, letter, limits)
    if len(group.slots) == 2 or group.slot(letter).kernel.block.tune is None:
        return counts
    return tuple(each for each in counts if each == counts[0] or (each // WARP).bit_count() == 1)


def _common(group: KernelGroup, limits: DeviceLimits) -> tuple[int, ...]:
    """The block sizes of a vertical kernel, in which every thread goes from one body to the next."""
    ids = sum(slot.kernel.parsed.barrier_ids for slot in group.slots)
    if ids >= BARRIER_IDS or not all(not slot.kernel.parsed.parts for slot in group.slots):
        return ()
    return partition.common(group, limits)


def _orders(group: KernelGroup) -> tuple[str, ...]:
    """Of two, who is first; of more, as they are, or the one with the most threads first."""
    return (group.letters, group.letters[::-1]) if len(group.slots) == 2 else ("given", "threads")


def _trades(group: KernelGroup, limits: DeviceLimits) -> Iterator[str]:
    """Whole warpgroups, a number of registers at launch that is known, and something to give (`registers.traded`)."""
    steps = " or ".join(f"cap == '{cap}'" for cap in CAPS)
    yield f"taker == 'none' or {steps}"
    for letter in group.letters:
        yield f"taker == 'none' or threads.{letter} % {registers.WARPGROUP} == 0"
    step, most = registers.STEP, limits.registers_per_thread // registers.STEP * registers.STEP
    total = " + ".join(f"threads.{letter}" for letter in group.letters)
    for cap in CAPS:
        # Of whole warpgroups, so many registers a thread let so many blocks be resident (`registers.fitting`).
        launched = f"{limits.registers_per_sm} // ({cap.removeprefix(FIT)} * ({total})) // {step} * {step}"
        for taker, giver in (tuple(group.letters), tuple(reversed(group.letters))):
            gain = f"(min({most}, {launched}) - kept) * threads.{giver} >= {step} * threads.{taker}"
            yield f"taker != '{taker}' or cap != '{cap}' or {gain}"


def _warpgroups(group: KernelGroup) -> Iterator[str]:
    """What works by whole warpgroups begins at a multiple of their threads."""
    for slot in group.slots:
        for other in group.slots if slot.kernel.parsed.warpgroups else ():
            if other is not slot:
                first = f" or order == '{slot.letter}{other.letter}'" if len(group.slots) == 2 else ""
                yield f"level == 'block'{first} or threads.{other.letter} % {registers.WARPGROUP} == 0"


def _own_restrictions(ways: _Ways) -> Iterator[str]:
    """Which block sizes may not lie beside another kernel's, and how many of a side's blocks fit one block."""
    for letter, sizes in ways.counts.items():
        together = partition.counts(ways.group, letter, ways.limits, beside=True)
        for threads in sizes:
            if threads not in together:
                yield f"level == 'block' or threads.{letter} != {threads}"
                if letter in ways.virtual:
                    yield f"threads.{letter} != {threads} or virtual.{letter} == 1"
        if letter in ways.virtual:
            yield f"threads.{letter} * virtual.{letter} <= {ways.limits.threads_per_block}"


def _fitting(counts: Mapping[str, Sequence[int]], limits: DeviceLimits) -> Iterator[str]:
    """The sides of a block fit it; said of the first few sides too, so that no sampler follows what cannot be
    completed."""
    letters = list(counts)
    for number in range(len(letters), 1, -1):
        rest = sum(min(counts[letter]) for letter in letters[number:])
        total = " + ".join(f"threads.{letter}" for letter in letters[:number])
        yield f"level == 'block' or {total} <= {limits.threads_per_block - rest}"


def completed(config: Config, offered: Space, group: KernelGroup) -> Config:
    """A config of a time when there was one level, one map and one block in a block, with these written out."""
    plain: dict[str, Value] = {each.name: each.values[0] for each in _choices(group)}
    if config.get("kind") == "horizontal":
        plain["level"] = "warp"
        if config.get("level", "warp") == "warp":
            plain["map"] = "pad"
    if config.get("level", plain.get("level")) == "warp" and any(each.name == "taker" for each in offered.parameters):
        plain["taker"] = "none"
    if config.get("level") == "block":
        plain |= {each.name: 1 for each in offered.parameters if each.name.startswith("virtual.")}
    return Config.of({**plain, **config})


def unfused(group: KernelGroup, limits: DeviceLimits) -> Space:
    """The knobs of the unfused kernels: the same block sizes and register caps, so that the comparison is fair."""
    at = {slot.letter: slot.suffix for slot in group.slots}
    caps = CAPS if limits.registers_per_sm > 0 else ()
    parameters = [Parameter(name=f"threads{own}", values=_alone(group, each, limits)) for each, own in at.items()]
    parameters += [Parameter(name=f"cap{own}", values=("none", *caps)) for own in at.values() if caps]
    parameters += _choices(group)
    resident = (  # so many threads a block has at most that is to be resident so often
        f"cap{own} != '{cap}' or threads{own} <= {_most_threads(limits, cap)}" for cap in caps for own in at.values()
    )
    return Space(parameters=tuple(parameters), restrictions=tuple(resident))


def _resident_together(ways: _Ways) -> Iterator[str]:
    """How many threads a fused block has at most, of all its sides or at block level of the largest, that is to be
    resident so often."""
    total = " + ".join(f"threads.{letter}" for letter in ways.group.letters)
    for cap in CAPS:
        most = _most_threads(ways.limits, cap)
        if ways.warp:
            yield f"cap != '{cap}' or level == 'block' or {total} <= {most}"
        for letter in ways.group.letters:
            yield f"cap != '{cap}' or threads.{letter} <= {most}"
            if letter in ways.virtual:
                yield f"cap != '{cap}' or threads.{letter} * virtual.{letter} <= {most}"
        if ways.common:
            yield f"cap != '{cap}' or threads <= {most}"


def _most_threads(limits: DeviceLimits, cap: str) -> int:
    sizes = range(WARP, limits.threads_per_block + 1, WARP)
    return max((each for each in sizes if registers.fitting(limits, each, int(cap.removeprefix(FIT)))), default=0)


def _alone(group: KernelGroup, letter: str, limits: DeviceLimits) -> tuple[int, ...]:
    """The block sizes of a kernel by itself, the given one first, whether it is whole warps or not."""
    given = volume(group.slot(letter).kernel.block.shapes[0])
    return tuple(dict.fromkeys([given, *partition.counts(group, letter, limits)]))


# --- three or more --------------------------------------------------------------------------------------


def composed(
    group: KernelGroup, limits: DeviceLimits, arch: str, *, whole: bool, best: Mapping[pairing.Pair, Config]
) -> Space:
    """Which kernels to fuse, and how.

    `best` are the pairs of the matching with their own best configs; `whole` says whether all may be one launch."""
    letters = group.letters
    matched = pairing.with_rest(best, letters)
    apart = pairing.with_rest((), letters)
    together = pairing.written([letters])
    groupings = list(dict.fromkeys([matched, *([together] if whole else []), apart]))
    parameters = [
        Parameter(name="groups", values=tuple(groupings)),
        Parameter(name="launch", values=LAUNCHES, when=f"groups != '{together}'"),
    ]
    for pair, config in best.items():
        name = "".join(sorted(pair))
        parameters += [
            Parameter(name=f"{name}.{key}", values=(value,), when=f"groups == '{matched}'")
            for key, value in config.items()
        ]
    one = fused(group, limits, arch) if whole else EMPTY
    joint = {each.name for each in one.parameters}
    restrictions = list(one.restrictions)
    for letter in letters:
        when = " or ".join(
            f"groups == '{each}'" for each in dict.fromkeys([matched, apart]) if letter in each.split("|")
        )
        own = unfused(group.among(letter), limits)
        for each in own.parameters:
            name = _of_one(each.name)
            also = f" or groups == '{together}'" if name in joint else ""
            parameters.append(Parameter(name=name, values=each.values, when=when + also))
        restrictions += map(_of_one, own.restrictions)
    known = {each.name for each in parameters}
    for each in (each for each in one.parameters if each.name not in known):
        when = f"groups == '{together}'" + (f" and {each.when}" if each.when else "")
        parameters.append(Parameter(name=each.name, values=each.values, when=when))
    return Space(parameters=tuple(parameters), restrictions=tuple(restrictions))


def _of_one(text: str) -> str:
    """A name or a restriction of `unfused`, as a composition has it of a kernel by itself: there `threads.b` is of a
    launch that `b` shares."""
    return text.replace("threads.", "alone.")


# --- where to begin -------------------------------------------------------------------------------------


_Seed: TypeAlias = tuple[str, dict[str, Value]]  #: A name, and the values of a config that is to be tried early


def seeds(
    group: KernelGroup, limits: DeviceLimits, space: Space, natives: Mapping[str, int]
) -> tuple[tuple[str, Config], ...]:
    """What the paper would choose without profiling, and the plain ways; only points of the space, each once.
    `natives`: letter -> registers of the kernel by itself, as far as a compiler says."""
    return _valid(_wanted(group, limits, natives), space, group)


def _valid(wanted: Sequence[_Seed], space: Space, group: KernelGroup) -> tuple[tuple[str, Config], ...]:
    found: dict[Config, str] = {}
    for name, values in wanted:
        config = Config.of(values)
        config = completed(config, space, group) if "kind" in values else config
        if not space.problems(config):
            found.setdefault(config, name)
    return tuple((name, config) for config, name in found.items())


def _wanted(group: KernelGroup, limits: DeviceLimits, natives: Mapping[str, int]) -> list[_Seed]:
    caps = limits.registers_per_sm > 0
    bounded = any(slot.kernel.parsed.resident_blocks for slot in group.slots)
    inherited: dict[str, Value] = {"cap": "given" if bounded else "native"} if caps else {}
    order: dict[str, Value] = {"order": _orders(group)[0], **({"cap": "none"} if caps else {})}
    given: dict[str, Value] = {f"threads.{slot.letter}": volume(slot.kernel.block.shapes[0]) for slot in group.slots}
    split = partition.even(group, limits)
    even: dict[str, Value] = {
        f"threads.{letter}": threads for letter, threads in zip(group.letters, split or (), strict=split is not None)
    }
    wanted: list[_Seed] = []
    if even:
        wanted.append(("paper_even_split", {"kind": "horizontal", **order, **even}))
        if caps:
            wanted.append(("paper_r0", {"kind": "horizontal", **order, **even, "cap": "paper"}))
    wanted.append(("given_blocks", {"kind": "horizontal", **order, **given, **inherited}))
    both = _common(group, limits)
    if both:
        at = next((threads for threads in given.values() if threads in both), both[0])
        wanted.append(("vertical", {"kind": "vertical", "threads": at, **order, **inherited}))
    wanted += [(name, {**values, **order, **inherited}) for name, values in _by_blocks(group, limits)]
    if split is not None:
        trade = _trade(limits, given, natives) or _trade(limits, even, natives)
        if trade is not None:
            wanted.append(("registers_traded", {"kind": "horizontal", **order, **trade}))
        resident = max(each for each in BLOCKS if each == 1 or each * sum(split) <= limits.threads_per_sm)
        strided: dict[str, Value] = {"map": "stride", "blocks": resident}
        wanted.append(("stride", {"kind": "horizontal", **order, **even, **strided, **inherited}))
    return wanted


def _by_blocks(group: KernelGroup, limits: DeviceLimits) -> Iterator[_Seed]:
    """Each kernel in blocks of its own, dealt out in every way; and small blocks side by side in one."""
    own = {f"threads.{letter}": next(iter(partition.counts(group, letter, limits)), 0) for letter in group.letters}
    for assign in ASSIGNS:
        yield f"block_{assign}", {"kind": "horizontal", "level": "block", "assign": assign, **own}
    filled = {letter: each for letter, each in _filled(group, own, limits).items() if each > 1}
    if filled:
        virtual = {f"virtual.{letter}": each for letter, each in filled.items()}
        blocks: dict[str, Value] = {"kind": "horizontal", "level": "block", "assign": "multiprocessor"}
        yield "block_virtual", {**blocks, **own, **virtual}


def _trade(limits: DeviceLimits, split: Mapping[str, Value], natives: Mapping[str, int]) -> dict[str, Value] | None:
    """A partition of a block, with the most blocks for which the side with fewer registers can give the other one all
    that it has by itself, where an equal share would not do; None where there is no such step."""
    threads = {name[-1]: int(str(count)) for name, count in split.items()}
    if len(threads) != 2 or set(natives) != set(threads):
        return None
    giver, taker = sorted(threads, key=lambda letter: natives[letter])
    kept = next((each for each in KEPT if each >= natives[giver]), None)
    for cap in reversed(CAPS) if kept is not None else ():
        most = registers.fitting(limits, sum(threads.values()), int(cap.removeprefix(FIT)))
        launched = (most or 0) // registers.STEP * registers.STEP
        given = registers.traded(launched, threads[giver], threads[taker], kept or 0)
        if given is not None and launched < natives[taker] <= given:
            return {**split, "cap": cap, "taker": taker, "kept": kept or 0}
    return None


def _filled(group: KernelGroup, own: Mapping[str, Value], limits: DeviceLimits) -> dict[str, int]:
    """How many blocks of each kernel fill a fused block that is as large as the largest of them."""
    sizes = {letter: int(str(own[f"threads.{letter}"])) for letter in group.letters}
    largest = max(sizes.values())
    return {
        slot.letter: max(
            each
            for each in partition.virtual(slot.kernel, sizes[slot.letter], limits)
            if each == 1 or each * sizes[slot.letter] <= largest
        )
        for slot in group.slots
    }


def composed_seeds(
    group: KernelGroup, limits: DeviceLimits, space: Space, best: Mapping[pairing.Pair, Config]
) -> tuple[tuple[str, Config], ...]:
    """The matching in each way to launch it, all in one launch as a pair would begin, and nothing fused."""
    letters = group.letters
    alone = {
        letter: {_of_one(each.name): each.values[0] for each in unfused(group.among(letter), limits).parameters}
        for letter in letters
    }

    def several(pairs: Mapping[pairing.Pair, Config], launch: str) -> dict[str, Value]:
        grouping = pairing.with_rest(pairs, letters)
        values: dict[str, Value] = {"groups": grouping, "launch": launch}
        for pair, config in pairs.items():
            name = "".join(sorted(pair))
            values |= {f"{name}.{key}": value for key, value in config.items()}
        for each in grouping.split("|"):
            values |= alone.get(each, {})
        return values

    wanted: list[_Seed] = []
    if best:
        wanted += [(f"matched_{launch}", several(best, launch)) for launch in LAUNCHES]
    together = pairing.written([letters])
    wanted += [
        (f"together_{name.removeprefix('paper_')}", {"groups": together, **values})
        for name, values in _wanted(group, limits, {})
    ]
    wanted.append(("apart", several({}, "streams")))
    return _valid(wanted, space, group)


# --- the search of the paper itself (Li et al., CGO 2022, Figure 6), for `order: paper` -------------------


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
        "kind": ("horizontal",),
        "level": ("warp",),
        "map": ("pad",),
        "order": (group.letters,),
        f"threads.{first}": tuple(split),
        f"threads.{second}": tuple(whole - each for each in split),
    }
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
