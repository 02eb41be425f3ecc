"""Kernels of a source that can be launched, and one launch of them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusiond.counting import layout, ptx, translate
from fusiond.counting.layout import Image
from fusiond.counting.library import COUNTS, Cache, Library, Request
from fusiond.counting.model import Gpu
from fusiond.counting.translate import Code

WORKSPACE_BYTES = 4096
TURN = 256
"""Instructions of a warp until it is the next one's turn."""
_ROOM_BYTES = 256 << 20
"""For the registers of the blocks that run together."""


class CountError(Exception):
    """A launch that cannot be counted, or failed; one line that says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a kernel is launched."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    """Dynamic shared memory."""
    cooperative: bool = False
    blocks: tuple[int, ...] | None = None
    """The blocks that are run, by their index in the grid; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one launch did. `counts` has a row for each instruction of `code`."""

    code: Code
    counts: NDArray[np.void]
    compulsory_read_sectors: int
    compulsory_write_sectors: int
    resident: int
    error: str | None


class Unit:
    """One source's PTX: its variables are in memory as long as this lives."""

    def __init__(self, text: str, library: Library) -> None:
        self.module = ptx.parse(text)
        self.image = Image(self.module)
        self._library = library
        self._workspace = layout.aligned(WORKSPACE_BYTES)
        self._codes: dict[str, Code] = {}

    def code(self, kernel: str) -> Code:
        """The translation of a kernel, by its mangled name. PtxError for what is not known in it."""
        if kernel not in self._codes:
            found = self.module.kernels[kernel]
            workspace = int(self._workspace.ctypes.data)
            self._codes[kernel] = translate.translate(
                self.module, found, self.image, self._library.operation, workspace=workspace
            )
        return self._codes[kernel]

    def launch(
        self,
        kernel: str,
        shape: Shape,
        arguments: Sequence[bytes],
        memory: Sequence[NDArray[np.uint8]],
        cache: Cache,
        gpu: Gpu,
    ) -> Result:
        """Run a kernel. `arguments` are the bytes of its parameters, `memory` all that it may touch beside the
        module's own variables. CountError when the arguments are not those of the kernel."""
        code = self.code(kernel)
        names = [each.name for each in self.module.kernels[kernel].parameters]
        if len(names) != len(arguments):
            raise CountError(f"{kernel} takes {len(names)} arguments, not {len(arguments)}")
        parameters = layout.aligned(code.layout.parameter_bytes + 64)
        for name, data in zip(names, arguments, strict=True):
            begin = code.layout.parameters[name]
            parameters[begin : begin + len(data)] = np.frombuffer(data, np.uint8)
        self._workspace[:] = 0
        known = [*memory, *self.image.globals.values(), self._workspace]
        places = sorted({(int(each.ctypes.data), int(each.ctypes.data) + each.nbytes) for each in known if each.nbytes})
        allocations = np.array(places, np.uint64)
        count = int(np.prod(shape.grid, dtype=np.int64))
        blocks = np.arange(count) if shape.blocks is None else np.array(shape.blocks, np.int64)
        shared_bytes = code.layout.shared_bytes + shape.shared_bytes
        threads = int(np.prod(shape.block))
        room = _ROOM_BYTES // (-(-threads // 32) * code.register_bytes)
        resident = min(gpu.resident(threads, shared_bytes), max(room, 1), len(blocks))
        counts = np.zeros(len(code.instructions), COUNTS)
        specials = np.array(code.specials or [(0, -1)], np.int32)
        request = Request(
            code=code.instructions.ctypes.data,
            instructions=len(code.instructions),
            register_bytes=code.register_bytes,
            constants=code.constants.ctypes.data,
            specials=specials.ctypes.data,
            special_count=len(code.specials),
            parameters=parameters.ctypes.data,
            parameter_bytes=code.layout.parameter_bytes,
            constant_bank=self.image.bank.ctypes.data,
            constant_bank_bytes=self.image.bank.nbytes,
            local_bytes=code.layout.local_bytes,
            shared_bytes=shared_bytes,
            dynamic_shared_bytes=shape.shared_bytes,
            grid=(ctypes.c_uint32 * 3)(*shape.grid),
            block=(ctypes.c_uint32 * 3)(*shape.block),
            blocks=blocks.ctypes.data,
            block_count=len(blocks),
            resident=resident,
            cooperative=shape.cooperative,
            turn=TURN,
            allocations=allocations.ctypes.data,
            allocation_count=len(allocations),
            limit=0,
            counts=counts.ctypes.data,
        )
        failed = self._library.launch(cache, request)
        error = None
        if failed is not None:
            at, reason = failed
            source = code.sources[at] if 0 <= at < len(code.sources) else None
            error = reason if source is None else f"{self.place(source)}: {source.opcode}: {reason}"
        return Result(
            code=code,
            counts=counts,
            compulsory_read_sectors=int(request.compulsory_read_sectors),
            compulsory_write_sectors=int(request.compulsory_write_sectors),
            resident=resident,
            error=error,
        )

    def place(self, instruction: ptx.Instruction) -> str:
        """Where an instruction comes from: `file:line` of the source, else the line of the PTX."""
        if instruction.file in self.module.files and instruction.source_line:
            return f"{self.module.files[instruction.file].rpartition('/')[2]}:{instruction.source_line}"
        return f"PTX line {instruction.line}"
