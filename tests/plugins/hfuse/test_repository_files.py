"""What files of public repositories have round a kernel, and no example of a book: each form here was a reason not to
read one. All sources are of our own."""

# ruff: noqa: E501

import re

import numpy as np
import pytest

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Config
from fusiond.model.program import Program
from fusiond_hfuse.frontend import clang_tree, kernel_parser, slicing

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
GONE = '#include "gone.h"\n'
INSTANCE = YAML.replace("entry: k\n", "entry: k\ninstance: INSTANCE\n")
HEAD = "__global__ void k(int* out, int n)\n{\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
TAIL = "    if (i < n) out[i] = value;\n}\n"
CONFIG = {"kind": "horizontal", "level": "warp", "map": "pad", "order": "ab", "threads.a": 256, "threads.b": 128}

HOST = {
    "an operator for what is not reached": GONE + "struct Pair { int a, b; };\n__device__ Pair operator+(Pair p, Pair q) { return gone::sum(p, q); }\n"
        + HEAD + "    int value = i + 1;\n" + TAIL,
    "a condition that decides nothing": GONE + "#if HAS_HALVES(1)\n#include <cuda_fp16.h>\n#endif\n" + HEAD + "    int value = i + 1;\n" + TAIL,
    "a branch that only the host's compiler reads": "template <class T> struct Bits { enum { wide = 8 }; };\n#if __GNUC__ > 5\ntemplate <> struct Bits<float> { enum { wide = 32 }; };\n#endif\n"
        + HEAD + "    int value = i + 1;\n" + TAIL,
    "braces of a branch that is not read": '#ifdef __cplusplus\nextern "C" {\n#endif\n#ifdef __cplusplus\nenum Kind : int {\n#else\nenum Kind {\n#endif\n    None, One\n};\n'
        + HEAD + "    int value = i + One;\n" + TAIL + "#ifdef __cplusplus\n}\n#endif\n",
    "templates of a class that are deleted": "struct Cell {\n    int n;\n    template <class T> Cell& operator+=(const T& other) = delete;\n    template <class T> Cell& operator<<=(const T& other) = delete;\n};\n"
        + HEAD + "    Cell cell{i + 1};\n    int value = cell.n;\n" + TAIL,
    "what an operator of a class with friends calls": "class Cell {\n    template <class T> friend class Grid;\n    int n;\n    int* place() { return where(&n); }\n    int* where(int* p) { return p; }\n"
        "public:\n    Cell(int n) : n(n) {}\n    int* operator->() { return place(); }\n    __device__ int next() const { return n + 1; }\n    static __device__ int of(int i) { return i + 1; }\n};\n"
        + HEAD + "    int value = Cell::of(i);\n" + TAIL,
    "a conversion of the host's": "#include <cstddef>\nstruct View {\n    int at;\n    bool empty() const { return at == 0; }\n"
        "    operator bool() const { return !empty(); }\n    __device__ int next() const { return at + 1; }\n};\n"
        + HEAD + "    View view{i};\n    int value = view.next();\n" + TAIL,
    "a list that narrows": HEAD + "    int next = i + 1;\n    short2 both = {next, 0};\n    int value = both.x;\n" + TAIL,
    "a version of CUDA's": "#include <cuda.h>\n" + HEAD + "#if CUDA_VERSION >= 9000\n    int value = i + 1;\n#else\n    int value = 0;\n#endif\n" + TAIL,
    "random numbers that others draw": "#include <curand_kernel.h>\n__global__ void other(curandState* s) { curand_init(1, 2, 3, s); }\n"
        + HEAD + "    int value = i + 1;\n" + TAIL,
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


NVCC = {
    "a `template` that is left out": "struct Tile { template <int N> static __device__ int of() { return 0 * N; } template <int N> __device__ int at(int n) { return n + N; } };\ntemplate <class T> __device__ int more(T tile, int n) { return tile.at<1>(n) + T::of<3>(); }\n"
        + HEAD + "    int value = more(Tile(), i);\n" + TAIL,
    "a pragma in a macro": "#define UNROLL #pragma unroll\n" + HEAD + "    int value = 1;\n    UNROLL\n    for (int at = 0; at < 1; ++at) value += i;\n" + TAIL,
}  # fmt: skip


@pytest.mark.parametrize("name", NVCC)
def test_what_only_nvcc_takes_is_read(beside_hist, name):
    assert beside_hist(NVCC[name]).rejections == ()


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
    "conditions stay": (slicing.directives, "without_idle_conditions", lambda text, code: text),
    "pragmas in macros stay": (clang_tree, "_PRAGMA_OF_MACRO", re.compile("never written")),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.sampled(3)
def test_a_mutant_dies(beside_hist, strategy, monkeypatch, name):
    place, what, instead = MUTANTS[name]
    for kept in (slicing._walked, kernel_parser._parsed):
        kept.cache_clear()
    monkeypatch.setattr(place, what, instead)
    died = 0
    for source in (*HOST.values(), *NVCC.values()):
        try:
            analysis = beside_hist(source)
            program = None if analysis.rejections else strategy.emit(analysis, Config.of(CONFIG), {})
            died += not isinstance(program, Program) or "curand" in program.sources[0].text
        except RequestError:
            died += 1
    for kept in (slicing._walked, kernel_parser._parsed):
        kept.cache_clear()
    assert died
