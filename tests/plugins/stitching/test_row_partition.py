"""How blocks and lanes share rows, of whatever sizes: group norms, whose rows lie in each other and have pieces."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond_stitching.analysis import planner, verify
from fusiond_stitching.analysis.plan import RowPlace
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloModule

from .policies import LIMITS, MORE

ROWS = FusionPolicy(**MORE, packing=True, registers=True, shared_limit=48 << 10, multiprocessors=4)


def group_norm(images: int, pixels: int, groups: int, channels: int) -> HloModule:
    """x less the mean of its group of channels, by the sums of single channels."""
    lie = f"{images},{pixels},{groups},{channels}"
    return importer.read(f"""HloModule m

add {{ a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}

ENTRY main {{
  x = f32[{lie}] parameter(0)
  zero = f32[] constant(0)
  piece = f32[{images},{groups},{channels}] reduce(x, zero), dimensions={{1}}, to_apply=add
  sum = f32[{images},{groups}] reduce(piece, zero), dimensions={{2}}, to_apply=add
  wide = f32[{lie}] broadcast(sum), dimensions={{0,2}}
  y = f32[{lie}] subtract(x, wide)
  ROOT both = (f32[{lie}], f32[{images},{groups},{channels}]) tuple(y, piece)
}}
""", "m.hlo")  # fmt: skip


@given(
    sizes=st.tuples(
        st.integers(2, 5), st.integers(2, 40), st.integers(2, 6), st.sampled_from([4, 8, 12, 16, 20, 32, 48, 64, 96])
    ),
    threads=st.sampled_from([32, 64, 128, 256]),
    per_thread=st.sampled_from([1, 4, 16]),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_every_row_and_column_has_a_thread_and_all_parts_meet(sizes, threads, per_thread):
    module = group_norm(*sizes)
    policy = dataclasses.replace(ROWS, threads=threads, per_thread=per_thread)
    plan = planner.plan(module, policy, LIMITS).plan
    assert verify.problems(module, plan) == ()


@pytest.mark.parametrize("sizes", [(4, 16, 4, 16), (2, 40, 2, 8)])
def test_the_sums_of_a_group_end_one_sweep_and_the_result_is_another(sizes):
    module = group_norm(*sizes)
    (kernel,) = planner.plan(module, dataclasses.replace(ROWS, threads=64), LIMITS).plan.kernels
    (program,) = kernel.programs
    assert any(each.place is RowPlace.PIECE for each in program.stages)
    assert {each.sweep for each in program.stages} == {0, 1}
