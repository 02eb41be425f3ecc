"""An answer as a function of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from fusiond.build import gxx
from fusiond.service.frameworks import DTYPES
from fusiond.service.frameworks import launching as plans
from fusiond.service.frameworks.launching import Unusable
from fusiond.service.frameworks.region_answers import Found
from fusiond.service.frameworks.running import CudaMachine, LaunchFailed, Machine, Processor, StepPlan
from fusiond.torch.graphs import Tensor, inverse

ALIGNMENT = 16  #: Bytes: the widest access of a kernel
_DTYPES = {hlo: getattr(torch, name) for name, hlo in DTYPES.items()}


def built(found: Found, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> RegionCode:
    """The code of an answer for a region of such inputs and outputs. Unusable where it cannot be launched here."""
    assert found.program is not None
    plan = plans.flat(found.program, *plans.argument_names(len(inputs), len(outputs)))
    device = torch.device(outputs[0].device)
    if device.type == "cpu":
        paths, entries = plans.built_for_cpu(found.program)
        return RegionCode(StepPlan(plan, Processor(gxx.scheduler(), paths, entries, plan)), inputs, outputs, device)
    if found.arch is None:
        raise Unusable("the answer is of no GPU")
    here = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    if found.arch.rstrip("af") != here:
        raise Unusable(f"the answer is for {found.arch}, and {device} is {here}")
    cubins, symbols = plans.built_for_gpu(found.program, found.arch)
    with torch.cuda.device(device):
        torch.empty(1, device=device)  # makes its context current
        machine: Machine = CudaMachine(cubins, symbols, plan)
    return RegionCode(StepPlan(plan, machine), inputs, outputs, device)


class RegionCode:
    """A plan, and how its arguments lie in memory."""

    def __init__(self, plan: StepPlan, inputs: Sequence[Tensor], outputs: Sequence[Tensor], device: Any) -> None:
        self.problem = ""  #: Why it is not launched any more
        self._plan, self._device = plan, device
        self._inputs = [(each.dims, _DTYPES[each.dtype], _turned(each, each.order)) for each in inputs]
        self._outputs = [
            ([each.dims[at] for at in each.order], _DTYPES[each.dtype], _turned(each, inverse(each.order)))
            for each in outputs
        ]

    def __call__(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """The results. LaunchFailed where something is not as it was when the question was asked, or the driver says
        no."""
        given = [self._stored(each, *wanted) for each, wanted in zip(tensors, self._inputs, strict=True)]
        made = [torch.empty(dims, dtype=dtype, device=self._device) for dims, dtype, _ in self._outputs]
        scratch = [torch.empty(math.ceil(each), dtype=torch.uint8, device=self._device) for each in self._plan.scratch]
        addresses = [each.data_ptr() for each in (*given, *made, *scratch)]
        if self._device.type == "cpu":
            self._plan.run(addresses)
        else:
            with torch.cuda.device(self._device):
                self._plan.run(addresses, torch.cuda.current_stream(self._device).cuda_stream)
        # The allocator hands memory that is let go here to later work of the same stream only.
        return tuple(
            each if back is None else each.permute(back) for each, (_, _, back) in zip(made, self._outputs, strict=True)
        )

    def _stored(self, tensor: Any, dims: tuple[int, ...], dtype: Any, order: Sequence[int] | None) -> Any:
        if tuple(tensor.shape) != dims or tensor.dtype != dtype or tensor.device.type != self._device.type:
            raise LaunchFailed(f"a {tensor.dtype}{list(tensor.shape)} on {tensor.device} where {dtype}{list(dims)} was")
        tensor = tensor.detach().resolve_conj().resolve_neg()  # views may say so in place of their memory
        stored = (tensor if order is None else tensor.permute(order)).contiguous()
        return stored if stored.data_ptr() % ALIGNMENT == 0 else stored.clone()


def _turned(tensor: Tensor, order: Sequence[int]) -> Sequence[int] | None:
    """None where a tensor lies row by row: then nothing is permuted."""
    return None if tensor.order == tuple(range(len(tensor.dims))) else order
