"""A kernel's YAML drafted from its file: the signature, where it is launched, and "?" for the rest."""

# ruff: noqa: E501

import re

import pytest
import yaml as pyyaml

from fusiond.build import nvcc
from fusiond.model.errors import RequestError
from fusiond.model.inputs import documents
from fusiond.model.nouns import Config, Job
from fusiond.requests.jobs import JobInputs

SOURCE = """\
#include <cublas_v2.h>
#define ROWS 4
__constant__ float taps[9];
__device__ int seen[2];
struct Shape { int rows; float scale; };
namespace ops {
template <class T, int N> __global__ void pool(T* out, const T* __restrict__ in, const int* at, int n, long m, Shape s, float f)
{
    extern __shared__ T tile[];
    tile[threadIdx.x] = f;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && at[i] < m) out[i] = in[i] * taps[i % 9] + N + s.rows + tile[threadIdx.x];
    atomicAdd(seen, 1);
}
}
__global__ void plain(unsigned* p, unsigned count) { if (threadIdx.x < count) p[threadIdx.x] = 1; }
void run(float* d_out, float* d_in, int* d_at, const int total, long most)
{
    // ops::pool<float, 7><<<1, 1>>>(never);
    const int threads = 32 * ROWS;
    dim3 block(threads, 2u), grid;
    size_t bytes = threads * sizeof(float) + 16;
    ops::pool<float, 5><<<ceil_div(total, threads), block, bytes, stream>>>(d_out, d_in, d_at, total, most, shape, 0.5f);
}
"""


@pytest.fixture
def drafted(strategy, registry, tmp_path):
    def draft(source: str, name: str = "") -> str:
        path = tmp_path / "k.cu"
        path.write_text(source)
        job = Job(strategy="hfuse", request={}, sizes={}, path=str(path))
        return strategy.draft(str(path), name, JobInputs(registry, job))

    return draft


def test_what_the_file_says_is_there_and_nothing_else(drafted):
    text = drafted(SOURCE, "pool")
    found = pyyaml.safe_load(text)
    assert found == {
        "kernel": "pool", "source": "k.cu", "entry": "ops::pool", "instance": "ops::pool<float, 5>",
        "sizes": {"n": "?", "m": "?"},
        "arguments": [
            {"name": "out", "dtype": "float32", "elements": "?", "role": "inout", "fill": "zeros"},
            {"name": "in", "dtype": "float32", "elements": "?", "role": "input", "fill": {"uniform": [0, 1]}},
            {"name": "at", "dtype": "int32", "elements": "?", "role": "input", "fill": "?"},
            {"name": "n", "dtype": "int32", "value": "n"},
            {"name": "m", "dtype": "int64", "value": "m"},
            {"name": "s", "struct": {"rows": "?", "scale": "?"}},
            {"name": "f", "dtype": "float32", "value": "?"},
        ],
        "constants": [
            {"symbol": "taps", "dtype": "float32", "elements": 9, "fill": {"uniform": [0, 1]}},
            {"symbol": "seen", "dtype": "int32", "elements": 2, "role": "inout", "fill": "zeros"},
        ],
        "block": {"shape": ["?"]}, "grid": ["?"], "shared": "?",
    }  # fmt: skip
    assert "# Not read: cublas_v2.h" in text
    line = next(at for at, each in enumerate(SOURCE.splitlines(), 1) if "<<<ceil_div" in each)
    assert f"# Launched in k.cu:{line}: pool<float, 5><<<ceil_div(total, threads), block, bytes, stream>>>(" in text
    assert "never" not in text


def test_a_draft_runs_once_it_is_filled_in(drafted, analyse, strategy, same, kernel_file):
    text = drafted(SOURCE, "ops::pool<float, 3>")
    with pytest.raises(RequestError, match=r'pool\.yaml:\d+: not filled in yet, and still "\?": sizes\.n, sizes\.m,'):
        analyse(kernel_file("pool", SOURCE, text.replace("k.cu", "pool.cu")), "hist")
    text = re.sub(r'(?m)^(sizes: .*)"\?"(.*)"\?"', r"\g<1>600\g<2>50", text)
    text = text.replace('elements: "?"', "elements: n").replace('fill: "?"', "fill: {integers: [0, 99]}")
    text = text.replace('shape: ["?"]', "shape: [128, 2]").replace('grid: ["?"]', 'grid: ["ceil_div(n, 128)"]')
    text = text.replace('shared: "?"', "shared: 528")
    text = text.replace('"rows": "?", "scale": "?"', '"rows": 2, "scale": 1.5').replace('value: "?"', "value: 0.5")
    analysis = analyse(kernel_file("pool", SOURCE, text.replace("k.cu", "pool.cu")), "hist", sizes={"hist.n": 999})
    assert analysis.rejections == ()
    config = Config.of({"kind": "horizontal", "level": "warp", "map": "pad", "order": "ab", "threads.a": 512,
                        "threads.b": 256})  # fmt: skip
    same(strategy.emit(analysis, config, {}), strategy.unfused(analysis, config))


def test_a_file_with_one_kernel_needs_no_name(drafted):
    only = "__global__ void plain(unsigned* p, unsigned count) { p[threadIdx.x] = count; }\n"
    found = pyyaml.safe_load(drafted(only))
    assert (found["entry"], found["block"], found["grid"]) == ("plain", {"shape": ["?"]}, ["?"])


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        (SOURCE, "", "there are 2 kernels in it: ops::pool, plain; say which: k.cu:ops::pool"),
        (SOURCE, "polo", "unknown kernel 'polo'"),
        (
            "using F = float (*)(float);\ntemplate <F f, bool b, unsigned char c> __global__ void k(float* p) { p[0] = f(c); }\n",
            "k",
            "k is a template <F f, bool b, unsigned char c>; say which instance under `instance:`, or with FILE.cu:'k<...>'",
        ),
        (
            "enum class Kind { None, Some };\ntemplate <Kind kind, class T> __global__ void k(T* p)\n{\n"
            '    static_assert(sizeof(T) == 3 && kind == Kind::Some, "odd");\n    p[0] = 1;\n}\n',
            "k",
            "k is a template <Kind kind, class T>; say which instance",
        ),
        ("int main() {}\n", "", "contains no kernel"),
        ("__global__ void k(Unknown* p) {}\n", "k", "unknown type name 'Unknown'"),
        (
            '#include "gone.h"\nnamespace ops {\ntemplate <class T>\n__launch_bounds__(64) static __global__ void k(gone::View<T, 2> v) {}\n}\n',
            "k",
            "unknown kernel 'k'",
        ),
    ],
)
def test_what_is_not_clear_is_asked_for(drafted, source, name, said):
    with pytest.raises(RequestError, match=re.escape(said)) as caught:
        drafted(source, name)
    assert "\n" not in str(caught.value)


def test_a_job_that_names_a_source_says_what_to_do(analyse):
    with pytest.raises(RequestError, match=r"`fusiond init \./scan\.cu:block_scan` drafts the"):
        analyse("./scan.cu:block_scan", "hist")


def test_unknown_values_are_listed():
    root, left = documents.drafted('a: "?"\nb: [1, {c: "?"}]\n', "x.yaml")
    assert [(each.key, each.line) for each in left] == [("a", 1), ("b[1].c", 2)]
    assert root.mapping()["a"].value == "?"


def test_a_kernel_of_no_parameters_has_an_empty_list(drafted):
    assert pyyaml.safe_load(drafted("__global__ void k() {}\n"))["arguments"] == []


def test_a_draft_says_what_no_yaml_can_give(drafted):
    """Addresses of addresses, and variables that hold one; not a variable whose address the source knows."""
    text = drafted(
        "struct Row { float* data; };\nstruct Rows { float** data; };\n__constant__ float** table;\n__device__ Rows row;\n"
        "__device__ float own[4];\n__device__ float* const begin = own;\n"
        "__global__ void k(float** a, Row* b, Rows c, Row d, float (*e)(float)) { a[0][0] = table[0][0] + row.data[1][0] + begin[0]; }\n"
    )
    assert re.findall("# Cannot be passed: (\\w): (.{20})", text) == [
        ("a", "the kernel's paramet"), ("b", "what 'Row *' points "), ("c", "data of 'Rows' is a "),
        ("e", "the kernel's paramet"),
    ]  # fmt: skip
    assert re.findall("# Cannot be fused as it is: .*: `(\\w+)`.* holds a pointer to float \\*", text) == [
        "table",
        "row",
    ]


def test_an_empty_struct_is_passed_as_its_bytes(drafted):
    text = drafted("struct Tag {};\n__global__ void k(int* p, Tag how, Tag) { p[0] = sizeof how; }\n")
    assert [each.get("bytes") for each in pyyaml.safe_load(text)["arguments"]] == [None, "00", "00"]


def test_a_kernel_that_a_condition_leaves_out_is_named(drafted):
    source = "__global__ void k(int* p) {}\n#ifdef USE_LIBRARY\n__global__ void \\\nother(int* p) {}\n#endif\n"
    with pytest.raises(RequestError, match=r"k\.cu:2: `#ifdef USE_LIBRARY` leaves out other"):
        drafted(source, "other")
    with pytest.raises(RequestError, match="unknown kernel 'others'"):
        drafted(source, "others")


def test_what_a_pointer_points_to_is_completed(drafted):
    """An instance of a template that only a pointer names has a size all the same; what is declared only has none."""
    text = drafted(
        "template <class T> struct Option { T spot, strike; };\nstruct Hidden;\n"
        "template <class T> __global__ void k(T* out, const Option<T>* const o) { out[0] = o->spot; }\n"
        "__global__ void h(int* out, Hidden* h) { out[0] = h != nullptr; }\n",
        "k<double>",
    )
    assert "Cannot be passed" not in text
    assert "Cannot be passed: h" in drafted("struct Hidden;\n__global__ void h(int* out, Hidden* h) {}\n")


def test_an_instance_is_the_one_that_the_file_names(drafted):
    source = "template <int N> __global__ void k(int* p) { p[0] = N; }\nvoid run() { auto f = k<3>; }\n"
    assert pyyaml.safe_load(drafted(source, "k"))["instance"] == "k<3>"
    with pytest.raises(RequestError, match="k is a template <int N>; say which instance"):
        drafted(source.replace("k<3>", "k<some>"), "k")


@pytest.fixture
def compiled(strategy, registry, tmp_path):
    def draft(file: str, source: str, name: str = "") -> str:
        path = tmp_path / file
        path.write_text(source)
        job = Job(strategy="hfuse", request={}, sizes={}, path=str(path))
        return strategy.draft(str(path), name, JobInputs(registry, job, compiler=nvcc.compiled))

    return draft


OVERLOADS = (
    "__global__ void k(int* p) { p[0] = 1; }\n__global__ void k(const float* p, int n) { if (n) ((float*)p)[n] = n; }\n"
)


@pytest.mark.needs_nvcc
def test_one_of_several_kernels_of_a_name_is_told_by_its_types(compiled, drafted):
    with pytest.raises(RequestError, match=r'defined more than once; say which: `instance: "k\(int \*\)"`'):
        drafted(OVERLOADS, "k")
    text = compiled("k.cu", OVERLOADS, "k(const float*, int)")
    found = pyyaml.safe_load(text)
    assert found["instance"] == "k(const float*, int)"
    assert found["arguments"] == [
        {"name": "arg_0", "dtype": "float32", "elements": "?", "role": "input", "fill": {"uniform": [0, 1]}},
        {"name": "arg_1", "dtype": "int32", "value": "arg_1"},
    ]
    assert "# Fused as PTX, whose kernels have no names of parameters" in text


@pytest.mark.needs_nvcc
def test_a_kernel_whose_body_only_a_compiler_reads_is_drafted_from_its_declaration(compiled):
    source = "#include <cub/cub.cuh>\n__global__ void k(float* out, const int* in, int n)\n{\n"
    source += "    __shared__ cub::BlockReduce<int, 128>::TempStorage t;\n    int s = cub::BlockReduce<int, 128>(t).Sum(in[threadIdx.x]);\n"
    text = compiled("k.cu", source + "    if (threadIdx.x == 0) out[0] = s + n;\n}\n", "k")
    assert [each["name"] for each in pyyaml.safe_load(text)["arguments"]] == ["out", "in", "n"]
    assert "# Fused as PTX: " in text


PTX = """\
.version 8.0
.target sm_80
.address_size 64
.visible .entry _Z5scaleIfEvPT_PKS0_i6float2(
    .param .u64 a, .param .u64 b, .param .u32 c, .param .align 8 .b8 d[8])
{
    ret;
}
.visible .entry softmax_kernel(.param .u64 .ptr .global .align 1 x, .param .u64 y, .param .f32 z)
{
    ret;
}
"""


def test_a_kernel_of_ptx_is_drafted_from_its_name_and_parameters(compiled):
    text = compiled("k.ptx", PTX, "scale<float>")
    found = pyyaml.safe_load(text)
    assert (found["kernel"], found["source"], found["entry"]) == ("scale", "k.ptx", "_Z5scaleIfEvPT_PKS0_i6float2")
    assert [(each.get("dtype"), each.get("role")) for each in found["arguments"]] == [
        ("float32", "inout"), ("float32", "input"), ("int32", None), (None, None),
    ]  # fmt: skip
    assert "8 bytes of float2" in text
    found = pyyaml.safe_load(compiled("k.ptx", PTX, "softmax_kernel"))
    assert [each["dtype"] for each in found["arguments"]] == ["?", "int64", "float32"]
    with pytest.raises(RequestError, match="there are 2 kernels in it"):
        compiled("k.ptx", PTX)


def test_concepts_are_read_as_cpp20(drafted):
    source = (
        "template <class T> concept Number = sizeof(T) <= 8;\n"
        "template <Number T> __global__ void k(T* p) { p[threadIdx.x] += 1; }\n"
        "void run(float* p) { k<float><<<8, 32>>>(p); }\n"
    )
    text = drafted(source, "k")
    found = pyyaml.safe_load(text)
    assert (found["instance"], found["flags"]) == ("k<float>", ["-std=c++20"])
    assert "# Flag: -std=c++20, for a `concept`" in text
    assert "flags" not in pyyaml.safe_load(drafted(SOURCE, "plain"))
