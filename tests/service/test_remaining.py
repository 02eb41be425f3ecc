"""How far a job is, over parts and finals, and what is left: held to a clock that the test turns."""

import pytest

from fusiond.model.events import JobEnded, JobStarted, PhaseStarted
from fusiond.service.progress import Progress, of_event
from fusiond.service.remaining import Standing, Standings


class Told:
    """Standings, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.standings = Standings(lambda: self.now)

    def begin(self, job: str, budget: int, parent: str | None = None, known: int = 0) -> None:
        self.tell(of_event(JobStarted(
            job=job, workload=f"of {job}", device="cpu", budget=budget, known=known, parent=parent
        )))  # fmt: skip

    def phase(self, job: str, phase: str, detail: str = "", number: int | None = None, of: int | None = None) -> None:
        self.tell(of_event(PhaseStarted(job=job, phase=phase, detail=detail, number=number, of=of)))

    def search(self, job: str, budget: int, secs: float, *, then_secs: float, known: int = 0) -> None:
        """A search whose trials take so long each."""
        self.tell(of_event(PhaseStarted(job=job, phase="search", then_secs=then_secs)))
        self.phase(job, "search", "some configs")
        for done in range(known + 1, budget + 1):
            self.now += secs
            self.tell(Progress(job=job, event="trial", done=done, budget=budget, best=1.0 + done / 100))

    def finals(self, job: str, secs: float, count: int = 5) -> None:
        for number in range(1, count + 1):
            self.phase(job, "final", number=number, of=count)
            self.now += secs

    def tell(self, progress: Progress) -> None:
        self.standings.tell(progress)

    def of(self, job: str = "whole") -> Standing:
        found = self.standings.of(job)
        assert found is not None
        return found


def test_a_search_and_its_finals() -> None:
    told = Told()
    told.begin("whole", 10)
    assert told.of().left_secs is None  # nothing was timed yet
    told.search("whole", 4, 2.0, then_secs=30)
    found = told.of()
    assert (found.workload, found.device, found.phase, found.done) == ("of whole", "cpu", "search", 4)
    told.tell(Progress(job="whole", event="trial", done=5, budget=10, best=1.2))
    told.now += 2.0
    assert told.of().left_secs == pytest.approx(10 / 5 * 5 + 30)
    told.phase("whole", "final", "of three programs")
    told.phase("whole", "final", number=1, of=5)
    assert told.of().left_secs == pytest.approx(30)  # by what the tuner reckons
    told.now += 8
    told.phase("whole", "final", number=2, of=5)
    told.now += 3
    found = told.of()
    assert (found.final, found.finals) == (2, 5)
    assert found.left_secs == pytest.approx(8 * 4 - 3)  # by what one took
    told.now += 100
    assert told.of().left_secs == pytest.approx(0)  # never less than nothing


def test_what_an_earlier_session_did_takes_no_time_now() -> None:
    told = Told()
    told.begin("whole", 10, known=6)
    told.search("whole", 8, 3.0, then_secs=12, known=6)
    told.tell(Progress(job="whole", event="trial", done=8, budget=10, best=1.2))
    assert told.of().left_secs == pytest.approx(3.0 * 2 + 12)
    told.phase("whole", "final", number=4, of=5)
    told.now += 2
    told.phase("whole", "final", number=5, of=5)
    assert told.of().left_secs == pytest.approx(2)


def test_part_5_of_11() -> None:
    """Parts alike: what is left is exactly what comes."""
    told = Told()
    told.begin("whole", 8)

    def part(number: int) -> None:
        told.phase("whole", "part", f"block {number}", number, 11)
        told.begin(f"part{number}", 6, parent="whole")
        told.search(f"part{number}", 6, 2.0, then_secs=10)
        told.finals(f"part{number}", 2.0)
        told.tell(of_event(JobEnded(job=f"part{number}", state="done")))

    for number in range(1, 5):
        part(number)
    told.phase("whole", "part", "block 5", 5, 11)
    told.begin("part5", 6, parent="whole")
    told.search("part5", 3, 2.0, then_secs=10)
    told.tell(Progress(job="part5", event="trial", done=3, budget=6, best=1.5))
    found = told.of()
    assert (found.part, found.parts, found.part_name) == (5, 11, "block 5")
    assert (found.done, found.budget, found.best) == (3, 6, 1.5)
    assert found.said == "part 5 of 11 (block 5), search"
    rest_of_part, each_part, own = 3 * 2 + 10, 6 * 2 + 10, 8 * 2 + 10
    assert found.left_secs == pytest.approx(rest_of_part + 6 * each_part + own)
    assert told.standings.of("part5") is None  # it is a part of the whole
    assert told.standings.whole("part5") == "whole"
    told.phase("whole", "baseline", "unfused")
    found = told.of()
    assert (found.part, found.phase, found.done, found.budget) == (None, "baseline", 0, 8)
