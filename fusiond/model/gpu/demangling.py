"""Names of kernels as C++ has them: `_Z4poolIfLi5EEvPT_` is `void pool<float, 5>(float*)`."""

import ctypes
import functools


@functools.lru_cache(maxsize=256)
def demangled(name: str) -> str:
    """By the C++ runtime; the name itself where that is not there, or the name is not mangled."""
    if not name.startswith("_Z"):  # `a` by itself would be the type char
        return name
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return name
    demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    found = demangle(name.encode(), None, None, ctypes.byref(status))
    if not found:
        return name
    text = (ctypes.string_at(found) or b"").decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(found))
    return text
