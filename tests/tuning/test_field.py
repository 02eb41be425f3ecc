"""Who takes part in the finals, and in which role."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fusiond.model.nouns import Config
from fusiond.model.outcomes import Record, Verdict
from fusiond.tuning.context import Entrant
from fusiond.tuning.finals import Field, Incumbent
from tests.fakes import fake_program


def entrants(*names: str) -> dict[str, Entrant]:
    found = [Entrant(program=fake_program(name), config=Config(()), name=name) for name in names]
    return {each.key: each for each in found}


def incumbent(verdict: Verdict, **given: Any) -> Incumbent:
    return Incumbent(record=cast(Record, SimpleNamespace(verdict=verdict)), **{"fused": None, "unfused": None, **given})


def names(found: dict[str, Entrant]) -> set[str]:
    assert all(key == each.key for key, each in found.items())
    return {each.name for each in found.values()}


def test_the_incumbents_fused_program_may_win_and_everybody_is_paired_with_the_baseline() -> None:
    (baseline,), (old,) = entrants("streams").values(), entrants("old").values()
    finalists, rivals = entrants("one", "two"), entrants("graph")
    field = Field(baseline=baseline, finalists=finalists, rivals=rivals, incumbent=incumbent(Verdict.FUSE, fused=old))
    assert names(field.candidates) == {"one", "two", "old"}
    assert names(field.paired) == {"one", "two", "old", "graph"}
    assert names(field.unfused) == {"streams", "graph"}


def test_a_candidate_that_is_the_baseline_itself_is_not_paired_with_itself() -> None:
    (baseline,) = entrants("streams").values()
    field = Field(baseline=baseline, finalists={baseline.key: baseline, **entrants("one")}, rivals={})
    assert names(field.candidates) == {"streams", "one"}
    assert names(field.paired) == {"one"}


@pytest.mark.parametrize(("verdict", "own"), [(Verdict.FUSE, "fused"), (Verdict.KEEP, "streams")])
def test_what_an_answer_tells_people_to_use(verdict: Verdict, own: str) -> None:
    (fused,), (way,) = entrants("fused").values(), entrants("streams").values()
    found = incumbent(verdict, fused=fused, unfused=way).own
    assert found is not None
    assert found.name == own
    assert incumbent(verdict).own is None
