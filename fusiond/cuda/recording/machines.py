"""Where a kernel or an answer runs: the processor, or the GPU whose context is current."""

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusiond.build import gxx, nvcc
from fusiond.build.exporting import launch as exported
from fusiond.cuda.recording.origins import Origin
from fusiond.devices.cpu import native
from fusiond.model.errors import FusiondError
from fusiond.model.gpu.entry_table import read_table
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Dim3, Launch, Program
from fusiond.service.frameworks import launching, running
from fusiond.service.frameworks.launching import LaunchPlan, Step, Unusable
from fusiond.service.frameworks.running import LaunchFailed, Machine

STATIC_SHARED_BYTES = 48 * 1024
PROCESSOR = -1
library: Any = None  #: In the place of libcuda: for tests


@functools.lru_cache(maxsize=4)
def _driver(of: Any) -> exported._Driver:
    return exported._Driver(of)


def driver() -> exported._Driver:
    """The driver. LaunchFailed where there is none."""
    try:
        return _driver(library)
    except exported.LaunchError as problem:
        raise LaunchFailed(str(problem)) from None


def current_device() -> int:
    """The number of the GPU whose context is current. LaunchFailed where none is."""
    try:
        driver().context()
        return driver().handle("cuCtxGetDevice", kind=ctypes.c_int)
    except exported.LaunchError as problem:
        raise LaunchFailed(str(problem)) from None


def context(device: int) -> int:
    """What tells one context of a device from another."""
    if device == PROCESSOR:
        return 0
    current = ctypes.c_void_p()
    driver().status("cuCtxGetCurrent", ctypes.byref(current))
    return current.value or 0


def stream_handle(stream: object) -> int:
    """TypeError for what is not a stream."""
    try:
        return exported._stream_handle(stream)
    except exported.LaunchError as problem:
        raise TypeError(str(problem)) from None


def capturing(stream: int, device: int) -> bool:
    """Whether a stream is being captured into a CUDA graph."""
    ask = getattr(driver()._library, "cuStreamIsCapturing", None) if device != PROCESSOR else None
    if ask is None:
        return False
    state = ctypes.c_int()
    return bool(ask(ctypes.c_void_p(stream), ctypes.byref(state)) or state.value)


@dataclass(frozen=True, slots=True)
class Built:
    """A plan, and its code for one device; what is loaded of it lies in a machine."""

    plan: LaunchPlan
    images: tuple[Any, ...]  #: Paths of shared objects, or cubins
    entries: tuple[str, ...]
    device: int

    def machine(self) -> Machine:
        """With its code loaded; on a GPU in the current context. Unusable."""
        if self.device == PROCESSOR:
            return running.Processor(gxx.scheduler(), self.images, self.entries, self.plan)
        return running.CudaMachine(self.images, self.entries, self.plan, library)


def built(program: Program, plan: LaunchPlan, device: int, architecture: str | None) -> Built:
    """Unusable where a source does not build."""
    if device == PROCESSOR:
        return Built(plan, *launching.built_for_cpu(program), device)
    if architecture is None:
        raise Unusable("the answer is of no GPU")
    return Built(plan, *launching.built_for_gpu(program, architecture), device)


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel, loaded."""

    name: str
    machine: Machine
    sizes: tuple[int, ...] | None  #: Bytes of each parameter, where they are known

    def launch(self, grid: Dim3, block: Dim3, shared: int, values: Sequence[bytes], stream: int) -> None:
        """TypeError for arguments that are none of its own; LaunchFailed."""
        if self.sizes is not None:
            if len(values) != len(self.sizes):
                raise TypeError(f"{self.name} takes {len(self.sizes)} arguments, and is handed {len(values)}")
            for place, (value, size) in enumerate(zip(values, self.sizes, strict=True)):
                if len(value) != size:
                    raise TypeError(f"argument {place} of {self.name} has {size} bytes, and is handed {len(value)}")
        self.machine.start(Step(grid=grid, block=block, shared_bytes=shared), values, stream)


def loaded(origin: Origin, device: int, shared: int) -> LoadedKernel:
    """A kernel as it is, compiled where it is not in the build cache. LaunchFailed."""
    if origin.told.unknown:
        raise LaunchFailed(f"{origin.name}: the option {origin.told.unknown[0]} is not known here")
    source = origin.source()
    step = Launch(
        name="launch", source=source.name, entry=origin.name, grid=(1, 1, 1), block=(1, 1, 1), shared_bytes=shared,
        arguments=(),
    )  # fmt: skip
    program = Program(name=origin.plain, buffers=(), sources=(source,), steps=(step,))
    try:
        plan = launching.flat(program, (), ())
        code = built(program, plan, device, None if device == PROCESSOR else driver().arch(device))
        return LoadedKernel(origin.name, code.machine(), _sizes(origin, code))
    except (Unusable, FusiondError, native.NativeError) as problem:
        raise LaunchFailed(" ".join(f"{origin.name}: {problem}".split())) from None


def _sizes(origin: Origin, code: Built) -> tuple[int, ...] | None:
    if code.device == PROCESSOR:
        entry = native.Runtime(gxx.scheduler()).load(code.images[0]).entry(code.entries[0])
        return entry.argument_bytes
    source = origin.source()
    found = nvcc.build(source, source.target(driver().arch(code.device)))
    if isinstance(found, BuildFailed):
        return None
    parameters = read_table(found.path).entries[origin.name].parameters
    return tuple(each.size_bytes for each in parameters)
