"""Right kernels in a second form: those of the catalogue, rewritten mechanically, and pairs of a corpus.

A corpus is a folder outside the tree with a folder for each pair: `NAME/reference.yaml` and `NAME/second.yaml`, with
their sources. `origin.json` beside them says where they are from and what the second forms are:
`{"repositories": [{"name", "commit", "pairs"}], "forms": {NAME: TEXT}, "mistakes": {NAME: TEXT}}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import fusiond_hfuse
from fusiond.errors import RequestError

KERNELS = Path(fusiond_hfuse.__file__).parent / "kernels"
SMALL = {
    "batchnorm": {"batch": 8, "features": 24, "length": 32},
    "blake256": {"blocks": 2, "rounds": 4},
    "blake2b": {"blocks": 2, "rounds": 4},
    "ethash": {"blocks": 2, "rounds": 1, "pages": 1021},
    "hist": {"n": 8192, "bins": 20},
    "im2col": {"channels": 2, "height": 64, "width": 48},
    "maxpool": {"channels": 2, "height": 128, "width": 96},
    "sha256": {"blocks": 2, "rounds": 2},
    "upsample": {"channels": 2, "height": 16, "width": 24, "out_height": 64, "out_width": 80},
}
"""Sizes that the processor judges in a moment: what the catalogue's own would add is time."""
ODD = {
    "batchnorm": {"batch": 5, "features": 7, "length": 43},
    "hist": {"n": 4321, "bins": 17},
    "im2col": {"channels": 3, "height": 41, "width": 27},
    "maxpool": {"channels": 3, "height": 71, "width": 57},
    "upsample": {"channels": 3, "height": 7, "width": 13, "out_height": 61, "out_width": 37},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondForm:
    """A reference and a kernel that is as right as it is, by their YAML files."""

    name: str
    origin: str
    """`catalogue` or `foreign`."""
    form: str
    """What the second form differs in."""
    reference: Path
    second: Path
    mistake: str = ""
    """What its author did wrong, where somebody has looked: then it is not to be called right."""


def catalogue(folder: Path) -> Iterator[SecondForm]:
    """Every kernel that comes with hfuse, in every form that can be written mechanically, below a folder."""
    for path in sorted(KERNELS.glob("*.yaml")):
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
        name, text = given["kernel"], path.with_suffix(".cu").read_text(encoding="utf-8")
        given["sizes"] = {**given["sizes"], **SMALL.get(name, {})}
        given["odd"] = ODD.get(name, given["odd"])
        reference = _written(folder / name, given, text)
        forms: list[tuple[str, dict[str, Any], str]] = [
            ("itself", {}, text),
            ("`__restrict__` the other way", {}, restricted(text, given["entry"])),
            ("loops unrolled by 4", {}, unrolled(text, given["entry"], 4)),
            ("as PTX", {"form": "ptx"}, text),
        ]
        if "tune" in given["block"]:
            forms.append(("another block", {"block": _narrower(given["block"])}, text))
        for at, (form, changes, changed) in enumerate(forms):
            second = _written(folder / f"{name}{at}", given | changes, changed)
            yield SecondForm(name=name, origin="catalogue", form=form, reference=reference, second=second)


def foreign(corpus: Path) -> Iterator[SecondForm]:
    """The pairs of a corpus, each beside its reference as its own candidate. RequestError where there is none."""
    about = origin(corpus)
    forms, mistakes = about.get("forms", {}), about.get("mistakes", {})
    found = sorted(path.parent for path in corpus.glob("*/second.yaml"))
    if not found:
        raise RequestError(f"{corpus} has no folders with reference.yaml and second.yaml", where="CORPUS")
    for each in found:
        yield SecondForm(
            name=each.name,
            origin="foreign",
            form=forms.get(each.name, "another version"),
            reference=each / "reference.yaml",
            second=each / "second.yaml",
            mistake=mistakes.get(each.name, ""),
        )


def origin(corpus: Path) -> dict[str, Any]:
    """What a corpus says of itself."""
    path = corpus / "origin.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def restricted(text: str, entry: str) -> str:
    """A kernel whose pointers are `__restrict__`, or are no longer."""
    found = _signature(text, entry)
    words = found[2]
    if "__restrict__" in words:
        changed = re.sub(r"\s*__restrict__\b\s*", " ", words)
    else:
        changed = re.sub(r"\*\s*(?=\w)", "* __restrict__ ", words)
    return text[: found.start(2)] + changed + text[found.end(2) :]


def unrolled(text: str, entry: str, by: int) -> str:
    """A kernel whose loops have this factor and no other."""
    first = text.index("{", _signature(text, entry).end())
    depth, last = 1, first + 1
    while depth:
        depth += {"{": 1, "}": -1}.get(text[last], 0)
        last += 1
    body = re.sub(r"#pragma unroll.*\n", "\n", text[first:last])
    body = re.sub(r"(\n[ \t]*)(for\s*\()", rf"\1#pragma unroll {by}\1\2", body)
    return text[:first] + body + text[last:]


def _signature(text: str, entry: str) -> re.Match[str]:
    found = re.search(rf"(__global__[^{{;]*?\b{re.escape(entry.rpartition('::')[2])}\s*\()([^)]*)\)", text)
    if found is None:
        raise RequestError(f"the text has no kernel {entry!r}", where="entry")
    return found


def _narrower(block: dict[str, Any]) -> dict[str, Any]:
    at = "xyz".index(block["tune"])
    shape = [length // 2 if axis == at else length for axis, length in enumerate(block["shape"])]
    return {"shape": shape}


def _written(folder: Path, given: dict[str, Any], text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / given["source"]).write_text(text, encoding="utf-8")
    path = folder / "kernel.yaml"
    path.write_text(yaml.safe_dump(given, sort_keys=False), encoding="utf-8")
    return path
