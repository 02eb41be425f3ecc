"""Job files: YAML to `Job` values, and the files that a job refers to.

    strategy: hfuse
    pair: [hist, maxpool]                  # the strategy's own keys
    sizes: {hist.n: 5000000}
    device: auto                           # cpu, cuda:0, counted:h100, ...
    search: {trials: 64, timeout: 10m, seed: 0, least_gain: 1.02}
    measure: {cache: warm}                 # or cold, or both: a job for each
    sweep: {hist.n: [1000000, 5000000]}    # one workload for each value
    accept_constant: true                  # the unfused outputs may be all zero, say, or left as they were

docs/jobs.md is the reference.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fusiond.build import triton
from fusiond.model.errors import RequestError, UnknownName
from fusiond.model.inputs import documents
from fusiond.model.inputs.documents import Node
from fusiond.model.keys import content_key, plain, text_key
from fusiond.model.nouns import NAMED_ONLY, Job, NamedPtx, Search, frozen
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Source
from fusiond.model.ptx.triton import TritonKernel, TritonSource
from fusiond.model.ptx.triton import read as read_kernels
from fusiond.model.system import files
from fusiond.requests.registry import Registry
from fusiond.strategy import Strategy

SCHEMA = 1
CORE_KEYS = ("schema", "strategy", "sizes", "device", "search", "measure", "sweep", "accept_constant")
MEASURE_KEYS = ("cache",)
CACHES: Mapping[str, tuple[str, ...]] = {"warm": ("warm",), "cold": ("cold",), "both": ("warm", "cold")}
"""What `measure: {cache: ...}` may say, and the jobs that it makes."""
MAX_SWEEP = 100
Compiler = Callable[[Source], NamedPtx | BuildFailed | None]  #: `fusiond.strategy.Inputs.compiled`
_DEVICE = re.compile(r"[a-z][a-z0-9_]*(:[a-z0-9]{1,16})?")
_DURATION = re.compile(r"([0-9]{1,6})\s*(s|m|h)")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def read(
    path: Path | str,
    text: str | None = None,
    *,
    device: str | None = None,
    trials: int | None = None,
    seed: int | None = None,
) -> tuple[Job, ...]:
    """The jobs of one file (several where it sweeps a size, or measures both caches). `text` stands in for the file's
    content; the other arguments overrule what the file says.

    Raises RequestError with file, line and key. Whether the strategy knows its own keys is checked by `check_keys`."""
    shown = str(path)
    if text is None:
        text = files.read_text(Path(path), where=shown)
    root = documents.parse(text, shown)
    keys = root.mapping(required=("strategy",))
    if "schema" in keys and keys["schema"].integer() != SCHEMA:
        raise keys["schema"].fail(f"is {keys['schema'].value}; this fusiond reads job files of schema {SCHEMA}")
    search = _search(keys.get("search"))
    if trials is not None:
        search = dataclasses.replace(search, trials=_option("--trials", trials, 1, 1_000_000))
    if seed is not None:
        search = dataclasses.replace(search, seed=_option("--seed", seed, 0, 2**63 - 1))
    named = device_name(keys["device"].text(), where=keys["device"].where) if "device" in keys else "auto"
    job = Job(
        strategy=keys["strategy"].text(),
        request=frozen({name: node.plain() for name, node in keys.items() if name not in CORE_KEYS}),
        sizes=frozen(_sizes(keys.get("sizes"))),
        device=named if device is None else device_name(device, where="--device"),
        search=search,
        accept_constant="accept_constant" in keys and keys["accept_constant"].boolean(),
        path=str(Path(path).absolute()),
        lines=frozen({key: line for key, line in root.lines() if device is None or key != "device"}),
    )
    return tuple(each for swept in _swept(job, keys.get("sweep")) for each in _cached(swept, keys.get("measure")))


def check_search(given: Mapping[str, object], *, where: str) -> None:
    """Refuse a `search:` that a program gives, as one in a file is refused. RequestError."""
    try:
        text = json.dumps({"search": dict(given)})
    except (TypeError, ValueError) as problem:
        raise RequestError(f"cannot be written into a job: {problem}", where=where) from None
    try:
        _search(documents.parse(text, where).mapping()["search"])
    except RequestError as problem:  # a line of that text would say nothing
        raise RequestError(problem.problem, where=where) from None


def check_keys(job: Job, known: tuple[str, ...]) -> None:
    """Refuse keys of a job file that neither the core nor its strategy knows."""
    for name in job.request:
        if name not in known:
            where = f"{job.path}:{job.lines[name]}" if name in job.lines else job.path
            raise UnknownName("key", name, (*CORE_KEYS, *known), where=where)


def check_order(job: Job, known: tuple[str, ...]) -> None:
    """Refuse an order of search that a job's strategy does not have."""
    if job.search.order not in known:
        where = f"{job.path}:{job.lines['search']}" if "search" in job.lines else job.path
        raise UnknownName(f"order of search for {job.strategy}", job.search.order, known, where=where)


def device_name(text: str, *, where: str) -> str:
    """`auto`, `all`, `cpu`, `cuda`, `cuda:1`, `counted:h100`; RequestError for anything else."""
    if not _DEVICE.fullmatch(text):
        raise RequestError(f"{text[:80]!r} is not a device; write auto, cpu, cuda:0 or counted:h100", where=where)
    return text


def _option(name: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise RequestError(f"is {value}; it must be from {least} to {most}", where=name)
    return value


def _search(node: Node | None) -> Search:
    keys = {} if node is None else node.mapping(known=SEARCH_KEYS)
    given = {name: read(keys[name]) for name, read in _SEARCH.items() if name in keys}
    return Search(**{"timeout_secs" if name == "timeout" else name: value for name, value in given.items()})


def _patience(node: Node) -> int | None:
    """`20`, or `none`: the search ends when its budget is spent."""
    return None if node.value == "none" else node.integer(least=1, most=1_000_000)


def _seconds(node: Node) -> float:
    """`90`, `90s`, `10m`, `2h`."""
    if isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.number(least=1, most=30 * 24 * 3600)
    match = _DURATION.fullmatch(node.text().strip())
    if match is None or int(match[1]) == 0:
        raise node.fail(f"is {node.text()[:40]!r}; write 90s, 10m or 2h")
    return float(int(match[1]) * _SECONDS[match[2]])


_SEARCH: Mapping[str, Callable[[Node], Any]] = {
    "trials": lambda node: node.integer(least=1, most=1_000_000),
    "timeout": _seconds,
    "seed": lambda node: node.integer(least=0),
    "least_gain": lambda node: node.number(least=1.0, most=100.0),
    "sanitize": lambda node: node.boolean(),
    "patience": _patience,
    "order": lambda node: node.text(),
}
SEARCH_KEYS = tuple(_SEARCH)


def _sizes(node: Node | None) -> dict[str, int]:
    return {} if node is None else {name: value.integer(least=1) for name, value in node.mapping().items()}


def _cached(job: Job, node: Node | None) -> tuple[Job, ...]:
    """One job for each state of the caches that is to be measured."""
    if node is None:
        return (job,)
    keys = node.mapping(known=MEASURE_KEYS)
    states = CACHES[keys["cache"].choice(*CACHES)] if "cache" in keys else (job.search.cache,)
    return tuple(dataclasses.replace(job, search=dataclasses.replace(job.search, cache=each)) for each in states)


def _swept(job: Job, node: Node | None) -> tuple[Job, ...]:
    """One job for each combination of the swept sizes."""
    if node is None:
        return (job,)
    both = sorted(set(node.mapping()) & set(job.sizes))
    if both:
        raise node.fail(f"sweeps {both[0]}, which `sizes` sets to {job.sizes[both[0]]}; name it in one of them")
    axes = [[(name, value.integer(least=1)) for value in values.sequence()] for name, values in node.mapping().items()]
    combinations = list(itertools.islice(itertools.product(*axes), MAX_SWEEP + 1))
    if not axes or not combinations:
        raise node.fail("is empty; give a list of values for at least one size")
    if len(combinations) > MAX_SWEEP:
        raise node.fail(f"makes more than {MAX_SWEEP} workloads")
    return tuple(dataclasses.replace(job, sizes=frozen({**job.sizes, **dict(each)})) for each in combinations)


class JobInputs:
    """`fusiond.strategy.Inputs` for one job: what is in the job's snapshot comes from there, the rest from the disk.

    `snapshot()` is everything that was read, to be stored with the job, so that a queued job goes on unchanged when
    a file of it is edited or deleted."""

    def __init__(self, registry: Registry, job: Job, compiler: Compiler | None = None) -> None:
        """`compiler`: what makes PTX of sources; without it, nobody."""
        self._registry, self._job, self._compiler = registry, job, compiler
        self._base = Path(job.path).parent
        self._files = dict(job.files)
        self._read: dict[str, str] = {}
        self.looked: dict[str, str] = {}
        """Each path that was looked for -> the file that was found; empty where there was none."""
        self.asked_compiler = False

    def snapshot(self) -> Mapping[str, str]:
        return frozen(self._read)

    def texts(self) -> Mapping[str, str]:
        """The files that were read, in that order."""
        return frozen({path: text for path, text in self._read.items() if not path.startswith(("digest:", "ptx:"))})

    @property
    def last(self) -> str:
        """The file that was read last; empty when none was."""
        return next(reversed(dict(self.texts())), "")

    def with_text(self, path: str, text: str) -> JobInputs:
        """The same inputs, with another text in place of a file's."""
        job = dataclasses.replace(self._job, files=frozen({**self._read, path: text}))
        return JobInputs(self._registry, job, self._compiler)

    def resolve(self, kind: str, name: str, *, where: str) -> str:
        if not name.endswith((".yaml", ".yml")) and "/" not in name:
            known = self._registry.names(kind)
            if name not in known:
                raise UnknownName(kind, name, known, where=where)
            return str(known[name].path)
        return self._existing(self._base / name, where)

    def beside(self, path: str, relative: str, *, where: str) -> str:
        return self._existing(Path(path).parent / relative, where)

    def text(self, path: str, *, where: str) -> str:
        if path not in self._read:
            text = self._files.get(path)
            self._read[path] = files.read_text(Path(path), where=where) if text is None else text
        return self._read[path]

    def document(self, path: str, *, where: str) -> Node:
        return documents.parse(self.text(path, where=where), path)

    def digest(self, path: str, *, where: str) -> str:
        name = f"digest:{path}"
        if name not in self._read:
            digest = self._files.get(name)
            self._read[name] = _digest(Path(path), where=where) if digest is None else digest
        return self._read[name]

    def compiled(self, source: Source) -> NamedPtx | BuildFailed | None:
        self.asked_compiler = True
        name = f"ptx:{content_key(source)}"
        known = self._files.get(name)
        if known is None:
            found = None if self._compiler is None else self._compiler(source)
            if not isinstance(found, NamedPtx):
                return found
            known = json.dumps(plain(found))
        self._read[name] = known
        return NamedPtx(**json.loads(known))

    def triton(self, source: TritonSource) -> tuple[TritonKernel | str, ...] | BuildFailed:
        self.asked_compiler = True
        source = dataclasses.replace(source, arch=source.arch or self._arch())
        name = f"ptx:{content_key(source)}"
        known = self._files.get(name)
        if known is None:
            if self._compiler is None:
                return BuildFailed(reason="nothing is compiled here")
            found = triton.compiled(source)
            if isinstance(found, BuildFailed):
                return found
            known = found
        self._read[name] = known
        return read_kernels(known)

    def _arch(self) -> str:
        """Of the GPU that the job is for, or else of the first one that is here; empty where there is none."""
        found = [info for _, info in self._registry.devices() if info.arch.startswith("sm_")]
        asked = [info.arch for info in found if self._job.device in (info.name, info.name.partition(":")[0])]
        here = [info.arch for info in found if info.evidence not in NAMED_ONLY]
        return next(iter((*asked, *here)), "")

    def taking(self, kind: str) -> tuple[Strategy, str] | None:
        return self._registry.taking(kind)

    def _existing(self, path: Path, where: str) -> str:
        self.looked[str(path)] = ""
        try:
            absolute = str(path.resolve())
            known = absolute in self._files or f"digest:{absolute}" in self._files
            if not known and not path.is_file():
                problem = f"{path} is not a plain file" if path.exists() else f"there is no file {path}"
                raise RequestError(problem, where=where)
        except (OSError, ValueError, RuntimeError) as problem:  # too long, a NUL, a loop of links
            raise RequestError(f"{str(path)[:200]!r} is not a path: {problem}", where=where) from None
        self.looked[str(path)] = absolute
        return absolute


def _digest(path: Path, *, where: str) -> str:
    return text_key(files.read_bytes(path, where=where))
