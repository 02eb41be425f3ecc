"""XLA of today on the same module: its own executable for the same HLO text, timed beside ours.

What is timed. The profiler of jax (CUPTI on a GPU) says how long each kernel of a call ran on the device. The kernels
of cuBLAS, cuDNN and of fusions that hold a dot are the library's part; all others, copies included, are the fusable
portion. The sums leave out the gaps between kernels, which our times contain: XLA is shown at its best. What a call
costs as it ships, launches and all, stands beside it: the wall clock over many calls that are enqueued without waiting.

How text becomes an executable. jax has no public way in: jaxlib's parser makes a proto of the text, which becomes
StableHLO, which the client of a device compiles as it compiles what jax traces. Where a jax has none of these names,
the reason is said and XLA is not timed.
"""

from __future__ import annotations

import importlib
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PLATFORMS = {"cuda": "/device:GPU", "cpu": "/host:CPU"}
"""jax's name of a platform -> the beginning of the names of its planes in a profile."""
WARMUPS = 3
_PARSERS = ("jaxlib._hlo", "jaxlib._jax", "jaxlib.xla_extension")
_CLIENTS = ("jaxlib._jax", "jaxlib.xla_extension")
_LIBRARY = frozenset({"dot", "convolution", "custom-call", "triangular-solve", "cholesky", "fft"})
_NO_WORK = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "call", "while", "conditional", "async-start",
    "async-update", "async-done", "after-all",
})  # fmt: skip
_HEADER = re.compile(r"(?:ENTRY )?%?([\w.$-]+) .*\{$")
_LINE = re.compile(r"\s+(?:ROOT )?%?([\w.$-]+) = (?:\(.*?\)|\S+) ([a-z][\w-]*)\(")
_CALLED = re.compile(r"(?:calls|to_apply|called_computations)=\{?%?([\w.$-]+)")


class Unavailable(Exception):
    """XLA cannot be timed here; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One call on the device, averaged over several: microseconds and launches. `fusable` are XLA's own kernels and
    copies, `library` those of libraries and of fusions with a dot inside."""

    fusable_us: float
    library_us: float
    fusable: int
    library: int

    @property
    def whole_us(self) -> float:
        return self.fusable_us + self.library_us


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A device that XLA compiles for."""

    platform: str
    device: Any
    versions: Mapping[str, str]

    @property
    def described(self) -> dict[str, Any]:
        return {"platform": self.platform, "device": self.device.device_kind, "versions": dict(self.versions)}

    def compile(self, text: str) -> Executable:
        """The executable of a module. Unavailable where XLA refuses it."""
        parser, client = _with("hlo_module_from_text", _PARSERS), _with("CompileOptions", _CLIENTS)
        try:
            proto = parser.hlo_module_from_text(text).as_serialized_hlo_module_proto()
            stable = client.mlir.xla_computation_to_mlir_module(parser.XlaComputation(proto))
            made = self.device.client.compile_and_load(
                stable, client.DeviceList((self.device,)), client.CompileOptions()
            )
            optimised = made.hlo_modules()[0].to_string()
        except (AttributeError, TypeError) as problem:
            raise Unavailable(f"this jax ({self.versions['jax']}) compiles no HLO text: {problem}") from None
        except (RuntimeError, ValueError) as problem:
            raise Unavailable(f"XLA: {str(problem).splitlines()[0]}") from None
        return Executable(backend=self, loaded=made, portions=portions(optimised))


@dataclass(frozen=True, kw_only=True)
class Executable:
    """A module compiled by XLA. `portions`: see the function of that name."""

    backend: Backend
    loaded: Any
    portions: Mapping[str, str]

    def given(self, inputs: Sequence[Array]) -> list[Any]:
        """Arguments on the device, for inputs in the order of the parameters."""
        import jax

        with jax.enable_x64(True):
            return [jax.device_put(each, self.backend.device) for each in inputs]

    def outputs(self, arguments: Sequence[Any]) -> list[Array]:
        """Run it once; the outputs in their order."""
        return [np.asarray(each) for each in self.loaded.execute(arguments)]

    def call_us(self, arguments: Sequence[Any], calls: int) -> float:
        """Microseconds of wall clock for a call, over `calls` of them that do not wait for one another."""
        self._run(arguments, WARMUPS)
        begun = time.perf_counter()
        self._run(arguments, calls)
        return (time.perf_counter() - begun) * 1e6 / calls

    def profile(self, arguments: Sequence[Any], calls: int) -> Profile:
        """What the device did during `calls` calls. Unavailable when the profiler saw nothing."""
        import jax

        self._run(arguments, WARMUPS)
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with tempfile.TemporaryDirectory(prefix="fusiond-xla-") as folder:
            with jax.profiler.trace(folder, profiler_options=options):
                self._run(arguments, calls)
            found = sorted(Path(folder).rglob("*.xplane.pb"))
            if not found:
                raise Unavailable("the profiler of jax wrote nothing")
            data = jax.profiler.ProfileData.from_file(str(found[-1]))
            return profile(events(data, PLATFORMS[self.backend.platform]), self.portions, calls)

    def _run(self, arguments: Sequence[Any], calls: int) -> None:
        made: list[Any] = []
        for _ in range(calls):
            made = self.loaded.execute(arguments)
        for each in made:  # one stream, in order: the last call is done last
            each.block_until_ready()


def opened(platform: str) -> Backend:
    """jax's first device of a platform (`cuda`, `cpu`). Unavailable without jax, or without such a device."""
    # jax takes three quarters of the device's memory otherwise, and ours runs on the same device, in another process.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax
    except ImportError:
        raise Unavailable("jax is not installed") from None
    try:
        device = jax.devices(platform)[0]
    except RuntimeError as problem:
        raise Unavailable(f"jax sees no {platform} device: {str(problem).splitlines()[0]}") from None
    versions = {"jax": jax.__version__, "jaxlib": importlib.import_module("jaxlib").__version__}
    return Backend(platform=platform, device=device, versions=versions)


def _with(name: str, modules: Iterable[str]) -> Any:
    """The first of jaxlib's modules that has a name: they have moved from release to release."""
    for each in modules:
        try:
            found = importlib.import_module(each)
        except ImportError:
            continue
        if hasattr(found, name):
            return found
    raise Unavailable(f"this jaxlib has no {name}")


# --- whose kernel it is ---------------------------------------------------------------------------------


def portions(optimised: str) -> dict[str, str]:
    """Instruction -> `fusable` or `library`, of the text of a compiled module: all that may be launched. A fusion is
    the library's where a dot or a convolution is inside. Names as kernels have them: letters, digits, underscores."""
    opcode: dict[str, str] = {}
    calls: dict[str, list[str]] = {}
    inside: dict[str, list[str]] = {}
    computation = ""
    for line in optimised.splitlines():
        header = _HEADER.match(line)
        found = _LINE.match(line)
        if found is not None:
            name = found[1]
            opcode[name] = found[2]
            calls[name] = _CALLED.findall(line)
            inside.setdefault(computation, []).append(name)
        elif header is not None:
            computation = header[1]

    def of_library(name: str) -> bool:
        if opcode[name] in _LIBRARY:
            return True
        return opcode[name] == "fusion" and any(
            of_library(each) for called in calls[name] for each in inside.get(called, ())
        )

    return {
        _plain(name): "library" if of_library(name) else "fusable" for name in opcode if opcode[name] not in _NO_WORK
    }


def _plain(name: str) -> str:
    return re.sub(r"\W", "_", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that ran on the device."""

    name: str
    instruction: str  #: The instruction that it belongs to, where the profiler says so
    copy: bool
    time_us: float


def events(data: Any, planes: str) -> Iterator[Event]:
    """The kernels and copies of a profile (`jax.profiler.ProfileData`). On a GPU: all that ran on a stream, and none of
    the lines that are derived from those; on a processor: what belongs to an instruction."""
    gpu = planes != PLATFORMS["cpu"]
    for plane in data.planes:
        if not plane.name.startswith(planes):
            continue
        for line in plane.lines:
            if gpu and not line.name.startswith("Stream"):
                continue
            for each in line.events:
                stats = dict(each.stats)
                instruction = str(stats.get("hlo_op", ""))
                if gpu or instruction:
                    copy = each.name.startswith(("Memcpy", "Memset"))
                    yield Event(
                        name=each.name, instruction=instruction, copy=copy, time_us=float(each.duration_ns) / 1e3
                    )


def profile(found: Iterable[Event], owner: Mapping[str, str], calls: int) -> Profile:
    """Sums for one call. A kernel is XLA's own when its instruction is, or (inside a CUDA graph the profiler names the
    graph) when it bears an instruction's name; any other kernel came with a library. Copies are XLA's."""
    times = {"fusable": 0.0, "library": 0.0}
    counts = {"fusable": 0, "library": 0}
    for each in found:
        portion = owner.get(_plain(each.instruction)) or owner.get(_plain(each.name))
        if portion is None:
            portion = "fusable" if each.copy else "library"
        times[portion] += each.time_us
        counts[portion] += 1
    if not any(counts.values()):
        raise Unavailable("the profiler of jax saw no kernel")
    return Profile(
        fusable_us=times["fusable"] / calls,
        library_us=times["library"] / calls,
        fusable=round(counts["fusable"] / calls),
        library=round(counts["library"] / calls),
    )
