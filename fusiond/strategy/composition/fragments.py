"""A Program of one launch, as a launch over another Program's names.

a Program: fused(a.x, a.y, b.z, 5000)   -->   fused(photo, light, bins, 5000), which reads photo and writes two

Its numbers follow from the caller's sizes, as far as they followed from its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fusiond.model.language import expressions
from fusiond.model.language.extents import Extent, text_of
from fusiond.model.program import Argument, Buffer, Bytes, Launch, Memory, Pointer, Program, Role, Scalar, Source
from fusiond.model.program.formulas import replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """A launch. Its pointers name what the caller names so; its numbers follow from the caller's sizes."""

    source: Source
    launch: Launch
    reads: tuple[str, ...]  #: In the order in which they are first passed
    writes: tuple[str, ...]
    fixed: frozenset[str] = frozenset()
    """The caller's sizes that it holds at: they stand in its text, or lengths that are equal at these may differ."""


class Unfit(ValueError):
    """A Program cannot stand in the place of nodes; the text is why, in a few words."""


def fragment(
    program: Program, names: Mapping[str, str], bytes_of: Mapping[str, int], sizes: Mapping[str, int] | None = None
) -> Fragment:
    """The launch of a Program whose buffers `names` says in the caller's words: a buffer's name, or what stands behind
    its last point (`a.x` is `x` too). `bytes_of`: the length of what the caller names; `sizes`: what each size of the
    Program is to the caller, an Extent where it follows from the caller's own. Unfit."""
    if program.seams:
        raise Unfit(f"it leaves {program.seams[0].name} to a library")
    if len(program.steps) != 1 or not isinstance(program.steps[0], Launch):
        raise Unfit(f"its answer is {len(program.steps)} steps; one launch can stand in the place of the kernels")
    fixed = _names(sizes or {}, program.fixed)
    program = _in_sizes(program, sizes or {})
    (launch,) = program.launches
    buffers = {each.name: each for each in program.buffers}
    arguments = tuple(_argument(each, buffers, names, bytes_of) for each in launch.arguments)
    passed = dict.fromkeys(each.buffer for each in launch.arguments if isinstance(each, Pointer))
    found: dict[Role, list[str]] = {Role.INPUT: [], Role.OUTPUT: []}
    for name in passed:
        own = _name(name, names)
        if own not in found[buffers[name].role]:
            found[buffers[name].role].append(own)
    both = set(found[Role.INPUT]) & set(found[Role.OUTPUT])
    if both:
        raise Unfit(f"it reads and writes {min(both)} in one launch")
    bare = replace(launch, name="fused", arguments=arguments, stream=0, after=())
    return Fragment(
        source=program.source(launch.source),
        launch=bare,
        reads=tuple(found[Role.INPUT]),
        writes=tuple(found[Role.OUTPUT]),
        fixed=fixed | _of_lengths((buffers[name].size_bytes, bytes_of[_name(name, names)]) for name in passed),
    )


def _in_sizes(program: Program, sizes: Mapping[str, int]) -> Program:
    """A Program whose numbers follow from the caller's sizes; plain, where they follow from none."""
    known = {**dict(program.sizes), **sizes}

    def changed(number: Extent) -> int:
        return expressions.parse_formula(number.text).integer(known)

    buffers, steps = replaced((program.buffers, program.steps), changed)
    return replace(program, buffers=buffers, steps=steps, sizes=(), fixed=())


def _names(sizes: Mapping[str, int], of: Iterable[str]) -> frozenset[str]:
    """The caller's sizes from which these of the Program follow."""
    return frozenset(name for each in of if each in sizes for name in _variables(sizes[each]))


def _of_lengths(pairs: Iterable[tuple[int, int]]) -> frozenset[str]:
    """The sizes of lengths that are equal, though their formulas are not."""
    apart = [pair for pair in pairs if text_of(pair[0]) != text_of(pair[1])]
    return frozenset(name for pair in apart for each in pair for name in _variables(each))


def _variables(number: int) -> frozenset[str]:
    return frozenset(expressions.parse_formula(text_of(number)).names)


def _argument(
    argument: Argument, buffers: Mapping[str, Buffer], names: Mapping[str, str], bytes_of: Mapping[str, int]
) -> Argument:
    if isinstance(argument, Bytes):
        raise Unfit("it passes a struct")
    if isinstance(argument, Scalar):
        return Scalar(dtype=argument.dtype, value=argument.value)
    buffer, own = buffers[argument.buffer], _name(argument.buffer, names)
    if buffer.role not in (Role.INPUT, Role.OUTPUT):
        raise Unfit(f"it uses {buffer.name} as {buffer.role.value}")
    if buffer.memory is not Memory.DEVICE or buffer.symbol is not None:
        raise Unfit(f"{buffer.name} is not plain device memory")
    if int(buffer.size_bytes) != bytes_of[own]:
        raise Unfit(f"{buffer.name} has {int(buffer.size_bytes)} bytes, and {own} {bytes_of[own]}")
    return Pointer(buffer=own)


def _name(buffer: str, names: Mapping[str, str]) -> str:
    for each in (buffer, buffer.rpartition(".")[2]):
        if each in names:
            return names[each]
    raise Unfit(f"it uses {buffer}, which stands for nothing here")
