"""Loads plugins and holds what they registered. A plugin that fails to load is a state, not a crash."""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import pluggy

from fusiond.devices.base import DeviceProvider
from fusiond.model.errors import FusiondError, PluginError, UnknownName
from fusiond.model.events import DeviceTurnedSick, Event, RecordChanged, TrialFinished
from fusiond.model.nouns import DeviceInfo
from fusiond.strategy import CatalogueEntry, Strategy, hookspecs

log = logging.getLogger(__name__)

_KIND = re.compile(r"[a-z][a-z0-9_-]*")
_HOOKS = (
    "register_strategies", "register_devices", "register_workloads", "trial_finished", "record_changed", "device_sick",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginState:
    """One entry point: what it brought, or why it did not load."""

    name: str
    distribution: str
    strategies: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    problem: str | None = None


class Registry:
    """Strategies, devices and the catalogue. `Registry.load()` reads the entry points of this environment."""

    def __init__(self) -> None:
        self.strategies: dict[str, Strategy] = {}
        self._providers: dict[str, DeviceProvider] = {}
        self.catalogue: dict[tuple[str, str], CatalogueEntry] = {}
        self.states: list[PluginState] = []
        self._later: list[importlib.metadata.EntryPoint] = []
        self._manager = pluggy.PluginManager(hookspecs.GROUP)
        self._manager.add_hookspecs(hookspecs)

    @classmethod
    def load(
        cls,
        entry_points: Iterable[importlib.metadata.EntryPoint] | None = None,
        *,
        without: Collection[str] = (),
        only: Collection[str] = (),
        before: Callable[[str], None] = lambda name: None,
    ) -> Registry:
        """Load every plugin of the entry-point group `fusiond`, in name order; those in `without` are known to end the
        process that loads them. With `only`, the others are left to `complete`. `before` is called with the name of
        each before it is loaded."""
        registry = cls()
        found = importlib.metadata.entry_points(group=hookspecs.GROUP) if entry_points is None else entry_points
        for point in sorted(found, key=lambda each: each.name):
            distribution = point.dist.name if point.dist else "?"
            if point.name in without:
                problem = "it ends the process that loads it"
                registry.states.append(PluginState(name=point.name, distribution=distribution, problem=problem))
                continue
            registry._later.append(point)
            if not only or point.name in only:
                before(point.name)
                registry._load(registry._later.pop())
        return registry

    def complete(self) -> None:
        """Load what `only` has left out."""
        while self._later:
            self._load(self._later.pop(0))

    def _load(self, point: importlib.metadata.EntryPoint) -> None:
        distribution = point.dist.name if point.dist else "?"
        try:
            plugin = point.load()
            self.add(plugin, point.name, distribution)
        except (Exception, SystemExit) as problem:  # a stranger's code may raise anything at all
            log.debug("plugin %s did not load", point.name, exc_info=True)
            own = isinstance(problem, PluginError)
            text = " ".join((str(problem) if own else f"{type(problem).__name__}: {problem}").split())
            self.states.append(PluginState(name=point.name, distribution=distribution, problem=text))

    def add(self, plugin: object, name: str, distribution: str = "") -> None:
        """Register one plugin object; PluginError when its hooks are misspelt or a name is taken.

        Either everything that the plugin brings is registered, or nothing."""
        strategies: list[Strategy] = []
        providers: list[DeviceProvider] = []
        entries: list[CatalogueEntry] = []
        if self._manager.has_plugin(name):
            raise PluginError(f"a plugin called {name!r} is registered already")
        try:
            self._manager.register(plugin, name)
            self._manager.check_pending()
            _check_signature_names(plugin)
            others = [each for each in self._manager.get_plugins() if each is not plugin]
            alone = self._manager.subset_hook_caller
            alone("register_strategies", others)(register=strategies.append)
            alone("register_devices", others)(register=providers.append)
            alone("register_workloads", others)(register=entries.append)
            self._check(name, strategies, providers, entries)
        except (Exception, SystemExit):
            if self._manager.has_plugin(name):
                self._manager.unregister(plugin)
            raise
        self.strategies.update({each.name: each for each in strategies})
        self._providers.update({each.kind: each for each in providers})
        self.catalogue.update({(each.kind, each.name): each for each in entries})
        self.states.append(
            PluginState(
                name=name,
                distribution=distribution,
                strategies=tuple(each.name for each in strategies),
                devices=tuple(each.kind for each in providers),
                workloads=tuple(each.name for each in entries),
            )
        )

    @property
    def providers(self) -> dict[str, DeviceProvider]:
        """Kind -> what makes devices of it."""
        return self._providers

    def devices(self) -> list[tuple[DeviceProvider, DeviceInfo]]:
        """Every device that is there. A provider that raises is logged, and has none."""
        found = []
        for kind, provider in self.providers.items():
            try:
                found += [(provider, info) for info in provider.devices()]
            except FusiondError:
                raise
            except Exception as problem:  # a provider is a plugin's: it may raise anything
                log.error("devices of the kind %s cannot be listed: %s: %s", kind, type(problem).__name__, problem)
        return found

    def strategy(self, name: str, *, where: str = "") -> Strategy:
        """The strategy of that name; UnknownName with the nearest one, PluginError where its plugin did not load."""
        if name not in self.strategies:
            if problem := next((each.problem for each in self.states if each.name == name), None):
                raise PluginError(f"{where}: " * bool(where) + f"the plugin {name} did not load: {problem}")
            raise UnknownName("strategy", name, self.strategies, where=where)
        return self.strategies[name]

    def provider(self, device: str, *, where: str = "") -> DeviceProvider:
        """The provider of a device name such as `cpu` or `cuda:1`."""
        kind = device.partition(":")[0]
        if kind not in self.providers:
            raise UnknownName("device", device, self.providers, where=where)
        return self.providers[kind]

    def taking(self, kind: str) -> tuple[Strategy, str] | None:
        """Who takes documents of a kind, and under which key of a job; None where nobody does."""
        self.complete()
        found = [(name, each.names[kind]) for name, each in self.strategies.items() if kind in each.names]
        return None if not found else (self.strategies[min(found)[0]], min(found)[1])

    def names(self, kind: str) -> Mapping[str, CatalogueEntry]:
        """The catalogue of one kind."""
        return {entry.name: entry for (each, _), entry in self.catalogue.items() if each == kind}

    @property
    def listens(self) -> bool:
        """Whether a plugin wants to be told of anything."""
        told = ("trial_finished", "record_changed", "device_sick")
        return any(getattr(self._manager.hook, name).get_hookimpls() for name in told)

    def notify(self, event: Event) -> None:
        """Pass an event on to the plugins that asked for it; one that raises is logged and goes on being asked."""
        for plugin in self._manager.get_plugins():
            others = [each for each in self._manager.get_plugins() if each is not plugin]
            try:
                if isinstance(event, TrialFinished):
                    self._manager.subset_hook_caller("trial_finished", others)(trial=event.trial)
                elif isinstance(event, RecordChanged):
                    self._manager.subset_hook_caller("record_changed", others)(record=event.record)
                elif isinstance(event, DeviceTurnedSick):
                    sick = self._manager.subset_hook_caller("device_sick", others)
                    sick(device=event.device, reason=event.reason)
            except Exception:
                log.exception("plugin %s failed on %s", self._manager.get_name(plugin), type(event).__name__)

    def _check(
        self,
        plugin: str,
        strategies: Iterable[Strategy],
        providers: Iterable[DeviceProvider],
        entries: Iterable[CatalogueEntry],
    ) -> None:
        names: set[str] = set(self.strategies)
        for strategy in strategies:
            if isinstance(strategy, type):
                raise PluginError(f"{plugin}: {strategy!r} is a class; register an instance of it")
            if not isinstance(strategy, Strategy):
                lacks = [each for each in members(Strategy) if not hasattr(strategy, each)]
                raise PluginError(f"{plugin}: {strategy!r} is not a strategy, it lacks {', '.join(lacks)}")
            if strategy.name in names:
                raise PluginError(f"{plugin}: a strategy called {strategy.name!r} is registered already")
            names.add(strategy.name)
        kinds = set(self.providers)
        for provider in providers:
            if isinstance(provider, type):
                raise PluginError(f"{plugin}: {provider!r} is a class; register an instance of it")
            if lacks := [each for each in members(DeviceProvider) if not hasattr(provider, each)]:
                raise PluginError(f"{plugin}: {provider!r} is not a device provider, it lacks {', '.join(lacks)}")
            if not _KIND.fullmatch(provider.kind) or provider.kind in ("auto", "all"):
                raise PluginError(f"{plugin}: {provider.kind!r} is not a kind of device; write a word such as cuda")
            if provider.kind in kinds:
                raise PluginError(f"{plugin}: a device called {provider.kind!r} is registered already")
            kinds.add(provider.kind)
        catalogue = set(self.catalogue)
        for entry in entries:
            if (entry.kind, entry.name) in catalogue:
                raise PluginError(f"{plugin}: a {entry.kind} called {entry.name!r} is registered already")
            catalogue.add((entry.kind, entry.name))
            if not entry.path.is_file():
                raise PluginError(f"{plugin}: the {entry.kind} {entry.name!r} has no file {entry.path}")


def members(protocol: type) -> tuple[str, ...]:
    """What an object must have to be of a protocol."""
    return tuple(sorted({*protocol.__annotations__, *(name for name in vars(protocol) if not name.startswith("_"))}))


def _check_signature_names(plugin: object) -> None:
    """pluggy takes no notice of a function without the marker, whatever its name: refuse any that looks like one of
    ours."""
    for name in _HOOKS:
        function = inspect.getattr_static(plugin, name, None)
        if inspect.isfunction(function) and not hasattr(function, f"{hookspecs.GROUP}_impl"):
            raise PluginError(f"the hook {name!r} lacks its marker, @hookimpl of fusiond.strategy.hookspecs")
    for name in dir(plugin):
        if name.startswith("register_") and not hasattr(hookspecs, name):
            known = ", ".join(each for each in dir(hookspecs) if each.startswith("register_"))
            raise PluginError(f"there is no hook {name!r}; there are {known}")
