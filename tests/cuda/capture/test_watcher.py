"""The library that notes what a program asks of the driver, over the driver that is not there."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from fusiond.build import gxx, nvcc
from fusiond.cli import main
from fusiond.cuda.capture import driver_watcher, origins, trace
from fusiond.cuda.capture.trace import (
    CapturedCopy,
    CapturedFill,
    CapturedLaunch,
    CapturedTrace,
    CapturedWait,
    Direction,
)
from fusiond.model.errors import DeviceError

PROGRAMS = Path(__file__).parent / "programs"
WATCHER = driver_watcher.RUNTIME / "watcher"
WAYS = ("linked", "dlsym", "address", "thread")

Run = Callable[..., subprocess.CompletedProcess[str]]


def compiled(source: str, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [gxx.find() or "", "-std=c++20", str(PROGRAMS / source), "-o", str(out), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def programs(fake_libcuda: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name, options in (("found", ()), ("linked", ("-DLINKED", f"-L{fake_libcuda.parent}", "-lcuda"))):
        done = compiled("calls_driver.cpp", folder / name, *options, "-ldl")
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def run(programs: Path, fake_libcuda: Path) -> Run:
    """Runs the program in an environment, or as it is."""

    def run(
        way: str, environment: Mapping[str, str] | None = None, before: Sequence[str] = (), **more: str
    ) -> subprocess.CompletedProcess[str]:
        words = [*before, str(programs / ("linked" if way == "linked" else "found")), way]
        environment = {**(environment or {}), "LD_LIBRARY_PATH": str(fake_libcuda.parent), **more}
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)

    return run


def watched(folder: Path, **settings: object) -> dict[str, str]:
    """An environment in which traces come to lie in a folder."""
    given = {f"FUSIOND_CAPTURE_{name}": str(value) for name, value in settings.items() if value is not None}
    return driver_watcher.environment({**given, "FUSIOND_CAPTURE_OUT": str(folder)}, folder)


def noted(run: Run, folder: Path, way: str = "dlsym", *, seconds: float | None = None, launches: int | None = None,
          data: bool = False, **more: str) -> CapturedTrace:  # fmt: skip
    """The program's trace; it says and does what it does without being watched."""
    environment = watched(folder, SECONDS=seconds, LAUNCHES=launches, DATA=data or None)
    done = run(way, environment, **more)
    assert (done.returncode, done.stdout, done.stderr) == (0, run(way, **more).stdout, "")
    (found,) = trace.read(folder)  # the process that it forks leaves none
    return found


@pytest.mark.parametrize("way", WAYS)
def test_what_a_program_did_is_noted(run: Run, tmp_path: Path, way: str) -> None:
    found = noted(run, tmp_path, way)
    assert [(each.name, each.registers, each.static_shared_bytes, each.parameters) for each in found.kernels] == [
        ("double_it", 16, 128, ((0, 8), (8, 4))),
        ("add", 16, 0, ((0, 8), (8, 8), (16, 4))),
    ]
    assert [each.module.read_bytes() if each.module else b"" for each in found.kernels] == [
        b".version 8.0\n// what the stand-in knows by name\0",
        b"\x50\xed\x55\xba\x01\x00\x10\x00\x08\x00\x00\x00\x00\x00\x00\x00binary\x00\x01",
    ]
    gone, x, y, spare = found.allocations
    assert [each.size_bytes for each in (gone, x, y)] == [64, 4000, 8000]
    up, fill, *launches = found.events[:6]
    assert isinstance(up, CapturedCopy)
    default = 2 if way == "thread" else 0
    assert (up.destination_place, up.size_bytes, up.direction) == (trace.CapturedPlace(x, 0), 4000, Direction.TO_DEVICE)
    assert fill == CapturedFill(
        place=trace.CapturedPlace(y, 0), size_bytes=8000, stream=0 if way != "thread" else fill.stream
    )
    described = []
    for each in launches:
        assert isinstance(each, CapturedLaunch)
        assert each.arguments[-1].data == (1000).to_bytes(4, "little")
        described.append((each.kernel.name, each.grid[0], each.block[0], each.shared_bytes, each.cluster,
                          each.cooperative, each.graph))  # fmt: skip
    assert described == [
        ("double_it", 4, 256, 0, (1, 1, 1), False, 0), ("double_it", 4, 256, 16, (1, 1, 1), False, 0),
        ("add", 8, 128, 0, (2, 1, 1), False, 0), ("add", 2, 512, 0, (1, 1, 1), True, 0),
    ]  # fmt: skip
    assert [each.stream for each in found.launches][:2] == [default, default]
    ours = next(each.stream for each in found.launches if each.kernel.name == "add")
    assert launches[2].arguments[0].place == trace.CapturedPlace(y, 4000)  # type: ignore[union-attr]
    assert launches[2].arguments[1].place == trace.CapturedPlace(x, 0)  # type: ignore[union-attr]
    assert spare.size_bytes == 64
    wait, *graphs, down, end = found.events[6:]
    assert (wait, end) == (CapturedWait(ours), CapturedWait(0))
    assert isinstance(down, CapturedCopy)
    assert (down.source_place, down.direction, down.stream) == (trace.CapturedPlace(y, 0), Direction.TO_HOST, ours)
    nodes: list[tuple[object, ...]] = []
    for each in graphs:
        assert not isinstance(each, CapturedWait)
        assert each.stream == ours
        if isinstance(each, CapturedLaunch):
            nodes.append((each.kernel.number, each.graph, each.grid))
        elif isinstance(each, CapturedCopy):
            assert each.source_place == trace.CapturedPlace(x, 0)
            nodes.append((each.direction, each.size_bytes))
        else:
            assert each.place is not None
            nodes.append((each.place.offset, each.size_bytes))
    rest = [(Direction.TO_HOST, 4000), (4, 8)]
    assert nodes == [
        *[(1, 1, (1, 2, 1)), (2, 1, (1, 1, 3)), *rest] * 2, (1, 2, (1, 7, 1)), (2, 2, (1, 1, 3)), *rest,
    ]  # fmt: skip
    assert found.notes == ()


def test_data_is_what_was_there_before_the_first_launch(run: Run, tmp_path: Path) -> None:
    found = noted(run, tmp_path, data=True)
    first, _, third, *rest = found.launches
    ((place, file),) = first.data
    assert place == first.arguments[0].place
    assert np.array_equal(np.frombuffer(file.read_bytes(), np.float32), np.arange(1000))
    held = {place.offset: np.frombuffer(file.read_bytes(), np.float32) for place, file in third.data}
    assert {offset: (len(each), float(each.sum())) for offset, each in held.items()} == {
        0: (1000, 4 * 499500.0),
        4000: (1000, 0.0),
    }
    assert not any(each.data for each in rest)


def test_first_launches_are_timed(run: Run, tmp_path: Path) -> None:
    found = noted(run, tmp_path, FUSIOND_FAKE_GPU="us:double_it=80 us:add=3 event_us=0")
    times = [each.elapsed_ns for each in found.launches if not each.graph]
    assert times == [pytest.approx(each, rel=0.05) for each in (80_000, 80_000, 3_000, 3_000)]


@pytest.mark.parametrize(("limit", "launches"), [({"launches": 3}, 3), ({"seconds": 0.0}, 0)])
def test_no_more_is_noted_than_was_asked_for(run: Run, tmp_path: Path, limit: dict[str, int], launches: int) -> None:
    found = list(noted(run, tmp_path, **limit).launches)  # type: ignore[arg-type]
    assert len(found) == launches
    assert all(each.elapsed_ns for each in found)


def test_a_folder_that_cannot_be_written_changes_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("dlsym", watched(tmp_path / "file", DATA=1))
    assert (done.returncode, done.stdout, done.stderr) == (0, run("dlsym").stdout, "")


def test_a_disk_that_is_full_changes_nothing(run: Run, tmp_path: Path) -> None:
    """The trace ends where it was full, and can be read up to there."""

    limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"  # SIGXFSZ is ignored
    room = (sys.executable, "-S", "-c", f"{limit}; os.execv(sys.argv[1], sys.argv[1:])")
    done = run("dlsym", watched(tmp_path), before=room)
    assert (done.returncode, done.stdout, done.stderr) == (0, run("dlsym").stdout, "")
    (found,) = trace.read(tmp_path)
    assert 0 < len(list(found.launches)) < 10


# --- the command ----------------------------------------------------------------------------------------


@pytest.fixture
def over(programs: Path, fake_libcuda: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A working folder where the driver that is not there is found."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_libcuda.parent))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_capture_without_options(over: Path, programs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "--out", "run", "--", str(programs / "found"), "address"]) == 0
    out, said = capfd.readouterr()
    assert out == "31968000\n"
    assert said == "captured 2 kernels, 10 launches in run; fusiond capture run --list\n"
    assert json.loads((over / "run" / "capture.json").read_text())["without_gpu"] is False


def test_a_command_that_uses_no_driver(over: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "--", "true"]) == 2
    assert "no process of it used the CUDA driver; --without-gpu needs none" in capfd.readouterr().err


def python(script: str, fake_libcuda: Path, folder: Path, **more: str) -> CapturedTrace:
    """The trace of a script, which says what it says without being watched."""
    command = [sys.executable, str(PROGRAMS / script)]
    given = {**os.environ, "LD_LIBRARY_PATH": str(fake_libcuda.parent), **more}
    plain, done = (
        subprocess.run(command, env=each, capture_output=True, text=True, timeout=120, check=False)
        for each in (given, {**given, **watched(folder)})
    )
    assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
    (found,) = trace.read(folder)
    return found


@pytest.mark.skipif(importlib.util.find_spec("pycuda") is None, reason="PyCUDA is not installed")
def test_pycuda(fake_libcuda: Path, tmp_path: Path) -> None:
    (launch,) = python("launches_pycuda.py", fake_libcuda, tmp_path).launches
    assert (launch.kernel.name, launch.grid, launch.block, launch.shared_bytes) == (
        "double_it", (2, 1, 1), (64, 1, 1), 32,
    )  # fmt: skip
    (x, n) = launch.arguments
    assert x.place is not None
    assert (x.place.size_bytes, n.data) == (400, (100).to_bytes(4, "little"))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_launcher_of_triton(fake_libcuda: Path, tmp_path: Path) -> None:
    """It compiles, loads and launches as it does on a GPU; the PTX is found beside the cubin in its cache."""
    cache = tmp_path / "cache"
    found = python("launches_triton.py", fake_libcuda, tmp_path / "run", TRITON_CACHE_DIR=str(cache))
    assert [(each.kernel.name, each.grid, each.block) for each in found.launches] == [
        ("bump", (4, 1, 1), (256, 1, 1))
    ] * 3
    (kernel,) = found.kernels
    assert kernel.parameters == ((0, 8), (8, 8), (16, 4), (24, 8), (32, 8))
    assert kernel.module is not None
    assert kernel.module.read_bytes() == next(cache.glob("*/bump.cubin")).read_bytes()
    assert origins.ptx_of(kernel) is None
    origins.keep(tmp_path / "run", {"TRITON_CACHE_DIR": str(cache)})
    assert origins.ptx_of(kernel) == next(cache.glob("*/bump.ptx")).read_text()
    assert main(["capture", str(tmp_path / "run"), "--pick", "1"]) == 0
    assert '"?"' not in (tmp_path / "run" / "bump_1.yaml").read_text()


def test_a_path_that_ld_preload_does_not_take(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="LD_PRELOAD takes no path with spaces or colons; set FUSIOND_CACHE"):
        driver_watcher.environment({}, tmp_path, tmp_path / "a folder" / "watcher.so")


# --- the driver's interface -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def headers() -> Path:
    toolkit = nvcc.find()
    found = sorted(toolkit.root.glob("**/include/cudaTypedefs.h")) if toolkit else []
    if not found:
        pytest.skip("the CUDA toolkit's headers are not here")
    return found[0].parent


def test_structs_are_those_of_cuda(headers: Path, tmp_path: Path) -> None:
    done = compiled("layouts.cpp", tmp_path / "layouts.o", "-c", f"-I{headers}")
    assert done.returncode == 0, done.stderr


def test_functions_are_those_of_cuda(headers: Path, tmp_path: Path) -> None:
    """Each takes what the driver's of that version takes, and there is no version that none of them is."""
    sources = [str(each) for each in WATCHER.glob("*.cpp") if each.name != "stand_ins.cpp"]
    done = compiled("entries.cpp", tmp_path / "entries", *sources, "-ldl")
    assert done.returncode == 0, done.stderr
    rows = subprocess.run([tmp_path / "entries"], capture_output=True, text=True, check=True).stdout.splitlines()
    header = f'#include "{headers / "cudaTypedefs.h"}"\n'
    typedefs = preprocessed(header, headers)
    suffixes = {
        (name, int(version), bool(suffix)): suffix
        for name, version, suffix in re.findall(r"\*PFN_(\w+?)_v(\d+)((?:_pt[ds][sz])?)\)", typedefs)
    }
    ours: dict[str, tuple[str, str]] = {}
    since_of: dict[tuple[str, bool], tuple[set[int], set[int]]] = {}
    for exported, base, since, per_thread, *sizes in map(str.split, rows):
        if base.startswith("cu") and base != "cuGraphInstantiate":  # what that takes is passed on, whatever it is
            versions = {version for name, version, own in suffixes if (name, own) == (base, per_thread == "1")}
            version = max(each for each in versions if each <= max(int(since), 7000))
            ours[exported] = f"PFN_{base}_v{version}{suffixes[base, version, per_thread == '1']}", "".join(sizes)
            since_of.setdefault((base, per_thread == "1"), (set(), versions))[0].add(version)
    for (base, _), (known, versions) in since_of.items():
        assert max(versions) in known, f"{base} is another function from CUDA {max(versions)} on"
    says = "template <class F> struct S; template <class... A> struct S<CUresult (*)(A...)> { S() {"
    text = f'#include <cstdio>\n{header}{says} ((printf("%zu,", sizeof(A))), ...); puts(""); }} }};\nint main() {{\n'
    source = tmp_path / "sizes.cpp"
    source.write_text(text + "\n".join(f"S<{name}>{{}};" for name, _ in ours.values()) + "}")
    subprocess.run([gxx.find() or "", "-std=c++20", source, f"-I{headers}", "-o", tmp_path / "sizes"], check=True)
    said = subprocess.run([tmp_path / "sizes"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert dict(zip(ours, said, strict=True)) == {exported: sizes for exported, (_, sizes) in ours.items()}


def preprocessed(text: str, headers: Path) -> str:
    command = [gxx.find() or "", "-E", "-x", "c++", "-", f"-I{headers}"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
