"""Drafts a kernel's YAML from its file: the signature and the launch, and `"?"` for the rest."""

from __future__ import annotations

import dataclasses
import re
from pathlib import PurePath

from fusiond.model.errors import RequestError, UnknownName
from fusiond.model.nouns import NamedPtx
from fusiond.model.program import Source
from fusiond.model.ptx import parser
from fusiond.model.ptx.tree import PtxError
from fusiond.strategy import Inputs
from fusiond_hfuse.frontend import (
    clang_tree,
    draft_yaml,
    includes,
    launches,
    ptx_kernel,
    signatures,
    slicing,
    triton_draft,
)
from fusiond_hfuse.frontend.clang_tree import Reading
from fusiond_hfuse.frontend.draft_yaml import KernelDraft
from fusiond_hfuse.frontend.kernel_parser import parse_kernel
from fusiond_hfuse.frontend.source_kernel import UNREAD, DeviceVariable, Parsed, TranslationUnit


def draft(path: str, name: str, inputs: Inputs, include: tuple[str, ...]) -> str:
    """The YAML text for a kernel of a `.cu`, `.ptx` or `.py` file. `name` is its own, with or without namespaces and
    template arguments (`maxpool<float, 5>`); empty where the file has one. `include`: folders, relative to the file,
    that headers are looked for in. RequestError for what cannot be read, or is not clear."""
    if path.endswith(".ptx"):
        return _of_ptx(path, name, inputs)
    if path.endswith(".py"):
        return triton_draft.draft(path, name, inputs)
    unit = includes.expand(inputs, path, include, yaml=path, where=path)
    code = clang_tree.blanked(unit.text.encode())
    flags = ("-std=c++20",) if _CONCEPT.search(code) else ()
    remarks = [f"Flag: {each}, for a `concept`" for each in flags]
    entry, instance = _entry(path, name, slicing.kernels(unit, (), flags), unit)
    instance = instance or launches.named(entry, code)
    way = Reading(entry=entry, name=entry.rpartition("::")[2], where=path, instance=instance or None, flags=flags)
    try:
        unit, parsed = parse_kernel(unit, way)
        if parsed.rejections and parsed.rejections[0].rule == UNREAD:
            remarks.append(f"Fused as PTX: {parsed.rejections[0].detail}")
            parsed = dataclasses.replace(parsed, rejections=())
    except RequestError as problem:
        compiled = _compiled(inputs, unit, entry, instance or entry, flags)
        if compiled is None:
            raise
        parsed = compiled
        remarks.append(f"Fused as PTX, whose kernels have no names of parameters: {problem}")
    if parsed.settable:  # once the host has set them, they are not a reason to refuse
        set_ = {f"`__{'constant' if each.constant else 'device'}__ {each.name}`" for each in parsed.settable}
        left = (each for each in parsed.rejections if not any(one in each.detail for one in set_))
        parsed = dataclasses.replace(parsed, rejections=tuple(left))
    return draft_yaml.text(
        KernelDraft(
            path=path, unit=unit, parsed=parsed, instance=instance, include=include, flags=flags,
            remarks=tuple(remarks), launched=tuple(launches.launches(code, way.name)),
        )
    )  # fmt: skip


_CONCEPT = re.compile(r"\bconcept\s+\w+\s*=")


def _compiled(
    inputs: Inputs, unit: TranslationUnit, entry: str, instance: str, flags: tuple[str, ...]
) -> Parsed | None:
    """What a kernel's PTX tells of its signature; None where it is not compiled."""
    overload = instance.endswith(")")
    made = inputs.compiled(Source(name="draft", text=unit.whole, entries=() if overload else (instance,), flags=flags))
    if not isinstance(made, NamedPtx):
        return None
    mangled = signatures.overload(made.text, instance) if overload else made.names[instance]
    _, parsed = ptx_kernel.read(made.text, mangled, entry, entry)
    return dataclasses.replace(parsed, entry=entry, parameters=signatures.described(mangled, parsed.parameters))


def _of_ptx(path: str, name: str, inputs: Inputs) -> str:
    text = inputs.text(path, where=path)
    try:
        kernels = tuple(parser.parse(text).entries)
        chosen = name or (kernels[0] if len(kernels) == 1 else "")
        if not chosen:
            raise RequestError(f"there are {len(kernels)} kernels in it: {', '.join(kernels)}; say which", where=path)
        alike = [each for each in kernels if name and f" {name}(" in f" {signatures.demangled(each)}"]
        entry = chosen if chosen in kernels or len(alike) != 1 else alike[0]
        ptx, parsed = ptx_kernel.read(text, entry, entry, path)
    except PtxError as problem:
        raise RequestError(problem.reason, where=f"{path}:{problem.line}") from None
    variables = (each for each in ptx.variables if each.space in ("const", "global") and not each.initial)
    settable = tuple(
        DeviceVariable(name=each.name, bytes=each.size_bytes, dtype=None, constant=each.space == "const")
        for each in variables
        if each.elements
    )
    parsed = dataclasses.replace(parsed, parameters=signatures.described(entry, parsed.parameters), settable=settable)
    unit = TranslationUnit(text=text, files={path: text})
    function = signatures.demangled(entry)
    remark, name = f"{function}: PTX has no names of parameters", re.split(r"[<(]", function)[0].split()[-1]
    block = ptx.limits.get("reqntid", ())
    return draft_yaml.text(KernelDraft(path=path, unit=unit, parsed=parsed, remarks=(remark,), block=block, name=name))


def _entry(path: str, name: str, known: frozenset[str], unit: TranslationUnit) -> tuple[str, str]:
    """The kernel that is meant, and its instance."""
    if not known and not (name and "__global__" in unit.text):
        raise RequestError("contains no kernel", where=path)
    plain = re.split(r"[<(]", name)[0]
    rest, plain = name[len(plain) :], plain.strip()
    if not plain:
        if len(known) > 1:
            raise RequestError(f"there are {len(known)} kernels in it: {', '.join(sorted(known))}; say which: "
                               f"{PurePath(path).name}:{min(known)}", where=path)  # fmt: skip
        (plain,) = known
    meant = [each for each in known if each == plain] or [each for each in known if each.endswith(f"::{plain}")]
    if len(meant) != 1:
        left_out = slicing.condition_round(unit, plain)
        if left_out is not None and not meant:
            raise RequestError(f"`{left_out[1]}` leaves out {plain}", where=unit.where(left_out[0]))
        raise UnknownName("kernel", plain, known, where=path)
    return meant[0], f"{meant[0]}{rest}" if rest else ""
