"""Counts of both sides of an answer on the processor, shown beside times and never in their place."""

import itertools
import logging
import re
from collections.abc import Mapping
from typing import Any

from fusiond.devices.counting import child_process
from fusiond.devices.counting.model import GPUS, Gpu
from fusiond.model.errors import FusiondError
from fusiond.model.program import Program
from fusiond.tuning.context import Context

MARGIN = 1.2
"""By how much one bound must be below another for `promising`; no measured times support a smaller one yet."""

log = logging.getLogger(__name__)


def like(model: str, arch: str) -> Gpu | None:
    """The GPU in the table that a device is, by what its driver calls it, or else the one of its architecture."""
    words = re.split(r"[^a-z0-9]+", model.lower())
    said = {*words, *(one + other for one, other in itertools.pairwise(words))}  # `RTX 4090`
    named = [each for each in GPUS.values() if each.name in said]
    return next(iter([*named, *(each for each in GPUS.values() if each.arch == arch)]), None)


def of_answer(context: Context, native: Program, fused: Program) -> tuple[Mapping[str, Any], ...]:
    """Rows for `native` and `fused` on the job's GPU; none where it is none, or nothing can be counted."""
    gpu = like(context.device.model, context.device.arch)
    if gpu is None:
        return ()
    context.phase("counting", f"what both would pay on {gpu.name}")
    try:
        return tuple(child_process.counted({"native": native, "fused": fused}, model=gpu.name))
    except FusiondError as problem:
        log.warning("%s is not counted: %s", context.prepared.workload.name, problem)
        return ()
