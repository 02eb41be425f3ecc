"""The signature of a compiled kernel, as its mangled name tells it (the C++ ABI for Itanium, section 5.1).

    _Z5scaleIfEvPT_PKS0_i, (u64, u64, u32)   -->   float*, float const*, int

Names of parameters no compiled kernel has. Triton's kernels and those in C have no types either: there `.param` says
how large each is, and an address is what PTX marks as one.
"""

import ctypes
import re
from collections.abc import Sequence

from fusiond.model.ptx import parser
from fusiond_hfuse.frontend import launches
from fusiond_hfuse.frontend.cuda_declarations import DTYPES, VECTOR_OF
from fusiond_hfuse.frontend.source_kernel import KernelParameter

_BY_SIZE = {"u32": "int32", "u64": "int64", "f32": "float32", "f64": "float64", "u16": "int16", "u8": "uint8",
            "b32": "int32", "b64": "int64"}  # fmt: skip


def demangled(name: str) -> str:
    """`_Z1kPi` as `k(int*)`; the name itself where it is not mangled, or nothing here can read it."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return name
    ask = library.__cxa_demangle
    ask.restype = ctypes.c_void_p
    status = ctypes.c_int()
    found = ask(name.encode(), None, None, ctypes.byref(status))
    if not found or status.value:
        return name
    try:
        return (ctypes.cast(found, ctypes.c_char_p).value or b"").decode()
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(found))


def overload(text: str, instance: str) -> str:
    """The kernel of a PTX text that is `scan(int*, int)`; that text itself where there is none, or none alone."""
    found = [each for each in parser.parse(text).entries if _plain(demangled(each)) == _plain(instance)]
    return found[0] if len(found) == 1 else instance


def _plain(function: str) -> tuple[str, list[str]]:
    """A function's name and the types that it takes, `const int *` and `int const*` alike."""
    name, _, rest = function.partition("(")
    kinds = launches.template_parts(rest.rpartition(")")[0])
    return name, ["const " * ("const" in each) + re.sub(r"\bconst\b|\s+", "", each) for each in kinds]


def described(entry: str, parameters: Sequence[KernelParameter]) -> tuple[KernelParameter, ...]:
    """A compiled kernel's parameters with the types that its name tells, as far as it does."""
    text = demangled(entry)
    kinds = launches.template_parts(text[text.rindex("(") + 1 : -1]) if text.endswith(")") and "(" in text else []
    if len(kinds) != len(parameters):
        kinds = [""] * len(parameters)
    return tuple(
        _described(each, kind, number) for number, (each, kind) in enumerate(zip(parameters, kinds, strict=True))
    )


def _described(given: KernelParameter, kind: str, number: int) -> KernelParameter:
    bare = re.sub(r"\b(?:const|volatile)\b", "", kind).strip("*& ")
    pointer = kind.endswith("*") or (not kind and given.pointer)
    dtype = DTYPES.get(VECTOR_OF.get(bare, bare) if pointer else bare)
    if not kind and not pointer:
        dtype = None if given.record else _BY_SIZE.get(given.spelling.strip("."))
    return KernelParameter(
        name=f"arg_{number}", pointer=pointer, dtype=dtype, spelling=kind or given.spelling, target=bare,
        constant=pointer and "const" in kind, void=pointer, bytes=given.bytes if given.record else 0,
        record=given.record,
    )  # fmt: skip
