"""g++: sources to shared objects, failures to one line, and only a compiler's own no is kept."""

import dataclasses
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from fusiond.build import cache as caching
from fusiond.build import gxx
from fusiond.build.cache import BuildCache
from fusiond.devices.cpu import native
from fusiond.model.errors import StoreError
from fusiond.model.keys import text_key
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Source, SourceKind

pytestmark = pytest.mark.usefixtures("gxx_here")

KERNEL = Source(name="k", text="__global__ void f(int* x) { x[threadIdx.x] = BY; }", entries=("f",),
                defines=(("BY", "3"),))  # fmt: skip
HOST = Source(name="h", kind=SourceKind.HOST, text='extern "C" void f(int* x) { *x = 1; }', entries=("f",))


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "cache")


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a script in the compiler's place; it answers `--version` as g++ would."""

    def place(script: str) -> None:
        path = tmp_path / "cxx"
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "fake 1" && exit 0\n{script}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("FUSIOND_CXX", str(path))

    return place


@pytest.mark.parametrize("source", [KERNEL, HOST])
def test_a_source_is_built_once(source: Source, cache: BuildCache) -> None:
    path = gxx.build(source, cache=cache)
    assert isinstance(path, Path)
    written = path.stat().st_ino
    assert gxx.build(source, cache=cache) == path
    assert path.stat().st_ino == written
    assert path.read_bytes()[:4] == b"\x7fELF"


def test_all_that_decides_the_object_is_in_its_key(cache: BuildCache, tmp_path: Path) -> None:
    (tmp_path / "inc").mkdir()
    header = tmp_path / "inc" / "by.cuh"
    header.write_text("#define BY 1\n")
    included = dataclasses.replace(
        KERNEL, text='#include "by.cuh"\n' + KERNEL.text, defines=(), include_dirs=(str(tmp_path / "inc"),)
    )
    paths = [
        gxx.build(KERNEL, cache=cache),
        gxx.build(dataclasses.replace(KERNEL, defines=(("BY", "4"),)), cache=cache),
        gxx.build(dataclasses.replace(KERNEL, text=KERNEL.text + "\n"), cache=cache),
        gxx.build(included, cache=cache),
    ]
    header.write_text("#define BY 2\n")
    paths.append(gxx.build(included, cache=cache))
    assert len(set(paths)) == len(paths)
    assert all(isinstance(path, Path) for path in paths)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (dataclasses.replace(KERNEL, text="\n__global__ void f(int* x) { y[0] = 1; }"), "k.cu:2: "),
        (dataclasses.replace(KERNEL, entries=("g",)), "'g'"),
        (dataclasses.replace(KERNEL, text='asm("ld.param");\n' + KERNEL.text),
         "k: line 1: inline assembly is not emulated"),
        (dataclasses.replace(HOST, text="int f( {"), "h.cpp:1: "),
        (dataclasses.replace(HOST, text='#include "no_such_file.h"'), "no_such_file.h"),
    ],
)  # fmt: skip
def test_a_failure_is_one_line_and_is_kept(source: Source, reason: str, cache: BuildCache,
                                           monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    failed = gxx.build(source, cache=cache)
    assert isinstance(failed, BuildFailed)
    assert reason in failed.reason
    assert len(failed.reason.splitlines()) == 1
    monkeypatch.setattr(gxx, "_run", lambda *_, **__: pytest.fail("it is known not to build"))
    again = gxx.build(source, cache=cache)
    assert isinstance(again, BuildFailed)
    assert again.reason == failed.reason


def test_the_compiler_is_out_of_reach_of_ctrl_c_and_speaks_english(
    cache: BuildCache, compiler: Callable[[str], None], tmp_path: Path
) -> None:
    compiler(f'echo "$LC_ALL $(ps -o sid= -p $$)" > {tmp_path}/said; exit 1')
    gxx.build(KERNEL, cache=cache)
    language, session = (tmp_path / "said").read_text().split()
    assert language == "C"
    assert int(session) != os.getsid(0)


def test_entries_are_exported_by_number() -> None:
    source = Source(name="k", text="", entries=("a<float, 5>", "n::b"), symbols=("s", "t"))
    assert [gxx.exported(source, each) for each in source.entries] == ["entry_0", "entry_1"]
    assert gxx.exported_symbol(source, "t") == "symbol_1"


def test_the_precompiled_prelude_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_it, without = BuildCache(tmp_path / "with"), BuildCache(tmp_path / "without")
    first = gxx.build(KERNEL, cache=with_it)
    (prelude,) = with_it.folder.glob("*/*.gch")
    written = prelude.stat().st_ino
    other_macros = dataclasses.replace(
        KERNEL,
        text="#if __CUDA_ARCH__ != 700\n#error not that one\n#endif\n" + KERNEL.text,
        defines=(("BY", "3"), ("FUSIOND_CUDA_ARCH", "700")),
    )
    assert isinstance(gxx.build(other_macros, cache=with_it), Path)
    assert prelude.stat().st_ino == written
    monkeypatch.setattr(gxx, "_precompiled", lambda *_: None)
    second = gxx.build(KERNEL, cache=without)
    assert isinstance(first, Path)
    assert isinstance(second, Path)
    assert first.read_bytes() == second.read_bytes()
    assert not list(without.folder.glob("*/*.gch"))


def test_where_the_prelude_has_no_room_kernels_are_built_without_it(
    cache: BuildCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    write, run = cache.put, gxx._run

    def put(key: str, suffix: str, data: bytes | str) -> Path:
        if suffix == ".gch":
            raise StoreError("No space left on device")
        return write(key, suffix, data)

    def counted(command: Sequence[str], work: Path) -> object:
        made.append("prelude" if "c++-header" in command else "kernel")
        return run(command, work)

    monkeypatch.setattr(cache, "put", put)
    monkeypatch.setattr(gxx, "_run", counted)
    for by in ("1", "2"):
        assert isinstance(gxx.build(dataclasses.replace(KERNEL, defines=(("BY", by),)), cache=cache), Path)
    assert made == ["prelude", "kernel", "kernel"]


def test_the_prelude_is_compared_with_its_sum_once_in_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is 24 MB: for each kernel anew that took longer than it saved on small ones."""
    monkeypatch.setenv("FUSIOND_CACHE", str(tmp_path / "own"))
    gxx.build(KERNEL)
    compared: list[int] = []

    def key(data: bytes) -> str:
        compared.append(len(data))
        return text_key(data)

    monkeypatch.setattr(caching, "text_key", key)
    for by in ("4", "5"):
        assert isinstance(gxx.build(dataclasses.replace(KERNEL, defines=(("BY", by),))), Path)
    assert sum(size > 1 << 20 for size in compared) <= 1


def test_a_kernel_may_share_its_name_with_a_function_of_cuda(cache: BuildCache, scheduler_library: Path) -> None:
    text = """
__device__ float scaled(float x) { return 2 * x; }
__global__ void scaled(float* x) { x[threadIdx.x] = scaled(x[threadIdx.x]); }
__global__ void norm(float* x) { x[threadIdx.x] += normf(2, x); }
template <int N> __global__ void max(float* x) { x[threadIdx.x] = max(x[threadIdx.x], (float)N); }
"""
    source = Source(name="k", text=text, entries=("scaled", "norm", "max<9>"))
    built = gxx.build(source, cache=cache)
    assert isinstance(built, Path), built
    runtime = native.Runtime(scheduler_library)
    module = runtime.load(built)
    x = np.array([3, 8], np.float32)
    for entry in source.entries:
        launch = native.NativeLaunch(grid=(1, 1, 1), block=(1, 1, 1))
        assert isinstance(runtime.launch(module.entry(gxx.exported(source, entry)), launch, [x]), native.Finished)
    np.testing.assert_array_equal(x, [16, 8])
