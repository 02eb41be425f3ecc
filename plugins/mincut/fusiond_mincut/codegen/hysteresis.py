"""Hysteresis: which pixels hang together with a strong one, through their eight neighbours, over weak ones.

    init     parent[i] = i where the body gives 1 or more, else -1
    merge    each such pixel is united with its neighbours before it (union-find: the root of a tree is its least pixel)
    mark     the root of each pixel of 2 or more is marked
    write    1 where the root is marked

Pixels are united by atomicCAS, in any order; which pixels make a tree does not depend on it.
"""

import dataclasses

from fusiond.model.codegen.code import Code, cpp
from fusiond.model.codegen.statements import Statements
from fusiond.model.language.extents import ceil_div
from fusiond.model.program import Buffer, Role
from fusiond_mincut.codegen import boundary_stages
from fusiond_mincut.codegen.boundary_stages import Written
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
    own = boundary_stages.value(pipeline, kernel, 0)
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
    blocks, pitches = ceil_div(pixels, threads), boundary_stages.pitched(pipeline, kernel)
    given = boundary_stages.parameters(pipeline, kernel, "int* parent", "int* marked")
    own_pitch = tuple(name for name in pitches if name == kernel.name)
    stored = f"{STORED[kernel.dtype]}* {kernel.name}_image"
    sides = "int width", "int height"
    last = ["int* parent", "const int* marked", stored, *sides, *(f"int {each}_pitch" for each in own_pitch)]
    stages = {"init": (given, least), "merge": (["int* parent", *sides], merge), "mark": (given, mark),
              "kernel": (last, write)}  # fmt: skip
    of_all = {
        name: boundary_stages.launch(pipeline, kernel, f"{kernel.name}_{name}", blocks, threads, parent, marked)
        for name in stages
    }
    inner = {"merge": ((parent,), ()), "kernel": ((parent, marked, kernel.name), own_pitch)}
    """Those that read no image of the pipeline."""
    for name, (images, pitched) in inner.items():
        of_all[name] = dataclasses.replace(of_all[name], images=images, scalars=(width, height), pitched=pitched)
    parts = [*boundary_stages.head(pipeline, kernel, "hysteresis"), _TREES]
    parts += [boundary_stages.entry(f"{kernel.name}_{name}", threads, *each) for name, each in stages.items()]
    scratch = tuple(Buffer(name=each, dtype="int32", elements=pixels, role=Role.SCRATCH) for each in (parent, marked))
    return Written(text="\n".join(parts), launches=tuple(of_all.values()), scratch=scratch)


def _line(threads: int) -> Statements:
    body = Statements()
    body.line(f"const unsigned pixel = blockIdx.x * {threads} + threadIdx.x;")
    body.line("if (pixel >= (unsigned)width * height) return;")
    body.line("const int i = pixel;")
    return body


def _at_least(kernel: ImageKernel, value: Code, bound: int) -> Code:
    kind = "float" if kernel.dtype.startswith("float") else "int"
    return cpp("({})({}) >= {}", kind, f"{TYPES[kernel.dtype]}({value})", bound)
