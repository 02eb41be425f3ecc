"""Global kernels: one value per channel out of all pixels, in two launches.

    first:   each block of threads reduces its share of the pixels to one value     partial[block]
    second:  one block of threads reduces those                                     image[channel]

The order of the operations is fixed by the shape of the launch, so a float sum is the same in every run.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusiond.extents import ceil_div, least
from fusiond.program import Buffer, Role
from fusiond_mincut import bodies
from fusiond_mincut.bodies import STORED, TYPES, constant, offset_name, stage_of, stages
from fusiond_mincut.expr import INT32
from fusiond_mincut.graph import Kernel, Pipeline

MOST_BLOCKS = 1024
PIXELS_PER_THREAD = 16
_BYTES = 4
"""Of what is accumulated: a uint8 is, in 32 bits (the low eight bits of a sum do not depend on the others)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    text: str
    entries: tuple[str, str]
    blocks: int
    """Of the first launch."""
    shared_bytes: int
    partial: Buffer
    """What the first launch leaves to the second: one value per block and channel."""


def shared_bytes(kernel: Kernel, threads: int) -> int:
    """One value for each thread, channel by channel."""
    return threads * _BYTES


def reduction(pipeline: Pipeline, kernel: Kernel, threads: int) -> Reduction:
    """The text of a global kernel for blocks of `threads`."""
    pixels = pipeline.width * pipeline.height
    blocks = least(MOST_BLOCKS, ceil_div(pixels, threads * PIXELS_PER_THREAD))
    held = "float32" if kernel.dtype == "float32" else "int32"
    entries = (f"{kernel.name}_kernel", f"{kernel.name}_finish")
    parts = [
        f"// {kernel.name}: {kernel.reduction} over the pixels of {', '.join(kernel.reads)} in the pipeline"
        f" {pipeline.name}. Written by fusiond.\n",
        bodies.UCHAR,
        bodies.INT,
        "".join(each.text for each in stages(kernel)),
        _block_reduce(kernel, TYPES[held], threads),
        _first(pipeline, kernel, held, entries[0], threads),
        _second(kernel, held, entries[1], threads),
    ]
    return Reduction(
        text="\n".join(parts),
        entries=entries,
        blocks=blocks,
        shared_bytes=shared_bytes(kernel, threads),
        partial=Buffer(name=f"{kernel.name}.partial", dtype=held, elements=blocks * kernel.channels, role=Role.SCRATCH),
    )


def _neutral(kernel: Kernel, held: str) -> str:
    if kernel.reduction == "sum":
        return constant(0, held)
    if held == "int32":
        return constant(INT32[1] if kernel.reduction == "min" else INT32[0], held)
    return "__int_as_float(0x7fc00000)"  # NaN loses against every number


def _combined(kernel: Kernel, held: str, left: str, right: str) -> str:
    if kernel.reduction == "sum":
        return f"{left} + {right}"
    return f"{'f' if held == 'float32' else ''}{kernel.reduction}{'f' if held == 'float32' else ''}({left}, {right})"


def _block_reduce(kernel: Kernel, held: str, threads: int) -> str:
    """A tree over the threads, for any number of them."""
    first = 1 << max(threads - 1, 1).bit_length() - 1
    joined = _combined(kernel, "float32" if held == "float" else "int32", "lanes[i]", "lanes[i + half]")
    return f"""\
// All threads' values in one; the result is in thread 0. `lanes` may be used again afterwards.
__device__ {held} over_the_block({held} mine, {held}* lanes)
{{
    const int i = threadIdx.x;
    lanes[i] = mine;
    __syncthreads();
    for (int half = {first}; half > 0; half /= 2) {{
        if (i < half && i + half < {threads}) lanes[i] = {joined};
        __syncthreads();
    }}
    const {held} all = lanes[0];
    __syncthreads();
    return all;
}}
"""


_LANES = """\
    extern __shared__ __align__(16) unsigned char shared_memory[];
    {held}* const lanes = reinterpret_cast<{held}*>(shared_memory);
"""


def _first(pipeline: Pipeline, kernel: Kernel, held: str, entry: str, threads: int) -> str:
    kind = TYPES[held]
    images = [pipeline.images[name] for name in kernel.reads]
    parameters = [f"const {STORED[each.dtype]}* __restrict__ {each.name}_image" for each in images]
    lines = [f"    {kind} {_total(kernel, c)} = {_neutral(kernel, held)};" for c in range(kernel.channels)]
    # Unsigned: one step beyond the last of almost 2^31 pixels must not be negative.
    lines += [
        f"    const unsigned step = gridDim.x * {threads}, end = pixels;",
        f"    for (unsigned i = blockIdx.x * {threads} + threadIdx.x; i < end; i += step) {{",
    ]
    for channel in range(kernel.channels):
        stage = stages(kernel)[channel if len(kernel.bodies) > 1 else 0]
        reads = []
        for each in stage.pixels:
            image, at = pipeline.images[each.image], channel if each.channel is None else each.channel
            place = "i" if image.channels == 1 else f"i * {image.channels} + {at}"
            reads.append(f"{each.image}_image[{at if image.single else place}]")
        value = f"{stage_of(kernel, channel)}({', '.join(reads)})"
        total = _total(kernel, channel)
        lines.append(f"        {total} = {_combined(kernel, held, total, f'{kind}({value})')};")
    lines.append("    }")
    for channel in range(kernel.channels):
        lines.append(f"    {_total(kernel, channel)} = over_the_block({_total(kernel, channel)}, lanes);")
        place = "blockIdx.x" if kernel.channels == 1 else f"blockIdx.x * {kernel.channels} + {channel}"
        lines.append(f"    if (threadIdx.x == 0) partial[{place}] = {_stored(held, _total(kernel, channel))};")
    return "\n".join([
        f'extern "C" __global__ void __launch_bounds__({threads})',
        f"{entry}({', '.join(parameters)}, {STORED[held]}* __restrict__ partial, int pixels)",
        "{", _LANES.format(held=kind) + "\n".join(lines), "}", "",
    ])  # fmt: skip


def _second(kernel: Kernel, held: str, entry: str, threads: int) -> str:
    kind = TYPES[held]
    lines = []
    for channel in range(kernel.channels):
        total = _total(kernel, channel)
        place = "i" if kernel.channels == 1 else f"i * {kernel.channels} + {channel}"
        found = f"{TYPES[kernel.dtype]}(over_the_block({total}, lanes))"
        lines += [
            f"    {kind} {total} = {_neutral(kernel, held)};",
            f"    for (int i = threadIdx.x; i < blocks; i += {threads})",
            f"        {total} = {_combined(kernel, held, total, f'{kind}(partial[{place}])')};",
            f"    const {TYPES[kernel.dtype]} {offset_name(kernel.name, 0, 0, channel)} = {found};",
            f"    if (threadIdx.x == 0) {kernel.name}_image[{channel}] ="
            f" {_stored(kernel.dtype, offset_name(kernel.name, 0, 0, channel))};",
        ]
    return "\n".join([
        f'extern "C" __global__ void __launch_bounds__({threads})',
        f"{entry}(const {STORED[held]}* __restrict__ partial, {STORED[kernel.dtype]}* __restrict__ {kernel.name}_image,"
        " int blocks)",
        "{", _LANES.format(held=kind) + "\n".join(lines), "}", "",
    ])  # fmt: skip


def _total(kernel: Kernel, channel: int) -> str:
    return f"{kernel.name}_total{bodies.CHANNELS[channel] if kernel.channels > 1 else ''}"


def _stored(dtype: str, value: str) -> str:
    return f"(int){value}" if dtype == "int32" else value
