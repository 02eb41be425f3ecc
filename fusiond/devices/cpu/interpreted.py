"""Sources as PTX, on the cpu device: the interpreter of `fusiond.devices.counting` runs them, and says where one
breaks. They are PTX already, or C++ that g++ does not take behind the emulation's headers and nvcc compiles.

It gives what `native` gives of compiled kernels. Every access is checked against the buffers of the program, so that
what misses one ends the launch, reads too. Races are not looked for, but in checked runs of odd seeds the last blocks
and the last warps come first.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fusiond.build import gxx, nvcc, ptx_entries
from fusiond.build.cache import default_folder, of_folder
from fusiond.build.cpu.lowering import NOT_EMULATED
from fusiond.devices.counting import library
from fusiond.devices.counting.kernels import CountError, LoadedPtx, beside_buffers
from fusiond.devices.counting.library import Cache
from fusiond.devices.counting.model import H100
from fusiond.devices.cpu import native
from fusiond.devices.cpu.native import Argument, Finished, NativeError, NativeLaunch
from fusiond.model.gpu.limits import MOST_SHARED_BYTES
from fusiond.model.keys import content_key
from fusiond.model.nouns import NamedPtx
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Source, SourceKind, SourceLanguage
from fusiond.model.ptx.tree import PtxError

SUFFIX = ".ptx"
_NAMES = "// fusiond: "
"""Begins the first line of what nvcc compiled; behind it exported names by those that the PTX has, as JSON."""
_FLAGS = ("-lineinfo", "-fmad=false", "--expt-relaxed-constexpr", "--extended-lambda")
"""To round as the emulation does, and to take what g++ takes."""
_ARCH = "sm_90"  #: The architecture that the emulation claims to be
_MOST_THREADS = 1024

Bytes = NDArray[np.uint8]


def build(source: Source) -> Path | BuildFailed:
    """What the cpu device runs of a source: g++'s object, or a file of PTX where it is PTX or g++ does not take it."""
    if source.language is SourceLanguage.PTX:
        return _kept(nvcc.named_ptx(source, ""))
    built = gxx.build(source)
    refused = isinstance(built, BuildFailed) and (NOT_EMULATED in built.reason or ": error: " in built.log)
    if isinstance(built, Path) or source.kind is SourceKind.HOST or not refused:  # g++ may lack time or memory
        return built
    if missing := nvcc.missing():
        curable = NOT_EMULATED in built.reason or "<cooperative_groups" in source.text
        return BuildFailed(reason=f"{built.reason}; as PTX it would run: {missing}") if curable else built
    front = nvcc.named_ptx(dataclasses.replace(source, flags=_FLAGS), _ARCH)
    if isinstance(front, BuildFailed):
        return front if NOT_EMULATED in built.reason else built
    names = {gxx.exported(source, each): mangled for each, mangled in front.names.items()}
    names |= {gxx.exported_symbol(source, each): mangled for each, mangled in front.symbols.items()}
    return _kept(dataclasses.replace(front, text=f"{_NAMES}{json.dumps(names, sort_keys=True)}\n{front.text}"))


def _kept(front: NamedPtx | BuildFailed) -> Path | BuildFailed:
    """The text in the build cache. The interpreter is built too, once a machine: the child that loads it has a time
    limit."""
    if isinstance(front, BuildFailed):
        return front
    library.built()
    cache, key = of_folder(default_folder()), content_key(["interpreted", front.text])
    return cache.get(key, SUFFIX) or cache.put(key, SUFFIX, front.text)


class InterpretedModule:
    """A loaded PTX text; its variables are in memory as long as this lives."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        self._library = library.load()
        try:
            self.loaded = LoadedPtx(self.text, self._library)
        except PtxError as problem:
            raise NativeError(str(problem)) from None
        first = self.text.partition("\n")[0]
        self._names: Mapping[str, str] = {}
        if first.startswith(_NAMES):
            self._names = json.loads(first.removeprefix(_NAMES))
        else:
            # What fails is named by its line here, also where `.loc` says which line of another file it is made from.
            self.loaded.module = dataclasses.replace(self.loaded.module, files={})
        self.cache = Cache(self._library, H100.l2_bytes)

    def entry(self, name: str) -> InterpretedEntry:
        """A kernel, translated. NativeError where something in it is not known."""
        name = self._names.get(name, name)
        kernel = self.loaded.module.kernels[name]
        try:
            self.loaded.code(name)
        except (PtxError, CountError) as problem:
            raise NativeError(f"{name}: {problem}") from None
        return InterpretedEntry(self, name, tuple(each.size_bytes for each in kernel.parameters))

    def symbol(self, name: str) -> Bytes:
        """The bytes of a variable, to read and write; not beyond `close`."""
        return self.loaded.variable(self._names.get(name, name))

    def close(self) -> None:
        self.cache.close()


@dataclasses.dataclass(frozen=True, slots=True)
class InterpretedEntry:
    """A kernel that can be launched."""

    module: InterpretedModule
    name: str
    argument_bytes: tuple[int, ...]

    def launch(
        self, launch: NativeLaunch, arguments: Sequence[Argument], buffers: Mapping[str, Bytes]
    ) -> Finished | str:
        """Runs one launch to its end; a text of one that a GPU would not have finished either says why, and at which
        line of the PTX. `buffers`: all that it may touch beside the module's own variables, by names for people.
        NativeError where it is refused."""
        packed = native.pack(self.name, self.argument_bytes, arguments)
        for problem in self._refusals(launch):
            raise NativeError(problem)
        backwards = launch.checked and launch.seed % 2 == 1
        memory, loaded, cache = list(buffers.values()), self.module.loaded, self.module.cache
        begun = time.thread_time_ns()
        try:
            done = loaded.launch(self.name, launch, packed, memory, cache, H100, backwards=backwards)
        except (PtxError, CountError) as problem:
            raise NativeError(str(problem)) from None
        if done.failed is not None:
            return beside_buffers(done.failed, buffers)
        return Finished(elapsed_ns=time.thread_time_ns() - begun, switches=0)

    def _refusals(self, launch: NativeLaunch) -> Iterator[str]:
        """Why the driver would refuse a launch."""
        loaded, head = self.module.loaded, ptx_entries.module(self.module.text).entries[self.name]
        threads, blocks = math.prod(launch.block), math.prod(launch.grid)
        if not 0 < threads <= _MOST_THREADS or launch.block[2] > 64:
            yield "a block has 1 to 1024 threads, at most 1024 x 1024 x 64 a side"
        if 0 in launch.grid or launch.grid[1] > 65535 or launch.grid[2] > 65535:
            yield "a grid has 1 to 2147483647 x 65535 x 65535 blocks"
        shared_bytes = loaded.code(self.name).layout.shared_bytes + launch.shared_bytes
        if shared_bytes > MOST_SHARED_BYTES:
            yield f"a block has at most {MOST_SHARED_BYTES} bytes of shared memory"
        together = H100.resident(threads, shared_bytes)
        if launch.cooperative and blocks > together:
            yield f"a cooperative launch of {blocks} blocks: an H100 keeps at most {together} of them at once"
        required, most = head.directive("reqntid"), head.directive("maxntid")
        if required is not None and launch.block != (*required, 1, 1)[:3]:
            yield f"{self.name} is for blocks of {_sides(required)} threads (.reqntid), not {_sides(launch.block)}"
        if most is not None and threads > math.prod(most):
            yield f"{self.name} is for blocks of at most {math.prod(most)} threads (.maxntid), not {threads}"


def _sides(sides: Sequence[int]) -> str:
    return " x ".join(map(str, sides))
