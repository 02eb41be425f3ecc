"""lower.py: every edit, what must be left alone, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.build.cpu.lowering import LoweringError, lower

ARENA = "(::fusiond_dynamic_shared)"


@pytest.mark.parametrize(
    ("text", "lowered"),
    [
        ("extern __shared__ float s[];", f"float* const s = reinterpret_cast<float*>{ARENA};"),
        ("__shared__ extern float s[];", f"float* const s = reinterpret_cast<float*>{ARENA};"),
        ("extern const float __shared__ s[];", f"const float* const s = reinterpret_cast<const float*>{ARENA};"),
        (
            "extern volatile __shared__ __align__(16) unsigned char s [ ] ;",
            f"volatile unsigned char* const s = reinterpret_cast<volatile unsigned char*>{ARENA} ;",
        ),
        (
            "extern __shared__ __align__(sizeof(T)) std::pair<T, int> q[];",
            f"std::pair<T, int>* const q = reinterpret_cast<std::pair<T, int>*>{ARENA};",
        ),
        ("extern __shared__ alignas(8) T /* x */ t[];", f"T* const t = reinterpret_cast<T*>{ARENA};"),
        ("extern __shared__ float* p[];", f"float** const p = reinterpret_cast<float**>{ARENA};"),
        ("#define S(T) extern __shared__ T s[]\n", f"#define S(T) T* const s = reinterpret_cast<T*>{ARENA}\n"),
        (
            "extern __shared__ float t[][W + 1]/* */[ 3 ];",
            "float (* const t)[W + 1] [ 3 ] = reinterpret_cast<float (*)[W + 1] [ 3 ]>(::fusiond_dynamic_shared);",
        ),
        ("extern __shared__ int\n\na[];\nx", f"int* const a = reinterpret_cast<int*>{ARENA}\n\n;\nx"),
        ("static __shared__ int a;", " __shared__ int a;"),
        ("__shared__ volatile static int b[3];", "__shared__ volatile  int b[3];"),
        ("__device__ __noinline__ int f();", "__device__ FUSIOND_NOINLINE int f();"),
        ("#include <cuda_runtime.h>\n", "// cuda_runtime.h: fusiond_cuda.h stands in for it\n"),
        (" # include <cooperative_groups.h>\n", '#include "cooperative_groups.h"\n'),
        ("__shared__  alignas(16) int t[4];", "  alignas(16) __shared__ int t[4];"),
        ("#include <cuda_fp8.hpp>\n", '#include "cuda_fp8.h"\n'),
        ('asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");', "(void)0;"),
        ('asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));', "multiprocessor = ::blockIdx.x % 4;"),
    ],
)
def test_edits(text: str, lowered: str) -> None:
    assert lower(text) == lowered


@pytest.mark.parametrize(
    "text",
    [
        "// extern __shared__ int q[][2]; k<<<1, 2>>>();\n",
        "/* asm(\n'\"' */ int i = 1'000; char c = '\"', d = '\\'';",
        'const char* s = "extern __shared__ int a[];" R"x(static __shared__ )" asm("mov"))x";',
        'extern "C" __global__ void f(int);',
        "extern int table[4]; static int n; extern const float __restrict__* p;",
        "__attribute__((__noinline__)) int g(); __attribute__((const, __noinline__)) int h();",
        '#include "mine.h"\n#include <cmath>\n',
        "#ifdef __CUDA_ARCH__\nf();\n#else\ng();\n#endif\n",
        "#error don't\n",
        "a << b; a < b; x = c<d<e>>::f;",
    ],
)
def test_left_alone(text: str) -> None:
    assert lower(text) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nextern __shared__ float s[][4], t[];", "line 2: declare one extern __shared__ array a statement"),
        ("float __shared__ extern s[];", "line 1: an extern __shared__ variable must be an array of unknown length"),
        ("extern __shared__ float s;", "line 1: an extern __shared__ variable must be an array of unknown length"),
        ("extern __shared__ int a[4];", "line 1: an extern __shared__ variable must be an array of unknown length"),
        ("extern __shared__ int a[], b[];", "line 1: declare one extern __shared__ array a statement"),
        ("extern __shared__ int (*p)[];", "line 1: an extern __shared__ variable must be an array"),
        ('\n\nasm("mma.sync %0, %tid.x;" : "=r"(x));', "line 3: inline assembly is not emulated"),
        (
            'asm volatile("setmaxnreg.dec.sync.aligned.u32 24;" " bar.sync 0;");',
            "line 1: inline assembly is not emulated",
        ),
        ("asm", "line 1: inline assembly is not emulated"),
        ("k<<<1, 2>>>(x);", "line 1: a kernel launch <<<...>>> is host code"),
        ("#include <cub/cub.cuh>\n", "line 1: <cub/cub.cuh> is not emulated"),
        ("#include <cuda_fp6.h>\n", "line 1: <cuda_fp6.h> is not emulated"),
        ("#include <mma.h>\n", "line 1: <mma.h> is not emulated"),
        ("#include <cooperative_groups/reduce.h>\n", "line 1: <cooperative_groups/reduce.h> is not emulated"),
        ("#if __CUDA_ARCH__ > 7\n#endif\nextern __shared__ int a;", "line 3: an extern __shared__ variable"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(LoweringError) as caught:
        lower(text)
    assert str(caught.value).startswith(message)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("text", "lowered"),
    [
        (
            '#ifdef PTX\nasm("mma.sync %0;" : "=r"(x));\n#endif\n',
            '#ifdef PTX\n_Pragma("GCC error \\"line 2: inline assembly is not emulated\\"") '
            'asm("mma.sync %0;" : "=r"(x));\n#endif\n',
        ),
        ("#if 0\n#include <cub/cub.cuh>\n#endif\n", "#if 0\n#error line 2: <cub/cub.cuh> is not emulated\n#endif\n"),
    ],
)
def test_in_an_if_group_a_refusal_is_left_to_the_preprocessor(text: str, lowered: str) -> None:
    assert lower(text) == lowered


@given(
    st.lists(
        st.sampled_from(
            ["extern ", "__shared__ ", "int ", "a", "[]", ";", "\n", "/*", "*/", '"', "#if 0\n", "(", "asm"]
        )
    )
)
def test_any_text_keeps_its_lines_or_is_refused(parts: list[str]) -> None:
    text = "".join(parts)
    try:
        lowered = lower(text)
    except LoweringError:
        return
    assert lowered.count("\n") == text.count("\n")
