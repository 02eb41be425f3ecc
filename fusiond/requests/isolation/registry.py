"""The Registry of a program whose strategies run in child processes."""

import atexit
import functools
import importlib.metadata
import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fusiond.devices.base import DeviceProvider
from fusiond.model.errors import FusiondError, RequestError
from fusiond.model.events import DeviceTurnedSick, Event, RecordChanged, TrialFinished
from fusiond.model.nouns import Job
from fusiond.model.system import files
from fusiond.requests import jobs
from fusiond.requests.isolation import registration_cache
from fusiond.requests.isolation.messages import Description
from fusiond.requests.isolation.planner import Planner
from fusiond.requests.isolation.processes import Crashed, TookTooLong
from fusiond.requests.isolation.strategy import IsolatedStrategy
from fusiond.requests.job_cache import Environment
from fusiond.requests.registry import Registry
from fusiond.strategy import hookspecs

log = logging.getLogger(__name__)


class IsolatedRegistry(Registry):
    """What the children of a planner have registered. Devices are loaded here, since they start processes of their
    own; of plugins that bring none not even the import happens in this process. No child is started for a description
    that is known."""

    here: Environment | None = None  #: What the plugins were loaded from, where all of them loaded

    def __init__(
        self,
        planner: Planner,
        *,
        points: tuple[importlib.metadata.EntryPoint, ...] = (),
        known: Description | None = None,
    ) -> None:
        super().__init__()
        self.planner = planner
        described = known or planner.description
        self.strategies = {each.name: IsolatedStrategy(planner, each) for each in described.strategies}
        self.catalogue = dict(described.catalogue)
        self.states = list(described.states)
        self._listens = described.listens
        bring_devices = {state.name for state in described.states if state.devices}
        self._points = tuple(point for point in points if point.name in bring_devices)

    @functools.cached_property
    def providers(self) -> dict[str, DeviceProvider]:
        return Registry.load(self._points).providers

    @property
    def listens(self) -> bool:
        return self._listens

    def notify(self, event: Event) -> None:
        """Pass an event on to the plugins that asked for it, in one of their processes."""
        if not self._listens or not isinstance(event, TrialFinished | RecordChanged | DeviceTurnedSick):
            return
        try:
            self.planner.ask("notify", event)
        except (Crashed, TookTooLong, FusiondError) as problem:
            log.error("a plugin failed on %s: %s", type(event).__name__, problem)


def read(registry: Registry, path: str, text: str | None = None, **options: Any) -> tuple[Job, ...]:
    """`jobs.read`, in a child where the registry has any: a job file may keep its parser busy for long.

    RequestError as `jobs.read`, and for what takes too long."""
    if text is None:
        text = files.read_text(Path(path), where=path)
    if not isinstance(registry, IsolatedRegistry):
        return jobs.read(path, text, **options)
    try:
        found: tuple[Job, ...] = registry.planner.ask("read", path, text, options)
    except Crashed as crash:
        raise RequestError(f"the parser {crash.how} as it had to read this", where=path) from None
    except TookTooLong as slow:
        raise RequestError(f"it took {slow} to read this, and was stopped", where=path) from None
    except MemoryError:
        raise RequestError("the parser needs more memory than it may use to read this", where=path) from None
    return found


def load(*, fresh: bool = False, strategies: Collection[str] | None = None) -> Registry:
    """The plugins of this environment, their strategies in children that this process shares. Not `fresh`: what they
    registered may be what they registered in an earlier process, as long as nothing of them has changed since; then
    children begin with the plugins of these `strategies` alone, where such are given."""
    points = tuple(importlib.metadata.entry_points(group=hookspecs.GROUP))
    here = registration_cache.environment(points)  # before anything of it is loaded
    known = None if fresh else registration_cache.recall(points, here)
    only = None if strategies is None else tuple(
        state.name for state in (known.states if known else ()) if not set(strategies).isdisjoint(state.strategies)
    )  # fmt: skip
    planner = _shared(only)
    found = IsolatedRegistry(planner, points=points, known=known)
    if known is None:
        registration_cache.remember(points, planner.description, here)
    if not any(state.problem for state in found.states):
        found.here = here
    return found


@functools.cache
def _shared(only: tuple[str, ...] | None = None) -> Planner:
    planner, owner = Planner(only=only), os.getpid()

    def close() -> None:
        if os.getpid() == owner:  # a fork has no children here, and a lock that some thread held will never be free
            planner.close()

    atexit.register(close)
    return planner
