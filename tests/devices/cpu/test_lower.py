"""lower.py: every edit, what must be left alone, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.build import gxx, nvcc
from fusiond.build.cache import BuildCache
from fusiond.build.cpu.lowering import LoweringError, lower
from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices.cpu.count import main
from fusiond.devices.cpu.executor import CpuExecutor, CpuProgram
from fusiond.devices.cpu.link import Link, parse
from fusiond.model.errors import RequestError
from fusiond.model.program import Buffer, Copy, CopyBatch, Launch, Memory, Pointer, Prefetch, Program, Role, Source

ARENA = "(::fusiond_dynamic_shared)"


@pytest.mark.parametrize(
    ("text", "lowered"),
    [
        ("extern __shared__ float s[];", f"float* const s = reinterpret_cast<float*>{ARENA};"),
        ("__shared__ extern float s[];", f"float* const s = reinterpret_cast<float*>{ARENA};"),
        ("extern const float __shared__ s[];", f"const float* const s = reinterpret_cast<const float*>{ARENA};"),
        ("extern volatile __shared__ __align__(16) unsigned char s [ ] ;",
         f"volatile unsigned char* const s = reinterpret_cast<volatile unsigned char*>{ARENA} ;"),
        ("extern __shared__ __align__(sizeof(T)) std::pair<T, int> q[];",
         f"std::pair<T, int>* const q = reinterpret_cast<std::pair<T, int>*>{ARENA};"),
        ("extern __shared__ alignas(8) T /* x */ t[];", f"T* const t = reinterpret_cast<T*>{ARENA};"),
        ("extern __shared__ float* p[];", f"float** const p = reinterpret_cast<float**>{ARENA};"),
        ("#define S(T) extern __shared__ T s[]\n", f"#define S(T) T* const s = reinterpret_cast<T*>{ARENA}\n"),
        ("extern __shared__ float t[][W + 1]/* */[ 3 ];",
         "float (* const t)[W + 1] [ 3 ] = reinterpret_cast<float (*)[W + 1] [ 3 ]>(::fusiond_dynamic_shared);"),
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
)  # fmt: skip
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
        ('asm volatile("setmaxnreg.dec.sync.aligned.u32 24;" " bar.sync 0;");',
         "line 1: inline assembly is not emulated"),
        ("asm", "line 1: inline assembly is not emulated"),
        ("k<<<1, 2>>>(x);", "line 1: a kernel launch <<<...>>> is host code"),
        ("#include <cub/cub.cuh>\n", "line 1: <cub/cub.cuh> is not emulated"),
        ("#include <cuda_fp6.h>\n", "line 1: <cuda_fp6.h> is not emulated"),
        ("#include <mma.h>\n", "line 1: <mma.h> is not emulated"),
        ("#include <cooperative_groups/reduce.h>\n", "line 1: <cooperative_groups/reduce.h> is not emulated"),
        ("#if __CUDA_ARCH__ > 7\n#endif\nextern __shared__ int a;", "line 3: an extern __shared__ variable"),
    ],
)  # fmt: skip
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


# --- the command that counts a bundle -------------------------------------------------------------------


TEXT = """
extern "C" __global__ void twice(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }
extern "C" __global__ void outside(const float* x, float* y) { y[threadIdx.x + 1] = x[threadIdx.x]; }
"""
KEYS = {
    *("program", "launch", "kernel", "global_read_bytes", "global_write_bytes", "read_sectors", "write_sectors"),
    *("minimal_bytes", "dram_bytes", "shared_wavefronts", "shared_minimal_wavefronts", "instructions"),
    *("ptx_instructions", "model", "sampled", "error", "failed"),
}


def bundle(folder: Path, *kernels: str, text: str = TEXT) -> str:
    """A folder with a launch of 64 threads for each of these."""
    roles = {"x": Role.INPUT, "y": Role.OUTPUT}
    source = Source(name="k", text=text, entries=tuple(dict.fromkeys(kernels)))
    program = Program(
        name="pair",
        buffers=tuple(Buffer(name=name, dtype="float32", elements=64, role=role) for name, role in roles.items()),
        sources=(source,),
        steps=tuple(
            Launch(name=f"{k}:{kernel}", source="k", entry=kernel, grid=(1, 1, 1), block=(64, 1, 1),
                   arguments=(Pointer(buffer="x"), Pointer(buffer="y")))
            for k, kernel in enumerate(kernels)
        ),
    )  # fmt: skip
    write_bundle(folder, program, {})
    return str(folder)


@pytest.fixture
def tools(gxx_here: None, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = nvcc.missing()
    if line is not None:
        pytest.skip(line)
    monkeypatch.setenv("FUSIOND_CACHE", str(shared_cache))


@pytest.mark.needs_nvcc
def test_a_row_for_each_launch(tools: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = bundle(tmp_path / "b", "twice", "twice")
    assert main([folder, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["counted"]
    assert set(rows[0]) >= KEYS
    assert [each["launch"] for each in rows] == ["0:twice", "1:twice"]
    assert [each["program"] for each in rows] == ["pair", "pair"]
    assert [each["kernel"] for each in rows] == ["twice", "twice"]
    assert [(each["global_read_bytes"], each["read_sectors"], each["failed"]) for each in rows] == [(256, 8, None)] * 2
    assert main([folder]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("0:twice (twice): global read bytes 256,")


@pytest.mark.needs_nvcc
def test_a_launch_that_fails(tools: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows behind it say that they were not run; the status is 1."""
    folder = bundle(tmp_path / "b", "outside", "twice")
    assert main([folder, "--json"]) == 1
    said = capsys.readouterr()
    first, second = json.loads(said.out)["counted"]
    assert "k.cu:3: st.global" in first["failed"]
    assert first["read_sectors"] is None
    assert second["failed"] == "not run: 0:outside failed"
    assert said.err == ""
    assert main([folder]) == 1
    assert capsys.readouterr().out.splitlines()[1] == "1:twice (twice): not run: 0:outside failed"


@pytest.mark.needs_nvcc
def test_a_source_that_does_not_build(tools: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = bundle(tmp_path / "b", "twice", text='extern "C" __global__ void twice(float* x) { x[0] = y; }')
    assert main([folder]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == 'k does not build: k.cu:1: identifier "y" is undefined\n'


def test_without_a_compiler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSIOND_NVCC", "/nowhere/nvcc")
    assert main([bundle(tmp_path / "b", "twice"), "--json"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "FUSIOND_NVCC=/nowhere/nvcc is not an nvcc that runs, with ptxas beside it\n"


def test_a_plan_that_contradicts_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = bundle(tmp_path / "b", "twice")
    plan = Path(folder, "plan.json")
    plan.write_text(plan.read_text().replace('"source": "k"', '"source": "q"'))
    assert main([folder]) == 2
    said = capsys.readouterr().err
    assert said == f"{folder}: plan.json is not a Program that can run: step '0:twice' names the unknown source 'q'\n"


@pytest.mark.parametrize("arguments", [[], ["b", "--jsn"], ["b", "--seed", "x"]])
def test_options_that_are_wrong(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


# --- the link of the cpu device -------------------------------------------------------------------------


N = 3000
KERNEL = Source(
    name="d", text='extern "C" __global__ void k(float* x) { x[threadIdx.x] += 1; }', entries=("k",)
)  # fmt: skip


def both(name: str, **more: Any) -> tuple[Buffer, Buffer]:
    return (
        Buffer(name=name, dtype="float32", elements=N, role=Role.INPUT, memory=Memory.PINNED, **more),
        Buffer(name=f"{name}@", dtype="float32", elements=N, role=Role.OUTPUT),
    )


def loaded(link: Link, cache: Path, *steps: Any) -> CpuProgram:
    pages = Buffer(name="m", dtype="float32", elements=N, role=Role.INPUT, memory=Memory.MANAGED)
    program = Program(name="p", buffers=(*both("a"), *both("b"), pages), sources=(KERNEL,), steps=steps)
    binary = gxx.build(KERNEL, cache=BuildCache(cache))
    assert isinstance(binary, Path)
    return CpuExecutor(link).load(program, {"d": binary})


def test_a_message_takes_its_latency_and_its_bytes(scheduler_library: Path, shared_cache: Path) -> None:
    link = Link(bytes_per_us=1000, latency_us=8)
    one = Copy(name="one", source=("a",), target=("a@",))
    assert loaded(link, shared_cache, one).sample_us(1) == pytest.approx(20)
    two = (one, Copy(name="two", source=("b",), target=("b@",), stream=1))
    assert loaded(link, shared_cache, *two).sample_us(3) == pytest.approx(40), "one engine carries one at a time"
    batch = CopyBatch(name="both", copies=(("a", "a@"), ("b", "b@")))
    assert loaded(link, shared_cache, batch).sample_us(1) == pytest.approx(32)
    back = Copy(name="back", source=("b@",), target=("b",), stream=1)
    assert loaded(link, shared_cache, one, back).sample_us(1) == pytest.approx(20), "each way at once"
    fetch = Prefetch(name="fetch", buffers=("m",), to_device=True, stream=1)
    assert loaded(link, shared_cache, one, fetch).sample_us(1) == pytest.approx(40), "pages go over the same link"


def test_kernels_run_beside_the_copies(scheduler_library: Path, shared_cache: Path) -> None:
    launch = Launch(name="k", source="d", entry="k", grid=(1, 1, 1), block=(64, 1, 1),
                    arguments=(Pointer(buffer="b@"),), stream=1)  # fmt: skip
    up = Copy(name="up", source=("a",), target=("a@",))
    found = loaded(Link(bytes_per_us=0.1, latency_us=0), shared_cache, up, launch)
    assert found.sample_us(1) == pytest.approx(120_000), "the kernel is hidden behind the copy"


@pytest.mark.parametrize("text", ["12", "12GB/s", "0GB/s,8us", "12GB/s,8ms", "GB/s,us", "12GB/s,8us,early"])
def test_a_link_that_is_none(text: str) -> None:
    with pytest.raises(RequestError, match="expected a bandwidth and a latency, such as 12GB/s,8us"):
        parse(text)
