"""The state of a GPU by NVML: clock, temperature, power, throttling, other processes. Missing values are "unknown".

The library is `pynvml` of the package nvidia-ml-py, part of the extra `fusiond[cuda]`. NVML needs no context, so
the daemon's process may ask as well.
"""

import contextlib
import os
from pathlib import Path
from typing import Any

from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import DeviceState

try:
    import pynvml
except ImportError:  # the extra is not installed
    pynvml = None

_REASONS = {
    0x04: "power_cap", 0x08: "hw_slowdown", 0x10: "sync_boost", 0x20: "sw_thermal", 0x40: "hw_thermal",
    0x80: "hw_power_brake",
}  # fmt: skip
"""NVML's bit: the word in DeviceState.throttle. Idle and clocks that a user set are not throttling."""


class Sensors:
    """The sensors of one device, by UUID (`GPU-...` or `MIG-...`)."""

    def __init__(self, uuid: str, *, own_context: bool = False) -> None:
        """`own_context`: this process computes on the device, too."""
        self._own_context = own_context
        self._handle: Any = None
        if pynvml is None:
            return
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            # Clocks and temperature belong to the whole board; a slice of one has none of its own.
            if uuid.startswith("MIG-"):
                self._handle = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._handle)

    @property
    def present(self) -> bool:
        return self._handle is not None

    def state(self) -> DeviceState:
        """The device now; fields that NVML does not answer are None or empty."""
        if not self.present:
            return DeviceState()
        milliwatts = self._number("nvmlDeviceGetPowerUsage")
        return DeviceState(
            clock_mhz=self._number("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM"),
            temperature_c=self._number("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
            throttle=self._throttle(),
            power_w=None if milliwatts is None else milliwatts / 1000,
            others=self._others(),
        )

    def driver_version(self) -> str | None:
        """The driver's own version: `580.65.06`."""
        if not self.present:
            return None
        with contextlib.suppress(pynvml.NVMLError):
            version = pynvml.nvmlSystemGetDriverVersion()
            return version.decode() if isinstance(version, bytes) else str(version)
        return None

    def _throttle(self) -> str:
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return ",".join(word for bit, word in _REASONS.items() if int(bits) & bit)

    def _others(self) -> int:
        """Processes with a compute context, without this one, its parent and their children.

        In a container NVML may see none, or know them by numbers of the host's: then one of the unknown ones is us."""
        ours = {os.getpid(), os.getppid()}
        pids = [int(each.pid) for each in self._ask("nvmlDeviceGetComputeRunningProcesses") or []]
        others = [pid for pid in pids if pid not in ours and _parent(pid) not in ours]
        hidden = self._own_context and os.getpid() not in pids and any(_parent(pid) is None for pid in others)
        return len(others) - hidden

    def _number(self, function: str, constant: str | None = None) -> float | None:
        found = self._ask(function, constant)
        return None if found is None else float(found)

    def _ask(self, function: str, constant: str | None = None) -> Any:
        call = getattr(pynvml, function, None)
        if call is None:
            return None
        arguments = [self._handle] + ([getattr(pynvml, constant)] if constant else [])
        try:
            return call(*arguments)
        except pynvml.NVMLError:  # not supported on this board, or not allowed to this user
            return None


def busy(device: DeviceInfo) -> str | None:
    """Why a GPU should be left alone: another process computes on it."""
    if device.evidence != "measured" or not device.uuid:
        return None
    others = Sensors(device.uuid).state().others
    return f"{others} other process{'es use' if others > 1 else ' uses'} {device.name}" if others else None


def _parent(pid: int) -> int | None:
    """The parent's process id; None for a process that cannot be seen from here."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[1])
