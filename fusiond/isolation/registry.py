"""The Registry of a program whose strategies are elsewhere."""

from __future__ import annotations

import functools
import importlib.metadata
import logging

from fusiond import hookspecs
from fusiond.errors import FusiondError
from fusiond.events import Event, RecordChanged, TrialFinished
from fusiond.isolation.planner import Planner
from fusiond.isolation.processes import Crashed, TookTooLong
from fusiond.isolation.strategy import IsolatedStrategy
from fusiond.registry import Registry

log = logging.getLogger(__name__)


class IsolatedRegistry(Registry):
    """What the children of a planner have registered. Devices are loaded here, since they start processes of their
    own; of plugins that bring none not even the import happens in this process."""

    def __init__(self, planner: Planner, *, points: tuple[importlib.metadata.EntryPoint, ...] = ()) -> None:
        super().__init__()
        self.planner = planner
        described = planner.description
        self.strategies = {each.name: IsolatedStrategy(planner, each) for each in described.strategies}
        self.catalogue = dict(described.catalogue)
        self.states = list(described.states)
        self._listens = described.listens
        bring_devices = {state.name for state in described.states if state.devices}
        here = Registry.load(point for point in points if point.name in bring_devices)
        self.providers = here.providers

    @property
    def listens(self) -> bool:
        return self._listens

    def notify(self, event: Event) -> None:
        """Pass an event on to the plugins that asked for it, in one of their processes."""
        if not self._listens or not isinstance(event, TrialFinished | RecordChanged):
            return
        try:
            self.planner.ask("notify", event)
        except (Crashed, TookTooLong, FusiondError) as problem:
            log.error("a plugin failed on %s: %s", type(event).__name__, problem)


def load() -> Registry:
    """The plugins of this environment, their strategies in children that this process shares."""
    points = tuple(importlib.metadata.entry_points(group=hookspecs.GROUP))
    return IsolatedRegistry(_shared(), points=points)


@functools.cache
def _shared() -> Planner:
    return Planner()
