"""The forms that a user's kernel comes in: each fused beside another kernel, and compared with itself unfused.

One small kernel a form, all with the signature of YAML below.
"""

# ruff: noqa: E501

import pytest

from fusiond.model.errors import RequestError
from fusiond.model.inputs.fills import fill
from fusiond.model.nouns import Config
from fusiond.model.program import Program, problems
from fusiond_hfuse.codegen import verify

from .conftest import STRICT, assembled

pytestmark = pytest.mark.slow  # about fifty builds

YAML = """\
kernel: k
source: k.cu
entry: k
sizes: {n: 1000}
arguments:
  - {name: out, dtype: int32, elements: n, role: inout, fill: iota}
  - {name: in, dtype: int32, elements: n, role: input, fill: {integers: [0, 99]}}
  - {name: n, dtype: int32, value: n}
block: {shape: [128]}
grid: ["ceil_div(n, block.x)"]
"""
K = "__global__ void k(int* out, const int* in, int n)\n{\n    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
STORE = "    if (i < n) out[i] = v;\n}\n"
SHARED = "    __shared__ int s[128];\n    s[threadIdx.x] = i < n ? in[i] : 0;\n    __syncthreads();\n"

FORMS = {
    "a block leaves as a whole": K + "    int row = blockIdx.x;\n    if (row * 2 > n) return;\n" + SHARED
        + "    int v = s[127 - threadIdx.x];\n" + STORE,
    # --- warps ---
    "warp intrinsics with masks": K + "    int v = i < n ? in[i] : 0;\n    unsigned lane = threadIdx.x % warpSize;\n"
        "    for (int o = 16; o > 0; o /= 2) v += __shfl_down_sync(0xffffffffu, v, o);\n"
        "    if (lane < 16) v += __shfl_xor_sync(0x0000ffffu, v, 1) + __popc(__ballot_sync(0xffffu, v & 1));\n"
        "    __syncwarp();\n    v += __any_sync(~0u, v == 3) + __all_sync(~0u, v >= 0) + __reduce_add_sync(~0u, 1u) + __match_any_sync(~0u, lane / 4) % 7;\n" + STORE,
    # --- helpers ---
    "a lambda that uses the dynamic array": K + "    extern __shared__ int pool[];\n    pool[threadIdx.x] = i;\n    __syncthreads();\n"
        "    auto f = [=](int at) { return pool[at]; };\n    int v = f(127 - threadIdx.x);\n" + STORE,
    "a helper with its own shared array, in a header": '#include "reverse.cuh"\n' + K + "    int v = reverse(i) + reverse<long>(2);\n" + STORE,
    "overloads, SFINAE, if constexpr, structured bindings": "namespace u {\ntemplate <bool, class> struct If {};\ntemplate <class T> struct If<true, T> { typedef T type; };\n"
        "template <class T> constexpr bool whole = T(0.5) == T(0);\ntemplate <class T> constexpr bool whole<T*> = false;\n"
        "template <class T, typename If<whole<T>, int>::type = 0> __device__ int kind(T) { return threadIdx.x; }\n"
        "template <class T, typename If<!whole<T>, int>::type = 0> __device__ int kind(T) { return 7; }\n"
        "__device__ int kind(const char*) { return 9; }\nstruct P { int a, b; };\n"
        "template <class T> __device__ auto pick(T t) -> decltype(kind(t)) { if constexpr (sizeof(T) > 4) return kind(t) * 2; else return kind(t); }\n}\n"
        + K + "    auto [a, b] = u::P{u::pick(1), u::pick(2.0)};\n    int v = a + b + u::kind(\"x\") + u::pick(3L);\n" + STORE,
    "recursion and a template's default": "template <int N = 4> __device__ int down(int a) { if constexpr (N > 0) return down<N - 1>(a + threadIdx.x); else return a; }\n"
        "__device__ int up(int a) { return a < 40 ? up(a + threadIdx.y + 9) : a; }\n" + K + "    int v = down(i) + up(threadIdx.x);\n" + STORE,
    "functors, constexpr, destructors that see nothing": "struct Twice { int f; constexpr __device__ Twice(int f) : f(f) {}\n"
        "    __device__ int operator()(int a) const { return a * f; }\n    __device__ operator int() const { return f; }\n    __device__ ~Twice() { f = 0; } };\n"
        "__host__ __device__ constexpr int three() { return 3; }\n" + K + "    Twice t(three());\n    int v = t(i) + t;\n" + STORE,
    "a function pointer to what sees nothing": "__device__ int inc(int a) { return a + 1; }\n" + K + "    int (*f)(int) = inc;\n    int v = f(i);\n" + STORE,
    "a virtual function that sees nothing": "struct B { __device__ virtual int f(int a) { return a; } };\n"
        "struct D : B { __device__ int f(int a) override { return a + 1; } };\n" + K + "    D d;\n    B* b = &d;\n    int v = b->f(i);\n" + STORE,
    "decltype, sizeof and the address of a built-in": K + "    decltype(threadIdx) t = threadIdx;\n    const uint3* p = &t;\n    decltype(blockDim) d = blockDim;\n"
        "    int v = p->x + d.x + sizeof(gridDim);\n" + STORE,
    # --- namespaces, linkage, macros, files ---
    "extern C blocks": '#ifdef __cplusplus\nextern "C" {\n#endif\n__device__ int f(int a) { if (a) { return threadIdx.x; } return 0; }\n' + K
        + "    int v = f(1);\n" + STORE + '#ifdef __cplusplus\n}\n#endif\nextern "C++" { __device__ int g() { return 1; } }\n',
    "macros that fall back": "#ifndef __CUDACC__\n#define __device__\n#endif\n#ifndef M_PI\n#define M_PI 3.0\n#endif\n#undef INFINITY\n#define INFINITY 7\n"
        + K + "    int v = M_PI * INFINITY;\n" + STORE,
    "a macro called as nothing of ours": "#define block 5\n#define thread 6\n#define grid 7\n#define shape 8\n#define value 9\n" + K
        + "    int v = block + thread + grid + shape + value;\n" + STORE,
    "lines that a backslash joins": "#define TWO(a) \\\n    ((a) + \\\n     threadIdx.x)\n// a comment \\\n   __syncthreads_count(1)\n" + K + "    int v = TWO(i);\n" + STORE,
    "carriage returns, tabs, a mark, no end": "\ufeff" + (K + "\tint v = threadIdx.x;\n" + STORE).replace("\n", "\r\n").rstrip(),
    "raw strings, separators, digraphs, lines": '#line 7 "elsewhere.y"\n%:define SEVEN 7\n__device__ const char* text() <% return R"(// " /* )"; %>\n'
        + K + "    int v = 1'000 + SEVEN + (text() != nullptr) + '\"'; // it's\n" + STORE,
    "characters beyond ASCII": "// größer als früher: Ω\n" + K + "    /* ← threadIdx */ int v = threadIdx.x; // ✓\n" + STORE,
    "another kernel, and its declaration": "__global__ void other(int* p);\ntemplate <class T> __global__ void third(T* p) { p[threadIdx.x] = 0; }\n" + K
        + "    int v = 3;\n" + STORE + "__global__ void other(int* p)\n{\n    __shared__ int s[4];\n    s[threadIdx.x] = 1; __syncthreads(); p[0] = ::threadIdx.x;\n}\n",
    # --- variables ---
    "tables in constant and device memory": "__constant__ int table[4] = {1, 2, 3, 5};\n__device__ const int more[2][2] = {{1, 2}, {3, 4}};\n"
        "static __constant__ float half_of = 0.5f;\nconstexpr int few = 3;\nenum Mode { Slow, Fast = 4 };\n" + K
        + "    static const int odd[3] = {7, 8, 9};\n    int v = table[i % 4] + more[i % 2][1] + int(half_of * 8) + odd[i % few] + Fast;\n" + STORE,
    "a shared array of the file": "__shared__ int pool[128];\nstatic __shared__ int one;\n__device__ int read(int at) { return pool[at] + one; }\n" + K
        + "    pool[threadIdx.x] = i;\n    if (threadIdx.x == 0) one = 3;\n    __syncthreads();\n    int v = read(127 - threadIdx.x);\n" + STORE,
    "an array of arrays in dynamic shared memory": K + "    extern __shared__ short t[][33];\n    t[threadIdx.x / 32][threadIdx.x % 32] = i;\n"
        "    __syncthreads();\n    int v = t[threadIdx.x % 4][threadIdx.x / 4];\n" + STORE,
    "dynamic shared memory, well aligned": K + "    extern __shared__ __align__(128) unsigned char raw[];\n    int* s = reinterpret_cast<int*>(raw);\n"
        "    s[threadIdx.x] = i;\n    __syncthreads();\n    int v = s[127 - threadIdx.x] + (reinterpret_cast<unsigned long long>(raw) % 128 == 0);\n" + STORE,
    "several names for one dynamic array": "extern __shared__ double wide[];\n__device__ void put(int v) { wide[threadIdx.x] = v; }\n" + K
        + "    extern __shared__ double wide[];\n    put(i);\n    __syncthreads();\n    int v = wide[127 - threadIdx.x];\n" + STORE,
    "a dynamic array the other way round, and registers": "__shared__ extern double wide[];\nextern int __shared__ cells[];\n"
        "__device__ void put(int v) { register int w = v; wide[threadIdx.x] = w; }\n" + K
        + "    // extern __shared__\n    put(i);\n    __syncthreads();\n    int v = wide[127 - threadIdx.x] + (wide == (double*)cells);\n" + STORE,
    # --- what else CUDA has ---
    "printf, assert, clocks, sleep, fences": "#include <cstdio>\n#include <assert.h>\n" + K + "    long long t = clock64();\n    __nanosleep(20);\n    __threadfence_block();\n"
        "    assert(threadIdx.x < blockDim.x);\n    if (n < 0) printf(\"%d\\n\", i);\n    int v = clock64() >= t;\n" + STORE,
    "launch bounds from a constant":
        "constexpr int most = 64 * 4;\n__global__ void __launch_bounds__(most, 2) k(int* out, const int* in, int n)\n{\n"
        "    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n    int v = 5;\n" + STORE,
    "a register cap in the source": "__global__ void __maxnreg__(64) k(int* out, const int* in, int n)\n{\n"
        "    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n    int v = 6;\n" + STORE,
}  # fmt: skip
FOR_NVCC = {
    "harmless assembly": K + "    int v;\n    asm(\"mov.u32 %0, %%laneid;\" : \"=r\"(v));\n" + STORE,
}  # fmt: skip
HEADER = """\
#ifndef REVERSE_CUH
#define REVERSE_CUH
template <typename T = int> __device__ int reverse(T v)
{
    __shared__ T cells[128];
    __syncthreads();
    cells[threadIdx.x] = v;
    __syncthreads();
    return cells[blockDim.x - 1 - threadIdx.x];
}
#endif
"""

CONFIGS = [
    {"kind": "horizontal", "level": "warp", "map": "pad", "threads.a": 256, "threads.b": 128, "order": "ab"},
    {"kind": "vertical", "threads": 128, "order": "ba"},
]


@pytest.fixture
def beside_hist(analyse, kernel_file, tmp_path):
    def analysis(source: str, yaml: str = YAML):
        if "extern __shared__" in source:
            yaml += "shared: 4224\n"
        (tmp_path / "reverse.cuh").write_text(HEADER)
        name = kernel_file("k", "", yaml)
        (tmp_path / "k.cu").write_bytes(source.encode())
        return analyse(name, "hist", sizes={"hist.n": 3000}, granularity=128)

    return analysis


def chosen(strategy, analysis, wanted):
    """A point of the space: only the keys that it knows."""
    program = strategy.emit(analysis, chosen_config(strategy, analysis, wanted), {})
    assert isinstance(program, Program), program
    return program


def chosen_config(strategy, analysis, wanted):
    known = {each.name for each in strategy.space(analysis, {}).parameters}
    return Config.of({key: value for key, value in wanted.items() if key in known})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.sampled(10)
def test_a_form_gives_what_it_gives_unfused(beside_hist, strategy, same, name):
    analysis = beside_hist(FORMS[name])
    assert analysis.rejections == ()
    for wanted in CONFIGS:
        same(chosen(strategy, analysis, wanted), strategy.unfused(analysis, Config.of(wanted)))


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("name", [*FORMS, *FOR_NVCC])
@pytest.mark.sampled(12)
def test_nvcc_takes_every_form_and_nothing_leaks(beside_hist, strategy, tmp_path, name):
    program = chosen(strategy, beside_hist({**FORMS, **FOR_NVCC}[name]), CONFIGS[0])
    arch = ("sm_80", "sm_90", "sm_100")[len(name) % 3]
    assert (
        verify.lint(assembled(program.sources[0], tmp_path, arch, *STRICT[:2])[0]) == ()
    )  # the user's own comments may end in `\\`


MOVED = """\
__device__ int swapped(int v)
{
    __shared__ int cells[4][129], count;
    cells[threadIdx.x % 4][threadIdx.x / 4] = v;
    if (threadIdx.x == 0) count = 3;
    __syncthreads();
    return cells[3 - threadIdx.x % 4][threadIdx.x / 4] + count;
}
__device__ int put(int at, int v) { __shared__ short last[128]; last[at] = v; __syncthreads(); return last[at ^ 1]; }
__global__ void k(int* out, const int* in, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ __align__(64) double pool[3500];
    extern __shared__ int more[];
    pool[threadIdx.x * 27] = i;
    more[threadIdx.x] = in[i % n];
    __syncthreads();
    if (i < n) out[i] = int(pool[(127 - threadIdx.x) * 27]) + more[threadIdx.x ^ 1];
    const int v = swapped(i) + put(threadIdx.x, i);
    if (i < n) out[i] += v;
}
"""


@pytest.mark.parametrize("wanted", CONFIGS, ids=str)
def test_static_arrays_that_are_too_large_together_become_dynamic(analyse, strategy, same, kernel_file, wanted):
    yaml = YAML + "shared: 512\n"
    analysis = analyse(
        kernel_file("k", MOVED, yaml), kernel_file("k", MOVED, yaml), sizes={"b.n": 600}, granularity=128
    )
    assert analysis.rejections == ()
    if wanted["kind"] == "horizontal":
        wanted = {**wanted, "threads.a": 128}
    program = chosen(strategy, analysis, wanted)
    assert "__shared__ __align__(64)" in program.sources[0].text
    assert program.sources[0].text.count("__shared__") == 1  # the arena
    assert program.steps[-1].shared_bytes >= 2 * (3500 * 8 + 4 * 129 * 4 + 4 + 256 + 512)
    same(program, strategy.unfused(analysis, Config.of(wanted)))


# --- arguments by value, and variables that the host sets ------------------------------------------------

RECORDS = """\
namespace ops {
enum class Mode : int { Plain, Twice = 2 };
enum class Width : unsigned long { Narrow, Wide = 1ul << 40 };
enum Small : unsigned char { None, Most = 200 };
template <class T, int Rank> struct Layout { T extent[Rank]; struct { short low; double high; } bounds; bool on; };
__constant__ float weights[4];
__device__ int start;
__device__ unsigned long long seen[2];
template <class T> __global__ void k(int* out, Layout<T, 2> layout, const float4 scale, uint2 pair, Mode mode, Width width, Small small, T n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (threadIdx.x == 0) atomicAdd(&seen[1], 2ull);
    out[i] = layout.extent[0] + 10 * layout.extent[1] + layout.bounds.low + int(layout.bounds.high * 8) + layout.on
        + int(scale.w) + pair.y + int(mode) + 1000 * (width == Width::Wide) + (small == Most) + int(weights[i % 4] * 64) + start;
}
}
"""
RECORDS_YAML = """\
kernel: records
source: records.cu
entry: ops::k
instance: "ops::k<long>"
sizes: {n: 500}
arguments:
  - {name: out, dtype: int32, elements: n, role: output}
  - name: layout
    struct: {"extent[0]": n, "extent[1]": "n // block.x", bounds.low: -3, bounds.high: {dtype: float64, value: 0.25}, on: 1}
  - {name: scale, struct: {x: 1, y: 0.5, z: 2, w: n + 1}}
  - {name: pair, bytes: "01000000 02010000"}
  - {name: mode, dtype: int32, value: 2}
  - {name: width, dtype: uint64, value: 1099511627776}
  - {name: small, dtype: uint8, value: 200}
  - {name: n, dtype: int64, value: n}
constants:
  - {symbol: "ops::weights", dtype: float32, elements: 4, fill: {uniform: [0, 1]}}
  - {symbol: "ops::start", name: begin, dtype: int32, elements: 1, fill: {constant: 77}}
  - {symbol: "ops::seen", dtype: uint64, elements: 2, role: inout, fill: {constant: 5}}
block: {shape: [64], tune: x}
grid: ["ceil_div(n, block.x)"]
"""


@pytest.fixture
def records(kernel_file):
    def write(old: str = "", new: str = "", source: str = RECORDS) -> str:
        assert old in RECORDS_YAML
        return kernel_file("records", source, RECORDS_YAML.replace(old, new))

    return write


@pytest.mark.parametrize("wanted", CONFIGS, ids=str)
def test_structs_by_value_and_variables_that_the_host_sets(analyse, strategy, same, runner, records, wanted):
    analysis = analyse(records(), records(), sizes={"b.n": 900})
    assert analysis.rejections == ()
    if wanted["kind"] == "horizontal":
        wanted = {**wanted, "threads.a": 128}
    program = chosen(strategy, analysis, wanted)
    assert problems(program) == ()
    reference = strategy.unfused(analysis, Config.of(wanted))
    assert problems(reference) == ()
    same(program, reference)
    got = runner.run(program)
    weights = (fill(program.buffer("a.weights"), 1) * 64).astype(int)
    assert list(got["a.out"][:4]) == [
        500 + 10 * (500 // 128) - 3 + 2 + 1 + 501 + 258 + 2 + 1001 + w + 77 for w in weights
    ]
    assert [list(got[f"{letter}.seen"]) for letter in "ab"] == [[5, 5 + 2 * 4], [5, 5 + 2 * 8]]
    assert {each.symbol for each in program.buffers if each.symbol} >= {"fused:fusiond_a::ops::weights"}


@pytest.mark.needs_nvcc
def test_nvcc_takes_structs_and_variables(analyse, strategy, records, tmp_path):
    program = chosen(strategy, analyse(records(), "hist"), CONFIGS[0])
    assert verify.lint(assembled(program.sources[0], tmp_path, "sm_90", *STRICT)[0]) == ()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("bounds.low: -3, ", "", "layout does not give bounds.low of 'Layout<T, 2>'"),
        ("bounds.low: -3", "bounds.lo: -3", "unknown member 'bounds.lo'; did you mean 'bounds.low'?"),
        ("bounds.low: -3", "bounds.low: -0.5", "bounds.low is -0.5; int16 takes whole numbers"),
        ("bounds.low: -3", "bounds.low: 70000", "layout: 70000 does not fit int16"),
        ("dtype: float64, value: 0.25", "dtype: float32, value: 0.25", "bounds.high is float32, but"),
        ('bytes: "01000000 02010000"', 'bytes: "0100"', "pair has 2 bytes, but 'uint2' has 8"),
        ('bytes: "01000000 02010000"', "bytes: no", "is "),
        ("{name: scale, struct: {x: 1, y: 0.5, z: 2, w: n + 1}}", "{name: scale, dtype: float32, value: 1}",
         "scale: the kernel's parameter is 'const float4', a struct, with `struct:` or `bytes:`"),
        ("{name: mode, dtype: int32, value: 2}", "{name: mode, struct: {a: 1}}", "is 'Mode', not a struct"),
        ("ops::weights", "ops::weight", "unknown variable of the source 'ops::weight'; did you mean 'ops::weights'?"),
        ("elements: 4,", "elements: 5,", "ops::weights has 16 bytes in the source, and 20 here"),
        ('"ops::start", name: begin, dtype: int32', '"ops::start", name: begin, dtype: int64', "ops::start is int32 in the source, not int64"),
        ("elements: 4, fill", "elements: 4, role: inout, fill", "ops::weights is __constant__, so its role is input"),
        ("name: begin", "name: out", "two arguments are called 'out'"),
    ],
)  # fmt: skip
def test_a_wrong_struct_or_variable_is_one_line(analyse, records, old, new, problem):
    with pytest.raises(RequestError) as caught:
        analyse(records(old, new), "hist")
    assert problem in str(caught.value)
    assert "records.yaml:" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("struct S { int* p; };", "unknown member 'a'; known: p"),
        ("struct S { int** p; };", "p of 'S' is a pointer to int *"),
        ("struct T { T* next; }; struct S { T* p; };", "p of 'S' is a pointer to T"),
        ("struct S { int a : 3; };", "a of 'S' is a bit field"),
        ("union S { int a; float b; };", "is a union"),
        ("struct B { int a; }; struct S : B { int b; };", "s does not give b of 'S'"),
        ("struct B { int a; }; struct C { int c; }; struct S : B, C {};", "is a struct with several bases"),
        ("struct S { int a; virtual int f(); };", "virtual methods"),
        ("struct S { int a[5000]; };", "a of 'S' is an array of 5000"),
    ],
)
def test_a_struct_that_a_program_cannot_hold(analyse, kernel_file, source, problem):
    yaml = (
        "kernel: s\nsource: s.cu\nentry: s\narguments: [{name: s, struct: {a: 1}}]\nblock: {shape: [32]}\ngrid: [1]\n"
    )
    with pytest.raises(RequestError) as caught:
        analyse(kernel_file("s", source + "\n__global__ void s(S s) {}\n", yaml), "hist")
    assert problem in str(caught.value)
