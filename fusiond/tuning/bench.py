"""A job on its device, ready to compare: with the outputs that are right, and an eye on the device itself.

A candidate that crashes, hangs or takes its process with it says something about the candidate, as long as a program
known to be good still works. So after each such failure the good one is run, in fresh child processes; when it fails
three times in a row, the device is sick: that is written down, the job goes back into the queue, and nothing is said
about the candidate. Where the good one does not fail, but its processes are killed from outside, the machine is to
blame and not the device: the job waits.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from fusiond.devices.timing import Sampling
from fusiond.model.errors import DeviceSick, FusiondError, MachineFault, RequestError
from fusiond.model.events import DeviceTurnedSick
from fusiond.model.outcomes import MeasureFailed, Measurement, Outcome
from fusiond.model.program import Program, SizeError
from fusiond.tuning.context import Context
from fusiond.tuning.measuring import References

log = logging.getLogger(__name__)

STRIKES = 3
DEADLY = frozenset({Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.WORKER_DIED})
"""What may be the device's doing; everything else is the program's own."""

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Bench(Context):
    """Its methods raise DeviceSick and MachineFault."""

    references: References  #: Of the unfused program at the job's sizes
    odd_sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Awkward sizes; empty where there are none, or a text depends on all of them."""
    odd: References | MeasureFailed | None = None
    """What is right there; a failure when the unfused program itself does not work there."""

    @property
    def right_at_odd(self) -> References | None:
        return self.odd if isinstance(self.odd, References) else None

    def at_odd_sizes(self, program: Program) -> Program:
        """A program at the awkward sizes. SizeError where it cannot be moved there."""
        return program.at(self.odd_sizes)

    def check(self, program: Program, right: References | None = None) -> float | MeasureFailed:
        """The worst error of a program, at the job's sizes unless others are `right`."""
        return self.looked_after(self.measurer.check(program, right or self.references))

    def sample(self, program: Program, against: Program | None, plan: Sampling) -> Measurement | MeasureFailed:
        return self.looked_after(self.measurer.sample(program, against, plan, self.references))

    def looked_after(self, result: Result) -> Result:
        """The same; after one that may be the device's doing, that was looked at."""
        if isinstance(result, MeasureFailed) and result.outcome in DEADLY:
            self.measurer.fresh()
            _of_good(self, lambda: self.measurer.check(self.reference, self.references))
        return result


def ready(context: Context) -> Bench:
    """Compute the outputs of the unfused program as given. One that worked on this device before is known to be good:
    when it fails three times, DeviceSick is raised, or MachineFault.

    FusiondError when it does not run: then nothing can be compared. RequestError when anything could be equal to its
    outputs, unless the job accepts that."""
    context.phase("reference", "the outputs of the unfused program")
    program, scrutiny, job = context.reference, context.analysis.scrutiny, context.prepared.job

    def run() -> References | MeasureFailed:
        return context.measurer.references(program, "reference", scrutiny)

    found = _of_good(context, run) if context.store.worked(program.key, context.device.key) else run()
    if isinstance(found, MeasureFailed):
        raise FusiondError(f"the unfused program does not work: {found.reason} ({found.outcome.value})")
    if found.unproven and not job.accept_constant:
        raise RequestError(
            f"the comparison would prove nothing: {'; '.join(found.unproven)}, whatever the inputs; give the inputs"
            " other fills, or say accept_constant: true",
            where=job.where("accept_constant") if "accept_constant" in job.lines else job.path,
        )
    known = {each.name: getattr(context, each.name) for each in dataclasses.fields(Context)}
    return _with_odd(Bench(**known, references=found))


def _with_odd(bench: Bench) -> Bench:
    wanted = bench.strategy.odd_sizes(bench.prepared.workload) or {}
    reference = bench.reference
    sizes = {name: value for name, value in wanted.items() if name not in reference.fixed}
    if not sizes:
        return bench
    try:
        moved = reference.at(sizes)
    except SizeError as problem:
        log.warning("%s is not checked at odd sizes: %s", bench.prepared.workload.name, problem)
        return bench
    odd = bench.measurer.references(moved, "odd", bench.analysis.scrutiny)
    return dataclasses.replace(bench, odd_sizes=sizes, odd=odd)


def _of_good(context: Context, run: Callable[[], Result]) -> Result:
    """What a program known to be good gives, in a fresh process each time that it fails. After the last one the device
    is written down as sick. DeviceSick; MachineFault where no device is to blame."""
    name, reason = context.device.name, ""
    for strike in range(1, STRIKES + 1):
        found = run()
        if not (isinstance(found, MeasureFailed) and found.outcome in DEADLY):
            return found
        reason = f"{found.outcome.value}: {found.reason}"
        log.error("%s: a program known to be good failed (%d of %d): %s", name, strike, STRIKES, reason)
        if strike < STRIKES:
            context.measurer.fresh()
        elif found.outcome is Outcome.WORKER_DIED:
            why = f"workers are killed from outside even while they run a good program: {found.reason}"
            raise MachineFault(f"{name}: {why}")
    reason = f"a program known to be good failed {STRIKES} times, lastly: {reason}"
    context.store.set_sick(context.device.key, context.device.uuid, reason)
    context.events.publish(DeviceTurnedSick(job=context.row.id, device=context.device, reason=reason))
    raise DeviceSick(name, reason)
