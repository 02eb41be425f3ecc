"""Which jumps and conditions all threads of a block take together: what looks alike stands side by side.

Every kernel here has a shuffle, so that threads that leave early cannot go on voting: one in which some may leave is
refused, one in which none can is not.
"""

# ruff: noqa: E501

from __future__ import annotations

import pytest

from fusiond_hfuse.frontend import cursors, kernel_parser
from fusiond_hfuse.frontend.kernel_parser import Reading, parse_unit
from fusiond_hfuse.frontend.source_kernel import Parsed, TranslationUnit

HEAD = (
    "__global__ void k(int* out, const int* __restrict__ in, int n)\n"
    "{\n    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
)
SHARED = "    __shared__ int s[128];\n    s[threadIdx.x] = i;\n    __syncthreads();\n"
END = "    const int w = __shfl_xor_sync(~0u, i, 1);\n    if (i < n) out[i] = w + s[0];\n}\n"

TOGETHER = {
    "helper reads blockDim": "__device__ int half_block() { return blockDim.x / 2; }\n" + HEAD + SHARED + "    for (int h = half_block(); h > 0; h /= 2) { if (threadIdx.x < h) s[threadIdx.x] += s[threadIdx.x + h]; __syncthreads(); }\n" + END,
    "helper pure return": "__device__ int rows(int n) { int r = n; for (int j = 0; j < 3; ++j) r += blockDim.x; return r > 5 ? r : 5; }\n" + HEAD + "    if (blockIdx.x > rows(n)) return;\n" + SHARED + END,
    "break in memory loop": HEAD + "    const int* plain = in;\n" + SHARED + "    for (int j = 0; j < plain[0] % 7; ++j) { if (j == 3) break; s[threadIdx.x]++; __syncthreads(); }\n" + END,
    "continue in memory loop, while": HEAD + "    const int* plain = in;\n" + SHARED + "    int j = 0; while (j < plain[0] % 7) { ++j; if (j == n) continue; s[threadIdx.x]++; __syncthreads(); }\n" + END,
    "const in memory loop": HEAD + "    const int* plain = in;\n" + SHARED + "    for (int j = 0; j < plain[0] % 7; ++j) { const int last = n - 1; if (last == j) break; __syncthreads(); }\n" + END,
    "restrict read": HEAD + "    if (in[blockIdx.x] < 0) return;\n    if (__ldg(&in[blockIdx.x + 1]) < 0) return;\n" + SHARED + END,
    "block sum result": "__device__ int total(int v) { __shared__ int t[32]; v = __shfl_sync(~0u, v, 0); if (threadIdx.x % 32 == 0) t[threadIdx.x / 32] = v; __syncthreads(); return t[0]; }\n" + HEAD + SHARED + "    int left = total(i); while (left > 0) { s[threadIdx.x]++; __syncthreads(); left = total(left - 4000) - 9000; }\n" + END,
    "assign in if": HEAD + "    int m = n; if (n > 3) m = 4; else m = 5;\n    if (m == 9) return;\n" + SHARED + END,
    "own loop var": HEAD + SHARED + "    for (int j = threadIdx.x; j < n; j += blockDim.x) { int q = 0; if (in[j]) continue; q = 3; s[threadIdx.x] += q; }\n    __syncthreads();\n" + END,
    "structs": "struct P { int a, b; };\n__device__ P twice(P p) { P q = p; q.a *= 2; return q; }\n" + HEAD + "    P p = {n, 3}; p = twice(p);\n    if (p.a < 0) return;\n" + SHARED + END,
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
    "rank": "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n" + HEAD + SHARED + "    auto b = cg::this_thread_block(); if (b.thread_rank() < 32) b.sync();\n" + END,
    "lambda by ref": HEAD + "    int x = 0; auto f = [&](int v) { x = v; }; f(threadIdx.x); if (x == 3) return;\n" + SHARED + END,
    "volatile restrict no const": "__global__ void k(int* out, int* __restrict__ in, int n)\n{\n    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (in[blockIdx.x] < 0) return;\n" + SHARED + END,
    "template by reference": "template <class T> __device__ void set(T& x, T v) { x = v; }\ntemplate <class T> __device__ bool bad(T v) { T x = 0; set(x, v); return x > 3; }\n" + HEAD + "    if (bad<int>(threadIdx.x)) return;\n" + SHARED + END,
}  # fmt: skip


TILE = "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"
GROUPS = "    cg::thread_block block = cg::this_thread_block();\n    cg::thread_block_tile<{}> tile = cg::tiled_partition<{}>(block);\n"
BY_WARPS = {
    "number of the warp": HEAD + "    if (threadIdx.x / 32 + 4 * blockIdx.x > n / 37) return;\n" + SHARED + END,
    "shifted": HEAD + "    const int tid = threadIdx.x;\n    const int warp = tid >> 5;\n    if (warp == n % 5) return;\n" + SHARED + END,
    "warpSize, a macro": "#define WARP warpSize\n" + HEAD + "    int warps = blockDim.x / WARP, row = blockIdx.x * warps + threadIdx.x / WARP;\n    if (row * 40 >= n) return;\n" + SHARED + END,
    "helper": "__device__ bool done(int row, int n) { return row * 40 >= n; }\n" + HEAD + "    if (done(blockIdx.x * 4 + threadIdx.x / 32, n)) return;\n" + SHARED + END,
    "constant": "constexpr int ROWS = 2, LANES = 32 * ROWS;\n" + HEAD + "    if (threadIdx.x / LANES == blockIdx.x % 3) return;\n" + SHARED + END,
    "tile": TILE + HEAD + GROUPS.format(32, 32) + "    int row = blockIdx.x * tile.meta_group_size() + tile.meta_group_rank();\n    if (row * 40 >= n) return;\n" + SHARED + END,
    "several barriers": HEAD + SHARED + "    for (int j = 0; j < 3; ++j) { if (threadIdx.x / 32 == j) return; __syncthreads(); }\n" + END,
}  # fmt: skip
BY_LANES = {
    "half warps": HEAD + "    if (threadIdx.x / 16 == 1) return;\n" + SHARED + END,
    "off by one": HEAD + "    if ((threadIdx.x + 1) / 32 == 1) return;\n" + SHARED + END,
    "a variable that changes": HEAD + "    int tid = threadIdx.x;\n    tid += n;\n    if (tid / 32 == 1) return;\n" + SHARED + END,
    "remainder": HEAD + "    if (threadIdx.x % 32 == 1) return;\n" + SHARED + END,
    "small tiles": TILE + HEAD + GROUPS.format(16, 16) + "    if (tile.meta_group_rank() == 1) return;\n" + SHARED + END,
    "rank in a tile": TILE + HEAD + GROUPS.format(32, 32) + "    if (tile.thread_rank() == 1) return;\n" + SHARED + END,
    "mixed": HEAD + "    if (threadIdx.x / 32 == 1 && in[i] > 3) return;\n" + SHARED + END,
    "counted": HEAD + "    if (threadIdx.x / 32 == 1) return;\n" + SHARED + "    out[0] = __syncthreads_count(i);\n" + END,
    "shifted too little": HEAD + "    if (threadIdx.x >> 4 == 1) return;\n" + SHARED + END,
}  # fmt: skip


def read(text: str) -> Parsed:
    lines = text.count("\n")
    groups = ("cooperative_groups.h",) if "<cooperative_groups.h>" in text else ()
    text = text.replace("#include <cooperative_groups.h>", "")  # as it is when includes are expanded
    unit = TranslationUnit(
        text=text, origins=tuple(("k.cu", n + 1) for n in range(lines)), system=groups, macros=(), files={}
    )
    return parse_unit(unit, Reading(entry="k", name="k", where="k.yaml:1"))


def rules(text: str) -> list[str]:
    parsed = read(text)
    assert parsed.rejections == ()
    assert not parsed.drains or parsed.beside
    return [each.rule for each in parsed.beside]


@pytest.mark.parametrize("name", TOGETHER)
def test_all_threads_go_together(name):
    assert rules(TOGETHER[name]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", APART)
def test_some_threads_may_part(name):
    assert rules(APART[name]) == ["return_before_barrier"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "leaves", "meets"),
    [
        (HEAD + "    if (i < n) return;\n" + SHARED + END, True, "__shfl_xor_sync"),
        ("#define LEAVE return\n" + HEAD + "    if (i < n) LEAVE;\n    __syncwarp();\n}\n", True, "__syncwarp"),
        (HEAD + "    if (i < n) goto end;\n    out[0] = 1;\nend:;\n}\n", True, ""),
        (HEAD + "    auto f = [=] { return n; };\n    out[0] = f(); // return;\n}\n", False, ""),
        ("__device__ int f(int i) { if (i) return 1; return 2; }\n" + HEAD + "    out[0] = f(i);\n}\n", False, ""),
        ("#include <cooperative_groups.h>\nusing namespace cooperative_groups;\n" + HEAD + "    if (i < n) return;\n"
         "    auto t = tiled_partition<32>(this_thread_block());\n    out[0] = t.any(i);\n}\n", True, "tiled_partition"),
    ],
)  # fmt: skip
def test_who_leaves_early_and_where_warps_meet(text, leaves, meets):
    """A thread that has left must not go on to other work while its warp waits for it."""
    parsed = read(text)
    assert (parsed.leaves, parsed.meets) == (leaves, meets)


@pytest.mark.parametrize("name", BY_WARPS)
def test_whole_warps_may_leave(name):
    parsed = read(BY_WARPS[name])
    assert parsed.rejections == ()
    assert (parsed.drains, parsed.by_warps) == (True, True)


@pytest.mark.parametrize("name", BY_LANES)
def test_lanes_may_not(name):
    assert rules(BY_LANES[name]) == ["return_before_barrier"]


OPERATORS = {
    "division": HEAD + "    if (threadIdx.x / 32 == 1) return;\n" + SHARED + END,
    "division of what a macro hides": "#define PER(a, b) a / b\n" + HEAD + "    if (PER(threadIdx.x, 32) == 1) return;\n" + SHARED + END,
    "increment hidden by a macro": "#define UP(a) ++a\n" + HEAD + "    int last = n;\n    if (i < 3) UP(last);\n    if (last == n) return;\n" + SHARED + END,
    "assignment hidden by a macro": "#define PUT(a, b) a = b\n" + HEAD + "    int last = n;\n    PUT(last, i);\n    if (last == n) return;\n" + SHARED + END,
    "a comparison is not an assignment": HEAD + "    int last = n;\n    bool same = last == i;\n    if (last > 3 && !(last != 7)) return;\n" + SHARED + "    out[0] = same;\n" + END,
}  # fmt: skip


def operators() -> list[tuple[bool, bool, bool]]:
    """Whether threads may leave early, whole warps only, and whether that is refused."""
    found = [read(text) for text in OPERATORS.values()]
    return [(each.drains, each.by_warps, bool(each.beside)) for each in found]


SEEN = [(True, True, False), (True, False, True), (True, False, True), (True, False, True), (False, False, False)]


def test_operators_are_those_of_the_tree():
    assert operators() == SEEN


MUTANTS = {
    "no operator between two is known": ("binary_operator", lambda cursor: ""),
    "all between two compare": ("binary_operator", lambda cursor: "=="),
    "all before one negate": ("unary_operator", lambda cursor: "-"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_dies(monkeypatch, name):
    kernel_parser._parsed.cache_clear()
    monkeypatch.setattr(cursors, *MUTANTS[name])
    assert operators() != SEEN
    kernel_parser._parsed.cache_clear()
