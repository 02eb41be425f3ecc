"""HLO text: what is read, and one clear line for what is not."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fusiond_stitching.plugin as plugin
from fusiond.model.errors import RequestError
from fusiond.requests.planning import prepare
from fusiond_stitching.frontend import hlo, importer, printer, stablehlo
from fusiond_stitching.frontend.graph import HloModule
from fusiond_stitching.frontend.hlo import ArrayShape, Several

from . import oracle
from .graphs import modules


def entry(*lines: str) -> str:
    return "\n".join(["HloModule m", "ENTRY main {", *lines, "}", ""])


def only(line: str) -> hlo.Raw:
    raw = hlo.parse(entry(line), "m.hlo")
    return raw.computations[raw.entry].instructions[-1]


def test_what_jax_prints_and_what_xla_dumps_are_the_same():
    plain = """\
HloModule jit_f, entry_computation_layout={(f32[4,3]{1,0})->f32[4]{0}}

region_0.1 {
  a.1 = f32[] parameter(0)
  b.1 = f32[] parameter(1)
  ROOT c.1 = f32[] add(a.1, b.1)
}

ENTRY main.2 {
  x.1 = f32[4,3]{1,0} parameter(0)
  zero.1 = f32[] constant(0)
  ROOT r.1 = f32[4]{0} reduce(x.1, zero.1), dimensions={1}, to_apply=region_0.1
}
"""
    dumped = """\
HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[4,3]{1,0})->f32[4]{0}}

%region_0.1 (a.1: f32[], b.1: f32[]) -> f32[] {
  %a.1 = f32[] parameter(0), metadata={op_name="a"}
  %b.1 = f32[] parameter(1)
  ROOT %c.1 = f32[] add(f32[] %a.1, f32[] %b.1), metadata={op_type="add" source_file="x{y}.py" source_line=3}
}

ENTRY %main.2 (x.1: f32[4,3]) -> f32[4] {
  %x.1 = f32[4,3]{1,0} parameter(0), sharding={replicated}
  %zero.1 = f32[] constant(0)
  ROOT %r.1 = f32[4]{0} reduce(f32[4,3]{1,0} %x.1,
      f32[] %zero.1), dimensions={1}, to_apply=%region_0.1
}
"""
    first, second = hlo.parse(plain, "a"), hlo.parse(dumped, "b")
    assert (first.name, first.entry) == (second.name, second.entry) == ("jit_f", "main.2")
    for name, computation in first.computations.items():
        other = second.computations[name]
        assert computation.root == other.root
        for mine, theirs in zip(computation.instructions, other.instructions, strict=True):
            assert (mine.name, mine.opcode, mine.shape, mine.operands) == (
                theirs.name, theirs.opcode, theirs.shape, theirs.operands,
            )  # fmt: skip
    reduce = second.computations["main.2"].instructions[-1]
    assert reduce.integers("dimensions") == (1,)
    assert reduce.called("to_apply") == "region_0.1"
    assert reduce.where == "b:12"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("f32[] constant(inf)", (math.inf,)), ("f32[] constant(-inf)", (-math.inf,)),
        ("f32[2] constant({-0, 1e-3})", (-0.0, 0.0010000000474974513)), ("f32[] constant(0x1.8p+1)", (3.0,)),
        ("s32[2,2] constant({ { 1, -2 }, { 3, 0x10 } })", (1, -2, 3, 16)),
        ("pred[3] constant({1, false, true})", (True, False, True)),
        ("s64[] constant(-9223372036854775808)", (-(2**63),)), ("u64[] constant(18446744073709551615)", (2**64 - 1,)),
        ("f32[0,5] constant({})", ()), ("f32[2] constant({/*i=0*/ 1, /*i=1*/ 2})", (1.0, 2.0)),
        ("f32[] constant(1e39)", (math.inf,)),
    ],
)  # fmt: skip
def test_constants(text, values):
    found = hlo.literal(only(f"  ROOT c.1 = {text}"))
    assert found == values
    assert [math.copysign(1, each) for each in found] == [math.copysign(1, each) for each in values]


def test_a_constant_that_is_nan():
    for text in ("nan", "-nan", "nan(0x7fc00001)"):
        assert math.isnan(hlo.literal(only(f"  ROOT c.1 = f32[] constant({text})"))[0])


@given(st.floats(width=32, allow_nan=False))
@settings(max_examples=100, deadline=None)
def test_nine_digits_name_one_float32(value):
    """XLA prints float32 with nine significant digits."""
    assert hlo.literal(only(f"  ROOT c.1 = f32[] constant({value:.9g})")) == (value,)


def test_shapes_layouts_and_attributes():
    raw = only('  ROOT r.1 = (f32[2,3]{0,1}, (s32[], bf16[7]{0})) custom-call(), custom_call_target="a,b={c}"')
    assert raw.shape == Several(
        (ArrayShape("f32", (2, 3), (0, 1)), Several((ArrayShape("s32", ()), ArrayShape("bf16", (7,), (0,)))))
    )
    assert raw.text("custom_call_target") == '"a,b={c}"'
    assert not raw.shape.members[0].plain
    assert str(raw.shape) == "(f32[2,3], (s32[], bf16[7]))"
    raw = only("  ROOT s.1 = f32[1,2] slice(), slice={[0:5:2], [1:3]}, padding=0_-1x2_0_1")
    assert raw.slices() == ((0, 5, 2), (1, 3, 1))
    assert raw.padding() == ((0, -1, 0), (2, 0, 1))


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", None, "empty"),
        ("HloModule m\nf {\n  ROOT a = f32[] parameter(0)\n}\n", None, "no ENTRY"),
        ("HloModule m\n  a = f32[] parameter(0)\n", 2, "outside a computation"),
        ("HloModule m\nENTRY f {\n  ROOT a = f32[] parameter(0)\n", 2, "no closing bracket"),
        ("HloModule m\nENTRY f {\n}\n", 2, "empty"),
        (entry("  ROOT a = f32[ parameter(0)"), 3, ""),
        (entry("  ROOT a = f32[?] parameter(0)"), 3, "fixed sizes"),
        (entry("  ROOT a = f32[<=4] parameter(0)"), 3, "fixed sizes"),
        (entry("  ROOT a = f32[2,2]{1,1} parameter(0)"), 3, "layout"),
        (entry("  ROOT a = f32[8,128]{1,0:T(8,128)} parameter(0)"), 3, "tiled"),
        (entry("  ROOT a = f32[] add(b, c) nonsense"), 3, "not understood"),
        (entry("  ROOT a = f32[] add(b, c"), 2, "no closing bracket"),
    ],
)
def test_what_is_no_hlo_is_told_with_its_line(text, line, said):
    with pytest.raises(RequestError) as caught:
        hlo.parse(text, "m.hlo")
    message = str(caught.value)
    assert said in message
    assert message.startswith("m.hlo" if line is None else f"m.hlo:{line}:")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("f32[64,64] constant({...})", "--xla_dump_large_constants"),
        ("f32[3] constant({1, 2})", "2 values for f32[3], which has 3"),
        ("pred[] constant(2)", "neither true nor false"),
        ("(f32[], f32[]) constant((1, 2))", "is a tuple; expected an array"),
    ],
)
def test_constants_that_are_refused(text, said):
    with pytest.raises(RequestError, match=r"^m.hlo:3: constant 'c.1': ") as caught:
        hlo.literal(only(f"  ROOT c.1 = {text}"))
    assert said in str(caught.value)


@given(st.text(alphabet='HloModule mENTRY{}()[]=,f32s\n %.0x19-"/*', max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_refused(text):
    for whole in (text, "HloModule m\n" + text, entry(text)):
        try:
            hlo.parse(whole, "m.hlo")
        except RequestError as problem:
            assert str(problem).startswith("m.hlo")


# --- the printer ----------------------------------------------------------------------------------------


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


# --- stableHLO ------------------------------------------------------------------------------------------


jax = pytest.importorskip("jax", reason="StableHLO is read through jaxlib")
import jax.numpy as jnp  # noqa: E402

from .jobs import job, registry  # noqa: E402


def lowered() -> Any:
    table = np.arange(300, dtype=np.float32).reshape(3, 100)

    def function(x: Any, y: Any) -> Any:
        return jax.nn.softmax(x @ y + table, axis=-1).astype(jnp.bfloat16), jnp.max(x)

    return jax.jit(function).lower(jnp.zeros((3, 8)), jnp.zeros((8, 100)))


def test_it_is_what_hlo_says() -> None:
    text = lowered().as_text()
    assert stablehlo.is_text(text)
    wanted = importer.read(lowered().as_text(dialect="hlo"), "m.hlo")
    found = importer.read(stablehlo.to_hlo(text, "m.mlir"), "m.mlir")
    one, other = ([(each.opcode, each.dtype, each.dims) for each in made.instructions] for made in (found, wanted))
    assert one == other
    assert "299" in stablehlo.to_hlo(text, "m.mlir")  # the last element of a large constant


def test_a_job_takes_it_from_a_file_and_inline(tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(f"// printed by jax\n{lowered().as_text()}")
    inline = "module: |\n" + "\n".join(f"  {line}" for line in lowered().as_text().splitlines())
    keys = {
        prepare(registry(), job(text, str(tmp_path / "job.yaml"))).workload.content_key
        for text in ("module: ./m.mlir", inline)
    }
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("stablehlo.add", "stablehlo.ad"), "jaxlib cannot read this module"),
        (lambda text: text.replace("dense<", "dense_resource<__elided__> // <", 1), "its large constants are not"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(change: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said) as found:
        stablehlo.to_hlo(change(lowered().as_text()), "m.mlir")
    assert "\n" not in str(found.value)
    assert str(found.value).startswith("m.mlir: ")


def test_without_jaxlib_it_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stablehlo, "_converter", lambda: None)
    with pytest.raises(RequestError, match="pip install jaxlib, or print HLO text instead"):
        stablehlo.to_hlo(lowered().as_text(), "m.mlir")


@pytest.mark.parametrize("text", ["HloModule m\n", "int main() {}", "", "modules", "// module\nHloModule m"])
def test_what_is_no_mlir_is_read_as_before(text: str) -> None:
    assert not stablehlo.is_text(text)
