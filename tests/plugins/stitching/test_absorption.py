"""What the launch of a scatter in place computes itself of what it reads."""

import pytest

from fusiond_stitching.analysis.absorption import absorbed
from fusiond_stitching.analysis.policy import FusionPolicy, unfused
from fusiond_stitching.frontend import importer, scatter_updates
from fusiond_stitching.frontend.graph import HloModule

from .policies import MORE


def scattered(*updates: str, outputs: str = "y") -> HloModule:
    """Rows of 64 added to a table, by an index for each: the lines give the updates `u`."""
    text = f"""HloModule m

add {{ a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}

ENTRY main {{
  table = f32[512,64] parameter(0)
  at = s32[8192,1] parameter(1)
  v = f32[8192] parameter(2)
  w = f32[8192,64] parameter(3)
  {updates[0]}
  {" ".join(updates[1:-1])}
  u = {updates[-1]}
  y = f32[512,64] scatter(table, at, u), update_window_dims={{1}}, inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=add
  ROOT out = (f32[512,64]{", f32[8192,64]" if "," in outputs else ""}) tuple({outputs})
}}
"""  # noqa: E501
    return scatter_updates.rewritten(importer.read(text, "m.hlo"), all_of_them=True, deterministic=False)


@pytest.mark.parametrize(
    ("cheap", "inside"),
    [("negate", True), ("exponential", False)],  # a costly value would be computed for each column of its row
)
def test_a_value_for_each_row_is_computed_by_the_updates_if_it_is_cheap(cheap, inside):
    module = scattered(
        f"e = f32[8192] {cheap}(v)", "s = f32[8192,64] broadcast(e), dimensions={0}", "f32[8192,64] multiply(s, w)"
    )
    assert module.in_place
    assert ("e" in absorbed(module, FusionPolicy(**MORE))) == inside
    assert "u" in absorbed(module, FusionPolicy(**MORE))
    assert absorbed(module, unfused()) == frozenset()


def test_what_is_a_result_too_stays_in_memory():
    module = scattered("e = f32[8192,64] negate(w)", "f32[8192,64] multiply(e, w)", outputs="y, u")
    assert "u" not in absorbed(module, FusionPolicy(**MORE))
