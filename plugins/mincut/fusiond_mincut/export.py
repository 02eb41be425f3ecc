"""What a user needs to run a partition of a pipeline from their own program, for other sizes too.

BLOCK.cu        the source of each block, whatever the image's size
PIPELINE.h      for C++: the buffers with their elements, and the grid of each launch; under nvcc also a function that
                launches all blocks in order
launch.py       the same for Python and PyCUDA: launch(kernels, arguments, sizes, stream)
README.txt      how the pieces go together
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusiond_mincut import reductions
from fusiond_mincut.blocks import Partition
from fusiond_mincut.bodies import STORED
from fusiond_mincut.emit import FLAGS, CudaKernel, CudaLaunch
from fusiond_mincut.graph import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class _Buffer:
    name: str
    dtype: str
    channels: int
    kind: str
    """`image` (elements per pixel), `single` (elements in all), or `partial` (elements per block of a reduction)."""
    use: str
    """input, output or scratch."""

    @property
    def variable(self) -> str:
        """What no other buffer is called, and no word of C++ is."""
        return self.name.replace(".", "_") if self.kind == "partial" else f"{self.name}_buffer"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    source: str
    launch: CudaLaunch
    kind: str
    """`pixels` (a block of threads computes a rectangle), `reduce`, or `finish` (one block for what is left)."""
    rectangle: tuple[int, int]


def files(pipeline: Pipeline, partition: Partition, kernels: tuple[CudaKernel, ...]) -> Mapping[str, str]:
    """Name -> text of every file; `kernels` are those of the partition's blocks, in its order."""
    buffers = _buffers(pipeline, partition, kernels)
    launches = [each for kernel in kernels for each in _launches(pipeline, kernel)]
    return {
        **{f"{kernel.name}.cu": kernel.text for kernel in kernels},
        _header_name(pipeline): _header(pipeline, buffers, launches),
        "launch.py": _module(pipeline, partition, buffers, launches),
        "README.txt": _readme(pipeline, partition, buffers, launches),
    }


def _buffers(pipeline: Pipeline, partition: Partition, kernels: tuple[CudaKernel, ...]) -> list[_Buffer]:
    found = []
    for name in [*(each.name for each in pipeline.inputs), *(n for block in partition.blocks for n in block.outputs)]:
        image = pipeline.images[name]
        use = "output" if name in pipeline.outputs else "scratch" if pipeline.is_kernel(name) else "input"
        kind = "single" if image.single else "image"
        found.append(_Buffer(name=name, dtype=image.dtype, channels=image.channels, kind=kind, use=use))
    for kernel in kernels:
        for each in kernel.scratch:
            channels = pipeline.images[each.name.partition(".")[0]].channels
            found.append(_Buffer(name=each.name, dtype=each.dtype, channels=channels, kind="partial", use="scratch"))
    return found


def _launches(pipeline: Pipeline, kernel: CudaKernel) -> list[_Launch]:
    if len(kernel.launches) == 2:
        kinds = ("reduce", "finish")
        return [
            _Launch(source=kernel.name, launch=each, kind=kind, rectangle=(0, 0))
            for each, kind in zip(kernel.launches, kinds, strict=True)
        ]
    (launch,) = kernel.launches
    return [_Launch(source=kernel.name, launch=launch, kind="pixels", rectangle=kernel.rectangle)]


# --- Python ---------------------------------------------------------------------------------------------


def _module(pipeline: Pipeline, partition: Partition, buffers: list[_Buffer], launches: list[_Launch]) -> str:
    lines = [
        f'"""{pipeline.name} as {partition}, written by fusiond. Needs NumPy; load and launch need PyCUDA."""',
        "",
        "import pathlib",
        "",
        "import numpy as np",
        "",
        f"SIZES = {{'width': {pipeline.width}, 'height': {pipeline.height}}}",
        "# name: (dtype, channels, kind, use); a pixel's channels lie side by side",
        "BUFFERS = {",
        *(f"    {each.name!r}: ({each.dtype!r}, {each.channels}, {each.kind!r}, {each.use!r})," for each in buffers),
        "}",
        "# (source, entry, kind, pixels of a block, block, shared bytes, buffers)",
        "LAUNCHES = [",
        *(
            f"    ({each.source!r}, {each.launch.entry!r}, {each.kind!r}, {each.rectangle}, {each.launch.block},"
            f" {each.launch.shared_bytes}, {each.launch.images}),"
            for each in launches
        ),
        "]",
        _MODULE,
    ]
    return "\n".join(lines).replace("@MOST@", str(reductions.MOST_BLOCKS)).replace(
        "@PER@", str(reductions.PIXELS_PER_THREAD)
    )  # fmt: skip


_MODULE = '''

def _ceil_div(a, b):
    return -(-a // b)


def _reduce_blocks(pixels, threads):
    return max(1, min(@MOST@, _ceil_div(pixels, threads * @PER@)))


def elements(sizes):
    """How many elements each buffer has at these sizes."""
    pixels = {**SIZES, **sizes}["width"] * {**SIZES, **sizes}["height"]
    found = {}
    for name, (_, channels, kind, _) in BUFFERS.items():
        if kind == "partial":
            (block,) = [each[4] for each in LAUNCHES if each[2] == "reduce" and name in each[6]]
            found[name] = channels * _reduce_blocks(pixels, block[0] * block[1])
        else:
            found[name] = channels * (pixels if kind == "image" else 1)
    return found


def shapes(sizes):
    """(source, entry, grid, block, shared bytes, buffers, scalars) of each launch at these sizes, in order."""
    width, height = {**SIZES, **sizes}["width"], {**SIZES, **sizes}["height"]
    blocks = 1
    for source, entry, kind, rectangle, block, shared, buffers in LAUNCHES:
        if kind == "pixels":
            grid = (_ceil_div(width, rectangle[0]), _ceil_div(height, rectangle[1]), 1)
            scalars = (width, height)
        elif kind == "reduce":
            blocks = _reduce_blocks(width * height, block[0] * block[1])
            grid, scalars = (blocks, 1, 1), (width * height,)
        else:
            grid, scalars = (1, 1, 1), (blocks,)
        yield source, entry, grid, block, shared, buffers, scalars


def load(folder="."):
    """Entry -> kernel, from the SOURCE.cubin of each source; a CUDA context must be current."""
    import pycuda.driver as cuda

    modules = {source: cuda.module_from_file(str(pathlib.Path(folder) / f"{source}.cubin"))
               for source in dict.fromkeys(each[0] for each in LAUNCHES)}
    return {each[1]: modules[each[0]].get_function(each[1]) for each in LAUNCHES}


def launch(kernels, arguments, sizes, stream=None):
    """Enqueue all launches. `arguments`: a device pointer for each name of BUFFERS. Sizes left out: as in SIZES."""
    missing = [name for name in BUFFERS if name not in arguments]
    if missing:
        raise KeyError(f"no device pointer for {missing}")
    for _, entry, grid, block, shared, buffers, scalars in shapes(sizes):
        passed = [np.uintp(int(arguments[name])) for name in buffers] + [np.int32(each) for each in scalars]
        if shared > 48 * 1024:
            import pycuda.driver as cuda

            kernels[entry].set_attribute(cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
        kernels[entry](*passed, grid=grid, block=block, shared=shared, stream=stream)
'''


# --- C++ ------------------------------------------------------------------------------------------------


def _header_name(pipeline: Pipeline) -> str:
    """A block's pipeline is named `harris:sx+gx`; a colon is no part of a file's name for make and Windows."""
    return f"{pipeline.name.replace(':', '-')}.h"


def _header(pipeline: Pipeline, buffers: list[_Buffer], launches: list[_Launch]) -> str:
    by_name = {each.name: each for each in buffers}
    lines = [
        f"// The pipeline {pipeline.name}, written by fusiond: its buffers and launches at any size.",
        "#pragma once",
        "",
        "namespace fused {",
        "",
        "typedef unsigned char uchar;",
        "",
        "struct Sizes {",
        f"    int width = {pipeline.width}, height = {pipeline.height};",
        "};",
        "",
        "struct Grid {",
        "    unsigned x, y;",
        "};",
        "",
        "inline int ceil_div(int a, int b) { return a / b + (a % b != 0); }",
        "",
        "// Device pointers; `elements` says how many elements each needs. A pixel's channels lie side by side.",
        "struct Buffers {",
        *(
            f"    {'const ' if each.use == 'input' else ''}{STORED[each.dtype]}* {each.variable};  // {each.use}"
            for each in buffers
        ),
        "};",
        "",
        "struct Elements {",
        *(f"    long long {each.variable};" for each in buffers),
        "};",
        "",
        "inline int reduce_blocks(Sizes sizes, int threads)",
        "{",
        f"    const int blocks = ceil_div(sizes.width * sizes.height, threads * {reductions.PIXELS_PER_THREAD});",
        f"    return blocks < {reductions.MOST_BLOCKS} ? blocks : {reductions.MOST_BLOCKS};",
        "}",
        "",
        "inline Elements elements(Sizes sizes)",
        "{",
        "    const long long pixels = (long long)sizes.width * sizes.height;",
        "    Elements found;",
        "    (void)pixels;",
        *(f"    found.{each.variable} = {_count(each, launches)};" for each in buffers),
        "    return found;",
        "}",
    ]
    for each in launches:
        lines += ["", f"inline Grid {each.launch.entry}_grid(Sizes sizes)", "{"]
        if each.kind == "pixels":
            x, y = each.rectangle
            lines.append(f"    return {{(unsigned)ceil_div(sizes.width, {x}), (unsigned)ceil_div(sizes.height, {y})}};")
        elif each.kind == "reduce":
            lines.append(f"    return {{(unsigned)reduce_blocks(sizes, {_threads(each)}), 1}};")
        else:
            lines += ["    (void)sizes;", "    return {1, 1};"]
        lines.append("}")
    lines += ["", "}  // namespace fused", "", "#ifdef __CUDACC__", ""]
    for each in launches:
        lines.append(f'extern "C" __global__ void {each.launch.entry}({_parameters(each, by_name)});')
    lines += ["", "namespace fused {", "", "inline cudaError_t launch(const Buffers& buffers, Sizes sizes,"]
    lines += ["    cudaStream_t stream = nullptr)", "{"]
    blocks = "0"
    for each in launches:
        entry, shared = each.launch.entry, each.launch.shared_bytes
        x, y, _ = each.launch.block
        if shared > 48 * 1024:
            lines += [
                f"    if (const cudaError_t problem = cudaFuncSetAttribute(::{entry},",
                f"            cudaFuncAttributeMaxDynamicSharedMemorySize, {shared}))",
                "        return problem;",
            ]
        arguments = [f"buffers.{by_name[name].variable}" for name in each.launch.images]
        if each.kind == "pixels":
            arguments += ["sizes.width", "sizes.height"]
        elif each.kind == "reduce":
            arguments.append("sizes.width * sizes.height")
            blocks = f"reduce_blocks(sizes, {_threads(each)})"
        else:
            arguments.append(blocks)
        lines += [
            f"    const Grid {entry}_size = {entry}_grid(sizes);",
            f"    ::{entry}<<<dim3({entry}_size.x, {entry}_size.y), dim3({x}, {y}), {shared}, stream>>>(",
            f"        {', '.join(arguments)});",
        ]
    lines += ["    return cudaGetLastError();", "}", "", "}  // namespace fused", "", "#endif", ""]
    return "\n".join(lines)


def _threads(launch: _Launch) -> int:
    x, y, _ = launch.launch.block
    return x * y


def _count(buffer: _Buffer, launches: list[_Launch]) -> str:
    if buffer.kind == "single":
        return str(buffer.channels)
    if buffer.kind == "image":
        return "pixels" if buffer.channels == 1 else f"{buffer.channels} * pixels"
    (launch,) = (each for each in launches if each.kind == "reduce" and buffer.name in each.launch.images)
    return f"{buffer.channels} * reduce_blocks(sizes, {_threads(launch)})"


def _parameters(launch: _Launch, buffers: Mapping[str, _Buffer]) -> str:
    """As the kernel has them: what it reads is const, whatever it is to others."""
    found = []
    for number, name in enumerate(launch.launch.images):
        const = "const " if number < launch.launch.reads else ""
        found.append(f"{const}{_stored(buffers[name].dtype)}* __restrict__")
    return ", ".join([*found, *("int" for _ in launch.launch.scalars)])


def _stored(dtype: str) -> str:
    return "unsigned char" if dtype == "uint8" else STORED[dtype]


# --- README.txt -----------------------------------------------------------------------------------------


def _readme(pipeline: Pipeline, partition: Partition, buffers: list[_Buffer], launches: list[_Launch]) -> str:
    sources = list(dict.fromkeys(each.source for each in launches))
    steps = []
    for each in launches:
        block = " x ".join(map(str, each.launch.block[:2]))
        shared = f", {each.launch.shared_bytes} bytes of shared memory" if each.launch.shared_bytes else ""
        steps.append(f"  {each.source}.cu: {each.launch.entry}, blocks of {block} threads{shared}")
    scratch = ", ".join(each.name for each in buffers if each.use == "scratch")
    between = f"Buffers between the launches, which your program allocates too: {scratch}.\n" if scratch else ""
    listed = "\n".join(steps)
    how = "one launch" if len(launches) == 1 else f"{len(launches)} launches, one after the other on one stream"
    return f"""\
The pipeline {pipeline.name} as {partition}: {how}.

{listed}

Build each source for your GPU ({" ".join(FLAGS)} keeps every float operation rounded by itself, as it was measured):

    for name in {" ".join(sources)}; do nvcc -cubin -arch=sm_90 {" ".join(FLAGS)} $name.cu -o $name.cubin; done

From Python: launch.py works out the grids for any width and height.
From C++: compile the sources beside your program, include {_header_name(pipeline)}
and call fused::launch(buffers, sizes).
{between}\
An image's element is (y * width + x) * channels + channel. The shapes of the blocks were chosen for
{pipeline.width} x {pipeline.height} pixels; for other sizes the result is right, but other shapes may be faster.
"""
