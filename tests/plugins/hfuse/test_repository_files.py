"""What files of public repositories have round a kernel, and no example of a book: each form here was a reason not to
read one. All sources are of our own."""

# ruff: noqa: E501

from __future__ import annotations

import re

import numpy as np
import pytest

from fusiond.errors import RequestError
from fusiond.model import Config
from fusiond.program import Program
from fusiond_hfuse.frontend import (
    brought_headers,
    declarations,
    directives,
    entries,
    host_headers,
    includes,
    kernel_parser,
    slicing,
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
INSTANCE = YAML.replace("entry: k\n", "entry: k\ninstance: INSTANCE\n")
HEAD = "__global__ void k(int* out, int n)\n{\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
TAIL = "    if (i < n) out[i] = value;\n}\n"
CONFIG = {"kind": "horizontal", "level": "warp", "map": "pad", "order": "ab", "threads.a": 256, "threads.b": 128}

HOST = {
    "std::aligned_storage": "#include <type_traits>\n" + HEAD
        + "    std::aligned_storage<4, 4>::type room;\n    *(int*)&room = i;\n    int value = *(int*)&room + 1;\n" + TAIL,
    "a constructor of the host's with a list": "#include <initializer_list>\n#include <vector>\nstruct Sizes {\n    int n;\n"
        "    Sizes(std::initializer_list<int> all) : n((int)all.size()) { check(); }\n    __device__ Sizes(int n) : n(n) {}\n"
        "    void check() { std::vector<int> v; }\n};\n" + HEAD + "    Sizes sizes(1);\n    int value = i + sizes.n;\n" + TAIL,
    "a conversion of the host's": "#include <cstddef>\nstruct View {\n    int at;\n    bool empty() const { return at == 0; }\n"
        "    operator bool() const { return !empty(); }\n    __device__ int next() const { return at + 1; }\n};\n"
        + HEAD + "    View view{i};\n    int value = view.next();\n" + TAIL,
    "a tuple": "#include <tuple>\n" + HEAD + "    auto both = std::make_tuple(i, 1);\n    int value = std::get<0>(both) + std::get<1>(both);\n" + TAIL,
    "a member's template of a template": "template <class T> struct Box {\n    T of;\n    template <class U> __device__ U as() const;\n};\n"
        "template <class T>\ntemplate <class U>\n__device__ U Box<T>::as() const { return (U)of; }\n"
        + HEAD + "    Box<float> box{(float)i};\n    int value = box.as<int>() + 1;\n" + TAIL,
    "a specialisation of a member's template": "template <int N> struct Get {\n    template <class T> static __device__ int of(const T& v);\n};\n"
        "template <>\ntemplate <class T>\n__device__ int Get<0>::of(const T& v) { return v.x; }\n"
        + HEAD + "    int2 both = make_int2(i + 1, 7);\n    int value = Get<0>::of(both);\n" + TAIL,
    "CUDA's functions, declared once more": "extern __device__ __device_builtin__ void __threadfence_block(void);\n"
        "extern __device__ __device_builtin__ void __syncthreads(void);\n" + HEAD + "    __threadfence_block();\n    __syncthreads();\n    int value = i + 1;\n" + TAIL,
    "a list that narrows": HEAD + "    int next = i + 1;\n    short2 both = {next, 0};\n    int value = both.x;\n" + TAIL,
    "a header that may be there": '#if defined(__has_include)\n#if __has_include("k_extra.h")\n#include "k_extra.h"\n#elif __has_include(<cuda_fp16.h>)\n#define STEP 1\n#endif\n#endif\n'
        + HEAD + "    int value = i + STEP;\n" + TAIL,
    "a header of another platform's": '#ifdef WITH_OTHERS\n#include "others.h"\n#endif\n' + HEAD + "#ifdef WITH_OTHERS\n    int value = 0;\n#else\n    int value = i + 1;\n#endif\n" + TAIL,
    "a condition before the headers": '#if !defined(SWITCHED_OFF)\n#include "gone.h"\n' + HEAD + "    int value = i + 1;\n" + TAIL + "#endif\n",
    "a platform that nobody named": '#ifdef ON_WINDOWS\ntypedef void* Handle;\n#elif defined(ON_LINUX)\ntypedef int Handle;\n#else\n#error "no platform"\n#endif\n'
        + HEAD + "    int value = i + 1;\n" + TAIL,
    "a version of CUDA's": "#include <cuda.h>\n" + HEAD + "#if CUDA_VERSION >= 9000\n    int value = i + 1;\n#else\n    int value = 0;\n#endif\n" + TAIL,
    "random numbers that others draw": "#include <curand_kernel.h>\n__global__ void other(curandState* s) { curand_init(1, 2, 3, s); }\n"
        + HEAD + "    int value = i + 1;\n" + TAIL,
    "a kernel for some types": INSTANCE.replace("INSTANCE", "k<int>") + "---" + "template <class T> __global__ void k(T* out, int n) { out[0] = 7; }\n"
        + "template <>\n" + HEAD.replace(" k(", " k<int>(") + "    int value = i + 1;\n" + TAIL,
    "a kernel declared for all types and defined for two": INSTANCE.replace("INSTANCE", "k<int>") + "---" + "template <class T> __global__ void k(T* out, int n);\n"
        + "template <>\n" + HEAD.replace(" k(", " k<int>(") + "    int value = i + 1;\n" + TAIL
        + "template <> __global__ void k<float>(float* out, int n) { out[0] = 7; }\n",
    "a kernel declared for all types and defined for one": INSTANCE.replace("INSTANCE", "k<int>") + "---" + "template <class T> __global__ void k(T* out, int n);\n"
        + "template <>\n" + HEAD.replace(" k(", " k<int>(") + "    int value = i + 1;\n" + TAIL,
    "a kernel for all types but some": INSTANCE.replace("INSTANCE", "k<int>") + "---" + "__device__ int lane() { return threadIdx.x; }\ntemplate <class T> " + HEAD.replace("int* out", "T* out") + "    T value = i + 1;\n" + TAIL
        + "template <> __global__ void k<float>(float* out, int n) { out[lane()] = 7; }\n",
}  # fmt: skip


@pytest.fixture
def beside_hist(analyse, kernel_file):
    def beside(source: str):
        yaml, _, text = source.rpartition("---")
        return analyse(kernel_file("k", text, yaml or YAML), "hist")

    return beside


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", HOST)
def test_it_is_read_and_fused(beside_hist, strategy, runner, name):
    analysis = beside_hist(HOST[name])
    assert analysis.rejections == ()
    for program in (strategy.emit(analysis, Config.of(CONFIG), {}), strategy.unfused(analysis, Config.of(CONFIG))):
        assert isinstance(program, Program), program
        arrays = runner.run(program)
        assert isinstance(arrays, dict), arrays
        np.testing.assert_array_equal(arrays["b.out"], np.arange(1, 301))
        assert "curand" not in "".join(source.text for source in program.sources)


REFUSED = {
    "a functor that is none": (INSTANCE.replace("INSTANCE", '"k<float>"') + "---template <class F> " + HEAD + "    F f;\n    int value = f(i);\n" + TAIL,
        r"k\.cu:5: k<float> does not compile: called object type 'float' is not a function"),
    "no instance of one that is for some types": ("template <class T> __global__ void k(T* out, int n) {}\ntemplate <> __global__ void k<int>(int* out, int n) {}\n",
        "k is a template <class T>; say which instance"),
    "no instance of one that is only declared for all types": ("template <class T> __global__ void k(T* out, int n);\ntemplate <> __global__ void k<int>(int* out, int n) {}\n"
        "template <> __global__ void k<float>(float* out, int n) {}\n", "k is a template <class T>; say which instance"),
    "PyTorch's types": ("#include <ATen/ATen.h>\n" + HEAD + "    int value = at::maximum(i, n);\n" + TAIL, "`at::maximum`, which is PyTorch's"),
    "an error for an architecture": (HEAD + "#if __CUDA_ARCH__ < 2000\n#error too old\n#endif\n    int value = i;\n" + TAIL, "the source says so itself: #error too old"),
    "a name of a header that is not there": ('#include "names.h"\n' + HEAD + "    int value = named(i);\n" + TAIL,
        r'`named` is declared in none of the files that were read \(not read: "names\.h"; folders of headers go under'),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_said(beside_hist, name):
    source, said = REFUSED[name]
    with pytest.raises(RequestError, match=said):
        beside_hist(source)


def test_a_guarded_header_is_read_once(analyse, kernel_file, strategy, tmp_path):
    """Hundreds of headers that include each other would be read hundreds of times."""
    for at in range(16):
        more = "".join(f'#include "h{other}.h"\n' for other in range(at + 1, 16))
        (tmp_path / f"h{at}.h").write_text(
            f"// Part {at}.\n#ifndef H{at}\n#define H{at}\n{more}enum {{ e{at} = {at} }};\n#endif  // H{at}\n"
        )
    source = '#include "h0.h"\n' + HEAD + "    int value = i + e15 - 14;\n" + TAIL
    analysis = analyse(kernel_file("k", source, YAML), "hist")
    assert analysis.rejections == ()
    program = strategy.emit(analysis, Config.of(CONFIG), {})
    assert isinstance(program, Program), program
    text = program.sources[0].text
    assert len(re.findall(r"\be15 =", text)) == 1
    assert text.count("\n") < 1000


MUTANTS = {
    "C++'s own headers": (host_headers, "available", lambda: False),
    "second heads of templates": (declarations.DeclarationWalk, "_with_heads", lambda self, start: start),
    "headers that conditions leave out": (slicing, "_asked_for", lambda unit, unread: unit.missing),
    "large headers that nothing names": (brought_headers, "without_idle_headers", lambda unit, text: unit),
    "errors of what is gone": (directives, "idle_errors", lambda code, kept: iter(())),
    "the definition that is meant": (entries, "other_definitions", lambda body, declarations: []),
    "__has_include": (includes._Expansion, "_has", lambda self, asked, path: "0".ljust(len(asked.group()))),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.sampled(3)
def test_a_mutant_dies(beside_hist, strategy, monkeypatch, name):
    place, what, instead = MUTANTS[name]
    for kept in (slicing._found, slicing._walked, kernel_parser._parsed):
        kept.cache_clear()
    monkeypatch.setattr(place, what, instead)
    died = 0
    for source in HOST.values():
        try:
            analysis = beside_hist(source)
            program = None if analysis.rejections else strategy.emit(analysis, Config.of(CONFIG), {})
            died += not isinstance(program, Program) or "curand" in program.sources[0].text
        except RequestError:
            died += 1
    for kept in (slicing._found, slicing._walked, kernel_parser._parsed):
        kept.cache_clear()
    assert died
