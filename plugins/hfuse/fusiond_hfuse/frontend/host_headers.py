"""The headers of C and C++ that a host's compiler has, for libclang.

Kernels take little from them, and cuda_declarations.py has what most take: it is read in milliseconds, and needs no
compiler. Where it does not suffice (`std::aligned_storage`, a constructor with `std::initializer_list`), the text is
read again with the headers themselves. libclang finds nothing to say of them but that CUDA's functions are declared
twice, once for the host; the first declarations, which are ours, stay.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable

_TIMEOUT_SECS = 20.0
_BEGIN, _END = "#include <...> search starts here:", "End of search list."


@functools.cache
def folders() -> tuple[str, ...]:
    """Where the host's compiler (FUSIOND_CXX, else g++) looks for headers; none where there is no such compiler."""
    compiler = shutil.which(os.environ.get("FUSIOND_CXX") or "g++")
    if compiler is None:
        return ()
    command = [compiler, "-E", "-x", "c++", "-v", os.devnull]
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECS, env=environment, check=False
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return ()
    listed = said.partition(_BEGIN)[2].partition(_END)[0]
    return tuple(line.strip() for line in listed.splitlines() if line.strip())


_ALWAYS = ("cstdint", "type_traits", "utility", "limits", "cstring", "cmath")
"""What CUDA's own headers bring of C++'s, and what the declarations here are made of."""
_HEAVY = {
    "chrono": "chrono", "fstream": "[io]?fstream", "iomanip": r"set\w+", "ios": "ios", "map": "(multi)?map",
    "functional": r"function|bind|plus|minus|multiplies|divides|modulus|negate|equal_to|not_equal_to|less(_equal)?"
    r"|greater(_equal)?|hash|logical_\w+|bit_\w+|c?ref|reference_wrapper|invoke",
    "iostream": "cout|cerr|cin|endl|[io]stream", "optional": "optional|nullopt", "sstream": "[io]?stringstream",
    "memory": r"(unique|shared|weak)_ptr|make_(unique|shared)|allocator\w*|addressof|pointer_traits",
    "random": r"\w+_distribution|mt19937\w*|\w+_engine|random_device",
    "stdexcept": r"\w+_error|out_of_range|invalid_\w+",
    "string": r"w?string|to_string|sto\w+", "unordered_map": "unordered_(multi)?map", "vector": "vector",
}  # fmt: skip
"""Headers that take long to read and are the host's, as a rule; and their names."""


def included(headers: Iterable[str], text: str) -> str:
    """Directives for those of C's and C++'s headers that a text may need."""
    words = set(re.findall(r"[A-Za-z_]\w*", text))
    needed = (
        each
        for each in headers
        if each not in _HEAVY or any(re.fullmatch(_HEAVY[each], word) is not None for word in words)
    )
    return "".join(f"#include <{each}>\n" for each in dict.fromkeys((*_ALWAYS, *needed)))


def available() -> bool:
    """Whether there are any."""
    return bool(folders())
