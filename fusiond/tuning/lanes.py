"""Several equal devices for one job: each measures candidates of its own, in pairs with the baseline, at the same time.

A lane is a device with its child process and its own outputs of the reference. One that is lost (its box has left, its
device has turned sick) costs what was being measured on it, which another lane measures again; the job goes on with
those that are left.
"""

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

from fusiond.devices.supervisor import Runner, RunnerLost
from fusiond.model.errors import DeviceSick, FusiondError, MachineFault
from fusiond.tuning import health
from fusiond.tuning.context import Context, Odd
from fusiond.tuning.measuring import References

log = logging.getLogger(__name__)

Task = TypeVar("Task")
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The job as this device sees it."""

    context: Context
    references: References
    odd: Odd | None


class Lanes:
    """Those that are left, the job's own device first."""

    def __init__(self, first: Lane) -> None:
        self.left = [first]

    def open(self, runners: Sequence[Runner], odd: Callable[[Context], Odd | None]) -> None:
        """Add equal devices, each of which computes the outputs of the reference itself. One that cannot is left
        out."""
        first = self.left[0].context
        for number, runner in enumerate(runners, 1):
            device = runner.device
            if (device.key, device.env_key) != (first.device.key, first.device.env_key):
                log.warning("%s is another device than %s, or has another driver; it does not help", device.name,
                            first.device.name)  # fmt: skip
                continue
            context = dataclasses.replace(
                first, device=device, measurer=first.measurer.sibling(runner, f"lane{number}")
            )
            try:
                first.store.save_device(device)
                references = health.references(context, "reference")
                self.left.append(Lane(context=context, references=references, odd=odd(context)))
            except FusiondError as problem:
                log.warning("%s does not help: %s", device.name, problem)

    def lose(self, lane: Lane, why: Exception) -> None:
        """Go on without a lane. What was lost is raised where it was the last one."""
        log.warning("%s is lost: %s; the job goes on without it", lane.context.device.name, why)
        self.left = [each for each in self.left if each is not lane]
        if not self.left:
            raise why if isinstance(why, DeviceSick) else MachineFault(f"every device is lost, lastly: {why}")

    def each(
        self,
        following: Callable[[], Task | None],
        do: Callable[[Lane, Task], Done],
        work: Callable[[Task], str | None] = lambda task: None,
    ) -> Iterator[tuple[Lane, Task, Done]]:
        """Do what `following` gives, as many at a time as there are lanes; yields in the order in which they are done.
        `following` says None when there is nothing now: it is asked again after the next one is done. Of tasks whose
        `work` is equal one is done at a time: what becomes of it answers the others."""
        if len(self.left) == 1:  # here and now, as a job on one device always was
            while (task := following()) is not None:
                yield self.left[0], task, do(self.left[0], task)
            return
        aside: deque[Task] = deque()
        idle = deque(self.left)
        under_way: dict[Future[Done], tuple[Lane, Task]] = {}

        def take() -> Task | None:
            at_work = {work(task) for _, task in under_way.values()} - {None}
            for each in list(aside):
                if work(each) not in at_work:
                    aside.remove(each)
                    return each
            while (task := following()) is not None:
                if work(task) not in at_work:
                    return task
                aside.append(task)
            return None

        with ThreadPoolExecutor(len(self.left), thread_name_prefix="lane") as pool:
            while True:
                while idle and (task := take()) is not None:
                    lane = idle.popleft()
                    under_way[pool.submit(do, lane, task)] = lane, task
                if not under_way:
                    return
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    lane, task = under_way.pop(future)
                    try:
                        done = future.result()
                    except (RunnerLost, DeviceSick) as problem:
                        aside.appendleft(task)
                        self.lose(lane, problem)
                        continue
                    idle.append(lane)
                    yield lane, task, done

    def turn(self, number: int) -> Lane:
        """The lane whose turn it is: processes of the finals are taken from all of them."""
        return self.left[number % len(self.left)]
