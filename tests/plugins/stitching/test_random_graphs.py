"""Random graphs under random policies and schedules: the stitched result is the unstitched one, and XLA's."""

import hashlib

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fusiond_stitching.analysis import planner
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloModule

from . import handmade, oracle
from .checking import Batch
from .graphs import modules
from .policies import LIMITS

BOTH = st.booleans()
POLICY = st.builds(
    FusionPolicy,
    threads=st.sampled_from([32, 64, 128]), grain=st.sampled_from([16, 64, 512, 8192]),
    shared_limit=st.sampled_from([1024, 2048, 20480]), layers=BOTH, merge=BOTH, recompute=BOTH, middle=BOTH, spill=BOTH,
    warp=BOTH, packing=BOTH, barriers=BOTH, stitch_dots=BOTH, registers=BOTH, per_thread=st.sampled_from([1, 4, 16]),
)  # fmt: skip
SLOW = settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),  # each try is a build: shrinking would take many minutes
)
FAST = settings(SLOW, max_examples=1)


class Drawn(dict[str, float]):
    """A performance library that knows everything, and nothing true: any schedule may be the best."""

    def __init__(self, seed: int) -> None:
        super().__init__({"seed": seed})

    def get(self, key, default=None):
        return 1.0 + hashlib.sha256(f"{self['seed']} {key}".encode()).digest()[0]


def inputs(module: HloModule) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(11)
    found = []
    for name in module.parameters:
        each = module[name]
        if each.dtype == "s32":
            found.append(random.integers(-9, 9, each.dims, dtype=np.int32))
        else:
            found.append(random.uniform(-1, 1, each.dims).astype(np.float32))
    return tuple(found)


def check(runner, text: str, policy: FusionPolicy, seed: int, *, unfused: bool) -> None:
    module = importer.read(text, "random.hlo")
    given = inputs(module)
    names = tuple(f"out_{place}" for place, _ in enumerate(module.outputs))
    batch = Batch(text, module, given, names, tuple(oracle.run(text, given)))
    planned = planner.plan(module, policy, LIMITS, Drawn(seed))
    assert planned.problems == ()
    batch.check(runner, planned.plan, seed=seed)
    if unfused:
        batch.check(runner, handmade.unfused(module), seed=seed)


@given(text=modules(), policy=POLICY, seed=st.integers(0, 99))
@FAST
def test_whole_numbers(runner, text, policy, seed):
    check(runner, text, policy, seed, unfused=True)


@pytest.mark.slow
@given(text=modules(most=40), policy=POLICY, seed=st.integers(0, 99))
@SLOW
def test_many_whole_numbers(runner, text, policy, seed):
    check(runner, text, policy, seed, unfused=False)


@pytest.mark.slow
@given(text=modules(dtype="f32"), policy=POLICY, seed=st.integers(0, 99))
@settings(SLOW, max_examples=5)
def test_floats(runner, text, policy, seed):
    check(runner, text, policy, seed, unfused=False)
