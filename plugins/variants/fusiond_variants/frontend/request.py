"""The request of a job for variants: its documents and the reference.

variants: [./reference.yaml, ./a.yaml, hist]
reference: ./a.yaml                 # one of them (the first, without this key), or a function of a Python file:
reference: ./softmax.py:softmax
precision: any                      # tolerances alone decide; else no variant may compute in lower precision
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusiond.model.errors import RequestError
from fusiond.model.keys import text_key
from fusiond.model.nouns import Job, ReferenceFunction, Workload, frozen
from fusiond.strategy import Inputs, Strategy

KIND = "kernel"  #: Of the documents
MOST = 64
PRECISIONS = ("reference", "any")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One implementation, as the strategy that takes such documents reads it."""

    name: str  #: The name of its file, or of the catalogue; no two of a job have the same
    path: str
    strategy: Strategy = field(repr=False)
    workload: Workload[Any] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantsRequest:
    """A Workload's payload. The reference, or what is as good as given where a function is the reference, is first."""

    variants: tuple[Variant, ...]
    function: ReferenceFunction | None
    precision: str  #: One of PRECISIONS
    odd: Mapping[str, int]
    """The awkward sizes of the reference, or of the first that has some where that is a function."""

    def variant(self, name: str) -> Variant:
        """KeyError where there is none of that name."""
        for each in self.variants:
            if each.name == name:
                return each
        raise KeyError(name)


def read(job: Job, inputs: Inputs) -> VariantsRequest:
    """RequestError with file, line and key for whatever the user got wrong."""
    taker = inputs.taking(KIND)
    if taker is None:
        raise RequestError("no strategy that takes kernels is installed; `fusiond plugins` says why", where=job.path)
    texts = _texts(job)
    where = job.where("variants")
    reference, function = _reference(job, inputs)
    paths = [(inputs.resolve(KIND, each, where=where), each) for each in texts]
    if reference is not None:
        first = inputs.resolve(KIND, reference, where=job.where("reference")), reference
        paths = [first, *(each for each in paths if each[0] != first[0])]
    found: list[Variant] = []
    for name, (path, text) in zip(_names([path for path, _ in paths]), paths, strict=True):
        sizes = dict(found[0].workload.sizes) if found else dict(job.sizes)
        workload = _workload(taker, job, text, inputs, sizes, exact=not found)
        found.append(Variant(name=name, path=path, strategy=taker[0], workload=workload))
    odds = (each.strategy.odd_sizes(each.workload) for each in (found if function else found[:1]))
    return VariantsRequest(
        variants=tuple(found), function=function, precision=_precision(job),
        odd=frozen(next((odd for odd in odds if odd), None)),
    )  # fmt: skip


def _texts(job: Job) -> list[str]:
    given = job.request.get("variants")
    if given is None:
        raise RequestError("the key 'variants' is missing: variants: [./reference.yaml, ./faster.yaml]", where=job.path)
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) and each for each in given):
        raise RequestError(
            "expected a list of names of kernels, or paths of their YAML files", where=job.where("variants")
        )
    if not 1 <= len(given) <= MOST:
        raise RequestError(f"expected 1 to {MOST} variants; found {len(given)}", where=job.where("variants"))
    return list(given)


def _precision(job: Job) -> str:
    found = job.request.get("precision", PRECISIONS[0])
    if found not in PRECISIONS:
        raise RequestError(f"is {found!r}; it can be {' or '.join(PRECISIONS)}", where=job.where("precision"))
    return str(found)


def _reference(job: Job, inputs: Inputs) -> tuple[str | None, ReferenceFunction | None]:
    given = job.request.get("reference")
    where = job.where("reference")
    if given is None:
        return None, None
    if not isinstance(given, str) or not given:
        raise RequestError("expected a kernel, or a function of a Python file: ./softmax.py:softmax", where=where)
    file, colon, name = given.rpartition(":")
    if not colon or not file.endswith(".py"):
        if given.endswith(".py"):
            raise RequestError(f"name the function, too: {given}:{Path(given).stem}", where=where)
        return given, None
    path = inputs.beside(str(Path(job.path).absolute()), file, where=where)
    return None, ReferenceFunction(path=path, text=inputs.text(path, where=where), name=name)


def _names(paths: list[str]) -> list[str]:
    """A short name for each, of letters, digits and _: the file's, with its folder's or a number where need be."""
    stems = [_word(Path(each).stem) for each in paths]
    whole = [f"{_word(Path(each).parent.name)}_{stem}" for each, stem in zip(paths, stems, strict=True)]
    names = [one if stems.count(one) == 1 else more for one, more in zip(stems, whole, strict=True)]
    return [name if names.count(name) == 1 else f"{name}_{number}" for number, name in enumerate(names)]


def _word(text: str) -> str:
    word = "".join(each if each.isascii() and (each.isalnum() or each == "_") else "_" for each in text)
    return word if word[:1].isalpha() else f"v{word}"


def _workload(
    taker: tuple[Strategy, str], job: Job, text: str, inputs: Inputs, sizes: dict[str, int], *, exact: bool
) -> Workload[Any]:
    """A document as a workload of its own, at these sizes: at those of them that it has, unless `exact`."""
    strategy, key = taker
    line = job.lines.get("variants")
    lines = {} if line is None else {key: line}
    lines |= {name: at for name, at in job.lines.items() if name.startswith("sizes")}
    part = dataclasses.replace(
        job, strategy=strategy.name, request=frozen({key: [text]}), lines=frozen(lines),
        sizes=frozen(sizes if exact else {}), search=dataclasses.replace(job.search, order="sampler"),
    )  # fmt: skip
    found = strategy.parse(part, inputs)
    wanted = {name: value for name, value in sizes.items() if found.sizes.get(name, value) != value}
    if exact or not wanted:
        return found
    return strategy.parse(dataclasses.replace(part, sizes=frozen(wanted)), inputs)


def content(request: VariantsRequest) -> list[object]:
    """All that decides a measurement's result, without sizes."""
    variants = [[each.name, each.workload.strategy_version, each.workload.content] for each in request.variants]
    function = request.function
    return [variants, None if function is None else [text_key(function.text), function.name], request.precision]
