"""Keeps what the programs of a job ask of the GPU, to explain why one is faster.

Li et al. (CGO 2022, section IV-A) explain it by issue slots and stalls.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fusiond.build import nvcc
from fusiond.devices.counting import cached, child_process
from fusiond.devices.counting.model import H100, Gpu
from fusiond.devices.cuda import counters
from fusiond.model.errors import FusiondError
from fusiond.model.nouns import COUNTED, MEASURED, Value
from fusiond.model.outcomes import Outcome, Trial
from fusiond.strategy.space import chooser
from fusiond.tuning import counts
from fusiond.tuning.context import Context

log = logging.getLogger(__name__)


def keep(context: Context) -> None:
    """Where the device is a GPU that is counted for, what was counted of each candidate is kept; on a GPU, what was
    counted for both sides of the answer, and what its counters say of them where Nsight Compute is there and the job is
    no part of another. A job does not fail for it, and nothing is counted here."""
    gpu = counts.like(context.device.model, context.device.arch)
    try:
        if context.analysis.scrutiny is not None:
            _of_variants(context, gpu or H100)
        if gpu is None:
            return
        if context.device.evidence == COUNTED:
            _of_all(context, gpu)
        else:
            _of_answer(context, gpu)
    except FusiondError as problem:
        log.warning("no profiles of %s are kept: %s", context.prepared.workload.name, problem)


def _of_all(context: Context, gpu: Gpu) -> None:
    trials = context.store.trials(context.row.id, None)
    keys = {each.program_key for each in trials if each.outcome is Outcome.MEASURED and each.program_key is not None}
    have = context.store.profiles(keys, gpu.name, COUNTED)
    for key in sorted(keys - have.keys()):
        program = context.store.program(key)
        if program is not None and (rows := cached.known(program, gpu)) is not None:
            context.store.save_profile(key, gpu.name, COUNTED, rows)


def _of_variants(context: Context, gpu: Gpu) -> None:
    """What the best of each implementation would pay: one that nobody vouches for is looked at from all sides."""
    trials = [each for each in context.store.trials(context.row.id) if each.ratio is not None and each.program_key]
    name = chooser(each.config for each in trials)
    best: dict[Value, Trial] = {}
    for each in sorted(trials, key=lambda each: -(each.ratio or 0.0)):
        best.setdefault(each.config.get(name or ""), each)
    keys = {key for each in best.values() if (key := each.program_key) is not None}
    missing = sorted(keys - context.store.profiles(keys, gpu.name, COUNTED).keys())
    programs = {key: program for key in missing if (program := context.store.program(key)) is not None}
    if not programs or nvcc.find() is None:
        return
    context.phase("counting", f"what each variant would pay on {gpu.name}")
    rows = child_process.counted(programs, model=gpu.name)
    for key in programs:
        context.store.save_profile(key, gpu.name, COUNTED, [each for each in rows if each["program"] == key])


def _of_answer(context: Context, gpu: Gpu) -> None:
    record = context.store.record(context.prepared.workload.key, context.device.key, context.search.cache)
    if record is None:
        return
    for label, key in (("native", record.baseline_program_key), ("fused", record.program_key)):
        if key is None:
            continue
        rows: Sequence[Mapping[str, Any]] = [each for each in record.counted if each["program"] == label]
        if rows:
            context.store.save_profile(key, gpu.name, COUNTED, rows)
        known = context.store.profiles([key], context.device.key, MEASURED)
        # Nsight Compute takes many seconds for a program, and a job may have twenty parts.
        silent = known or context.row.parent is not None or counters.missing()
        program = None if silent else context.store.program(key)
        if program is not None:
            context.phase("counters", f"of the {label} program")
            found = counters.of_program(context.provider, context.device, program)
            if found["reason"] is None:
                context.store.save_profile(key, context.device.key, MEASURED, [found])
            else:
                log.info("no hardware counters of %s: %s", context.prepared.workload.name, found["reason"])
