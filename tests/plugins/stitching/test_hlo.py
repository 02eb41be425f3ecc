"""HLO text: what is read, and one clear line for what is not."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond.model.errors import RequestError
from fusiond_stitching.frontend import hlo
from fusiond_stitching.frontend.hlo import ArrayShape, Several


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
        ("f32[] constant(inf)", (math.inf,)),
        ("f32[] constant(-inf)", (-math.inf,)),
        ("f32[2] constant({-0, 1e-3})", (-0.0, 0.0010000000474974513)),
        ("f32[] constant(0x1.8p+1)", (3.0,)),
        ("s32[2,2] constant({ { 1, -2 }, { 3, 0x10 } })", (1, -2, 3, 16)),
        ("pred[3] constant({1, false, true})", (True, False, True)),
        ("s64[] constant(-9223372036854775808)", (-(2**63),)),
        ("u64[] constant(18446744073709551615)", (2**64 - 1,)),
        ("f32[0,5] constant({})", ()),
        ("f32[2] constant({/*i=0*/ 1, /*i=1*/ 2})", (1.0, 2.0)),
        ("f32[] constant(1e39)", (math.inf,)),
    ],
)
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
