"""A captured launch as hfuse takes a kernel: a YAML beside its PTX.

A parameter that is an address is a buffer `p3` from there to the end of its allocation; an address inside a struct
stands at its place (`p3.16`); everything else is its bytes. Each buffer is inout and compared bit for bit.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.foreign.captures import Capture, CapturedBytes, Reference
from fusiond.ptx import parser, rewrite


def write(capture: Capture, folder: Path) -> Path:
    """NAME.yaml, the PTX and the files of buffers, in a folder. RequestError, PtxError where the PTX is not read."""
    (folder / f"{capture.name}.ptx").unlink(missing_ok=True)
    (folder / f"{capture.name}.ptx").symlink_to(capture.ptx.resolve())
    lengths = dict(zip(("grid_x", "grid_y", "grid_z"), capture.grid, strict=True))
    sizes = {name: length for name, length in lengths.items() if length > 1}
    lines = [
        f"kernel: {capture.name}",
        f"source: {capture.name}.ptx",
        f"entry: {json.dumps(capture.entry)}",
        f"sizes: {json.dumps(sizes)}",
        f"block: {{shape: {list(capture.block)}}}",
        f"grid: {[name if name in sizes else 1 for name in lengths]}",
        f'shared: "{capture.shared_bytes}"',
        "arguments:" if capture.parameters else "arguments: []",
    ]
    for number, each in enumerate(capture.parameters):
        lines.append(f"  - {_argument(capture, folder, number, each)}")
    held_by = variables(capture)
    lines += ["constants:"] if held_by else []
    for name, held in held_by.items():
        filled = _fill(held, 0, folder, f"{capture.name}.{name}")
        how = f"dtype: uint8, elements: {held.size_bytes}, role: inout, {filled}, compare: equal"
        lines.append(f"  - {{symbol: {json.dumps(name)}, name: {_identifier(name)}, {how}}}")
    path = folder / f"{capture.name}.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _identifier(name: str) -> str:
    return "v_" + "".join(each if each.isalnum() else "_" for each in name)


def variables(capture: Capture) -> dict[str, CapturedBytes]:
    """What the module's variables hold that the kernel reaches: those that the host did not set are zeros."""
    module = parser.parse(capture.ptx.read_text(encoding="utf-8"))
    found = {}
    for each in rewrite.reached(module, module.entries[capture.entry])[1]:
        unset = each.space in ("const", "global") and each.elements and not each.initial
        if each.name in capture.variables or unset:
            zeros = CapturedBytes(size_bytes=each.size_bytes, references=())
            found[each.name] = capture.variables.get(each.name, zeros)
    return found


def variable_of(capture: Capture, buffer: str) -> CapturedBytes | None:
    """What a buffer holds that is one of the module's variables; None for any other."""
    return next((held for name, held in variables(capture).items() if _identifier(name) == buffer), None)


def _argument(capture: Capture, folder: Path, number: int, parameter: CapturedBytes) -> str:
    addresses = [each for each in parameter.references if each.allocation is not None]
    if not addresses:
        return f"{{name: p{number}, bytes: {json.dumps(parameter.value.hex())}}}"
    if parameter.size_bytes == 8 and not _is_struct(capture, number):
        return f"{{name: p{number}, {_buffer(capture, folder, addresses[0], f'p{number}')}}}"
    return f"{{name: p{number}, struct: {{{', '.join(_members(capture, folder, number, parameter))}}}}}"


def _is_struct(capture: Capture, number: int) -> bool:
    """Whether a parameter of eight bytes is declared as bytes: a struct with an address and nothing else."""
    entry = parser.parse(capture.ptx.read_text(encoding="utf-8")).entries[capture.entry]
    return bool(entry.parameters[number].extents)


def _members(capture: Capture, folder: Path, number: int, parameter: CapturedBytes) -> Iterator[str]:
    at, known = 0, {each.at: each for each in parameter.references if each.allocation is not None}
    while at < parameter.size_bytes:
        if at in known:
            yield f'"{at}": {{{_buffer(capture, folder, known[at], f"p{number}.{at}")}}}'
            at += 8
            continue
        size, dtype, form = (4, "uint32", "<I") if at + 4 <= parameter.size_bytes else (1, "uint8", "<B")
        (value,) = struct.unpack_from(form, parameter.value, at)
        if value:
            yield f'"{at}": {{dtype: {dtype}, value: {value}}}'
        at += size


def _buffer(capture: Capture, folder: Path, reference: Reference, name: str) -> str:
    assert reference.allocation is not None
    held = capture.allocations[reference.allocation]
    filled = _fill(held, reference.offset, folder, f"{capture.name}.{name}")
    return f"dtype: uint8, elements: {held.size_bytes - reference.offset}, role: inout, {filled}, compare: equal"


def _fill(held: CapturedBytes, offset: int, folder: Path, name: str) -> str:
    if held.file is None:
        return "fill: zeros"
    file = folder / f"{name}.npy"
    file.unlink(missing_ok=True)
    if offset:
        np.save(file, held.contents()[offset:])
    else:
        file.symlink_to(held.file.resolve())
    return f"fill: {{file: {json.dumps(file.name)}}}"
