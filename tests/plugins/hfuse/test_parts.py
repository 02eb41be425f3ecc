"""An address in another buffer's memory, by itself and in a struct; and a pointer parameter that is handed nothing."""

import numpy as np
import pytest

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Config
from fusiond.model.program import Bytes, Pointer, Scalar, problems

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
