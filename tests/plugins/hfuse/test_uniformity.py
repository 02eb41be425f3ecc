"""Whether all threads of a block come to a barrier: what looks alike stands side by side. What is not plain is not read
as C++ (a partial barrier would wait for ever), and is fused as PTX."""

# ruff: noqa: E501

import pytest

from fusiond_hfuse.frontend import cursors, kernel_parser, uniformity
from fusiond_hfuse.frontend.clang_tree import Reading
from fusiond_hfuse.frontend.kernel_parser import parse_kernel
from fusiond_hfuse.frontend.source_kernel import Parsed, TranslationUnit

HEAD = (
    "__global__ void k(int* out, const int* __restrict__ in, int n)\n"
    "{\n    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
)
SHARED = "    __shared__ int s[128];\n    s[threadIdx.x] = i;\n    __syncthreads();\n"
END = "    const int w = __shfl_xor_sync(~0u, i, 1);\n    if (i < n) out[i] = w + s[0];\n}\n"

TOGETHER = {
    "numbers that halve": HEAD + SHARED + "    for (int h = blockDim.x / 2; h > 0; h /= 2) { if (threadIdx.x < h) s[threadIdx.x] += s[threadIdx.x + h]; __syncthreads(); }\n" + END,
    "a loop in a loop": HEAD + SHARED + "    for (int r = 0; r < n; ++r) { int c = r % 3; while (c-- > 0) { s[threadIdx.x]++; __syncthreads(); } }\n" + END,
    "a break that no thread decides": HEAD + SHARED + "    for (int j = 0; ; ++j) { if (j == n - 1) break; s[threadIdx.x]++; __syncthreads(); }\n" + END,
    "a break out of a switch, and of an inner loop": HEAD + SHARED + "    for (int j = 0; j < n; ++j) { switch (in[i]) { case 1: s[i] = 2; break; } while (s[0]) { if (i) break; } __syncthreads(); }\n" + END,
    "a condition on the grid": HEAD + SHARED + "    if (blockIdx.x + 1 < gridDim.x) { s[threadIdx.x]++; __syncthreads(); }\n" + END,
    "assign in if": HEAD + SHARED + "    int m = n; if (n > 3) m = 4; else m = 5;\n    if (m == 4) __syncthreads();\n" + END,
    "a macro of indices": "#define AT(x, y) ((y) * n + (x))\n" + HEAD + SHARED + "    for (int z = 0; z < n % 5; ++z) { s[AT(threadIdx.x, z) % 128] = 1; __syncthreads(); }\n" + END,
    "a struct by value": "struct P { int a, b; };\n__global__ void k(int* out, const int* in, int n, P p)\n{\n    __shared__ int s[4];\n    for (int j = 0; j < p.a; ++j) __syncthreads();\n    s[0] = 1;\n    out[0] = s[0];\n}\n",
    "a constant table's size": "__constant__ const int rows = 7;\n" + HEAD + SHARED + "    for (int j = 0; j < min(rows, n); ++j) __syncthreads();\n" + END,
    "a template's number": "template <int N> __device__ void go() { for (int j = 0; j < N; ++j) __syncthreads(); }\n" + HEAD + SHARED + "    go<3>();\n" + END,
    "a block leaves as a whole": HEAD + "    const int row = blockIdx.x;\n    if (row * 128 >= n) return;\n" + SHARED + END,
    "a return behind all barriers": HEAD + SHARED + "    if (i >= n) return;\n    out[i] = s[0];\n}\n",
    "a comparison is not an assignment": HEAD + SHARED + "    int last = n;\n    bool same = last == i;\n    if (last > 3 && !(last != 7)) { __syncthreads(); }\n    out[0] = same;\n" + END,
}  # fmt: skip
APART = {
    "helper reads threadIdx": "__device__ int mine() { return threadIdx.x / 2; }\n" + HEAD + SHARED + "    for (int h = mine(); h > 0; h /= 2) { __syncthreads(); }\n" + END,
    "helper reads memory then return": "__device__ int rows(const int* p) { return p[0]; }\n" + HEAD + "    if (blockIdx.x > rows(in)) return;\n" + SHARED + END,
    "reference": "__device__ void set(int& x, int v) { x = v; }\n" + HEAD + "    int x = 0; set(x, threadIdx.x);\n    if (x == 3) return;\n" + SHARED + END,
    "pointer": "__device__ void set(int* x, int v) { *x = v; }\n" + HEAD + "    int x = 0; set(&x, threadIdx.x);\n    if (x == 3) return;\n" + SHARED + END,
    "asm": HEAD + "    unsigned lane; asm(\"mov.u32 %0, %%laneid;\" : \"=r\"(lane));\n    if (lane == 3) return;\n" + SHARED + END,
    "asm barrier if": HEAD + SHARED + "    unsigned lane; asm(\"mov.u32 %0, %%laneid;\" : \"=r\"(lane));\n    if (lane == 3) __syncthreads();\n" + END,
    "continue then count": HEAD + "    int c = 0;\n    for (int j = 0; j < 4; ++j) { if (threadIdx.x & 1) continue; c++; }\n    if (c) return;\n" + SHARED + END,
    "break then count": HEAD + "    int c = 0;\n    for (; c < 4; ++c) { if (threadIdx.x & 1) break; }\n    if (c == 4) return;\n" + SHARED + END,
    "deref in macro": "#define AT(p) (*(p))\n" + HEAD + "    if (AT(out)) return;\n" + SHARED + END,
    "arrow": "struct I { int n; };\n" + HEAD + "    const I* p = (const I*)out; if (p->n) return;\n" + SHARED + END,
    "this": "struct W { int c; __device__ void go() { if (c) return; __syncthreads(); } };\n" + HEAD + SHARED + "    W z{i}; z.go();\n" + END,
    "short circuit": HEAD + "    int x = 0; bool b = threadIdx.x == 0 && (x = 1);\n    if (x) return;\n" + SHARED + END,
    "backward goto": HEAD + SHARED + "    int j = threadIdx.x;\nagain:\n    __syncthreads(); --j; if (j > 0) goto again;\n" + END,
    "local array": HEAD + SHARED + "    int a[2]; a[0] = threadIdx.x; if (a[0] == 3) __syncthreads();\n" + END,
    "binding": "struct P { int a, b; };\n" + HEAD + SHARED + "    auto [a, b] = P{i, 2}; if (a == 3) __syncthreads();\n" + END,
    "break by thread in memory loop": HEAD + "    const int* plain = in;\n" + SHARED + "    for (int j = 0; j < plain[0] % 7; ++j) { if (j == threadIdx.x) break; __syncthreads(); }\n" + END,
    "break by memory": HEAD + SHARED + "    for (int j = 0; j < 5; ++j) { if (out[j]) break; __syncthreads(); }\n" + END,
    "user min": "__device__ int min(int* p) { return *p; }\n" + HEAD + "    if (min(out)) return;\n" + SHARED + END,
    "a constructor's member": "struct L { int v; __device__ L() : v(threadIdx.x) {} };\n"
    + HEAD
    + SHARED
    + "    L l;\n    if (l.v == 2) __syncthreads();\n"
    + END,
    "a constructor's template": "struct L { int v; template <class T> __device__ L(T s) : v(s + threadIdx.x) {} };\n"
    + HEAD
    + SHARED
    + "    L l(3);\n    if (l.v == 2) __syncthreads();\n"
    + END,
    "a template's constructor": "template <class T> struct L { T v; __device__ L(T s) : v(s + threadIdx.x) {} };\n"
    + HEAD
    + SHARED
    + "    L<int> l(3);\n    if (l.v == 2) __syncthreads();\n"
    + END,
    "ctor": "struct L { int v; __device__ L(int k) { v = k + __shfl_sync(~0u, k, 0) ; } };\n" + HEAD + "    L l(3); if (l.v == 2) return;\n" + SHARED + END,
    "method changes": "struct L { int v; __device__ void set(int k) { v = k; } };\n" + HEAD + "    L l{3}; l.set(i); if (l.v == 2) return;\n" + SHARED + END,
    "carried in the head of a loop": HEAD
    + SHARED
    + "    const int* plain = in;\n    for (int r = 0, c = 0; r < 3; ++r) { for (int j = 0; j < plain[r] % 7; ++j) { ++c; "
    "if (c == 5) break; __syncthreads(); } }\n"
    + END,
    "carried counter": HEAD + SHARED + "    int c = 0; for (int r = 0; r < 3; ++r) { for (int j = 0; j < out[r] % 7; ++j) { ++c; if (c == 5) break; __syncthreads(); } }\n" + END,
    "vote": HEAD + SHARED + "    if (__any_sync(~0u, i == 3)) __syncthreads();\n" + END,
    "lambda by ref": HEAD + "    int x = 0; auto f = [&](int v) { x = v; }; f(threadIdx.x); if (x == 3) return;\n" + SHARED + END,
    "volatile restrict no const": "__global__ void k(int* out, int* __restrict__ in, int n)\n{\n    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (in[blockIdx.x] < 0) return;\n" + SHARED + END,
    "template by reference": "template <class T> __device__ void set(T& x, T v) { x = v; }\ntemplate <class T> __device__ bool bad(T v) { T x = 0; set(x, v); return x > 3; }\n" + HEAD + "    if (bad<int>(threadIdx.x)) return;\n" + SHARED + END,
}  # fmt: skip


APART |= {
    "a return in a loop round a barrier": HEAD + SHARED + "    for (int j = 0; j < n; ++j) { __syncthreads(); if (s[j] == i) return; }\n" + END,
    "a barrier in a lambda": HEAD + SHARED + "    auto wait = [&] { __syncthreads(); };\n    if (i < 3) wait();\n" + END,
    "what a helper is handed": "__device__ void go(int m) { for (int j = 0; j < m; ++j) __syncthreads(); }\n" + HEAD + SHARED + "    go(i);\n" + END,
    "increment hidden by a macro": "#define UP(a) ++a\n" + HEAD + SHARED + "    int last = n;\n    if (i < 3) UP(last);\n    if (last == n) __syncthreads();\n" + END,
    "assignment hidden by a macro": "#define PUT(a, b) a = b\n" + HEAD + SHARED + "    int last = n;\n    PUT(last, i);\n    if (last == n) __syncthreads();\n" + END,
    "a function that is not declared here": HEAD + SHARED + "    if (__match_any_sync(~0u, i) == 1) __syncthreads();\n" + END,
    "a return by what one thread knows, in a helper": "__device__ void go(const int* p) { if (p[0]) return; __syncthreads(); }\n" + HEAD + SHARED + "    go(in);\n" + END,
    "another name": HEAD + SHARED + "    int x = 0; int& r = x; r = i;\n    if (x == 3) __syncthreads();\n" + END,
    "another name, of an element": "struct P { int a, b; };\n" + HEAD + SHARED + "    P p{0, 1}; auto& r = p.a; r = i;\n    if (p.a == 3) __syncthreads();\n" + END,
    "an object that holds a reference": "struct R { int& of; __device__ R(int& of) : of(of) {} __device__ void set(int v) { of = v; } };\n" + HEAD + SHARED + "    int x = 0; R r(x); r.set(i);\n    if (x == 3) __syncthreads();\n" + END,
    "either of two": HEAD + SHARED + "    (i < 3) && (__syncthreads(), true);\n" + END,
    "a choice": HEAD + SHARED + "    i < 3 ? __syncthreads() : (void)0;\n" + END,
    "a call by what a template decides": "template <class T> __device__ void wait(T v) { if (v == 3) return; __syncthreads(); }\ntemplate <class T> __device__ void go(T v) { wait(v); }\n" + HEAD + SHARED + "    go(i);\n" + END,
}  # fmt: skip


def read(text: str) -> Parsed:
    origins = tuple(("k.cu", n + 1) for n in range(text.count("\n")))
    unit = TranslationUnit(text=text, origins=origins, system=(), macros=(), files={})
    return parse_kernel(unit, Reading(entry="k", name="k", where="k.yaml:1"))[1]


def apart(text: str) -> bool:
    return any(each.rule in ("return_before_barrier", "helper") for each in read(text).rejections)


@pytest.mark.parametrize("name", TOGETHER)
def test_all_threads_come(name):
    assert read(TOGETHER[name]).rejections == ()


@pytest.mark.parametrize("name", APART)
def test_some_threads_may_not(name):
    assert apart(APART[name])


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (HEAD + SHARED + "    const int w = __shfl_xor_sync(~0u, i, 1);\n    if (i < n) return;\n    out[0] = w;\n}\n", True),
        ("#define LEAVE return\n" + HEAD + "    if (i < n) LEAVE;\n    __syncwarp();\n}\n", True),
        (HEAD + "    if (i < n) goto end;\n    out[0] = 1;\nend:;\n}\n", False),
        ("__device__ int f(int i) { if (i) return 1; return 2; }\n" + HEAD + "    out[0] = f(i);\n}\n", False),
    ],
)  # fmt: skip
def test_who_leaves_early_and_where_warps_meet(text, parts):
    """A thread that has left must not go on to other work while its warp waits for it."""
    assert read(text).parts is parts


MUTANTS = {
    "no operator is known": (cursors, "operator", lambda cursor: "=="),
    "what is written counts for nothing": (uniformity._Varying, "_written", lambda self, cursor: ()),
    "memory is the same for all": (uniformity._Varying, "_varies", lambda self, expression: False),
    "threads never part": (uniformity._Varying, "parts", lambda self, inside: False),
    "no loop is round anything": (uniformity, "_outermost_loop", lambda cursor, inside: cursor),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_dies(monkeypatch, name):
    kernel_parser._parsed.cache_clear()
    monkeypatch.setattr(*MUTANTS[name])
    assert not all(apart(text) for text in APART.values())
    kernel_parser._parsed.cache_clear()
