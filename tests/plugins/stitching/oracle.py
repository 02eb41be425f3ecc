"""The oracle: XLA's own compiler for the processor, run on the same HLO text."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="the oracle is XLA on the processor, from jax")

from jaxlib import _hlo, _jax  # noqa: E402


@functools.lru_cache(maxsize=64)
def _compiled(text: str) -> Any:
    computation = _hlo.XlaComputation(_hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
    device = jax.devices("cpu")[0]
    stable = _jax.mlir.xla_computation_to_mlir_module(computation)
    return device.client.compile_and_load(stable, _jax.DeviceList((device,)), _jax.CompileOptions())


def run(text: str, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of an HLO module's entry, in order, for inputs in order of its parameters."""
    device = jax.devices("cpu")[0]
    with jax.enable_x64(True):
        arguments = [jax.device_put(each, device) for each in inputs]
        return [np.asarray(each) for each in _compiled(text).execute(arguments)]


def lowered(function: Any, *arguments: Any, x64: bool = False) -> str:
    """The HLO text of a jax function for arguments (arrays or jax.ShapeDtypeStruct)."""
    with jax.enable_x64(x64):
        return str(jax.jit(function).lower(*arguments).as_text(dialect="hlo"))


def given(arrays: Mapping[str, np.ndarray], kind: str) -> list[np.ndarray]:
    """`in_0, in_1, ...` (or `out_...`) of an .npz file, in order."""
    names = sorted((name for name in arrays if name.startswith(kind)), key=lambda name: int(name.split("_")[1]))
    return [arrays[name] for name in names]
