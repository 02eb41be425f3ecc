"""Image pipelines in what users have today: CuPy (a kernel for each operation), torch.compile and JAX (which fuse).

All of them run the same interpreter of the pipeline over whole images (`benchmarks.mincut.images`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.mincut.images import Images, JaxNames, Names, TorchNames
from benchmarks.rivals.base import About, Rival
from benchmarks.rivals.called import Called, Function
from benchmarks.rivals.frameworks import CuPy, Framework, Jax, Torch, lacks
from fusiond.devices.base import Loaded
from fusiond.devices.cuda.executor import CudaExecutor
from fusiond.model.inputs import documents
from fusiond.model.program import Program
from fusiond_mincut.frontend import parser
from fusiond_mincut.frontend.graph import Pipeline
from fusiond_mincut.plugin import PIPELINES

CLOSE = 0.005
"""Compilers contract products and sums, so that a value at a threshold flips: so many of the pixels of an integer image
may differ, or a float by so much of the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """An application in an array framework; `about` has its name (`application`), `width` and `height`."""

    name: str
    what: str
    module: str
    remedy: str
    make: Callable[[Pipeline], tuple[Framework, Function]]
    """From images of shape (height, width, channels) to such images."""
    close: float = CLOSE

    def missing(self) -> str:
        return lacks(self.module, self.remedy)

    def load(self, executor: CudaExecutor, program: Program, about: About) -> Loaded:
        found = pipeline(about["application"], about["width"], about["height"])
        framework, images = self.make(found)
        return Called(executor.cuda, executor.spans, program, framework, flat(found, images))


def pipeline(application: str, width: int, height: int) -> Pipeline:
    path = PIPELINES / f"{application}.yaml"
    sizes = {"width": width, "height": height}
    return parser.read(documents.parse(path.read_text(encoding="utf-8"), str(path)), sizes)


def flat(of: Pipeline, images: Function) -> Function:
    """The same on flat arrays, as buffers are."""
    shapes = {each.name: (of.height, of.width, each.channels) for each in of.inputs}

    def call(given: Mapping[str, Any]) -> Mapping[str, Any]:
        return images({name: given[name].reshape(shape) for name, shape in shapes.items()})

    return call


def _cupy(of: Pipeline) -> tuple[Framework, Function]:
    framework = CuPy()
    return framework, Images(of, Names(framework.cupy))


def _torch(of: Pipeline) -> tuple[Framework, Function]:
    return compiled(of, Torch())


def compiled(of: Pipeline, framework: Torch) -> tuple[Framework, Function]:
    """By torch.compile, on the framework's device."""
    images = Images(of, TorchNames(framework.torch, framework.device))
    with framework.torch.no_grad():  # the borders' indices are made here, and are not part of what is compiled
        images({each.name: _nothing(framework, of, each.channels, each.dtype) for each in of.inputs})
    return framework, framework.torch.compile(images, fullgraph=True, dynamic=False)


def _nothing(framework: Torch, of: Pipeline, channels: int, dtype: str) -> Any:
    torch = framework.torch
    return torch.zeros((of.height, of.width, channels), dtype=getattr(torch, dtype), device=framework.device)


def _jax(of: Pipeline) -> tuple[Framework, Function]:
    framework = Jax()
    return framework, importlib.import_module("jax").jit(Images(of, JaxNames(framework.jax)))


RIVALS: tuple[Rival, ...] = (
    Arrays(
        name="CuPy", what="CuPy, an operation at a time", module="cupy", remedy="pip install cupy-cuda13x", make=_cupy
    ),
    Arrays(
        name="torch.compile",
        what="PyTorch, compiled by Inductor",
        module="torch",
        remedy="pip install torch",
        make=_torch,
    ),
    Arrays(
        name="JAX", what="JAX, compiled by XLA; wall clock", module="jax", remedy="pip install jax[cuda13]", make=_jax
    ),
)
