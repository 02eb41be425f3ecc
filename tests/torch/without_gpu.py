"""Inductor without a GPU: its code for sm_90, compiled by Triton to PTX, which is interpreted on tensors of the host.

Stands in for torch's CUDA functions where Inductor asks them something, for the launchers that Inductor makes of
compiled kernels, and for the driver below an answer of ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import itertools
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fusiond.cuda.recording import machines
from fusiond.devices.cpu import interpreted
from fusiond.devices.cpu.interpreted import InterpretedModule
from fusiond.devices.cpu.native import Finished, NativeLaunch
from fusiond.frameworks.launching import LAUNCH, LaunchPlan
from fusiond.frameworks.running import Step
from fusiond.program import Program, Source, SourceLanguage
from fusiond.ptx import triton as compiled_by_triton

STREAM = 7
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
        "get_device_properties": lambda device=None: PROPERTIES,
        "get_device_capability": lambda device=None: (9, 0),
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "is_available": lambda: True,
        "get_rng_state": lambda *given: torch.get_rng_state(),
        "set_rng_state": lambda *given: None,
        "synchronize": lambda *given: None,
        "set_device": lambda device: None,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "_DeviceGuard": contextlib.nullcontext,
        "is_current_stream_capturing": lambda: False,
    }
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
    patch.setattr(heuristics.StaticTritonCompileResult, "can_statically_launch", staticmethod(lambda *given: None))
    patch.setattr(result, "make_launcher", lambda self: launcher(self.kernel, self.config, self))
    patch.setattr(tuner, "autotune_to_one_config", first)
    patch.setattr(tuner, "_dynamic_scale_rblock", lambda self: None)
    patch.setattr(triton_bundler.TritonBundler, "put", lambda *given: None)


# --- memory, and what runs on it ------------------------------------------------------------------------

_memory: weakref.WeakSet[Any] = weakref.WeakSet()
_modules: dict[str, InterpretedModule] = {}
launched: list[str] = []
"""The entries of all launches, of those that are fused, too."""


def owned(tensor: Any) -> Any:
    """A tensor of the host, which kernels may touch from now on."""
    storage = tensor.untyped_storage()
    tensor.__dict__["kept"] = storage
    _memory.add(storage)
    return tensor


def _buffers() -> dict[str, Any]:
    found = {}
    for number, each in enumerate(list(_memory)):
        raw = (ctypes.c_uint8 * max(each.nbytes(), 1)).from_address(each.data_ptr())
        found[f"tensor{number}"] = np.frombuffer(raw, np.uint8)
    return found


def run(text: str, entry: str, launch: NativeLaunch, values: Sequence[bytes]) -> None:
    """A launch of PTX, to its end."""
    module = _modules.get(text)
    if module is None:
        source = Source(name=entry, text=text, entries=(entry,), language=SourceLanguage.PTX)
        path = interpreted.build(source)
        assert isinstance(path, Path), path
        module = _modules[text] = InterpretedModule(path)
    launched.append(entry)
    done = module.entry(entry).launch(launch, list(values), _buffers())
    assert isinstance(done, Finished), done


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


class InterpretingMachine:
    """In the place of a GPU below an answer."""

    def __init__(self, program: Program, plan: LaunchPlan) -> None:
        self._texts = [program.source(each).text for each in plan.images]
        self._entries = plan.entries

    def start(self, step: Step, values: Sequence[bytes], stream: int) -> None:
        assert (step.kind, stream) == (LAUNCH, STREAM)
        shape = NativeLaunch(grid=step.grid, block=step.block, shared_bytes=step.shared_bytes)
        run(self._texts[step.image], self._entries[step.entry], shape, values)

    def fill(self, address: int, size_bytes: int, byte: int, stream: int) -> None:
        ctypes.memset(address, byte, size_bytes)


def built(program: Program, plan: LaunchPlan, device: int, arch: str | None) -> Any:
    """As `machines.built`."""
    return SimpleNamespace(plan=plan, machine=lambda: InterpretingMachine(program, plan))


# --- graphs ---------------------------------------------------------------------------------------------


def written(function: Callable[..., Any], *shapes: Any) -> list[str]:
    """What Inductor writes for a function, and for its gradient where an input asks for one. `shapes`: of tensors."""
    from torch._functorch import config as functorch
    from torch._inductor.graph import GraphLowering
    from torch._subclasses.fake_tensor import FakeTensorMode

    found: list[str] = []

    class NotRun(Exception): ...

    class Module:
        def call(self, *given: Any) -> None:
            raise NotRun

    def compiled(self: Any) -> Any:
        found.append(self.codegen()[0].value)
        return Module()

    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch, FakeTensorMode(), contextlib.suppress(NotRun):
        patch.setattr(GraphLowering, "compile_to_module", compiled)
        given = [torch.empty(*each.shape, dtype=each.dtype, device="cuda:0", requires_grad=each.requires_grad)
                 for each in shapes]  # fmt: skip
        with functorch.patch(force_non_lazy_backward_lowering=True, enable_autograd_cache=False):
            torch.compile(function)(*given)
    return found


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


def pretend_driver(patch: pytest.MonkeyPatch) -> None:
    """Below an answer."""
    patch.setattr(machines, "built", built)
    patch.setattr(machines, "context", lambda device: 0)
    patch.setattr(machines, "capturing", lambda stream, device: False)
