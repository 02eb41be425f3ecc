"""Records launches of CuPy's RawKernels. CuPy is not imported: a program that has a RawKernel has imported it."""

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from fusiond.cuda.recording import arguments, launches, machines
from fusiond.cuda.recording.arguments import NULL, Unseen
from fusiond.cuda.recording.launches import Grid, RecordedLaunch, lengths
from fusiond.cuda.recording.origins import Origin, short_name


def is_raw(kernel: object) -> bool:
    """Whether it is a RawKernel, or something that is one in all that matters here."""
    return type(kernel).__name__ == "RawKernel" and type(kernel).__module__.partition(".")[0] == "cupy"


def problem(kernel: Any) -> str:
    """Why a RawKernel carries no source that can be fused, in one line; empty where it does."""
    if kernel.code is None:
        return f"its code is a binary ({kernel.file_path}), and no CUDA source"
    if _written(kernel.name).startswith("_Z"):
        return "its name is mangled, and libstdc++.so.6 is not there to read it"
    return ""


def origin(kernel: Any) -> Origin:
    """The source of a RawKernel without a `problem`."""
    return Origin(kernel.code, _written(kernel.name), tuple(kernel.options))


def _written(name: str) -> str:
    """A kernel's name as in the source. Those of a RawModule with `name_expressions` have mangled ones:

    _Z4poolIfLi5EEvPT_  -->  void pool<float, 5>(float*)  -->  pool<float, 5>"""
    return short_name(name) if name.startswith("_Z") else name


class Recording:
    """A RawKernel in a `with fusiond.cuda.launch(...)`: a launch is recorded; all else is the RawKernel's."""

    def __init__(self, kernel: Any) -> None:
        self._kernel, self._origin = kernel, origin(kernel)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __call__(self, grid: Grid, block: Grid, args: Sequence[Any], **options: Any) -> None:
        recorder = launches.current()
        if recorder is None:
            self._kernel(grid, block, args, **options)
        else:
            recorder.add(self.described(grid, block, args, **options))

    def described(
        self, grid: Grid, block: Grid, args: Sequence[Any], *, shared_mem: int = 0, stream: Any = None
    ) -> RecordedLaunch:
        """The launch, not yet done. It goes to the stream and the device that are current now."""
        cuda = sys.modules["cupy"].cuda
        stream = stream or cuda.get_current_stream()
        device = int(cuda.runtime.getDevice())
        given, unseen = [], ""
        for place, each in enumerate(args):
            try:
                given.append(arguments.read(each, widen=True))
            except Unseen as why:
                given.append(NULL)
                unseen = unseen or f"argument {place} of {self._origin.name} {why}"
        kept, shared = tuple(args), int(shared_mem)

        def run() -> None:
            """As it was called, on the stream and the device that were current then."""
            with contextlib.ExitStack() as stack:
                if int(cuda.runtime.getDevice()) != device:
                    stack.enter_context(cuda.Device(device))
                if cuda.get_current_stream() != stream:
                    stack.enter_context(stream)
                self._kernel(grid, block, kept, shared_mem=shared)

        where = machines.stream_handle(stream), device
        shape = lengths(atleast_one(grid)), lengths(atleast_one(block)), shared
        return RecordedLaunch(self._origin, *shape, tuple(given), *where, run, unseen)


def atleast_one(given: Grid) -> list[int]:
    """CuPy takes a length of 0 for 1."""
    return [max(1, int(each)) for each in ((given,) if isinstance(given, int) else given)]
