"""Lists the files that a source includes: the key of a build depends on their content."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from fusiond.model.keys import text_key


def digests(deps: Path, work: Path, toolkit: Path) -> Mapping[str, str]:
    """Path -> digest of each file that was included, without the toolkit's and the system's own."""
    if not deps.is_file():
        return {}
    text = deps.read_text().partition(":")[2].replace("\\\n", " ")
    paths = [word.replace("\\ ", " ") for word in re.findall(r"(?:\\.|\S)+", text)]
    found = {}
    for path in paths:
        real = (work / path).resolve()
        ours = real.is_relative_to(work.resolve()) or path.startswith(("entry ", "symbol "))
        if ours or any(real.is_relative_to(each) for each in (toolkit, Path("/usr/include"), Path("/usr/lib"))):
            continue
        content = digest(str(real))
        if content is not None:
            found[str(real)] = content
    return found


def digest(path: str) -> str | None:
    """Of a file's content now; None where it cannot be read."""
    try:
        return text_key(Path(path).read_bytes())
    except OSError:
        return None
