"""Files that include what is not here: a library's types beside the kernel, PyTorch's, switches of a build. All sources
are of our own; results are NumPy's."""

# ruff: noqa: E501

from __future__ import annotations

import numpy as np
import pytest

from fusiond.errors import RequestError
from fusiond.model import Config
from fusiond.program import Program
from fusiond_hfuse.frontend import (
    clang_tree,
    cursors,
    declarations,
    directives,
    includes,
    kernel_parser,
    name_resolution,
    slicing,
    undeclared,
)

YAML = """\
kernel: k
source: k.cu
entry: k
sizes: {n: 300}
arguments:
  - {name: out, dtype: int32, elements: n, role: output}
  - {name: n, dtype: int32, value: n}
block: {shape: [128]}
grid: ["ceil_div(n, 128)"]
"""
HEAD = "__global__ void k(int* out, int n)\n{\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
TAIL = "    if (i < n) out[i] = value;\n}\n"
CONFIG = {"kind": "horizontal", "level": "warp", "map": "pad", "order": "ab", "threads.a": 256, "threads.b": 128}
GONE = '#include "gone.h"\n'
TORCH = "#include <torch/extension.h>\n"

READ = {
    "a struct of a library's types, and what takes it": GONE + "struct Mesh { gone::Vector at; };\n__device__ int size(const Mesh& m) { return m.at.n; }\n"
        + HEAD + "    int size = i + 1;\n    int value = size;\n" + TAIL,
    "a method of such a struct": GONE + "struct Mesh { int n; __device__ int size() const; };\n__device__ int Mesh::size() const { return gone::size(n); }\n"
        + HEAD + "    Mesh mesh{i + 1};\n    int value = mesh.n;\n" + TAIL,
    "an overload for a library's type": TORCH + "__device__ int next(at::Nothing v) { return 7; }\n__device__ int next(int v) { return v + 1; }\n"
        + HEAD + "    int value = next(i);\n" + TAIL,
    "an operator for what is not reached": GONE + "struct Pair { int a, b; };\n__device__ Pair operator+(Pair p, Pair q) { return gone::sum(p, q); }\n"
        + HEAD + "    int value = i + 1;\n" + TAIL,
    "a member that is called like a function": GONE + "struct Cell { int lookup; };\n__device__ int lookup(gone::Table t) { return t.find(1); }\n"
        + HEAD + "    Cell cell{i + 1};\n    int value = cell.lookup;\n" + TAIL,
    "a parameter that is called like a function for a library's type": GONE + "__device__ int next(int v) { return v; }\n__device__ int next(gone::Row r) { return r.n; }\n"
        + "__device__ int more(int next) { return next + 1; }\n" + HEAD + "    int value = more(i);\n" + TAIL,
    "an enumerator of a class that is called like a function": GONE + "struct Cell { enum { lookup = 1 }; };\n__device__ int lookup(gone::Table t) { return t.find(1); }\n"
        + HEAD + "    int value = i + Cell::lookup;\n" + TAIL,
    "functors as C++ had them": "#include <functional>\nstruct Next : public std::unary_function<int, int> { __device__ result_type operator()(argument_type n) const { return n + 1; } };\n"
        + HEAD + "    int value = Next()(i);\n" + TAIL,
    "a condition that decides nothing": GONE + "#if HAS_HALVES(1)\n#include <cuda_fp16.h>\n#endif\n" + HEAD + "    int value = i + 1;\n" + TAIL,
    "a branch that only the host's compiler reads": "template <class T> struct Bits { enum { wide = 8 }; };\n#if __GNUC__ > 5\ntemplate <> struct Bits<float> { enum { wide = 32 }; };\n#endif\n"
        + HEAD + "    int value = i + 1;\n" + TAIL,
    "two kernels of a name": YAML.replace("entry: k\n", 'entry: k\ninstance: "k(int*, int)"\n') + "---" + "__device__ int lane() { return threadIdx.x; }\n"
        "__global__ void k(float* out, int n) { out[lane()] = 7; }\n" + HEAD + "    int value = i + 1;\n" + TAIL,
    "a kernel that is declared for something else, too": "__global__ void k(int* out, int n, float scale);\n" + HEAD + "    int value = i + 1;\n" + TAIL,
    "braces of a branch that is not read": '#ifdef __cplusplus\nextern "C" {\n#endif\n#ifdef __cplusplus\nenum Kind : int {\n#else\nenum Kind {\n#endif\n    None, One\n};\n'
        + HEAD + "    int value = i + One;\n" + TAIL + "#ifdef __cplusplus\n}\n#endif\n",
    "orders of memory as C++ calls them": "#include <cuda/atomic>\n" + HEAD + "    int value = i;\n    cuda::atomic_ref<int, cuda::thread_scope_device> at(value);\n"
        "    at.fetch_add(1, cuda::std::memory_order_relaxed);\n" + TAIL,
    "complex numbers of CUDA's": "#include <cuComplex.h>\n" + HEAD + "    cuDoubleComplex z = cuCmul(make_cuDoubleComplex(i + 1, 2), make_cuDoubleComplex(0, 1));\n"
        "    int value = (int)cuCimag(cuCdiv(cuCadd(z, z), make_cuDoubleComplex(2, 0)));\n" + TAIL,
    "complex numbers of PyTorch's": TORCH + HEAD + "    c10::complex<float> z(i + 1, 2);\n    z *= c10::complex<float>(0, 1);\n    z /= c10::complex<float>(2, 0);\n"
        "    int value = (int)((z + z).imag() - (-z - z).real() - 2);\n" + TAIL,
    "namespaces that macros open and close": "#define OPEN_INNER namespace outer { namespace inner {\n#define CLOSE_INNER }}\n#define NAMESPACE(name) namespace name\n"
        "OPEN_INNER\n__device__ int one() { return 1; }\nstruct Host { gone::Type at; };\nCLOSE_INNER\nNAMESPACE(third) {\n__device__ int more(int n) { return n + outer::inner::one(); }\n}\n"
        + HEAD + "    int value = third::more(i);\n" + TAIL,
    "templates of a class that are deleted": "struct Cell {\n    int n;\n    template <class T> Cell& operator+=(const T& other) = delete;\n    template <class T> Cell& operator<<=(const T& other) = delete;\n};\n"
        + HEAD + "    Cell cell{i + 1};\n    int value = cell.n;\n" + TAIL,
    "what an operator of a class with friends calls": "class Cell {\n    template <class T> friend class Grid;\n    int n;\n    int* place() { return where(&n); }\n    int* where(int* p) { return p; }\n"
        "public:\n    Cell(int n) : n(n) {}\n    int* operator->() { return place(); }\n    __device__ int next() const { return n + 1; }\n    static __device__ int of(int i) { return i + 1; }\n};\n"
        + HEAD + "    int value = Cell::of(i);\n" + TAIL,
    "a switch of PyTorch's": TORCH + "C10_LAUNCH_BOUNDS_1(512)\n" + HEAD + "    int value = (int)(at::opmath_type<c10::Half>)i + 1;\n" + TAIL,
}  # fmt: skip


@pytest.fixture
def beside_hist(analyse, kernel_file):
    def beside(source: str):
        yaml, _, text = source.rpartition("---")
        return analyse(kernel_file("k", text, yaml or YAML), "hist")

    return beside


@pytest.fixture
def arrays(beside_hist, strategy, runner):
    """What a source's fused kernel, and the kernel by itself, leave behind."""

    def run(source: str):
        analysis = beside_hist(source)
        assert analysis.rejections == ()
        for program in (strategy.emit(analysis, Config.of(CONFIG), {}), strategy.unfused(analysis, Config.of(CONFIG))):
            assert isinstance(program, Program), program
            found = runner.run(program)
            assert isinstance(found, dict), found
            yield found

    return run


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", READ)
def test_it_is_read_and_fused(arrays, name):
    for found in arrays(READ[name]):
        np.testing.assert_array_equal(found["b.out"], np.arange(1, 301))


NVCC = {
    "a `template` that is left out": "struct Tile { template <int N> static __device__ int of() { return 0 * N; } template <int N> __device__ int at(int n) { return n + N; } };\ntemplate <class T> __device__ int more(T tile, int n) { return tile.at<1>(n) + T::of<3>(); }\n"
        + HEAD + "    int value = more(Tile(), i);\n" + TAIL,
    "a pragma in a macro": "#define UNROLL #pragma unroll\n" + HEAD + "    int value = 1;\n    UNROLL\n    for (int at = 0; at < 1; ++at) value += i;\n" + TAIL,
}  # fmt: skip


@pytest.mark.parametrize("name", NVCC)
def test_what_only_nvcc_takes_is_read(beside_hist, name):
    assert beside_hist(NVCC[name]).rejections == ()


REFUSED = {
    "an overload for a type that may be a number": (GONE + "__device__ int next(Index v) { return 7; }\n__device__ int next(double v) { return 0; }\n"
        + HEAD + "    int value = next(i);\n" + TAIL, "`Index` is declared in none of the files"),
    "an overload with a library's type in its body": (TORCH + "__device__ int next(int v) { return at::Nothing(v); }\n__device__ int next(double v) { return 0; }\n"
        + HEAD + "    int value = next(i);\n" + TAIL, "`at::Nothing`, which is PyTorch's"),
    "what the kernel needs": (GONE + "struct Mesh { gone::Vector at; };\n" + HEAD + "    Mesh mesh;\n    int value = mesh.at.n;\n" + TAIL, "`gone` is declared in none"),
    "a macro of a header that a build makes": ("#if HAS_HALVES(1)\n__device__ int one() { return 1; }\n#else\n__device__ int one() { return 2; }\n#endif\n"
        + HEAD + "    int value = i + one();\n" + TAIL, r"a condition asks for `HAS_HALVES\(\.\.\.\)`, a macro that none of the files defines"),
    "a function of the host": ("int host(int n) { return n; }\n" + HEAD + "    int value = host(i);\n" + TAIL,
        r"`host` is a function of the host: where it is declared \(.*k\.cu:1\), no `__device__` is read"),
    "a class that a macro of a missing header aligns": (GONE + "struct ALIGNED(8) Pair { int a, b; };\n" + HEAD + "    Pair pair{i, 1};\n    int value = pair.a;\n" + TAIL,
        r"`Pair` \(.*k\.cu:2\) is declared with `ALIGNED`, a macro that none of the files defines \(not read: \"gone\.h\"\)"),
    "waiting for the launch before": (HEAD + "    cudaGridDependencySynchronize();\n    int value = i;\n" + TAIL, r"waits for the launch before this one \(programmatic"),
    "two kernels of a name, and none is said": ("__global__ void k(float* out, int n) { out[0] = 7; }\n" + HEAD + "    int value = i;\n" + TAIL,
        r'k is defined more than once; say which by its types: `instance: "k\(float \*, int\)"`'),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_left_out_is_said(beside_hist, name):
    source, said = REFUSED[name]
    with pytest.raises(RequestError, match=said):
        beside_hist(source)


HALVES = YAML.replace("dtype: int32, elements: n, role: output", "dtype: float16, elements: n, role: output").replace(
    "arguments:\n", "arguments:\n  - {name: in, dtype: float16, elements: n, role: input, fill: {uniform: [-9, 9]}}\n"
)


@pytest.mark.slow
def test_a_half_of_pytorch_is_worked_with_as_a_float(arrays):
    """Rounded once an operation, as NumPy's float16 is."""
    source = (
        TORCH
        + "__global__ void k(const at::Half* in, at::Half* out, int n)\n{\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    )
    source += "    if (i < n) out[i] = in[i] * in[i] + c10::Half(0.5f) - in[i] / 3;\n}\n"
    for found in arrays(HALVES + "---" + source):
        given = found["b.in"].astype(np.float16)
        want = given * given + np.float16(0.5) - given / np.float16(3)
        np.testing.assert_array_equal(found["b.out"].view(np.float16), want.view(np.float16))


ACCESSORS = """\
kernel: k
source: k.cu
entry: k
sizes: {n: 70}
arguments:
  - name: in
    struct:
      data_: {dtype: float32, elements: 3 * n, role: input, fill: {uniform: [0, 1]}}
      "sizes_[0]": 3
      "sizes_[1]": n
      "strides_[0]": n
      "strides_[1]": 1
  - name: out
    struct:
      data_: {dtype: float32, elements: n, role: output}
      "sizes_[0]": n
      "strides_[0]": 1
block: {shape: [128]}
grid: [1]
"""


@pytest.mark.slow
def test_accessors_of_pytorch_are_read_without_its_headers(arrays):
    source = TORCH + (
        "__global__ void k(const torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> in,\n"
        "                  torch::PackedTensorAccessor64<float, 1> out)\n{\n    int i = threadIdx.x;\n    if (i >= in.size(1)) return;\n"
        "    float sum = 0;\n    for (int row = 0; row < in.size(0); ++row) sum += in[row][i];\n    out[i] = sum;\n}\n"
    )
    for found in arrays(ACCESSORS + "---" + source):
        rows = found["b.in.data_"].reshape(3, 70)
        np.testing.assert_array_equal(found["b.out.data_"], rows[0] + rows[1] + rows[2])


BODIES = """\
#define UNUSED(name) int name() { return 1; }
#define HEAD_OF(name) int name(int a)
UNUSED(made)
HEAD_OF(headed) { return a; }
int plain(int a) { if (a) { return '{'; } return '}'; }
int only(int a);
struct Pair { int a, b; Pair(int x) : a(x), b{x + (1)} { } Pair() : Pair(3) { } int sum() const noexcept { return a + b; } };
template <class... T> struct All : T... { All(T... each) : T(each)... { int n = 0; } };
Pair operator+(Pair p, Pair q) { return Pair(p.a + q.a); }
auto later(int a) -> decltype(a + 1) { return a + 1; }
int guarded(int a) try { return a; } catch (...) { return 0; }
#if 0
} } {
#endif
int branches(int a)
{
#ifdef NOT_THIS
    if (a) {
#else
    {
#endif
        return "}}"[0]; /* } */
    }
}
extern "C" int linked(int a) { return a; }
extern "C" { int braced(int a) { return a; } int far; }
namespace inner { template <int N> int deep() { auto f = [](int a) { return a; }; return f(N); } }
struct Gone { ~Gone() = default; Gone& operator=(const Gone&) = delete; virtual int of() = 0; };
constexpr int constant(int a) { return a; }
int values[] = {1, 2, 3};
"""


def test_bodies_that_are_not_parsed_end_where_clang_says():
    """The tree without bodies costs a fifth; what stands or goes is the same as by the whole tree."""
    code = clang_tree.blanked(BODIES.encode())
    found = []
    for bodies in (True, False):
        tree = clang_tree.tolerant(BODIES, (), (), (), "800", host=False, bodies=bodies)
        assert not [each for each in tree.diagnostics if each.severity >= 3]
        walk = declarations.DeclarationWalk(code, set(), None if bodies else cursors.skipped(tree, clang_tree.MAIN))
        found.append(
            [(each.start, each.end, each.names, each.words, each.host) for each in walk.declarations(tree.cursor)]
        )
        cursors.forget(tree)
    assert len(found[0]) > 15
    assert found[0] == found[1]


def _without_oddities(marks: str, end: int) -> int:
    """Takes the first brace for a body's, whatever stands between."""
    at = marks.find("{", end)
    return end if at < 0 or marks[end:at].strip() else declarations._closed(marks, at)


MUTANTS = {
    "what is broken stays": (slicing, "_without_broken", lambda *asked: slicing._found(*asked[:-1], frozenset(), asked[-1])),
    "conditions stay": (directives, "without_idle_conditions", lambda text, code, included: text),
    "kernels of one name stay": (slicing, "_other_overloads", lambda groups, entry, instance: frozenset()),
    "PyTorch's headers are nothing": (includes._Expansion, "_torch", includes._Expansion._missing),
    "pragmas in macros stay": (clang_tree, "_PRAGMA_OF_MACRO", clang_tree.re.compile("never written")),
    "words are not resolved": (name_resolution.NameResolution, "words", lambda self, declaration: declaration.words),
    "nothing is deleted": (declarations, "_BEHIND", clang_tree.re.compile(r"\s*;")),
    "macros bracket nothing": (
        declarations.DeclarationWalk, "_brackets", lambda self, start, end: {(start, self.code.index("{", start) + 1), (end - 1, end)}
    ),
    "a declaration is not a reason": (undeclared, "reason", lambda problem, unit, defines, flags: problem),
    "any overload goes": (slicing, "_OF_LIBRARIES", clang_tree.re.compile("")),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.sampled(16)
def test_a_mutant_dies(beside_hist, monkeypatch, name):
    place, what, instead = MUTANTS[name]

    def forget() -> None:
        for kept in (slicing._found, slicing._walked, kernel_parser._parsed):
            kept.cache_clear()

    forget()
    monkeypatch.setattr(place, what, instead)
    died = 0
    for source in (*READ.values(), *NVCC.values()):
        try:
            died += bool(beside_hist(source).rejections)
        except RequestError:
            died += 1
    for source, said in REFUSED.values():
        try:
            beside_hist(source)
            died += 1
        except RequestError as problem:
            died += clang_tree.re.search(said, str(problem)) is None
    forget()
    assert died


def test_the_extents_without_bodies_have_a_mutant(monkeypatch):
    monkeypatch.setattr(declarations, "_behind_body", _without_oddities)
    with pytest.raises(AssertionError):
        test_bodies_that_are_not_parsed_end_where_clang_says()
