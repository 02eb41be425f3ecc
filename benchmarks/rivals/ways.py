"""Other ways to issue the kernels of an unfused Program: what CUDA offers beside fusing them.

    lead     begin . fork                                       join . end
    streams            kernel, kernel ...   (one stream for each, or one for all)

The kernels are launched by their handles. Streams are made here, since PyCUDA makes them without priorities and in no
green context; their ends are joined with the lead, on which events take the time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_int, c_uint, c_void_p
from dataclasses import dataclass

from fusiond.devices.base import ExecutionError, LaunchRefused
from fusiond.devices.cuda.driver import Driver
from fusiond.devices.cuda.loaded import CudaProgram
from fusiond.devices.cuda.modules import pack
from fusiond.model.gpu.entry_table import EntryName
from fusiond.model.outcomes import Outcome
from fusiond.model.program import Launch

_NON_BLOCKING = 1
_NO_TIMING = 2
_GREEN_DEFAULT_STREAM = 1
_SM_RESOURCE = 1
_PROGRAMMATIC_STREAM_SERIALIZATION = 6


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute; its value is a union of 64 bytes."""

    _fields_ = (("id", c_int), ("padding", c_int), ("value", c_int), ("rest", ctypes.c_char * 60))


class _Resource(ctypes.Structure):
    """CUdevResource, of multiprocessors."""

    _fields_ = (
        ("type", c_int),
        ("inner", ctypes.c_char * 92),
        ("multiprocessors", c_uint),
        ("rest", ctypes.c_char * 44),
    )


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BareLaunch:
    """A launch for whoever enqueues it himself."""

    step: Launch
    function: int  #: The kernel's handle
    entry: EntryName
    packed: bytes  #: The arguments, laid out as `entry` says


def bare_launches(loaded: CudaProgram) -> tuple[BareLaunch, ...]:
    """A Program's steps. ExecutionError `launch_refused` where a step is not a counted launch, or depends on another
    one."""
    found = []
    for step in loaded.program.steps:
        if not isinstance(step, Launch) or not step.counted or step.cooperative:
            raise LaunchRefused(f"step {step.name!r} is not an ordinary launch that is counted")
        if step.after:
            raise LaunchRefused(f"step {step.name!r} depends on {step.after[0]!r}")
        function, entry = loaded.kernels[step.source, step.entry]
        packed = pack(step, entry, loaded.memory.address)
        found.append(BareLaunch(step=step, function=function.handle, entry=entry, packed=packed))
    return tuple(found)


def prioritised(driver: Driver, count: int) -> list[int]:
    """Streams from the highest priority to the lowest. They last as long as the context."""
    least, greatest = c_int(), c_int()
    driver.call("cuCtxGetStreamPriorityRange", byref(least), byref(greatest))
    found = []
    for index in range(count):
        stream = c_void_p()
        priority = greatest.value + (least.value - greatest.value) * index // max(1, count - 1)
        driver.call("cuStreamCreateWithPriority", byref(stream), c_uint(_NON_BLOCKING), c_int(priority))
        found.append(stream.value or 0)
    return found


def green(driver: Driver, device: int, count: int) -> list[int]:
    """Streams of green contexts that share the multiprocessors out. They last as long as the primary context.
    ExecutionError where the device does not part them into so many groups, DriverError where it has no such context."""
    found = []
    for part in _shares(driver, device, count):
        description, context, stream = c_void_p(), c_void_p(), c_void_p()
        driver.call("cuDevResourceGenerateDesc", byref(description), byref(part), c_uint(1))
        driver.call("cuGreenCtxCreate", byref(context), description, c_int(device), c_uint(_GREEN_DEFAULT_STREAM))
        driver.call("cuGreenCtxStreamCreate", byref(stream), context, c_uint(_NON_BLOCKING), c_int(0))
        found.append(stream.value or 0)
    return found


def _shares(driver: Driver, device: int, count: int) -> list[_Resource]:
    """So many groups of multiprocessors. The device rounds a group up to what it parts them by (8 on an H100), so that
    the last one may have to be what is left over."""
    whole, rest, made = _Resource(), _Resource(), c_uint(count)
    driver.call("cuDeviceGetDevResource", c_int(device), byref(whole), c_int(_SM_RESOURCE))
    groups = (_Resource * count)()
    share = whole.multiprocessors // count
    driver.call("cuDevSmResourceSplitByCount", groups, byref(made), byref(whole), byref(rest), c_uint(0), c_uint(share))
    parts = list(groups[: made.value])
    if len(parts) == count - 1 and rest.multiprocessors:
        parts.append(rest)
    if len(parts) != count:
        raise ExecutionError(
            Outcome.LAUNCH_REFUSED, f"this device parts its multiprocessors into {len(parts)} groups, not {count}"
        )
    return parts


def on_streams(loaded: CudaProgram, driver: Driver, streams: Sequence[int], launches: Sequence[BareLaunch]) -> None:
    """Have the launches issued one to a stream, all of them between a fork of the lead and a join with it."""
    forked, *ended = (_event(driver) for _ in range(len(streams) + 1))
    lead = c_void_p(loaded.streams.lead.handle)

    def enqueue() -> None:
        driver.call("cuEventRecord", forked, lead)
        for stream in streams:
            driver.call("cuStreamWaitEvent", c_void_p(stream), forked, c_uint(0))
        for launch, stream in zip(launches, streams, strict=True):
            _launched(driver, launch, stream, overlapping=False)
        for stream, event in zip(streams, ended, strict=True):
            driver.call("cuEventRecord", event, c_void_p(stream))
            driver.call("cuStreamWaitEvent", lead, event, c_uint(0))

    loaded.issue_by(enqueue, commands=1 + 4 * len(streams))


def overlapping(loaded: CudaProgram, driver: Driver, launches: Sequence[BareLaunch]) -> None:
    """Have the launches issued on the lead, each allowed to begin before the one before it has ended. They are
    independent, so none waits for the memory of another (`griddepcontrol.wait`)."""

    def enqueue() -> None:
        for number, launch in enumerate(launches):
            _launched(driver, launch, int(loaded.streams.lead.handle), overlapping=number > 0)

    loaded.issue_by(enqueue, commands=len(launches))


def _event(driver: Driver) -> c_void_p:
    event = c_void_p()
    driver.call("cuEventCreate", byref(event), c_uint(_NO_TIMING))
    return event


def _launched(driver: Driver, launch: BareLaunch, stream: int, *, overlapping: bool) -> None:
    step, parameters = launch.step, launch.entry.parameters
    data = ctypes.create_string_buffer(launch.packed, max(1, len(launch.packed)))
    values = [ctypes.addressof(data) + each.offset_bytes for each in parameters]
    attribute = _LaunchAttribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION, value=1)
    config = _LaunchConfig(
        grid=step.grid,
        block=step.block,
        shared_bytes=step.shared_bytes,
        stream=stream,
        attributes=ctypes.addressof(attribute) if overlapping else None,
        count=int(overlapping),
    )
    places = (c_void_p * max(1, len(values)))(*values)
    driver.call("cuLaunchKernelEx", byref(config), c_void_p(launch.function), places, None)
