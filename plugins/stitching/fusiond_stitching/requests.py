"""The request of a job: a module or a part of one, its data, and how much is measured first."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from fusiond.model.errors import RequestError
from fusiond.model.inputs import values
from fusiond.model.inputs.documents import Node
from fusiond.model.keys import text_key
from fusiond.model.nouns import Job, frozen
from fusiond.model.program import Fill
from fusiond.strategy import Inputs
from fusiond_stitching.analysis.parts import Part
from fusiond_stitching.frontend import fills, importer, scatter_updates, stablehlo
from fusiond_stitching.frontend.graph import HloModule

KEYS = ("module", "frame", "inputs", "dots", "accuracy", "deterministic", "probes", "groups", "group")
DOTS = ("library", "stitched", "any")
STRICT, AS_XLA = "strict", "xla"
PROBES = 12  #: How many missing entries of the performance library a job has measured, unless it says otherwise
GROUPS = 12  #: How many different groups are measured by themselves, unless a job says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class StitchingRequest:
    """A Workload's payload."""

    job: Job = field(repr=False)
    module: HloModule
    fills: Mapping[str, Fill]
    dots: str
    accuracy: str
    """strict: quotients and roots of f32 are rounded to nearest; xla: two units in the last place, as XLA has them
    compiled."""
    deterministic: bool  #: Sums of scatters are the same, bit by bit, in every run
    probes: int
    groups: int
    group: bool  #: The module is one group, of a larger one perhaps


def read(job: Job, inputs: Inputs) -> tuple[str, StitchingRequest, Mapping[str, str]]:
    """The workload's title, what is asked, and a hash of each source file. RequestError with file, line and key for
    what is wrong with the job or the module's text."""
    if job.sizes:
        raise RequestError("a module's sizes are part of it; lower it again for other sizes", where=job.where("sizes"))
    title, module, path, hashes = _module(job, inputs)
    if "frame" in job.request:
        module = _frame(module, values.job_key(job, "frame"))
        title = f"{title}:{module.name}"
    if not any(each.opcode == "scan" or module.fusable(each) for each in module.instructions):
        raise _nothing_to_fuse(module, path)
    filled = fills.read(
        module, _tree(job, "inputs", job.request["inputs"]) if "inputs" in job.request else None, _files(inputs)
    )
    group = values.job_key(job, "group", False).boolean()
    if group and "groups" in job.request:
        raise values.job_key(job, "groups").fail("a job with `group: true` is one group; leave this out")
    request = StitchingRequest(
        job=job, module=module, fills=frozen(filled), deterministic=_deterministic(job, module), group=group,
        dots=values.job_key(job, "dots", DOTS[0]).choice(*DOTS),
        accuracy=values.job_key(job, "accuracy", STRICT).choice(STRICT, AS_XLA),
        probes=values.job_key(job, "probes", PROBES).integer(least=0, most=10_000),
        groups=0 if group else values.job_key(job, "groups", GROUPS).integer(least=0, most=1000),
    )  # fmt: skip
    hashes |= {each.file: each.digest for each in filled.values() if each.file and each.digest}
    return title, request, hashes


def _module(job: Job, inputs: Inputs) -> tuple[str, HloModule, str, dict[str, str]]:
    """(title, module, path for messages, path -> hash): from the text in the job, a file, or a catalogue name."""
    if "module" not in job.request:
        raise RequestError("the key 'module' is missing: a catalogue name, or the path of an HLO text", where=job.path)
    root = values.job_key(job, "module")
    name = root.text()
    if name.lstrip().startswith("HloModule") or stablehlo.is_text(name):
        module = importer.read(_hlo(name, root.where), root.where)
        return module.name, module, root.where, {}
    if "/" not in name and PurePath(name).suffix in (".hlo", ".txt", ".mlir"):
        name = f"./{name}"
    path = inputs.resolve("module", name, where=root.where)
    text = inputs.text(path, where=root.where)
    return PurePath(path).stem, importer.read(_hlo(text, path), path), path, {path: text_key(text)}


def _nothing_to_fuse(module: HloModule, path: str) -> RequestError:
    frames = [each.name for each in module.all_frames]
    hint = f"; it has frames, each a job of its own: `frame: {frames[0]}`" if frames else ""
    if len(frames) > 1:
        hint += f" (or {', '.join(frames[1:])})"
    return RequestError(f"there is nothing to fuse: no instruction but library calls{hint}", where=path)


def _files(inputs: Inputs) -> Callable[[Node], tuple[str, str]]:
    """Reads a file that a job names: (its path, its digest)."""

    def file(node: Node) -> tuple[str, str]:
        given = node.text()
        found = inputs.resolve("file", given if "/" in given else f"./{given}", where=node.where)
        return found, inputs.digest(found, where=node.where)

    return file


def _deterministic(job: Job, module: HloModule) -> bool:
    """Whether sums of scatters shall be the same in every run; RequestError where that would not come to an end."""
    asked = values.job_key(job, "deterministic", False)
    deterministic = asked.boolean()
    for name, count in scatter_updates.endless(module.by_name, module.foreign, deterministic=deterministic).items():
        raise asked.fail(
            f"the windows of scatter {name!r} overlap: its updates cannot be sorted, and looking at {count} of them in "
            f"order would take too long; leave this out"
        )
    return deterministic


def of_frame(request: StitchingRequest, module: HloModule) -> Job:
    """A frame as a job of its own (section 3.1). Its inputs are other ones than the module's."""
    given = request.job
    keys = {name: value for name, value in given.request.items() if name != "inputs"}
    return dataclasses.replace(given, request=frozen({**keys, "frame": module.name}))


def of_group(request: StitchingRequest, part: Part) -> StitchingRequest:
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
    return dataclasses.replace(
        request, job=job, module=part.module, fills=part.fills, dots=part.dots, probes=0, groups=0, group=True
    )


def within(job: Job, part: Part, whole: HloModule) -> Job:
    """A part's job with what the unfused kernels of the whole write for it."""
    found = {}
    for own in part.module.parameters:
        name, mine = part.names[own], part.module[own]
        if name in whole.by_name and (whole[name].dtype, whole[name].dims) == (mine.dtype, mine.dims):
            found[part.module.buffer_of(own)] = whole.buffer_of(name)
    return dataclasses.replace(job, within=frozen(found))


def _hlo(text: str, path: str) -> str:
    return stablehlo.to_hlo(text, path) if stablehlo.is_text(text) else text


def _frame(module: HloModule, node: Node) -> HloModule:
    """The body, condition or branch that a job asks for by its name."""
    found = {each.name: each for each in module.all_frames}
    if not found:
        loops = f"; its loops are one launch each ({', '.join(module.scans)})" if module.scans else ""
        raise node.fail(f"{module.name} has no frames: none of its loops and conditionals is left to a library{loops}")
    return found[node.choice(*found)]


def _tree(job: Job, key: str, value: Any) -> Node:
    """A key of the job as a checked tree."""
    inner = value
    if isinstance(value, Mapping):
        inner = {name: _tree(job, f"{key}.{name}", each) for name, each in value.items()}
    elif isinstance(value, list | tuple):
        inner = tuple(_tree(job, f"{key}[{at}]", each) for at, each in enumerate(value))
    return Node(job.path, key, job.lines.get(key, 1), inner)
