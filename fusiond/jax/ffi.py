"""The handler through which XLA launches plans, and regions as a primitive of JAX.

`region` computes what its jaxpr says, by the kernels of a plan. Whoever transforms it (grad, vmap, linearize) gets the
equations instead, which every transformation knows; so a fused function can stand inside of any other.
"""

import ctypes
import hashlib
import importlib.util
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from fusiond.build import gxx
from fusiond.build.cpu import commands
from fusiond.model.errors import DeviceError
from fusiond.model.program import Program
from fusiond.service.frameworks import launching
from fusiond.service.frameworks.launching import Unusable

SOURCE = Path(__file__).with_name("handler.cpp")
TARGET = "fusiond_region"
_ABI = commands.RUNTIME / "abi.h"


@dataclass(frozen=True, eq=False)
class FfiAttributes:
    """A plan with its code, as attributes of a call."""

    scratch: tuple[int, ...]
    attributes: dict[str, Any] = field(repr=False)


def launched(program: Program, inputs: int, outputs: int, platform: str, arch: str | None) -> FfiAttributes:
    """A Program for regions of so many arguments and results. Unusable where it cannot be launched so."""
    plan, runtime = launching.flat(program, *launching.argument_names(inputs, outputs)), ""
    if platform == "cpu":
        paths, entries = launching.built_for_cpu(program)
        for step in program.launches:
            path = paths[plan.images.index(step.source)]
            name = f"fusiond_entry_{entries[plan.entries.index(step.entry)]}"
            try:
                ctypes.c_void_p.in_dll(ctypes.CDLL(str(path)), name)
            except (OSError, ValueError):
                raise Unusable(f"{path.name} cannot be loaded, or has no {name}") from None
        images, runtime = tuple(each.read_bytes() for each in paths), str(gxx.scheduler())
    elif arch is None:
        raise Unusable("the answer is of no GPU")
    else:
        images, entries = launching.built_for_gpu(program, arch)
    names = "\n".join(entries)
    key = hashlib.sha256(b"".join([plan.words.tobytes(), *images, names.encode()])).hexdigest()[:32]
    said = {"key": key, "entries": names, "runtime": runtime, "plan": plan.words, "images": np.int64(len(images))}
    said |= {f"image_{i}": np.frombuffer(each, np.uint8) for i, each in enumerate(images)}
    return FfiAttributes(plan.scratch, said)


# --- the handler ----------------------------------------------------------------------------------------

_lock = threading.Lock()
_registered: set[str] = set()


def ready(platform: str) -> bool:
    """Whether the handler is registered."""
    return platform in _registered


def register(platform: str) -> None:
    """Builds the handler where it is not in the cache, and hands it to XLA. Unusable where that fails."""
    with _lock:
        if platform in _registered:
            return
        library = ctypes.CDLL(str(build()))
        if platform == "cpu":
            jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library.fusiond_on_cpu), platform="cpu")
        else:
            stages = {"initialize": library.fusiond_initialize_cuda, "execute": library.fusiond_on_cuda}
            capsules = {name: jax.ffi.pycapsule(each) for name, each in stages.items()}
            jax.ffi.register_ffi_target(TARGET, capsules, platform="CUDA")
        _registered.add(platform)


def build() -> Path:
    """The handler's shared object, from the build cache. Unusable where g++ is missing or refuses it."""
    include = jax.ffi.include_dir()
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-w", f"-I{include}", f'-DFUSIOND_ABI_HEADER="{_ABI}"']

    def make(compiler: str, work: Path) -> Path:
        out = work / "handler.so"
        gxx.demand("the handler", [compiler, *flags, str(SOURCE), "-o", str(out), "-ldl"], work)
        return out

    try:
        return gxx.once("handler", [flags, SOURCE.read_text(), _ABI.read_text(), jax.__version__], make)
    except DeviceError as problem:
        raise Unusable(str(problem)) from None


# --- the primitive --------------------------------------------------------------------------------------

region_p = core.Primitive("fusiond_region")
region_p.multiple_results = True


def region(jaxpr: core.ClosedJaxpr, code: FfiAttributes, arguments: Sequence[Any]) -> list[Any]:
    """What a jaxpr computes, by the kernels of a plan."""
    found: list[Any] = region_p.bind(*arguments, jaxpr=_Held(jaxpr), code=code)
    return found


class _Held:
    """A jaxpr as a parameter that is compared by identity: transformations need not look into it."""

    def __init__(self, jaxpr: core.ClosedJaxpr) -> None:
        self.jaxpr = jaxpr
        self.function = core.jaxpr_as_fun(jaxpr)


@region_p.def_abstract_eval
def _abstract(*arguments: Any, jaxpr: _Held, code: FfiAttributes) -> list[Any]:
    return list(jaxpr.jaxpr.out_avals)


@region_p.def_impl
def _outside(*arguments: Any, jaxpr: _Held, code: FfiAttributes) -> Any:
    return jaxpr.function(*arguments)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: _Held, code: FfiAttributes) -> Any:
    filled = [ad.instantiate_zeros(each) if isinstance(each, ad.Zero) else each for each in tangents]
    return jax.jvp(lambda *given: jaxpr.function(*given), tuple(primals), tuple(filled))


def _batched(arguments: Sequence[Any], dims: Sequence[Any], *, jaxpr: _Held, code: FfiAttributes) -> Any:
    found = jax.vmap(lambda *given: jaxpr.function(*given), in_axes=tuple(dims))(*arguments)
    return found, [0] * len(found)


def _lowered(context: Any, *arguments: Any, jaxpr: _Held, code: FfiAttributes) -> Any:
    if getattr(context.module_context.axis_context, "num_devices", 1) > 1:  # else XLA gathers what is spread
        return _as_written(context, *arguments, jaxpr=jaxpr, code=code)
    rule = jax.ffi.ffi_lowering(TARGET, has_side_effect=False)
    # Scratch memory is a result, so that XLA keeps it for as long as a CUDA graph into which it records the launches.
    scratch = [jax.core.ShapedArray((each,), np.dtype(np.uint8)) for each in code.scratch]
    made = context.replace(avals_out=[*context.avals_out, *scratch])
    return rule(made, *arguments, **code.attributes)[: len(context.avals_out)]


def _as_written(context: Any, *arguments: Any, jaxpr: _Held, code: FfiAttributes) -> Any:
    """On a platform for which there is no code: the equations."""
    return mlir.lower_fun(lambda *given: jaxpr.function(*given), multiple_results=True)(context, *arguments)


ad.primitive_jvps[region_p] = _jvp
batching.primitive_batchers[region_p] = _batched
mlir.register_lowering(region_p, _as_written)
for _platform in ("cpu", "cuda"):
    mlir.register_lowering(region_p, _lowered, platform=_platform)


# --- exporting functions with their kernels ---

_MISSING = "jax.export writes and reads files with flatbuffers, which is not installed: pip install 'fusiond[jax]'"


def export(function: Callable[..., Any], *, disabled_checks: Sequence[Any] = (), **options: Any) -> Any:
    """`jax.export.export` of a fused function, as it is fused now: `export(step)(state, batch).serialize()`.

    The kernels travel with it. Options are those of `jax.export.export`. ImportError, with the remedy, where what
    writes the file is missing."""
    _check()
    jitted: Any = function if hasattr(function, "trace") else jax.jit(lambda *given, **named: function(*given, **named))
    region = jax.export.DisabledSafetyCheck.custom_call(TARGET)
    return jax.export.export(jitted, disabled_checks=[*disabled_checks, region], **options)


def deserialize(data: bytes | bytearray) -> Any:
    """`jax.export.deserialize`, with the handler that launches regions, which is compiled where it is not in the build
    cache: `deserialize(data).call(state, batch)`.

    ImportError as `export`; fusiond.service.frameworks.launching.Unusable where there is no handler for JAX's platform.
    """
    from fusiond.jax import fusing

    _check()
    platform = fusing._platform()
    if platform is not None:
        register(platform)
    return jax.export.deserialize(bytearray(data))


def _check() -> None:
    if importlib.util.find_spec("flatbuffers") is None:
        raise ImportError(_MISSING)
