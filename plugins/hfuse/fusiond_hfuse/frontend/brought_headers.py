"""Which headers a text includes, needs, and may have been brought by those that are not read."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping

from fusiond_hfuse.frontend import directives
from fusiond_hfuse.frontend.includes import without_comments
from fusiond_hfuse.frontend.source_kernel import TranslationUnit

STANDARD = {
    "cfloat": "FLT_|DBL_|LDBL_", "climits": "(?:S?CHAR|U?CHAR|SHRT|USHRT|INT|UINT|LONG|ULONG|LLONG|ULLONG)_(?:MAX|MIN)",
    "cstdint": "U?INT(?:8|16|32|64)_(?:MAX|MIN|C)|u?int(?:8|16|32|64|ptr|max)_t", "cmath": "M_[A-Z0-9_]+|INFINITY|NAN",
    "cassert": "assert", "math_constants.h": "CUDART_[A-Z0-9_]+", "limits": "numeric_limits", "cstdio": "printf",
    "functional": "(?:un|bin)ary_function$",
}  # fmt: skip
"""Headers that many others bring, and how names of theirs begin: a header that is not read may have brought them."""
CUDA = {
    "cuda_bf16.h": "__nv_bfloat16|nv_bfloat16", "cuda_fp16.h": "__half|half2?$|__float2half|__half2float",
    "cuda_fp8.h": "__nv_fp8", "cooperative_groups.h": "cooperative_groups",
}  # fmt: skip
"""Those of CUDA that are so."""


def headers(unit: TranslationUnit) -> tuple[str, ...]:
    """Those that a unit includes, and those of CUDA that others may have brought whose names it uses."""
    return tuple(dict.fromkeys([*unit.system, *(_brought(unit.text, CUDA) if unit.missing else ())]))


def wanted(text: str) -> tuple[str, ...]:
    """Those of CUDA's and C++'s whose names a text uses."""
    return (*_brought(text, CUDA), *_brought(text, STANDARD))


def _brought(text: str, headers: Mapping[str, str]) -> Iterator[str]:
    """Headers whose names the text uses."""
    words = _words(text)
    for header, beginning in headers.items():
        if any(re.match(beginning, word) for word in words):
            yield header


@functools.lru_cache(maxsize=8)
def _words(text: str) -> frozenset[str]:
    return frozenset(directives.WORD.findall(without_comments(text)))


def may_define(header: str) -> bool:
    """Whether a header that was not read may decide what the kernel does: a project's, and none of CUDA's libraries."""
    return header.startswith('"') and re.match(r'"cu[a-z]+(?:Lt|_v2|_kernel)?\.h"', header) is None


def asked_for(unit: TranslationUnit, unread: Iterable[tuple[int, int]]) -> dict[str, tuple[int, ...]]:
    """Of the headers that were not read, those that a compiler would ask for: no condition leaves them out."""
    starts = [0]
    for line in unit.text.encode().split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    left_out = sorted(unread)
    found: dict[str, tuple[int, ...]] = {}
    for header, lines in unit.missing.items():
        here = [each for each in lines if not any(first <= starts[each] < last for first, last in left_out)]
        if here:
            found[header] = tuple(here)
    return found


_LARGE = {"cuda.h": "CUDA_VERSION|CU[a-z]|cu[A-Z]", "curand_kernel.h": "curand", "mma.h": "nvcuda|wmma"}
"""Headers that are large, or not in every toolkit, and how names of theirs begin."""


def without_idle_headers(unit: TranslationUnit, text: str) -> TranslationUnit:
    """The unit without those that only what is gone has asked for."""
    idle = {each for each in _LARGE if each in unit.system}.difference(_brought(text, _LARGE))
    if not idle:
        return unit
    named = re.compile(rf"\s*#\s*include\s*[<\"]({'|'.join(map(re.escape, idle))})[>\"]")
    return dataclasses.replace(
        unit,
        system=tuple(each for each in unit.system if each not in idle),
        includes={at: line for at, line in unit.includes.items() if not named.match(line)},
    )
