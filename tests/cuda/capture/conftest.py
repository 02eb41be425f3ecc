"""A capture of three kernels: `scale` over x and y, `rows` by a struct, `follow` by addresses in memory."""

import struct
from pathlib import Path

import pytest

from fusiond.cuda.capture.trace import MemoryKind
from tests.cuda.capture.writing import TraceWriter, number, pointer

PTX = Path(__file__).with_name("kernels.ptx").read_bytes()
SCALE, ROWS, FOLLOW = "_Z5scalePfPKfif", "_Z4rows4RowsPKi", "_Z6followPPf"
X, Y, Z, WEIGHTS = 0x7F0000010000, 0x7F0000020000, 0x7F0000030000, 0x7F0000040000


class Program:
    """What the tests' program does, call by call."""

    def __init__(self, folder: Path) -> None:
        self.writer = TraceWriter(folder)
        module = self.writer.module(PTX + b"\0")
        self.scale, self.rows, self.follow = (self.writer.function(module, each) for each in (SCALE, ROWS, FOLLOW))
        for address in (X, Y, Z):
            self.writer.allocate(address, 4000)
        self.writer.allocate(WEIGHTS, 64, MemoryKind.VARIABLE)
        self.writer.variable(WEIGHTS, "weights")

    def launch_scale(self, x: int, y: int, n: int, stream: int = 0) -> None:
        given = [pointer(x), pointer(y), number(n), struct.pack("<f", 0.5)]
        self.writer.launch(self.scale, [-(-n // 128)], [128], given, stream)

    def launch_rows(self, data: int, at: int, n: int, blocks: int = 4) -> None:
        self.writer.launch(self.rows, [blocks], [128], [struct.pack("<Qiid", data, n, -1, 2.0), pointer(at)])


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path / "capture")
