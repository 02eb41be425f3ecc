"""Memory layout of a kernel: module variables, parameters, shared and local arrays, registers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusiond.model.ptx import flat
from fusiond.model.ptx.flat import PtxKernel, PtxModule, PtxVariable
from fusiond.model.ptx.operands import PtxName
from fusiond.model.ptx.tree import SIZES

ALIGNMENT = 256  #: Of buffers and of variables in global memory, in bytes: as the driver's allocations are
REGISTER_BYTES = {0: 4, 1: 128, 2: 128, 4: 128, 8: 256, 16: 512}
"""A warp's, by the bytes of one lane's: predicates are a mask, no register has less than 32 bits a lane,
and one of 128 is two of 64."""


class PtxImage:
    """A module's variables: those in global memory each for itself, constants in one bank."""

    def __init__(self, module: PtxModule, allocate: Callable[[int], NDArray[np.uint8]] | None = None) -> None:
        """`allocate`: zeros of so many bytes, on a boundary of 256; where memory is shared with somebody else."""
        allocate = allocate or aligned
        self.functions = function_addresses(module)
        self.constants, size = placed(each for each in module.variables if each.space == "const")
        self.bank: NDArray[np.uint8] = allocate(max(size, 1))
        self.globals = {
            each.name: allocate(max(each.size_bytes, 1))[: each.size_bytes]
            for each in module.variables
            if each.space == "global"
        }
        for each in module.variables:
            if each.space in ("global", "const"):
                self._initialise(each)

    def view(self, variable: PtxVariable) -> NDArray[np.uint8]:
        """A variable's bytes."""
        if variable.space == "global":
            return self.globals[variable.name]
        begin = self.constants[variable.name]
        return self.bank[begin : begin + variable.size_bytes]

    def address(self, name: str) -> int:
        """The generic address of a variable, or what stands for that of a function; KeyError when it is none of the
        module's."""
        if name in self.globals:
            return int(self.globals[name].ctypes.data)
        if name in self.functions:
            return self.functions[name]
        return int(self.bank.ctypes.data) + self.constants[name]

    def _number(self, value: PtxName) -> int:
        address = self.address(value.name) + value.offset
        return (address & value.mask) >> (value.mask & -value.mask).bit_length() - 1 if value.mask else address

    def _initialise(self, variable: PtxVariable) -> None:
        size, view = SIZES[variable.type], self.view(variable)
        for k, value in enumerate(variable.values):
            number = self._number(value) if isinstance(value, PtxName) else value
            view[k * size : (k + 1) * size] = np.frombuffer(
                (number & (2 ** (8 * size) - 1)).to_bytes(size, "little"), np.uint8
            )


def aligned(size: int) -> NDArray[np.uint8]:
    """Zeros whose first is on a boundary of 256 bytes."""
    room = np.zeros(size + ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % ALIGNMENT
    return room[begin : begin + size]


def function_addresses(module: PtxModule) -> dict[str, int]:
    """What stands for the addresses of functions: numbers below all memory, since nothing is read there."""
    return {name: 16 * number for number, name in enumerate(module.functions, 1)}


def placed(variables: Iterable[PtxVariable]) -> tuple[dict[str, int], int]:
    """One after another, each at its alignment; those without a length behind all. Offsets, and the end."""
    found: dict[str, int] = {}
    end = 0
    known = list(variables)
    for each in [*(v for v in known if v.elements is not None), *(v for v in known if v.elements is None)]:
        end = -(-end // each.alignment) * each.alignment
        found[each.name] = end
        end += each.size_bytes
    return found, end


@dataclass(frozen=True, slots=True)
class PtxLayout:
    """Of one kernel, in bytes."""

    parameters: Mapping[str, int]
    parameter_bytes: int
    shared: Mapping[str, int]
    shared_bytes: int  #: Static; dynamic shared memory begins here
    local: Mapping[str, int]  #: What calls hand over is among it
    local_bytes: int


def of_kernel(module: PtxModule, kernel: PtxKernel) -> PtxLayout:
    used = {each for i in kernel.instructions for operand in i.operands for each in flat.names(operand)}
    shared = [each for each in (*module.variables, *kernel.variables) if each.space == "shared" and each.name in used]
    parameters, parameter_bytes = placed(kernel.parameters)
    offsets, shared_bytes = placed(shared)
    local, local_bytes = placed(each for each in kernel.variables if each.space in ("local", "param"))
    return PtxLayout(parameters, parameter_bytes, offsets, shared_bytes, local, -(-local_bytes // 16) * 16)
