"""What a job asks of this strategy: which module, or which part of one; what it holds; how much is measured first."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from fusiond.errors import RequestError
from fusiond.inputs.documents import Node
from fusiond.keys import text_key
from fusiond.model import Job, frozen
from fusiond.program import Fill
from fusiond.strategy import Inputs
from fusiond_stitching.analysis.parts import Part
from fusiond_stitching.frontend import fills, importer, scatter_updates, stablehlo
from fusiond_stitching.frontend.graph import Module

KEYS = ("module", "frame", "inputs", "dots", "accuracy", "deterministic", "probes", "groups", "group")
DOTS = ("library", "stitched", "any")
STRICT, AS_XLA = "strict", "xla"
PROBES = 12
"""How many missing entries of the performance library a job has measured, unless it says otherwise."""
GROUPS = 12
"""How many different groups are measured by themselves, unless a job says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A Workload's payload."""

    job: Job = field(repr=False)
    module: Module
    fills: Mapping[str, Fill]
    dots: str
    accuracy: str
    """strict: quotients and roots of f32 are rounded to nearest; xla: two units in the last place, as XLA has them
    compiled."""
    deterministic: bool
    """Sums of scatters are the same, bit by bit, in every run."""
    probes: int
    groups: int
    group: bool
    """The module is one group, of a larger one perhaps."""


def read(job: Job, inputs: Inputs) -> tuple[str, Request, Mapping[str, str]]:
    """The workload's title, what is asked, and a hash of each source file. RequestError with file, line and key for
    what is wrong with the job or the module's text."""
    if job.sizes:
        raise RequestError("a module has its sizes in itself; lower it again for others", where=job.where("sizes"))
    if "module" not in job.request:
        raise RequestError("the key 'module' is missing: a catalogue name, or the path of an HLO text", where=job.path)
    root = _node(job, "module")
    name = root.text()
    if name.lstrip().startswith("HloModule") or stablehlo.is_text(name):
        path, hashes = root.where, {}
        module = importer.read(_hlo(name, path), path)
        title = module.name
    else:
        if "/" not in name and PurePath(name).suffix in (".hlo", ".txt", ".mlir"):
            name = f"./{name}"
        path = inputs.resolve("module", name, where=root.where)
        text = inputs.text(path, where=root.where)
        module = importer.read(_hlo(text, path), path)
        title, hashes = PurePath(path).stem, {path: text_key(text)}
    if "frame" in job.request:
        module = _frame(module, _node(job, "frame"))
        title = f"{title}:{module.name}"
    if not any(module.fusable(each) for each in module.instructions):
        frames = [each.name for each in module.all_frames]
        hint = f"; it has frames, each a job of its own: `frame: {frames[0]}`" if frames else ""
        if len(frames) > 1:
            hint += f" (or {', '.join(frames[1:])})"
        raise RequestError(f"there is nothing to fuse: no instruction but library calls{hint}", where=path)

    def file(node: Node) -> tuple[str, str]:
        given = node.text()
        found = inputs.resolve("file", given if "/" in given else f"./{given}", where=node.where)
        return found, inputs.digest(found, where=node.where)

    filled = fills.read(module, _node(job, "inputs") if "inputs" in job.request else None, file)
    dots = _node(job, "dots").choice(*DOTS) if "dots" in job.request else DOTS[0]
    group = "group" in job.request and _node(job, "group").boolean()
    if group and "groups" in job.request:
        raise _node(job, "groups").fail("a job with `group: true` is one group; leave this out")
    deterministic = "deterministic" in job.request and _node(job, "deterministic").boolean()
    for name, count in scatter_updates.endless(module, deterministic=deterministic).items():
        raise _node(job, "deterministic").fail(
            f"the windows of scatter {name!r} overlap: its updates cannot be sorted, and to look at {count} of them in "
            f"order would not come to an end; leave this out"
        )
    request = Request(
        job=job,
        module=module,
        fills=frozen(filled),
        dots=dots,
        accuracy=_node(job, "accuracy").choice(STRICT, AS_XLA) if "accuracy" in job.request else STRICT,
        deterministic=deterministic,
        probes=_count(job, "probes", PROBES, 10_000),
        groups=0 if group else _count(job, "groups", GROUPS, 1000),
        group=group,
    )
    hashes |= {each.file: each.digest for each in filled.values() if each.file and each.digest}
    return title, request, hashes


def of_frame(request: Request, module: Module) -> Job:
    """A frame as a job of its own (section 3.1). Its inputs are other ones than the module's."""
    given = request.job
    keys = {name: value for name, value in given.request.items() if name != "inputs"}
    return dataclasses.replace(given, request=frozen({**keys, "frame": module.name}))


def of_group(request: Request, part: Part) -> Request:
    """A group as a job of its own: the same search, on the same device."""
    given = request.job
    keys: dict[str, object] = {"module": part.text, "group": True, "dots": part.dots}
    keys |= {"accuracy": request.accuracy} if request.accuracy != STRICT else {}
    keys |= {"deterministic": True} if request.deterministic else {}
    default = {part.module.buffer_of(name): fills.default(part.module, name) for name in part.module.parameters}
    said = {name: fills.said(each) for name, each in part.fills.items() if each != default[name]}
    keys |= {"inputs": frozen(said)} if said else {}
    digests = {name: text for name, text in given.files.items() if name.startswith("digest:")}
    job = dataclasses.replace(given, request=frozen(keys), lines=frozen(), files=frozen(digests))
    return Request(
        job=job, module=part.module, fills=part.fills, dots=part.dots, accuracy=request.accuracy,
        deterministic=request.deterministic, probes=0, groups=0, group=True,
    )  # fmt: skip


def _count(job: Job, key: str, missing: int, most: int) -> int:
    return _node(job, key).integer(least=0, most=most) if key in job.request else missing


def _hlo(text: str, path: str) -> str:
    return stablehlo.to_hlo(text, path) if stablehlo.is_text(text) else text


def _frame(module: Module, node: Node) -> Module:
    """The body, condition or branch that a job asks for by its name."""
    found = {each.name: each for each in module.all_frames}
    if not found:
        loops = f"; its loops are one launch each ({', '.join(module.scans)})" if module.scans else ""
        raise node.fail(f"{module.name} has no frames: no while and no conditional in it is left to a library{loops}")
    return found[node.choice(*found)]


def _node(job: Job, key: str) -> Node:
    """A key of the job as a checked tree."""
    return _tree(job, key, job.request[key])


def _tree(job: Job, key: str, value: Any) -> Node:
    inner = value
    if isinstance(value, Mapping):
        inner = {name: _tree(job, f"{key}.{name}", each) for name, each in value.items()}
    elif isinstance(value, list | tuple):
        inner = tuple(_tree(job, f"{key}[{at}]", each) for at, each in enumerate(value))
    return Node(job.path, key, job.lines.get(key, 1), inner)
