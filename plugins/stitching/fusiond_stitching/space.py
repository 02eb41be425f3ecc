"""The space of a module, and where to begin in it.

fusion      packed | barriers | apart | paper
            the paper's fusion; or groups with several producers, middle splits and spills: each its own launch
            (apart), those that do not depend on each other in one launch (packed), those that do behind a barrier
            across the grid too (barriers: a cooperative launch)
exchange    warp | shared            how the lanes of a row reduction meet; the paper has shared memory only
dots        library | stitched       where there are batched dots and the job says `dots: any`
reductions  split | whole            large ones in two steps, where there are any
grain       elements that a block may be given: how few blocks fusion accepts
threads     of a block
shared      device | paper           the limit of shared memory: the device's, or the paper's 20 KB
issue       streams | graph          launches one by one, or as a CUDA graph
"""

from __future__ import annotations

from collections.abc import Mapping

from fusiond.model import Config, DeviceLimits, Value
from fusiond.space import Parameter, Space
from fusiond_stitching.policy import PAPER_SHARED_BYTES, Policy

THREADS = (256, 128, 512, 1024)
GRAINS = (8192, 2048, 32768)
DEFAULT_SHARED_BYTES = 48 * 1024
"""What a launch gets without asking; more costs residency."""


def offered(limits: DeviceLimits, *, dots: str, large: bool = False) -> Space:
    """All that the search may choose; `dots` is the job's: library, stitched or any; `large`: there are reductions that
    may be split."""
    parameters = [
        Parameter(name="fusion", values=("packed", "barriers", "apart", "paper")),
        Parameter(name="exchange", values=("warp", "shared"), when="fusion != 'paper'"),
    ]
    if dots == "any":
        parameters.append(Parameter(name="dots", values=("library", "stitched")))
    if large:
        parameters.append(Parameter(name="reductions", values=("split", "whole")))
    parameters += [
        Parameter(name="grain", values=GRAINS),
        Parameter(name="threads", values=tuple(each for each in THREADS if each <= limits.threads_per_block)),
        Parameter(name="shared", values=("device", "paper")),
        Parameter(name="issue", values=("streams", "graph"), when="fusion != 'barriers'"),
    ]
    return Space(parameters=tuple(parameters))


def unfused(limits: DeviceLimits, *, large: bool = False) -> Space:
    """The knobs of the unfused ways; the plain one splits no reduction."""
    values = tuple(each for each in THREADS if each <= limits.threads_per_block)
    parameters = [Parameter(name="threads", values=values)]
    if large:
        parameters.append(Parameter(name="reductions", values=("whole", "split")))
    return Space(parameters=tuple(parameters))


def issue(config: Config) -> str:
    """How the launches are issued; a cooperative one never as part of a graph."""
    return str(config.get("issue", "streams"))


def policy(config: Config, limits: DeviceLimits, *, dots: str) -> Policy:
    """The policy that a config stands for. KeyError or TypeError when something is missing."""
    fusion = config.text("fusion")
    beyond = fusion != "paper"
    paper_shared = config.text("shared") == "paper"
    return Policy(
        threads=config.integer("threads"),
        grain=config.integer("grain"),
        shared_limit=min(PAPER_SHARED_BYTES if paper_shared else DEFAULT_SHARED_BYTES, limits.shared_bytes_per_block),
        multiprocessors=max(1, limits.multiprocessors),
        layers=not beyond,
        merge=beyond,
        recompute=beyond,
        middle=beyond,
        spill=beyond,
        lift=beyond,
        warp=beyond and config.text("exchange") == "warp",
        packing=fusion in ("packed", "barriers"),
        barriers=fusion == "barriers",
        stitch_dots=dots == "stitched" or (dots == "any" and config.text("dots") == "stitched"),
    )


def seeds(limits: DeviceLimits, space: Space, *, dots: str, large: bool = False) -> tuple[tuple[str, Config], ...]:
    """Fewest kernels first, with and without barriers across the grid; then many blocks, and what the paper would
    do."""
    threads = THREADS[0] if limits.threads_per_block >= THREADS[0] else limits.threads_per_block
    common: dict[str, Value] = {"threads": threads, "grain": GRAINS[0]}
    if dots == "any":
        common["dots"] = "library"
    whole: dict[str, Value] = {"reductions": "whole"} if large else {}
    split: dict[str, Value] = {"reductions": "split"} if large else {}
    beyond: dict[str, Value] = {**common, **split, "exchange": "warp", "shared": "device"}
    wanted: list[tuple[str, Mapping[str, Value]]] = [
        ("packed", {**beyond, "fusion": "packed", "issue": "streams"}),
        ("barriers", {**beyond, "fusion": "barriers"}),
        ("barriers_many_blocks", {**beyond, "fusion": "barriers", "grain": 2048}),
        ("packed_few_blocks", {**beyond, "fusion": "packed", "grain": 32768, "issue": "graph"}),
        ("paper", {**common, **whole, "fusion": "paper", "shared": "paper", "issue": "streams"}),
    ]
    found = []
    for name, values in wanted:
        config = Config.of(values)
        if not space.problems(config):
            found.append((name, config))
    return tuple(found)
