"""Sources that are PTX: which ptxas assembles them, names, caps, and what is said where one cannot be built."""

import dataclasses
import gzip
import importlib.util
import os
import shutil
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from fusiond.build import assemblers, nvcc, ptx_entries, ptxas
from fusiond.build.cache import BuildCache
from fusiond.model.gpu.entry_table import EntryParameter, read_table
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Source, SourceLanguage
from fusiond.model.ptx.tree import PtxError

DATA = Path(__file__).parent.parent / "ptx_data"
needs_nvcc = pytest.mark.needs_nvcc

SCALE = """\
// made by hand
.version 8.0
.target sm_80
.address_size 64
.global .align 4 .f32 factor = 0f40000000; // 2.0
.visible .entry scale(.param .u64 .ptr .global .align 4 x, .param .u32 n, .param .align 8 .b8 box[24]) // {
.maxntid 256, 1, 1
{
    .reg .pred %p<2>; .reg .b32 %r<6>; .reg .f32 %f<4>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [x];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.s32 %p1, %r5, %r1;
    @%p1 bra DONE;
    mul.wide.s32 %rd2, %r5, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.f32 %f1, [%rd3];
    ld.global.f32 %f2, [factor];
    mul.f32 %f3, %f1, %f2;
    st.global.f32 [%rd3], %f3;
DONE:
    ret;
}
"""


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "cache")


def ptx(text: str = SCALE, *entries: str, **values: object) -> Source:
    given = {"name": "scale", "symbols": (), **values}
    return Source(text=text, entries=entries or ("scale",), language=SourceLanguage.PTX, **given)  # type: ignore[arg-type]


def built(source: Source, cache: BuildCache, arch: str = "sm_90") -> ptxas.Cubin:
    found = nvcc.build(source, arch, cache=cache)
    assert isinstance(found, ptxas.Cubin), found
    return found


def reason(source: Source, cache: BuildCache, arch: str = "sm_90") -> str:
    found = nvcc.build(source, arch, cache=cache)
    assert isinstance(found, BuildFailed), found
    assert "\n" not in found.reason
    return found.reason


# --- what is built ---


@needs_nvcc
def test_names_are_those_of_the_text(cache: BuildCache) -> None:
    made = built(ptx(symbols=("factor",)), cache)
    assert made.names == {"scale": "scale"}
    assert made.facts["scale"].arch == "sm_90"
    assert made.facts["scale"].registers > 0
    table = read_table(made.path)
    assert table.symbols == {"factor": "factor"}
    (entry,) = table.entries.values()
    assert [(each.offset_bytes, each.size_bytes) for each in entry.parameters] == [(0, 8), (8, 4), (16, 24)]
    assert EntryParameter(offset_bytes=8, size_bytes=4) in entry.parameters


@needs_nvcc
def test_what_nvcc_writes_is_built_to_the_same_code(cache: BuildCache) -> None:
    text = 'extern "C" __global__ void __launch_bounds__(128) k(float* x) { x[threadIdx.x] = sinf(x[threadIdx.x]); }'
    cuda = Source(name="k", text=text, entries=("k",))
    written = nvcc.ptx(cuda, "sm_90", cache=cache)
    assert isinstance(written, str)
    for cap in (None, 24):
        ours = built(ptx(written, "k", name="k", register_cap=cap), cache)
        theirs = built(dataclasses.replace(cuda, register_cap=cap), cache)
        assert ours.facts == theirs.facts


@needs_nvcc
def test_a_cap_is_written_into_the_text(cache: BuildCache) -> None:
    text = gzip.decompress((DATA / "gemm_f16_sm_80.ptx.gz").read_bytes()).decode()
    free = built(ptx(text, "gemm", name="gemm"), cache).facts["gemm"]
    capped = built(ptx(text, "gemm", name="gemm", register_cap=64), cache).facts["gemm"]
    assert free.registers > 64 >= capped.registers
    assert capped.spill_store_bytes > 0
    assert built(ptx(text, "gemm", name="gemm", flags=("-maxrregcount=64",)), cache).facts["gemm"] == capped


@needs_nvcc
@pytest.mark.parametrize("name", ["softmax_sm_80", "softmax_sm_90", "attention_sm_90", "gemm_descriptor_sm_90"])
def test_what_triton_writes_is_built(name: str, cache: BuildCache) -> None:
    text = gzip.decompress((DATA / f"{name}.ptx.gz").read_bytes()).decode()
    entry = name.rpartition("_sm")[0]
    source = ptx(text, entry, name=name)
    made = built(source, cache)
    assert made.facts[entry].arch == source.target("sm_90")


@needs_nvcc
@pytest.mark.parametrize("flag", ["-lineinfo", "-G"])
def test_lines_of_another_text_do_no_harm(flag: str, cache: BuildCache) -> None:
    text = """__device__ float twice(float x) { return 2 * x; }
        extern "C" __global__ void k(float* x) { x[threadIdx.x] = twice(x[threadIdx.x + 1]); }"""
    written = nvcc.ptx(Source(name="k", text=text, entries=("k",), flags=(flag,)), "sm_80", cache=cache)
    assert isinstance(written, str)
    assert {".loc", ".file", ".section"} <= set(written.split())
    source = ptx(written, "k", name="k", register_cap=24)
    made = built(source, cache)
    assert made.facts["k"].registers <= 24
    assert built(dataclasses.replace(source, flags=("-lineinfo",)), cache).facts == made.facts


# --- what is not ---


@needs_nvcc
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [("mul.f32 %f3, %f1, %f2", "mul.f32 %f9, %f1, %f2", "scale.ptx:20: scale: Arguments mismatch"),
     ("ret;\n}", "ret;\n", "scale.ptx:23: the text ends in the middle"),
     ("sm_80", "sm_120", "scale.ptx:3: .target sm_120 is newer than sm_90: compile it for that"),
     ("sm_80", "sm_80a", "scale.ptx:3: .target sm_80a runs on sm_80 alone, and this is for sm_90"),
     ("sm_80", "sm_100f", "scale.ptx:3: .target sm_100f runs on the family of sm_100 alone, and this is for sm_90"),
     (".version 8.0", "", "scale.ptx: it has no line such as .version 8.0: not PTX"),
     (".version 8.0", ".version 99.1", "scale.ptx:2: .version 99.1 needs the ptxas of CUDA 103.1 or later; there is ")],
)  # fmt: skip
def test_the_reason_is_one_line(old: str, new: str, said: str, cache: BuildCache) -> None:
    assert reason(ptx(SCALE.replace(old, new)), cache).startswith(said)


def test_names_that_are_not_there(cache: BuildCache) -> None:
    assert reason(ptx(SCALE, "scaled"), cache) == "scale.ptx: scaled is not a kernel (.entry) of it; there is scale"
    said = reason(ptx(symbols=("factors",)), cache)
    assert said == "scale.ptx: factors is not a variable of it; there is factor"


# --- which ptxas ---


def assembler(folder: Path, release: str, isa: str, archs: str) -> Path:
    """A program that says of itself what ptxas does; it assembles to a text that names it."""
    folder.mkdir(parents=True)
    path = folder / "ptxas"
    path.write_text(
        "#!/bin/sh\n"
        f'case "$*" in\n--version) echo "Cuda compilation tools, release {release}, V{release}.1";;\n'
        f'--help) echo "{" ".join(chr(39) + each + chr(39) for each in archs.split())}";;\n'
        f"*ask.ptx) echo \"ptxas fatal: Unsupported .version 99.0; current version is '{isa}'\"; exit 1;;\nesac\n"
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [
        assembler(tmp_path / "old", "12.9", "8.8", "sm_60 sm_90 sm_90a"),
        assembler(tmp_path / "new", "13.4", "9.4", "sm_90 sm_90a sm_107a"),
        assembler(tmp_path / "middle", "13.0", "9.0", "sm_90 sm_90a sm_100f sm_110"),
    ]
    monkeypatch.setenv("FUSIOND_PTXAS", os.pathsep.join(map(str, given)))


@pytest.mark.parametrize(
    ("version", "target", "arch", "chosen"),
    [("8.0", "sm_80", "sm_90", "13.4.1"), ("9.4", "sm_90a", "sm_90a", "13.4.1"), ("8.0", "sm_60", "sm_60", "12.9.1"),
     ("9.0", "sm_100f", "sm_100f", "13.0.1"), ("8.8", "sm_80", "sm_110", "13.0.1")],
)  # fmt: skip
def test_the_newest_that_takes_it(three: None, version: str, target: str, arch: str, chosen: str) -> None:
    found = assemblers.choose(f".version {version}\n.target {target}\n", arch, "k.ptx")
    assert isinstance(found, assemblers.Assembler), found
    assert found.version == chosen


def test_what_none_of_them_takes(three: None) -> None:
    def said(version: str, arch: str) -> str:
        found = assemblers.choose(f".version {version}\n.target sm_50\n", arch, "k.ptx")
        assert isinstance(found, BuildFailed)
        return found.reason

    assert said("9.5", "sm_90").startswith(
        "k.ptx:1: .version 9.5 needs the ptxas of CUDA 13.5 or later; there is 13.4.1 ("
    )
    assert "nvidia-cuda-nvcc>=13.5" in said("9.5", "sm_90")
    assert said("9.1", "sm_100").startswith("k.ptx:2: no ptxas that is here assembles for sm_100; there is 13.4.1 (")


@needs_nvcc
def test_what_an_assembler_says_of_itself() -> None:
    newest = assemblers.found()[0]
    said = subprocess.run([newest.path, "--version"], capture_output=True, text=True, check=True).stdout
    assert f"V{newest.version}" in said
    assert {"sm_90", "sm_90a"} <= newest.archs
    assert assemblers.release_of(newest.isa) == ".".join(map(str, newest.release[:2]))


def test_an_assembler_is_asked_once_as_long_as_its_file_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where it is a script, and not where one of its answers is missing."""
    monkeypatch.setenv("FUSIOND_CACHE", str(tmp_path / "cache"))
    answers = {"--version": "V13.0.88", "-arch=sm_90": "current version is '9.0'", "--help": "'sm_90','sm_90a'"}
    calls: list[str] = []

    def ask(command: list[str]) -> str:
        calls.append(command[1])
        return answers[command[1]]

    monkeypatch.setattr(assemblers.compiler, "ask", ask)
    file = tmp_path / "ptxas"
    file.write_bytes(b"\x7fELF one")
    first = assemblers._asked(str(file))
    assert first is not None
    assert (first.release, first.isa, first.archs) == ((13, 0, 88), (9, 0), {"sm_90", "sm_90a"})
    assert assemblers._asked(str(file)) == first
    assert calls == list(answers)
    answers["--help"] = ""
    for content, more in ((b"\x7fELF another", 6), (b"#!/bin/sh", 6)):
        file.write_bytes(content)
        calls.clear()
        assert assemblers._asked(str(file)) == assemblers._asked(str(file)) != first
        assert len(calls) == more
        answers["--help"] = "'sm_80'"


@pytest.mark.parametrize(
    ("isa", "release"),
    [((7, 8), "11.8"), ((8, 0), "12.0"), ((8, 5), "12.5"), ((8, 6), "12.7"), ((8, 8), "12.9"), ((9, 0), "13.0")],
)  # fmt: skip
def test_releases_of_instruction_sets(isa: tuple[int, int], release: str) -> None:
    """As the release history in NVIDIA's "Parallel Thread Execution ISA" has them."""
    assert assemblers.release_of(isa) == release


def test_those_of_wheels_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia = assembler(tmp_path / "nvidia" / "cu13" / "bin", "13.0", "9.0", "sm_90")
    triton = assembler(tmp_path / "triton" / "backends" / "nvidia" / "bin", "12.9", "8.8", "sm_90")
    newest = shutil.copy(assembler(tmp_path / "x", "13.4", "9.4", "sm_90"), triton.with_name("ptxas-blackwell"))
    (tmp_path / "triton" / "__init__.py").write_text("raise RuntimeError('it is found, and not imported')\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in ("FUSIOND_PTXAS", "FUSIOND_NVCC", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{empty}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("nvidia", "triton"):  # another test may have imported it
        spec = PathFinder.find_spec(name, [str(tmp_path)])
        monkeypatch.setitem(sys.modules, name, importlib.util.module_from_spec(spec))
    assemblers._found.cache_clear()
    try:
        paths = {str(each.path) for each in assemblers.found()}
    finally:
        assemblers._found.cache_clear()
    assert {str(nvidia), str(triton), str(newest)} <= paths


@needs_nvcc
def test_what_the_parser_does_not_read_is_a_line_and_not_kept(
    cache: BuildCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(text: str) -> None:
        raise PtxError("'.novel' is not known", 7)

    cuda = Source(name="k", text="__global__ void k(int* x) { x[0] = 1; }", entries=("k",))
    with monkeypatch.context() as patch:
        patch.setattr(ptx_entries, "module", unread)
        assert reason(cuda, cache) == "k.cu: nvcc writes what is not understood here: PTX line 7: '.novel' is not known"
    built(cuda, cache)
