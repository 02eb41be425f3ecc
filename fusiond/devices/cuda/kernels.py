"""The kernels of data.cu on one GPU. `python -m fusiond.devices.cuda.kernels` makes data.ptx anew, with nvcc.

The driver compiles the PTX when it is loaded: no nvcc is needed where a bundle runs.
"""

import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fusiond.devices.base import Array
from fusiond.devices.cuda.memory import GUARD_BYTE, GUARD_BYTES
from fusiond.model.inputs.fills import fill, quantiles, recipe
from fusiond.model.language.narrow import numpy_dtype
from fusiond.model.program import Buffer, Compare

SOURCE = Path(__file__).with_name("data.cu")
PTX = Path(__file__).with_name("data.ptx")
_VERSION, _TARGET = "6.4", "75"
"""What PTX of the other kernels of ours says: drivers from CUDA 10.1 on. nvcc writes its own version, and uses nothing
that is newer."""

KINDS = {"constant": 0, "zeros": 0, "iota": 1, "integers": 2, "uniform": 4, "normal": 6}
"""As `Kind` in data.cu; where a whole 64-bit word is used, the next number."""
_TYPES = {"bool": 0, "float16": 5, "bfloat16": 6, "float32": 7, "float64": 8, "float8_e4m3fn": 9, "float8_e5m2": 10}
_WHOLE = {1: 1, 2: 2, 4: 3, 8: 4}
ENTRIES = ("fusiond_draw", "fusiond_compare", "fusiond_guards")
_FOUND_BYTES = 24  #: What the kernels find: a count, a place, an error
_THREADS = 256
_BLOCKS_EACH = 8  #: Blocks on a multiprocessor: all the threads that it holds


def type_number(dtype: str) -> int:
    """As `Type` in data.cu."""
    return _TYPES[dtype] if dtype in _TYPES else _WHOLE[numpy_dtype(dtype).itemsize]


def draw_arguments(buffer: Buffer, seed: int) -> tuple[np.generic, ...]:
    """What `fusiond_draw` takes between the address and the table: all that decides a buffer's bits. The fill is any
    but `file`."""
    kind = KINDS[buffer.fill.kind]
    key, low, scale, top, first, span = (0, 0), 0.0, 0.0, 0.0, 0, 0
    if kind == KINDS["constant"]:
        first = bits(fill(Buffer(name="", dtype=buffer.dtype, elements=1, role=buffer.role, fill=buffer.fill), 0))
    elif kind != KINDS["iota"]:
        how = recipe(buffer, seed)
        key, low, scale, top, first, span = how.key, how.low, how.scale, how.top, how.first, how.span
        kind += how.wide
    return (
        np.uint64(buffer.elements),
        *(np.uint64(each) for each in key),
        np.int32(kind),
        np.int32(type_number(buffer.dtype)),
        *(np.float64(each) for each in (low, scale, top)),
        *(np.uint64(each) for each in (first, span)),
    )


def compare_arguments(elements: int, dtype: str, how: Compare) -> tuple[np.generic, ...]:
    """What `fusiond_compare` takes between the two addresses and the place of its findings."""
    numbers = np.uint64(elements), np.int32(type_number(dtype)), np.int32(how.kind != "equal")
    return (*numbers, np.float64(how.rtol), np.float64(how.atol))


def bits(value: Array) -> int:
    """The bits of an array of one element."""
    return int.from_bytes(value.tobytes(), "little")


class Kernels:
    """One per executor; loaded when the first is launched. All are launched on the default stream, which waits for the
    others and which the others wait for."""

    def __init__(self, cuda: Any, multiprocessors: int) -> None:
        self._cuda = cuda
        self._most_blocks = _BLOCKS_EACH * multiprocessors
        self._module: Any = None
        self._found: Any = None
        self._table: Any = None
        self._functions: dict[str, Any] = {}
        self._zones: tuple[bytes, Any] = b"", None

    def draw(self, address: int, buffer: Buffer, seed: int, differences: int = 0) -> None:
        """Fill a buffer at an address; or count at another one where it does not hold that."""
        self._load()
        table = self._quantiles() if buffer.fill.kind == "normal" else 0
        arguments = np.uint64(address), *draw_arguments(buffer, seed), np.uint64(table), np.uint64(differences)
        self._launch("fusiond_draw", -(-buffer.elements // 4), *arguments)

    def drawn(self, address: int, buffer: Buffer, seed: int) -> bool:
        """Whether it still holds that."""
        self._load()
        self.draw(address, buffer, seed, int(self._found))
        return self._findings()[0] == 0

    def compare(self, reference: int, actual: int, elements: int, dtype: str, how: Compare) -> tuple[int, int, float]:
        """How many elements are wrong, the index of the first one (-1: none), and the worst error of floats that are
        compared by tolerance."""
        self._load()
        arguments = compare_arguments(elements, dtype, how)
        self._launch("fusiond_compare", elements, np.uint64(reference), np.uint64(actual), *arguments)
        return self._findings()

    def broken_guards(self, zones: Sequence[int]) -> int:
        """How many bytes of these guard zones, each by its address, were written to."""
        if not zones:
            return 0
        self._load()
        table = struct.pack(f"<{len(zones)}Q", *zones)
        if table != self._zones[0]:
            place = self._cuda.mem_alloc(len(table))
            self._cuda.memcpy_htod(int(place), np.frombuffer(table, np.uint8))
            self._zones = table, place
        numbers = np.uint64(len(zones)), np.uint64(GUARD_BYTES), np.int32(GUARD_BYTE)
        place = np.uint64(int(self._zones[1]))
        self._launch("fusiond_guards", len(zones) * GUARD_BYTES, place, *numbers)
        return self._findings()[0]

    def close(self) -> None:
        """Let go of what lies on the device, before the context goes."""
        self._functions.clear()
        self._module = self._found = self._table = None
        self._zones = b"", None

    def _launch(self, name: str, threads: int, *arguments: np.generic) -> None:
        blocks = max(1, min(self._most_blocks, -(-threads // _THREADS)))
        if name != "fusiond_draw":
            arguments = *arguments, np.uint64(int(self._found))
        if arguments[-1]:  # the place of what it finds
            self._cuda.memset_d8(int(self._found), 0, _FOUND_BYTES)
        self._functions[name](*arguments, grid=(blocks, 1), block=(_THREADS, 1, 1))

    def _findings(self) -> tuple[int, int, float]:
        data = np.empty(_FOUND_BYTES, np.uint8)
        self._cuda.memcpy_dtoh(data, int(self._found))
        count, first, worst = struct.unpack("<QQd", data.tobytes())
        return count, 2**64 - 1 - first if first else -1, worst

    def _quantiles(self) -> int:
        """The address of the table on the device."""
        if self._table is None:
            table = self._cuda.mem_alloc(quantiles().nbytes)
            self._cuda.memcpy_htod(int(table), quantiles())
            self._table = table
        return int(self._table)

    def _load(self) -> None:
        if self._module is not None:
            return
        module = self._cuda.module_from_buffer(PTX.read_bytes())
        self._functions = {name: module.get_function(name) for name in ENTRIES}
        self._found = self._cuda.mem_alloc(_FOUND_BYTES)
        self._module = module


def made(nvcc: str, out: Path) -> str:
    """The PTX of data.cu, compiled to a file and named by no compiler: equal for equal code. CalledProcessError."""
    command = [nvcc, "-ptx", f"-arch=compute_{_TARGET}", "-fmad=false", str(SOURCE), "-o", str(out)]
    subprocess.run(command, check=True)
    lines = [line for line in out.read_text().splitlines() if not line.startswith("//")]
    text = "\n".join(f".version {_VERSION}" if line.startswith(".version ") else line for line in lines)
    return f"// Made from data.cu by `python -m fusiond.devices.cuda.kernels`: not to be edited.\n{text.strip()}\n"


if __name__ == "__main__":
    PTX.write_text(made(sys.argv[1] if len(sys.argv) > 1 else "nvcc", PTX))
