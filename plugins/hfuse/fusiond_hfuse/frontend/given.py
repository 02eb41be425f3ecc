"""What a kernel's YAML file says of it, with its source: its key."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from fusiond.model.inputs.documents import Node
from fusiond.model.keys import content_key, plain
from fusiond.model.language.expressions import Expression
from fusiond.model.program import Buffer
from fusiond_hfuse.frontend.source_kernel import KernelArgument, SourceKernel, StructMember, TranslationUnit


def given_kernel(given: SourceKernel, unit: TranslationUnit, instance: str, text: str) -> SourceKernel:
    """A kernel as its file gives it with its source, of which nothing else is known yet."""
    key = _content_key(given.keys, text, (*given.arguments, *given.variables))
    return dataclasses.replace(given, unit=unit, entry=instance, instance=instance, content_key=key)


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
