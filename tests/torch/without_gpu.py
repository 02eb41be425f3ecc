"""Inductor without a GPU: its code for sm_90, compiled by Triton to PTX, which is interpreted on tensors of the host.

Stands in for torch's CUDA functions where Inductor asks them something, and for the launchers that Inductor makes of
compiled kernels.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fusiond.devices.cpu.native import NativeLaunch
from fusiond.model.ptx import triton as compiled_by_triton
from fusiond.torch.splicing import copied

from .interpreting import STREAM, allow, run

PROPERTIES = SimpleNamespace(
    name="NVIDIA H100", major=9, minor=0, multi_processor_count=132, regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32, total_memory=80 << 30,
    gcnArchName="", shared_memory_per_block=49152, shared_memory_per_block_optin=232448, L2_cache_size=50 << 20,
)  # fmt: skip


def pretend(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """From now on torch has one GPU, as far as it is asked what that is."""
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import config
    from torch._inductor.fx_passes import joint_graph, post_grad

    patch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
    patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    answers: Mapping[str, Callable[..., Any]] = {
        "get_device_properties": lambda device=None: PROPERTIES, "get_device_capability": lambda device=None: (9, 0),
        "current_device": lambda: 0, "device_count": lambda: 1, "is_available": lambda: True,
        "get_rng_state": lambda *given: torch.get_rng_state(), "set_rng_state": lambda *given: None,
        "synchronize": lambda *given: None, "set_device": lambda device: None, "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0, "_DeviceGuard": contextlib.nullcontext,
        "is_current_stream_capturing": lambda: False,
    }  # fmt: skip
    for name, answer in answers.items():
        patch.setattr(torch.cuda, name, answer)
        if hasattr(CudaInterface, name.removeprefix("_")):
            patch.setattr(CudaInterface, name.removeprefix("_"), staticmethod(answer))
    patch.setattr(CudaInterface.Worker, "get_device_properties", staticmethod(answers["get_device_properties"]))
    for passes in (joint_graph, post_grad):  # they would try out their patterns on the GPU
        patch.setattr(passes, "lazy_init", lambda *given: None)
    patch.setattr(config, "compile_threads", 1)
    patch.setattr(config, "fx_graph_cache", False)
    _pretend_triton(patch)


def _pretend_triton(patch: pytest.MonkeyPatch) -> None:
    from torch._inductor import triton_bundler
    from torch._inductor.runtime import triton_helpers
    from torch._inductor.runtime import triton_heuristics as heuristics
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.runtime.driver import driver

    class Driver(DriverBase):  # type: ignore[misc]
        def __init__(self) -> None: ...

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, kind: str) -> str:
            return kind

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int | None = None) -> int:
            return STREAM

        def get_active_torch_device(self) -> Any:
            return torch.device("cuda", 0)

        def get_benchmarker(self) -> Any: ...

    def first(self: Any, *given: Any, **named: Any) -> None:
        """The first config is the best."""
        self.launchers = self.launchers[:1]
        self._prune_compile_results_to_launcher(self.launchers[0])

    driver.set_active(Driver())
    patch.setattr(triton_helpers, "set_driver_to_gpu", lambda: None)
    patch.setattr(CUDABackend, "make_cubin", lambda *given, **named: b"none")
    result, tuner = heuristics.TritonCompileResult, heuristics.CachingAutotuner
    kept = heuristics.StaticTritonCompileResult.can_statically_launch
    never = functools.wraps(kept)(lambda *given: None)
    patch.setattr(heuristics.StaticTritonCompileResult, "can_statically_launch", staticmethod(never))
    patch.setattr(result, "make_launcher", lambda self: launcher(self.kernel, self.config, self))
    patch.setattr(tuner, "autotune_to_one_config", first)
    patch.setattr(tuner, "_dynamic_scale_rblock", lambda self: None)
    patch.setattr(triton_bundler.TritonBundler, "put", lambda *given: None)


# --- kernels --------------------------------------------------------------------------------------------


def owned(tensor: Any) -> Any:
    """A tensor of the host, which kernels may touch from now on."""
    storage = tensor.untyped_storage()
    tensor.__dict__["kept"] = storage
    allow(storage, storage.data_ptr(), storage.nbytes())
    return tensor


def launcher(kernel: Any, config: Any, result: Any) -> Callable[..., None]:
    """What Inductor calls for a kernel."""
    from torch._inductor.runtime.triton_heuristics import GridExpr

    made = compiled_by_triton.of(kernel)
    names = [each for each in kernel.src.fn.arg_names if each not in config.kwargs]

    def launch(*handed: Any, stream: int) -> None:
        assert stream == STREAM
        given = dict(zip(names, handed, strict=True))
        grid = GridExpr.from_meta(result.inductor_meta, config).eval_slow(given)
        values = [_bytes(given[each.name], each) for each in made.parameters] + [bytes(8)] * 2
        count = made.text.split(f".entry {made.entry}(")[1].split(")")[0].count(".param")
        shape = NativeLaunch(grid=grid, block=(made.threads, 1, 1), shared_bytes=made.shared_bytes)
        run(made.text, made.entry, shape, values[:count])

    launch.config, launch.store_cubin, launch.cache_hash = config, False, ""  # type: ignore[attr-defined]
    launch.n_regs = launch.n_spills = launch.shared = 0  # type: ignore[attr-defined]
    return launch


def _bytes(value: Any, parameter: Any) -> bytes:
    if parameter.pointer:
        return int(value.data_ptr()).to_bytes(8, "little")
    return np.dtype(parameter.dtype).type(value).tobytes()


# --- graphs ---------------------------------------------------------------------------------------------


def written(function: Callable[..., Any], *inputs: Any) -> list[str]:
    """What Inductor writes for a function of tensors, and for its gradient where an input asks for one.

    A build of torch for processors does not trace functions of a GPU's tensors: it is traced as one of these inputs,
    and what AOTAutograd makes of it is moved to the GPU."""
    from functorch.compile import aot_function, make_boxed_func
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering
    from torch._subclasses.fake_tensor import FakeTensorMode

    found: list[str] = []

    def captured(self: Any) -> Any:
        found.append(self.codegen()[0].value)
        return SimpleNamespace(call=lambda inputs: None)

    def compiled(module: Any, examples: Any, **named: Any) -> Any:
        mode = FakeTensorMode()
        with pytest.MonkeyPatch.context() as patch, tracing(TracingContext(mode)):
            patch.setattr(GraphLowering, "compile_to_module", captured)
            compile_fx_inner(*_moved(module, mode), **named)
        return make_boxed_func(module.forward)

    traced = aot_function(
        function, fw_compiler=compiled, bw_compiler=functools.partial(compiled, is_backward=True),
        decompositions=select_decomp_table(), keep_inference_input_mutations=True,
    )  # fmt: skip
    results = traced(*(_copied(each) for each in inputs))
    if any(each.requires_grad for each in inputs):
        sum(each.sum() for each in results).backward()
    return found


def _copied(tensor: Any) -> Any:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _moved(module: Any, mode: Any) -> tuple[Any, list[Any]]:
    """A graph on the GPU, and its inputs."""
    gpu = torch.device("cuda", 0)

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        with mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=gpu)

    new = copied(module)
    for node in new.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": gpu}
        if "val" in node.meta:
            node.meta = {"val": torch.utils._pytree.tree_map(moved, node.meta["val"])}
    return new, [node.meta["val"] for node in new.graph.nodes if node.op == "placeholder"]


_numbers = itertools.count()


def loaded(text: str, folder: Path) -> Any:
    """The graph of such a text, as Inductor's compiler gives it, on tensors of the host."""
    path = folder / f"graph_{next(_numbers)}.py"
    text = text.replace("from torch._C import _cuda_getCurrentRawStream as get_raw_stream", "")
    text = text.replace("torch._C._dynamo.guards._empty_strided_cuda", "_empty")
    text = text.replace("\nasync_compile = ", f"\nget_raw_stream = lambda device: {STREAM}\nasync_compile = ")
    path.write_text(f"from {__name__} import empty as _empty\n{text}")
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(path.stem, path))  # type: ignore[arg-type]
    sys.modules[path.stem] = module
    module.__spec__.loader.exec_module(module)  # type: ignore[union-attr]
    return graph(module)


def graph(module: ModuleType) -> Any:
    class Graph:
        compiled_fn_runner, current_callable = module.runner, module.call

        def __call__(self, inputs: list[Any]) -> Any:
            return self.current_callable(inputs)

    return Graph()


def empty(shape: Any, strides: Any, dtype: Any) -> Any:
    return owned(torch.empty_strided(shape, strides, dtype=dtype))
