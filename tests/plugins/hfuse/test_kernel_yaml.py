"""A kernel's YAML file: what is read, and that every mistake is one line with file, line and key."""

import numpy as np
import pytest
import yaml as pyyaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusiond.model.errors import RequestError
from fusiond.model.inputs.fills import fill
from fusiond.model.program import Compare, Fill, Scalar

SOURCE = """\
#define SCALE 2.0f
__global__ void scale(float4* out, const float* in, float factor, unsigned short tag, bool use, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && use) out[i] = make_float4(in[i] * factor, tag, SCALE, 0);
}
template <typename T, int N> __global__ void many(T* out) { out[threadIdx.x] = N; }
"""
YAML = """\
kernel: scale
summary: multiplies
source: scale.cu
entry: scale
sizes: {n: 100}
odd: {n: 77}
arguments:
  - {name: out, dtype: float32, elements: 4 * n, role: output, compare: {rtol: 1.0e-5}}
  - {name: in, dtype: float32, elements: n, role: input, fill: {normal: [0, 2.5]}}
  - {name: factor, dtype: float32, value: 1.5}
  - {name: tag, dtype: uint16, value: "min(n, 9)"}
  - {name: use, dtype: bool, value: 1}
  - {name: n, dtype: int32, value: n}
block: {shape: [64], tune: x}
grid: ["ceil_div(n, block.x)"]
"""


@pytest.fixture
def scale(kernel_file):
    def write(old: str = "", new: str = "", source: str = SOURCE) -> str:
        assert old in YAML
        return kernel_file("scale", source, YAML.replace(old, new))

    return write


def test_arguments_fills_and_tolerances(analyse, strategy, scale):
    analysis = analyse(scale(), "hist")
    sequential = strategy.baselines(analysis)[0]
    program = sequential.emit(next(sequential.space.points()))
    launch = next(step for step in program.steps if step.name == "b")
    assert [each.value for each in launch.arguments if isinstance(each, Scalar)] == [1.5, 9, 1, 100]
    assert (launch.grid, launch.block, launch.shared_bytes) == ((2, 1, 1), (64, 1, 1), 0)
    assert program.buffer("b.out").compare == Compare(kind="close", rtol=1e-5)
    assert program.buffer("b.out").elements == 400
    assert program.buffer("b.in").fill == Fill(kind="normal", low=0.0, high=2.5)
    assert program.buffer("a.counts").compare == Compare()


@pytest.mark.parametrize(
    ("dtype", "c", "low", "high"),
    [("int64", "long long", -(2**63), 2**63 - 1), ("uint64", "unsigned long long", 2**53 + 1, 2**64 - 1)],
)
def test_integers_of_64_bits_are_exact(analyse, strategy, scale, dtype, c, low, high):
    given = f"dtype: {dtype}, elements: n, role: input, fill: {{integers: [{low}, {high}]}}"
    name = scale(
        "dtype: float32, elements: n, role: input, fill: {normal: [0, 2.5]}",
        given,
        source=SOURCE.replace("const float* in", f"const {c}* in"),
    )
    sequential = strategy.baselines(analyse(name, "hist"))[0]
    buffer = sequential.emit(next(sequential.space.points())).buffer("b.in")
    assert (buffer.fill.low, buffer.fill.high) == (low, high)
    data = fill(buffer, 0)
    assert data.dtype == np.dtype(dtype)
    assert int(data.max()) > high - 2**61
    with pytest.raises(RequestError, match=f"it must be from .* to {np.iinfo(dtype).max}"):
        analyse(scale("dtype: float32, elements: n, role: input, fill: {normal: [0, 2.5]}",
                      given.replace(str(high), str(2**64))), "hist")  # fmt: skip


def test_a_key_that_no_folder_changes(analyse, parse, scale, tmp_path):
    first = parse(scale(), "hist")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("scale.cu", "scale.yaml"):
        (folder / name).write_text((tmp_path / name).read_text())
    moved = parse("./elsewhere/scale.yaml", "hist")
    assert (moved.key, moved.name) == (first.key, "hist,scale")
    assert set(moved.source_hashes) != set(first.source_hashes)
    (folder / "scale.cu").write_text(SOURCE.replace("2.0f", "3.0f"))
    assert parse("./elsewhere/scale.yaml", "hist").key != first.key
    resized = parse("./scale.yaml", "hist", sizes={"scale.n": 5})
    assert resized.key != first.key
    assert resized.family_key == first.family_key


def test_pairs_are_unordered(parse):
    assert parse("hist", "maxpool").key == parse("maxpool", "hist").key
    assert parse("hist", "maxpool").name == "hist,maxpool"
    assert parse("hist", "hist").sizes == {"a.n": 5000000, "a.bins": 20, "b.n": 5000000, "b.bins": 20}


def test_a_file_of_input_counts_by_its_content(parse, scale, tmp_path):
    np.save(tmp_path / "in.npy", np.ones(100, np.float32))
    name = scale("{normal: [0, 2.5]}", "{file: in.npy}")
    first = parse(name, "hist")
    assert str(tmp_path / "in.npy") in first.source_hashes
    np.save(tmp_path / "in.npy", np.zeros(100, np.float32))
    assert parse(name, "hist").key != first.key


WRONG = [
    ("kernel: scale", "kernel: 'a b'", "scale.yaml:1: kernel: is 'a b'"),
    ("summary:", "sumary:", "scale.yaml:2: unknown key 'sumary'; did you mean 'summary'?"),
    ("source: scale.cu", "source: skale.cu", "scale.yaml:3: source: there is no file"),
    ("entry: scale", "entry: skale", "scale.yaml:4: entry: unknown kernel 'skale'; did you mean 'scale'?"),
    ("entry: scale", "entry: many", "scale.yaml:4: entry: many is a template <class T, int N>; say which instance"),
    ("entry: scale", "entry: scale\ninstance: scale<int>", "scale is not a template"),
    ("entry: scale", "entry: scale\ninstance: many<int>", "is not an instance of scale"),
    ("{n: 100}", "{n: 0}", "scale.yaml:5: sizes.n: is 0; it must be from 1 to 1099511627776"),
    ("{n: 100}", "{n: 100, block: 3}", "'block' cannot be the name of a size"),
    ("{n: 77}", "{m: 77}", "scale.yaml:6: odd: 'm' is not a size of this kernel"),
    ("elements: 4 * n", "elements: 4 * m", "scale.yaml:8: arguments[0]: elements: '4 * m': 'm' has no value"),
    ("elements: 4 * n", "elements: n - 100", "out has 0 elements at the sizes n=100"),
    ("role: output", "role: outptu", "arguments[0].role: is 'outptu'; it can be"),
    ("role: output", "role: output, fill: zeros", "starts with poison; one that is filled is inout"),
    ("dtype: float32, value", "dtype: float99, value", "arguments[2].dtype: is 'float99'; it can be"),
    ("dtype: float32, value", "dtype: float64, value", "factor is float64, but the kernel's parameter 'float' is"),
    ("value: 1.5", "value: [1]", "arguments[2].value"),
    ('value: "min(n, 9)"', "value: 70000", "tag: 70000 does not fit uint16"),
    ('value: "min(n, 9)"', "value: 1.5", "uint16 takes whole numbers"),
    ("{normal: [0, 2.5]}", "{file: no.npy}", "scale.yaml:9: arguments[1].fill.file: there is no file"),
    (", fill: {normal: [0, 2.5]}", "", "arguments[1]: the key 'fill' is missing"),
    ("  - {name: n, dtype: int32, value: n}\n", "", "5 arguments for 6 parameters"),
    ("name: tag", "name: use", "two arguments are called 'use'"),
    ("{shape: [64], tune: x}", "{shape: [64, 0]}", "block.shape[1]: is 0"),
    ("{shape: [64], tune: x}", "{shape: [64, 64]}", "has 4096 threads; a block has at most 1024"),
    ("{shape: [64], tune: x}", "{shape: [64], tune: w}", "block.tune: is 'w'; it can be x, y, z"),
    ("{shape: [64], tune: x}", "{shapes: []}", "block.shapes: is empty"),
    ("{shape: [64], tune: x}", "{shapes: [[32, 2], [64]]}", "two shapes have 64 threads"),
    ("{shape: [64], tune: x}", "{tune: x}", "holds either 'shape' or 'shapes'"),
    ('["ceil_div(n, block.x)"]', "[n - 100]", "a grid of [0] blocks"),
    ('["ceil_div(n, block.x)"]', "[grid.x]", "'grid.x' has no value"),
    ('["ceil_div(n, block.x)"]', "[1, 1, 1, 1]", "has 4 lengths; expected one to three"),
    ("grid:", "flags: [--maxrregcount=32]\ngrid:", "flags[0]: is '--maxrregcount=32'; expected one of"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("old", "new", "problem"), WRONG, ids=[f"{old} -> {new}"[:60] for old, new, _ in WRONG])
def test_a_mistake_is_one_line(analyse, scale, old, new, problem):
    with pytest.raises(RequestError) as caught:
        analyse(scale(old, new), "hist")
    assert problem in str(caught.value)
    assert "scale.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


SOURCES = [
    ("#include <cub/cub.cuh>\n", None),
    ('#include "no.cuh"\n', None),
    ("#define H <math.h>\n#include H\n", "scale.cu:2: not CUDA C++ as libclang reads it: #include of a macro"),
    ("__device__ int f() { return unknown; }\n", None),
    ("__device__ float half(float x) { return x / two; }\n#define float typename Half<float, half>::type\n",
     "not CUDA C++ as libclang reads it: no template named 'Half'"),
    ("#if 1\n", "scale.cu:1: not CUDA C++ as libclang reads it: unterminated conditional directive"),
    ("struct P { int a; }; __global__ void p(P v) {}\n", None),
    ("#include <stdint.h>\n#include <cuda_runtime.h>\n#include <math.h>\n", None),
    ("// caf\u00e9 \u2014 bytes are not characters\n", None),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("before", "problem"), SOURCES)
def test_sources_are_checked_too(analyse, strategy, scale, before, problem):
    name = scale(source=before + SOURCE)
    if problem is None:
        assert analyse(name, "hist").rejections == ()
        return
    with pytest.raises(RequestError) as caught:
        analyse(name, "hist")
    assert problem in str(caught.value)


def test_headers_that_include_each_other(analyse, scale, tmp_path):
    (tmp_path / "a.cuh").write_text('#pragma once\n#include "b.cuh"\n#define A B\n')
    (tmp_path / "b.cuh").write_text('#ifndef B_H\n#define B_H\n#include "a.cuh"\n#define B 2.0f\n#endif\n')
    name = scale(source='#include "a.cuh"\n' + SOURCE.replace("2.0f", "A"))
    assert analyse(name, "hist").rejections == ()
    (tmp_path / "a.cuh").write_text('#include "a.cuh"\n')
    with pytest.raises(RequestError, match=r'a\.cuh:1: #include "a.cuh" includes itself'):
        analyse(name, "hist")


@pytest.mark.slow
def test_include_folders(analyse, scale, tmp_path):
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "c.cuh").write_text("#define C 3\n")
    source = SOURCE.replace("2.0f", "C")
    said = r"scale\.cu:\d+: not CUDA C\+\+ .* undeclared identifier 'C' \(not read: c\.cuh\)"
    with pytest.raises(RequestError, match=said):
        analyse(scale(source='#include "c.cuh"\n' + source), "hist")
    for header in ('"c.cuh"', "<c.cuh>"):
        name = scale("grid:", "include: [common]\ngrid:", source=f"#include {header}\n" + source)
        assert analyse(name, "hist").rejections == ()


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.integers(), st.floats(), st.text(max_size=12),
    st.sampled_from(["n", "scale", "scale.cu", "x", "float32", "input", "zeros", "4 * n", "block.x", "1 // 0"]),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["shape", "tune", "shapes", "n", "name", "uniform", "rtol"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_file_makes_a_traceback(analyse, kernel_file, data):
    """One value of a good file is replaced by anything: it is read, or refused in one line."""
    content = pyyaml.safe_load(YAML)
    place = data.draw(st.sampled_from(sorted(content)))
    value = data.draw(VALUES)
    if place == "arguments" and data.draw(st.booleans()):
        argument = data.draw(st.sampled_from(content["arguments"]))
        argument[data.draw(st.sampled_from(sorted(argument)))] = value
    else:
        content[place] = value
    said = ""
    try:
        analyse(kernel_file("scale", SOURCE, pyyaml.safe_dump(content)), "hist")
    except RequestError as problem:
        said = str(problem)
    assert "\n" not in said


@pytest.mark.slow
@pytest.mark.parametrize(("opening", "closing"), [("(", ")"), ("", " + 1")], ids=["brackets", "sums"])
def test_a_source_nested_too_deeply(analyse, scale, opening, closing):
    deep = opening * 9000 + "1" + closing * 9000
    source = SOURCE.replace("2.0f", "deep()")
    name = scale(source=f"__device__ int deep() {{ return {deep}; }}\n{source}")
    with pytest.raises(RequestError, match=r"scale\.cu:\d: .*nest"):
        analyse(name, "hist")
