"""How far the DRAM bytes of a launch may be off, whatever the order of its blocks.

No order reads less than every distinct sector once (but for what an earlier launch left in the L2), and none more than
every sector of every access; docs/counting.md says where more is believed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fusiond.devices.counting.sampling import LaunchCounts

_SECTOR_BYTES = 32
_NEAR = 0.05  #: Of either end, relative
_DENSE = 0.75  #: Bytes asked for against those of the sectors; a misaligned access of a warp has 0.8
_DOUBT = 2.0  #: What sampling says of itself is taken so many times where part is found in the L2, and 5 % more
_SLACK = 0.05  #: Of any error: what it is told from is sampled, too
MOST = 1.0  #: A larger error is none that anybody could use


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """To and from DRAM, bytes."""

    bytes: int  #: As near as one can tell
    least: int  #: For bounds: what no order of the blocks goes below, where `error` is None
    error: float | None  #: Relative, of all that is counted of the launch; None: unknown


def traffic(result: LaunchCounts, counted: int, l2_bytes: int, *, first: bool, last: bool, known: bool) -> Traffic:
    """Of a launch that the L2's account says `counted` bytes of. `first` and `last`: of the program; `known`: whether
    the L2 was as it would be when it began, and until its lines were written back."""
    if known and result.sampled == 1.0 and result.alike:
        return Traffic(bytes=counted, least=counted, error=result.error)
    shared = _may_share(result)
    least, most = _between(result, shared, 0 if first else l2_bytes, 0 if last else l2_bytes)
    if result.sampled == 1.0 and result.alike:  # two LRUs that run the same differ by what one of them holds
        least, most = max(least, counted - 2 * l2_bytes), min(most, counted + 2 * l2_bytes)
    found = min(max(counted, least), most)
    certain = max((found - least) / least if least else math.inf if found else 0.0, (most - found) / max(most, 1))
    near = found <= (1 + _NEAR) * least or found >= (1 - _NEAR) * most
    error = certain
    if known and result.settled and not result.overlapping:  # places that overlap find less in the L2 than they would
        error = min(certain, result.dram_error if near else _DOUBT * result.dram_error + _NEAR)
    if shared:  # what was not run may touch the same again
        distinct = result.compulsory_read_sectors + result.compulsory_write_sectors
        seen = result.seen_read_sectors + result.seen_write_sectors
        error = max(error, distinct / max(seen, 1) - 1)
    error = max(error, result.error)
    if error > MOST:
        return Traffic(bytes=found, least=least, error=None)
    return Traffic(bytes=found, least=found, error=error * (1 + _SLACK))


def _may_share(result: LaunchCounts) -> bool:
    """Whether blocks that were not run may touch the sectors of those that were."""
    total = {name: int(result.counts[name].sum()) for name in result.counts.dtype.names or ()}
    asked = total["read_bytes"] + total["write_bytes"]
    # What lies between the bytes that are asked for may be asked for by blocks that are far away.
    sparse = asked < _DENSE * _SECTOR_BYTES * (total["read_sectors"] + total["write_sectors"])
    return result.sampled < 1.0 and (result.steered or result.overlapping or sparse)


def _between(result: LaunchCounts, shared: bool, there: int, stays: int) -> tuple[int, int]:
    """The least and the most bytes a launch can have read and written: each sector that it touches once, less those
    that were `there` before it and those that stay; and every sector that it asks for."""
    read = _SECTOR_BYTES * (result.seen_read_sectors if shared else result.compulsory_read_sectors)
    written = _SECTOR_BYTES * (result.seen_write_sectors if shared else result.compulsory_write_sectors)
    least = max(0, read - there) + max(0, written - stays)
    names = ("read_sectors", "write_sectors", "atomic_sectors")
    return least, max(least, _SECTOR_BYTES * sum(int(result.counts[name].sum()) for name in names))


def known(ran: Sequence[LaunchCounts]) -> list[bool]:
    """Of each launch, whether the L2 was as it would be from its begin until nothing of it was left there: until then
    launches that were not run as they would be may have left others of its lines, or written them back."""
    run = [each.settled and (each.sampled == 1.0 or each.renewed) for each in ran]
    before, exact = [], True
    for each, ready in zip(ran, run, strict=True):
        before.append(exact)
        exact = ready and (exact or each.renewed)
    found, behind = list(before), True
    for k in reversed(range(len(ran))):
        found[k] &= behind
        behind = run[k] and (behind or ran[k].renewed)
    return found
