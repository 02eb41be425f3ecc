"""A launch of a program's kernel as its own host code makes it: seen by runtime/, and kept in a folder.

    NNN/kernel.ptx      the module that the program registers
    NNN/launch.json     the launch: grid, block, the bytes of each parameter, what in them is an address
    NNN/buffers/        what is in memory before it: a file of bytes for each allocation that is not all zero

Kernels are not carried out, so that memory holds what the host put there.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusiond.build import gxx, nvcc
from fusiond.errors import DeviceError, RequestError

RUNTIME = Path(__file__).parent / "runtime"
LIBRARY = "libcudart.so.13"
MOST_BYTES = 64 << 20
"""Of all that a launch may reach; a launch with more is not drawn."""
_TIMEOUT_SECS = 60.0
Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An address that stands in memory or in a parameter, at byte `at`."""

    at: int
    allocation: int | None
    """None: the handle of a texture or a surface."""
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedBytes:
    """A parameter, an allocation or a variable: how long it is, and the addresses in it."""

    size_bytes: int
    references: tuple[Reference, ...]
    value: bytes = b""
    """Of a parameter."""
    file: Path | None = None
    """What an allocation or a variable holds; None: zeros."""

    def contents(self) -> NDArray[np.uint8]:
        """Writable, shape (size_bytes,); the addresses in it are those of the process that was captured."""
        if self.file is None:
            return np.zeros(self.size_bytes, np.uint8)
        found: NDArray[np.uint8] = np.load(self.file, allow_pickle=False)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One launch."""

    folder: Path
    program: str
    entry: str
    """As the PTX names it."""
    grid: Shape
    block: Shape
    cluster: Shape
    shared_bytes: int
    """Dynamic shared memory."""
    cooperative: bool
    parameters: tuple[CapturedBytes, ...]
    allocations: Mapping[int, CapturedBytes] = field(repr=False)
    variables: Mapping[str, CapturedBytes] = field(repr=False)
    """Of the module, as far as the host reached them."""

    @property
    def name(self) -> str:
        return f"k{self.folder.name}"

    @property
    def ptx(self) -> Path:
        return self.folder / "kernel.ptx"


def kept(corpus: Path) -> tuple[Capture, ...]:
    """All captures of a folder, by name. RequestError where there is none."""
    found = tuple(read(each.parent) for each in sorted(corpus.glob("*/launch.json")))
    if not found:
        raise RequestError("no captured launches (NNN/launch.json); `capture` makes them", where=str(corpus))
    return found


def read(folder: Path) -> Capture:
    row = json.loads((folder / "launch.json").read_text(encoding="utf-8"))

    def stored(name: str, size: int, references: Any) -> CapturedBytes:
        file = folder / "buffers" / f"{name}.npy"
        return CapturedBytes(
            size_bytes=size, references=_references(references), file=file if file.exists() else None
        )  # fmt: skip

    parameters = []
    for each in row["parameters"]:
        value = bytes.fromhex(each["bytes"])
        references = _references(each["pointers"])
        parameters.append(CapturedBytes(size_bytes=len(value), references=references, value=value))
    return Capture(
        folder=folder,
        program=str(row.get("program", "")),
        entry=row["kernel"],
        grid=_shape(row["grid"]),
        block=_shape(row["block"]),
        cluster=_shape(row["cluster"]),
        shared_bytes=row["shared"],
        cooperative=row["cooperative"],
        parameters=tuple(parameters),
        allocations={
            each["number"]: stored(str(each["number"]), each["bytes"], each["pointers"]) for each in row["allocations"]
        },
        variables={each["name"]: stored(each["name"], each["bytes"], each["pointers"]) for each in row["variables"]},
    )


def _shape(values: Sequence[int]) -> Shape:
    x, y, z = values
    return x, y, z


def _references(rows: Any) -> tuple[Reference, ...]:
    return tuple(
        Reference(at=each["at"], allocation=each.get("allocation"), offset=each.get("offset", 0)) for each in rows
    )


# --- making them ----------------------------------------------------------------------------------------


def built(folder: Path) -> Path:
    """The stand-in for libcudart, built into a folder; the folder goes into LD_LIBRARY_PATH. DeviceError."""
    compiler, toolkit = gxx.find(), nvcc.find()
    if compiler is None or toolkit is None:
        raise DeviceError("the stand-in for libcudart needs g++ and CUDA's headers; install g++ and nvcc")
    command = [
        compiler, "-std=c++17", "-O2", "-shared", "-fPIC", f"-I{toolkit.root / 'include'}",
        str(RUNTIME / "runtime.cpp"), f"-Wl,--version-script={RUNTIME / 'runtime.map'}", f"-Wl,-soname,{LIBRARY}",
        "-o", str(folder / LIBRARY),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DeviceError(f"the stand-in for libcudart does not build: {done.stderr.splitlines()[0]}")
    return folder


def launches(command: Sequence[str], runtime: Path, out: Path, *, launch: int | None = None) -> list[dict[str, Any]]:
    """What a program launches, as runtime.cpp writes it, the first of each kernel; `launch`: this one, with memory."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(runtime), "FOREIGN_OUT": str(out)}
    if launch is not None:
        environment |= {"FOREIGN_LAUNCH": str(launch), "FOREIGN_EACH": "0"}
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        process.wait(_TIMEOUT_SECS)
    except subprocess.TimeoutExpired:  # what it has launched until now is written
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    name = "launches.jsonl" if launch is None else "launch.json"
    lines = (out / name).read_text(encoding="utf-8").splitlines() if (out / name).exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def drawn(command: Sequence[str], runtime: Path, into: Path, seed: int) -> Capture:
    """Runs a program twice, draws a kernel and one of its launches at random, and keeps it. RequestError where the
    program launches nothing that can be kept."""
    with tempfile.TemporaryDirectory() as work:
        rows = [each for each in launches(command, runtime, Path(work)) if each["module"] >= 0]
        fit = [each for each in rows if sum(one["bytes"] for one in each["allocations"]) <= MOST_BYTES]
        if not fit:
            said = f"every launch reaches more than {MOST_BYTES >> 20} MiB" if rows else "it launches no kernel"
            raise RequestError(said, where=command[0])
        rng = random.Random(seed)
        entry = rng.choice(sorted({each["kernel"] for each in fit}))
        chosen = rng.choice([each["launch"] for each in fit if each["kernel"] == entry])
        again = launches(command, runtime, Path(work), launch=chosen)
        if not again or again[0]["kernel"] != entry:
            raise RequestError("its second run launched something else", where=command[0])
        return keep(again[0], Path(work), into)


def keep(row: Mapping[str, Any], out: Path, into: Path) -> Capture:
    """The launch that stands in `out` with its memory, in a folder of the corpus."""
    (into / "buffers").mkdir(parents=True, exist_ok=True)
    shutil.copy(out / f"module-{row['module']}.ptx", into / "kernel.ptx")
    for kind, name in _files(row):
        file = out / f"{kind}-{name}.bin"
        if file.exists():
            np.save(into / "buffers" / f"{name}.npy", np.fromfile(file, np.uint8))
    (into / "launch.json").write_text(json.dumps(row), encoding="utf-8")
    return read(into)


def _files(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for each in row["allocations"]:
        if not each["zero"]:
            yield "allocation", str(each["number"])
    for each in row["variables"]:
        yield "variable", each["name"]


def shrunk(capture: Capture, blocks: int) -> Capture:
    """The same launch with its grid halved, the longest axis first, until it has no more blocks than these."""
    x, y, z = capture.grid
    while x * y * z > blocks:
        if x >= max(y, z):
            x = -(-x // 2)
        elif y >= z:
            y = -(-y // 2)
        else:
            z = -(-z // 2)
    return dataclasses.replace(capture, grid=(x, y, z))
