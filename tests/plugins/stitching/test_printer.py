"""The printer: what it writes is the module again, to our reader and to XLA's own."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import fusiond_stitching.plugin as plugin
from fusiond_stitching.frontend import importer, printer
from fusiond_stitching.frontend.graph import HloModule

from . import oracle
from .graphs import modules

CATALOGUE = sorted(plugin.MODULES.glob("*.hlo"))

EVERYTHING = """HloModule everything

largest { v = f32[] parameter(0)
  i = s32[] parameter(1)
  w = f32[] parameter(2)
  j = s32[] parameter(3)
  more = pred[] compare(v, w), direction=GT
  value = f32[] select(more, v, w)
  index = s32[] select(more, i, j)
  ROOT both = (f32[], s32[]) tuple(value, index)
}

add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

keep { a = f32[] parameter(0)
  ROOT b = f32[] parameter(1)
}

ENTRY main {
  x = f32[5,7] parameter(0)
  at = s32[3,1] parameter(1)
  low = f32[] constant(-inf)
  zero = s32[] constant(0)
  places = s32[5,7] iota(), iota_dimension=1
  best = (f32[5], s32[5]) reduce(x, places, low, zero), dimensions={1}, to_apply=largest
  where = s32[5] get-tuple-element(best), index=1
  nil = f32[] constant(0)
  sums = f32[7] reduce(x, nil), dimensions={0}, to_apply=add
  wide = f32[5,7] broadcast(sums), dimensions={1}
  test = pred[5,7] compare(x, wide), direction=LE, type=TOTALORDER
  odd = pred[7] constant({true, false, true, false, true, false, true})
  odds = pred[5,7] broadcast(odd), dimensions={1}
  both = pred[5,7] and(test, odds)
  some = f32[5,7] select(both, x, wide)
  table = f32[2,3] constant({{0.1, -0, nan}, {inf, 1e-30, 3}})
  far = s64[2] constant({9007199254740993, -1})
  hollow = f32[2,0] constant({{}, {}})
  nothing = f32[0,2] constant({})
  cut = f32[2,3] slice(some), slice={[0:4:2], [1:7:2]}
  mixed = f32[2,3] add(cut, table)
  padded = f32[4,6] pad(mixed, nil), padding=1_1_0x-1_2_1
  turned = f32[6,4] transpose(padded), dimensions={1,0}
  back = f32[6,4] reverse(turned), dimensions={0}
  joined = f32[6,8] concatenate(turned, back), dimensions={1}
  rows = f32[3,7] gather(some, at), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,7}
  spread = f32[5,7] scatter(some, at, rows), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add
  last = f32[5,7] scatter(spread, at, rows), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=keep
  product = f32[5,5] dot(last, some), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  first = s32[1,1] slice(at), slice={[0:1], [0:1]}
  one = s32[] reshape(first)
  part = f32[2,5] dynamic-slice(product, one, zero), dynamic_slice_sizes={2,5}
  put = f32[5,5] dynamic-update-slice(product, part, zero, zero)
  less = f32[5,5] reduce-precision(put), exponent_bits=5, mantissa_bits=10
  flat = f32[25] reshape(less)
  whole = s32[25] convert(flat)
  ROOT all = (s32[5], f32[6,8], s32[25], s64[2], f32[5,7], f32[2,0], f32[0,2]) tuple(where, joined, whole, far, x, hollow, nothing)
}
"""  # noqa: E501


def same(one: HloModule, other: HloModule) -> bool:
    return (importer.digest(one), one.parameters, one.outputs) == (
        importer.digest(other),
        other.parameters,
        other.outputs,
    )


@pytest.mark.parametrize("path", CATALOGUE, ids=lambda path: path.stem)
def test_a_module_that_is_written_is_read_as_itself(path):
    module = importer.read(path.read_text(), path.stem)
    written = printer.written(module)
    again = importer.read(written, "written")
    assert same(again, module)
    assert again.name == module.name
    assert printer.written(again) == written


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(modules())
def test_so_is_any(given):
    module = importer.read(given, "random")
    assert same(importer.read(printer.written(module), "written"), module)


def test_xla_reads_the_same_module():
    """XLA's own parser and compiler, on what was written and on what was read."""
    module = importer.read(EVERYTHING, "everything")
    written = printer.written(module).replace("~", "_")  # its names have no tilde
    random = np.random.default_rng(3)
    inputs = [random.normal(size=(5, 7)).astype(np.float32), np.array([[4], [0], [4]], np.int32)]
    wanted = oracle.run(EVERYTHING, inputs)
    for mine, theirs in zip(oracle.run(written, inputs), wanted, strict=True):
        np.testing.assert_array_equal(mine.reshape(theirs.shape), theirs)


def test_what_no_text_can_say_is_an_error():
    module = importer.read("HloModule m\n\nENTRY main { x = f32[4] parameter(0)\n  ROOT y = f32[4] fft(x)\n}\n", "m")
    with pytest.raises(ValueError, match="fft 'y' is left to a library"):
        printer.written(module)
