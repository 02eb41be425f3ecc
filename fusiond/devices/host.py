"""Arguments as bytes, and host functions: `extern "C"` entry points of a shared object, called with pointers and
scalars."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fusiond.devices.base import ExecutionError, LaunchRefused
from fusiond.model.language.narrow import scalar
from fusiond.model.outcomes import Outcome
from fusiond.model.program import Argument, Bytes, Pointer

_SCALARS: dict[str, Any] = {
    **{f"{sign}int{bits}": getattr(ctypes, f"c_{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{"bool": ctypes.c_bool, "float32": ctypes.c_float, "float64": ctypes.c_double},
}


class HostLibrary:
    """A loaded host source."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))

    def call(self, entry: str, arguments: tuple[Argument, ...], address: Callable[[str], int]) -> None:
        """Call an entry; `address` gives where a buffer lies. ExecutionError for what a host function cannot take."""
        try:
            function = self._library[entry]
        except AttributeError:
            raise ExecutionError(Outcome.BUILD_FAILED, f'there is no extern "C" function {entry!r}') from None
        function.restype = None
        function(*(_packed(each, address) for each in arguments))


def value_bytes(argument: Argument, address: Callable[[str], int]) -> bytes:
    """One argument's bytes; `address` tells where a buffer is."""
    if isinstance(argument, Pointer):
        return address(argument.buffer).to_bytes(8, "little")
    if isinstance(argument, Bytes):
        return argument.filled(address)
    try:
        return scalar(argument.dtype, argument.value).tobytes()
    except (OverflowError, TypeError, ValueError) as problem:
        raise LaunchRefused(f"{argument.value!r} is not of type {argument.dtype}: {problem}") from None


def _packed(argument: Argument, address: Callable[[str], int]) -> object:
    if isinstance(argument, Pointer):
        return ctypes.c_void_p(address(argument.buffer))
    if isinstance(argument, Bytes) or argument.dtype not in _SCALARS:
        raise LaunchRefused("a host function takes pointers and plain scalars only")
    packed: object = _SCALARS[argument.dtype](argument.value)
    return packed
