"""Pipelines as YAML files.

    pipeline: harris
    summary: ...                                           # for `fusiond plugins`; optional
    image: {width: 2048, height: 2048, dtype: int32, channels: 1}    # channels 3 is RGB; what inputs and kernels are
                                                           # pitched: true: rows of inputs and outputs may lie apart
    inputs: [src, {name: lut, dtype: uint8, channels: 3, fill: {integers: [0, 255]}}]
    outputs: [hc]
    tables: {gamma: [0, 21, 28, 34]}                       # what lookup(gamma, i) reads: integers, or numbers
    parameters: {k: 0.04, shift: 3}                        # an int32, or with a fraction a float32; {value, dtype}
                                                           # {value, runtime: true}: one of the launch, in memory
    masks: {gauss: [[1, 2, 1], [2, 4, 2], [1, 2, 1]]}      # integers, or numbers (float32); 0 or null is a hole
    kernels:
      dx:
        pattern: local                                     # point, local, global
        reads: [src]
        mask: [3, 3]                                       # width, height; of a local kernel
        border: clamp                                      # or {src: mirror}; {constant: 7}, {src: {constant: 7}}
        dtype: int32                                       # of its own image; the pipeline's when left out
        channels: 1
        size: [width / 2, height / 2]                      # of its image; the same as what it reads when left out
        step: 2                                            # pixel i belongs to pixel 2 i of what it reads; [2, 1], 1/2,
                                                           # {src: 2, other: {step: 1, origin: [16, 8]}}
        let: {d: "src[1, 0] - src[-1, 0]"}                 # names for values, each may use those before it
        body: "d / 6"                                      # or one for each channel: {r: ..., g: ..., b: ...}
        reduce: sum                                        # of a global kernel: sum, min, max, {histogram: [256, 1]}
        row: "y / 64"                                      # of a histogram: the row of its image; 0 when left out
        axis: x                                            # of a scan: x, y

The language of bodies is in `syntax`. Every mistake is a RequestError of one line with file, line and kernel.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from fusiond.model.errors import UnknownName
from fusiond.model.inputs import values
from fusiond.model.inputs.documents import Node
from fusiond.model.program import Fill
from fusiond_mincut.frontend import areas, borders, graph, masks, syntax
from fusiond_mincut.frontend import expr as tree
from fusiond_mincut.frontend.expr import Const, Expr, TypeProblem
from fusiond_mincut.frontend.graph import Area, Border, ImageKernel, Pipeline, PipelineImage, SamplingStep
from fusiond_mincut.frontend.syntax import BodyScope, ConstantTable

MOST_KERNELS = 4096
_KEYS = ("pipeline", "summary", "image", "inputs", "outputs", "parameters", "masks", "tables", "kernels")
_KERNEL_KEYS = ("pattern", "reads", "mask", "border", "dtype", "channels", "size", "step", "let", "body", "reduce",
                "row", "axis")  # fmt: skip
MOST_ELEMENTS = 65_536  #: Of a table


@dataclass(frozen=True, kw_only=True)
class _Header:
    """What bodies are read with."""

    width: int
    height: int
    dtype: str
    channels: int
    scope: BodyScope  #: Constants, masks and tables
    runtime: Mapping[str, PipelineImage]  #: Parameters of the launch: inputs of one value
    pitched: bool


def read(document: Node, sizes: Mapping[str, int] | None = None, file: values.FindFile | None = None) -> Pipeline:
    """The pipeline of a document; `sizes` (width, height) replace the document's, `file` finds the .npy files that its
    fills name. RequestError for every mistake."""
    keys = document.mapping(known=_KEYS, required=("pipeline", "image", "inputs", "outputs", "kernels"))
    header = _header(keys, sizes or {})
    inputs = _inputs(keys["inputs"], header, file)
    nodes = _kernel_nodes(keys["kernels"], {*(each.name for each in inputs), *header.scope.constants, *header.runtime})
    kernels = _kernels(nodes, header, inputs)
    outputs = _outputs(keys["outputs"], nodes)
    pipeline = Pipeline(
        name=_title(keys["pipeline"]),
        width=header.width,
        height=header.height,
        inputs=(*inputs, *(each for each in header.runtime.values() if any(each.name in k.reads for k in kernels))),
        outputs=outputs,
        kernels=kernels,
    )
    if header.pitched:
        pipeline = dataclasses.replace(pipeline, pitched=graph.rows(pipeline))
    _check(pipeline, keys, nodes)
    return pipeline


def _check(pipeline: Pipeline, keys: Mapping[str, Node], nodes: Mapping[str, Node]) -> None:
    """RequestError at the kernel, or else at the inputs or outputs, that breaks a rule of pipelines."""
    for image in pipeline.images.values():
        if image.elements(pipeline.width, pipeline.height) >= 2**31:
            raise keys["image"].fail(f"{image.name} has 2^31 elements or more; the kernels' indices have 32 bits")
    for about, what in graph.problems(pipeline):
        if about in pipeline.images and about not in nodes:
            raise keys["inputs"].fail(f"{about}: {what}")
        raise nodes.get(about, keys["outputs"]).fail(what)


def _title(node: Node) -> str:
    """It stands in the names of exported files, and in comments of sources."""
    name = node.text()
    if not graph.TITLE.fullmatch(name):
        raise node.fail(f"{name[:100]!r} is not a pipeline's name; use at most 100 letters, digits, _, - and .")
    return name


def _checked_name(name: str, node: Node) -> None:
    problem = syntax.name_problem(name)
    if problem is not None:
        raise node.fail(problem)


def _named(keys: Mapping[str, Node], key: str) -> Iterator[tuple[str, Node]]:
    """What stands under a key by name."""
    for name, node in keys[key].mapping().items() if key in keys else ():
        _checked_name(name, node)
        yield name, node


@contextmanager
def _blaming(node: Node) -> Iterator[None]:
    """A TypeProblem as a RequestError at a node."""
    try:
        yield
    except TypeProblem as problem:
        raise node.fail(str(problem)) from None


# --- the head of the file -------------------------------------------------------------------------------


def _header(keys: Mapping[str, Node], sizes: Mapping[str, int]) -> _Header:
    known = ("width", "height", "dtype", "channels", "pitched")
    image = keys["image"].mapping(known=known, required=("width", "height", "dtype"))
    width = sizes.get("width", image["width"].integer(least=1, most=graph.WIDEST_IMAGE))
    height = sizes.get("height", image["height"].integer(least=1, most=graph.WIDEST_IMAGE))
    channels = _channels(image["channels"]) if "channels" in image else 1
    constants: dict[str, Const] = {}
    runtime: dict[str, PipelineImage] = {}
    for name, node in _named(keys, "parameters"):
        value, at_launch = _parameter(node)
        if at_launch:
            fill = Fill(kind="constant", low=value.value)
            runtime[name] = PipelineImage(name=name, dtype=value.dtype, single=True, fill=fill)
        else:
            constants[name] = value
    tables = {name: _table(name, node) for name, node in _named(keys, "tables")}
    found = {}
    for name, node in _named(keys, "masks"):
        with _blaming(node):
            found[name] = masks.checked(name, _rows(node))
    return _Header(
        width=width,
        height=height,
        dtype=image["dtype"].choice(*tree.DTYPES),
        channels=channels,
        scope=BodyScope(images={}, constants=constants, masks=found, tables=tables),
        runtime=runtime,
        pitched=image["pitched"].boolean() if "pitched" in image else False,
    )


def _channels(node: Node) -> int:
    return node.integer(least=1, most=len(syntax.CHANNELS))


def _table(name: str, node: Node) -> ConstantTable:
    given = node.sequence()
    if not 1 <= len(given) <= MOST_ELEMENTS:
        raise node.fail(f"holds {len(given)} elements; a table has 1 to {MOST_ELEMENTS}")
    dtype = "int32" if all(type(each.value) is int for each in given) else "float32"
    return ConstantTable(name=name, dtype=dtype, values=tuple(_held(each, dtype) for each in given))


def _parameter(node: Node) -> tuple[Const, bool]:
    """Its value, and whether it is one of the launch."""
    given, dtype, runtime = node, None, False
    if isinstance(node.value, dict):
        keys = node.mapping(known=("value", "dtype", "runtime"), required=("value",))
        given = keys["value"]
        runtime = keys["runtime"].boolean() if "runtime" in keys else False
        offered = ("int32", "float32") if runtime else ("int32", "float32", "float64")
        dtype = keys["dtype"].choice(*offered) if "dtype" in keys else None
    if dtype is None:
        dtype = "int32" if type(given.value) is int else "float32"
    return Const(_held(given, dtype), dtype), runtime


def _rows(node: Node) -> tuple[tuple[int | float | None, ...], ...]:
    rows = tuple(tuple(_coefficient(each) for each in row.sequence()) for row in node.sequence())
    if not rows or not rows[0]:
        raise node.fail("is empty; expected rows of numbers")
    return rows


def _coefficient(node: Node) -> int | float | None:
    if node.value is None:
        return None
    return node.integer() if isinstance(node.value, int) else node.number()


def _inputs(node: Node, header: _Header, file: values.FindFile | None) -> tuple[PipelineImage, ...]:
    found: dict[str, PipelineImage] = {}
    for each in node.sequence():
        keys = {"name": each}
        if not isinstance(each.value, str):
            keys = dict(each.mapping(known=("name", "dtype", "channels", "size", "fill"), required=("name",)))
        name = keys["name"].text()
        dtype = keys["dtype"].choice(*tree.DTYPES) if "dtype" in keys else header.dtype
        channels = _channels(keys["channels"]) if "channels" in keys else header.channels
        fill = values.fill(keys["fill"], dtype, file) if "fill" in keys else graph.FILLS[dtype]
        area = _area(keys["size"], header) if "size" in keys else None
        _checked_name(name, each)
        if name in found or name in header.scope.constants or name in header.runtime:
            raise each.fail(f"{name!r} stands twice")
        found[name] = PipelineImage(name=name, dtype=dtype, channels=channels, fill=fill, area=area)
    if not found:
        raise node.fail("is empty; a pipeline reads at least one image")
    return tuple(found.values())


def _held(node: Node, dtype: str) -> int | float:
    """A number that the dtype holds exactly enough."""
    with _blaming(node):
        return tree.const(node.integer() if dtype in tree.INTEGERS else node.number(), dtype).value


def _outputs(node: Node, kernels: Mapping[str, Node]) -> tuple[str, ...]:
    outputs = tuple(dict.fromkeys(each.text() for each in node.sequence()))
    if not outputs:
        raise node.fail("is empty; a pipeline has at least one output")
    for each in node.sequence():
        if each.text() not in kernels:
            raise UnknownName("kernel", each.text(), kernels, where=each.where)
    return outputs


# --- kernels --------------------------------------------------------------------------------------------


def _kernel_nodes(node: Node, taken: Collection[str]) -> Mapping[str, Node]:
    """Kernel -> what the file says of it. `taken`: the names of inputs and parameters."""
    nodes = node.mapping()
    if not nodes:
        raise node.fail("is empty; a pipeline has at least one kernel")
    if len(nodes) > MOST_KERNELS:
        raise node.fail(f"holds {len(nodes)} kernels; at most {MOST_KERNELS} are read")
    for name, each in nodes.items():
        _checked_name(name, each)
        if name in taken:
            raise each.fail(f"two writers of {name!r}: an input or a parameter has this name")
    return nodes


def _kernels(nodes: Mapping[str, Node], header: _Header, inputs: tuple[PipelineImage, ...]) -> tuple[ImageKernel, ...]:
    """All kernels, each after those whose images it reads."""
    images = {each.name: each for each in (*inputs, *header.runtime.values())}
    kernels = []
    for name in _order(nodes, inputs, header.runtime):
        kernel = _kernel(name, nodes[name], header, images)
        images[name] = kernel.image
        kernels.append(kernel)
    return tuple(kernels)


def _order(
    nodes: Mapping[str, Node], inputs: tuple[PipelineImage, ...], runtime: Mapping[str, PipelineImage]
) -> tuple[str, ...]:
    known = {each.name for each in inputs} | set(runtime) | set(nodes)
    reads: dict[str, tuple[str, ...]] = {}
    for name, node in nodes.items():
        keys = node.mapping(known=_KERNEL_KEYS, required=("pattern", "reads", "body"))
        for each in keys["reads"].sequence():
            if each.text() not in known:
                raise UnknownName("image", each.text(), known, where=each.where)
        reads[name] = tuple(each.text() for each in keys["reads"].sequence())
    try:
        return graph.topological(reads)
    except ValueError as cycle:
        first = str(cycle).split(" -> ", 1)[0]
        raise nodes[first].fail(f"a cycle: {cycle}") from None


def _kernel(name: str, node: Node, header: _Header, images: Mapping[str, PipelineImage]) -> ImageKernel:
    keys = node.mapping()
    pattern = keys["pattern"].choice(*graph.PATTERNS)
    mask = _mask(pattern, keys, node)
    channels = _channels(keys["channels"]) if "channels" in keys else header.channels
    named = tuple(each.text() for each in keys["reads"].sequence())
    reads = (*named, *(each for each in header.runtime if each not in named))
    dtype = keys["dtype"].choice(*tree.DTYPES) if "dtype" in keys else header.dtype
    reduction, bins = _reduction(name, pattern, keys, node, header)
    read = {each: images[each] for each in reads}
    scope = dataclasses.replace(header.scope, images=read, channels=channels)
    bodies = _bodies(keys, scope, images)
    if bins is not None:
        bodies = (*bodies, _tree(keys["row"], scope) if "row" in keys else Const(0, "int32"))
    area, steps = _places(keys, header, read, bodies, node)
    kernel = ImageKernel(
        name=name,
        pattern=pattern,
        mask=mask,
        bodies=bodies,
        dtype=dtype,
        channels=channels,
        borders=_borders(keys["border"], images, named) if "border" in keys else {},
        area=area,
        steps=steps,
        reduction=reduction,
        bins=bins,
    )
    for each in keys["reads"].sequence():
        if each.text() not in kernel.reads:
            raise each.fail(f"{name} reads {each.text()!r}, and its body does not use it")
    for image in kernel.reads:
        if kernel.windowed(image) and image not in kernel.borders and pattern == "local":
            raise node.fail(f"{name} reads outside {image!r} at its edges; border: clamp, mirror, reflect, repeat, "
                            "or {constant: VALUE}")  # fmt: skip
    return kernel


def _reduction(
    name: str, pattern: str, keys: Mapping[str, Node], node: Node, header: _Header
) -> tuple[str | None, Area | None]:
    """How a boundary reduces or scans, and of a histogram the area of its image."""
    for key, wanted in (("reduce", "global"), ("axis", "scan")):
        if key in keys and pattern != wanted:
            raise keys[key].fail(f"{name} is {pattern}; only a {wanted} kernel has {key}")
    offered = f"{', '.join(graph.REDUCTIONS)}, or {{histogram: [256, 1]}}"
    found, bins = None, None
    if pattern == "global" and "reduce" not in keys:
        raise node.fail(f"a global kernel says how it reduces: reduce: {offered}")
    if pattern == "scan":
        found = keys["axis"].choice(*graph.AXES) if "axis" in keys else graph.AXES[0]
    elif "reduce" in keys and isinstance(keys["reduce"].value, dict):
        inner = keys["reduce"].mapping(known=(graph.HISTOGRAM,), required=(graph.HISTOGRAM,))[graph.HISTOGRAM]
        found, bins = graph.HISTOGRAM, _area(inner, header) or areas.WHOLE
    elif "reduce" in keys:
        found = keys["reduce"].choice(*graph.REDUCTIONS)
    if "row" in keys and bins is None:
        raise keys["row"].fail(f"{name} is not a histogram; only a histogram has rows")
    return found, bins


def _area(node: Node, header: _Header) -> Area | None:
    """[width, height] as numbers or expressions; None where they are the pipeline's."""
    sides = node.sequence()
    if len(sides) != 2:
        raise node.fail("holds width and height, such as [width / 2, height / 2]")
    trees = []
    for each in sides:
        found = _tree(each, BodyScope(images={}, constants=header.scope.constants))
        with _blaming(each):
            trees.append(areas.checked(found, header.width, header.height))
    return areas.of(*trees)


def _places(
    keys: Mapping[str, Node], header: _Header, images: Mapping[str, PipelineImage], bodies: tuple[Expr, ...], node: Node
) -> tuple[Area | None, dict[str, SamplingStep]]:
    """The area of a kernel, and the steps by which it reads images of other pixels."""
    pixels = {each.image for body in bodies for each in tree.accesses(body)}
    read = {name: image for name, image in images.items() if name in pixels and not image.single}
    steps = {name: SamplingStep() for name in read}
    if "step" in keys:
        given = keys["step"]
        for_all = not isinstance(given.value, dict) or not {"step", "origin"}.isdisjoint(given.value)
        of = dict.fromkeys(read, given) if for_all else given.mapping()
        for name, each in of.items():
            if name not in read:
                raise UnknownName("image", name, read, where=each.where)
            steps[name] = areas.step(each)
    with _blaming(node):
        own = _area(keys["size"], header) if "size" in keys else areas.derived(read, steps)
    return own, {name: step for name, step in steps.items() if step != SamplingStep() or read[name].area != own}


def _mask(pattern: str, keys: Mapping[str, Node], node: Node) -> tuple[int, int]:
    if pattern != "local":
        if "mask" in keys:
            raise keys["mask"].fail(f"a {pattern} kernel has no mask; pattern: local has one")
        return 1, 1
    if "mask" not in keys:
        raise node.fail("a local kernel has a mask: [width, height]")
    sides = keys["mask"].sequence()
    if len(sides) != 2:
        raise keys["mask"].fail("holds width and height, such as [3, 3]")
    width, height = (each.integer(least=1, most=masks.WIDEST) for each in sides)
    if width % 2 == 0 or height % 2 == 0:
        raise keys["mask"].fail(f"a mask of {width} x {height} has no centre; both sides must be odd")
    return width, height


def _bodies(keys: Mapping[str, Node], scope: BodyScope, images: Mapping[str, PipelineImage]) -> tuple[Expr, ...]:
    lets: list[tuple[str, Expr]] = []
    for name, node in _named(keys, "let"):
        if name in images or name in scope.constants or name in scope.masks or name in scope.locals:
            raise node.fail(f"{name!r} is the name of something else here")
        value = _tree(node, scope)
        lets.append((name, value))
        scope = dataclasses.replace(scope, locals={**scope.locals, name: value.dtype})
    body = keys["body"]
    if isinstance(body.value, dict):
        if scope.channels == 1:
            raise body.fail("expected one body: this kernel computes one channel")
        own = tuple(syntax.CHANNELS[: scope.channels])
        nodes = body.mapping(known=own, required=own)
        return tuple(_bound(lets, _tree(nodes[each], scope), nodes[each]) for each in own)
    return (_bound(lets, _tree(body, scope), body),)


def _tree(node: Node, scope: BodyScope) -> Expr:
    number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
    try:
        return syntax.parse(str(node.value) if number else node.text(), scope)
    except TypeProblem as problem:
        if problem.column is None or number:
            raise node.fail(str(problem)) from None
        raise node.fail_in(str(problem), problem.column) from None


def _bound(lets: list[tuple[str, Expr]], body: Expr, node: Node) -> Expr:
    with _blaming(node):
        return syntax.with_lets(body, lets)


def _borders(node: Node, images: Mapping[str, PipelineImage], reads: tuple[str, ...]) -> dict[str, Border]:
    if isinstance(node.value, str) or _is_constant(node, reads):
        return {each: _border(node, images[each]) for each in reads}
    found = {}
    for name, each in node.mapping().items():
        if name not in reads:
            raise UnknownName("image", name, dict.fromkeys(reads), where=each.where)
        found[name] = _border(each, images[name])
    return found


def _is_constant(node: Node, reads: tuple[str, ...]) -> bool:
    """Whether this is a constant border, {constant: 7}, and not that of an image of this name, {constant: clamp}."""
    if not isinstance(node.value, dict) or set(node.value) != {"constant"}:
        return False
    return "constant" not in reads or not isinstance(node.value["constant"].value, str | dict)


def _border(node: Node, image: PipelineImage) -> Border:
    if isinstance(node.value, str):
        if node.value == "constant":
            raise node.fail("a constant border has a value: {constant: 0}")
        return Border(mode=node.choice(*borders.MODES))
    value = node.mapping(known=("constant",), required=("constant",))["constant"]
    return Border(mode="constant", value=_held(value, image.dtype))
