"""The devices that a Program for several of them uses: the one that it is run on, and its equals.

The Program's device 0 is the one that the job is for; 1, 2 ... are the boards of the same model (memory,
multiprocessors and all else that makes the device's key) that follow it in the driver's order, and behind the last the
first. Slices of a board have no peers: a process computes on one of them only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from fusiond.model import DeviceInfo

MOST_DEVICES = 100
"""Where a device only stands for others (the processor, a GPU that is not here)."""


def counted(found: Iterable[DeviceInfo]) -> tuple[DeviceInfo, ...]:
    """Devices, with how many a Program may be for on each."""
    infos = tuple(found)
    return tuple(dataclasses.replace(each, devices=1 + len(_equals(infos, each))) for each in infos)


def beside(infos: Sequence[DeviceInfo], info: DeviceInfo, devices: int) -> tuple[DeviceInfo, ...]:
    """Those that a Program for so many devices uses beside `info`, in its order; fewer where there are no more."""
    return _equals(infos, info)[: devices - 1]


def _equals(infos: Sequence[DeviceInfo], info: DeviceInfo) -> tuple[DeviceInfo, ...]:
    if info.mig:
        return ()
    equal = [each for each in infos if each.key == info.key]
    at = [each.name for each in equal].index(info.name) if info.name in {each.name for each in equal} else -1
    return (*equal[at + 1 :], *equal[: max(at, 0)])
