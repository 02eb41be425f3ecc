"""The kernels of a source, and one launch of one of them."""

import contextlib
import ctypes
import math
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fusiond.devices.counting import calls, layout, sampling, translate
from fusiond.devices.counting.layout import PtxImage
from fusiond.devices.counting.library import Cache, CountingLibrary, CountRequest
from fusiond.devices.counting.model import Gpu
from fusiond.devices.counting.rows import PtxCode
from fusiond.devices.counting.sampling import LaunchCounts, Runs
from fusiond.model.program import Launch
from fusiond.model.ptx import flat, parser

WORKSPACE_BYTES = 4096
TURN = 256  #: Instructions of a warp until it is the next one's turn
_WORTH_THREADS = 128  #: Warps from which on several threads run them: to begin a thread takes as long as tens of warps
_MOST_PREPARED = 64
_OUTSIDE = re.compile(r"at (0x[0-9a-f]+) is outside of every buffer")
_NEAR_BYTES = 1 << 20  #: Nearer to a buffer than this, an address was meant for it
_ROOM_BYTES = 1 << 30  #: For the registers of the blocks that run together


class CountError(Exception):
    """A launch that cannot be counted, or failed; one line that says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedShape:
    """How a kernel is launched."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0  #: Dynamic shared memory
    cooperative: bool = False


Shape: TypeAlias = CountedShape | Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedLaunch:
    """What came of a launch that was not counted, beside what it wrote."""

    failed: str | None  #: Why it did not run to its end, and where
    printed: bytes


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What launches of one kernel and shape have in common; the request points to the rest."""

    request: CountRequest
    parameters: NDArray[np.uint8]
    blocks: NDArray[np.int64]
    cache: Cache


class LoadedPtx:
    """One source's PTX: its variables are in memory as long as this lives."""

    def __init__(
        self, text: str, library: CountingLibrary, allocate: Callable[[int], NDArray[np.uint8]] | None = None
    ) -> None:
        """`allocate`: where its variables lie (as PtxImage has it)."""
        tree = parser.parse(text)
        self.module = calls.expanded(flat.flattened(tree))
        self.clusters = {
            name: (*(each.directive("reqnctapercluster") or ()), 1, 1, 1)[:3] for name, each in tree.entries.items()
        }
        """How many blocks a cluster of each kernel has."""
        self.image = PtxImage(self.module, allocate)
        self._library = library
        self._workspace = layout.aligned(WORKSPACE_BYTES)
        self._codes: dict[str, PtxCode] = {}
        self._prepared: dict[object, _Prepared] = {}
        self._places: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None = None

    def variable(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a variable, by its mangled name."""
        return self.image.view(next(each for each in self.module.variables if each.name == name))

    def code(self, kernel: str) -> PtxCode:
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
        *,
        registers: int = 0,
        barriers: int = 0,
        budget: int | None = None,
        most: int = 0,
        backwards: bool = False,
    ) -> LaunchCounts:
        """Run a kernel. `arguments` are the bytes of its parameters, `memory` all that it may touch beside the
        module's own variables; `registers` (0: not asked) and `barriers` are what ptxas says of it.

        In instructions of warps: from `budget` on a launch is sampled (None: never), one of more than `most` is given
        up (0: none is). `backwards`: the last blocks, and the last warps of each, begin first: whatever then comes out
        otherwise goes by their order. CountError when the arguments are not those of the kernel."""
        known = [*memory, *self.image.globals.values(), self._workspace]
        places = sorted({(int(each.ctypes.data), int(each.ctypes.data) + each.nbytes) for each in known if each.nbytes})
        code = self.code(kernel)
        parameters = layout.aligned(code.layout.parameter_bytes + 64)
        self._put(kernel, arguments, parameters)
        request = self._request(kernel, shape, parameters, gpu, registers, barriers)
        request.backwards, request.limit = backwards, most
        self._workspace[:] = 0
        allocations = np.array(places, np.uint64)
        with contextlib.closing(Runs(self._library, cache, request, code, allocations, gpu.l2_bytes // 32)) as runs:
            try:
                return sampling.estimate(runs, None if shape.cooperative else budget)
            except sampling.Failed as problem:
                return runs.nothing(self._said(code, problem))

    def execute(
        self, kernel: str, shape: CountedShape, arguments: Sequence[bytes], places: NDArray[np.uint64], gpu: Gpu
    ) -> ExecutedLaunch:
        """Run all of a launch for what it computes, and count nothing, on all processors. `places`: begins and ends of
        all that it may touch beside the module's own variables, shape (n, 2); an array that was handed over is not
        changed any more. Only from one thread at a time. CountError as in `launch`."""
        key = kernel, shape, self.clusters[kernel]
        prepared = self._prepared.get(key)
        if prepared is None:
            if len(self._prepared) >= _MOST_PREPARED:
                for each in self._prepared.values():
                    each.cache.close()
                self._prepared.clear()
            prepared = self._prepared[key] = self._prepare(kernel, shape, gpu)
        request, known = prepared.request, self._reachable(places)
        self._put(kernel, arguments, prepared.parameters)
        self._workspace[:] = 0
        request.allocations, request.allocation_count = known.ctypes.data, len(known)
        failed = self._library.launch(prepared.cache, request)
        said = None if failed is None else self._said(self.code(kernel), sampling.Failed(*failed))
        return ExecutedLaunch(failed=said, printed=self._library.printed())

    def _prepare(self, kernel: str, shape: CountedShape, gpu: Gpu) -> _Prepared:
        parameters = layout.aligned(self.code(kernel).layout.parameter_bytes + 64)
        request = self._request(kernel, shape, parameters, gpu, 0, 0)
        blocks = np.arange(math.prod(shape.grid), dtype=np.int64)
        warps = len(blocks) * -(-math.prod(shape.block) // 32)
        request.threads = len(os.sched_getaffinity(0)) if warps >= _WORTH_THREADS else 1
        request.blocks, request.block_count = blocks.ctypes.data, len(blocks)
        return _Prepared(request, parameters, blocks, Cache(self._library, 0))

    def _reachable(self, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """These, the module's variables and what the driver keeps for it, in order; the same ones often come again."""
        if self._places is None or self._places[0] is not places:
            own = (*self.image.globals.values(), self._workspace)
            ends = np.array([(each.ctypes.data, each.ctypes.data + each.nbytes) for each in own], np.uint64)
            self._places = places, np.unique(np.concatenate([places, ends]), axis=0)
        return self._places[1]

    def _request(
        self, kernel: str, shape: Shape, parameters: NDArray[np.uint8], gpu: Gpu, registers: int, barriers: int
    ) -> CountRequest:
        """A launch but for its memory and its counts; what it points to has to live as long as it. CountError."""
        code, cluster = self.code(kernel), self.clusters[kernel]
        shared_bytes = code.layout.shared_bytes + shape.shared_bytes
        threads, together = math.prod(shape.block), math.prod(cluster)
        if any(length % each for length, each in zip(shape.grid, cluster, strict=True)):
            raise CountError(
                f"{kernel} has clusters of {cluster} blocks, of which a grid of {shape.grid} is no multiple"
            )
        room = _ROOM_BYTES // (-(-threads // 32) * code.register_bytes)
        resident = min(gpu.resident(threads, shared_bytes, registers, barriers), max(room, 1), math.prod(shape.grid))
        return CountRequest(
            code=code.instructions.ctypes.data,
            instructions=len(code.instructions),
            register_bytes=code.register_bytes,
            constants=code.constants.ctypes.data,
            specials=code.specials.ctypes.data,
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
            cluster=(ctypes.c_uint32 * 3)(*cluster),
            resident=max(resident // together, 1) * together,
            multiprocessors=gpu.multiprocessors,
            cooperative=shape.cooperative,
            turn=TURN,
        )

    def _put(self, kernel: str, arguments: Sequence[bytes], bank: NDArray[np.uint8]) -> None:
        """Into the bank of a kernel's parameters. CountError."""
        parameters, places = self.module.kernels[kernel].parameters, self.code(kernel).layout.parameters
        if len(parameters) != len(arguments):
            raise CountError(f"{kernel} takes {len(parameters)} arguments, not {len(arguments)}")
        room = bank.data
        for each, data in zip(parameters, arguments, strict=True):
            begin = places[each.name]
            room[begin : begin + len(data)] = data

    def _said(self, code: PtxCode, problem: sampling.Failed) -> str:
        source = code.sources[problem.at] if 0 <= problem.at < len(code.sources) else None
        return problem.reason if source is None else f"{self.place(source)}: {source.opcode}: {problem.reason}"

    def place(self, instruction: flat.PtxInstruction) -> str:
        """Where an instruction comes from: `file:line` of the source, else the line of the PTX."""
        if instruction.file in self.module.files and instruction.source_line:
            return f"{self.module.files[instruction.file].rpartition('/')[2]}:{instruction.source_line}"
        return f"PTX line {instruction.line}"


def beside_buffers(text: str, buffers: Mapping[str, NDArray[np.uint8]]) -> str:
    """What a launch broke of, an address outside of every buffer as the place that it has beside the nearest one."""

    def near(match: re.Match[str]) -> str:
        address, places = int(match[1], 16), list[tuple[int, str]]()
        for name, data in buffers.items():
            begin = int(data.ctypes.data)
            places.append((begin - address, f"before {name}"))
            places.append((address - begin - data.nbytes, f"behind the end of {name}"))
        known = [each for each in places if 0 <= each[0] < _NEAR_BYTES]
        if not known:
            return match[0]
        distance, where = min(known, key=operator.itemgetter(0))
        return f"is outside of every buffer, {distance} bytes {where}"

    return _OUTSIDE.sub(near, text)
