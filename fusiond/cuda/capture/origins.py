"""Finds the PTX of kernels that were loaded as cubins, by looking up the cubin in compilers' caches.

Triton and Inductor leave both beside each other in their caches; of what NVRTC and the linkers make of PTX while the
program runs, the watcher keeps it; XLA writes its PTX where it is told to (`driver_watcher.environment`). It is copied
beside the module, so that a capture says the same on every machine.
"""

import getpass
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fusiond.cuda.capture import fatbin, trace
from fusiond.cuda.capture.trace import CapturedKernel
from fusiond.model.errors import RequestError

XLA_FOLDER = "xla"
_ENTRY = re.compile(r"\.entry\s+([\w$]+)")


def ptx_of(kernel: CapturedKernel) -> str | None:
    """The text that has it, embedded in its module or kept beside it. OSError, RequestError."""
    if kernel.module is None:
        return None
    found = fatbin.of_kernel(kernel.module.read_bytes(), kernel.name)
    beside = _beside(kernel.module)
    return fatbin.of_kernel(beside.read_bytes(), kernel.name) if found is None and beside.is_file() else found


def keep(folder: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Put beside the modules of a capture the PTX of those that have none. What cannot be read is left."""
    kernels: dict[Path, set[str]] = {}
    for kernel in (each for found in trace.read(folder) for each in found.kernels):
        if kernel.module is not None and not _beside(kernel.module).exists() and _lacks(kernel):
            kernels.setdefault(kernel.module, set()).add(kernel.name)
    if not kernels:
        return
    cached = _by_size(caches(environment))
    dumped = [(frozenset(_ENTRY.findall(each)), each) for each in _texts((folder / XLA_FOLDER).glob("*.ptx"))]
    for module, names in kernels.items():
        image = module.read_bytes()
        twins = (each for each in cached.get(len(image), ()) if each.read_bytes() == image)
        beside = next(_texts(each.with_suffix(".ptx") for each in twins), None)
        text = beside if beside is not None else _dumped(dumped, image, names)
        if text is not None:
            _beside(module).write_text(text, encoding="utf-8")


def caches(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Where Triton and Inductor keep what they compile."""
    home = Path(environment.get("TRITON_HOME") or Path.home())
    triton = environment.get("TRITON_CACHE_DIR") or home / ".triton" / "cache"
    inductor = environment.get("TORCHINDUCTOR_CACHE_DIR") or Path(tempfile.gettempdir()) / f"torchinductor_{_user()}"
    return Path(triton), Path(inductor)


def _user() -> str:
    try:
        return re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # nobody of that number
        return ""


def _beside(module: Path) -> Path:
    return module.with_name(f"{module.name}.ptx")


def _lacks(kernel: CapturedKernel) -> bool:
    try:
        return ptx_of(kernel) is None
    except (OSError, RequestError):
        return False


def _by_size(folders: Iterable[Path]) -> dict[int, list[Path]]:
    """Cubins with PTX of the same name beside them."""
    found: dict[int, list[Path]] = {}
    for folder in folders:
        for each in sorted(folder.glob("**/*.cubin")):
            if each.with_suffix(".ptx").is_file():
                found.setdefault(each.stat().st_size, []).append(each)
    return found


def _texts(files: Iterable[Path]) -> Iterator[str]:
    for each in files:
        try:
            yield each.read_text(encoding="utf-8", errors="replace")
        except OSError:  # removed meanwhile
            continue


def _dumped(dumped: Sequence[tuple[frozenset[str], str]], image: bytes, names: set[str]) -> str | None:
    """XLA names kernels alike in many modules: that which has the very kernels of the image, if it is one."""
    if not dumped or not image.startswith(b"\x7fELF"):
        return None
    held = names.union(fatbin.registers(image))
    found = {text for entries, text in dumped if entries == held}
    return found.pop() if len(found) == 1 else None
