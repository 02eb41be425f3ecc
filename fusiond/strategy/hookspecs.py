"""The hooks of the entry-point group `fusiond`.

Hooks only register; the objects do the work. Nothing is ever fanned out through pluggy while tuning (it stops at the
first exception), except the three notifications, each call of which is fenced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pluggy

from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import Record, Trial
from fusiond.strategy import CatalogueEntry, Strategy

if TYPE_CHECKING:  # devices are a level above; only the annotation needs the name
    from fusiond.devices.base import DeviceProvider

GROUP = "fusiond"
hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def register_strategies(register: Callable[[Strategy], None]) -> None:
    """Call `register(strategy)` once for each strategy."""


@hookspec
def register_devices(register: Callable[[DeviceProvider], None]) -> None:
    """Call `register(provider)` once for each kind of device."""


@hookspec
def register_workloads(register: Callable[[CatalogueEntry], None]) -> None:
    """Call `register(entry)` for each name that job files may use."""


@hookspec
def trial_finished(trial: Trial) -> None:
    """A trial is on disk."""


@hookspec
def record_changed(record: Record) -> None:
    """A workload has a new best answer."""


@hookspec
def device_sick(device: DeviceInfo, reason: str) -> None:
    """A device failed on what is known to be good, and gets no jobs until somebody has looked."""
