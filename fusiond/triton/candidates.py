"""A config of a kernel for one key: its name in the store, and its question.

A name is a digest of all that decides what Triton compiles: the function with what it calls, Triton's version, the
architecture, the specialised signature, constants, the config's options. So an answer is found without compiling.
Whole numbers of the key are sizes, which the name leaves out: what is known of other sizes is found by it, too.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import triton
from triton.runtime.autotuner import Config
from triton.runtime.driver import driver
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

from fusiond.cuda.recording import group_job
from fusiond.cuda.recording import triton as launches
from fusiond.cuda.recording.arguments import Argument, Array, Unseen
from fusiond.cuda.recording.group_job import Unaskable
from fusiond.model.ptx.triton import NotTaken, check_kind

_environment = getattr(triton._C.libtriton, "get_cache_invalidating_env_vars", dict)


class ConfigsQuestion(group_job.KernelsQuestion):
    """One config, to be measured; or two, of which the second is compared with the first (`Askable`)."""

    __slots__ = ()

    @property
    def digest(self) -> str:
        return group_job.file_digest("variants", self.device, *self.names)

    @property
    def workload(self) -> str:
        return " ".join(self.names)  # other than its name: it is asked at other sizes, too

    def job(self, search: Mapping[str, Any] | None = None) -> str:
        """The text of a job file. A kernel may write zeros for what it is tried with, and configs sum in other orders:
        the tolerances alone decide."""
        search = search or self.search
        lines = ["strategy: variants", f"variants: {json.dumps([f'./{each}.yaml' for each in self.names])}"]
        lines += ["accept_constant: true", "precision: any", f"device: {json.dumps(self.device)}"]
        lines += [f"search: {json.dumps(dict(search))}"] if search else []
        return "\n".join([*lines, ""])


class Placeholder:
    """In the place of an array while Triton compiles: where it lies and what it is made of, and no memory."""

    def __init__(self, value: Any) -> None:
        self.dtype, self._address = value.dtype, value.data_ptr()

    def data_ptr(self) -> int:
        return int(self._address)


@dataclass(slots=True, kw_only=True, eq=False)
class KeyedConfig:
    """A config, for one key."""

    config: Config
    name: str
    problem: str = ""  #: Why it is not asked for, and not launched; one line
    _write: Callable[[], str] = field(repr=False)
    _file: str = field(default="", repr=False)

    @property
    def label(self) -> str:
        """`BLOCK=1024, num_warps=4`"""
        options = self.config.all_kwargs().items()
        return ", ".join(f"{name}={value}" for name, value in options if (name, value) != ("num_ctas", 1))

    def file(self) -> str:
        """Its YAML file in the folder of questions, written with the PTX that Triton makes of it; empty, and there is a
        `problem`, where that cannot be."""
        if not self._file and not self.problem:
            try:
                self._file = self._write()
            except (NotTaken, Unaskable) as why:
                self.problem = str(why)
            except Exception as why:  # whatever a compiler raises: Triton leaves such a config out, too
                self.problem = " ".join(f"{type(why).__name__}: {why}".split())[:200]
        return self._file


def of(
    function: Any,
    config: Config,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    grid: Any,
    key: Mapping[str, Any],
    zeros: Collection[str],
) -> KeyedConfig:
    """A config for the arguments of a launch; `key`: those that are the key. NotTaken for a kernel that cannot be
    measured by its PTX."""
    given = {**kwargs, **config.all_kwargs()}
    while not isinstance(function, JITFunction):
        for name, value in function.values.items():
            given[name] = value({**dict(zip(function.arg_names, args, strict=False)), **given})
        function = function.fn
    device = driver.active.get_current_device()
    target = driver.active.get_current_target()
    if target.backend != "cuda":
        raise NotTaken(f"its target is {target.backend}")
    if given.get("num_ctas", 1) != 1:
        raise NotTaken("its blocks come in clusters (num_ctas)")
    *_, binder = function.device_caches[device]
    bound, specialization, options = binder(*args, **given)
    sizes = {name: value for name, value in key.items() if is_size(value)}
    handed, told = {}, []
    for (name, value), (kind, *special) in zip(bound.items(), specialization, strict=False):
        constant = [repr(getattr(value, "cache_key", value))] if kind == "constexpr" else []
        told.append([name] if name in sizes else [name, kind, *special, *constant])  # a size says what is special
        if kind == "constexpr":
            continue
        check_kind(name, kind)
        try:
            handed[name] = launches.read(value, kind)
        except Unseen as why:
            raise NotTaken(f"its argument {name} {why}") from None
    others = sorted((name, repr(value)) for name, value in key.items() if not (name in sizes or _is_array(value)))
    digest = group_job.file_digest(
        function.cache_key, triton.__version__, target, told, sorted(map(repr, options.items())),
        sorted(_environment().items()), others, sorted(zeros),
    )  # fmt: skip
    x, y, z = (*(int(each) for each in (grid(bound) if callable(grid) else grid)), 1, 1)[:3]
    word = re.sub(r"[^A-Za-z0-9_]|^[^A-Za-z]+", "", function.__name__) or "kernel"
    name, held = f"{word[:40]}_{digest}", tuple(map(_standing, args))  # no arrays are kept
    options = {name: _standing(value) for name, value in given.items()} | {"grid": (x, y, z), "warmup": True}

    def written() -> str:
        compiled = function.run(*held, **options)
        return _written(name, compiled, handed, (x, y, z), sizes, zeros)

    return KeyedConfig(config=config, name=name, _write=written)


def _written(
    name: str,
    compiled: Any,
    handed: Mapping[str, Argument],
    grid: launches.GridLengths,
    sizes: Mapping[str, int],
    zeros: Collection[str],
) -> str:
    """The file of a compiled kernel under a name. NotTaken, Unaskable, OutOfResources."""
    if hasattr(compiled, "result"):
        compiled = compiled.result()
    most = driver.active.utils.get_device_properties(driver.active.get_current_device())["max_shared_mem"]
    if compiled.metadata.shared > most:
        raise OutOfResources(compiled.metadata.shared, most, "shared memory")
    launch = launches.launch_of(compiled, handed, grid, 0, 0, lambda: None)
    numbers = [None if isinstance(each, Array) else each.value for each in launch.arguments]
    document = group_job.described(launch, numbers)
    own = [name for name, kind in compiled.src.signature.items() if kind != "constexpr"]
    for each in document["arguments"][: len(handed)]:
        if each.get("role") == "inout" and own[int(each["name"][1:])] in zeros:
            each["fill"] = "zeros"
    document |= {"source": f"../{document['source']}"} | ({"sizes": dict(sizes)} if sizes else {})
    file = f"{group_job.file_digest(name, json.dumps(document))}/{name}"
    group_job.written(document, name, file)
    return file


def is_size(value: object) -> bool:
    """Whether an argument of the key is a size of a workload."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 62


def _is_array(value: object) -> bool:
    return hasattr(value, "data_ptr") and hasattr(value, "dtype")


def _standing(value: Any) -> Any:
    return Placeholder(value) if _is_array(value) else value
