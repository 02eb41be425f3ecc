"""What cannot be fused is refused with a reason that names the construct and its line."""

# ruff: noqa: E501

import pytest

from fusiond.model.errors import RequestError, UnknownName
from fusiond.model.nouns import Config, Rejection
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program

from .conftest import facts_of, gpu

HEAD = "__global__ void k(int* out, int n)\n{\n"
YAML = """\
kernel: k
source: k.cu
entry: k
sizes: {n: 64}
arguments:
  - {name: out, dtype: int32, elements: n, role: output}
  - {name: n, dtype: int32, value: n}
block: {shape: [64], tune: x}
grid: [1]
shared: 4 * 64
"""

REFUSED = {
    "a built-in in a default argument": ("rewrite", 1, "__device__ int f(int i = threadIdx.x) { return i; }\n" + HEAD
        + "    out[0] = f();\n}\n"),
    "a built-in in a member's initialiser": ("leak", 1, "struct S { int i = threadIdx.x; };\n" + HEAD
        + "    out[0] = S().i;\n}\n"),
    "a built-in in a conversion": ("helper", 1, "struct S { __device__ operator int() const { return threadIdx.x; } };\n" + HEAD
        + "    out[0] = S();\n}\n"),
    "a constructor that sees the block, called by nobody's name": ("helper", 4, "struct S { int a; __device__ S(int q) : a(q + threadIdx.x) {} };\n"
        + HEAD + "    S s = 3;\n    out[0] = s.a;\n}\n"),
    "an array of what sees the block when it is made": ("helper", 4, "struct S { int a; __device__ S() : a(threadIdx.x) {} };\n"
        + HEAD + "    S s[2];\n    out[0] = s[1].a;\n}\n"),
    "a built-in in a call operator": ("helper", 1, "struct S { __device__ int operator()() const { return threadIdx.x; } };\n"
        + HEAD + "    out[0] = S()();\n}\n"),
    "a virtual method that sees the block": ("helper", 1, "struct S { __device__ virtual int f() { return threadIdx.x; } };\n"
        + HEAD + "    S s;\n    out[0] = s.f();\n}\n"),
    "a lambda of the file": ("leak", 1, "__device__ const auto f = [] { return threadIdx.x; };\n" + HEAD
        + "    out[0] = f();\n}\n"),
    "a lambda that is a function": ("rewrite", 3, HEAD + "    unsigned (*f)() = [] { return threadIdx.x; };\n    out[0] = f();\n}\n"),
    "the global scope out of a macro": ("leak", 5, "#define G ::\n#define CAT(a, b) a b\n" + HEAD
        + "    out[0] = CAT(G, threadIdx.x);\n}\n"),
    "a local variable called as a built-in": ("name", 3, HEAD + "    int threadIdx = n;\n    out[0] = threadIdx;\n}\n"),
    "a macro called as a built-in": ("macro", 1, "#define __syncthreads() ((void)0)\n" + HEAD + "    __syncthreads();\n}\n"),
    "a macro called as ours": ("macro", 1, "#define fusiond_thread 3\n" + HEAD + "    out[0] = fusiond_thread;\n}\n"),
    "a static variable in a body": ("symbol", 3, HEAD + "    static int calls;\n    out[0] = calls++;\n}\n"),
    "assembly out of a macro": ("assembly", 5, '#define REG "%tid.x"\n' + "#define UNUSED\n" + HEAD
        + '    unsigned t;\n    asm("mov.u32 %0, " REG ";" : "=r"(t));\n    out[t] = 1;\n}\n'),
    "assembly that a macro puts together": ("assembly", 1, '#define READ(r, to) asm("mov.u32 %0, %" #r ".x;" : "=r"(to))\n' + HEAD
        + "    unsigned t;\n    READ(tid, t);\n    out[t] = 1;\n}\n"),
    "a jump over what becomes a pointer": ("rewrite", 3, HEAD + "    if (n) goto end;\n    extern __shared__ int pool[];\n"
        "    pool[0] = 1;\nend:\n    out[0] = 1;\n}\n"),
    "a function of CUDA's own": ("name", 1, "__host__ __device__ int max(int a, int b) { return a > b ? a : b; }\n" + HEAD
        + "    out[0] = max(n, 3);\n}\n"),
    "global name": ("leak", 3, HEAD + "    out[0] = ::threadIdx.x;\n}\n"),
    "barrier in assembly": ("assembly", 3, HEAD + '    asm volatile("bar.sync 0;" ::: "memory");\n}\n'),
    "thread index in assembly": ("assembly", 4, HEAD + '    unsigned t;\n    asm("mov.u32 %0, "\n'
        '        "%tid.x;" : "=r"(t));\n    out[t] = 1;\n}\n'),
    "launch": ("launch", 3, HEAD + "    k<<<1, 1>>>(out, 1);\n}\n"),
    "managed": ("symbol", 1, "__managed__ int total;\n" + HEAD + "    out[0] = total;\n}\n"),
    "constant without a value": ("symbol", 1, "__constant__ int total;\n" + HEAD + "    out[0] = total;\n}\n"),
    "device variable": ("symbol", 1, "__device__ int total = 1;\n" + HEAD + "    out[0] = total++;\n}\n"),
    "method": ("helper", 1, "struct S { __device__ ~S() { __syncthreads(); } };\n" + HEAD
        + "    S s;\n    out[0] = 1;\n}\n"),
    "operator": ("helper", 2, "struct S {};\n__device__ int operator+(S, S) { return threadIdx.x; }\n" + HEAD
        + "    out[0] = S() + S();\n}\n"),
    "address of a helper": ("helper", 4, "__device__ int f() { return threadIdx.x; }\n" + HEAD
        + "    int (*p)() = f;\n    out[0] = p();\n}\n"),
    "a helper handed to a macro by its name": ("helper", 5, "__device__ int lane() { return threadIdx.x; }\n"
        "#define CALL(f) f()\n" + HEAD + "    out[0] = CALL(lane);\n}\n"),
    "shared array in a macro": ("extern_shared", 4, "#define POOL(T, name) extern __shared__ T name[];\n" + HEAD
        + "    POOL(int, pool)\n    out[0] = pool[0];\n}\n"),
    "over-aligned shared array": ("extern_shared", 3, HEAD + "    extern __shared__ __align__(256) int pool[];\n"
        "    out[0] = pool[0];\n}\n"),
    "cluster": ("block_barrier", 1, "__global__ void __cluster_dims__(2, 1, 1) k(int* out, int n)\n{\n    out[0] = n;\n}\n"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", REFUSED)
def test_a_construct_is_refused_by_rule_and_line(analyse, strategy, kernel_file, name):
    rule, line, source = REFUSED[name]
    if rule in ("launch", "assembly"):
        line = next(n for n, text in enumerate(source.splitlines(), 1) if "<<<" in text or "asm" in text)
    analysis = analyse(kernel_file("k", source, YAML), "hist")
    found = [each for each in analysis.rejections if each.rule == rule]
    assert found, analysis.rejections
    assert f"k.cu:{line}: " in found[0].detail
    assert found[0].nodes == ("k",)
    assert strategy.space(analysis, {}).parameters == ()
    refused = strategy.emit(analysis, Config.of({}), {})
    assert isinstance(refused, Rejection)
    assert isinstance(strategy.baselines(analysis)[0].emit(Config.of({"threads.a": 512, "threads.b": 64})), Program)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("__device__ int max(int a, int b) { return a; }", "max(1, 2)"),
        ("__device__ float fmaxf(float, float);", "fmaxf(1, 2)"),
    ],
)
def test_a_function_of_cudas_own_parameters_is_one_line(analyse, kernel_file, text, call):
    with pytest.raises(RequestError, match=r"k\.cu:1: not CUDA C\+\+ .*'(max|fmaxf)' cannot overload") as caught:
        analyse(kernel_file("k", f"{text}\n{HEAD}    {call};\n}}\n", YAML), "hist")
    assert "\n" not in str(caught.value)


ACCEPTED = {
    "return with the whole block": "    if (blockIdx.x * blockDim.x > n) return;\n    __syncthreads();\n",
    "return behind the last barrier": "    __syncthreads();\n    if (threadIdx.x > 3) return;\n    out[0] = 1;\n",
    "return in a lambda": "    auto f = [=](int i) { if (i > n) return 1; return 2; };\n    __syncthreads();\n"
        "    out[0] = f(3);\n",
    "harmless assembly": '    unsigned lane;\n    asm("mov.u32 %0, %laneid;" : "=r"(lane));\n    out[lane] = 1;\n',
    "words in comments and strings": "    // __syncthreads_count, ::threadIdx, <<<\n"
        '    out[0] = sizeof("bar.sync 0");\n',
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_looks_alike_is_not_refused(analyse, kernel_file, name):
    assert analyse(kernel_file("k", HEAD + ACCEPTED[name] + "}\n", YAML), "hist").rejections == ()


def test_a_block_that_is_no_whole_warps(analyse, kernel_file, strategy):
    yaml = YAML.replace("{shape: [64], tune: x}", "{shape: [50]}")
    analysis = analyse(kernel_file("k", HEAD + "}\n", yaml), "hist")
    assert analysis.rejections == ()
    (why,) = analysis.report["only_block_by_block"]
    assert "k.yaml:8: block: no block shape of k is whole warps" in why
    assert next(each for each in strategy.space(analysis, {}).parameters if each.name == "level").values == ("block",)


def test_flags_that_differ(analyse, kernel_file):
    analysis = analyse(kernel_file("k", HEAD + "}\n", YAML + "flags: [-use_fast_math]\n"), "hist")
    assert [each.rule for each in analysis.rejections] == ["flags_differ"]


def test_static_shared_memory_beyond_48_kb(analyse, kernel_file):
    """Arrays whose size only an instance knows cannot be moved."""
    source = "template <int N> " + HEAD + "    __shared__ int pool[N];\n    pool[0] = n;\n    out[0] = pool[0];\n}\n"
    name = kernel_file("k", source, YAML + 'instance: "k<7000>"\n')
    plain = kernel_file("plain", HEAD + "    __shared__ int pool[7000];\n    pool[0] = n;\n    out[0] = pool[0];\n}\n",
                        YAML.replace("kernel: k", "kernel: plain").replace("k.cu", "plain.cu"))  # fmt: skip
    facts = facts_of(20, shared_bytes=28000)
    (found,) = analyse(name, plain, target=gpu(facts)).rejections
    assert found.rule == "static_shared"
    assert "28000 and 28000 bytes" in found.detail
    assert analyse(plain, plain, target=gpu(facts)).rejections == ()


def test_dynamic_shared_memory_beyond_the_block(analyse, strategy, kernel_file):
    source = HEAD + "    extern __shared__ int pool[];\n    out[0] = pool[0];\n}\n"
    name = kernel_file("k", source, YAML.replace("4 * 64", "120000"))
    config = Config.of({"kind": "horizontal", "threads.a": 128, "threads.b": 64, "order": "ab"})
    refused = strategy.emit(analyse(name, name), config, {})
    assert isinstance(refused, Rejection)
    assert refused.rule == "shared_memory"


def test_more_registers_than_a_block_can_have(analyse, strategy):
    analysis = analyse("hist", "maxpool", target=gpu(facts_of(80)))
    config = {"kind": "horizontal", "threads.a": 512, "threads.b": 512, "order": "ab", "cap": "none"}
    refused = strategy.emit(analysis, Config.of(config), {})
    assert isinstance(refused, Rejection)
    assert refused.rule == "launch"
    assert isinstance(strategy.emit(analysis, Config.of({**config, "threads.b": 256}), {}), Program)


def test_the_papers_cap_needs_a_compiler(analyse, strategy):
    analysis = analyse("hist", "maxpool", target=gpu(lambda source: None))
    config = {"kind": "horizontal", "threads.a": 512, "threads.b": 512, "order": "ab", "cap": "paper"}
    refused = strategy.emit(analysis, Config.of(config), {})
    assert isinstance(refused, Rejection)
    assert refused.rule == "no_compiler_facts"
    assert strategy.resolved(analysis, Config.of(config), {})["cap"] == "paper"


def test_a_kernel_that_does_not_build(analyse):
    analysis = analyse("hist", "maxpool", target=gpu(lambda source: BuildFailed(reason="hist.cu(3): no")))
    assert [each.rule for each in analysis.rejections] == ["does_not_build", "does_not_build"]


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        ("pair: [hist]", "job.yaml:2: pair: a pair is two kernels; found 1"),
        ("pair: [hist, hist, maxpool]", "found 3; more go under 'kernels'"),
        ("kernels: []", "job.yaml:2: kernels: expected 1 to 26 kernels; found 0"),
        (f"kernels: [{', '.join(['hist'] * 27)}]", "expected 1 to 26 kernels; found 27"),
        ("pair: [hist, 3]", "job.yaml:2: pair: expected a list of two names"),
        ("pair: hist", "job.yaml:2: pair: expected a list of two names"),
        ("pair: [hist, maxpol]", "job.yaml:2: pair: unknown kernel 'maxpol'; did you mean 'maxpool'?"),
        ("pair: [hist, ./no.yaml]", "job.yaml:2: pair: there is no file"),
        ("granularity: 128", "job.yaml: the key 'pair' is missing"),
        ("pair: [hist, maxpool]\ngranularity: 100", "job.yaml:3: granularity: is 100; expected a multiple of 32"),
        ("pair: [hist, maxpool]\nsizes: {hist.m: 3}", "sizes.hist.m: unknown size 'hist.m'; did you mean 'hist.n'?"),
        ("pair: [hist, hist]\nsizes: {c.n: 3}", "unknown size 'c.n'; did you mean"),
        ("pair: [hist, maxpool]\nsizes: {n: 3}", "unknown size 'n'"),
        ("pair: [hist, maxpool]\nsizes: {hist.n: 4000000000}", "n: 4000000000 does not fit int32"),
        ("pair: [hist, maxpool]\nsizes: {hist.bins: 4000000}", "shared: 16000000 bytes of shared memory"),
        ("pair: [hist, maxpool]\nsizes: {maxpool.height: 1, maxpool.pad: 1}", "has 0 elements"),
        ("pair: [hist, maxpool]\nsizes: {maxpool.height: 3, maxpool.width: 3, maxpool.window: 40, maxpool.stride: 1}",
         "has 0 elements"),
        ("pair: [hist, maxpool]\nsizes: {maxpool.batch: 4000000}", "bytes at the sizes"),
        ("pair: [hist, maxpool]\nkernels: [hist, maxpool]", "'pair' and 'kernels' say the same"),
    ],
)  # fmt: skip
def test_a_wrong_job_is_one_line(parse, job, problem):
    with pytest.raises(RequestError) as caught:
        parse(text="strategy: hfuse\n" + job)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_kernels_of_two_is_a_pair(parse):
    assert parse(text="strategy: hfuse\nkernels: [maxpool, hist]").key == parse("hist", "maxpool").key


def test_unknown_names_carry_the_nearest(parse):
    with pytest.raises(UnknownName):
        parse("hist", "maxpol")
