"""How many threads NumPy's and SciPy's products use.

OpenBLAS splits even products of a hundred rows over all cores, which on busy cores costs ten times what it saves, and
which takes those cores from whatever compiles or is measured. Nothing in NumPy sets this once it is loaded, so the
library is asked itself; where there is another one, or none, everything stays as it is.
"""

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

_PREFIXES = ("scipy_openblas", "openblas")
_SUFFIXES = ("64_", "_64", "")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Products inside use one thread, in all threads of this process; afterwards as many as before."""
    before = [get() for get, _ in _libraries()]
    for _, set_ in _libraries():
        set_(1)
    try:
        yield
    finally:
        for (_, set_), count in zip(_libraries(), before, strict=True):
            set_(count)


@functools.cache
def _libraries() -> tuple[tuple[Callable[[], int], Callable[[int], None]], ...]:
    """The getter and the setter of every OpenBLAS that is loaded."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    fields = (line.split(maxsplit=5) for line in lines)
    paths = {each[5] for each in fields if len(each) == 6 and "openblas" in each[5].rpartition("/")[2]}
    found = []
    for path in sorted(paths):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for prefix in _PREFIXES:
            for suffix in _SUFFIXES:
                get = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
                set_ = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
                if get is not None and set_ is not None:
                    found.append((get, set_))
    return tuple(found)
