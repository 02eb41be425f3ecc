"""A slot at a block shape: its grid, shared bytes, scalars and buffers worked out, and which shapes there are.

Expressions are worked out in one order: block, grid, shared bytes, scalar values. Each may use what stands before it,
so that no cycle can be written down.
"""

import functools
import struct
from collections.abc import Mapping

from fusiond.model.errors import RequestError
from fusiond.model.language import expressions
from fusiond.model.language.dtypes import DTYPES, is_float, whole_numbers
from fusiond.model.language.expressions import Expression, ExpressionError
from fusiond.model.language.extents import Extent
from fusiond.model.program import Buffer, Bytes, Dim3, Role
from fusiond_hfuse.frontend.fusion_group import FusionSlot, LaunchShape
from fusiond_hfuse.frontend.source_kernel import WARP, KernelArgument, SourceKernel, volume

MAX_BUFFER_BYTES = 2**40
MAX_SHARED_BYTES = 2**20
MAX_GRID = (2**31 - 1, 65535, 65535)


def axes(what: str, shape: Dim3) -> dict[str, int]:
    return {f"{what}.{axis}": length for axis, length in zip("xyz", shape, strict=True)}


def shape_of(slot: FusionSlot, block: Dim3) -> LaunchShape:
    """Grid, shared bytes and scalar values of a slot at a block shape. RequestError names the key that fails."""
    kernel = slot.kernel
    names: dict[str, expressions.Scalar] = {**slot.extents, **axes("block", block)}
    key, where = "grid", kernel.where("grid")
    try:
        lengths = [each.integer(names) for each in kernel.grid]
        for length, most in zip(lengths, MAX_GRID, strict=False):
            if not 1 <= length <= most:
                raise ExpressionError(f"a grid of {lengths} blocks; each length must be from 1 to {most}")
        if lengths[0] % kernel.parsed.cluster:
            raise ExpressionError(f"a grid of {lengths} blocks, in clusters of {kernel.parsed.cluster} along x")
        padded = (*lengths, 1, 1)
        grid = (padded[0], padded[1], padded[2])
        names.update(axes("grid", grid))
        key, where = "shared", kernel.where("shared")
        shared_bytes = kernel.shared.integer(names) + kernel.parsed.moved_bytes
        if not 0 <= shared_bytes <= MAX_SHARED_BYTES:
            raise ExpressionError(f"{shared_bytes} bytes of shared memory, which no block has")
        scalars: dict[str, int | float] = {}
        records: dict[str, Bytes] = {}
        for argument in (*kernel.arguments, *kernel.variables, *kernel.unpassed):
            if argument.value is not None:
                key, where = argument.name, argument.where
                scalars[argument.name] = _scalar(argument.value, argument.dtype, names)
            elif argument.members or argument.hex:
                key, where = argument.name, argument.where
                records[argument.name] = _packed(argument, names)
    except ExpressionError as problem:
        at = f" at the sizes {_said(slot.sizes)} and a block of {'x'.join(map(str, block))}"
        raise RequestError(f"{key}: {problem}{at}", where=where) from None
    return LaunchShape(block=block, grid=grid, shared_bytes=shared_bytes, scalars=scalars, records=records)


def _scalar(value: Expression | float, dtype: str, names: Mapping[str, expressions.Scalar]) -> int | float:
    if isinstance(value, float):
        return value
    number = value.integer(names)
    if is_float(dtype):
        return number if isinstance(number, Extent) else float(number)
    least, most = whole_numbers(dtype)
    if not least <= number <= most:
        raise ExpressionError(f"{number} does not fit {dtype}")
    return number


def _packed(argument: KernelArgument, names: Mapping[str, expressions.Scalar]) -> Bytes:
    """A struct; what lies between its numbers is as its bytes say, or zero, and its addresses are not known yet."""
    data = bytearray.fromhex(argument.hex) if argument.hex else bytearray(argument.bytes)
    numbers = []
    for member in argument.members:
        assert member.dtype is not None  # _record has seen to it
        if member.target is not None:
            continue
        value = _scalar(member.value, member.dtype, names)
        if isinstance(value, Extent):
            numbers.append((member.offset, member.dtype, value))
        else:
            struct.pack_into(f"<{DTYPES[member.dtype].packed}", data, member.offset, value)
    return Bytes(hex=data.hex(), numbers=tuple(numbers))


def buffers_of(slot: FusionSlot) -> tuple[Buffer, ...]:
    """The slot's buffers, named `a.counts`. RequestError for a size that is not one."""
    found = []
    arenas = {each.part_of: slot.named(each.part_of) for each in slot.kernel.buffers if each.part_of}
    for argument in slot.kernel.buffers:
        if argument.buffer is None or argument.elements is None:
            continue
        try:
            elements = argument.elements.integer(slot.extents)
        except ExpressionError as problem:
            raise argument.fail(f"elements: {problem}") from None
        if elements < 1:
            raise argument.fail(
                f"{argument.name} has {elements} elements at the sizes {_said(slot.sizes)}; expected at least 1"
            )
        pattern = argument.buffer
        buffer = Buffer(
            name=slot.named(argument.name), dtype=pattern.dtype, elements=elements, role=pattern.role,
            fill=pattern.fill, compare=pattern.compare, arena=arenas.get(argument.name),
        )  # fmt: skip
        if buffer.size_bytes > MAX_BUFFER_BYTES:
            raise argument.fail(
                f"{argument.name} has {buffer.size_bytes} bytes at the sizes {_said(slot.sizes)}; "
                f"at most {MAX_BUFFER_BYTES} are sane"
            )
        found.append(buffer)
    wholes = {each.name: each for each in found}
    parts = [(each, wholes[slot.named(each.part_of)]) for each in slot.kernel.buffers if each.part_of]
    return (*found, *(_part(slot, argument, whole) for argument, whole in parts))


def _part(slot: FusionSlot, argument: KernelArgument, whole: Buffer) -> Buffer:
    """What lies behind an address in a buffer's memory. RequestError where that is beyond it, or between elements."""
    assert argument.offset is not None
    size = DTYPES[whole.dtype].bytes
    try:
        offset = argument.offset.integer(slot.extents)
    except ExpressionError as problem:
        raise argument.fail(f"offset: {problem}") from None
    if not 0 <= offset < whole.size_bytes or offset % size:
        raise argument.fail(
            f"{argument.name} lies {offset} bytes behind the beginning of {argument.part_of}, which has "
            f"{whole.elements} elements of {size}"
        )
    return Buffer(
        name=slot.named(argument.name), dtype=whole.dtype, elements=whole.elements - offset // size, role=Role.SCRATCH,
        arena=whole.arena, offset_bytes=offset, part_of=whole.name,
    )  # fmt: skip


def _said(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(sizes.items())) or "none"


@functools.lru_cache(maxsize=256)  # asked for many times for each candidate
def thread_counts(slot: FusionSlot, granularity: int, most: int) -> tuple[int, ...]:
    """How many threads a slot's block can have: the given count first, then all others, ascending.

    Stretchable blocks go in steps of `granularity` (Li et al., CGO 2022, section III-B uses 128)."""
    block = slot.kernel.block
    bound = min(most, slot.kernel.parsed.launch_bound or most)
    given = volume(block.shapes[0])
    if block.tune is None:
        counts = [volume(shape) for shape in block.shapes]
    else:
        counts = [given, *(threads for threads in range(granularity, bound + 1, granularity) if block.shape(threads))]
    allowed = {threads for threads in counts if threads <= bound and _launches(slot, threads)}
    return tuple(sorted(allowed, key=lambda threads: (threads != given, threads)))


def shares_a_block(kernel: SourceKernel, threads: int) -> bool:
    """Whether so many threads of a kernel may lie beside another kernel's: a partial barrier counts warps, and a warp
    must not serve two kernels."""
    if kernel.parsed.beside or threads % WARP:
        return False
    x, y, z = kernel.block.shape(threads) or (1, WARP, 1)
    return not kernel.parsed.by_warps or x % WARP == 0 or y * z == 1


def _launches(slot: FusionSlot, threads: int) -> bool:
    """Whether the slot's expressions come to a launch at this block size (a grid of `n // block.x` may come to 0)."""
    shape = slot.kernel.block.shape(threads)
    try:
        return shape is not None and shape_of(slot, shape).blocks > 0
    except RequestError:
        return False
