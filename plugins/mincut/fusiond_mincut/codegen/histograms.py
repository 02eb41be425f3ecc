"""Histograms: the element (bin, row) of an int32 image counts the pixels whose bodies give that bin and row.

    clear    every element is 0
    count    each block of threads counts its share of the pixels in shared memory, then adds its counts to the image;
             where the image is too large for that, each pixel is counted in the image

Counts are integers, so the order in which they are added does not matter.
"""

from fusiond.model.codegen.code import cpp
from fusiond.model.codegen.statements import Statements
from fusiond.model.language.extents import ceil_div, least
from fusiond_mincut.codegen import boundary_stages
from fusiond_mincut.codegen.boundary_stages import CudaLaunch, Written
from fusiond_mincut.codegen.reductions import MOST_BLOCKS, PIXELS_PER_THREAD
from fusiond_mincut.frontend.expr import Const
from fusiond_mincut.frontend.graph import ImageKernel, Pipeline

MOST_SHARED = 8192  #: Elements that a block of threads counts in shared memory


def histogram(pipeline: Pipeline, kernel: ImageKernel, threads: int) -> Written:
    """The two kernels of a histogram for blocks of `threads`."""
    width, height = pipeline.domain(kernel)
    bins, rows = pipeline.sides(kernel.name)
    names = f"{kernel.name}_clear", f"{kernel.name}_kernel"
    image = f"int* __restrict__ {kernel.name}_image"
    clear = Statements()
    clear.line(f"const int i = blockIdx.x * {threads} + threadIdx.x;")
    clear.line(f"if (i < bins * rows) {kernel.name}_image[i] = 0;")
    given = boundary_stages.parameters(pipeline, kernel, image, "int bins", "int rows")
    parts = [
        *boundary_stages.head(pipeline, kernel, "a histogram"),
        boundary_stages.entry(names[0], threads, [image, "int bins", "int rows"], clear),
        boundary_stages.entry(names[1], threads, given, _count(pipeline, kernel, threads)),
    ]
    blocks = least(MOST_BLOCKS, ceil_div(width * height, threads * PIXELS_PER_THREAD))
    cleared = CudaLaunch(
        entry=names[0],
        grid=(ceil_div(bins * rows, threads), 1, 1),
        block=(threads, 1, 1),
        images=(kernel.name,),
        scalars=(bins, rows),
    )
    counted = boundary_stages.launch(
        pipeline, kernel, names[1], blocks, threads, kernel.name, first=(bins, rows), shared_bytes=shared_bytes(kernel)
    )
    return Written(text="\n".join(parts), launches=(cleared, counted))


def shared_bytes(kernel: ImageKernel) -> int:
    """Of the counts of a block of threads; 0 where they are counted in the image."""
    assert kernel.bins is not None
    bins, rows = kernel.bins.width, kernel.bins.height
    if not isinstance(bins, Const) or not isinstance(rows, Const):
        return 0
    elements = int(bins.value) * int(rows.value)
    return 4 * elements if elements <= MOST_SHARED else 0


def _count(pipeline: Pipeline, kernel: ImageKernel, threads: int) -> Statements:
    own = shared_bytes(kernel) // 4
    body = Statements()
    to = f"{kernel.name}_image"
    if own:
        to = "counts"
        body.line("extern __shared__ __align__(16) unsigned char shared_memory[];")
        body.line("int* const counts = reinterpret_cast<int*>(shared_memory);")
        body.line(f"for (int i = threadIdx.x; i < {own}; i += {threads}) counts[i] = 0;")
        body.line("__syncthreads();")
    loop = boundary_stages.all_pixels(body, threads)
    values = (boundary_stages.value(pipeline, kernel, each) for each in (0, 1))
    loop.line(cpp("const int bin = (int){}, row = (int){};", *values))
    loop.line("if ((unsigned)bin < (unsigned)bins && (unsigned)row < (unsigned)rows)")
    loop.line(f"    atomicAdd(&{to}[row * bins + bin], 1);")
    if own:
        body.line("__syncthreads();")
        loop = body.block(f"for (int i = threadIdx.x; i < {own}; i += {threads})")
        loop.line(f"if (counts[i] != 0) atomicAdd(&{kernel.name}_image[i], counts[i]);")
    return body
