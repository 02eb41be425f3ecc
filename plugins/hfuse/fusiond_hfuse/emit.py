"""Programs: the two kernels one after the other, on two streams, and fused."""

from __future__ import annotations

from collections.abc import Mapping

from fusiond.program import Argument as Passed
from fusiond.program import Buffer, Launch, Pointer, Program, Scalar, Source
from fusiond_hfuse import fuse
from fusiond_hfuse.graph import SLOTS, Argument, Kernel, Pair, Plan, Shape, Slot
from fusiond_hfuse.kernel import buffers_of, define_values, shape_of


def native_source(slot: Slot, threads: int, cap: int | None) -> Source:
    """A kernel's own source: the user's text as it is, with the macros that this block shape asks for."""
    kernel = slot.kernel
    shape = kernel.block.shape(threads)
    if shape is None:
        raise ValueError(f"{kernel.name} has no block of {threads} threads")
    return Source(
        name=f"{slot.letter}_{_file_name(kernel)}",
        text=kernel.unit.text,
        entries=(kernel.instance,),
        register_cap=cap,
        flags=kernel.flags,
        defines=define_values(kernel.defines, slot.sizes, shape, where=kernel.lines.get("defines", kernel.path)),
    )


def unfused(
    pair: Pair, threads: Mapping[str, int], caps: Mapping[str, int | None], *, order: str = "ab", streams: bool = False
) -> Program:
    """Both kernels as they are: one after the other, or each on a stream of its own, launched in `order`."""
    sources = {slot.letter: native_source(slot, threads[slot.letter], caps[slot.letter]) for slot in pair.slots}
    steps = []
    for stream, letter in enumerate(order):
        slot = pair.slot(letter)
        block = slot.kernel.block.shape(threads[letter])
        assert block is not None  # native_source has seen to it
        shape = shape_of(slot, block)
        steps.append(
            Launch(
                name=letter,
                source=sources[letter].name,
                entry=slot.kernel.instance,
                grid=shape.grid,
                block=shape.block,
                shared_bytes=shape.shared_bytes,
                arguments=_arguments(slot, shape),
                stream=stream if streams else 0,
            )
        )
    names = " and ".join(slot.kernel.name for slot in pair.slots)
    return Program(
        name=f"{names}, {'two streams' if streams else 'one after the other'} ({order})",
        buffers=_buffers(pair),
        sources=tuple(sources[letter] for letter in SLOTS),
        steps=tuple(steps),
    )


def fused(pair: Pair, plan: Plan, cap: int | None, version: int) -> Program:
    """One launch that does the work of both. ValueError when the grid is longer than a launch can have."""
    shapes = {side.slot.letter: shape_of(side.slot, side.shape) for side in plan.sides}
    blocks = max(shape.blocks for shape in shapes.values())
    if blocks > 2**31 - 1:
        raise ValueError(f"a fused grid of {blocks} blocks; a launch has at most {2**31 - 1}")
    arguments: list[Passed] = [each for slot in pair.slots for each in _arguments(slot, shapes[slot.letter])]
    for slot in pair.slots:
        lengths = shapes[slot.letter].grid[: len(fuse.grid_axes(slot))]
        arguments += [Scalar(dtype="uint32", value=length) for length in lengths]
    if fuse.uses_offset(plan):
        arguments.append(Scalar(dtype="uint32", value=arena_offset(shapes["a"].shared_bytes)))
    return Program(
        name=f"{' and '.join(slot.kernel.name for slot in pair.slots)}, fused ({plan.kind})",
        buffers=_buffers(pair),
        sources=(fused_source(pair, plan, cap, version),),
        steps=(
            Launch(
                name="fused",
                source="fused",
                entry=fuse.entry_name(plan),
                grid=(blocks, 1, 1),
                block=(plan.threads, 1, 1),
                shared_bytes=arena_bytes(plan, shapes),
                arguments=tuple(arguments),
            ),
        ),
    )


def fused_source(pair: Pair, plan: Plan, cap: int | None, version: int) -> Source:
    return Source(
        name="fused",
        text=fuse.write(plan, version),
        entries=(fuse.entry_name(plan),),
        register_cap=cap,
        flags=pair.slots[0].kernel.flags,
    )


def arena_offset(shared_bytes: int) -> int:
    """Where slot b's part of the arena begins, behind slot a's."""
    return -(-shared_bytes // fuse.ARENA_ALIGNMENT) * fuse.ARENA_ALIGNMENT


def arena_bytes(plan: Plan, shapes: Mapping[str, Shape]) -> int:
    """Dynamic shared memory of the fused kernel. A kernel without a dynamic array gets none, whatever its YAML says."""
    used = [
        shapes[side.slot.letter].shared_bytes if side.slot.kernel.parsed.uses_dynamic_shared else 0
        for side in sorted(plan.sides, key=lambda side: side.slot.letter)
    ]
    return arena_offset(used[0]) + used[1] if fuse.uses_offset(plan) else sum(used)


def _buffers(pair: Pair) -> tuple[Buffer, ...]:
    return tuple(buffer for slot in pair.slots for buffer in buffers_of(slot))


def _arguments(slot: Slot, shape: Shape) -> tuple[Passed, ...]:
    def passed(argument: Argument) -> Passed:
        if argument.buffer is not None:
            return Pointer(buffer=f"{slot.letter}.{argument.name}")
        return Scalar(dtype=argument.dtype, value=shape.scalars[argument.name])

    return tuple(passed(argument) for argument in slot.kernel.arguments)


def _file_name(kernel: Kernel) -> str:
    return "".join(each if each.isalnum() else "_" for each in kernel.name)
