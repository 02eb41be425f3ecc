"""What an error of libclang means to the person who wrote the text."""

from __future__ import annotations

import re
from collections.abc import Collection

_MOST_LISTED = 6
_TORCH = (
    "which is PyTorch's, whose headers are not read here but for its 16-bit floats and accessors; a copy of the kernel "
    "without it can be fused"
)
_OTHERS = (
    "whose headers are not read here; cub's block and warp primitives, cooperative groups and shuffles can be fused"
)
_CUB = (
    "which is not among what can be fused of cub: reductions, scans, loads, stores and exchanges of a block or a warp"
)
_LIBRARIES = {
    r"use of undeclared identifier '(at|c10|torch)'": _TORCH,
    r"no (?:member|type|template) named '(\w+)' in namespace '((?:at|c10|torch)\b[\w:]*)'": _TORCH,
    r"use of undeclared identifier '(cub|thrust|cutlass|cute)'": _OTHERS,
    r"no (?:member|type|template) named '(\w+)' in namespace '(cub\b[\w:]*)'": _CUB,
}
"""Message -> what there is to say of what it names."""
_DEPENDENT = {
    "cudaGridDependencySynchronize": "waits for the launch before this one",
    "cudaTriggerProgrammaticLaunchCompletion": "lets the launch behind this one begin",
}


def sentence(message: str, missing: Collection[str], line: str) -> str:
    """A message of libclang's as a sentence; `missing`: the headers that were not read; `line`: what it is said of."""
    if message.startswith("#error "):
        return f"the source says so itself: {message}"
    named = re.match(r"use of undeclared identifier '(cuda[A-Z]\w*)'|unknown type name '(cudaGraph\w+)'", message)
    if named is not None:
        name = named.group(1) or named.group(2)
        if name in _DEPENDENT:
            return f"`{name}` {_DEPENDENT[name]} (programmatic dependent launch), and a fused launch has no such order"
        return f"`{name}` on the device needs the device runtime, which no fused kernel has"
    made = re.match(r"no matching constructor for initialization of '(std::[^']+)'", message)
    if made is not None:
        return f"`{made.group(1)}` is the host's: C++'s headers have no constructor of it for the device"
    for pattern, said in _LIBRARIES.items():
        library = re.match(pattern, message)
        if library is not None and (library.lastindex == 2 or f"{library.group(1)}::" in line):
            name, *inside = library.groups()
            return f"it uses `{inside[0]}::{name}`, {said}" if inside else f"it uses `{name}::`, {said}"
    macro = re.match(r"function-like macro '(\w+)' is not defined", message)
    if macro is not None:
        brought = f"; it may be of {' or '.join([*missing][:_MOST_LISTED])}" if missing else ""
        return (
            f"a condition asks for `{macro.group(1)}(...)`, a macro that none of the files defines{brought}. Headers "
            f"that a build makes are there after it: give their folder under `include:`, or the macro under `defines:`"
        )
    if not missing:
        return f"not CUDA C++ as libclang reads it: {message}"
    listed = ", ".join([*missing][:_MOST_LISTED]) + (" and others" if len(missing) > _MOST_LISTED else "")
    left_out = f"not read: {listed}; folders of headers go under `include:`"
    unknown = re.match(r"(?:use of undeclared identifier|unknown type name|no template named) '(\w+)'", message)
    if unknown is not None:
        return f"`{unknown.group(1)}` is declared in none of the files that were read ({left_out})"
    return f"not CUDA C++ as libclang reads it: {message} ({left_out})"
