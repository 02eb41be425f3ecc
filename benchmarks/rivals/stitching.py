"""An HLO module in PyTorch, compiled by Inductor: with its kernels one after the other, side by side in a launch (combo
kernels), or tuned.

The module becomes a graph of PyTorch's own operations (`benchmarks.stitching.arrays`, traced once), which is what
torch.compile gets. The whole module is timed, on both sides: its dots are cuBLAS's there, plain kernels here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.rivals.base import About, Rival
from benchmarks.rivals.called import Called, Function
from benchmarks.rivals.frameworks import Torch, lacks
from benchmarks.stitching import modules
from benchmarks.stitching.array_names import TorchNames
from benchmarks.stitching.arrays import Arrays
from benchmarks.stitching.beside import CLOSE
from fusiond.devices.base import Loaded
from fusiond.devices.cuda.executor import CudaExecutor
from fusiond.program import Program
from fusiond_stitching.frontend.graph import HloModule


class Unknown(Exception):
    """This PyTorch has no such option; which, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """torch.compile; `about` has the module's name (`module`)."""

    name: str
    what: str
    options: Mapping[str, bool] = field(default_factory=dict)
    """Of Inductor."""
    close: float = CLOSE["cuda"]

    def missing(self) -> str:
        return lacks("torch", "pip install torch") or lacks("triton", "pip install triton")

    def load(self, executor: CudaExecutor, program: Program, about: About) -> Loaded:
        framework = Torch()
        function = compiled(modules.module(about["module"]), framework, self.options)
        return Called(executor.cuda, executor.spans, program, framework, function)


def compiled(module: HloModule, framework: Torch, options: Mapping[str, bool]) -> Function:
    """The module by torch.compile, on the framework's device. NoCounterpart for an instruction that PyTorch cannot
    compute, Unknown for an option that it does not know."""
    torch = framework.torch
    inductor = importlib.import_module("torch._inductor")
    unknown = sorted(set(options) - set(inductor.list_options()))
    if unknown:
        raise Unknown(f"PyTorch {torch.__version__} has no Inductor option {unknown[0]!r}")
    names = TorchNames(torch, framework.device)
    function = Arrays(module, names)
    given = {
        module.buffer_of(each): names.left(names.full((module[each].elements,), 0, module[each].dtype))
        for each in module.parameters
        if module.users[each]
    }
    # Traced here, and not by Dynamo, whose guards would look at each instruction's objects at every call.
    with torch.no_grad():
        graph = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx(function)(given)
    call = torch.compile(graph, fullgraph=True, dynamic=False, options=dict(options))

    def run(arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = call({name: arrays[name] for name in given})
        return found

    return run


RIVALS: tuple[Rival, ...] = (
    Compiled(name="torch.compile", what="PyTorch, compiled by Inductor; the whole module"),
    Compiled(
        name="torch.compile, combo kernels",
        what="the same with kernels side by side in a launch",
        options={"combo_kernels": True},
    ),
    Compiled(
        name="torch.compile, max-autotune",
        what="the same with tuned kernels and products of matrices, without CUDA graphs",
        options={"max_autotune": True, "coordinate_descent_tuning": True},
    ),
)
