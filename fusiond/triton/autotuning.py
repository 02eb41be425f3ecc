"""`fusiond.triton.autotune`, in the place of `triton.autotune`, and what became of its keys."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime import autotuner
from triton.runtime.autotuner import Autotuner, Config, Heuristics
from triton.runtime.driver import driver
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITFunction

from fusiond.model.ptx.triton import NotTaken
from fusiond.service.frameworks import region_answers
from fusiond.service.frameworks.region_answers import FusionOptions
from fusiond.triton import candidates
from fusiond.triton.keys import ChosenConfig, TunedKey

log = logging.getLogger("fusiond.triton")

Key = tuple[Any, ...]
Launch = tuple[Mapping[str, Any], Any, Config]  #: What a config adds to the arguments, its `pre_hook`, and itself
kernels: weakref.WeakSet[Autotuned] = weakref.WeakSet()  #: All of this process


class Autotuned(Autotuner):  # type: ignore[misc]
    """A kernel whose configs are measured elsewhere, once. All else is Triton's Autotuner, which tunes what fusiond
    cannot measure."""

    def __init__(self, fn: Any, *, tuning: FusionOptions, **kwargs: Any) -> None:
        super().__init__(fn, fn.arg_names, **kwargs)
        self._tuning, self._lock = tuning, threading.RLock()
        self._key = _key_of(fn, self.keys)
        self._launches: dict[Key, Launch | None] = {}  #: None: Triton tunes this key itself
        self.tuned: dict[Key, TunedKey | str] = {}  #: Or why fusiond does not measure a key, in one line
        self._to_ask: list[TunedKey] = []
        kernels.add(self)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launch with the config that is known to be the best. What is new is asked for, and not waited for."""
        key = self._key(*args, **kwargs)
        while True:
            try:
                launch = self._launches[key]
            except KeyError:
                launch = self._begun(key, args, kwargs)
            if launch is None:
                return super().run(*args, **kwargs)
            options, hook, self.best_config = launch
            if hook is not None:
                hook({**dict(zip(self.arg_names, args, strict=False)), **kwargs, **options})
            try:
                compiled = self.fn.run(*args, **kwargs, **options)
                if self._to_ask:
                    self._ask()
                return compiled
            except (OutOfResources, CompileTimeAssertionFailure, PTXASError) as problem:
                tuned = self.tuned.get(key)  # is there another config, in the place of one that cannot be launched?
                if not isinstance(tuned, TunedKey) or not tuned.failed(launch[2], " ".join(str(problem).split())):
                    raise

    def _begun(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Launch | None:
        with self._lock:
            if key not in self._launches:
                self.nargs: Any = dict(zip(self.arg_names, args, strict=False))
                others = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
                configs = self.prune_configs(kwargs) if len(self.configs) > 1 else self.configs
                conflicts = sorted(others.keys() & configs[0].kwargs.keys())
                if conflicts:
                    raise ValueError(f"{', '.join(conflicts)}: given by the launch and by the configs")
                self._launches[key] = _launch(configs[0])
                if len(configs) > 1:
                    self._look(key, configs, args, others, kwargs["grid"])
                self.nargs = None  # what it holds may be let go
            return self._launches[key]

    def _look(
        self, key: Key, configs: Sequence[Config], args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any
    ) -> None:
        """Begin with a key. Whatever goes wrong, the program goes on."""
        given = {**self.nargs, **kwargs}
        named = {name: given[name] for name in self.keys if name in given}
        sizes = {name: value for name, value in named.items() if candidates.is_size(value)}
        try:
            found = [candidates.of(self.fn, each, args, kwargs, grid, named, self.reset_to_zero) for each in configs]
            device = self._tuning.device or f"cuda:{driver.active.get_current_device()}"
            said = [f"{name}={value}" for name, value in named.items() if not hasattr(value, "data_ptr")]
            name, changed = " ".join([self.base_fn.__name__, *said]), functools.partial(self._take, key)
            tuned = TunedKey(name, found, sizes, device, self._tuning, changed)
            self.tuned[key] = tuned
            self._take(key, tuned.choice)
            if self._tuning.block:
                tuned.prepare()
            elif tuned.lacks:
                self._to_ask.append(tuned)
        except NotTaken as why:
            self.tuned[key], self._launches[key] = f"Triton tunes it itself: {why}", None
        except Exception as problem:
            self.tuned[key] = f"the first config: {type(problem).__name__}: {' '.join(str(problem).split())}"
            log.warning("%s: %s", self.base_fn.__name__, self.tuned[key])
            log.debug("%s", self.base_fn.__name__, exc_info=True)

    def _ask(self) -> None:
        """Ask in the background, once what is launched was compiled."""
        with self._lock:
            while self._to_ask:
                tuned = self._to_ask.pop()
                tuned.asker.later(tuned.prepare)

    def _take(self, key: Key, choice: ChosenConfig) -> None:
        self._launches[key] = _launch(choice.candidate.config)


def _launch(config: Config) -> Launch:
    return config.all_kwargs(), config.pre_hook, config


def _key_of(fn: Any, keys: Sequence[str]) -> Callable[..., Key]:
    """A function of a launch's arguments: the values of the key, and the types of what has one."""
    function = fn
    while not isinstance(function, JITFunction):
        function = function.fn
    names = [each.name for each in function.params]
    types = [each.name for each in function.params if not (each.is_constexpr or each.name in keys)]
    values = [*keys, *(f"getattr({name}, 'dtype', None)" for name in types)]
    found: dict[str, Any] = {}
    exec(
        f"def key({''.join(f'{name}=None, ' for name in names)}**_): return ({''.join(f'{v}, ' for v in values)})",
        found,
    )
    return found["key"]  # type: ignore[no-any-return]


def autotune(
    *args: Any,
    always: bool = False,
    block: bool = False,
    search: Mapping[str, Any] | None = None,
    device: str | None = None,
    db: Path | str | None = None,
    **named: Any,
) -> Callable[[Any], Any]:
    """`triton.autotune`, whose measurements are fusiond's: kept, verified, shared.

        @fusiond.triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (256, 1024)], key=["n"])
        @triton.jit
        def softmax(x, y, n, BLOCK: tl.constexpr): ...

    The arguments are Triton's. `pre_hook`, `post_hook`, `warmup`, `rep`, `use_cuda_graph` and `do_bench` say how Triton
    measures, and matter only where it does; what `reset_to_zero` names is zeros when a config is measured. A config's
    own `pre_hook` runs before each launch, and has no part in measuring.

    always: emulated answers count too, for scripts and tests. block: a new key is tuned here and now, without a daemon.
    search: how, as in a job (`{"timeout": "10m"}`). device: as a job names it; db: another store. `FUSIOND=off` in the
    environment, and TRITON_INTERPRET: `triton.autotune`.

    ValueError for a name that is not an argument, and for a `search` or a `device` that a job could not have."""
    tritons = autotuner.autotune(*args, **named)
    if not region_answers.enabled():
        return tritons  # type: ignore[no-any-return]
    region_answers.check_options(search, device)
    options = FusionOptions(always=always, block=block, search=search, device=device, db=db)
    given = inspect.signature(autotuner.autotune).bind(*args, **named)
    given.apply_defaults()

    def decorated(fn: Any) -> Any:
        function = fn
        while isinstance(function, Heuristics):
            function = function.fn
        if not isinstance(function, JITFunction):
            return tritons(fn)
        return Autotuned(fn, tuning=options, **given.arguments)

    return decorated


# --- explaining ---


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedKey:
    """What is launched for a key."""

    name: str  #: The kernel with its key: `softmax n=1000`
    config: str  #: Empty where Triton tunes by itself
    state: str  #: `tuned`, `first`, `nearest`, `unknown`, or `refused`
    reason: str
    speedup: float | None = None  #: Over the first config
    ci95: tuple[float, float] | None = None
    problems: tuple[str, ...] = ()  #: Configs that are not launched, each with why

    def __str__(self) -> str:
        config = f"  {self.config}" if self.config else ""
        gain = f", {self.speedup:.2f}x the first config" if self.speedup else ""
        gain += f" ({self.ci95[0]:.2f} to {self.ci95[1]:.2f})" if self.ci95 else ""
        return "\n    ".join([f"{self.name}{config}  {self.state}{gain}: {self.reason}", *self.problems])


class KeysExplanation(tuple[ExplainedKey, ...]):
    """One line for each key of each kernel."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no kernel was launched"


def explain() -> KeysExplanation:
    """What became of the keys that this process has launched kernels for."""
    return KeysExplanation(sorted(_explained(), key=lambda each: each.name))


def _explained() -> Iterator[ExplainedKey]:
    for kernel in list(kernels):
        for tuned in list(kernel.tuned.values()):
            if not isinstance(tuned, TunedKey):
                yield ExplainedKey(name=kernel.base_fn.__name__, config="", state="refused", reason=tuned)
                continue
            choice, standing = tuned.choice, tuned.standing()
            yield ExplainedKey(
                name=tuned.name, config=choice.candidate.label, state=choice.state,
                reason=f"{choice.reason}; {standing}" if standing else choice.reason, speedup=choice.speedup,
                ci95=choice.ci95, problems=tuned.problems(),
            )  # fmt: skip
