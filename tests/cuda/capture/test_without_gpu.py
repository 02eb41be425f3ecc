"""CUDA programs on the runtime that needs no GPU. They check themselves, by what NVIDIA's documentation says; here is
looked at what they said, and what was written down."""

import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fusiond.build import nvcc
from fusiond.cli import main
from fusiond.cuda.capture import fatbin, trace
from fusiond.cuda.capture.trace import CapturedCopy, CapturedFill, CapturedTrace, CapturedWait, Direction, MemoryKind
from fusiond.devices.counting.kernels import LoadedPtx

pytestmark = pytest.mark.needs_nvcc
SOURCES = Path(__file__).with_name("cuda")
Capfd = pytest.CaptureFixture[str]

SORTING = """
#include <algorithm>
#include <vector>
#include <cub/block/block_reduce.cuh>
#include <thrust/device_vector.h>
#include <thrust/reduce.h>
#include <thrust/sort.h>
#include "check.h"
__global__ void sums(const int* data, int* out) {
    __shared__ cub::BlockReduce<int, 128>::TempStorage room;
    int found = cub::BlockReduce<int, 128>(room).Sum(data[blockIdx.x * 128 + threadIdx.x]);
    if (threadIdx.x == 0) out[blockIdx.x] = found;
}
int main() {
    std::vector<int> host(12800);
    for (size_t i = 0; i < host.size(); ++i) host[i] = i * 7919 % 10007;
    thrust::device_vector<int> data = host, out(100);
    sums<<<100, 128>>>(data.data().get(), out.data().get());
    int wanted = 0;
    for (int i = 0; i < 128; ++i) wanted += host[i];
    EXPECT(out[0] == wanted);
    EXPECT(thrust::reduce(out.begin(), out.end()) == thrust::reduce(data.begin(), data.end()));
    thrust::sort(data.begin(), data.end());
    std::sort(host.begin(), host.end());
    EXPECT(std::equal(host.begin(), host.end(), data.begin()));
    return wrong_checks != 0;
}
"""


def compiled(source: Path, program: Path, *flags: str) -> Path:
    toolkit = nvcc.find()
    assert toolkit is not None
    flags = flags or ("-arch=sm_90", "-cudart", "shared")
    subprocess.run([toolkit.nvcc, *flags, f"-I{SOURCES}", source, "-o", program], check=True)
    return program


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("programs")
    names = ("memory", "streams", "errors")
    with ThreadPoolExecutor() as pool:
        built = pool.map(lambda each: compiled(SOURCES / f"{each}.cu", folder / each), names)
        return dict(zip(names, built, strict=True))


class Run:
    """Captures a program, and keeps what it said."""

    def __init__(self, folder: Path, capfd: Capfd) -> None:
        self.folder, self._capfd = folder, capfd
        self.said, self.complained = "", ""

    def __call__(self, *words: str | Path, options: tuple[str, ...] = ()) -> int:
        self._capfd.readouterr()
        command = ["capture", "--without-gpu", "--out", str(self.folder), *options, "--", *map(str, words)]
        status = main(command)
        self.said, self.complained = self._capfd.readouterr()
        return status

    @property
    def wrong(self) -> list[str]:
        """Of its checks."""
        return [each for each in self.said.splitlines() if each.startswith("WRONG")]

    @property
    def trace(self) -> CapturedTrace:
        return trace.read(self.folder)[0]


@pytest.fixture
def run(tmp_path: Path, capfd: Capfd) -> Run:
    return Run(tmp_path / "capture", capfd)


def test_memory(programs: Mapping[str, Path], run: Run) -> None:
    assert run(programs["memory"]) == 0, run.said
    assert run.wrong == []
    assert run.said.count("ok ") > 20
    scale, boxes, _ = run.trace.kernels
    assert "scale" in scale.name
    assert scale.parameters == ((0, 8), (8, 8), (16, 4))
    assert scale.registers > 0
    assert scale.module is not None
    assert fatbin.of_kernel(scale.module.read_bytes(), scale.name) is not None
    first = next(run.trace.launches)
    assert first.grid == (40, 1, 1)
    assert first.block == (256, 1, 1)
    y, x, n = first.arguments
    assert y.place is not None
    assert y.place.size_bytes == 40_000
    assert y.place.allocation.kind is MemoryKind.DEVICE
    assert x.place is not None
    assert x.place.allocation != y.place.allocation
    assert int.from_bytes(n.data, "little") == 10_000
    names = {each.name for each in run.trace.allocations if each.kind is MemoryKind.VARIABLE}
    assert names == {"factors", "hits", "table"}
    (box,) = (each for each in run.trace.launches if each.kernel == boxes)
    assert len(box.arguments[0].data) == 32
    assert [at for at, _ in box.arguments[0].places] == [0]


def test_copies_are_noted_with_where_they_lead(programs: Mapping[str, Path], run: Run) -> None:
    run(programs["memory"])
    events = run.trace.events
    copies = [each for each in events if isinstance(each, CapturedCopy)]
    assert {each.direction for each in copies} >= {Direction.TO_DEVICE, Direction.TO_HOST}
    (fill,) = (each for each in events if isinstance(each, CapturedFill) and each.size_bytes == 1000)
    assert fill.place is not None
    assert fill.place.size_bytes >= 1000
    assert CapturedWait(0) in events


def test_streams(programs: Mapping[str, Path], run: Run) -> None:
    assert run(programs["streams"]) == 0, run.said
    assert run.wrong == []
    assert "the kernel has found 12497500\n" in run.said
    found = list(run.trace.launches)
    in_graphs = [each.kernel.name for each in found if each.graph]
    assert in_graphs == ["_Z3addPiii", "_Z5twicePii"] * 3 + ["_Z3addPiii"] * 3
    changed = [each.arguments[2].data[0] for each in found if each.graph and each.kernel.name == "_Z3addPiii"]
    assert changed == [1, 1, 1, 5, 50, 7]
    (whole,) = (each for each in found if each.cooperative)
    assert whole.grid == (8, 1, 1)
    assert [each.shared_bytes for each in found if "reversed" in each.kernel.name] == [256]


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ("address", "an access of 4 bytes"), ("freed", "is outside of every buffer"), ("trap", "trap"),
        ("assert", 'assertion failed: how != 2 && "two is too much"'), ("none", ""),
    ],
)  # fmt: skip
def test_errors(programs: Mapping[str, Path], run: Run, last: str, why: str) -> None:
    assert run(programs["errors"], last) == 0, run.said
    assert run.wrong == []
    assert why in run.complained
    assert ("_Z" in run.complained) == bool(why)


def test_what_the_runtime_does_not_have_ends_the_program_in_one_line(programs: Mapping[str, Path], run: Run) -> None:
    assert run(programs["errors"], "missing") == 70
    assert "fusiond: the runtime without a GPU has no cudaIpcGetMemHandle\n" in run.complained
    assert "ended with status 70" in run.complained
    assert len(list(run.trace.launches)) == 1


def test_a_fault_of_the_service_ends_the_program_in_one_line(
    programs: Mapping[str, Path], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise KeyError("nothing")

    monkeypatch.setattr(LoadedPtx, "execute", fails)
    assert run(programs["memory"]) == 70
    assert "scale" in run.complained
    assert "the service failed: KeyError: 'nothing'\n" in run.complained


def test_each_process_has_memory_and_a_trace_of_its_own(programs: Mapping[str, Path], run: Run) -> None:
    both = f"{programs['memory']} & {programs['streams']}; wait"
    assert run("sh", "-c", both) == 0
    assert run.wrong == []
    assert run.said.count("ok ") > 40
    assert sorted(len(each.kernels) for each in trace.read(run.folder) if each.kernels) == [3, 5]
    assert {each.kernels[0].name for each in trace.read(run.folder) if each.kernels} == {"_Z5scalePfPKfi", "_Z3addPiii"}


def test_kernels_can_be_noted_only(programs: Mapping[str, Path], run: Run) -> None:
    assert run(programs["streams"], options=("--kernels", "none")) == 1
    assert "WRONG first(data) == 2 && called == 300" in run.said
    assert "the kernel has found" not in run.said
    assert len(list(run.trace.launches)) > 80


def test_no_more_launches_are_noted_than_asked_for(programs: Mapping[str, Path], run: Run) -> None:
    assert run(programs["streams"], options=("--launches", "5")) == 0
    assert run.wrong == []
    assert len(list(run.trace.launches)) <= 6  # a graph's come together
    assert run(programs["streams"], options=("--for", "0")) == 0
    assert len(list(run.trace.launches)) == 0


def test_contents_are_kept_before_the_first_launch(programs: Mapping[str, Path], run: Run) -> None:
    assert run(programs["memory"], options=("--data",)) == 0
    first, *others = (each for each in run.trace.launches if "scale" in each.kernel.name or "add" in each.kernel.name)
    contents = {place.allocation.number: file.read_bytes() for place, file in first.data}
    x = first.arguments[1].place
    assert x is not None
    assert contents[x.allocation.number][:12] == b"\0\0\0\0\0\0\x80?\0\0\0@"
    assert [bool(each.data) for each in others] == [True, False, False]


def test_a_build_gets_what_it_lacks(run: Run, tmp_path: Path) -> None:
    toolkit = nvcc.find()
    assert toolkit is not None
    compiled(SOURCES / "errors.cu", tmp_path / "errors", "-arch=sm_90", "-cudart", "static")
    assert run(tmp_path / "errors") == 2
    assert "is built with the static runtime: build it with nvcc -cudart shared" in run.complained
    build = f"{toolkit.nvcc} -gencode arch=compute_90,code=sm_90 {SOURCES / 'errors.cu'} -o {tmp_path / 'errors'}"
    assert run(tmp_path / "errors", options=("--build", build)) == 0, run.complained
    assert run.wrong == []


def test_a_program_without_ptx_is_told_so(run: Run, tmp_path: Path) -> None:
    flags = ("-cudart", "shared", "-gencode", "arch=compute_90,code=sm_90")
    assert run(compiled(SOURCES / "errors.cu", tmp_path / "errors", *flags)) == 70
    assert "has no PTX: build the program with nvcc" in run.complained


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["no-such-command"], "no-such-command: there is no such command"),
        (["true"], "no process of it used libcudart.so."),
    ],
)
def test_what_cannot_be_captured(run: Run, words: list[str], why: str) -> None:
    assert run(*words) == 2
    assert why in run.complained


def test_a_folder_that_is_no_capture_is_left_alone(run: Run) -> None:
    run.folder.mkdir()
    (run.folder / "thesis.tex").write_text("years of work")
    assert run("true") == 2
    assert "is there, and is no capture" in run.complained
    assert (run.folder / "thesis.tex").exists()


def test_cub_and_thrust(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sorting.cu").write_text(SORTING)
    assert run(compiled(tmp_path / "sorting.cu", tmp_path / "sorting")) == 0, run.complained
    assert run.wrong == []
