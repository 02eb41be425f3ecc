"""The space of a module, and its seeds.

fusion      packed | barriers | apart | paper
            the paper's fusion; or groups with several producers, middle splits and spills: each its own launch
            (apart), those that do not depend on each other in one launch (packed), those that do behind a barrier
            across the grid too (barriers: a cooperative launch)
            images                   the kernels of the strategy that takes pipelines, where the module is one
rows        16 | 8 | 32 | 4          columns of a row that a thread holds in registers, where a group's rows fit there
            shared                   rows of all groups go through shared memory, as in the paper
exchange    warp | shared            how the lanes of a row reduction meet then; the paper has shared memory only
dots        library | stitched       where there are batched dots and the job says `dots: any`
reductions  split | whole            large ones in two steps, and a long row's maximum and sum of exponentials in one,
            where there are any
scatters    updates | tiles | elements       each update goes to its element, atomically, row by row or a column of
            cache lines at a time; or each element looks at all updates (only where there are such scatters)
grain       elements that a block may be given: how few blocks fusion accepts
threads     of a block
shared      device | paper           the limit of shared memory: the device's, or the paper's 20 KB
issue       streams | graph          launches one by one, or as a CUDA graph
schedules   uniform | measured       where groups were measured by themselves: one way for all, or each its own
at.PART     the way of a part        what `measured` means for it (`composition.Way`)

A job for one group has rows, exchange, grain, threads and shared, and nothing else.
"""

import dataclasses
from collections.abc import Mapping

from fusiond.model.gpu.limits import STATIC_SHARED_BYTES
from fusiond.model.nouns import Config, DeviceLimits, Value
from fusiond.strategy.space import Parameter, Space
from fusiond_stitching.analysis.composition import EXCHANGES, LIMITS, ROWS, SHARED, Way
from fusiond_stitching.analysis.policy import PAPER_SHARED_BYTES, FusionPolicy

THREADS = (256, 128, 512, 1024)
GRAINS = (8192, 2048, 32768)


MEASURED = "measured"
IMAGES = "images"
AT = "at."


def offered(
    limits: DeviceLimits,
    *,
    dots: str,
    large: bool = False,
    scatters: tuple[str, ...] = (),
    ways: Mapping[str, Way] | None = None,
    images: bool = False,
) -> Space:
    """All that the search may choose; `dots` is the job's: library, stitched or any; `large`: there are reductions that
    may be split; `scatters`: how scatters may be computed, where there is a choice; `ways`: how the parts that were
    measured are fastest; `images`: another strategy takes the module."""
    ours = ("packed", "barriers", "apart", "paper")
    rows, exchange, grain, threads, shared = alone(limits).parameters
    parameters = [
        Parameter(name="fusion", values=(IMAGES, *ours) if images else ours),
        *(dataclasses.replace(each, when="fusion != 'paper'") for each in (rows, exchange)),
    ]
    if dots == "any":
        parameters.append(Parameter(name="dots", values=("library", "stitched")))
    if large:
        parameters.append(Parameter(name="reductions", values=("split", "whole")))
    if scatters:
        parameters.append(Parameter(name="scatters", values=scatters))
    issue = Parameter(name="issue", values=("streams", "graph"), when="fusion != 'barriers'")
    parameters += [grain, threads, shared, issue]
    if ways:
        parameters.append(Parameter(name="schedules", values=("uniform", MEASURED), when="fusion != 'paper'"))
        when = f"schedules == '{MEASURED}'"
        parameters += [Parameter(name=f"{AT}{name}", values=(str(way),), when=when) for name, way in ways.items()]
    return Space(parameters=tuple(parameters))


def alone(limits: DeviceLimits) -> Space:
    """What a job for one group may choose."""
    threads = tuple(each for each in THREADS if each <= limits.threads_per_block)
    values: dict[str, tuple[Value, ...]] = {
        "rows": ROWS, "exchange": EXCHANGES, "grain": GRAINS, "threads": threads, "shared": LIMITS,
    }  # fmt: skip
    return Space(parameters=tuple(Parameter(name=name, values=each) for name, each in values.items()))


def alone_seeds(limits: DeviceLimits) -> tuple[tuple[str, Config], ...]:
    """As the whole module begins; many blocks; as the paper stores and exchanges."""
    first: dict[str, Value] = {
        "rows": ROWS[0],
        "exchange": "warp",
        "grain": GRAINS[0],
        "threads": _threads(limits),
        "shared": "device",
    }
    stages = {**first, "rows": SHARED}
    return (
        ("default", Config.of(first)),
        ("shared", Config.of(stages)),
        ("many_blocks", Config.of({**stages, "grain": GRAINS[1]})),
        ("paper", Config.of({**stages, "exchange": "shared", "shared": "paper"})),
    )


def _threads(limits: DeviceLimits) -> int:
    return THREADS[0] if limits.threads_per_block >= THREADS[0] else limits.threads_per_block


def parted(config: Config) -> tuple[Config, dict[str, Way]]:
    """(the config without what it says of parts, part -> way). ValueError when it says what no config can."""
    plain = {name: value for name, value in config.items() if name != "schedules" and not name.startswith(AT)}
    said = {name.removeprefix(AT): value for name, value in config.items() if name.startswith(AT)}
    schedules = config.get("schedules", "uniform")
    if schedules not in ("uniform", MEASURED) or (said and schedules != MEASURED):
        raise ValueError(f"schedules is {schedules!r}")
    if schedules == MEASURED and plain.get("fusion") == "paper":
        raise ValueError("schedules does not apply to the paper's fusion")
    return Config.of(plain), {name: Way.read(str(value)) for name, value in said.items()}


def unfused(limits: DeviceLimits, *, large: bool = False, scatters: tuple[str, ...] = ()) -> Space:
    """The knobs of the unfused ways; the plain one splits no reduction."""
    values = tuple(each for each in THREADS if each <= limits.threads_per_block)
    parameters = [Parameter(name="threads", values=values)]
    if large:
        parameters.append(Parameter(name="reductions", values=("whole", "split")))
    if scatters:
        parameters.append(Parameter(name="scatters", values=scatters))
    return Space(parameters=tuple(parameters))


def issue(config: Config) -> str:
    """How the launches are issued; a cooperative one never as part of a graph."""
    return str(config.get("issue", "streams"))


def shared_limits(limits: DeviceLimits) -> dict[str, int]:
    """Bytes of shared memory that a block may have, by label."""
    given = {"device": STATIC_SHARED_BYTES, "paper": PAPER_SHARED_BYTES}
    return {name: min(most, limits.shared_bytes_per_block) for name, most in given.items()}


def policy(config: Config, limits: DeviceLimits, *, dots: str) -> FusionPolicy:
    """The policy that a config stands for. KeyError or TypeError when something is missing."""
    fusion = config.text("fusion")
    beyond = fusion != "paper"
    rows = config.text("rows") if beyond else SHARED
    paper_shared = config.text("shared") == "paper"
    return FusionPolicy(
        threads=config.integer("threads"),
        grain=config.integer("grain"),
        shared_limit=shared_limits(limits)["paper" if paper_shared else "device"],
        multiprocessors=max(1, limits.multiprocessors),
        layers=not beyond,
        merge=beyond,
        recompute=beyond,
        middle=beyond,
        spill=beyond,
        lift=beyond,
        update_tiles=config.get("scatters") == "tiles",
        registers=rows != SHARED,
        row_shared=limits.shared_bytes_per_block if rows != SHARED and not paper_shared else 0,
        per_thread=int(rows) if rows != SHARED else int(ROWS[0]),
        warp=beyond and config.text("exchange") == "warp",
        packing=fusion in ("packed", "barriers"),
        barriers=fusion == "barriers",
        stitch_dots=dots == "stitched" or (dots == "any" and config.text("dots") == "stitched"),
    )


def seeds(
    limits: DeviceLimits,
    space: Space,
    *,
    dots: str,
    large: bool = False,
    scatters: tuple[str, ...] = (),
    ways: Mapping[str, Way] | None = None,
    threads: int | None = None,
) -> tuple[tuple[str, Config], ...]:
    """Fewest kernels first, with and without barriers across the grid, each followed by itself with every group in its
    own way, where that is known; then scatters in their other way (`scatters`: as `offered`), reductions that are not
    split, rows in shared memory, many blocks, and what the paper would do. `threads`: of a launch whose groups want
    different numbers."""
    common: dict[str, Value] = {"threads": _threads(limits), "grain": GRAINS[0]}
    common |= {"dots": "library"} if dots == "any" else {}
    common |= {"scatters": scatters[0]} if scatters else {}
    whole: dict[str, Value] = {"reductions": "whole"} if large else {}
    split: dict[str, Value] = {"reductions": "split"} if large else {}
    beyond: dict[str, Value] = {**common, **split, "rows": ROWS[0], "exchange": "warp", "shared": "device"}
    packed: dict[str, Value] = {**beyond, "fusion": "packed", "issue": "streams"}
    wanted: list[tuple[str, Mapping[str, Value]]] = [
        (IMAGES, {**packed, "fusion": IMAGES}),
        ("packed", packed),
        ("barriers", {**beyond, "fusion": "barriers"}),
        *(("packed_scatters", {**packed, "scatters": each}) for each in scatters[1:]),
        *([("packed_whole", {**packed, **whole})] if large else []),
        ("packed_shared", {**packed, "rows": SHARED}),
        ("barriers_many_blocks", {**beyond, "fusion": "barriers", "grain": 2048}),
        ("packed_few_blocks", {**packed, "grain": 32768, "issue": "graph"}),
        ("paper", {**common, **whole, "fusion": "paper", "shared": "paper", "issue": "streams"}),
    ]
    if ways:
        own: dict[str, Value] = {"schedules": MEASURED, **{f"{AT}{name}": str(way) for name, way in ways.items()}}
        own |= {} if threads is None else {"threads": threads}
        wanted = [
            each
            for name, values in wanted
            for each in (
                (name, values if values["fusion"] == "paper" else {**values, "schedules": "uniform"}),
                *([(f"{name}_as_measured", {**values, **own})] if name in ("packed", "barriers") else []),
            )
        ]
    found = ((name, Config.of(values)) for name, values in wanted)
    return tuple((name, config) for name, config in found if not space.problems(config))
