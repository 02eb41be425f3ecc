"""A kernel's YAML from its file: the signature, the launch where the host's code has one, and `"?"` for the rest."""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from fusiond.errors import RequestError, UnknownName
from fusiond.strategy import Inputs
from fusiond_hfuse.frontend import clang_tree, draft_yaml, includes, instances, slicing, undeclared
from fusiond_hfuse.frontend.draft_yaml import KernelDraft
from fusiond_hfuse.frontend.kernel_parser import Reading, parse_kernel
from fusiond_hfuse.frontend.launches import launches
from fusiond_hfuse.frontend.source_kernel import Parsed, TranslationUnit

_MOST_ABOVE = 5
_MOST_OF_REPOSITORY = 16
"""Folders that a file lies below another in, where nothing says what they belong to, and where `.git` does."""
_MOST_PARTS = 300
_PLACES = ("", "include", "includes", "inc", "common", "Common", "common/inc", "src", "utils")
_OF_LIBRARIES = re.compile(
    r"<(?:cu(?:blas|dnn|fft|sparse|solver|rand|da|b/|pti|tlass/|te/|tensor|file)|thrust/|nv|npp|GL/|EGL/|GLES|mpi|omp"
    r"|nccl|torch/|ATen/|c10/|[a-z_]+>)"
)
"""Headers that are a library's, or have no ending: in no folder of a project."""


def draft(path: str, name: str, inputs: Inputs, include: tuple[str, ...]) -> str:
    """The YAML text for a kernel of a `.cu` file. `name` is its own, with or without namespaces and template arguments
    (`maxpool<float, 5>`); empty where the file has one. `include`: folders, relative to the file, that headers are
    looked for in. RequestError for what cannot be read, or is not clear."""
    unit, include, found = _with_headers(inputs, path, include)
    source = _Source(path, unit, clang_tree.blanked(unit.text.encode()), [f"Found: {each}" for each in found])
    plain = name.partition("<")[0].partition("(")[0].strip()
    entry, given = _entry(path, name, source.kernels(plain))
    last = entry.rpartition("::")[2]
    sliced, parsed, instance = source.read(entry, given)
    if parsed.settable:  # once the host has set them, they are not a reason to refuse
        set_ = {f"`__{'constant' if each.constant else 'device'}__ {each.name}`" for each in parsed.settable}
        left = (each for each in parsed.rejections if not any(one in each.detail for one in set_))
        parsed = parsed.replaced(rejections=tuple(left))
    names = tuple(each.name for each in parsed.parameters)
    launched = list(launches(source.code, last, names))
    return draft_yaml.text(
        KernelDraft(
            path=path,
            unit=sliced,
            parsed=parsed,
            instance=instance,
            include=include,
            flags=source.flags,
            defines=source.defines,
            wanted=frozenset(source.wanted),
            remarks=tuple(source.said),
            launched=tuple(launched),
        )
    )


@dataclass(slots=True)
class _Source:
    """A file as it is drafted from: the macros that have to be defined for it to be read, and what there is to say."""

    path: str
    unit: TranslationUnit
    code: str
    """Its text without comments."""
    said: list[str]
    flags: tuple[str, ...] = ()
    defines: tuple[tuple[str, str], ...] = ()
    wanted: list[str] = field(default_factory=list)
    """Macros whose numbers the user is asked for."""

    def __post_init__(self) -> None:
        self.flags = (_CPP20,) if _CONCEPT.search(self.code) else ()
        self.said += [f"Flag: {each}, for a `concept`" for each in self.flags]

    def kernels(self, plain: str) -> frozenset[str]:
        """Those of the file, with the switches on that leave the one out that is meant."""
        for _ in range(_MOST_DEFINED):
            known = slicing.kernels(self.unit, self.defines, self.flags)
            if not plain or any(f"::{each}".endswith(f"::{plain}") for each in known):
                return known
            left_out = slicing.condition_round(self.unit, plain, self.defines, self.flags)
            if left_out is None:
                break
            if not self._switched(left_out):
                raise RequestError(
                    f"`{left_out[1]}` leaves out {plain}; write a YAML file whose `defines:` change that",
                    where=self.unit.where(left_out[0]),
                )
        unread = None
        if plain and not known:
            unread = undeclared.kernel(self.unit, plain.rpartition("::")[2], self.defines, self.flags)
        if unread is not None:
            raise unread
        return known

    def read(self, entry: str, given: str) -> tuple[TranslationUnit, Parsed, str]:
        """The text that the kernel reaches, what stands in it, and the instance that was taken; `given`: by the user.
        Each round defines one macro more, and there is a most of them."""
        first: RequestError | None = None
        while True:
            instance, chosen = given, ""
            try:
                if not given:
                    instance, chosen = _instance(self.unit, entry, self.code, self.defines, self.flags, self.path)
                way = Reading(
                    entry=entry, name=entry.rpartition("::")[2], where=self.path, instance=instance or None,
                    defines=self.defines, flags=self.flags,
                )  # fmt: skip
                sliced, parsed = parse_kernel(self.unit, way)
            except RequestError as problem:
                if chosen and problem.problem.startswith(instance):
                    slots, *_ = slicing.template_of(self.unit, entry, self.defines, self.flags)
                    said = f"{instances.asked(entry, slots)}. {problem.problem}"
                    raise RequestError(said, where=problem.where) from None
                if not self._defined(problem):
                    raise first or problem from None
                first = first or (problem if self.wanted else None)
                continue
            self.said += [f"Chosen: {chosen}"] if chosen else []
            self.said += [f"Asked for: {each}, which no file here defines" for each in self.wanted]
            return sliced, parsed, instance

    def _switched(self, left_out: tuple[int, str]) -> bool:
        """Whether a condition (its line and its text) waits for a switch that may be on; it is on then."""
        more = _switch(left_out[1], self.defines)
        if more is not None:
            self.defines = (*self.defines, more)
            self.said.append(_why(more, self.unit, left_out))
        return more is not None

    def _defined(self, problem: RequestError) -> bool:
        """Whether a macro was defined since a name is not declared: a switch, or a number that the user is asked
        for. RequestError where another switch leaves it out."""
        named = _UNDECLARED.match(problem.problem)
        word = (named.group(1) or named.group(2)) if named is not None else ""
        left_out = slicing.declared_left_out(self.unit, word, self.defines, self.flags) if word else None
        if left_out is None:
            most = _MOST_ASKED if len(self.unit.text) < _LARGE else 1
            if not word or len(self.wanted) == most or not _is_value(word, self.code):
                return False
            self.wanted.append(word)  # a number that a build gives, or a header that is not here
            self.defines = (*self.defines, (word, _STAND_IN))
        elif len(self.defines) == _MOST_DEFINED or not self._switched(left_out):
            raise RequestError(
                f"`{left_out[1]}` leaves out `{word}` ({self.unit.where(left_out[0])}); write a YAML file "
                f"whose `defines:` change that",
                where=problem.where,
            ) from None
        return True


_CPP20 = "-std=c++20"
_CONCEPT = re.compile(r"\bconcept\s+\w+\s*=")
_MOST_DEFINED = 4
_MOST_ASKED = 12
_LARGE = 400_000
"""Bytes of a text that takes seconds to read."""
_STAND_IN = "64"
"""For a number that is asked for, while the file is read."""


def _is_value(word: str, code: str) -> bool:
    """Whether a text names a word nowhere but where a number may stand: no call, no type, no namespace."""
    places = list(re.finditer(rf"(?<![\w.])(?<!->)(?<!::){word}\b\s*(.)", code))
    return bool(places) and all(re.match(r"[^\w(<:{.]", each.group(1)) for each in places)


_UNDECLARED = re.compile(r"`(\w+)` is declared in none of the files|.*?(?:identifier|type name|template named) '(\w+)'")
_OF_BUILDS = re.compile(r"(?i)\w*(?:cuda|gpu|nvcc|cublas|cudnn)\w*")
"""Macros by which a project says that it is compiled for a GPU, as every `.cu` file of it is."""


def _switch(condition: str, defines: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
    """The macro that a condition waits for, where it says no more than that this is compiled for a GPU."""
    asked = re.fullmatch(
        r"#\s*(?:ifdef|(?:el)?if)\s+(?:defined\b)?\s*\(?\s*(\w+)\s*\)?(?:\s*(?:&&|\|\|).*)?", condition
    )
    if asked is None or not _OF_BUILDS.fullmatch(asked.group(1)) or asked.group(1).startswith("__"):
        return None
    return None if asked.group(1) in {name for name, _ in defines} else (asked.group(1), "1")


def _why(define: tuple[str, str], unit: TranslationUnit, left_out: tuple[int, str]) -> str:
    return f"Defined: {define[0]}, for `{left_out[1]}` ({PurePath(unit.where(left_out[0])).name})"


def _instance(
    unit: TranslationUnit,
    entry: str,
    code: str,
    defines: tuple[tuple[str, str], ...],
    flags: tuple[str, ...],
    path: str,
) -> tuple[str, str]:
    """The instance of a template, or which of several kernels of a name, and what there is to say of it."""
    several = slicing.overloads_of(unit, entry, defines, flags)
    if several:
        return several[0], f"{several[0]}: there are {len(several)} kernels of that name, also {several[1]}"
    slots, classes, declared = slicing.template_of(unit, entry, defines, flags)
    if not slots:
        return "", ""

    def wrong(instance: str) -> int | None:
        try:
            sliced = slicing.sliced(unit, entry, instance=instance, defines=defines, where=path, flags=flags)
            return clang_tree.mistakes(sliced, instance, defines, flags)
        except RequestError:
            return None

    return instances.chosen(entry, slots, code, classes, declared, wrong)


def _with_headers(
    inputs: Inputs, path: str, include: tuple[str, ...]
) -> tuple[TranslationUnit, tuple[str, ...], tuple[str, ...]]:
    """A file with its headers; the folders that they were looked for in, and those of them that the user did not name:
    headers of a project lie above its sources, in folders with the usual names."""
    unit = includes.expand(inputs, path, include, yaml=path, where=path)
    named: list[str] = []
    looked: set[str] = set()
    while wanted := [each for each in unit.missing if each not in looked and not _OF_LIBRARIES.match(each)]:
        looked.update(wanted)
        for header in wanted:
            folder = _folder_of(inputs, path, header[1:-1])
            if folder is not None:
                named.append(f"{folder}/{header[1:-1]}")
                include = tuple(dict.fromkeys([*include, folder]))
        unit = includes.expand(inputs, path, include, yaml=path, where=path)
    return unit, include, tuple(named)


def _folder_of(inputs: Inputs, path: str, header: str) -> str | None:
    """The nearest folder above a file that holds a header, itself or in one of the usual places, or in the `include` of
    a folder in it."""
    for above in range(_above(Path(path).parent)):
        for place in (*_PLACES, *_parts_of(Path(path).parent.joinpath(*[".."] * above))):
            folder = "/".join([*[".."] * above, *([place] if place else [])]) or "."
            try:
                inputs.beside(path, f"{folder}/{header}", where="")
            except RequestError:
                continue
            return folder
        beside = _beside(Path(path).parent.joinpath(*[".."] * above), header)
        if len(beside) == 1:
            return "/".join([*[".."] * above, beside[0]])
    return None


@functools.lru_cache(maxsize=64)
def _above(folder: Path) -> int:
    """How many folders above a file, with its own, are of its project: up to one that is a repository's, and none that
    holds the machine's."""
    folders = [folder, *folder.parents]
    for above, each in enumerate(folders[:_MOST_OF_REPOSITORY], 1):
        if (each / ".git").exists():
            return above
    return min(_MOST_ABOVE, len(folders) - 1)


def _beside(folder: Path, header: str) -> list[str]:
    """The folders in a folder that hold a header themselves: `maths/ptx.cuh`."""
    try:
        names = sorted(each.name for each in itertools.islice(folder.iterdir(), _MOST_PARTS))
    except OSError:
        return []
    return [each for each in names if not each.startswith(".") and (folder / each / header).is_file()]


@functools.lru_cache(maxsize=64)
def _parts_of(folder: Path) -> tuple[str, ...]:
    """The `include` folders of a project's parts: `containers/include`."""
    try:
        names = sorted(each.name for each in itertools.islice(folder.iterdir(), _MOST_PARTS))
    except OSError:
        return ()
    return tuple(f"{each}/include" for each in names if (folder / each / "include").is_dir())


def _entry(path: str, name: str, known: frozenset[str]) -> tuple[str, str]:
    """The kernel that is meant, and its instance."""
    if not known:
        raise RequestError("contains no kernel", where=path)
    bracket = next((mark for mark in name if mark in "<("), "")
    plain, _, rest = name.partition(bracket) if bracket else (name, "", "")
    plain = plain.strip()
    if not plain:
        if len(known) > 1:
            raise RequestError(f"there are {len(known)} kernels in it: {', '.join(sorted(known))}; say which: "
                               f"{PurePath(path).name}:{min(known)}", where=path)  # fmt: skip
        (plain,) = known
    meant = [each for each in known if each == plain] or [each for each in known if each.endswith(f"::{plain}")]
    if len(meant) != 1:
        raise UnknownName("kernel", plain, known, where=path)
    return meant[0], f"{meant[0]}{bracket}{rest}" if bracket else ""
