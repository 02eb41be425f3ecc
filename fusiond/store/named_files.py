"""Names as people use them in a folder: which files there say that they are `scale`. Plain text search over a bounded
number of small files, standard library only: `fusiond best` asks at every call."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` alone would cost more than the search
    from collections.abc import Mapping

LISTED = 2000  #: Entries of a folder that are looked at
READ = 100  #: Documents that are read
LONGEST_BYTES = 256 * 1024  #: Of a document; a longer one is not read

_DOCUMENTS = (".yaml", ".yml")
_MODULES = (".hlo", ".txt")
_JOB = r"^strategy\s*:"
_DECLARES = r"""^(?:\{\s*)?["']?(kernel|pipeline|graph)["']?\s*:\s*["']?([^"'\s#,}]+)["']?\s*(?:[#,}].*)?$"""


def claims(folder: str, name: str) -> dict[str, list[str]]:
    """The files of `folder` that say they are `name`, by the kind of document: kernel, pipeline, graph, module.

    A document says so by its first key (`kernel: NAME`), or by its file name where it is a kernel, pipeline or graph
    at all; a module by its file name. A job file (it has a `strategy`) is none, whatever it is called."""
    found: dict[str, list[str]] = {}
    stem = whole(name)
    if not stem or os.sep in stem or "\0" in stem:
        return found
    for file in _files(folder, stem):
        base, suffix = os.path.splitext(os.path.basename(file))
        text = _text(file)
        if text is None:
            continue
        if suffix in _MODULES:
            if base == stem and text.lstrip("\ufeff \t\r\n").startswith("HloModule"):
                found.setdefault("module", []).append(file)
            continue
        declared = None if re.search(_JOB, text, re.MULTILINE) else re.search(_DECLARES, text, re.MULTILINE)
        if declared and stem in (declared[2], base):
            found.setdefault(declared[1], []).append(file)
    return found


def whole(name: str) -> str:
    """What a part belongs to: `loop` for `loop:body`, a frame of a module."""
    return name.partition(":")[0]


def _files(folder: str, stem: str) -> list[str]:
    """Those that may be it: the ones of that name first, however many others there are."""
    named = [f"{stem}{suffix}" for suffix in (*_DOCUMENTS, *_MODULES)]
    files = [path for path in (os.path.join(folder, each) for each in named) if os.path.isfile(path)]
    try:
        with os.scandir(folder) as entries:
            listed = [entry.name for entry, _ in zip(entries, range(LISTED), strict=False)]
    except OSError:
        return files
    others = sorted(each for each in listed if each.endswith(_DOCUMENTS) and each not in named)
    return files + [os.path.join(folder, each) for each in others[:READ]]


def _text(path: str) -> str | None:
    try:
        if os.path.getsize(path) > LONGEST_BYTES and not path.endswith(_MODULES):
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would keep us waiting
        with open(descriptor, "rb") as stream:
            return stream.read(LONGEST_BYTES).decode("utf-8", "replace")
    except OSError:
        return None


def files_of(found: Mapping[str, list[str]]) -> list[str]:
    """All of them, whatever their kind."""
    return [file for files in found.values() for file in files]
