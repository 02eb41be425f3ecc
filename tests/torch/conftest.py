"""HLO text by XLA's compiler for the processor."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.service.frameworks import region_answers
from fusiond.service.frameworks.region_answers import FusionOptions

Array = np.ndarray[Any, Any]


def computed(text: str, inputs: Sequence[Array]) -> list[Array]:
    """The results of an HLO module."""
    import jax
    from jaxlib import _hlo, _jax

    device = jax.devices("cpu")[0]
    computation = _hlo.XlaComputation(_hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
    stable = _jax.mlir.xla_computation_to_mlir_module(computation)
    options = _jax.CompileOptions()
    options.executable_build_options.debug_options.xla_backend_optimization_level = 0  # it compiles faster
    loaded = device.client.compile_and_load(stable, _jax.DeviceList((device,)), options)
    with jax.enable_x64(True):
        return [np.asarray(each) for each in loaded.execute([jax.device_put(each, device) for each in inputs])]


@pytest.fixture(autouse=True)
def nothing_is_handed_in(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """No daemon of this machine is asked."""
    handed: list[Any] = []
    monkeypatch.setattr(region_answers.Asker, "_submit", lambda self, question: handed.append(question))
    return handed


@pytest.fixture
def options(tmp_path: Path) -> FusionOptions:
    return FusionOptions(always=True, db=tmp_path / "store.sqlite")
