"""Reads a kernel's YAML file; docs/kernels.md describes the format. launch_shapes.py evaluates its expressions."""

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

from fusiond.model.errors import RequestError, UnknownName
from fusiond.model.inputs import values
from fusiond.model.inputs.documents import Node
from fusiond.model.language import expressions
from fusiond.model.language.expressions import Expression, ExpressionError, Scalar
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Dim3, Source
from fusiond.model.ptx.tree import PtxError
from fusiond.strategy import Inputs
from fusiond_hfuse.frontend import arguments, includes, ptx_kernel, signatures, triton_kernel
from fusiond_hfuse.frontend.launch_shapes import axes
from fusiond_hfuse.frontend.source_kernel import (
    UNREAD,
    BlockShapes,
    KernelArgument,
    SourceKernel,
    TranslationUnit,
    buffers_among,
    volume,
)

KEYS = (
    "kernel", "source", "form", "entry", "instance", "defines", "include", "flags", "sizes", "odd", "arguments",
    "constants", "warps", "stages", "block", "grid", "shared", "summary",
)  # fmt: skip
FLAGS = re.compile(
    r"--?(use_fast_math|expt-relaxed-constexpr|extended-lambda|lineinfo|std=c\+\+(14|17|20)"
    r"|(fmad|ftz|prec-div|prec-sqrt)=(true|false)|arch=(sm|compute)_\d+[af]?)"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_INSTANCE = re.compile(r"[\w:]+\s*(?:<[\w\s:,<>*&+.()'-]*>|\([\w\s:,<>*&]*\))")
MAX_BLOCK = (1024, 1024, 64)


def read(inputs: Inputs, path: str, *, where: str, form: str = "", at: Mapping[str, int] | None = None) -> SourceKernel:
    """Read a kernel's YAML file and its source. RequestError with file, line and key for anything that is wrong. `at`:
    its sizes, where they are not those of the file.

    `form` is `ptx` for a kernel that is fused with one of PTX, `alone` for one that is fused with nothing: then it need
    not be fit for it. A source in C++ that is not understood, or cannot be fused as C++, is compiled to PTX where a
    compiler is there and that helps; the file's own `form` has the last word."""
    given = _given(inputs, path, where, at or {})
    node = given.keys["source"]
    source = inputs.beside(path, node.text(), where=node.where)
    if node.text().endswith(".py"):
        return triton_kernel.read(inputs, source, given)
    return _of_ptx(inputs, source, given) if source.endswith(".ptx") else _of_cxx(inputs, source, given, form)


def _given(inputs: Inputs, path: str, where: str, at: Mapping[str, int]) -> SourceKernel:
    """What the file itself says."""
    document = inputs.document(path, where=where)
    keys = document.mapping(known=KEYS, required=("kernel", "source", "entry", "arguments", "grid"))
    python = keys["source"].text().endswith(".py")
    if not python:
        document.mapping(known=tuple(each for each in KEYS if each not in ("warps", "stages")), required=("block",))
    name = arguments.matching(keys["kernel"], _NAME, "a name of letters, digits, _ and -")
    sizes = {**values.sizes(keys.get("sizes")), **at}
    odd = values.sizes(keys.get("odd"))
    for size in odd:
        if size not in sizes:
            raise keys["odd"].fail(f"{size!r} is not a size of this kernel")
    constants = () if python else _list(keys.get("constants"))
    defines, choices = _macros(keys.get("defines"), sizes)
    given = SourceKernel(
        name=name, path=path, keys=keys, defines=defines, sizes=sizes, odd=odd, choices=choices,
        flags=tuple(arguments.matching(each, FLAGS, _FLAGS_WANTED) for each in _list(keys.get("flags"))),
        arguments=tuple(arguments.argument(inputs, path, each) for each in keys["arguments"].sequence()),
        variables=tuple(arguments.variable(inputs, path, each) for each in constants),
        block=triton_kernel.blocks(keys) if python else _block(keys["block"]), grid=_grid(keys["grid"]),
        shared=expressions.parse("0") if "shared" not in keys else values.expression(keys["shared"]),
    )  # fmt: skip
    _check_names(given.arguments, given.variables)
    return given


def _of_cxx(inputs: Inputs, source: str, given: SourceKernel, form: str) -> SourceKernel:
    """A kernel of CUDA C++ in the form that it can be fused in."""
    own = given.keys["form"].choice("ptx", "source") if "form" in given.keys else ""
    if own == "source" and form == "ptx":
        raise given.keys["form"].fail("is 'source', and a kernel of PTX is fused with PTX only")
    if "ptx" in (own, form) or any("arch=" in each for each in given.flags):
        return _compiled(inputs, source, given, "its file says so" if own else form and "another one is PTX")
    found = _of_source(inputs, source, given)
    if isinstance(found, RequestError):
        if not own:
            with contextlib.suppress(RequestError):  # what is wrong with the C++ says more
                return _compiled(inputs, source, given, str(found))
        raise found
    return _fusable(inputs, source, given, found, own=own, alone=form == "alone")


def _fusable(
    inputs: Inputs, source: str, given: SourceKernel, found: SourceKernel, *, own: str, alone: bool
) -> SourceKernel:
    """A kernel as it was read, or compiled where that is refused as C++ and not as PTX."""
    refused = found.parsed.rejections
    unset = tuple(each for each in refused if each.rule == "symbol")
    unread = bool(refused) and refused[0].rule == UNREAD
    if unset or not refused or (alone and not unread):  # what the host has to set, no form brings
        return dataclasses.replace(found, parsed=dataclasses.replace(found.parsed, rejections=unset))
    said = refused[0].detail
    if not own:
        try:
            checked_already = dataclasses.replace(given, arguments=found.arguments)
            compiled = _compiled(inputs, source, checked_already, said)
            if unread or not compiled.parsed.rejections:
                return compiled
        except RequestError as problem:
            said += f"; {problem}"
    if unread:
        raise RequestError(said)
    return found


def _compiled(inputs: Inputs, source: str, given: SourceKernel, why: str) -> SourceKernel:
    """A kernel of CUDA C++ as a compiler's PTX. RequestError where there is no compiler, or it does not compile it."""
    keys = given.keys
    where = keys["source"].where
    if given.choices:
        said = f"{next(iter(given.choices))} has a list of values, and the kernel is compiled once, as PTX, since {why}"
        raise keys["defines"].fail(f"{said}; write one value")
    unit = includes.expand(inputs, source, (), yaml=given.path, where=where)  # a compiler finds the headers of folders
    _, instance = _named(keys)
    overload = instance.endswith(")")
    asked = Source(
        name=given.name, text=unit.whole, entries=() if overload else (instance,), flags=given.flags,
        include_dirs=tuple(str(Path(given.path).resolve().parent / each) for each in _folders(keys)),
        defines=define_values(given, given.sizes, given.block.shapes[0]),
        symbols=tuple(each.symbol for each in given.variables),
    )  # fmt: skip
    made = inputs.compiled(asked)
    if made is None:
        said = "it is to be compiled to PTX, and no nvcc is there: pip install 'fusiond[nvcc]'"
        raise RequestError(said, where=where)
    if isinstance(made, BuildFailed):
        raise RequestError(f"it does not compile: {made.reason}", where=where)
    kernel = arguments.given_kernel(given, unit, instance, made.text)
    variables = tuple(dataclasses.replace(each, symbol=made.symbols[each.symbol]) for each in given.variables)
    block = BlockShapes(shapes=kernel.block.shapes[:1]) if _by_block(given) else kernel.block
    kernel = dataclasses.replace(kernel, variables=variables, block=block, why_ptx=why)
    try:
        mangled = signatures.overload(made.text, instance) if overload else made.names[instance]
        return ptx_kernel.of_ptx(kernel, made.text, mangled)
    except PtxError as problem:
        raise RequestError(f"nvcc's PTX is not understood: {problem}", where=where) from None


def _of_source(inputs: Inputs, source: str, given: SourceKernel) -> SourceKernel | RequestError:
    """A kernel of CUDA C++, as libclang reads it; the error where this version does not take it. RequestError for what
    the YAML file says of it."""
    from fusiond_hfuse.frontend.clang_tree import Reading
    from fusiond_hfuse.frontend.kernel_parser import parse_kernel  # takes long to load, and PTX needs none

    keys = given.keys
    entry, instance = _named(keys)
    named = "instance" in keys
    way = Reading(
        entry=entry,
        name=given.name,
        where=keys["instance" if named else "entry"].where,
        instance=instance if named else None,
        flags=given.flags,
        defines=define_values(given, given.sizes, given.block.shapes[0]),
        variables=tuple(each.symbol for each in given.variables),
    )
    try:
        whole = includes.expand(inputs, source, _folders(keys), yaml=given.path, where=keys["source"].where)
        unit, parsed = parse_kernel(whole, way)
    except RequestError as problem:
        if isinstance(problem, UnknownName) and entry.rpartition("::")[2] not in whole.text:
            raise
        return problem
    passed = arguments.checked(given.arguments, parsed.parameters, keys["arguments"])
    variables = arguments.checked_variables(given.variables, parsed.variables, given.sizes)
    if parsed.uses_dynamic_shared and "shared" not in keys:
        wanted = f"{entry} has an extern __shared__ array, so the key 'shared' must give its bytes"
        raise RequestError(wanted, where=f"{given.path}:{next(iter(keys.values())).line}")
    given = dataclasses.replace(given, arguments=passed, variables=variables)
    moved = None  # where all static arrays together are too large to be that; their places are numbers in the text
    if not (parsed.rejections or (parsed.static_shared_bytes or 0) < _WORTH_MOVING or _by_block(given)):
        _, moved = parse_kernel(whole, way, move=True)
        moved = None if moved.rejections else moved
    kernel = arguments.given_kernel(given, unit, instance, unit.whole)
    return dataclasses.replace(kernel, entry=entry, parsed=parsed, moved=moved)


_PTX_NAME = re.compile(r"[A-Za-z_$%][\w$]*")


def _of_ptx(inputs: Inputs, source: str, given: SourceKernel) -> SourceKernel:
    """A kernel whose source is PTX."""
    keys = given.keys
    if "form" in keys and keys["form"].choice("ptx", "source") == "source":
        raise keys["form"].fail("is 'source', and the source is PTX")
    for key in ("instance", "defines", "include", "flags"):
        if key in keys:
            raise keys[key].fail("is for sources in C++; PTX is assembled as it is")
    where = keys["source"].where
    entry = arguments.matching(keys["entry"], _PTX_NAME, "the name of a kernel, as the PTX has it")
    text = inputs.text(source, where=where)
    unit = TranslationUnit(text=text, files={source: text})
    try:
        return ptx_kernel.of_ptx(arguments.given_kernel(given, unit, entry, text), text, entry)
    except PtxError as problem:
        raise RequestError(problem.reason, where=f"{source}:{problem.line}") from None


def _check_names(passed: tuple[KernelArgument, ...], variables: tuple[KernelArgument, ...]) -> None:
    """RequestError where two buffers or scalars, those inside structs included, have one name."""
    structs = tuple(each for each in (*passed, *variables) if each.members)
    everything = (*passed, *buffers_among(structs), *variables)
    names = [each.name for each in everything]
    own = {each.name for each in everything if each.elements is not None and not each.symbol}
    for each in everything:
        if each.part_of and each.part_of not in own:
            raise UnknownName("buffer", each.part_of, own, where=each.where)
        if names.count(each.name) > 1:
            raise each.fail(f"two arguments are called {each.name!r}")


def _named(keys: Mapping[str, Node]) -> tuple[str, str]:
    """The kernel, and the instance of it."""
    entry = arguments.matching(keys["entry"], arguments.QUALIFIED, "the name of a kernel")
    if "instance" not in keys:
        return entry, entry
    wanted = "the entry with template arguments (maxpool<float, 5>) or parameters (scan(int*))"
    instance = arguments.matching(keys["instance"], _INSTANCE, wanted)
    if re.split(r"[<(]", instance)[0].strip() != entry:
        raise keys["instance"].fail(f"is not an instance of {entry}")
    return entry, instance


_FLAGS_WANTED = (
    "one of -use_fast_math, -fmad=, -ftz=, -prec-div=, -prec-sqrt=, -std=c++17, --expt-relaxed-constexpr, "
    "--extended-lambda, -lineinfo (register caps are searched, include folders stand under 'include')"
)

_WORTH_MOVING = 4096  #: Bytes of static shared arrays: less than that does not decide whether kernels fit together


def _by_block(kernel: SourceKernel) -> bool:
    """Whether a macro depends on the block."""
    formulas = (value for _, value in kernel.defines if isinstance(value, Expression))
    return any(name.startswith("block.") for each in formulas for name in each.names)


def _folders(keys: Mapping[str, Node]) -> tuple[str, ...]:
    return tuple(each.text() for each in _list(keys.get("include")))


def _list(node: Node | None) -> tuple[Node, ...]:
    return () if node is None else node.sequence()


def _macros(
    node: Node | None, sizes: Mapping[str, int]
) -> tuple[tuple[tuple[str, Expression | str], ...], dict[str, tuple[Scalar, ...]]]:
    """Macros, and the values of those that have a list of whole numbers. A value over sizes and block.* is worked out;
    anything else is as it stands; of a list the first."""
    defines: list[tuple[str, Expression | str]] = []
    choices: dict[str, tuple[Scalar, ...]] = {}
    for name, value in (node.mapping() if node is not None else {}).items():
        if isinstance(value.value, tuple):
            choices[name] = tuple(dict.fromkeys(each.integer() for each in value.sequence()))
            if not choices[name]:
                raise value.fail("is empty; write at least one whole number")
            if name in sizes or name in ("threads", "cap"):
                raise value.fail(f"{name} has a meaning already; a macro with a list of values needs another name")
            value = value.sequence()[0]
        if not arguments.IDENTIFIER.fullmatch(name):
            raise value.fail(f"{name[:80]!r} cannot be the name of a macro")
        if isinstance(value.value, int) and not isinstance(value.value, bool):
            text = str(value.integer())
        else:
            text = "" if value.value is None else value.text()
        if not text.isprintable():
            raise value.fail("a macro's value is one line")
        try:
            parsed = expressions.parse(text)
        except ExpressionError:
            defines.append((name, text))
            continue
        known = {*sizes, "block.x", "block.y", "block.z"}
        defines.append((name, parsed if parsed.names <= known else text))
    return tuple(defines), choices


def define_values(kernel: SourceKernel, sizes: Mapping[str, int], block: Dim3) -> tuple[tuple[str, str], ...]:
    """A kernel's macros with their values at a block shape."""
    names = {**sizes, **axes("block", block)}
    try:
        return tuple(
            (name, str(value.integer(names)) if isinstance(value, Expression) else value)
            for name, value in kernel.defines
        )
    except ExpressionError as problem:
        raise RequestError(str(problem), where=kernel.where("defines")) from None


def _block(node: Node) -> BlockShapes:
    keys = node.mapping(known=("shape", "shapes", "tune"))
    if ("shape" in keys) == ("shapes" in keys):
        raise node.fail("holds either 'shape' or 'shapes'")
    if "shapes" in keys:
        if "tune" in keys:
            raise keys["tune"].fail("goes with 'shape', not with a list of shapes")
        shapes = tuple(_shape(each) for each in keys["shapes"].sequence())
        if not shapes:
            raise keys["shapes"].fail("is empty")
        volumes = [volume(shape) for shape in shapes]
        for shape, size in zip(shapes, volumes, strict=True):
            if volumes.count(size) > 1:
                raise keys["shapes"].fail(f"two shapes have {size} threads, {shape} is one; keep the better one")
        return BlockShapes(shapes=shapes)
    shape = _shape(keys["shape"])
    tune = "xyz".index(keys["tune"].choice("x", "y", "z")) if "tune" in keys else None
    return BlockShapes(shapes=(shape,), tune=tune)


def _shape(node: Node) -> Dim3:
    lengths = [each.integer(least=1, most=most) for each, most in zip(_up_to_three(node), MAX_BLOCK, strict=False)]
    shape = (*lengths, 1, 1)[:3]
    result = (shape[0], shape[1], shape[2])
    if volume(result) > 1024:
        raise node.fail(f"has {volume(result)} threads; a block has at most 1024")
    return result


def _up_to_three(node: Node) -> tuple[Node, ...]:
    parts = node.sequence()
    if not 1 <= len(parts) <= 3:
        raise node.fail(f"has {len(parts)} lengths; expected one to three")
    return parts


def _grid(node: Node) -> tuple[Expression, ...]:
    return tuple(values.expression(each) for each in _up_to_three(node))
