"""The results of `fusiond calibrate` for a device, and the sampling limits that follow from them."""

import contextlib
import dataclasses
from collections.abc import Mapping

from fusiond.devices import protocol
from fusiond.devices.base import DeviceProvider
from fusiond.devices.lock import device_lock
from fusiond.devices.supervisor import Supervisor
from fusiond.devices.timing import SHORT_US, Sampling
from fusiond.model.errors import DeviceError, Interrupted
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import MeasureFailed

FIGURES: Mapping[str, tuple[str, str]] = {
    "event_us": ("us", "two events with nothing between them, the median"),
    "event_low_us": ("us", "a tenth of them is below"),
    "event_high_us": ("us", "a tenth of them is above"),
    "event_step_us": ("us", "the least difference between two of them"),
    "empty_kernel_us": ("us", "an empty kernel, without the events' cost"),
    "kernel_gap_us": ("us", "from one empty kernel to the next"),
    "graph_node_us": ("us", "the same in a CUDA graph"),
    "release_us": ("us", "from the gate's opening until the host sees the stream's end"),
    "flush_us": ("us", "flushing the cache, before a cold run"),
    "globaltimer_ns": ("ns", "a step of the device's own timer"),
    "rested_mhz": ("MHz", "the clock after a second's rest"),
    "steady_mhz": ("MHz", "the clock under work"),
    "settle_secs": ("s", "of work until the clock is steady"),
    "copy_gbs": ("GB/s", "copied within the device, bytes read and written"),
    "to_device_gbs": ("GB/s", "copied to the device from pinned memory"),
    "to_host_gbs": ("GB/s", "copied from the device to pinned memory"),
    "fp32_tflops": ("TFLOP/s", "multiply-adds in single precision"),
}
"""Name -> unit, and what it is."""

TIMEOUT_SECS = 120.0
LEAST_STEPS = 100
"""Samples last five times as many spreads of the events, or steps of theirs, that this makes no more than 0.2 %."""
MOST_SHORT_US = 200.0
MOST_WARM_UP_SECS = 5.0


def fitted(plan: Sampling, figures: Mapping[str, float]) -> Sampling:
    """A plan for a device with these figures; as it was where there are none. Samples get longer where events are
    coarse, and the warm-up where the clock takes its time; neither gets shorter."""
    spread_us = figures.get("event_high_us", 0.0) - figures.get("event_low_us", 0.0)
    steps_us = max(spread_us, figures.get("event_step_us", 0.0))
    settle_secs = figures.get("settle_secs", 0.0)
    return dataclasses.replace(
        plan,
        short_us=max(SHORT_US, min(MOST_SHORT_US, LEAST_STEPS * steps_us)),
        warm_up_secs=max(plan.warm_up_secs, min(MOST_WARM_UP_SECS, 2 * settle_secs)),
    )


def calibrate(provider: DeviceProvider, device: DeviceInfo) -> dict[str, float]:
    """The figures of a device, measured in a fresh child process; empty where there is nothing to calibrate.

    Raises DeviceError when the device is in use, or when it does not work."""
    told: list[str] = []
    try:
        with (
            device_lock(device, stop=lambda: True, waiting=told.append),
            contextlib.closing(Supervisor(provider, device)) as supervisor,
        ):
            reply = supervisor.call(protocol.Calibrate(), TIMEOUT_SECS)
    except Interrupted:
        raise DeviceError(f"{device.name} is in use: {told[-1]}; calibrate when it is free") from None
    if isinstance(reply, MeasureFailed):
        raise DeviceError(f"{device.name}: {reply.outcome.value}: {reply.reason}")
    if not isinstance(reply, protocol.Calibrated):
        raise DeviceError(f"the worker answered a calibration with a {type(reply).__name__}")
    return reply.figures
