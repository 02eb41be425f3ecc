"""Scans: running sums along the rows or the columns of an image, each with its own pixel in it.

    along x    a block of threads goes along a row, as many pixels at a time as it has threads
    along y    a block of 32 x 8 threads goes down 32 columns, 64 rows at a time, 8 of them to a thread

The order of the additions is fixed, so sums of floats are the same in every run.
"""

import dataclasses

from fusiond.model.codegen.code import cpp
from fusiond.model.codegen.operators import atom, cast
from fusiond.model.codegen.statements import Statements
from fusiond.model.language.extents import ceil_div
from fusiond_mincut.codegen import boundary_stages, stages
from fusiond_mincut.codegen.boundary_stages import Written
from fusiond_mincut.codegen.stages import STORED, TYPES
from fusiond_mincut.frontend.graph import ImageKernel, Pipeline

COLUMNS, LINES, ROWS = 32, 8, 8
"""Of a block that goes down: columns, threads one below the other, rows to each of them."""


def scan(pipeline: Pipeline, kernel: ImageKernel, threads: int) -> Written:
    """The kernel of a scan; `threads` are those of a block that goes along a row."""
    name, (width, height) = f"{kernel.name}_kernel", pipeline.domain(kernel)
    image = f"{STORED[kernel.dtype]}* __restrict__ {kernel.name}_image"
    if kernel.reduction == "x":
        body = _across(pipeline, kernel, threads)
        launch = boundary_stages.launch(pipeline, kernel, name, height, threads, kernel.name)
    else:
        body, threads = _down(pipeline, kernel), COLUMNS * LINES
        launch = boundary_stages.launch(pipeline, kernel, name, ceil_div(width, COLUMNS), threads, kernel.name)
        launch = dataclasses.replace(launch, block=(COLUMNS, LINES, 1))
    text = boundary_stages.entry(name, threads, boundary_stages.parameters(pipeline, kernel, image), body)
    what = f"running sums along {kernel.reduction}"
    return Written(text="\n".join([*boundary_stages.head(pipeline, kernel, what), text]), launches=(launch,))


def _across(pipeline: Pipeline, kernel: ImageKernel, threads: int) -> Statements:
    kind = TYPES[boundary_stages.accumulated(kernel)]
    zero = stages.constant(0, boundary_stages.accumulated(kernel))
    body = Statements()
    body.line(f"__shared__ {STORED[boundary_stages.accumulated(kernel)]} lanes[{threads}];")
    body.line("const int thread = threadIdx.x, y = blockIdx.x;")
    for channel in range(kernel.channels):
        own = body.block("")
        own.line(cpp("{} before = {};", kind, zero))
        loop = own.block(f"for (int start = 0; start < width; start += {threads})")
        loop.line("const int x = start + thread, i = y * width + x;")
        loop.line(cpp("{} sum = {};", kind, zero))
        loop.line(cpp("if (x < width) sum = {}({});", kind, boundary_stages.value(pipeline, kernel, channel)))
        loop.line(f"lanes[thread] = {_plain(kernel, 'sum')};")
        loop.line("__syncthreads();")
        inner = loop.block(f"for (int distance = 1; distance < {threads}; distance *= 2)")
        inner.line(cpp("const {} left = thread >= distance ? {}(lanes[thread - distance]) : {};", kind, kind, zero))
        inner.lines("__syncthreads();", "sum = sum + left;", f"lanes[thread] = {_plain(kernel, 'sum')};")
        inner.line("__syncthreads();")
        place = boundary_stages.place(pipeline, kernel.name, "i", channel)
        loop.line(f"if (x < width) {kernel.name}_image[{place}] = {_stored(kernel, 'before + sum')};")
        loop.line(f"before = before + {kind}(lanes[{threads - 1}]);")
        loop.line("__syncthreads();")
    return body


def _down(pipeline: Pipeline, kernel: ImageKernel) -> Statements:
    kind = TYPES[boundary_stages.accumulated(kernel)]
    zero = stages.constant(0, boundary_stages.accumulated(kernel))
    body = Statements()
    body.line(f"__shared__ {STORED[boundary_stages.accumulated(kernel)]} lanes[{LINES}][{COLUMNS}];")
    body.line(f"const int tx = threadIdx.x, ty = threadIdx.y, x = blockIdx.x * {COLUMNS} + tx;")
    for channel in range(kernel.channels):
        place = boundary_stages.place(pipeline, kernel.name, "i", channel)
        own = body.block("")
        own.line(cpp("{} before = {};", kind, zero))
        loop = own.block(f"for (int start = 0; start < height; start += {LINES * ROWS})")
        loop.line(cpp("{} sums[{}], sum = {};", kind, ROWS, zero))
        rows = loop.block(f"#pragma unroll\nfor (int row = 0; row < {ROWS}; ++row)")
        rows.line(f"const int y = start + ty * {ROWS} + row, i = y * width + x;")
        value = boundary_stages.value(pipeline, kernel, channel)
        rows.line(cpp("if (x < width && y < height) sum = sum + {}({});", kind, value))
        rows.line("sums[row] = sum;")
        loop.lines(f"lanes[ty][tx] = {_plain(kernel, 'sum')};", "__syncthreads();")
        loop.line(f"{kind} above = before;")
        loop.line(f"for (int line = 0; line < ty; ++line) above = above + {kind}(lanes[line][tx]);")
        loop.line(f"for (int line = 0; line < {LINES}; ++line) before = before + {kind}(lanes[line][tx]);")
        stores = loop.block(f"#pragma unroll\nfor (int row = 0; row < {ROWS}; ++row)")
        stores.line(f"const int y = start + ty * {ROWS} + row, i = y * width + x;")
        stores.line(
            f"if (x < width && y < height) {kernel.name}_image[{place}] = {_stored(kernel, 'above + sums[row]')};"
        )
        loop.line("__syncthreads();")
    return body


def _plain(kernel: ImageKernel, value: str) -> str:
    """What is added up as it lies in shared memory."""
    return f"(int){value}" if boundary_stages.accumulated(kernel) == "int32" else value


def _stored(kernel: ImageKernel, value: str) -> str:
    """A sum as a pixel of the image."""
    kind = STORED[kernel.dtype]
    return str(cast(kind, atom(f"({value})")).code)
