"""Variables of a source that are structs or hold addresses, as the host sets them: before each run, and not timed.

    __constant__ float* table;   -->   fusiond_set_0<<<1, 1>>>(staged, {address of the buffer});
                                       copy of `staged` to `table`, as cudaMemcpyToSymbol does it

A kernel writes the bytes, since only arguments of a launch know the addresses of buffers; a copy brings them to the
variable, since kernels may not write to constant memory. Both are steps that are not counted, before all others.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from fusiond.model.program import Buffer, Bytes, Copy, Launch, Pointer, Role, Step
from fusiond_hfuse.frontend.fusion_group import FusionSlot, KernelGroup, LaunchShape
from fusiond_hfuse.frontend.source_kernel import KernelArgument, SourceKernel


def structs(kernel: SourceKernel) -> tuple[KernelArgument, ...]:
    return tuple(each for each in kernel.variables if each.members)


def entries(kernel: SourceKernel, letter: str = "") -> tuple[str, ...]:
    """The kernels that write their bytes; with a letter, in the source of several kernels."""
    return tuple(f"fusiond_set_{letter}{'_' if letter else ''}{number}" for number in range(len(structs(kernel))))


def text(kernel: SourceKernel, letter: str = "") -> str:
    """The text of these kernels."""
    return "".join(
        _kernel(name, each.bytes) for name, each in zip(entries(kernel, letter), structs(kernel), strict=True)
    )


def _kernel(name: str, size: int) -> str:
    return (
        f"\n// Writes what the host would copy to a variable.\n"
        f"struct {name}_bytes {{ unsigned char fusiond_of[{size}]; }};\n"
        f'extern "C" __global__ void {name}(unsigned char* fusiond_staged, const {name}_bytes fusiond_values)\n'
        f"{{\n"
        f"    for (int fusiond_i = 0; fusiond_i < {size}; ++fusiond_i)\n"
        f"        fusiond_staged[fusiond_i] = fusiond_values.fusiond_of[fusiond_i];\n"
        f"}}\n"
    )


def buffers(slot: FusionSlot, place: str) -> Iterator[Buffer]:
    """The variables, and where their bytes are staged. `place` stands before the name of a variable of the source."""
    for each in structs(slot.kernel):
        of_each = slot.named(each.name)
        staged = Buffer(name=f"staged.{of_each}", dtype="uint8", elements=each.bytes, role=Role.SCRATCH)
        yield staged
        yield dataclasses.replace(staged, name=f"variable.{of_each}", symbol=f"{place}{each.symbol}")


def steps(group: KernelGroup, shapes: Mapping[str, LaunchShape], places: Mapping[str, str]) -> tuple[Step, ...]:
    """What sets the variables of all slots. `places`: by letter, `source:` and the namespace of the slot there."""
    found: list[Step] = []
    for slot in group.slots:
        source, _, namespace = places[slot.letter].partition(":")
        letter = slot.letter if namespace else ""
        for name, each in zip(entries(slot.kernel, letter), structs(slot.kernel), strict=True):
            of_each = slot.named(each.name)
            found += [
                Launch(
                    name=f"stage.{of_each}", source=source, entry=name, grid=(1, 1, 1), block=(1, 1, 1), counted=False,
                    arguments=(Pointer(buffer=f"staged.{of_each}"), addressed(slot, each, shapes[slot.letter])),
                ),
                Copy(
                    name=f"set.{of_each}", source=(f"staged.{of_each}",), target=(f"variable.{of_each}",), counted=False
                ),
            ]  # fmt: skip
    return tuple(found)


def addressed(slot: FusionSlot, argument: KernelArgument, shape: LaunchShape) -> Bytes:
    """The bytes of a struct, with its buffers."""
    pointers = tuple(
        (each.offset, slot.named(each.target.name)) for each in argument.members if each.target is not None
    )
    return dataclasses.replace(shape.records[argument.name], pointers=pointers)
