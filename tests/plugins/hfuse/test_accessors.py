"""Structs by value with pointers in them: an accessor with a base, as PyTorch hands tensors over, and a plain one."""

import ctypes
import json
from pathlib import Path

import numpy as np
import pytest

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Config
from fusiond.model.program import Bytes, Pointer, Program, Scalar, decode, problems, to_text

KERNELS = Path(__file__).parent / "kernels"
AFFINE = str(KERNELS / "affine.yaml")
BESIDE = Config.of(
    {"kind": "horizontal", "level": "warp", "map": "pad", "threads.a": 96, "threads.b": 64, "order": "ab"}
)
VERTICAL = Config.of({"kind": "vertical", "threads": 64, "order": "ba"})


@pytest.fixture
def pair(analyse):
    return analyse(AFFINE, AFFINE, sizes={"b.n": 33}, granularity=32)


@pytest.mark.slow
@pytest.mark.parametrize("config", [BESIDE, VERTICAL], ids=str)
def test_addresses_stand_in_structs(pair, strategy, same, runner, config):
    program = strategy.emit(pair, config, {})
    assert isinstance(program, Program), program
    assert problems(program) == ()
    assert decode(json.loads(to_text(program))) == program
    same(program, strategy.unfused(pair, config))
    got = runner.run(program)
    for letter, n in (("a", 77), ("b", 33)):
        given = got[f"{letter}.in_.data_"].reshape(5, n)
        np.testing.assert_array_equal(got[f"{letter}.out.data_"].reshape(5, n), given * np.arange(n, dtype="f4"))
        hits = int((given > 0.25).sum())
        assert [got[f"{letter}.o.in[{at}].hits"][0] for at in (0, 1)] == [2 * hits, hits]


def test_the_places_are_the_sources(pair, strategy):
    """Against ctypes: what a base holds lies before the rest."""

    class Accessor(ctypes.Structure):
        _fields_ = (("data", ctypes.c_void_p), ("sizes", ctypes.c_int * 2), ("strides", ctypes.c_int * 2))

    class Options(ctypes.Structure):
        _fields_ = (("scale", ctypes.c_void_p), ("no", ctypes.c_void_p), ("hits", ctypes.c_void_p * 2),
                    ("eps", ctypes.c_float))  # fmt: skip

    structs = [each for each in strategy.emit(pair, BESIDE, {}).steps[0].arguments if isinstance(each, Bytes)]
    addresses = {"a.out.data_": 16, "a.o.scale": 32, "a.o.in[0].hits": 48, "a.o.in[1].hits": 64}
    wanted = Accessor(16, (5, 77), (77, 1)), Options(32, None, (48, 64), 0.25)
    assert structs[0].filled(addresses.__getitem__) == bytes(wanted[0])
    assert structs[2].filled(addresses.__getitem__)[:36] == bytes(wanted[1])[:36]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('      "sizes_[0]": rows\n', "", "out does not give sizes_[0] of 'GenericPackedTensorAccessor"),
        ("data_: {dtype: float32, elements: rows * n, role: output, compare: equal}", "data_: 1",
         "data_ of 'GenericPackedTensorAccessor<scalar_t, 2, DefaultPtrTraits, int>' is a pointer; give a buffer"),
        ("scale: {dtype: float32", "scale: {dtype: int32", "scale is int32, but 'Opts' points to float32 there"),
        ("eps: 0.25", "eps: {dtype: float32, elements: 3, role: output}", "eps of 'Opts' is float32, not a pointer"),
        ("nothing: 0", "nothing: {elements: 3, role: output}", "the key 'dtype' is missing"),
        ("scale: {dtype: float32, elements: n, role: input", "scale: {dtype: float32, elements: n, role: output",
         "a buffer with the role output starts with poison"),
        ("elements: 1, role", "elements: rows - 5, role", "o.in[0].hits has 0 elements"),
    ],
)  # fmt: skip
def test_a_wrong_pointer_is_one_line(analyse, kernel_file, old, new, problem):
    yaml = (KERNELS / "affine.yaml").read_text()
    assert old in yaml
    name = kernel_file("affine", (KERNELS / "affine.cu").read_text(), yaml.replace(old, new, 1))
    with pytest.raises(RequestError) as caught:
        analyse(name, "hist")
    assert problem in str(caught.value)
    assert "affine.yaml:" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_structs_at_other_sizes_are_what_they_are_there(analyse, strategy, pair):
    program = strategy.emit(pair, BESIDE, {})
    other = strategy.emit(analyse(AFFINE, AFFINE, sizes={"a.n": 55, "b.n": 33}, granularity=32), BESIDE, {})
    moved = program.at({"a.n": 55, "b.n": 33})
    assert moved.key == other.key
    for a, b in zip(moved.steps[0].arguments, other.steps[0].arguments, strict=True):
        if isinstance(a, Bytes):
            assert a.filled(lambda name: 64) == b.filled(lambda name: 64)
    assert any(isinstance(each, Bytes) and each.numbers for each in program.steps[0].arguments)


# --- an address in another buffer's memory --------------------------------------------------------------


SOURCE = """\
struct Rows { float* data; int n; float* other; };
__global__ void shifted(Rows r, const float* x, float* out, int* count)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < r.n) { r.data[i] = x[i] + 1; out[i] = r.other ? r.other[i] : 0; }
    if (count) atomicAdd(count, 1);
}
"""
YAML = """\
kernel: shifted
source: shifted.cu
entry: shifted
sizes: {n: 100}
arguments:
  - name: r
    bytes: "0000000000000000 00000000 00000000 0000000000000000"
    struct: {"0": {part_of: x, offset: 8 * n}, n: n, "16": {part_of: x, offset: 4 * n}}
  - {name: x, dtype: float32, elements: 3 * n, role: inout, fill: iota}
  - {name: out, dtype: float32, elements: n, role: output}
  - {name: count, dtype: int32, value: 0}
block: {shape: [64]}
grid: [2]
"""
CONFIG = Config.of(
    {"kind": "horizontal", "level": "warp", "map": "pad", "threads.a": 64, "threads.b": 64, "order": "ab"}
)


def fused(analyse, strategy, kernel_file, yaml=YAML):
    analysis = analyse(kernel_file("shifted", SOURCE, yaml), "./shifted.yaml", sizes={"b.n": 70}, granularity=32)
    return analysis, strategy.emit(analysis, CONFIG, {})


def test_parts_lie_in_the_whole(analyse, strategy, kernel_file, same, runner):
    analysis, program = fused(analyse, strategy, kernel_file)
    assert problems(program) == ()
    same(program, strategy.unfused(analysis, CONFIG))
    got = runner.run(program)
    for letter, n in (("a", 100), ("b", 70)):
        first, second, third = got[f"{letter}.x"].reshape(3, n)
        np.testing.assert_array_equal(third, first + 1)
        np.testing.assert_array_equal(got[f"{letter}.out"], second)


def test_they_move_with_the_sizes(analyse, strategy, kernel_file):
    _, program = fused(analyse, strategy, kernel_file)
    larger = program.at({"a.n": 200, "b.n": 70})
    part = next(each for each in larger.buffers if each.name == "a.r.0")
    assert (part.part_of, part.offset_bytes, part.elements) == ("a.x", 1600, 200)


def test_null_in_the_bytes_needs_no_word(analyse, strategy, kernel_file, runner):
    yaml = YAML.replace(', "16": {part_of: x, offset: 4 * n}', "")
    _, program = fused(analyse, strategy, kernel_file, yaml)
    assert not runner.run(program)["a.out"].any()


def test_an_argument_of_its_own(analyse, strategy, kernel_file):
    out = "{name: out, dtype: float32, elements: n, role: output}"
    _, program = fused(analyse, strategy, kernel_file, YAML.replace(out, "{name: out, part_of: x}"))
    kinds = [type(each) for each in program.steps[0].arguments[:4]]
    assert kinds == [Bytes, Pointer, Pointer, Scalar]
    assert problems(program) == ()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("part_of: x, offset: 8", "part_of: y, offset: 8", "unknown buffer 'y'"),
        ("part_of: x, offset: 8 * n", "part_of: x, offset: 12 * n", "r.0 lies 1200 bytes behind the beginning of x"),
        ("offset: 8 * n", "offset: 6", "r.0 lies 6 bytes behind"),
        ("offset: 8 * n", "offset: 8 * m", "offset: '8 * m': 'm' has no value"),
        ("offset: 8 * n", "role: input", "unknown key 'role'"),
        ("00 00000000 00000000 ", "00 00000000 ", "r has 20 bytes, but 'Rows' has 24"),
        (', "16": {part_of: x, offset: 4 * n}', ', "12": 3', "unknown member '12'"),
        ("count, dtype: int32, value: 0", "count, dtype: int32, value: 1", "a buffer, with elements, or 0"),
        ('00000000 0000000000000000"', '00000000 0100000000000000"', ""),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(analyse, strategy, kernel_file, old, new, problem):
    assert old in YAML
    if not problem:  # what `struct` says stands above the bytes
        fused(analyse, strategy, kernel_file, YAML.replace(old, new, 1))
        return
    with pytest.raises(RequestError) as caught:
        fused(analyse, strategy, kernel_file, YAML.replace(old, new, 1))
    assert problem in str(caught.value)


def test_addresses_that_nobody_knows(analyse, strategy, kernel_file):
    yaml = YAML.replace(', "16": {part_of: x, offset: 4 * n}', "").replace('0000000000000000"', '0000000000000001"')
    with pytest.raises(RequestError, match="has pointers in it, whose addresses are not known before"):
        fused(analyse, strategy, kernel_file, yaml)
