"""The hooks: recorded spaces as a strategy, and the device on which they are replayed."""

from collections.abc import Callable

from fusiond.devices.base import DeviceProvider
from fusiond.strategy import Strategy
from fusiond.strategy.hookspecs import hookimpl
from fusiond_replay.device import ReplayProvider
from fusiond_replay.strategy import Replay


@hookimpl
def register_strategies(register: Callable[[Strategy], None]) -> None:
    register(Replay())


@hookimpl
def register_devices(register: Callable[[DeviceProvider], None]) -> None:
    register(ReplayProvider())
