"""Global kernels: one value per channel out of all pixels, in two launches.

    first:   each block of threads reduces its share of the pixels to one value     partial[block]
    second:  one block of threads reduces those                                     image[channel]

The order of the operations is fixed by the shape of the launch, so a float sum is the same in every run.
"""

from fusiond.model.codegen.code import Code, call, cpp
from fusiond.model.codegen.operators import atom, cast
from fusiond.model.codegen.statements import Statements, function
from fusiond.model.language.extents import ceil_div, least
from fusiond.model.program import Buffer, Role
from fusiond_mincut.codegen import boundary_stages, stages
from fusiond_mincut.codegen.boundary_stages import CudaLaunch, Written
from fusiond_mincut.codegen.stages import STORED, TYPES, constant, offset_name
from fusiond_mincut.frontend.expr import INT32
from fusiond_mincut.frontend.graph import ImageKernel, Pipeline

MOST_BLOCKS = 1024
PIXELS_PER_THREAD = 16
_BYTES = 4  #: Of what is accumulated: a uint8 is, in 32 bits (the low eight bits of a sum do not depend on the others)


def shared_bytes(kernel: ImageKernel, threads: int) -> int:
    """One value for each thread, channel by channel."""
    return threads * _BYTES


def reduction(pipeline: Pipeline, kernel: ImageKernel, threads: int) -> Written:
    """The two kernels of a reduction for blocks of `threads`."""
    width, height = pipeline.domain(kernel)
    blocks = least(MOST_BLOCKS, ceil_div(width * height, threads * PIXELS_PER_THREAD))
    held = boundary_stages.accumulated(kernel)
    entries = (f"{kernel.name}_kernel", f"{kernel.name}_finish")
    parts = [
        *boundary_stages.head(pipeline, kernel, str(kernel.reduction)),
        _block_reduce(kernel, held, threads),
        _first(pipeline, kernel, held, entries[0], threads),
        _second(kernel, held, entries[1], threads),
    ]
    # What the first launch leaves to the second: one value per block and channel.
    partial = Buffer(name=f"{kernel.name}.partial", dtype=held, elements=blocks * kernel.channels, role=Role.SCRATCH)
    bytes_ = shared_bytes(kernel, threads)
    first = boundary_stages.launch(pipeline, kernel, entries[0], blocks, threads, partial.name, shared_bytes=bytes_)
    second = CudaLaunch(
        entry=entries[1],
        grid=(1, 1, 1),
        block=(threads, 1, 1),
        shared_bytes=bytes_,
        images=(partial.name, kernel.name),
        scalars=(blocks,),
    )
    return Written(text="\n".join(parts), launches=(first, second), scratch=(partial,))


def _neutral(kernel: ImageKernel, held: str) -> Code:
    if kernel.reduction == "sum":
        return constant(0, held)
    if held == "int32":
        return constant(INT32[1] if kernel.reduction == "min" else INT32[0], held)
    return Code("__int_as_float(0x7fc00000)")  # NaN loses against every number


def _combined(kernel: ImageKernel, held: str, left: str, right: str) -> Code:
    if kernel.reduction == "sum":
        return cpp("{} + {}", left, right)
    return call(f"f{kernel.reduction}f" if held == "float32" else str(kernel.reduction), left, right)


def _block_reduce(kernel: ImageKernel, held: str, threads: int) -> str:
    """A tree over the threads, for any number of them."""
    kind, first = TYPES[held], 1 << max(threads - 1, 1).bit_length() - 1
    body = Statements()
    body.lines("const int i = threadIdx.x;", "lanes[i] = mine;", "__syncthreads();")
    loop = body.block(f"for (int half = {first}; half > 0; half /= 2)")
    both = _combined(kernel, held, "lanes[i]", "lanes[i + half]")
    loop.lines(f"if (i < half && i + half < {threads}) lanes[i] = {both};", "__syncthreads();")
    body.lines(f"const {kind} all = lanes[0];", "__syncthreads();", "return all;")
    text = function(f"__device__ {kind} over_the_block", (f"{kind} mine", f"{kind}* lanes"), body)
    return f"// All threads' values in one; the result is in thread 0. `lanes` may be used again afterwards.\n{text}"


def _body(kind: str) -> Statements:
    """The body of a kernel, with memory for `over_the_block`."""
    body = Statements()
    body.line("extern __shared__ __align__(16) unsigned char shared_memory[];")
    body.line(f"{kind}* const lanes = reinterpret_cast<{kind}*>(shared_memory);")
    return body


def _first(pipeline: Pipeline, kernel: ImageKernel, held: str, entry: str, threads: int) -> str:
    kind = TYPES[held]
    body = _body(kind)
    body.lines(*(f"{kind} {_total(kernel, c)} = {_neutral(kernel, held)};" for c in range(kernel.channels)))
    loop = boundary_stages.all_pixels(body, threads)
    for channel in range(kernel.channels):
        total, value = _total(kernel, channel), boundary_stages.value(pipeline, kernel, channel)
        loop.line(f"{total} = {_combined(kernel, held, total, call(kind, value))};")
    for channel in range(kernel.channels):
        total, place = _total(kernel, channel), _place("blockIdx.x", kernel.channels, channel)
        body.line(f"{total} = over_the_block({total}, lanes);")
        body.line(f"if (threadIdx.x == 0) partial[{place}] = {_stored(held, total)};")
    given = boundary_stages.parameters(pipeline, kernel, f"{STORED[held]}* __restrict__ partial")
    return boundary_stages.entry(entry, threads, given, body)


def _second(kernel: ImageKernel, held: str, entry: str, threads: int) -> str:
    kind = TYPES[held]
    body = _body(kind)
    for channel in range(kernel.channels):
        total, name = _total(kernel, channel), offset_name(kernel.name, 0, 0, channel)
        partial = call(kind, f"partial[{_place('i', kernel.channels, channel)}]")
        body.line(f"{kind} {total} = {_neutral(kernel, held)};")
        body.line(f"for (int i = threadIdx.x; i < blocks; i += {threads})")
        body.line(f"    {total} = {_combined(kernel, held, total, partial)};")
        found = body.declare(TYPES[kernel.dtype], name, f"{TYPES[kernel.dtype]}(over_the_block({total}, lanes))")
        body.line(cpp("if (threadIdx.x == 0) {}_image[{}] = {};", kernel.name, channel, _stored(kernel.dtype, found)))
    parameters = [f"const {STORED[held]}* __restrict__ partial", f"{STORED[kernel.dtype]}* __restrict__ "
                  f"{kernel.name}_image", "int blocks"]  # fmt: skip
    return boundary_stages.entry(entry, threads, parameters, body)


def _place(block: str, channels: int, channel: int) -> str:
    return block if channels == 1 else f"{block} * {channels} + {channel}"


def _total(kernel: ImageKernel, channel: int) -> str:
    return f"{kernel.name}_total{stages.CHANNELS[channel] if kernel.channels > 1 else ''}"


def _stored(dtype: str, value: str) -> Code:
    """A value as a pixel of an image."""
    return cast("int", atom(value)).code if dtype == "int32" else cpp("{}", value)
