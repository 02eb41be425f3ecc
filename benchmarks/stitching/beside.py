"""Our fastest plan and XLA's executable, in turn, in one run.

Compared are the fusable portions: our counted kernels, timed as everywhere in fusiond, and the sum over XLA's own
kernels. Whole modules are not compared as they stand, since our dots are plain kernels and XLA's are a library's: the
end-to-end gain is that of our fusable portion beside XLA's library kernels, over XLA's whole.

    A B A B ...   A: a batch of samples of ours   B: some profiled calls of XLA's
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.rivals import base as rivals
from benchmarks.stitching import modules, xla
from benchmarks.stitching.xla import Array, Profile
from fusiond.devices.timing import Sampling
from fusiond.model.inputs.fills import fill
from fusiond.model.outcomes import MeasureFailed, Purpose
from fusiond.model.program import Program
from fusiond.tuning.measuring import Measurer, References
from fusiond_stitching.frontend.graph import HloModule

CLOSE = {"cuda": 0.02, "cpu": 1e-4}
"""How far an output may be from ours, over its largest element: on a GPU, XLA's dots may use tensor cores, whose
products have ten bits (TF32)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Our fusable portion and XLA's call, one after the other."""

    ours_us: float
    theirs: Profile


def row(
    backend: xla.Backend, measurer: Measurer, name: str, program: Program, references: References, *, quick: bool
) -> dict[str, Any]:
    """`xla` and `over_xla` of a module's row; a problem where XLA cannot be timed, or computes something else.
    `program` is our fastest plan, `references` are the outputs of one kernel per instruction."""
    found: dict[str, Any] = dict(backend.described)
    module = modules.module(name)
    try:
        executable = backend.compile(modules.text(name))
        seed, path = references.of[0]
        arguments = executable.given(inputs(module, program, seed))
        with np.load(path) as right:
            found["difference"] = difference(module, program, right, executable.outputs(arguments))
        if not found["difference"] <= CLOSE[backend.platform]:
            return {"xla": found | {"problem": f"its outputs are {found['difference']:.2g} from ours"}}
        calls = 10 if quick else 100
        found["call_us"] = round(executable.call_us(arguments, calls), 2)
        rounds = []
        for _ in range(2 if quick else 7):
            ours = measurer.sample(program, None, Sampling(purpose=Purpose.BASELINE), references)
            if isinstance(ours, MeasureFailed):
                return {"xla": found | {"problem": f"ours, {ours.outcome.value}: {ours.reason}"}}
            rounds.append(Round(ours_us=ours.time_us, theirs=executable.profile(arguments, calls)))
    except xla.Unavailable as problem:
        return {"xla": found | {"problem": str(problem)}}
    return {"xla": found | times(rounds), "over_xla": gains(rounds)}


def inputs(module: HloModule, program: Program, seed: int) -> list[Array]:
    """What our runs with this seed compute on, in the order of the parameters."""
    return [fill(program.buffer(module.buffer_of(each)), seed).reshape(module[each].dims) for each in module.parameters]


def difference(module: HloModule, program: Program, right: Mapping[str, Array], outputs: Sequence[Array]) -> float:
    """The worst over the outputs (`benchmarks.rivals.base.difference`); infinite where an output is missing."""
    if len(outputs) != len(module.outputs):
        return math.inf
    worst = 0.0
    for name, theirs in zip(module.outputs, outputs, strict=True):
        buffer = program.buffer(module.buffer_of(name))
        worst = max(worst, rivals.difference(buffer, right[buffer.name], theirs))
    return worst


def times(rounds: Sequence[Round]) -> dict[str, Any]:
    """Medians over the rounds, and what was launched for one call."""
    return {
        "fusable_us": round(statistics.median(each.theirs.fusable_us for each in rounds), 2),
        "library_us": round(statistics.median(each.theirs.library_us for each in rounds), 2),
        "whole_us": round(statistics.median(each.theirs.whole_us for each in rounds), 2),
        "kernels": rounds[-1].theirs.fusable,
        "library_calls": rounds[-1].theirs.library,
        "rounds": [
            {"ours_us": round(each.ours_us, 2), "fusable_us": round(each.theirs.fusable_us, 2),
             "library_us": round(each.theirs.library_us, 2)}
            for each in rounds
        ],
    }  # fmt: skip


def gains(rounds: Sequence[Round]) -> dict[str, Any]:
    """Over XLA: medians of the rounds' log ratios. `fusion_speedup` is of the fusable portion, `end_to_end` with XLA's
    library kernels on both sides; `interval` are the smallest and the largest speed-up of a round. A module that XLA
    gives to libraries whole has none."""
    if any(each.theirs.fusable_us <= 0 for each in rounds):
        return {}
    speedups = [each.theirs.fusable_us / each.ours_us for each in rounds]
    whole = [each.theirs.whole_us / (each.ours_us + each.theirs.library_us) for each in rounds]
    return {
        "fusion_speedup": round(_median(speedups), 4),
        "interval": [round(min(speedups), 4), round(max(speedups), 4)],
        "end_to_end": round(_median(whole), 4),
    }


def _median(ratios: Sequence[float]) -> float:
    return math.exp(statistics.median(math.log(each) for each in ratios))
