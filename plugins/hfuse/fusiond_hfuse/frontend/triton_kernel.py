"""A Triton kernel as its YAML file describes it: constants, warps and stages, and Triton's PTX for each.

source: norm.py    entry: rms_norm    constants: {BLOCK: [512, 1024], EPS: 1e-6}    warps: [2, 4, 8]    stages: 3
"""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fusiond.model.errors import RequestError
from fusiond.model.inputs.documents import Node
from fusiond.model.language import expressions
from fusiond.model.language.dtypes import is_float
from fusiond.model.language.expressions import Expression, ExpressionError, Scalar
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Buffer, Dim3, Role
from fusiond.model.ptx.tree import PtxError
from fusiond.model.ptx.triton import Constant, TritonConfig, TritonKernel, TritonSource
from fusiond.strategy import Inputs
from fusiond_hfuse.frontend import ptx_kernel, python_slice
from fusiond_hfuse.frontend.arguments import IDENTIFIER, given_kernel, matching
from fusiond_hfuse.frontend.launch_shapes import axes
from fusiond_hfuse.frontend.source_kernel import WARP, BlockShapes, KernelArgument, SourceKernel, TranslationUnit

STAGES = "stages"
MOST = 256  #: Ways to compile a kernel, all together
DEFAULT_WARPS = 4
_TAKEN = ("threads", "cap", "alone", "virtual", STAGES)  #: What a space has by these names
_ARCH = re.compile(r"-arch=(sm_\d+)")
_POWER = re.compile(r"next_power_of_2\((.*)\)")


@dataclass(frozen=True, slots=True)
class NextPowerOf2:
    """`triton.next_power_of_2` of a formula over sizes."""

    of: Expression


_Open: TypeAlias = Constant | Expression | NextPowerOf2


def blocks(keys: Mapping[str, Node]) -> BlockShapes:
    """One for each number of warps."""
    warps = _numbers(keys.get("warps"), 32) or (DEFAULT_WARPS,)
    for each in warps:
        if each & (each - 1):
            raise keys["warps"].fail(f"{each} warps; Triton takes powers of two")
    return BlockShapes(shapes=tuple((WARP * each, 1, 1) for each in warps))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """One way to compile a kernel."""

    threads: int
    named: Mapping[str, Scalar]  #: What a grid may name
    chosen: frozenset[tuple[str, Scalar]]  #: Its values of what has several
    config: TritonConfig

    def __str__(self) -> str:
        said = [f"{name} = {value}" for name, value in self.config.constants]
        said += [f"{self.config.warps} warps"] + ([f"{self.config.stages} stages"] if self.config.stages else [])
        return ", ".join(said)


def read(inputs: Inputs, source: str, given: SourceKernel) -> SourceKernel:
    """A kernel of a Python file, compiled in each way that its YAML says. RequestError, also where the first of them
    does not compile."""
    keys = given.keys
    for key in ("form", "instance", "defines", "include", "block", "shared"):
        if key in keys:
            raise keys[key].fail("is for other sources; a kernel in Triton has constants, warps and stages")
    entry = matching(keys["entry"], IDENTIFIER, "the name of a function")
    part = python_slice.sliced(inputs, source, entry, where=keys["entry"].where)
    constants = _constants(keys, given.sizes)
    ways = list(_ways(given, constants))
    configs = tuple(each.config for each in ways)
    asked = TritonSource(files=part.files, module=part.module, entry=entry, configs=configs, arch=_arch(given))
    made = inputs.triton(asked)
    where = keys["source"].where
    if isinstance(made, BuildFailed):
        raise RequestError(f"{entry}: {made.reason}", where=where)
    if isinstance(made[0], str):
        raise RequestError(f"{entry} with {ways[0]}: {made[0]}", where=where)
    unit = TranslationUnit(text="", files=part.read)
    said = [node.plain() for name, node in keys.items() if name == "constants"]
    base = given_kernel(given, unit, entry, json.dumps([part.files, said]))
    written = {"shared": keys["source"], "block": keys["source"], **keys}
    base = dataclasses.replace(base, keys=written, compiled_sizes=_compiled_sizes(given, constants))
    forms = {
        (way.threads, way.chosen): kernel if isinstance(kernel, str) else _form(base, way, kernel)
        for way, kernel in zip(ways, made, strict=True)
    }
    first = forms[ways[0].threads, ways[0].chosen]
    assert isinstance(first, SourceKernel)
    compiled = [each for each in forms.values() if isinstance(each, SourceKernel)]
    parsed = dataclasses.replace(
        first.parsed, launch_bound=None, warpgroups=any(each.parsed.warpgroups for each in compiled)
    )
    names = dict.fromkeys(name for way in ways for name in way.named)
    choices = {name: tuple(dict.fromkeys(way.named[name] for way in ways)) for name in names}
    return dataclasses.replace(first, block=given.block, parsed=parsed, forms=forms, choices=choices)


def _form(base: SourceKernel, way: _Way, made: TritonKernel) -> SourceKernel:
    """The kernel compiled in one way."""
    arguments = []
    for each in made.parameters:
        argument = base.arguments[each.place]
        if argument.buffer is None and each.dtype is not None:  # whose width the value decides
            argument = dataclasses.replace(argument, dtype=each.dtype)
        arguments.append(argument)
    passed = {each.place for each in made.parameters}
    where = base.where("entry")
    try:
        ptx, _ = ptx_kernel.read(made.text, made.entry, base.name, where)
        behind = len(ptx.entry.parameters) - len(arguments)
        kernel = dataclasses.replace(
            base,
            arguments=(*arguments, *_behind(base, behind, made.scratch_bytes)),
            block=BlockShapes(shapes=((way.threads, 1, 1),)),
            shared=expressions.parse(str(made.shared_bytes)),
            unpassed=tuple(each for at, each in enumerate(base.arguments) if at not in passed),
            choices={name: (value,) for name, value in way.named.items()},
        )
        return ptx_kernel.of_ptx(kernel, made.text, made.entry)
    except PtxError as problem:
        raise RequestError(f"Triton's PTX is not understood: {problem}", where=where) from None


def _behind(kernel: SourceKernel, count: int, scratch_bytes: int) -> Iterator[KernelArgument]:
    """What Triton puts behind a kernel's own parameters: the address of memory for its blocks, and of a profiler's."""
    for number in range(count):
        if number or not scratch_bytes:
            yield KernelArgument(name=f"triton_{number}", dtype="uint8", hex="00" * 8, bytes=8)
            continue
        total = " * ".join([str(scratch_bytes), *(f"({each.text})" for each in kernel.grid)])
        pattern = Buffer(name="triton_scratch", dtype="uint8", elements=1, role=Role.SCRATCH)
        elements = expressions.parse_formula(total)
        yield KernelArgument(name=pattern.name, dtype="uint8", elements=elements, buffer=pattern, where=kernel.path)


# --- the ways -------------------------------------------------------------------------------------------


def _ways(given: SourceKernel, constants: Mapping[str, tuple[_Open, ...]]) -> Iterator[_Way]:
    """The file's first values first."""
    stages = _numbers(given.keys.get(STAGES), 64)
    count = len(given.block.shapes) * max(len(stages), 1) * math.prod(map(len, constants.values()))
    if count > MOST:
        said = f"there are {count} ways to compile it; at most {MOST} are tried: leave out some constants"
        raise given.keys["entry"].fail(said)
    worked = {name: [_worked_out(each, given) for each in values] for name, values in constants.items()}
    for shape, stage, values in itertools.product(
        given.block.shapes, stages or (None,), itertools.product(*worked.values())
    ):
        held: dict[str, Constant] = dict(zip(worked, values, strict=True))
        named: dict[str, Scalar] = {name: value for name, value in held.items() if isinstance(value, int | str)}
        chosen = {name: value for name, value in named.items() if len(worked[name]) > 1}
        if len(stages) > 1:
            named[STAGES] = chosen[STAGES] = stage
        config = TritonConfig(
            constants=tuple(held.items()), arguments=_arguments(given, shape, named), stages=stage,
            warps=shape[0] // WARP,
        )  # fmt: skip
        yield _Way(threads=shape[0], named=named, chosen=frozenset(chosen.items()), config=config)


def _arguments(given: SourceKernel, shape: Dim3, named: Mapping[str, Scalar]) -> tuple[tuple[str, Constant], ...]:
    """What Triton specialises for. RequestError."""
    names: dict[str, Scalar] = {**named, **given.sizes, **axes("block", shape)}
    where = given.keys["grid"].where
    try:
        lengths = (*(each.integer(names) for each in given.grid), 1, 1)
        names |= axes("grid", (lengths[0], lengths[1], lengths[2]))
        found: list[tuple[str, Constant]] = []
        for each in given.arguments:
            where = each.where
            if each.buffer is not None:
                found.append((f"*{each.dtype}", None))
            elif each.value is None:
                raise RequestError(f"{each.name} is a struct; Triton takes buffers and numbers", where=where)
            else:
                value = each.value if isinstance(each.value, float) else each.value.integer(names)
                kind = float if is_float(each.dtype) else bool if each.dtype == "bool" else int
                found.append(("number", kind(value)))
    except ExpressionError as problem:
        raise RequestError(str(problem), where=where) from None
    return tuple(found)


def _compiled_sizes(given: SourceKernel, constants: Mapping[str, tuple[_Open, ...]]) -> frozenset[str]:
    """Of constants, and of whole numbers: by their values they are specialised."""
    formulas = [each.of if isinstance(each, NextPowerOf2) else each for values in constants.values() for each in values]
    formulas += [each.value for each in given.arguments if not is_float(each.dtype)]
    names = (each.names for each in formulas if isinstance(each, Expression))
    return frozenset().union(*names) & given.sizes.keys()


# --- keys of the file -----------------------------------------------------------------------------------


def _arch(given: SourceKernel) -> str:
    """RequestError for flags that mean nothing here."""
    flags = given.keys.get("flags")
    found = [_ARCH.fullmatch(each) for each in given.flags]
    if flags is not None and not all(found):
        raise flags.fail("a kernel in Triton takes -arch=sm_90 and the like, and no other")
    return next((each[1] for each in reversed(found) if each), "")


def _constants(keys: Mapping[str, Node], sizes: Mapping[str, int]) -> dict[str, tuple[_Open, ...]]:
    constants: dict[str, tuple[_Open, ...]] = {}
    for name, node in (keys["constants"].mapping() if "constants" in keys else {}).items():
        if not IDENTIFIER.fullmatch(name):
            raise node.fail(f"{name[:80]!r} cannot be the name of a parameter")
        given = _listed(node)
        if name in _TAKEN or (name in sizes and len(given) > 1):
            raise node.fail(f"{name} has a meaning already, so it cannot be tuned by this name")
        constants[name] = tuple(dict.fromkeys(_constant(each, sizes) for each in given))
        if len(given) > 1 and any(isinstance(each, float) or each is None for each in constants[name]):
            raise node.fail("a list is of whole numbers, texts, true and false")
    return constants


def _listed(node: Node) -> tuple[Node, ...]:
    """One value, or several."""
    given = node.sequence() if isinstance(node.value, tuple) else (node,)
    if not given:
        raise node.fail("is empty; write at least one value")
    return given


def _numbers(node: Node | None, most: int) -> tuple[int, ...]:
    return () if node is None else tuple(dict.fromkeys(each.integer(least=1, most=most) for each in _listed(node)))


def _constant(node: Node, sizes: Mapping[str, int]) -> _Open:
    """A value as it stands; a formula over sizes is worked out."""
    if node.value is None or isinstance(node.value, bool | int | float):
        return node.value
    text = node.text()
    power = _POWER.fullmatch(text.strip())
    try:
        found = expressions.parse(power[1] if power else text)
    except ExpressionError:
        return text
    if not found.names <= sizes.keys() or not (found.names or power):
        return text
    return NextPowerOf2(found) if power else found


def _worked_out(value: _Open, given: SourceKernel) -> Constant:
    if not isinstance(value, Expression | NextPowerOf2):
        return value
    try:
        if isinstance(value, Expression):
            return int(value.integer(given.sizes))
        return 1 << max(int(value.of.integer(given.sizes)) - 1, 0).bit_length()
    except ExpressionError as problem:
        raise RequestError(str(problem), where=given.keys["constants"].where) from None
