"""What was launched becomes files that `plan` takes, and the Program of them hands over what the program did."""

import struct
from pathlib import Path

import numpy as np
import pytest
import yaml

from fusiond.cuda.capture import picked_kernels, trace
from fusiond.cuda.capture.documents import Undescribed, flow, representative
from fusiond.model.inputs import documents as inputs
from fusiond.model.program import Bytes, Launch, Pointer, Program, Scalar
from fusiond.requests import jobs, planning
from fusiond.requests.isolation import registry as plugins
from tests.cuda.capture.conftest import FOLLOW, WEIGHTS, X, Y, Z
from tests.cuda.capture.conftest import Program as Captured
from tests.cuda.capture.writing import pointer


def documents_of(program: Captured) -> tuple[list[dict], Path]:
    """The kernels' documents, and the job's file."""
    found = trace.read(program.writer.close())[0]
    launches = [representative(each) for each in picked_kernels.by_kernel(found).values()]
    *files, job = picked_kernels.Picking(found, program.writer.folder / "out").job(launches)
    return [yaml.safe_load(each.read_text()) for each in files], job


def reference(job: Path) -> Program:
    """The unfused program."""
    (read,) = jobs.read(job)
    found = planning.plan(plugins.load(), read)
    assert not found.refused
    return found.programs["reference"]


def handed(job: Path, entry: str) -> tuple[Program, Launch]:
    program = reference(job)
    return program, next(each for each in program.launches if each.entry == entry)


def test_lengths_values_and_shapes(program: Captured) -> None:
    program.launch_scale(X, Y, 1000)
    program.launch_rows(Z, X, 500)
    (scale, _), job = documents_of(program)
    assert scale["kernel"] == "scale_1"
    assert [each.get("elements") for each in scale["arguments"]] == [1000, 1000, None, None]
    assert [each.get("role") for each in scale["arguments"]] == ["inout", "input", None, None]
    assert scale["constants"] == [
        {"symbol": "weights", "dtype": "float32", "elements": 16, "fill": {"uniform": [0, 1]}}
    ]
    _, launch = handed(job, "_Z5scalePfPKfif")
    assert (launch.grid, launch.block) == ((8, 1, 1), (128, 1, 1))
    assert launch.arguments[2:] == (Scalar(dtype="int32", value=1000), Scalar(dtype="float32", value=0.5))


def test_a_struct_has_its_bytes_and_what_it_points_to(program: Captured) -> None:
    program.launch_rows(Z, X, 500)
    program.launch_scale(Y, X, 10)
    (rows, _), job = documents_of(program)
    assert rows["arguments"][0]["struct"]["0"] == {
        "dtype": "float32", "elements": 1000, "role": "inout", "fill": {"uniform": [0, 1]},
    }  # fmt: skip
    _, launch = handed(job, "_Z4rows4RowsPKi")
    given = launch.arguments[0]
    assert isinstance(given, Bytes)
    ((place, _),) = given.pointers
    assert place == 0
    assert given.filled(lambda name: 0x1234) == struct.pack("<Qiid", 0x1234, 500, -1, 2.0)


def test_two_addresses_in_one_allocation(program: Captured) -> None:
    program.launch_scale(X + 400, X, 100)
    program.launch_rows(Z, Y, 5)
    (scale, _), job = documents_of(program)
    assert scale["arguments"][0] == {"name": "arg_0", "part_of": "arg_1", "offset": 400}
    assert scale["arguments"][1]["role"] == "inout", "the other address writes there"
    found, launch = handed(job, "_Z5scalePfPKfif")
    first, second = launch.arguments[:2]
    assert isinstance(first, Pointer)
    assert isinstance(second, Pointer)
    buffers = {each.name: each for each in found.buffers}
    part, whole = buffers[first.buffer], buffers[second.buffer]
    assert (part.part_of, part.offset_bytes, part.elements, whole.elements) == (whole.name, 400, 900, 1000)


def test_the_same_address_twice_and_in_a_struct(program: Captured) -> None:
    program.launch_rows(X, X, 500)
    (rows,), job = documents_of(program)
    assert rows["arguments"][1] == {"name": "arg_1", "part_of": "arg_0.0"}
    assert reference(job).launches


def test_contents_are_files(program: Captured) -> None:
    values = np.arange(1000, dtype="f4")
    program.writer.data(Y, values.tobytes())
    program.writer.data(WEIGHTS, values[:16].tobytes())
    program.launch_scale(X, Y, 1000)
    (scale,), job = documents_of(program)
    np.testing.assert_array_equal(np.load(job.parent / scale["arguments"][1]["fill"]["file"]), values)
    np.testing.assert_array_equal(np.load(job.parent / scale["constants"][0]["fill"]["file"]), values[:16])
    assert scale["arguments"][0]["fill"] == {"uniform": [0, 1]}
    assert reference(job).launches


def test_launches_of_several_sizes_are_formulas(program: Captured) -> None:
    for number, n in enumerate((1000, 200, 500)):
        x, y = (0x7F1000000000 + (2 * number + each) * 0x10000 for each in (0, 1))
        program.writer.allocate(x, 4 * n)
        program.writer.allocate(y, 8 * n)
        program.launch_scale(x, y, n)
    (scale,), job = documents_of(program)
    assert scale["sizes"] == {"arg_2": 1000}
    assert [each.get("elements") for each in scale["arguments"][:2]] == ["arg_2", "2 * arg_2"]
    assert scale["grid"] == ["ceil_div(arg_2, block.x)"]
    assert scale["arguments"][2]["value"] == "arg_2"
    assert dict(reference(job).sizes)


def test_sizes_that_tell_nothing_are_numbers(program: Captured) -> None:
    for n in (1000, 300, 7):
        program.launch_scale(X, Y, n)
    (scale,), _ = documents_of(program)
    assert scale["sizes"] == {"arg_2": 1000}, "of the grid alone"
    assert [each.get("elements") for each in scale["arguments"][:2]] == [1000, 1000]


def test_a_null_pointer_and_a_wild_one(program: Captured) -> None:
    program.launch_scale(X, 0, 0 + 100)
    (scale,), job = documents_of(program)
    assert scale["arguments"][1] == {"name": "arg_1", "dtype": "uint64", "value": 0}
    assert reference(job).launches
    program.launch_scale(X, 0xDEAD0000, 100)
    program.launch_scale(X, 0xDEAD0000, 100)
    found = trace.read(program.writer.close())[0]
    *_, wild = found.launches
    with pytest.raises(Undescribed, match="argument 1 points to memory that the capture has not seen"):
        picked_kernels.Picking(found, program.writer.folder / "out").kernel(wild)


def test_numbers_that_yaml_does_not_have(program: Captured) -> None:
    program.writer.launch(
        program.scale, [1], [32], [pointer(X), pointer(Y), struct.pack("<i", -5), struct.pack("<f", float("inf"))]
    )
    (scale,), job = documents_of(program)
    assert scale["arguments"][2]["value"] == -5
    assert scale["arguments"][3] == {"name": "arg_3", "bytes": "0000807f"}
    assert reference(job).launches


def test_without_ptx(program: Captured) -> None:
    module = program.writer.module(b"\x7fELF" + bytes(100))
    program.writer.launch(program.writer.function(module, FOLLOW), [1], [1], [pointer(X)])
    found = trace.read(program.writer.close())[0]
    (launch,) = found.launches
    with pytest.raises(Undescribed, match="there is no PTX of it: build with"):
        picked_kernels.Picking(found, program.writer.folder / "out").kernel(launch)


@pytest.mark.parametrize(
    "value",
    ["on", "x", "./a.yaml", "12", "1e5", "", "a b", ".5", "0x1", ["a", {"b": 1.5}], {"8": "00"}, -3, 1e-7, "a: #"],
)
def test_yaml_says_the_same(value: object) -> None:
    assert inputs.parse(f"value: {flow(value)}", "a.yaml").mapping()["value"].plain() == value


TEXTURE = """\
.version 8.0
.target sm_80
.address_size 64
.visible .entry read(.param .u64 t, .param .u64 out)
{
    .reg .f32 %f<5>;
    .reg .b64 %rd<3>;
    .reg .b32 %r<3>;
    ld.param.u64 %rd1, [t];
    ld.param.u64 %rd2, [out];
    mov.u32 %r1, %tid.x;
    tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1}];
    st.global.f32 [%rd2], %f1;
    ret;
}
"""


def test_a_texture(program: Captured) -> None:
    function = program.writer.function(program.writer.module(TEXTURE.encode()), "read")
    program.writer.launch(function, [1], [32], [pointer(5), pointer(X)])
    found = trace.read(program.writer.close())[0]
    with pytest.raises(Undescribed, match="textures"):
        picked_kernels.Picking(found, program.writer.folder / "out").kernel(next(found.launches))


@pytest.mark.parametrize("directive", ["", ".reqnctapercluster 2\n", ".reqnctapercluster 4\n"])
def test_clusters(program: Captured, directive: str) -> None:
    text = f".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry all(.param .u64 x)\n{directive}{{ ret; }}\n"
    function = program.writer.function(program.writer.module(text.encode()), "all")
    program.writer.launch(function, [4], [32], [pointer(X)], cluster=2)
    program.writer.launch(function, [4], [32], [pointer(X)])  # with what the kernel asks for
    found = trace.read(program.writer.close())[0]
    first, second = found.launches
    picking = picked_kernels.Picking(found, program.writer.folder / "out")
    assert picking.kernel(second).is_file()
    if "2" in directive:
        assert picking.kernel(first).is_file()
    else:
        with pytest.raises(Undescribed, match="clusters of 2 x 1 x 1 blocks"):
            picking.kernel(first)
