"""A multiprocessor's limits per architecture, for GPUs that are not there.

From the table "Technical Specifications per Compute Capability" of the CUDA programming guide. Where a device *is*
there, its own attributes are asked instead (`fusiond.devices.cuda.provider`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fusiond.model.errors import RequestError
from fusiond.model.nouns import DeviceLimits

STATIC_SHARED_BYTES = 48 * 1024
"""What the static `__shared__` arrays of a kernel may have together, and what a launch gets without asking for more."""
MOST_SHARED_BYTES = 227 * 1024  #: Of a block, on the architectures that have most (9.0 and 10.x)
MOST_THREADS = 1024  #: Of a block
MOST_GRID_Y = 65535
BARRIER_IDS = 16  #: Named barriers of a block; `__syncthreads()` is number 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One column of the guide's table, with a representative board for the number of multiprocessors."""

    threads: int
    blocks: int
    shared_kb: int  #: Per multiprocessor; a block gets 1 KB less, but all of it on 7.5
    board: str
    multiprocessors: int
    barriers: int = 0  #: Named barriers per multiprocessor, as cuda_occupancy.h has them: from 9.0 on


_TABLE: Mapping[str, _Row] = {
    "sm_75": _Row(threads=1024, blocks=16, shared_kb=64, board="T4", multiprocessors=40),
    "sm_80": _Row(threads=2048, blocks=32, shared_kb=164, board="A100", multiprocessors=108),
    "sm_86": _Row(threads=1536, blocks=16, shared_kb=100, board="A40", multiprocessors=84),
    "sm_87": _Row(threads=1536, blocks=16, shared_kb=164, board="Jetson AGX Orin", multiprocessors=16),
    "sm_88": _Row(threads=1536, blocks=16, shared_kb=100, board="as sm_86", multiprocessors=84),
    "sm_89": _Row(threads=1536, blocks=24, shared_kb=100, board="L40S", multiprocessors=142),
    "sm_90": _Row(threads=2048, blocks=32, shared_kb=228, board="H100 SXM", multiprocessors=132, barriers=64),
    "sm_100": _Row(threads=2048, blocks=32, shared_kb=228, board="B200", multiprocessors=148, barriers=64),
    "sm_103": _Row(threads=2048, blocks=32, shared_kb=228, board="B300", multiprocessors=148, barriers=64),
    "sm_110": _Row(threads=1536, blocks=24, shared_kb=228, board="Jetson Thor", multiprocessors=20, barriers=24),
    "sm_120": _Row(
        threads=1536, blocks=24, shared_kb=100, board="RTX PRO 6000 Blackwell", multiprocessors=188, barriers=24
    ),
    "sm_121": _Row(threads=1536, blocks=24, shared_kb=100, board="DGX Spark", multiprocessors=48, barriers=24),
}

ARCHS: tuple[str, ...] = tuple(_TABLE)  #: The architectures that fusiond has limits for, oldest first


def limits(arch: str, *, multiprocessors: int | None = None) -> DeviceLimits:
    """The limits of an architecture such as `sm_90` (`sm_90a` and `sm_90f` are the same silicon).

    `multiprocessors` is a board's, not an architecture's: without it, a representative board's is used.
    Raises RequestError for an architecture that is not in the table."""
    row = _TABLE.get(re.sub(r"[af]$", "", arch))
    if row is None:
        raise RequestError(f"unknown architecture {arch[:40]!r}; known: {', '.join(ARCHS)}")
    first = arch == "sm_75"
    reserved = 0 if first else 1024
    shared = row.shared_kb * 1024
    return DeviceLimits(
        multiprocessors=multiprocessors or row.multiprocessors,
        shared_bytes_per_sm=shared,
        shared_bytes_per_block=shared - reserved,
        shared_bytes_reserved=reserved,
        shared_granularity_bytes=256 if first else 128,
        threads_per_sm=row.threads,
        blocks_per_sm=row.blocks,
        barriers_per_sm=row.barriers,
    )
