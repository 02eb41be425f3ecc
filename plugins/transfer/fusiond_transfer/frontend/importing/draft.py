"""A kernel graph that is not known whole, as the YAML that its user fills in: `"?"` for what nobody said."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from fusiond.inputs.documents import UNKNOWN

_LONGEST_NAME = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVector:
    """`dtype` and `elements` are empty where they are to be asked for; `note`: what there is to say of it."""

    name: str
    dtype: str = ""
    elements: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftKernel:
    """`reads` and `writes` are None where they are to be asked for; `body`: formulas of all outputs, or none; None
    where it is to be asked for."""

    name: str
    on: str
    reads: tuple[str, ...] | None = None
    writes: tuple[str, ...] | None = None
    body: tuple[str, ...] | None = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftGraph:
    name: str
    vectors: tuple[DraftVector, ...]
    kernels: tuple[DraftKernel, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())

    def yaml(self) -> str:
        """The text, with the notes ahead of it."""
        lines = [f'# Drafted by `fusiond init`. "{UNKNOWN}" stands for what the program does not say.']
        lines += [f"# {each}".rstrip() for each in self.notes]
        lines += [f"graph: {json.dumps(self.name)}", f"inputs: {_list(self.inputs)}", f"outputs: {_list(self.outputs)}"]
        lines.append("vectors:" if self.vectors else "vectors: {}")
        for vector in self.vectors:
            elements = str(vector.elements) if vector.elements else _UNKNOWN
            text = f"  {json.dumps(vector.name)}: {{dtype: {vector.dtype or _UNKNOWN}, elements: {elements}}}"
            lines.append(f"{text}  # {vector.note}" if vector.note else text)
        lines.append("kernels:" if self.kernels else "kernels: []")
        for kernel in self.kernels:
            keys = [f"name: {json.dumps(kernel.name)}", f"on: {kernel.on}"]
            for key, names in (("reads", kernel.reads), ("writes", kernel.writes)):
                keys.append(f"{key}: {_UNKNOWN if names is None else _list(names)}")
            if kernel.body is None:
                keys.append(f"body: {_UNKNOWN}")
            elif kernel.body and kernel.writes is not None:
                keys.append(f"body: {json.dumps(dict(zip(kernel.writes, kernel.body, strict=True)))}")
            text = f"  - {{{', '.join(keys)}}}"
            lines.append(f"{text}  # {kernel.note}" if kernel.note else text)
        return "\n".join(lines) + "\n"


_UNKNOWN = f'"{UNKNOWN}"'


def _list(names: Sequence[str]) -> str:
    return json.dumps(list(names))


class DraftNames:
    """Identifiers made of what programs call things, each once."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def of(self, text: str) -> str:
        """`void scan<4>(int*)` --> `scan`, then `scan_2`: the last word ahead of brackets."""
        head = re.split(r"[<(]", text, maxsplit=1)[0].strip() or text
        plain = re.sub(r"\W+", "_", head.split()[-1].rpartition("::")[2] if head.split() else "")[:_LONGEST_NAME]
        plain = plain.rstrip("_") or "unnamed"
        plain = f"_{plain}" if plain[0].isdigit() else plain
        found, number = plain, self._taken.get(plain, 1)
        while found in self._taken:
            number += 1
            found = f"{plain}_{number}"
        self._taken |= {plain: number, found: 1}
        return found
