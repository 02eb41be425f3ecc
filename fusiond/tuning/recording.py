"""Records a measurement while the next candidate is measured."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType

from fusiond.model.system import faults
from fusiond.tuning.measuring import Measurer

log = logging.getLogger(__name__)


class TrialRecorder:
    """Does one thing at a time beside the measurements: a trial's commit, telling the study, asking it for more.

    Nothing counts before it is on disk: whoever is told of a trial is told by the work that is handed over, after its
    commit. What one trial left to do is done before that of the next one begins, so whenever one is
    measured, no more than one other is not on disk yet. On leaving the block everything is done; a failure is raised
    there at the latest."""

    def __init__(self, measurer: Measurer) -> None:
        self._measurer = measurer
        self._under_way: Future[None] | None = None
        self._work: str | None = None

    def hand_over(self, work_key: str | None, task: Callable[[], None]) -> None:
        """Begin this task as soon as the last one is done. `work_key`: of the trial that it writes down."""
        self.wait()
        self._work = work_key
        self._under_way = self._measurer.meanwhile(task)

    def wait(self) -> None:
        """Until everything that was handed over is done. Raises what it raised."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def wait_for(self, work_key: str) -> None:
        """Until no trial of that work is on its way into the store: only then the store can be asked for it."""
        if work_key == self._work:
            self.wait()

    def __enter__(self) -> TrialRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except Exception as lost:
            if problem is None:
                raise
            fault = faults.of(lost)
            log.error("the last trial could not be written down: %s", fault or lost, exc_info=fault is None)
