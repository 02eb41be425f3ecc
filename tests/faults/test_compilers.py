"""Jobs on the cpu device whose compiler is killed, or lacks room: the same outcomes, and no kernel is blamed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusiond import jobs, tuner
from fusiond.build import compiler
from fusiond.events import Events
from fusiond.model import JobState, Outcome
from fusiond.registry import Registry
from fusiond.store.database import Store
from tests import test_tuner_cpu
from tests.test_tuner_cpu import BODIES, Plugin

EXPECTED = {"right": Outcome.MEASURED, "does_not_compile": Outcome.BUILD_FAILED}


@pytest.mark.slow
@pytest.mark.usefixtures("gxx_here")
@pytest.mark.parametrize(
    "how",
    [
        "kill -9 $$",
        "echo '{standard input}: Fatal error: cannot write to out.o: No space left on device' >&2; exit 1",
        pytest.param("kill -TERM $$", marks=pytest.mark.campaign),
        pytest.param(
            "echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1", marks=pytest.mark.campaign
        ),
    ],
)
def test_a_compiler_that_is_killed_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    deaths, count, fake = 7, tmp_path / "count", tmp_path / "g++"
    fake.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec g++ --version\necho >> {count}\n'
        f'[ $(wc -l < {count}) -gt {deaths} ] && exec g++ "$@"\n{how}\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("FUSIOND_CXX", str(fake))
    monkeypatch.setenv("FUSIOND_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "PAUSES_SECS", (0.0, 0.0))
    monkeypatch.setattr(test_tuner_cpu, "BODIES", {name: BODIES[name] for name in EXPECTED})
    monkeypatch.setattr(
        test_tuner_cpu.Faulty, "seeds", lambda self, *_: (("first", test_tuner_cpu.Config.of({"body": "right"})),)
    )
    registry = Registry()
    registry.add(Plugin(), "faulty")
    states = []
    with Store.open(tmp_path / "store.sqlite") as store:
        (job,) = jobs.read("twice.yaml", "strategy: faulty\n")
        row = tuner.submit(store, registry, job)
        while not states or states[-1] is JobState.WAITING:
            assert store.claim("test", job=row.id) is not None
            states.append(tuner.Tuner(store, registry, Events()).run(row.id, lambda: False))
        trials = {each.config.text("body"): each.outcome for each in store.trials(row.id)}
        problem = store._known(row.id).problem
    assert set(states[:-1]) == {JobState.WAITING}
    assert (states[-1], problem) == (JobState.DONE, None)
    assert trials == EXPECTED
    assert len(count.read_text().splitlines()) > deaths
