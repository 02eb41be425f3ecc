"""The content of a kernel's YAML file before its source is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fusiond.model.errors import RequestError
from fusiond.model.inputs.documents import Node
from fusiond.model.keys import content_key, plain
from fusiond.model.language.expressions import Expression, Scalar
from fusiond.model.nouns import Rejection
from fusiond.model.program import Buffer
from fusiond_hfuse.frontend import ptx_kernel
from fusiond_hfuse.frontend.source_kernel import (
    BlockShapes,
    KernelArgument,
    Parsed,
    PtxText,
    SourceKernel,
    StructMember,
    TranslationUnit,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenKernel:
    """What a file says, before its source is read."""

    name: str
    path: str
    where: str
    keys: Mapping[str, Node]
    flags: tuple[str, ...]
    defines: tuple[tuple[str, Expression | str], ...]
    sizes: Mapping[str, int]
    odd: Mapping[str, int]
    arguments: tuple[KernelArgument, ...]
    variables: tuple[KernelArgument, ...]
    block: BlockShapes
    grid: tuple[Expression, ...]
    shared: Expression
    choices: Mapping[str, tuple[Scalar, ...]]


def of_ptx(kernel: SourceKernel, ptx: PtxText, parsed: Parsed, node: Node) -> SourceKernel:
    """A kernel with its PTX, which its YAML agrees with. RequestError where it does not."""
    required = ptx.limits.get("reqntid")
    shape = kernel.block.shapes[0]
    if required is not None and (*required, 1, 1)[:3] != shape:
        said = f"the block is {shape}, and the kernel says .reqntid {required}"
        raise RequestError(said, where=kernel.lines["block"])
    ptx_kernel.checked_variables(kernel.variables, ptx)
    if parsed.uses_dynamic_shared and "shared" not in kernel.lines:
        said = f"{ptx.entry.name} has a shared array without a length, so the key 'shared' must give its bytes"
        raise RequestError(said, where=kernel.path)
    parsed = parsed.replaced(rejections=(*parsed.rejections, *_unset(kernel, ptx)))
    return dataclasses.replace(
        kernel,
        ptx=ptx,
        instance=ptx.entry.name,
        arguments=ptx_kernel.checked(kernel.arguments, parsed.parameters, node),
        block=BlockShapes(shapes=(shape,)) if required is not None else kernel.block,
        parsed=parsed,
        moved=ptx_kernel.moved(ptx, parsed),
    )


def _unset(kernel: SourceKernel, ptx: PtxText) -> Iterator[Rejection]:
    """Variables without a value: of a run alone nobody knows what they hold, and of two the second finds what the first
    has left."""
    given = {each.symbol for each in kernel.variables}
    for each in ptx.variables:
        if each.space in ("const", "global") and each.elements and not each.initial and each.name not in given:
            detail = f"{kernel.path}: the variable {each.name} has no value but the host's; say it under `constants:`"
            yield Rejection(rule="symbol", nodes=(kernel.name,), detail=detail)


def given_kernel(given: GivenKernel, unit: TranslationUnit, instance: str, text: str) -> SourceKernel:
    """A kernel as its file gives it, of whose source nothing is known yet."""
    nothing = Parsed(
        entry=instance, parameters=(), edits=(), uses_dynamic_shared=False, static_shared_bytes=None, barriers=0,
        launch_bound=None, rejections=(),
    )  # fmt: skip
    return SourceKernel(
        name=given.name, path=given.path, unit=unit, entry=instance, instance=instance, defines=given.defines,
        flags=given.flags, sizes=given.sizes, odd=given.odd, arguments=given.arguments, variables=given.variables,
        block=given.block, grid=given.grid, shared=given.shared, parsed=nothing,
        content_key=_content_key(given.keys, text, (*given.arguments, *given.variables)),
        lines={key: node.where for key, node in given.keys.items()}, choices=given.choices,
    )  # fmt: skip


def _content_key(keys: Mapping[str, Node], text: str, arguments: tuple[KernelArgument, ...]) -> str:
    """A key without sizes and without anybody's paths; an input file counts by its content."""
    left_out = ("source", "include", "sizes", "odd", "summary", "arguments", "constants")
    described = {key: node.plain() for key, node in keys.items() if key not in left_out}
    patterns = [
        [
            each.name,
            each.dtype,
            each.elements.text if each.elements else None,
            _value_text(each.value),
            _pattern(each.buffer),
            *(_described_member(member) for member in each.members),
            *(text for text in (each.hex, each.symbol, _part(each)) if text),
        ]
        for each in arguments
    ]
    return content_key([described, patterns, text])


def _described_member(member: StructMember) -> list[object]:
    if member.target is not None and member.target.part_of:
        return [member.path, _part(member.target)]
    if member.target is None or member.target.elements is None:
        return [member.path, member.dtype, _value_text(member.value)]
    return [member.path, member.dtype, member.target.elements.text, _pattern(member.target.buffer)]


def _part(argument: KernelArgument) -> str:
    """Where an address in another buffer's memory is; empty of all others."""
    return f"{argument.part_of}[{argument.offset.text}]" if argument.offset is not None else ""


def _value_text(value: Expression | float | None) -> str | float | None:
    return value.text if isinstance(value, Expression) else value


def _pattern(buffer: Buffer | None) -> object:
    if buffer is None:
        return None
    fill = plain(buffer.fill)
    fill.pop("file")
    return [buffer.role.value, fill, plain(buffer.compare)]


# --- the parts of the file ------------------------------------------------------------------------------
