"""Whether the device itself is well.

A candidate that crashes, hangs or takes its process with it says something about the candidate, as long as a program
known to be good still works. So after each such failure the good one is run, in fresh child processes; when it fails
three times in a row, the device is sick: that is written down, the job goes back into the queue, and nothing is said
about the candidate. Where the good one does not fail, but its processes are killed from outside, the machine is to
blame and not the device: the job waits.
"""

import logging
from typing import NoReturn

from fusiond.model.errors import DeviceSick, FusiondError, MachineFault, RequestError
from fusiond.model.events import DeviceTurnedSick
from fusiond.model.outcomes import MeasureFailed, Outcome
from fusiond.model.program import Program
from fusiond.tuning.context import Context
from fusiond.tuning.measuring import References

log = logging.getLogger(__name__)

STRIKES = 3
DEADLY = frozenset({Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.WORKER_DIED})
"""What may be the device's doing; everything else is the program's own."""


def after(context: Context, result: object, references: References) -> None:
    """Look at the device after a result that may be its doing. Raises DeviceSick and MachineFault."""
    if not (isinstance(result, MeasureFailed) and result.outcome in DEADLY):
        return
    good = context.reference
    last = result
    for strike in range(STRIKES):
        context.measurer.fresh()
        found = context.measurer.check(good, references)
        if not (isinstance(found, MeasureFailed) and found.outcome in DEADLY):
            return
        _strike(context, strike, found)
        last = found
    condemn(context, last)


def of_reference(context: Context, program: Program, name: str) -> References | MeasureFailed:
    """The outputs of the unfused program. One that worked on this device before is known to be good: when it fails
    three times, DeviceSick is raised, or MachineFault."""
    found = context.measurer.references(program, name, context.analysis.scrutiny)
    if not context.store.worked(program.key, context.device.key):
        return found
    for strike in range(STRIKES):
        if not (isinstance(found, MeasureFailed) and found.outcome in DEADLY):
            return found
        _strike(context, strike, found)
        if strike + 1 < STRIKES:
            context.measurer.fresh()
            found = context.measurer.references(program, name, context.analysis.scrutiny)
    assert isinstance(found, MeasureFailed)
    condemn(context, found)


def references(context: Context, name: str) -> References:
    """The outputs of the unfused program as given. FusiondError when it does not run: then nothing can be compared.
    RequestError when anything could be equal to them, unless the job accepts that."""
    found = of_reference(context, context.reference, name)
    if isinstance(found, MeasureFailed):
        raise FusiondError(f"the unfused program does not work: {found.reason} ({found.outcome.value})")
    if found.unproven and not context.prepared.job.accept_constant:
        job = context.prepared.job
        raise RequestError(
            f"the comparison would prove nothing: {'; '.join(found.unproven)}, whatever the inputs; give the inputs"
            " other fills, or say accept_constant: true",
            where=job.where("accept_constant") if "accept_constant" in job.lines else job.path,
        )
    return found


def condemn(context: Context, last: MeasureFailed) -> NoReturn:
    """Write the device down as sick. Raises DeviceSick; MachineFault where no device is to blame."""
    if last.outcome is Outcome.WORKER_DIED:
        name = context.device.name
        raise MachineFault(f"{name}: workers are killed from outside even while they run a good program: {last.reason}")
    reason = f"a program known to be good failed {STRIKES} times, lastly: {last.outcome.value}: {last.reason}"
    context.store.set_sick(context.device.key, context.device.uuid, reason)
    context.events.publish(DeviceTurnedSick(job=context.row.id, device=context.device, reason=reason))
    raise DeviceSick(context.device.name, reason)


def _strike(context: Context, strike: int, found: MeasureFailed) -> None:
    log.error(
        "%s: a program known to be good failed (%d of %d): %s: %s",
        context.device.name, strike + 1, STRIKES, found.outcome.value, found.reason,
    )  # fmt: skip
