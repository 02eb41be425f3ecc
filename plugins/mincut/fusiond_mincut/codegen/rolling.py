"""The CUDA text of a strip (strips.py): how a warp computes its columns and rows.

    template <bool edge>
    ... strip(images, width, height, x0, y0)
    {
        int src_rows[3][4];                               // a ring for each image: rows, own pixels and those beside
        const auto step = [&](int t) {
            load the next row of every input;             neighbours of its pixels from the other lanes
            compute the next row of every stage
            store the next row of every output
            let the rings turn
        };
        for (int t = -4; t < 0; ++t) step(t);
        for (int t = 0; t < 8; ++t) step(t);
    }

Inside the image rows are loaded and stored 16 bytes at a time. At an edge (`edge`) columns and rows outside are led to
the last ones inside, so that nothing beside the image is read, and only pixels are stored whose stages have read
nothing outside; all others are the frame's (source.py).
"""

import math
from collections.abc import Collection
from itertools import groupby

from fusiond.model.codegen.code import call
from fusiond.model.codegen.statements import Statements, function
from fusiond.model.language.dtypes import DTYPES
from fusiond_mincut.analysis.blocks import KernelBlock
from fusiond_mincut.codegen.lowering import StageFunctions
from fusiond_mincut.codegen.stages import STORED, TYPES, image_of, pixels, stage_of
from fusiond_mincut.codegen.strips import Held, Strip, chunk
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.expr import PixelAccess
from fusiond_mincut.frontend.graph import Halo, ImageKernel, Pipeline

MOST_UNROLLED = 1200  #: Operations of a loop over the rows that is unrolled: code beyond it is too large for the caches
MOST_TURN = 6000  #: The same of one turn of the rings: without it every row moves all that a lane keeps

_SHUFFLES = {
    "Int": ("value.v", "{}"),
    "float": ("value", "{}"),
    "uchar": ("(int)value", "(uchar){}"),
    "short": ("(int)value", "(short){}"),
    "ushort": ("(int)value", "(ushort){}"),
    "__half": ("(int)__half_as_ushort(value)", "__ushort_as_half((ushort){})"),
}
_VECTORS = {**STORED, "float16": "half"}
"""What the functions that load and store are called by, and of which CUDA has vectors; not of halves, which are moved
as ushort."""
_WORDS = {8: "uint2", 16: "uint4"}  #: By bytes


def text(pipeline: Pipeline, block: KernelBlock, made: Strip, functions: StageFunctions, apart: Collection[str]) -> str:
    """The function `strip`, and what it calls, with the parameters of the other ways (`functions`). Stages that `apart`
    names have functions that end with `_strip`."""
    reach = Halo.around(each.halo for each in made.held.values())
    body = Statements()
    _places(body, made, reach)
    for each in made.held.values():
        body.line(f"{TYPES[each.dtype]} {each.name}_rows[{each.depth}][{each.width(made.across)}];")
    for name in block.inputs:
        if name in made.held:
            up = made.held[name].halo.up
            body.line(f"const {STORED[made.held[name].dtype]}* {name}_next = "
                      f"{_start(functions, made.held[name], f'(y - {up})')};")  # fmt: skip
    for name in block.outputs:
        body.line(f"{STORED[made.held[name].dtype]}* {name}_next = {_start(functions, made.held[name], 'y')};")
    loop = body.block("const auto step = [&](int t)", end="};")
    inputs = [made.held[name] for name in block.inputs if name in made.held]
    for first, group in groupby(inputs, key=lambda each: each.first_step):
        inner = _from(loop, first, made)
        for each in group:
            _load(inner, functions, each, made)
    for first, names in groupby(block.kernels, key=lambda name: made.held[name].first_step):
        inner = _from(loop, first, made)
        for name in names:
            _compute(inner, functions, pipeline, pipeline.kernel(name), made, "_strip" if name in apart else "")
            if name in block.outputs:
                _store(inner, functions, made.held[name], made)
    for each in made.held.values():
        _turn(loop, each, made)
    if made.first_step:
        body.line(f"#pragma unroll\nfor (int t = {made.first_step}; t < 0; ++t) step(t);")
    body.line(f"#pragma unroll {_unrolled(pipeline, block, made)}\nfor (int t = 0; t < {made.rows}; ++t) step(t);")
    head = "template <bool edge>\n__device__ __forceinline__ void strip"
    strip = function(head, functions.parameters("int x0", "int y0", outputs=True), body, below=True)
    return "\n".join([*_helpers(block, made), strip])


def _places(body: Statements, made: Strip, reach: Halo) -> None:
    lane = f"((int)threadIdx.x - {made.first_lane})" if made.first_lane else "(int)threadIdx.x"
    across = f" * {made.across}" if made.across > 1 else ""
    body.line(f"const int x = x0 + {lane}{across}, y = y0 + (int)threadIdx.y * {made.rows};")
    stores = [f"(int)threadIdx.x >= {made.first_lane}"] if made.first_lane else []
    stores += [f"threadIdx.x <= {made.last_lane}"] if made.last_lane < 31 else []
    body.line(f"const bool stores = {' && '.join(stores) or 'true'};")
    body.line(f"int columns[{made.across}];  // of the image: led inside")
    body.line(f"bool kept[{made.across}];  // whether the column is stored here, not by the frame")
    loop = body.block(f"#pragma unroll\nfor (int p = 0; p < {made.across}; ++p)")
    loop.line("columns[p] = min(max(x + p, 0), width - 1);")
    loop.line(f"kept[p] = stores && x + p >= {reach.left} && x + p < width - {reach.right};")
    body.line(f"const int top = {reach.up}, bottom = height - {reach.down};  // rows that are stored here")


def _unrolled(pipeline: Pipeline, block: KernelBlock, made: Strip) -> int:
    """Rows of the loop that stand one after the other: all of them, or a multiple of the rings' depths, at which rings
    turn without a move."""
    kernels = [pipeline.kernel(name) for name in block.kernels]
    row = made.across * sum(
        (each.operations.alu + each.operations.sfu) * each.channels // len(each.bodies) for each in kernels
    )
    if row * made.rows <= MOST_UNROLLED:
        return made.rows
    turn = math.lcm(*(each.depth for each in made.held.values()))
    return turn if turn * row <= MOST_TURN else 1


def _from(loop: Statements, first: int, made: Strip) -> Statements:
    return loop if first == made.first_step else loop.block(f"if (t >= {first})")


def _start(functions: StageFunctions, held: Held, row: str) -> str:
    """The address of column x of a row."""
    if held.name not in functions.pitched:
        return f"{held.name}_image + ({row} * width + x) * {held.channels}"
    return f"{held.name}_image + {row} * {functions.row(held.name)} + x * {held.channels}"


def _element(functions: StageFunctions, held: Held, more: str) -> str:
    """An element of a column that was led inside, in the row of that name."""
    times = f" * {held.channels}" if held.channels > 1 else ""
    if held.name not in functions.pitched:
        return f"{held.name}_image[(row * width + columns[p]){times}{more}]"
    return f"{held.name}_image[row * {functions.row(held.name)} + columns[p]{times}{more}]"


def _load(body: Statements, functions: StageFunctions, held: Held, made: Strip) -> None:
    newest = f"{held.name}_rows[{held.depth - 1}]"
    channels, row = held.channels, f"t + {held.halo.down}" if held.halo.down else "t"
    edge = body.block("if (edge)", end=None)
    edge.line(f"const int row = min(max(y + {row}, 0), height - 1);")
    inner = edge.block(f"#pragma unroll\nfor (int p = 0; p < {made.across}; ++p)")
    for channel in range(channels):
        more = f" + {channel}" if channel else ""
        inner.line(f"{newest}[{_at(held, channel)}] = {_element(functions, held, more)};")
    rest = body.block("} else")
    elements = made.across * channels
    size = chunk(elements, held.dtype)
    for start in range(0, elements, size):
        to = f"&{newest}[{held.left * channels + start}]"
        rest.line(f"load_{_VECTORS[held.dtype]}{size}({to}, {held.name}_next{f' + {start}' if start else ''});")
    body.line(f"{held.name}_next += {functions.row(held.name)};")
    _neighbours(body, held, made)


def _compute(
    body: Statements, functions: StageFunctions, pipeline: Pipeline, kernel: ImageKernel, made: Strip, suffix: str
) -> None:
    held = made.held[kernel.name]
    loop = body.block(f"#pragma unroll\nfor (int p = 0; p < {made.across}; ++p)")
    for channel in range(kernel.channels):
        given = [_value(functions, pipeline, kernel, each, channel, made) for each in pixels(kernel, channel)]
        target = f"{kernel.name}_rows[{held.depth - 1}][{_at(held, channel)}]"
        loop.line(f"{target} = {call(stage_of(kernel, channel) + suffix, *given)};")
    _neighbours(body, held, made)


def _value(
    functions: StageFunctions, pipeline: Pipeline, kernel: ImageKernel, access: PixelAccess, channel: int, made: Strip
) -> str:
    channel = channel if access.channel is None else access.channel
    whole = image_of(access)
    if whole is not None:
        return ", ".join(functions.whole(whole, channel))
    if access.image in tree.POSITIONS.values():
        return _position(access, made.held[kernel.name])
    if pipeline.images[access.image].single:
        return f"{access.image}_image[{channel}]"
    read = made.held[access.image]
    row = read.depth - 1 - (read.halo.down - made.held[kernel.name].halo.down - access.dy)
    return f"{access.image}_rows[{row}][{_at(read, channel, access.dx)}]"


def _position(access: PixelAccess, held: Held) -> str:
    """Of pixel p of the row that step t computes."""
    if access.image in (tree.X, tree.Y):
        first, offset = ("x + p", access.dx) if access.image == tree.X else ("y + t", access.dy + held.halo.down)
        return f"{first} {'+' if offset > 0 else '-'} {abs(offset)}" if offset else first
    return "width" if access.image == tree.WIDTH else "height"


def _at(held: Held, channel: int, dx: int = 0) -> str:
    """The place of pixel p + dx in a row of a ring."""
    before = held.left + dx
    if held.channels == 1:
        return f"p + {before}" if before else "p"
    inside = f"(p + {before}) * {held.channels}" if before else f"p * {held.channels}"
    return f"{inside} + {channel}" if channel else inside


def _neighbours(body: Statements, held: Held, made: Strip) -> None:
    """The pixels beside the own ones, from the lanes that have them."""
    row = f"{held.name}_rows[{held.depth - 1}]"
    for channel in range(held.channels):
        for distance in range(1, held.left + 1):
            lanes = -(-distance // made.across)
            to = (held.left - distance) * held.channels + channel
            source = (held.left + lanes * made.across - distance) * held.channels + channel
            body.line(f"{row}[{to}] = from_left({row}[{source}], {lanes});")
        for distance in range(1, held.right + 1):
            lanes = -(-distance // made.across)
            to = (held.left + made.across - 1 + distance) * held.channels + channel
            source = (held.left + made.across - 1 + distance - lanes * made.across) * held.channels + channel
            body.line(f"{row}[{to}] = from_right({row}[{source}], {lanes});")


def _store(body: Statements, functions: StageFunctions, held: Held, made: Strip) -> None:
    """The newest row, where it is one of the warp's own."""
    channels, down = held.channels, held.halo.down
    newest, times = f"{held.name}_rows[{held.depth - 1}]", f" * {channels}" if channels > 1 else ""
    first = f"t >= {-down} && " if held.first_step < -down else ""
    last = f"t < {made.rows - down}" if down else ""
    condition = (first + last).removesuffix(" && ")
    inner = body.block(f"if ({condition})") if condition else body
    row = f"t + {down}" if down else "t"
    kind = STORED[held.dtype]
    edge = inner.block("if (edge)", end=None)
    loop = edge.block(f"#pragma unroll\nfor (int p = 0; p < {made.across}; ++p)")
    own = loop.block(f"if (kept[p] && y + {row} >= top && y + {row} < bottom)")
    for channel in range(channels):
        more = f" + {channel}" if channel else ""
        place = f"p{times}{more}"
        own.line(f"{held.name}_next[{place}] = ({kind}){newest}[{_at(held, channel)}];")
    rest = inner.block("} else if (stores)")
    elements = made.across * channels
    size = chunk(elements, held.dtype)
    for start in range(0, elements, size):
        given = f"&{newest}[{held.left * channels + start}]"
        rest.line(f"store_{_VECTORS[held.dtype]}{size}({held.name}_next{f' + {start}' if start else ''}, {given});")
    inner.line(f"{held.name}_next += {functions.row(held.name)};")


def _turn(loop: Statements, held: Held, made: Strip) -> None:
    if held.depth < 2:
        return
    inner = loop.block(f"#pragma unroll\nfor (int i = 0; i < {held.width(made.across)}; ++i)")
    for row in range(held.depth - 1):
        inner.line(f"{held.name}_rows[{row}][i] = {held.name}_rows[{row + 1}][i];")


# --- what a strip calls ---------------------------------------------------------------------------------


def _helpers(block: KernelBlock, made: Strip) -> list[str]:
    found: dict[str, None] = {}
    for name in block.inputs:
        if name in made.held:
            found.setdefault(_loader(made.held[name].dtype, _chunk(made, name)))
    for name in block.outputs:
        found.setdefault(_storer(made.held[name].dtype, _chunk(made, name)))
    for each in made.held.values():
        for side, reach in (("left", each.left), ("right", each.right)):
            if reach:
                found.setdefault(_shuffle(side, TYPES[each.dtype]))
    return list(found)


def _chunk(made: Strip, name: str) -> int:
    held = made.held[name]
    return chunk(made.across * held.channels, held.dtype)


def _shuffle(side: str, kind: str) -> str:
    given, back = _SHUFFLES[kind]
    name = {"left": "up", "right": "down"}[side]
    moved = back.format(f"__shfl_{name}_sync(0xffffffffu, {given}, lanes)")
    return (
        f"// What the lane so many lanes to the {side} holds.\n"
        f"__device__ __forceinline__ {kind} from_{side}({kind} value, int lanes) {{ return {moved}; }}\n"
    )


def _loader(dtype: str, count: int) -> str:
    kind, vector = TYPES[dtype], _VECTORS[dtype]
    head = f"__device__ __forceinline__ void load_{vector}{count}"
    body = Statements()
    if count == 1:
        body.line("to[0] = *from;")
    elif count > 4:
        words, each = _WORDS[count * DTYPES[dtype].bytes], 4 // DTYPES[dtype].bytes
        body.line(f"const {words} v = *reinterpret_cast<const {words}*>(from);")
        parts = [f"v.{'xyzw'[i // each]} >> {i % each * 32 // each}" for i in range(count)]
        convert = "__ushort_as_half((ushort)({}))" if dtype == "float16" else f"({kind})({{}})"
        body.lines(*(f"to[{i}] = {convert.format(part)};" for i, part in enumerate(parts)))
    else:
        vector = "ushort" if dtype == "float16" else vector
        body.line(f"const {vector}{count} v = *reinterpret_cast<const {vector}{count}*>(from);")
        convert = "__ushort_as_half({})" if dtype == "float16" else "{}"
        body.lines(*(f"to[{i}] = {convert.format('v.' + 'xyzw'[i])};" for i in range(count)))
    return function(head, (f"{kind}* to", f"const {STORED[dtype]}* from"), body)


def _storer(dtype: str, count: int) -> str:
    kind, vector, stored = TYPES[dtype], _VECTORS[dtype], STORED[dtype]
    head = f"__device__ __forceinline__ void store_{vector}{count}"
    body = Statements()
    if count == 1:
        body.line(f"*to = ({stored})from[0];")
    elif count > 4:
        bits, each = 8 * DTYPES[dtype].bytes, 4 // DTYPES[dtype].bytes
        own = "__half_as_ushort(from[{}])" if dtype == "float16" else f"(from[{{}}] & {2**bits - 1}u)"
        words = [
            " | ".join(own.format(each * word + i) + (f" << {bits * i}" if i else "") for i in range(each))
            for word in range(count // each)
        ]
        vector_type = _WORDS[count * DTYPES[dtype].bytes]
        body.line(f"*reinterpret_cast<{vector_type}*>(to) = make_{vector_type}({', '.join(words)});")
    else:
        own = "__half_as_ushort(from[{}])" if dtype == "float16" else f"({stored})from[{{}}]"
        given, vector = ", ".join(own.format(i) for i in range(count)), "ushort" if dtype == "float16" else vector
        body.line(f"*reinterpret_cast<{vector}{count}*>(to) = make_{vector}{count}({given});")
    return function(head, (f"{stored}* to", f"const {kind}* from"), body)
