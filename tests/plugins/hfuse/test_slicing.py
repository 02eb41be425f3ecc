"""Kernels in files as people have them: host code, other kernels, headers that are not there."""

# ruff: noqa: E501

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Config
from fusiond.model.program import Program
from fusiond_hfuse.frontend import cursors, directives, kernel_parser, slicing
from fusiond_hfuse.frontend.clang_tree import Reading
from fusiond_hfuse.frontend.source_kernel import TranslationUnit

from .conftest import assembled

YAML = """\
kernel: k
source: k.cu
entry: {entry}
sizes: {{n: 1000}}
arguments:
  - {{name: out, dtype: int32, elements: n, role: inout, fill: iota}}
  - {{name: in, dtype: int32, elements: n, role: input, fill: {{integers: [0, 99]}}}}
  - {{name: n, dtype: int32, value: n}}
block: {{shape: [128]}}
grid: ["ceil_div(n, block.x)"]
"""
K = "__global__ void k(int* out, const int* in, int n)\n{\n    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
STORE = "    if (i < n) out[i] = v;\n}\n"
HOST = """\
#include <cublas_v2.h>
#include <curand.h>
#include <thrust/device_vector.h>
#include "helper_cuda.h"
static cublasHandle_t handle;
cudaArray *first, *second;
texture<float, 2> picture;
using namespace thrust;
cublasStatus_t check(cublasStatus_t status, const char* what) { if (status) { printf("%s\\n", what); } return status; }
struct Job { std::vector<std::string> names; cublasHandle_t handle; void run(cudaStream_t stream); };
void Job::run(cudaStream_t stream) { k<<<8, 128, 0, stream>>>(nullptr, nullptr, 0); }
template <class T> void show(const thrust::device_vector<T>& v) { for (auto each : v) std::cout << each; }
template void show<float>(const thrust::device_vector<float>&);
"""
OTHERS = """\
__global__ void grid(int* p) { cooperative_groups::this_grid().sync(); asm volatile("bar.sync 0;"); }
__global__ void image(cudaTextureObject_t t, float* p) { p[threadIdx.x] = tex2D<float>(t, threadIdx.x, 0); }
template <class T> __global__ void again(T* p) { again<T><<<1, 1>>>(p); }
__global__ void unknown(curandState* s) { curand_init(1, 2, 3, s); }
__device__ int total;
__constant__ float weights[9];
"""
MAIN = """\
int main(int argc, char** argv)
{
    #pragma omp parallel for
    for (int i = 0; i < 10; ++i) {
        int* out; cudaMalloc(&out, 4000);
        #define N 1000
        k<<<(N + 127) / 128, 128>>>(out, out, N);
    }
    return cublasCreate(&handle);
}
"""
GUARDED = """\
#ifndef GUARD_H
#define GUARD_H
#include "not_there.h"
#if defined(_WIN32) || __cplusplus < 201103L
typedef int word;
#else
typedef int word;
#endif
#ifdef OF_THE_HOST
int host();
#endif
"""
FILES: dict[str, str | bytes] = {
    "host code round it": HOST + K + "    int v = in[i < n ? i : 0] + 1;\n" + STORE + MAIN,
    "other kernels": OTHERS + K + "    int v = i;\n" + STORE + OTHERS.replace("__device__ int total;", "").replace(
        "__constant__ float weights[9];", "").replace("void ", "void other_"),
    "a byte that is not UTF-8": b"// caf\xe9\n" + (K + "    int v = 'e'; // na\u00efve\n" + STORE).encode("latin-1"),
    "types through types": HOST + "typedef int word;\nusing line = word;\nenum Kind { FIRST, SECOND = 7 };\n"
        "typedef struct { line at; Kind kind; } Row, *Rows;\nstruct Unused { Unknown member; };\n"
        + K + "    Row row = {i, SECOND};\n    int v = row.at * row.kind;\n" + STORE,
    "conditions that decide nothing": GUARDED + K + "    word v = i;\n" + STORE + "#endif\n",
    "constants": "static constexpr int A = 3, B = A + 1;\n__device__ const int table[2] = {A, B};\n"
        "__constant__ int unused;\n" + K + "    int v = table[i % 2];\n" + STORE,
    "helpers through helpers": MAIN.replace("main", "run") + "__device__ int third(int);\n"
        "namespace inner {\n__device__ int second(int x) { return third(x) + 1; }\n"
        "__device__ int never(Unknown x) { return x; }\n}\n"
        "__device__ int first(int x) { return inner::second(x) * 2; }\n" + K + "    int v = first(i);\n" + STORE
        + "__device__ int third(int x) { return x ^ 5; }\n",
    "overloads, specialisations, operators": "struct P { int x, y; };\n"
        "__device__ P operator+(P a, P b) { return {a.x + b.x, a.y + b.y}; }\n"
        "template <int N> __device__ int power(int x) { return x * power<N - 1>(x); }\n"
        "template <> __device__ int power<0>(int) { return 1; }\n"
        "__device__ int f(int x) { return x; }\n__device__ int f(float x) { return 2 * x; }\n"
        + K + "    P p = P{i, 1} + P{2, 3};\n    int v = p.x + p.y + power<3>(i % 7) + f(1) + f(1.0f);\n" + STORE,
    "macros": "#define HELPER(x) helper_of(x)\n#define TYPE int\n__device__ TYPE helper_of(TYPE x) { return x + 1; }\n"
        + K + "    int v = HELPER(i);\n" + STORE,
    "in C's linkage": 'extern "C" {\nint host(cudaStream_t s) { return unknown(s); }\n' + K + "    int v = 2 * i;\n" + STORE + "}\n"
        'extern "C" void other(cublasHandle_t h);\n',
    "a kernel of the same name elsewhere": "namespace a { __global__ void k(float* p) { asm(\"exit;\"); } }\n" + K
        + "    int v = 3 * i;\n" + STORE + "namespace b { template <class T> __global__ void k(T* p) { total(p); } }\n",
    "aligned in every way": "template <class T> struct alignas(16) Four { T part[4]; };\n" + K
        + "    __shared__ alignas(16) int a[4];\n    __shared__ alignas(alignof(double2)) float b[4];\n"
        "    __shared__   alignas(8) int c[2];\n    alignas(8) __shared__ int d[2];\n"
        "    Four<int> four = {{1, 2, 3, 4}};\n    if (threadIdx.x == 0) { a[1] = 5; b[2] = 6; c[1] = 7; d[0] = 8; }\n"
        "    __syncthreads();\n    int v = four.part[i % 4] + a[1] + (int)b[2] + c[1] + d[0];\n" + STORE,
    "constants in parentheses": "constexpr int wide(16), more((wide + 1) * 2);\nconst int unused(3);\n__device__ const float half_of(wide / (2 * 16.f));\n" + K
        + "    int v = wide + more + (int)(half_of * 4);\n" + STORE,
    "names of textures for what is none": "__device__ int f(int texture, int surface) { return texture - surface; }\n" + K
        + "    int v = f(i, n);\n" + STORE,
    "addresses as numbers that a header would bring": "#include <cublas_v2.h>\n" + K
        + "    int v = reinterpret_cast<uintptr_t>(in) % 16 == 0 ? i : -i;\n" + STORE,
}  # fmt: skip


@pytest.fixture
def beside_hist(analyse, kernel_file, tmp_path):
    def analysis(source: str | bytes, entry: str = "k"):
        name = kernel_file("k", "", YAML.format(entry=entry))
        (tmp_path / "k.cu").write_bytes(source if isinstance(source, bytes) else source.encode())
        return analyse(name, "hist", sizes={"hist.n": 3000}, granularity=128)

    return analysis


EVEN = {"kind": "horizontal", "level": "warp", "map": "pad", "order": "ab", "threads.a": 512, "threads.b": 128}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@pytest.mark.sampled(2)
def test_a_file_is_taken_as_it_stands(beside_hist, strategy, same, name):
    analysis = beside_hist(FILES[name])
    assert analysis.rejections == ()
    program = strategy.emit(analysis, Config.of(EVEN), {})
    assert isinstance(program, Program), program
    same(program, strategy.unfused(analysis, Config.of(EVEN)))


@pytest.mark.needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@pytest.mark.sampled(4)
def test_nvcc_takes_what_is_left(beside_hist, strategy, tmp_path, name):
    program = strategy.emit(beside_hist(FILES[name]), Config.of(EVEN), {})
    assembled(program.sources[0], tmp_path)


def unit_of(text: str, missing: tuple[str, ...] = ()) -> TranslationUnit:
    lines = text.count("\n") + 1
    return TranslationUnit(
        text=text, origins=tuple(("k.cu", at) for at in range(1, lines + 1)), system=(), macros=(), files={},
        unread=missing,
    )  # fmt: skip


def sliced(text: str, entry: str = "k", missing: tuple[str, ...] = ()) -> str:
    return slicing.sliced(unit_of(text, missing), Reading(entry=entry, name=entry, where="k.yaml")).text


def forget() -> None:
    """What was read before."""
    kernel_parser._parsed.cache_clear()
    slicing._walked.cache_clear()


def test_lines_stay_where_they_are_and_directives_too():
    text = HOST + OTHERS + K + "    int v = i;\n" + STORE + MAIN
    after = sliced("\n".join(line for line in text.splitlines() if "#include" not in line))
    before = [line for line in text.splitlines() if "#include" not in line]
    assert len(after.splitlines()) == len(before)
    left = {at: line for at, line in enumerate(after.splitlines()) if line.strip()}
    assert all(before[at].rstrip() == line for at, line in left.items())
    words = set(re.findall(r"\w+", after))
    assert {"blockIdx", "out"} <= words
    assert (
        not {"define", "N", "main", "check", "Job", "show", "grid", "again", "total", "weights", "thrust", "pragma"}
        & words
    )


def test_macros_stay_where_a_kernel_or_a_condition_names_them():
    """`#define RUN k<<<...>>>()` is not a reason to refuse k; what decides a condition is the same as before."""
    head = "#define A B\n#define B 3\n#define RUN \\\n    k<<<8, 128>>>(out, in, n); \\\n    check()\n#define C D\n#define D 1\n"
    rest = K + "#if C\n    int v = A + i;\n#else\n    int v = 0;\n#endif\n" + STORE + "int main() { RUN; }\n"
    left = sliced(head + rest).splitlines()
    assert [each for each in left if "define" in each] == ["#define A B", "#define B 3", "#define C D", "#define D 1"]
    assert left.index("#define C D") == 5
    pasted = sliced(
        "#define GO(x) x##o\n#define foo 7\n#define RUN k<<<1, 1>>>(p)\n" + K + "    int v = GO(fo);\n" + STORE
    )
    assert "foo 7" in pasted
    assert "RUN" not in pasted


def test_what_is_said_first_stays_and_what_is_said_of_others_goes():
    text = (
        "// Licence: all of it.\n\n// About the host.\nvoid host() {}\n\n// About k.\n" + K + "    int v = i;\n" + STORE
    )
    after = sliced(text)
    assert "Licence" in after
    assert "About k" in after
    assert "host" not in after


def test_what_another_condition_would_take_stays(monkeypatch):
    """It may be another block shape's."""
    text = "#if BLOCK > 128\n__device__ int f() { return 1; }\n#else\n__device__ int f() { return 2; }\n#endif\n"
    text += K + "    int v = f();\n" + STORE
    assert "return 1" in sliced(text)
    assert "return 2" in sliced(text)
    forget()
    monkeypatch.setattr(cursors, "skipped", lambda unit: [])
    assert "return 1" not in sliced(text)
    forget()


NAMES = [f"f{at}" for at in range(9)]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    calls=st.fixed_dictionaries({name: st.sets(st.sampled_from(NAMES)) for name in NAMES}),
    begun=st.sets(st.sampled_from(NAMES)),
    host=st.sets(st.sampled_from(NAMES)),
    data=st.data(),
)
def test_what_is_reached_stays_and_nothing_else(calls, begun, host, data):
    """Against a walk over the graph that the file was made from."""

    def stands_for(name: str, inner: set[str]) -> str:
        head = "" if name in host else "__device__ "
        body = "".join(f"{each}(x); " for each in sorted(inner - host if name not in host else inner))
        return data.draw(st.sampled_from(["", "// said of it\n", "#define ONE 1\n", "\n\n"])) + (
            f"{head}void {name}(int x);\n{head}void {name}(int x) {{ {body}}}\n"
        )

    declared = "".join(f"{'' if name in host else '__device__ '}void {name}(int x);\n" for name in NAMES)
    order = data.draw(st.permutations(NAMES))
    text = declared + "".join(stands_for(name, calls[name]) for name in order)
    text += "__global__ void k(int x) { " + "".join(f"{each}(x); " for each in sorted(begun - host)) + "}\n"
    expected, stack = set(), list(begun - host)
    while stack:
        name = stack.pop()
        if name not in expected:
            expected.add(name)
            stack += calls[name] - host
    left = set(re.findall(r"\bf\d\b", sliced(text)))
    assert left == expected


WRONG = [
    ("a type of a header that is not there", HOST + K + "    curandState s;\n    int v = i;\n" + STORE, "curandState.*not read: .*curand.h"),
    ("a type of the file that needs one", HOST + "struct Deep { cublasHandle_t h; };\n" + K + "    Deep d;\n    int v = i;\n" + STORE,
     "cublasHandle_t.*not read: cublas_v2.h"),
    ("a condition on a header that is not there", '#include "config.h"\n' + K + "#ifdef WIDE\n    int v = 1;\n#else\n    int v = 2;\n#endif\n" + STORE,
     'k.cu:5: a condition asks for `WIDE`, which config.h may define'),
    ("a library that is not read", "#include <thrust/functional.h>\n" + K + "    int v = thrust::plus<int>()(i, 1);\n" + STORE,
     r"k.cu:5: not CUDA C\+\+ .*'thrust' \(not read: thrust/functional.h\)"),
    ("no such kernel", HOST + OTHERS, "unknown kernel 'k'; known: again, grid, image, unknown"),
    ("nothing that can be read", "__global__ void k(int* out {\n", "not CUDA C\\+\\+"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("source", "said"), [each[1:] for each in WRONG], ids=[each[0] for each in WRONG])
def test_what_is_missing_is_named(beside_hist, source, said):
    with pytest.raises(RequestError, match=said) as caught:
        beside_hist(source)
    assert "\n" not in str(caught.value)


def test_only_what_the_kernel_reaches_is_part_of_an_answer(beside_hist):
    """Host code may change; a helper may not."""
    source = FILES["helpers through helpers"]
    assert isinstance(source, str)
    first = beside_hist(source).workload.key
    assert beside_hist(source.replace("cudaMalloc", "cudaMallocAsync")).workload.key == first
    assert beside_hist(source.replace("x ^ 5", "x ^ 6")).workload.key != first


MUTANTS = {
    "macros are followed": (directives, "macros", lambda code: {}),
    "declarations that overlap are one": (slicing, "grouped", lambda found: list(found)),
    "what nothing reaches goes": (slicing, "_without", lambda data, walked, reached, named: data.decode()),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_dies(beside_hist, strategy, same, monkeypatch, name):
    place, what, instead = MUTANTS[name]
    forget()
    monkeypatch.setattr(place, what, instead)
    died = 0
    for source in FILES.values():
        try:
            analysis = beside_hist(source)
            died += bool(analysis.rejections)
        except (RequestError, ValueError, TypeError):
            died += 1
    forget()
    assert died


@pytest.mark.timeout(60)
@pytest.mark.parametrize("broken", ["int n(4", "int n((", "__device__ int m[3] = {(1", "struct S { int a(3; };"])
def test_what_is_never_closed_comes_to_an_end(broken):
    """A mistake of the user's is a line, or nothing; it once kept the reader busy for ever."""
    for text in (f"{broken}\n{K}{STORE}", f"{K}{STORE}\n{broken}", broken):
        try:
            sliced(text)
        except RequestError as problem:
            assert "\n" not in str(problem)
