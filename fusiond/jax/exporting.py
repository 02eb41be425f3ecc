"""Exports functions with their kernels for another process, through `jax.export`."""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export

from fusiond.jax import ffi, fusing

_MISSING = "jax.export writes and reads files with flatbuffers, which is not installed: pip install 'fusiond[jax]'"


def export(function: Callable[..., Any], *, disabled_checks: Sequence[Any] = (), **options: Any) -> Any:
    """`jax.export.export` of a fused function, as it is fused now: `export(step)(state, batch).serialize()`.

    The kernels travel with it. Options are those of `jax.export.export`. ImportError, with the remedy, where what
    writes the file is missing."""
    _check()
    jitted: Any = function if hasattr(function, "trace") else jax.jit(lambda *given, **named: function(*given, **named))
    region = jax.export.DisabledSafetyCheck.custom_call(ffi.TARGET)
    return jax.export.export(jitted, disabled_checks=[*disabled_checks, region], **options)


def deserialize(data: bytes | bytearray) -> Any:
    """`jax.export.deserialize`, with the handler that launches regions, which is compiled where it is not in the build
    cache: `deserialize(data).call(state, batch)`.

    ImportError as `export`; fusiond.service.frameworks.launching.Unusable where there is no handler for JAX's platform.
    """
    _check()
    platform = fusing._platform()
    if platform is not None:
        ffi.register(platform)
    return jax.export.deserialize(bytearray(data))


def _check() -> None:
    if importlib.util.find_spec("flatbuffers") is None:
        raise ImportError(_MISSING)
