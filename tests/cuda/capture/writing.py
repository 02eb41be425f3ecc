"""Traces as runtime/trace.h writes them."""

import struct
from collections.abc import Sequence
from pathlib import Path

from fusiond.cuda.capture.trace import MAGIC, Direction, MemoryKind


class TraceWriter:
    """DIR/1.trace, record by record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for each in ("modules", "data"):
            (folder / each).mkdir(parents=True, exist_ok=True)
        self._records = [MAGIC]
        self._functions = 0

    def close(self) -> Path:
        (self.folder / "1.trace").write_bytes(b"".join(self._records))
        return self.folder

    def record(self, kind: int, fields: bytes) -> None:
        self._records.append(struct.pack("<IIQ", kind, len(fields), len(self._records)) + fields)

    def module(self, image: bytes) -> int:
        name = f"1-{len(self._records)}"
        (self.folder / "modules" / name).write_bytes(image)
        self.record(1, struct.pack("<Q", len(self._records)) + _text(name))
        return len(self._records) - 1

    def function(self, module: int, name: str, registers: int = 32) -> int:
        self._functions += 1
        shape = struct.pack("<IIII", registers, 0, 0, 0)
        self.record(2, struct.pack("<QQ", self._functions, module) + _text(name) + shape)
        return self._functions

    def launch(
        self,
        function: int,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[bytes],
        stream: int = 0,
        shared: int = 0,
        cluster: int = 1,
    ) -> None:
        lengths = (*(*grid, 1, 1)[:3], *(*block, 1, 1)[:3], cluster, 1, 1)
        head = struct.pack("<QQ9IIIQI", function, stream, *lengths, shared, 0, 0, len(arguments))
        self.record(3, head + b"".join(struct.pack("<I", len(each)) + each for each in arguments))

    def elapsed(self, launch: int, nanoseconds: int) -> None:
        self.record(4, struct.pack("<QQ", launch, nanoseconds))

    def allocate(self, address: int, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        self.record(5, struct.pack("<QQI", address, size, kind))

    def variable(self, address: int, name: str) -> None:
        self.record(13, struct.pack("<Q", address) + _text(name))

    def copy(self, destination: int, source: int, size: int, direction: Direction, stream: int = 0) -> None:
        self.record(7, struct.pack("<QQQQI", destination, source, size, stream, direction))

    def wait(self, stream: int = 0) -> None:
        self.record(9, struct.pack("<Q", stream))

    def data(self, address: int, contents: bytes) -> None:
        name = f"1-{len(self._records)}"
        (self.folder / "data" / name).write_bytes(contents)
        self.record(11, struct.pack("<QQ", address, len(contents)) + _text(name))


def _text(value: str) -> bytes:
    return struct.pack("<I", len(value)) + value.encode()


def pointer(address: int) -> bytes:
    return struct.pack("<Q", address)


def number(value: int) -> bytes:
    return struct.pack("<i", value)
