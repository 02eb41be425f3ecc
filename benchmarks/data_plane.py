"""What data cost: `python -m benchmarks.data_plane [--device cpu|cuda:0] [--bundle FOLDER] [--mib 64]`, JSON on
standard output.

cpu         `pairs`: a pair's course (references on two seeds, two candidates checked and filled for timing) with one
            input of --mib MiB, beside the way before, where every run draws with NumPy's fastest generator: draws, and
            seconds of processor time. `generators`: beside each other, nanoseconds for an element. `bus`: one checked
            run of hist+maxpool's buffers, at the size of the catalogue, on the driver without a GPU that the tests
            have: calls, and bytes over the bus, with the GPU's data plane and with the host's.
cuda:0      the same checked run on a GPU, with its kernels; and milliseconds beside those of the kernels. The limit is
            50. `--bundle` names a program that is built already: of a GPU box, bundles/hfuse/hist+maxpool/native.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import numpy as np

from fusiond.devices.base import DataPlane, Executor, Loaded
from fusiond.devices.cpu.executor import CpuExecutor
from fusiond.devices.cuda.driver import Driver
from fusiond.devices.cuda.executor import CudaExecutor
from fusiond.devices.cuda.provider import CudaProvider, index_of
from fusiond.devices.data import HostData, content
from fusiond.devices.protocol import Checked, CheckRequest, Reference
from fusiond.devices.worker import ExecutorWorker
from fusiond.exporting.bundle import read_bundle, write_bundle
from fusiond.inputs.fills import fill, is_read
from fusiond.model import BuildFailed
from fusiond.program import Buffer, Fill, FillStep, Program, Role
from fusiond.registry import Registry
from fusiond.requests import jobs
from fusiond.requests.planning import plan, reference

LIMIT_MS = 50.0
ROUNDS = 5
TURNS = 3
CANDIDATES = 2
CONTENTS = {
    "uniform float32": ("float32", Fill(kind="uniform")),
    "normal float32": ("float32", Fill(kind="normal")),
    "integers uint32, all bits": ("uint32", Fill(kind="integers", low=0, high=2**32 - 1)),
    "integers int32, 0 to 255": ("int32", Fill(kind="integers", low=0, high=255)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--mib", type=int, default=64)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.device == "cpu":
            result = {
                "mib": given.mib,
                "pairs": on_the_host(given.mib, Path(folder)),
                "generators": generators(),
                "bus": without_a_gpu(Path(folder)),
            }
        else:
            result = on_a_gpu(given.device, given.bundle, Path(folder))
    print(json.dumps({"device": given.device, **result}, indent=1))


# --- the host --------------------------------------------------------------------------------------------


class DrawnAgain(HostData):
    """The way before: every run draws its inputs, with NumPy's fastest generator and its own distributions, and keeps
    them until it has looked whether they are intact; references are read from their files."""

    def __init__(self) -> None:
        super().__init__()
        self._run: dict[str, Any] = {}
        self.draws = 0

    def fill(self, loaded: Loaded, buffer: Buffer, seed: int, *, kind: int | None = None) -> None:
        if not is_read(buffer):
            return super().fill(loaded, buffer, seed, kind=kind)
        self.draws += 1
        self._run[buffer.name] = numpys(buffer, seed)
        loaded.write(buffer.name, self._run[buffer.name])

    def intact(self, loaded: Loaded, buffer: Buffer, seed: int) -> bool:
        return np.array_equal(loaded.read(buffer.name), self._run[buffer.name])

    def _admit(self, key: Hashable, data: Any) -> None:
        pass


class DrawnOnce(HostData):
    """Today's, counted."""

    draws = 0

    def _drawn(self, buffer: Buffer, seed: int) -> Any:
        self.draws += content(buffer, seed) not in self._kept
        return super()._drawn(buffer, seed)


def numpys(buffer: Buffer, seed: int) -> Any:
    """What NumPy's own distributions draw for a fill of `CONTENTS`."""
    generator = np.random.Generator(np.random.SFC64(seed))
    spec, count = buffer.fill, buffer.elements
    if spec.kind == "uniform":
        return generator.random(count, dtype=np.float32)
    if spec.kind == "normal":
        return generator.standard_normal(count, dtype=np.float32)
    return generator.integers(int(spec.low), int(spec.high), count, endpoint=True).astype(buffer.dtype)


def on_the_host(mib: int, folder: Path) -> dict[str, Any]:
    """Content -> draws and processor seconds of a pair's course, drawn once and drawn again."""
    found = {}
    for name, (dtype, spec) in CONTENTS.items():
        elements = (mib << 20) // np.dtype(dtype).itemsize
        program = touched((Buffer(name="x", dtype=dtype, elements=elements, role=Role.INPUT, fill=spec),))
        kept, again = [], []
        for turn in range(TURNS):
            kept.append(course(DrawnOnce(), program, folder / f"{name} kept {turn}"))
            again.append(course(DrawnAgain(), program, folder / f"{name} again {turn}"))
        once, before = (min(each, key=lambda it: float(it["cpu_secs"])) for each in (kept, again))
        found[name] = {"kept": once, "drawn_again": before, "ratio": round(before["cpu_secs"] / once["cpu_secs"], 2)}
    return found


def course(plane: DrawnOnce | DrawnAgain, program: Program, folder: Path) -> dict[str, Any]:
    executor = CpuExecutor()
    executor.data = plane
    begun = time.process_time()
    worker, checks = worker_with(executor, program, folder)
    for _ in range(CANDIDATES):
        ask(worker, checks)
        for _ in ("candidate", "baseline"):
            loaded = executor.load(program, {})
            for buffer in program.buffers:
                plane.fill(loaded, buffer, 0)
            loaded.close()
    return {"draws": plane.draws, "cpu_secs": round(time.process_time() - begun, 3)}


def generators() -> dict[str, Any]:
    """Nanoseconds for an element, least of a few, beside NumPy's own."""
    count = 1 << 21
    found = {}
    for name, (dtype, spec) in CONTENTS.items():
        buffer = Buffer(name="x", dtype=dtype, elements=count, role=Role.INPUT, fill=spec)
        ours, theirs = [], []
        for seed in range(ROUNDS):  # in turns
            ours.append(cpu_secs(functools.partial(fill, buffer, seed)))
            theirs.append(cpu_secs(functools.partial(numpys, buffer, seed)))
        found[name] = {
            "ours_ns": round(min(ours) / count * 1e9, 2),
            "sfc64_ns": round(min(theirs) / count * 1e9, 2),
            "ratio": round(min(ours) / min(theirs), 2),
        }
    return found


def cpu_secs(do: Callable[[], Any]) -> float:
    begun = time.process_time()
    do()
    return time.process_time() - begun


# --- a GPU, and none -------------------------------------------------------------------------------------


class Counted:
    """`pycuda.driver`, with what crosses the bus and what is asked of the driver counted."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._cuda, name)
        if not name.startswith(("memcpy_", "memset_")):
            return found
        data = {"memcpy_htod": 1, "memcpy_dtoh": 0}.get(name.removesuffix("_async"))

        def call(*arguments: Any) -> Any:
            self.calls[name] += 1
            if data is not None:
                self.bytes[name[7:11]] += arguments[data].nbytes
            return found(*arguments)

        return call

    def taken(self) -> dict[str, Any]:
        """Since the last time."""
        found = {
            "bytes_up": self.bytes["htod"],
            "bytes_down": self.bytes["dtoh"],
            "calls": dict(sorted(self.calls.items())),
        }
        self.calls.clear()
        self.bytes.clear()
        return found


def without_a_gpu(folder: Path) -> dict[str, Any]:
    from tests.devices.cuda import stand_in  # only here: a GPU box has no g++

    gpu = stand_in.FakeGpu(stand_in.built(folder), folder)
    cuda = Counted(gpu.cuda)
    executor = CudaExecutor(cuda, gpu.driver, 0, stand_in.Sensors("GPU-fake"))
    program = touched(unfused().buffers)
    return {"program": described(program), **both(executor, cuda, program, {}, folder, timed=False)}


def on_a_gpu(name: str, bundle: Path | None, folder: Path) -> dict[str, Any]:
    import pycuda.driver  # only where there is one

    index = index_of(name)
    info = next(each for each in CudaProvider().devices() if each.name == f"cuda:{index}")
    if bundle is not None:
        program, binaries = read_bundle(bundle)
    else:
        provider = CudaProvider()
        program = provider.normalise(unfused())
        binaries = {}
        for source in program.sources:
            built = provider.build(source, info.arch)
            if isinstance(built, BuildFailed):
                raise SystemExit(f"{source.name} does not build: {built.reason}")
            binaries[source.name] = built.path
    pycuda.driver.init()
    cuda = Counted(pycuda.driver)
    executor = CudaExecutor(cuda, Driver(), index)
    try:
        found = both(executor, cuda, program, binaries, folder, timed=True)
    finally:
        executor.close()
    return {"model": info.model, "program": described(program), **found}


def both(
    executor: CudaExecutor, cuda: Counted, program: Program, binaries: dict[str, Path], folder: Path, *, timed: bool
) -> dict[str, Any]:
    """One checked run with the device's data plane, and with the host's in its place."""
    found: dict[str, Any] = {}
    for name, plane in (("device", executor.data), ("host", HostData())):
        executor.data.clear()
        executor.data = plane
        found[name] = checked(executor, cuda, plane, program, binaries, folder / name, timed=timed)
    if timed:
        found["limit_ms"] = LIMIT_MS
        found["ratio"] = round(found["host"]["beside_ms"] / found["device"]["beside_ms"], 2)
    return found


def checked(
    executor: CudaExecutor,
    cuda: Counted,
    plane: DataPlane,
    program: Program,
    binaries: dict[str, Path],
    folder: Path,
    *,
    timed: bool,
) -> dict[str, Any]:
    worker, checks = worker_with(executor, program, folder, binaries, seeds=1)
    ask(worker, checks)
    cuda.taken()
    begun = time.process_time()
    ask(worker, checks)
    found = {**cuda.taken(), "cpu_ms": round(1000 * (time.process_time() - begun), 1)}
    if timed:
        loaded = executor.load(program, binaries)
        for buffer in program.buffers:
            plane.fill(loaded, buffer, 0)
        whole = [wall_ms(lambda: ask(worker, checks)) for _ in range(ROUNDS)]
        kernels = [wall_ms(lambda: loaded.run(seed=0, checked=True)) for _ in range(ROUNDS)]
        loaded.close()
        found |= {"check_ms": round(statistics.median(whole), 2), "kernels_ms": round(statistics.median(kernels), 2)}
        found["beside_ms"] = round(found["check_ms"] - found["kernels_ms"], 2)
    worker._loaded.popitem()[1].close()
    return found


def wall_ms(do: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    do()
    return 1000 * (time.perf_counter() - begun)


# --- both ------------------------------------------------------------------------------------------------


def worker_with(
    executor: Executor, program: Program, folder: Path, binaries: dict[str, Path] | None = None, *, seeds: int = 2
) -> tuple[ExecutorWorker, CheckRequest]:
    """A worker that has made the references, and the request that checks the same program."""
    write_bundle(folder, program, binaries or {})
    worker = ExecutorWorker(executor)
    references = []
    for seed in range(seeds):
        path = str(folder / f"reference-{seed}.npz")
        ask(worker, Reference(bundle=str(folder), seed=seed, outputs=path))
        references.append((seed, path))
    return worker, CheckRequest(bundle=str(folder), references=tuple(references))


def ask(worker: ExecutorWorker, request: Reference | CheckRequest) -> None:
    reply = worker.answer(request)
    if not isinstance(reply, Checked):
        raise SystemExit(str(reply))


def unfused() -> Program:
    """hist and maxpool at the catalogue's sizes, one after the other."""
    (job,) = jobs.read("benchmark.yaml", "strategy: hfuse\npair: [hist, maxpool]\n")
    found = plan(Registry.load(), job, arch="sm_90")
    return reference(found.prepared.strategy, found.analysis)


def touched(buffers: tuple[Buffer, ...]) -> Program:
    """A program that has these buffers and writes nothing but zeros, over all that it writes."""
    written = [each.name for each in buffers if not is_read(each) or each.role.compared]
    if not written:
        buffers = *buffers, Buffer(name="out", dtype="uint8", elements=1, role=Role.OUTPUT)
        written = ["out"]
    plain = tuple(
        dataclasses.replace(each, symbol=None, elements=int(each.elements), offset_bytes=int(each.offset_bytes))
        for each in buffers
    )
    return Program(
        name="touched",
        buffers=plain,
        sources=(),
        steps=tuple(FillStep(name=f"zeros in {each}", buffer=each) for each in written),
    )


def described(program: Program) -> dict[str, Any]:
    roles = Counter(each.role.value for each in program.buffers)
    sizes: Counter[str] = Counter()
    for each in program.buffers:
        sizes[each.role.value] += each.size_bytes
    return {"name": program.name, "buffers": dict(roles), "bytes": dict(sizes)}


if __name__ == "__main__":
    sys.exit(main())
