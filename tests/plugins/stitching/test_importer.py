"""Raw HLO to the graph: against XLA on the processor."""

import numpy as np
import pytest

from fusiond.model.errors import RequestError
from fusiond_stitching.frontend import importer
from fusiond_stitching.frontend.graph import HloModule

from . import handmade, oracle
from .checking import Batch

pytestmark = pytest.mark.usefixtures("sorts_are_boundaries")

ADD = """\
add_f32 {
  a.1 = f32[] parameter(0)
  a.2 = f32[] parameter(1)
  ROOT a.3 = f32[] add(a.1, a.2)
}
"""


def entry(*lines: str) -> str:
    return "\n".join(["HloModule m", "", ADD, "ENTRY main {", *(f"  {each}" for each in lines), "}", ""])


SAME = {
    "a call": [
        "x = f32[4,6]{1,0} parameter(0)", "z = f32[] constant(0)",
        "s = f32[4]{0} reduce(x, z), dimensions={1}, to_apply=add_f32", "t = f32[] reduce(s, z), dimensions={0}, "
        "to_apply=add_f32", "ROOT c = f32[] call(t, z), to_apply=add_f32",
    ],
    "tuples in tuples": [
        "x = f32[4,6]{1,0} parameter(0)", "n = f32[4,6]{1,0} negate(x)",
        "t = (f32[4,6]{1,0}, f32[4,6]{1,0}) tuple(x, n)",
        "u = ((f32[4,6]{1,0}, f32[4,6]{1,0}), f32[4,6]{1,0}) tuple(t, x)",
        "v = (f32[4,6]{1,0}, f32[4,6]{1,0}) get-tuple-element(u), index=0",
        "w = f32[4,6]{1,0} get-tuple-element(v), index=1", "ROOT r = (f32[4,6]{1,0}, f32[4,6]{1,0}) tuple(w, x)",
    ],
    "an output twice, a parameter, a constant": [
        "x = f32[3]{0} parameter(0)", "n = f32[3]{0} negate(x)", "c = f32[3]{0} constant({1, 2, 3})",
        "ROOT r = (f32[3]{0}, f32[3]{0}, f32[3]{0}, f32[3]{0}) tuple(n, n, x, c)",
    ],
    "transposes in front of a dot": [
        "x = f32[3,4]{1,0} parameter(0)", "y = f32[5,4]{1,0} parameter(1)",
        "t = f32[4,3]{1,0} transpose(x), dimensions={1,0}", "u = f32[4,5]{1,0} transpose(y), dimensions={1,0}",
        "d = f32[3,5]{1,0} dot(t, u), lhs_contracting_dims={0}, rhs_contracting_dims={0}",
        "ROOT n = f32[3,5]{1,0} negate(d)",
    ],
    "a batched dot of transposes": [
        "x = f32[2,3,4]{2,1,0} parameter(0)", "y = f32[2,5,4]{2,1,0} parameter(1)",
        "t = f32[4,2,3]{2,1,0} transpose(x), dimensions={2,0,1}",
        "d = f32[2,3,5]{2,1,0} dot(t, y), lhs_batch_dims={1}, rhs_batch_dims={0}, lhs_contracting_dims={0}, "
        "rhs_contracting_dims={2}", "ROOT n = f32[2,3,5]{2,1,0} negate(d)",
    ],
    "a transpose behind a dot": [
        "x = f32[3,4]{1,0} parameter(0)", "y = f32[4,5]{1,0} parameter(1)",
        "d = f32[3,5]{1,0} dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "t = f32[5,3]{1,0} transpose(d), dimensions={1,0}", "ROOT n = f32[5,3]{1,0} negate(t)",
    ],
    "a transpose behind a batched dot": [
        "x = f32[2,3,6,4]{3,2,1,0} parameter(0)", "y = f32[4,2,5]{2,1,0} parameter(1)",
        "d = f32[2,3,6,5]{3,2,1,0} dot(x, y), lhs_batch_dims={0}, rhs_batch_dims={1}, lhs_contracting_dims={3}, "
        "rhs_contracting_dims={0}", "t = f32[2,5,3,6]{3,2,1,0} transpose(d), dimensions={0,3,1,2}",
        "ROOT n = f32[2,5,3,6]{3,2,1,0} negate(t)",
    ],
    "other transposes behind dots": [
        "x = f32[2,3,4]{2,1,0} parameter(0)", "y = f32[2,4,5]{2,1,0} parameter(1)",
        "d = f32[2,3,5]{2,1,0} dot(x, y), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, "
        "rhs_contracting_dims={1}", "t = f32[3,2,5]{2,1,0} transpose(d), dimensions={1,0,2}",
        "z = f32[4,3]{1,0} parameter(2)", "e = f32[2,5,3]{2,1,0} dot(y, z), lhs_contracting_dims={1}, "
        "rhs_contracting_dims={0}", "u = f32[3,5,2]{2,1,0} transpose(e), dimensions={2,1,0}",
        "n = f32[2,5,3]{2,1,0} negate(e)",
        "ROOT r = (f32[3,2,5]{2,1,0}, f32[3,5,2]{2,1,0}, f32[2,5,3]{2,1,0}) tuple(t, u, n)",
    ],
    "dimensions of one": [
        "x = f32[4,6]{1,0} parameter(0)", "z = f32[] constant(0)",
        "s = f32[4]{0} reduce(x, z), dimensions={1}, to_apply=add_f32", "k = f32[4,1]{1,0} reshape(s)",
        "b = f32[4,1,6]{2,1,0} broadcast(k), dimensions={0,1}", "y = f32[4,1,6]{2,1,0} reshape(x)",
        "a = f32[4,1,6]{2,1,0} add(b, y)", "ROOT t = f32[1,6,4]{2,1,0} transpose(a), dimensions={1,2,0}",
    ],
    "a reduce over a dimension of one": ["x = f32[4,1]{1,0} parameter(0)", "z = f32[] constant(0)",
                                         "ROOT s = f32[4]{0} reduce(x, z), dimensions={1}, to_apply=add_f32"],
    "equal instructions": ["x = f32[4]{0} parameter(0)", "a = f32[4]{0} negate(x)", "b = f32[4]{0} negate(x)",
                           "c = f32[4]{0} copy(a)", "ROOT d = f32[4]{0} multiply(c, b)"],
}  # fmt: skip


def compared(name: str) -> Batch:
    """A module of SAME, with what XLA computes of it."""
    text = entry(*SAME[name])
    random = np.random.default_rng(3)
    shapes = [line.split("f32[")[1].split("]")[0] for line in SAME[name] if "parameter(" in line]
    inputs = tuple(random.normal(size=[int(each) for each in dims.split(",")]).astype(np.float32) for dims in shapes)
    wanted = tuple(oracle.run(text, inputs))
    return Batch(text, importer.read(text, "m.hlo"), inputs, tuple(map(str, range(len(wanted)))), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME)
def test_the_graph_computes_what_the_text_says(name, runner):
    found = compared(name)
    found.check(runner, handmade.unfused(found.module))


@pytest.mark.parametrize(
    ("dims", "layout", "into", "order"),
    [
        ((4, 6), (1, 0), (3, 8), (1, 0)), ((4, 6), (1, 0), (6, 4), (0, 1)), ((4, 6), (0, 1), (6, 2, 2), (2, 1, 0)),
        ((2, 3, 4), (1, 2, 0), (4, 3, 2), (1, 0, 2)), ((2, 3, 4), (0, 2, 1), (2, 12), (0, 1)),
        ((5,), (0,), (1, 5, 1), (0, 2, 1)),
    ],
)  # fmt: skip
def test_a_bitcast_reads_the_bytes_in_the_order_they_lie(dims, layout, into, order, runner):
    """By the definition of a layout, in NumPy: it lists the dimensions from the fastest to the slowest. (XLA takes no
    bitcast before its layout assignment, so it is not an oracle here.)"""
    shape, other = (f"f32[{','.join(map(str, each))}]" for each in (dims, into))
    first, second = (f"{{{','.join(map(str, each))}}}" for each in (layout, order))
    text = entry(f"x = {shape} parameter(0)", f"c = {shape}{first} copy(x)", f"ROOT b = {other}{second} bitcast(c)")
    x = np.arange(np.prod(dims), dtype=np.float32).reshape(dims)
    stored = x.transpose(layout[::-1]).reshape(-1)
    wanted = stored.reshape([into[at] for at in order[::-1]]).transpose(np.argsort(order[::-1]))
    found = Batch(text, importer.read(text, "m.hlo"), (x,), ("0",), (np.ascontiguousarray(wanted),))
    found.check(runner, handmade.unfused(found.module))


def opcodes(*lines: str) -> list[str]:
    return [each.opcode for each in importer.read(entry(*lines), "m.hlo").instructions]


def test_what_is_no_work_goes_away():
    assert opcodes(*SAME["equal instructions"]).count("negate") == 1
    assert "transpose" not in opcodes(*SAME["transposes in front of a dot"])
    assert "transpose" not in opcodes(*SAME["a batched dot of transposes"])
    assert "transpose" not in opcodes(*SAME["a transpose behind a dot"])
    assert "transpose" not in opcodes(*SAME["a transpose behind a batched dot"])
    assert opcodes(*SAME["other transposes behind dots"]).count("transpose") == 2
    dead = opcodes("x = f32[4]{0} parameter(0)", "y = f32[4]{0} parameter(1)", "d = f32[4]{0} tanh(y)",
                   "ROOT n = f32[4]{0} negate(x)")  # fmt: skip
    assert sorted(dead) == ["negate", "parameter", "parameter"]


def test_dimensions_of_one_do_not_get_in_the_way():
    module = importer.read(entry(*SAME["dimensions of one"]), "m.hlo")
    assert {each.dims for each in module.instructions if each.opcode in ("add", "broadcast")} == {(4, 6)}
    assert all(1 not in each.dims for each in module.instructions)


def test_each_output_is_an_instruction_of_its_own():
    module = importer.read(entry(*SAME["an output twice, a parameter, a constant"]), "m.hlo")
    assert len(set(module.outputs)) == 4
    assert all(module[name].opcode not in ("parameter", "constant") for name in module.outputs)
    assert [module.buffer_of(name) for name in module.outputs] == ["out_0", "out_1", "out_2", "out_3"]


BOUNDARIES = {
    "custom-call": 'ROOT c = f32[4]{0} custom-call(x), custom_call_target="cublas"',
    "sort": "ROOT c = f32[4]{0} sort(x), dimensions={0}, to_apply=add_f32",
    "type": "ROOT c = c128[4]{0} convert(x)",
    "width": "ROOT c = s8[4,4]{1,0} bitcast-convert(x)",
}


@pytest.mark.parametrize("name", BOUNDARIES)
def test_what_is_not_known_is_a_boundary_with_a_reason(name):
    module = importer.read(entry("x = f32[4]{0} parameter(0)", BOUNDARIES[name]), "m.hlo")
    (call,) = [each for each in module.instructions if module.library(each)]
    assert module.foreign[call.name]
    assert not module.fusable(call)


@pytest.mark.parametrize(
    ("lines", "line", "said"),
    [
        (["x = f32[4]{0} parameter(0)", "ROOT n = f32[4]{0} negate(y)"], 11, "'y' does not exist"),
        (["x = f32[4]{0} parameter(0)", "ROOT n = f32[5]{0} negate(x)"], 11, "negate"),
        (["x = f32[4]{0} parameter(0)", "ROOT n = f32[4]{0} add(x)"], 11, "add"),
        (["x = f32[4]{0} parameter(0)", "ROOT n = f32[5]{0} reshape(x)"], 11, "reshape"),
        (["x = f32[4]{0} parameter(0)", "ROOT n = f32[4,2]{1,0} broadcast(x), dimensions={1}"], 11, "broadcast"),
        (["x = f32[4,2]{1,0} parameter(0)", "ROOT n = f32[4,2]{1,0} transpose(x), dimensions={1,0}"], 11, "transpose"),
        (["x = f32[4]{0} parameter(0)", "ROOT n = f32[2]{0} slice(x), slice={[3:5]}"], 11, "slice"),
        (["x = f32[4]{0} parameter(0)", "ROOT n = f32[4]{0} get-tuple-element(x), index=0"], 11, "is not a tuple"),
        (["x = f32[4]{0} parameter(0)", "t = (f32[4]{0}) tuple(x)", "ROOT n = f32[4]{0} get-tuple-element(t), index=1"],
         12, "index=1"),
        (["x = f32[4,2]{1,0} parameter(0)", "z = f32[] constant(0)",
          "ROOT s = f32[4]{0} reduce(x, z), dimensions={2}, to_apply=add_f32"], 12, "reduce"),
        (["x = f32[4]{0} parameter(0)", "z = f32[] constant(0)",
          "ROOT s = f32[] reduce(x, z), dimensions={0}, to_apply=nothing"], 12, "no computation"),
        (["x = f32[4,2]{1,0} parameter(0)",
          "ROOT d = f32[4,4]{1,0} dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}"], 11, "dot"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_told_with_its_line(lines, line, said):
    with pytest.raises(RequestError) as caught:
        importer.read(entry(*lines), "m.hlo")
    message = str(caught.value)
    assert message.startswith(f"m.hlo:{line}:"), message
    assert said in message
    assert "\n" not in message


def test_a_computation_that_calls_itself():
    text = entry("x = f32[] parameter(0)", "ROOT c = f32[] call(x), to_apply=loop").replace(
        "ENTRY", "loop {\n  p = f32[] parameter(0)\n  ROOT q = f32[] call(p), to_apply=loop\n}\n\nENTRY"
    )
    with pytest.raises(RequestError, match="calls itself"):
        importer.read(text, "m.hlo")


def test_a_scatter_whose_work_would_never_end_is_left_to_a_library() -> None:
    """Of updates that overlap the last one counts and a device has no atomic that keeps it; rows can be sorted, windows
    that begin anywhere cannot."""

    def table(rows: int) -> HloModule:
        return importer.read(
            entry(
                f"t = f32[{rows}] parameter(0)",
                "at = s32[8192,1] parameter(1)",
                "u = f32[8192,64] parameter(2)",
                f"ROOT y = f32[{rows}] scatter(t, at, u), update_window_dims={{1}}, inserted_window_dims={{}}, "
                "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=last",
            ).replace("ENTRY", "last {\n  a = f32[] parameter(0)\n  ROOT b = f32[] parameter(1)\n}\n\nENTRY"),
            "table.hlo",
        )

    assert table(100).foreign == {}
    (reason,) = table(525336576).foreign.values()
    assert "updates for each of 525336576 elements" in reason
