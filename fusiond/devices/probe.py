"""A look at a device that was called sick: a program without kernels of its own, in a fresh child process."""

import contextlib
from pathlib import Path

import numpy as np

from fusiond.build.exporting.bundle import write_bundle
from fusiond.build.working import working_folder
from fusiond.devices import protocol
from fusiond.devices.base import DeviceProvider
from fusiond.devices.lock import device_lock
from fusiond.devices.supervisor import Runner, Supervisor
from fusiond.devices.timing import Sampling
from fusiond.model.errors import FusiondError, Interrupted
from fusiond.model.inputs.fills import initial
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import MeasureFailed, Purpose
from fusiond.model.program import Buffer, Copy, Fill, FillStep, Program, Role

TIMEOUT_SECS = 60.0
ELEMENTS = 1 << 16

PROGRAM = Program(
    name="probe",
    buffers=(
        Buffer(name="x", dtype="float32", elements=ELEMENTS, role=Role.INPUT, fill=Fill(kind="uniform")),
        Buffer(name="y", dtype="float32", elements=ELEMENTS, role=Role.OUTPUT),
        Buffer(name="z", dtype="uint8", elements=ELEMENTS, role=Role.OUTPUT),
    ),
    sources=(),
    steps=(Copy(name="copy", source=("x",), target=("y",)), FillStep(name="fill", buffer="z", byte=7)),
)
"""Needs no compiler. On a GPU a sample of it runs the gate, which is a kernel."""


def probe(provider: DeviceProvider, device: DeviceInfo) -> str | None:
    """What is wrong with a device, in one line; None when a copy, a fill and a timed run work."""
    told: list[str] = []
    try:
        with (
            device_lock(device, stop=lambda: True, waiting=told.append),
            working_folder("probe") as folder,
            contextlib.closing(Supervisor(provider, device)) as supervisor,
        ):
            return _run(supervisor, folder)
    except Interrupted:
        return f"it is in use: {told[-1]}"
    except FusiondError as problem:
        return str(problem)


def _run(runner: Runner, folder: Path) -> str | None:
    write_bundle(folder / "bundle", PROGRAM, {})
    outputs = folder / "outputs.npz"
    reply = runner.call(protocol.Reference(bundle=str(folder / "bundle"), seed=0, outputs=str(outputs)), TIMEOUT_SECS)
    if isinstance(reply, MeasureFailed):
        return f"{reply.outcome.value}: {reply.reason}"
    with np.load(outputs) as found:
        if not np.array_equal(found["y"], initial(PROGRAM.buffer("x"), 0)) or set(found["z"].tolist()) != {7}:
            return "a copy or a fill gives something else"
    plan = Sampling(purpose=Purpose.PROBE, noise_limit=1e9)
    reply = runner.call(
        protocol.SampleRequest(candidate=str(folder / "bundle"), baseline=None, plan=plan), TIMEOUT_SECS
    )
    return f"{reply.outcome.value}: {reply.reason}" if isinstance(reply, MeasureFailed) else None
