"""Triton's kernels: what to compile, and the result with everything that a launch needs.

Triton leaves out what it compiled in (`tl.constexpr`, and whole numbers that are 1), and puts one or two addresses
behind a kernel's own parameters: scratch memory for its blocks, and a profiler's.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Constant: TypeAlias = bool | int | float | str | None
"""What a `tl.constexpr` is: `tl.float16` is that type, any other text a text."""

WARP = 32
TYPES = {
    "i1": "bool", "u1": "bool", "i8": "int8", "u8": "uint8", "i16": "int16", "u16": "uint16", "i32": "int32",
    "u32": "uint32", "i64": "int64", "u64": "uint64", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32",
    "fp64": "float64", "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2",
}  # fmt: skip
"""Triton's name of a type -> a Program's."""
_DEBUG = re.compile(r"^[ \t]*\.(?:loc|file)\b.*\n|^[ \t]*\.section[ \t]+\.debug_\w+\s*\{[^}]*\}[ \t]*\n?", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonConfig:
    """One way to compile a kernel."""

    constants: tuple[tuple[str, Constant], ...]
    arguments: tuple[tuple[str, Constant], ...]
    """Of the parameters that are no constants, in order: what an address points to (`*float16`) and None, or `number`
    and a number, by whose value Triton specialises."""
    warps: int
    stages: int | None  #: None: Triton's default


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonSource:
    """A kernel in Triton that is to be compiled, in several ways."""

    files: Mapping[str, str]  #: Python files by their paths in a folder that is on the path
    module: str  #: That has the kernel: `ops.norm`
    entry: str
    configs: tuple[TritonConfig, ...]
    arch: str = ""  #: `sm_80`; empty for the GPU that is here, or else for sm_90


class NotTaken(Exception):
    """A kernel that Triton compiled, and that cannot be launched by its PTX alone; the text is why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonParameter:
    """One of a kernel's own parameters that its PTX has."""

    place: int  #: Among the parameters of the Python function, counted from 0; of a TritonConfig among its arguments
    name: str
    type: str  #: As Triton names it: `*fp32`, `i32`, `fp32`

    @property
    def pointer(self) -> bool:
        return self.type.startswith("*")

    @property
    def dtype(self) -> str | None:
        """A Program's name of the number, or of what it points to; None where there is none."""
        return TYPES.get(self.type.removeprefix("*").removeprefix("k"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonKernel:
    """A compiled kernel."""

    entry: str  #: Its name in the PTX
    text: str  #: PTX
    threads: int  #: Of a block, along x
    shared_bytes: int  #: Dynamic
    scratch_bytes: int  #: Of a block, in global memory; the first parameter behind the kernel's own is its address
    parameters: tuple[TritonParameter, ...]


def check_kind(name: str, kind: object) -> None:
    """NotTaken for a parameter, by its type as Triton names it, that a job cannot pass."""
    if not isinstance(kind, str):
        raise NotTaken(f"its parameter {name} is a tuple")
    if kind.startswith("tensordesc") or kind == "nvTmaDesc":
        raise NotTaken(f"its parameter {name} is a tensor descriptor")


def of(compiled: Any) -> TritonKernel:
    """What `triton.compile`, `kernel.warmup(...)` or a launch gave: a `CompiledKernel`. NotTaken."""
    source, metadata = compiled.src, compiled.metadata
    if "ptx" not in compiled.asm:
        raise NotTaken("it was not compiled to PTX")
    if getattr(metadata, "num_ctas", 1) > 1:
        raise NotTaken("its blocks come in clusters (num_ctas), which Triton's launcher sets")
    if getattr(metadata, "launch_cooperative_grid", False):
        raise NotTaken("it is launched as a cooperative grid")
    found = []
    for place, (name, kind) in enumerate(source.signature.items()):
        if kind == "constexpr":
            continue
        check_kind(name, kind)
        found.append(TritonParameter(place=place, name=name, type=kind))
    return TritonKernel(
        entry=metadata.name, text=without_lines(compiled.asm["ptx"]), threads=WARP * metadata.num_warps,
        shared_bytes=metadata.shared, scratch_bytes=getattr(metadata, "global_scratch_size", 0) or 0,
        parameters=tuple(found),
    )  # fmt: skip


def without_lines(text: str) -> str:
    """PTX without what it says of its source, so that the same kernel is the same text wherever its file lies."""
    return _DEBUG.sub("", text)


def read(text: str) -> tuple[TritonKernel | str, ...]:
    """Of each config the kernel, its parameters by their places among its arguments; or why there is none, in
    one line."""

    def kernel(found: Mapping[str, Any]) -> TritonKernel:
        parameters = (TritonParameter(place=at, name=name, type=kind) for at, name, kind in found["parameters"])
        return TritonKernel(**{**found, "parameters": tuple(parameters)})

    return tuple(each["problem"] if "problem" in each else kernel(each) for each in json.loads(text))
