"""Hysteresis: which pixels hang together with a strong one, through their eight neighbours, over weak ones.

    init     parent[i] = i where the body gives 1 or more, else -1
    merge    each such pixel is united with its neighbours before it (union-find: the root of a tree is its least pixel)
    mark     the root of each pixel of 2 or more is marked
    write    1 where the root is marked

Pixels are united by atomicCAS, in any order; which pixels make a tree does not depend on it.
"""

from __future__ import annotations

from fusiond.codegen.code import Code, cpp
from fusiond.codegen.statements import Statements
from fusiond.language.extents import ceil_div
from fusiond.program import Buffer, Role
from fusiond_mincut.codegen import boundary_stages
from fusiond_mincut.codegen.boundary_stages import Written
from fusiond_mincut.codegen.launches import CudaLaunch
from fusiond_mincut.codegen.stages import STORED, TYPES
from fusiond_mincut.frontend.graph import ImageKernel, Pipeline

_TREES = """\
// The root of a pixel's tree. Other threads may unite trees meanwhile: parents are read by atomics.
__device__ __forceinline__ int root(int* parent, int i)
{
    int above = atomicOr(&parent[i], 0);
    while (above != i) {
        i = above;
        above = atomicOr(&parent[i], 0);
    }
    return i;
}
__device__ __forceinline__ void unite(int* parent, int a, int b)
{
    while (true) {
        a = root(parent, a);
        b = root(parent, b);
        if (a == b) return;
        const int high = max(a, b), low = min(a, b);
        if (atomicCAS(&parent[high], high, low) == high) return;
    }
}
"""


def hysteresis(pipeline: Pipeline, kernel: ImageKernel, threads: int) -> Written:
    """The four kernels of a hysteresis for blocks of `threads`."""
    width, height = pipeline.domain(kernel)
    pixels = width * height
    parent, marked = (f"{kernel.name}.{each}" for each in ("parent", "marked"))
    given, sizes = boundary_stages.parameters(pipeline, kernel), boundary_stages.sizes(pipeline, kernel)
    own, pitches = boundary_stages.value(pipeline, kernel, 0), boundary_stages.pitched(pipeline, kernel)
    least = _line(threads)
    least.line(cpp("parent[i] = {} ? i : -1;", _at_least(kernel, own, 1)))
    least.line("marked[i] = 0;")
    merge = _line(threads)
    merge.line("if (parent[i] < 0) return;")
    merge.line("const int x = i % width, y = i / width;")
    for condition, before in (
        ("x > 0", "i - 1"),
        ("y > 0", "i - width"),
        ("x > 0 && y > 0", "i - width - 1"),
        ("x + 1 < width && y > 0", "i - width + 1"),
    ):
        merge.line(f"if ({condition} && parent[{before}] >= 0) unite(parent, i, {before});")
    mark = _line(threads)
    mark.line(cpp("if (parent[i] >= 0 && {}) atomicOr(&marked[root(parent, i)], 1);", _at_least(kernel, own, 2)))
    write = _line(threads)
    own_place = boundary_stages.place(pipeline, kernel.name, "i", 0)
    write.line(
        f"{kernel.name}_image[{own_place}] = ({STORED[kernel.dtype]})(parent[i] >= 0 && marked[root(parent, i)]);"
    )
    entries = (
        (f"{kernel.name}_init", [*given, "int* parent", "int* marked", *sizes], least, (*kernel.reads, parent, marked)),
        (f"{kernel.name}_merge", ["int* parent", "int width", "int height"], merge, (parent,)),
        (f"{kernel.name}_mark", [*given, "int* parent", "int* marked", *sizes], mark, (*kernel.reads, parent, marked)),
        (
            f"{kernel.name}_kernel",
            ["int* parent", "const int* marked", f"{STORED[kernel.dtype]}* {kernel.name}_image", "int width",
             "int height", *(f"int {name}_pitch" for name in pitches if name == kernel.name)],
            write,
            (parent, marked, kernel.name),
        ),
    )  # fmt: skip
    launches = tuple(
        CudaLaunch(
            entry=name,
            grid=(ceil_div(pixels, threads), 1, 1),
            block=(threads, 1, 1),
            shared_bytes=0,
            images=images,
            reads=0,
            scalars=boundary_stages.scalars(pipeline, kernel) if kernel.reads[0] in images else (width, height),
            pitched=pitches if kernel.reads[0] in images else tuple(each for each in pitches if each in images),
        )
        for name, _, _, images in entries
    )
    parts = [*boundary_stages.head(pipeline, kernel, "hysteresis"), _TREES]
    parts += [boundary_stages.entry(name, threads, parameters, body) for name, parameters, body, _ in entries]
    scratch = tuple(Buffer(name=each, dtype="int32", elements=pixels, role=Role.SCRATCH) for each in (parent, marked))
    return Written(text="\n".join(parts), launches=launches, scratch=scratch)


def _line(threads: int) -> Statements:
    body = Statements()
    body.line(f"const unsigned pixel = blockIdx.x * {threads} + threadIdx.x;")
    body.line("if (pixel >= (unsigned)width * height) return;")
    body.line("const int i = pixel;")
    return body


def _at_least(kernel: ImageKernel, value: Code, bound: int) -> Code:
    kind = "float" if kernel.dtype.startswith("float") else "int"
    return cpp("({})({}) >= {}", kind, f"{TYPES[kernel.dtype]}({value})", bound)
