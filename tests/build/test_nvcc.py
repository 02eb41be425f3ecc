"""nvcc and ptxas: names of kernels, register caps, failures, the cache. Needs no GPU."""

import dataclasses
import os
import re
import sys
from pathlib import Path

import pytest

from fusiond.build import nvcc, nvdisasm, ptxas
from fusiond.build.cache import BuildCache
from fusiond.model.gpu.entry_table import read_table
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Source
from fusiond.model.ptx import rewrite
from fusiond.model.system import children

ARCH = "sm_90"
needs_nvcc = pytest.mark.needs_nvcc

KERNELS = """\
struct Box { double a; char b; int c[3]; };
namespace ns { __constant__ int table[4]; __global__ void inner(float* x) { x[threadIdx.x] += table[0]; } }
extern "C" __global__ void plain(int* y) { y[0] = 1; }
template <class T, int N> __global__ void __launch_bounds__(256) pool(T* a, char c, Box s, short d) {
    a[threadIdx.x * N] = s.a + c + d;
}
static __global__ void local(int* y) { y[0] = 2; }
namespace { __global__ void hidden(int* y) { y[0] = 3; } }
__global__ void none() {}
"""
ENTRIES = ("plain", "ns::inner", "pool<float, FIVE>", "pool<double, 2 + 1>", "local", "hidden", "none")

HUNGRY = """\
extern "C" __global__ void __launch_bounds__(256) hungry(float* x, int n) {
    float v[48];
    for (int i = 0; i < 48; i++) v[i] = x[i * 77 + threadIdx.x];
    for (int j = 0; j < n; j++)
        for (int i = 0; i < 48; i++) v[i] = v[i] * v[(i + 5) % 48] + v[(i + 11) % 48];
    float t = 0;
    for (int i = 0; i < 48; i++) t += v[i] * v[i];
    x[threadIdx.x] = t;
}
"""


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "cache")


def source(text: str, *entries: str, **values: object) -> Source:
    return Source(name="kernel", text=text, entries=entries, **values)  # type: ignore[arg-type]


def built(of: Source, cache: BuildCache) -> ptxas.Cubin:
    found = nvcc.build(of, ARCH, cache=cache)
    assert isinstance(found, ptxas.Cubin), found
    return found


def failed(of: Source, cache: BuildCache, arch: str = ARCH) -> BuildFailed:
    found = nvcc.build(of, arch, cache=cache)
    assert isinstance(found, BuildFailed), found
    return found


# --- finding it -----------------------------------------------------------------------------------------


def test_without_a_compiler_everything_says_so(monkeypatch: pytest.MonkeyPatch, cache: BuildCache) -> None:
    monkeypatch.setattr(nvcc, "find", lambda: None)
    assert "FUSIOND_NVCC" in (nvcc.missing() or "")
    assert nvcc.version() is None
    assert "no nvcc" in failed(source(KERNELS, "plain"), cache).reason
    assert isinstance(nvcc.ptx(source(KERNELS, "plain"), ARCH, cache=cache), BuildFailed)
    assert nvcc.NvccFacts(ARCH, cache=cache)(source(KERNELS, "plain")) is None


def test_a_named_compiler_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSIOND_NVCC", "/nowhere/nvcc")
    assert nvcc.find() is None
    assert "/nowhere/nvcc" in (nvcc.missing() or "")


def test_the_one_of_nvidias_wheels_is_found_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A script stands for it; the package `nvidia` has no file of its own, as theirs has none."""
    folder = tmp_path / "nvidia" / "cu13" / "bin"
    folder.mkdir(parents=True)
    script = f"#!/bin/sh\necho 'V13.0.88'\necho '#$ _HERE_={folder}' >&2\n"
    for name in ("nvcc", "ptxas"):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    find = nvcc._find.__wrapped__  # without its memory
    left = tmp_path / "left" / "nvcc"
    left.parent.mkdir()
    left.write_text('#!/bin/sh\nexec /nowhere/nvcc "$@"\n')  # of a toolkit that was removed
    left.chmod(0o755)
    found = find(("", str(left.parent), "", ""))
    assert found is not None
    here = Path("/usr/local/cuda/bin/nvcc")
    assert found.nvcc == (here if os.access(here, os.X_OK) else folder / "nvcc")
    found = find(("", str(folder), "", ""))
    assert found is not None
    assert (found.nvcc, found.ptxas, found.version) == (folder / "nvcc", folder / "ptxas", "13.0.88")


@needs_nvcc
def test_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", nvcc.version() or "")
    assert nvcc.missing() is None


# --- names ----------------------------------------------------------------------------------------------


@needs_nvcc
def test_every_kind_of_kernel_is_found(cache: BuildCache) -> None:
    found = built(source(KERNELS, *ENTRIES, defines=(("FIVE", "5"),)), cache)
    assert set(found.names) == set(found.facts) == set(ENTRIES)
    assert found.names["plain"] == "plain"
    assert found.names["ns::inner"] == "_ZN2ns5innerEPf"
    assert found.names["pool<float, FIVE>"].startswith("_Z4poolIfLi5E")
    assert found.names["pool<double, 2 + 1>"].startswith("_Z4poolIdLi3E")
    assert len(set(found.names.values())) == len(ENTRIES)


@needs_nvcc
def test_the_table_in_the_binary_has_the_layout_of_the_arguments(cache: BuildCache) -> None:
    found = built(source(KERNELS, *ENTRIES, defines=(("FIVE", "5"),)), cache)
    table = read_table(found.path).entries
    assert {name: entry.mangled for name, entry in table.items()} == dict(found.names)
    pool = table["pool<float, FIVE>"]
    assert [(each.offset_bytes, each.size_bytes) for each in pool.parameters] == [(0, 8), (8, 1), (16, 24), (40, 2)]
    assert pool.argument_bytes == 42
    assert table["none"].parameters == ()


@needs_nvcc
def test_variables_are_found_by_the_names_of_the_source(cache: BuildCache) -> None:
    text = "__device__ int counter; static __constant__ float weights[3]; " + KERNELS
    of = source(text, "plain", symbols=("counter", "weights", "ns::table"))
    symbols = read_table(built(of, cache).path).symbols
    assert symbols["counter"] == "counter"
    assert symbols["ns::table"] == "_ZN2ns5tableE"
    assert set(symbols) == {"counter", "weights", "ns::table"}
    assert "symbol lost" in failed(source(text, "plain", symbols=("lost",)), cache).reason


# --- register caps --------------------------------------------------------------------------------------


@needs_nvcc
@pytest.mark.parametrize("cap", [48, 24])
def test_a_cap_holds_despite_launch_bounds(cache: BuildCache, cap: int) -> None:
    free = built(source(HUNGRY, "hungry"), cache).facts["hungry"]
    assert free.registers > 48
    assert free.spill_store_bytes == 0
    capped = built(source(HUNGRY, "hungry", register_cap=cap), cache).facts["hungry"]
    assert capped.registers <= cap
    assert capped.spill_store_bytes > 0
    assert capped.arch == ARCH


@needs_nvcc
def test_a_cap_that_is_not_kept_is_a_failure(cache: BuildCache) -> None:
    assert "24 registers under a cap of 16" in failed(source(HUNGRY, "hungry", register_cap=16), cache).reason


def test_caps_in_ptx() -> None:
    text = """\
.visible .entry a(
\t.param .u64 a_param_0
)
;
.visible .entry a(
\t.param .u64 a_param_0
)
.maxntid 256, 1, 1
.minnctapersm 2
{
\tret;
}
.entry b()
{
\tret;
}
.entry c() .maxnreg 32 {
\tret;
}
"""
    capped = rewrite.with_register_cap(text, 40)
    assert capped.count(".maxnreg 40\n{") == 2
    assert capped.count(".maxnreg 32 {") == 1
    assert ".minnctapersm 2 .maxnreg 40\n{" in capped
    assert capped.count("\n") == text.count("\n")
    assert capped.startswith(text[: text.index(";")])


# --- failures -------------------------------------------------------------------------------------------


@needs_nvcc
@pytest.mark.parametrize(
    ("text", "entry", "reason"),
    [
        ("\n__global__ void k(int* x) { x[0] = y; }", "k", 'kernel.cu:2: identifier "y" is undefined'),
        ('#include "gone.h"\n__global__ void k() {}', "k", "kernel.cu:1: gone.h: No such file or directory"),
        ("__global__ void k() {}", "q<float>", 'entry q<float>: identifier "q" is undefined'),
        ("__device__ void k() {}", "k", "kernel.cu: k is not a kernel (__global__ function)"),
        ("__global__ void k(int* x) { __shared__ int a[40000]; a[x[0]] = 1; __syncthreads(); x[1] = a[x[2]]; }", "k",
         "ptxas: Entry function 'k' uses too much shared data"),
    ],
)  # fmt: skip
def test_the_reason_is_the_first_error(cache: BuildCache, text: str, entry: str, reason: str) -> None:
    found = failed(source(text, entry), cache)
    assert found.reason.startswith(reason)
    assert "\n" not in found.reason
    assert "/tmp" not in found.reason


@needs_nvcc
def test_an_architecture_that_the_compiler_does_not_know(cache: BuildCache) -> None:
    assert failed(source(KERNELS, "plain"), cache, "sm_61").reason == "Unsupported gpu architecture 'sm_61'"


@needs_nvcc
@pytest.mark.parametrize("flag", ["-arch=sm_80", "-o", "-gencode=arch=compute_80,code=sm_80", "--cubin", "-rdc=true"])
def test_flags_that_are_not_the_users(cache: BuildCache, flag: str) -> None:
    assert flag in failed(source(KERNELS, "plain", flags=(flag,)), cache).reason


@needs_nvcc
def test_a_compiler_that_takes_too_long_is_not_remembered(cache: BuildCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "NVCC_SECS", 0.01)
    assert "longer than" in failed(source(KERNELS, "plain"), cache).reason
    monkeypatch.undo()
    built(source(KERNELS, "plain"), cache)


# --- the cache ------------------------------------------------------------------------------------------


class Counted:
    """Counts compilers that are started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tools: list[str] = []
        run = children.run

        def counting(command: list[str], **options: object) -> object:
            self.tools.append(Path(command[0]).name)
            return run(command, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(children, "run", counting)


@needs_nvcc
def test_nvcc_runs_once_and_ptxas_once_per_cap(cache: BuildCache, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc.find()
    ran = Counted(monkeypatch)
    for cap in (None, 64, 32, None, 64):
        built(source(HUNGRY, "hungry", register_cap=cap), cache)
    assert ran.tools == ["nvcc", "ptxas", "ptxas", "ptxas"]


@needs_nvcc
def test_an_included_file_that_changes_is_built_again(cache: BuildCache, tmp_path: Path) -> None:
    (tmp_path / "deep.h").write_text("#define VALUE 1\n")
    (tmp_path / "top.h").write_text('#include "deep.h"\n')
    of = source('#include "top.h"\n__global__ void k(int* x) { x[0] = VALUE; }', "k", include_dirs=(str(tmp_path),))
    first = built(of, cache)
    assert built(of, cache).path == first.path
    (tmp_path / "deep.h").write_text("#define VALUE 2\n")
    second = built(of, cache)
    assert second.path != first.path
    (tmp_path / "deep.h").unlink()
    assert "deep.h: No such file" in failed(of, cache).reason
    (tmp_path / "deep.h").write_text("#define VALUE 1\n")  # a missing header is not remembered
    assert built(of, cache).path == first.path


@needs_nvcc
def test_everything_that_matters_is_in_the_key(cache: BuildCache) -> None:
    text = "#ifndef N\n#define N 1\n#endif\n__global__ void k(float* x) { x[0] = x[1] / x[2] * N + x[3]; }"
    plain = source(text, "k")
    variants = [
        plain,
        dataclasses.replace(plain, defines=(("N", "2"),)),
        dataclasses.replace(plain, flags=("-use_fast_math",)),
        dataclasses.replace(plain, flags=("-fmad=false",)),
        dataclasses.replace(plain, flags=("-Xptxas", "-O1")),
    ]
    assert len({built(each, cache).path.read_bytes() for each in variants}) == len(variants)


@needs_nvcc
def test_facts_are_per_entry(cache: BuildCache) -> None:
    facts = nvcc.NvccFacts(ARCH, cache=cache)
    found = facts(source(KERNELS, "plain", "ns::inner"))
    assert found is not None
    assert not isinstance(found, BuildFailed)
    assert found["ns::inner"].entry == "ns::inner"
    assert found["ns::inner"].registers > 0
    assert isinstance(facts(source("x", "k")), BuildFailed)


@pytest.mark.needs_nvcc
def test_a_kernel_may_share_its_name_with_a_function_of_cuda(cache: BuildCache) -> None:
    text = """
__global__ void norm(float* x) { x[threadIdx.x] += normf(2, x); }
template <int N> __global__ void max(float* x) { x[threadIdx.x] = max(x[threadIdx.x], (float)N); }
"""
    built = nvcc.build(Source(name="k", text=text, entries=("norm", "max<9>")), "sm_75", cache=cache)
    assert not isinstance(built, BuildFailed), built.reason
    assert [each.mangled for each in read_table(built.path).entries.values()] == ["_Z3maxILi9EEvPf", "_Z4normPf"]


# --- where the disassembler is found, and what comes of files that it does not read ---------------------


find = nvdisasm._find.__wrapped__  # without its memory


def program(folder: Path, text: str = "#!/bin/sh\necho V1.0\n") -> Path:
    folder.mkdir(parents=True)
    (folder / "nvdisasm").write_text(text)
    (folder / "nvdisasm").chmod(0o755)
    return folder / "nvdisasm"


def test_the_places_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path, in_home = program(tmp_path / "a"), program(tmp_path / "b" / "bin")
    beside, of_wheels = program(tmp_path / "c"), program(tmp_path / "d" / "nvidia" / "cu13" / "bin")
    monkeypatch.setattr("sys.path", [str(tmp_path / "d")])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    home = str(in_home.parents[1])
    assert find(str(on_path.parent), home, "", str(beside.parent)) == on_path
    assert find("/nowhere", home, "", str(beside.parent)) == in_home
    assert find("/nowhere", "", home, str(beside.parent)) == in_home
    if not Path("/usr/local/cuda/bin/nvdisasm").exists():
        assert find("/nowhere", "", "", str(beside.parent)) == beside
        assert find("/nowhere", "", "", "") == of_wheels
        monkeypatch.setattr("sys.path", [])
        monkeypatch.delitem(sys.modules, "nvidia", raising=False)
        assert find("/nowhere", "", "", "") is None


def test_a_listing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is in the file, and the program's version."""
    runs = tmp_path / "runs"
    text = f'#!/bin/sh\ncase $1 in --version) echo V1.0;; *) echo run >> {runs}; cat "$3";; esac\n'
    tool = program(tmp_path / "bin", text)
    monkeypatch.setattr(nvdisasm, "find", lambda: tool)
    cache, cubin = BuildCache(tmp_path / "cache"), tmp_path / "a.cubin"
    cubin.write_text("first\n")
    assert [nvdisasm.listing(cubin, cache=cache) for _ in range(2)] == ["first\n"] * 2
    assert runs.read_text() == "run\n"
    cubin.write_text("second\n")
    assert nvdisasm.listing(cubin, cache=cache) == "second\n"
