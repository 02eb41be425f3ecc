"""Two boxes of one model: what is served, what is measured again, and what never runs."""

import copy
import dataclasses
import json
from collections.abc import Callable
from typing import Any

from fusiond.model.errors import NothingKnown
from fusiond.model.outcomes import JobState
from fusiond.model.program import decode, replace_sources, to_text
from fusiond.store.exchange.entry import ExchangeEntry, digest
from fusiond.store.exchange.signing import Signer
from tests.store.exchange.conftest import TOY, Box

Boxes = Callable[[str], Box]


def trusting(box: Box, entry: ExchangeEntry, name: str) -> Box:
    """A box that has the entry, trusts its signer and was asked for it."""
    box.exchange.put([entry])
    box.exchange.trust(entry.signer, name)
    box.ask()
    return box


def verifies(box: Box) -> list[Any]:
    return [each for each in box.store.jobs(None, 100) if each.kind == "verify"]


def test_a_stranger_s_answer_is_shown_and_nothing_of_it_runs(entry: ExchangeEntry, box: Boxes) -> None:
    second = box("second")
    assert isinstance(second.ask(), NothingKnown)
    second.exchange.put([entry])
    found = second.ask()
    assert found["imported"] == {"key": entry.key, "signer": entry.signer, "trusted": False, "name": None}
    assert (found["verdict"], found["config"]) == (entry.body["verdict"], entry.body["config"])
    assert any("is not trusted here" in each for each in found["notes"])
    assert second.store.jobs(None, 100) == []  # nothing is queued
    assert second.store.program(entry.body["program"]["key"]) is None  # nor anywhere from where it could be run


def test_it_does_not_run_even_where_somebody_asks_for_it(entry: ExchangeEntry, box: Boxes) -> None:
    second = trusting(box("second"), entry, "first")
    (row,) = verifies(second)
    second.exchange.distrust(entry.signer)  # before it was its turn
    assert second.run(row).state is JobState.FAILED
    assert second.store.program(entry.body["program"]["key"]) is None


def test_a_trusted_answer_is_measured_here_and_becomes_one_of_this_box(entry: ExchangeEntry, box: Boxes) -> None:
    second = box("second")
    second.exchange.put([entry])
    second.exchange.trust(entry.signer, "first")
    found = second.ask()
    assert (found["imported"]["trusted"], found["imported"]["name"]) == (True, "first")
    (row,) = verifies(second)
    assert row.priority < 0  # when the device has nothing else to do
    second.ask()
    assert len(verifies(second)) == 1
    assert second.run(row).state is JobState.DONE
    own = second.ask()
    assert "imported" not in own
    assert (own["match"], own["config"], own["program_key"]) == ("exact", found["config"], found["program_key"])
    assert own["processes"] >= 5
    assert second.publish()[0].signer == second.signer.public


def test_an_answer_of_this_box_stands_whatever_comes(first: Box, entry: ExchangeEntry) -> None:
    better = Signer(bytes(32)).sign({**entry.body, "processes": 1000, "speedup": 9.0, "ci95": [8.0, 10.0]}, {})
    first.exchange.put([better])
    first.exchange.trust(better.signer, "boaster")
    assert "imported" not in first.ask()


def test_what_is_wrong_here_is_served_no_more(entry: ExchangeEntry, box: Boxes) -> None:
    """A trusted box whose compiler was broken, say: the program is whole and signed, and its results are wrong."""
    signer = Signer(bytes(32))
    program = decode(entry.programs[entry.body["program"]["digest"]])
    wrong = replace_sources(program, lambda each: dataclasses.replace(each, text=f"{each.text}\nfault wrong\n"))
    plan = json.loads(to_text(wrong))
    unfused = entry.body["unfused"]["digest"]
    body = {**entry.body, "program": {"key": wrong.key, "digest": digest(plan)}}
    forged = signer.sign(body, {digest(plan): plan, unfused: entry.programs[unfused]})
    second = trusting(box("second"), forged, "broken")
    (row,) = verifies(second)
    ended = second.run(row)
    assert ended.state is JobState.FAILED
    assert "could not be measured here" in str(ended.problem)
    assert isinstance(second.ask(), NothingKnown)
    (listed,) = second.exchange.listed(own=False)
    assert "wrong result" in listed["refuted"] or "wrong_result" in listed["refuted"]


def test_a_program_that_is_not_what_its_key_says_does_not_run(entry: ExchangeEntry, box: Boxes) -> None:
    name = entry.body["program"]["digest"]
    plan = copy.deepcopy(entry.programs[name])
    plan["sources"][0]["text"] += "\nfault die\n"
    body = {**entry.body, "program": {"key": entry.body["program"]["key"], "digest": digest(plan)}}
    unfused = entry.body["unfused"]["digest"]
    forged = Signer(bytes(32)).sign(body, {digest(plan): plan, unfused: entry.programs[unfused]})
    second = trusting(box("second"), forged, "liar")
    (row,) = verifies(second)
    assert second.run(row).state is JobState.FAILED
    assert second.store.program(entry.body["program"]["key"]) is None


def test_an_answer_that_is_forgotten_travels_no_more(first: Box) -> None:
    (own,) = first.publish()
    first.store.forget(own.body["workload"]["name"])
    assert first.exchange.forget(own.lookup_name) == 1
    assert first.publish() == []


def test_publishing_goes_on_where_it_stopped(first: Box) -> None:
    (one,) = first.publish()
    assert [each.key for each in first.publish()] == [one.key]
    first.tune(TOY.replace("toy\n", "toy\nlabel: other\n"))
    assert len(first.publish()) == 2
