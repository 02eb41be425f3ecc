"""Which blocks can be one kernel.

Two levels. `paper`: the rules of Qiao et al. (section II-B), with which Algorithm 1 is run.

    global           a global kernel, a scan or a hysteresis stands alone
    iteration_space  all kernels compute the same pixels, and read them one for one (section II-B2)
    connected        every kernel is linked to the others through edges inside the block
    external_output  only one image leaves the block (figure 2c)
    external_input   a kernel inside reads no image from outside, unless the block's first kernels read it too (2b, 2d)
    shared_memory    equation 2: the block's tiles against the largest tile of one of its kernels
    no_benefit       no edge inside whose fusion saves nothing

`general`: what the generated kernels can do: global, and

    gather           no kernel reads at computed coordinates what the block makes: that has to lie in memory
    iteration_space  the images that leave the block have one size; others are computed where they are read

    convex           no path leaves the block and comes back
    connected        every kernel is linked to the others, through edges or images that two of them read

How many channels a kernel computes at a pixel is its own affair.

The last rule of the paper's level closes a hole of Algorithm 1 as published: legality alone would fuse what the weights
say must not be fused. And every edge is judged here as an edge of *this* block: one that is illegal as a pair, because
a third kernel of the block makes what it reads, counts with its real scenario.
"""

import heapq
from collections.abc import Iterable, Iterator

from fusiond.model.language.dtypes import DTYPES
from fusiond.model.nouns import Rejection
from fusiond_mincut.analysis import benefit
from fusiond_mincut.analysis.benefit import BenefitModel, WeighedEdge
from fusiond_mincut.analysis.blocks import stored
from fusiond_mincut.analysis.cuts import leader_of
from fusiond_mincut.frontend.graph import Halo, Pipeline

TILE = (32, 4)  #: Pixels of a thread block, with which tiles are counted for equation 2


def paper(pipeline: Pipeline, kernels: Iterable[str], model: BenefitModel) -> Iterator[Rejection]:
    """Every rule of the paper's level that a block of kernels breaks, the cheap ones first; nothing when it is legal.

    A single kernel is always legal."""
    members = pipeline.ordered(kernels)
    if len(members) < 2:
        return
    yield from _global(pipeline, members)
    yield from _iteration_space(pipeline, members)
    yield from _external_output(pipeline, members)
    yield from _external_input(pipeline, members)
    yield from _connected(pipeline, members, shared=False)
    yield from _no_benefit(pipeline, members, model)
    yield from _shared_memory(pipeline, members, model)


def general(pipeline: Pipeline, kernels: Iterable[str], *, connected: bool = True) -> Iterator[Rejection]:
    """Every rule of the general level that a block breaks; nothing when the generated kernels can compute it, which
    they can without it being `connected` too: then nothing is gained but a launch."""
    members = pipeline.ordered(kernels)
    if len(members) < 2:
        return
    yield from _global(pipeline, members)
    yield from _gather(pipeline, members)
    yield from _stored_sizes(pipeline, members)
    if connected:
        yield from _connected(pipeline, members, shared=True)
    yield from _convex(pipeline, members)


def refusal(pipeline: Pipeline, kernels: Iterable[str], model: BenefitModel) -> Rejection | None:
    """The first reason why a block is not legal by the paper's rules; None when it is."""
    return next(paper(pipeline, kernels, model), None)


def weighed(pipeline: Pipeline, model: BenefitModel) -> tuple[WeighedEdge, ...]:
    """All edges with their weights (equation 12), each judged as a block of two, in the pipeline's order of edges."""
    return pipeline.once((weighed, model), lambda: tuple(_weighed(pipeline, model, *each) for each in pipeline.edges))


def _weighed(pipeline: Pipeline, model: BenefitModel, producer: str, consumer: str) -> WeighedEdge:
    if any(each.rule != "no_benefit" for each in paper(pipeline, (producer, consumer), model)):
        return WeighedEdge(producer=producer, consumer=consumer, scenario="illegal", gain=None, weight=model.epsilon)
    gain = benefit.gain(pipeline, producer, consumer, model)
    scenario = benefit.scenario(pipeline, producer, consumer)
    return WeighedEdge(
        producer=producer, consumer=consumer, scenario=scenario, gain=gain, weight=max(gain, model.epsilon)
    )


def block_gain(pipeline: Pipeline, kernels: Iterable[str], model: BenefitModel) -> float:
    """The weight of a legal block (equation 1): what its edges save, each judged as an edge of this block.

    An image that is stored all the same, because somebody outside reads it, saves only its reading: half of what moving
    it would save. (At the paper's level no such block is legal.)"""
    members = pipeline.ordered(kernels)
    inside = set(members)
    total = 0.0
    for producer, consumer in _edges(pipeline, members):
        gain = benefit.gain(pipeline, producer, consumer, model)
        if stored(pipeline, producer, inside):
            kind = benefit.scenario(pipeline, producer, consumer)
            gain -= (model.shared_gain if kind == "local_to_local" else model.register_gain) / 2
        total += gain
    return total


# --- rules ----------------------------------------------------------------------------------------------


def _edges(pipeline: Pipeline, members: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    inside = set(members)
    for name in members:
        for producer in pipeline.producers[name]:
            if producer in inside:
                yield producer, name


def _global(pipeline: Pipeline, members: tuple[str, ...]) -> Iterator[Rejection]:
    for name in members:
        if pipeline.kernel(name).boundary:
            detail = f"{name} takes a whole image ({pipeline.kernel(name).pattern}): it is a kernel by itself, and a "
            detail += "boundary for all others"
            yield Rejection(rule="global", nodes=members, detail=detail)
            return


def _gather(pipeline: Pipeline, members: tuple[str, ...]) -> Iterator[Rejection]:
    inside = set(members)
    for name in members:
        for image in pipeline.kernel(name).fetched:
            if image in inside:
                detail = f"{name} reads {image} at computed coordinates: it has to lie in memory"
                yield Rejection(rule="gather", nodes=members, detail=detail)
                return


def _iteration_space(pipeline: Pipeline, members: tuple[str, ...]) -> Iterator[Rejection]:
    """The paper's: equal iteration spaces, read one for one."""
    yield from _gather(pipeline, members)
    inside = set(members)
    first = pipeline.kernel(members[0])
    for name in members:
        kernel = pipeline.kernel(name)
        far = next((image for image in kernel.steps if image in inside), None)
        if far is not None or kernel.area != first.area:
            detail = f"{name} reads {far} by a step" if far else f"{name} has another size than {first.name}"
            yield Rejection(rule="iteration_space", nodes=members, detail=detail)
            return


def _stored_sizes(pipeline: Pipeline, members: tuple[str, ...]) -> Iterator[Rejection]:
    inside = set(members)
    first, *others = [name for name in members if stored(pipeline, name, inside)]
    for name in others:
        if pipeline.kernel(name).area != pipeline.kernel(first).area:
            detail = f"{first} and {name} leave the block and have different sizes"
            yield Rejection(rule="iteration_space", nodes=members, detail=detail)
            return


def _external_output(pipeline: Pipeline, members: tuple[str, ...]) -> Iterator[Rejection]:
    inside = set(members)
    first = within = None
    """The first whose image leaves, and the first such one that a member reads, too: that is named rather."""
    several = False
    for each in members:
        if stored(pipeline, each, inside):
            first, several = first or each, first is not None
            if within is None and any(reader in inside for reader in pipeline.readers[each]):
                within = each
            if several and within is not None:
                break
    if several:
        name = within or first
        assert name is not None
        outside = [reader for reader in pipeline.readers[name] if reader not in inside]
        who = f"{outside[0]} reads it" if outside else "it is an output of the pipeline"
        detail = f"the image of {name} is needed outside too ({who}); only one image leaves a fused kernel"
        yield Rejection(rule="external_output", nodes=members, detail=detail)


def _external_input(pipeline: Pipeline, members: tuple[str, ...]) -> Iterator[Rejection]:
    inside = set(members)
    firsts = [name for name in members if not any(each in inside for each in pipeline.producers[name])]
    given = {image for name in firsts for image in pipeline.kernel(name).reads}
    for name in members:
        for image in pipeline.kernel(name).reads:
            if image not in inside and image not in given and not pipeline.images[image].single:
                detail = f"{name} reads {image}, which is made outside and is not an input of {', '.join(firsts)}"
                yield Rejection(rule="external_input", nodes=members, detail=detail)
                return


def _connected(pipeline: Pipeline, members: tuple[str, ...], *, shared: bool) -> Iterator[Rejection]:
    parts = components(pipeline, members, shared=shared)
    if len(parts) > 1:
        detail = f"{'+'.join(parts[0])} and {'+'.join(parts[1])} share no image and no edge"
        yield Rejection(rule="connected", nodes=members, detail=detail)


def components(pipeline: Pipeline, kernels: Iterable[str], *, shared: bool) -> tuple[tuple[str, ...], ...]:
    """The parts of a set of kernels that no edge links, each in topological order, ordered by their first kernels.

    `shared`: two kernels that read one image are linked too."""
    members = pipeline.ordered(kernels)
    inside = set(members)
    leader = {name: name for name in members}
    reader: dict[str, str] = {}
    for name in members:
        for image in pipeline.kernel(name).reads:
            other = image if image in inside else reader.setdefault(image, name) if shared else name
            first, *others = pipeline.ordered((leader_of(leader, name), leader_of(leader, other)))
            leader.update(dict.fromkeys(others, first))
    parts: dict[str, list[str]] = {}
    for name in members:
        parts.setdefault(leader_of(leader, name), []).append(name)
    return tuple(tuple(each) for each in parts.values())


def _convex(pipeline: Pipeline, members: tuple[str, ...]) -> Iterator[Rejection]:
    """A path that leaves goes through kernels between the first and the last member."""
    inside = set(members)
    last = max(pipeline.position[name] for name in members)
    outside: dict[str, str] = {}  # a kernel outside that waits for the block -> the member it waits for
    for kernel in pipeline.kernels[pipeline.position[members[0]] : last + 1]:
        for producer in pipeline.producers[kernel.name]:
            origin = producer if producer in inside else outside.get(producer)
            if kernel.name not in inside and origin is not None:
                outside.setdefault(kernel.name, origin)
            elif kernel.name in inside and producer in outside:
                detail = (
                    f"{kernel.name} waits for {producer}, which is outside and waits for {outside[producer]}, "
                    f"which is inside"
                )
                yield Rejection(rule="convex", nodes=members, detail=detail)
                return


def _no_benefit(pipeline: Pipeline, members: tuple[str, ...], model: BenefitModel) -> Iterator[Rejection]:
    for producer, consumer in _edges(pipeline, members):
        gain = benefit.gain(pipeline, producer, consumer, model)
        if gain <= 0:
            kind = benefit.scenario(pipeline, producer, consumer).replace("_", "-")
            detail = f"computing {producer} again for {consumer} ({kind}) costs {-gain:g} more than it saves"
            yield Rejection(rule="no_benefit", nodes=members, detail=detail)
            return


def _shared_memory(pipeline: Pipeline, members: tuple[str, ...], model: BenefitModel) -> Iterator[Rejection]:
    largest = max((_own_tile_bytes(pipeline, name) for name in members), default=0)
    if largest == 0:
        return
    whole = tile_bytes(pipeline, members)
    if whole > model.c_shared * largest:
        detail = (
            f"{whole} bytes of tiles for {TILE[0]} x {TILE[1]} pixels, {whole / largest:.2f} times the largest of one "
            f"kernel ({largest}); at most {model.c_shared:g} times (equation 2)"
        )
        yield Rejection(rule="shared_memory", nodes=members, detail=detail)


def _own_tile_bytes(pipeline: Pipeline, name: str) -> int:
    return pipeline.once((tile_bytes, name), lambda: tile_bytes(pipeline, (name,)))


def tile_bytes(pipeline: Pipeline, kernels: Iterable[str]) -> int:
    """f_Mshared of equation 2: the shared memory of a block that is fused as the paper does it, in bytes.

    Each local kernel that no further local kernel of the block waits for keeps a tile of every image from outside that
    it needs the neighbourhood of, directly or through kernels inside, which are computed again from it. So the halo of
    a tile is the sum of the windows on the way."""
    members = pipeline.ordered(kernels)
    inside = set(members)
    feeds_local: set[str] = set()  # a further local stage waits for it
    for name in reversed(members):
        kernel = pipeline.kernel(name)
        if kernel.pattern == "local" or name in feeds_local:
            feeds_local |= set(pipeline.producers[name]) & inside
    return sum(
        _stage_bytes(pipeline, name, members)
        for name in members
        if pipeline.kernel(name).pattern == "local" and name not in feeds_local
    )


def _stage_bytes(pipeline: Pipeline, last: str, members: tuple[str, ...]) -> int:
    inside = set(members)
    position = pipeline.position
    needed = {last: Halo()}
    waiting = [-position[last]]  # the latest kernel first: all its readers have been seen
    while waiting:
        kernel = pipeline.kernels[-heapq.heappop(waiting)]
        for image in kernel.reads:
            if image in inside and image not in needed:
                heapq.heappush(waiting, -position[image])
            around = needed[kernel.name] + kernel.window(image)
            needed[image] = around.union(needed.get(image, Halo()))
    total = 0
    for image, halo in needed.items():
        if image not in inside and halo:
            about = pipeline.images[image]
            pixels = (TILE[0] + halo.left + halo.right) * (TILE[1] + halo.up + halo.down)
            total += pixels * about.channels * DTYPES[about.dtype].bytes
    return total
