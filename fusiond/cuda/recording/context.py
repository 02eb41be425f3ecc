"""`with fusiond.cuda.launch(...)`: launches are recorded inside, and done when it is left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from fusiond.cuda.recording import cupy, groups, launches, numba, triton
from fusiond.cuda.recording.groups import Explained
from fusiond.cuda.recording.kernels import Kernel
from fusiond.cuda.recording.launches import RecordedLaunch
from fusiond.service.frameworks import region_answers
from fusiond.service.frameworks.region_answers import FusionOptions

_UNNAMED = (triton, numba)  #: Libraries whose kernels are recorded without being named


class Recorder:
    """The launches of one `with`, which gives what it was handed, to be launched inside: one kernel, or a tuple."""

    def __init__(self, kernels: tuple[Any, ...], options: FusionOptions) -> None:
        self._options, self._on = options, region_answers.enabled()
        self._kernels = tuple(cupy.Recording(each) if self._on and cupy.is_raw(each) else each for each in kernels)
        self._launches: list[RecordedLaunch] = []

    def __enter__(self) -> Any:
        if self._on:
            if self in launches.opened.recorders:
                raise RuntimeError("this `with fusiond.cuda.launch(...)` is entered already; make one for each")
            outer = launches.current()
            if outer is not None:
                outer.flush()  # what was recorded there comes first
            launches.opened.recorders.append(self)
            for library in _UNNAMED:
                library.begin()
        return self._kernels[0] if len(self._kernels) == 1 else self._kernels

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What was recorded is launched, also where the block ends by an exception: so it would have been without."""
        if self._on:
            for library in _UNNAMED:
                library.end()
            launches.opened.recorders.remove(self)
            self.flush()

    def add(self, launch: RecordedLaunch) -> None:
        self._launches.append(launch)

    def flush(self) -> None:
        """Launch what is recorded by now."""
        recorded, self._launches = self._launches, []
        alone = len(recorded) < 2 or groups.apart(recorded)
        group = None if alone else groups.of(recorded, self._options)
        for number in range(len(recorded)) if group is None else group.start(recorded):
            recorded[number].run()


def launch(
    *kernels: Any,
    always: bool = False,
    block: bool = False,
    search: Mapping[str, Any] | None = None,
    device: str | None = None,
    db: Path | str | None = None,
) -> Recorder:
    """Launches that do not need each other's results, as one where that is known to be faster.

        with fusiond.cuda.launch(scale, histogram) as (scale, histogram):
            scale((blocks,), (256,), (x, y, numpy.float32(2)))
            histogram((bins,), (512,), (counts, z, numpy.int32(n)), shared_mem=4 * bins)

    kernels: CuPy's RawKernels, and those of `fusiond.cuda.kernel`, Triton and Numba, which are recorded without being
    named. Inside, a launch is recorded; all are done when the block is left, in their order until there
    is an answer, as one launch from then on. Nothing else in the block may need their results. What shares memory that
    one of them writes, or goes to several streams, runs in order.

    always: fused whatever the verdict, emulated answers on a processor too: for scripts and tests. block: tune here and
    now, without a daemon. search: how, as in a job (`{"trials": 20}`), then and by the daemon. device: as a job names
    it; db: another store. `FUSIOND=off` in the environment: each launch is done where it is called.

    TypeError for a kernel that carries no CUDA source, ValueError for a `search` or a `device` that a job could not
    have."""
    if region_answers.enabled():
        region_answers.check_options(search, device)
        for each in kernels:
            problem = _sourceless(each)
            if problem:
                raise TypeError(problem)
    return Recorder(kernels, FusionOptions(always=always, block=block, search=search, device=device, db=db))


def explain() -> Explanation:
    """What became of all launches that came together in this process."""
    return Explanation(groups.explained())


class Explanation(tuple[Explained, ...]):
    """One line for each."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no launches came together"


_KINDS = {"pycuda": "a function of PyCUDA", "cuda": "an object of cuda-python"}


def _sourceless(kernel: Any) -> str:
    """Why nothing of a kernel can be asked for, with what helps; empty where it has its source."""
    if isinstance(kernel, Kernel | cupy.Recording) or any(each.is_kernel(kernel) for each in _UNNAMED):
        return ""
    name = getattr(kernel, "name", None) or getattr(kernel, "__name__", None) or type(kernel).__name__
    kind = type(kernel)
    if cupy.is_raw(kernel):
        why = cupy.problem(kernel)
        return f"{name} cannot be fused: {why}; fusiond.cuda.kernel(source, name) carries it" if why else ""
    what = _KINDS.get(kind.__module__.partition(".")[0], f"a {kind.__module__}.{kind.__qualname__}")
    if "graph" in kind.__name__.lower():
        what = "a CUDA graph, whose nodes name no source"
    return f"{name} is {what}, which carries no CUDA source; fusiond.cuda.kernel(source, name) does"
