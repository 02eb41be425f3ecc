"""`fusiond.cuda.kernel`: a kernel with its CUDA source, and how it is launched unfused."""

from collections.abc import Sequence
from typing import Any

from fusiond.cuda.recording import arguments, launches, machines
from fusiond.cuda.recording.arguments import Unseen
from fusiond.cuda.recording.launches import Grid, RecordedLaunch, lengths
from fusiond.cuda.recording.origins import Origin


class Kernel:
    """A kernel of one's own (`fusiond.cuda.kernel`). Launched inside a `with fusiond.cuda.launch(...)`, it is recorded.

    On a GPU it runs in the context that is current in the calling thread (CuPy's, PyCUDA's, PyTorch's); arguments are
    whatever has `__cuda_array_interface__`. With NumPy arrays it runs on the processor, as fusiond's cpu device has it.
    """

    def __init__(self, source: str, name: str, options: Sequence[str] = ()) -> None:
        self.origin = Origin(source, name, tuple(options))
        self._loaded: dict[tuple[object, ...], machines.LoadedKernel] = {}

    def __repr__(self) -> str:
        return f"fusiond.cuda.kernel(..., {self.origin.name!r})"

    def launch(self, grid: Grid, block: Grid, args: Sequence[Any], shared_mem: int = 0, stream: object = None) -> None:
        """Launch, or record. Numbers are NumPy's (`numpy.int32(n)`), a struct is a NumPy scalar of its dtype.

        TypeError for an argument that is none; fusiond.cuda.LaunchFailed where it does not build or start."""
        launched = self.described(grid, block, args, shared_mem, stream)
        recorder = launches.current()
        if recorder is None:
            launched.run()
        else:
            recorder.add(launched)

    __call__ = launch

    def described(
        self, grid: Grid, block: Grid, args: Sequence[Any], shared_mem: int, stream: object
    ) -> RecordedLaunch:
        """The launch, not yet done."""
        given = []
        for place, each in enumerate(args):
            try:
                given.append(arguments.read(each, widen=False))
            except Unseen as problem:
                raise TypeError(f"argument {place} of {self.origin.name} {problem}") from None
        sides = {each.side for each in given if isinstance(each, arguments.Array)}
        if len(sides) > 1:
            raise TypeError(f"{self.origin.name} is handed arrays of the host and of a GPU; copy them to one side")
        if not sides:
            raise TypeError(f"{self.origin.name} is handed no array, so there is no telling where it runs")
        device = -1 if sides == {arguments.HOST} else machines.current_device()
        shape = lengths(grid), lengths(block), int(shared_mem)
        handle = machines.stream_handle(stream)
        values = [each.data for each in given]

        def run(kept: tuple[Any, ...] = tuple(args)) -> None:
            """`kept`: the arguments, alive until now."""
            shared = shape[2]
            key = device, machines.context(device), shared if shared > machines.STATIC_SHARED_BYTES else 0
            loaded = self._loaded.get(key)
            if loaded is None:
                loaded = self._loaded[key] = machines.loaded(self.origin, device, shared)
            loaded.launch(*shape, values, handle)

        return RecordedLaunch(self.origin, *shape, tuple(given), handle, device, run)


def kernel(source: str, name: str, options: Sequence[str] = ()) -> Kernel:
    """A kernel from CUDA source, to be launched with or without fusing.

    source: CUDA C++. name: the `__global__` function, with namespaces and template arguments: `pool<float, 5>`.
    options: as for NVRTC and nvcc: `-DTILE=16`, `-I/path`, `-use_fast_math`.

        scale = fusiond.cuda.kernel(source, "scale")
        scale.launch((blocks,), (256,), (x, y, numpy.int32(n)), stream=stream)"""
    return Kernel(source, name, options)
