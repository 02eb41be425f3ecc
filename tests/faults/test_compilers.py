"""Jobs on the cpu device whose compiler is killed, or lacks room: the same outcomes, and no kernel is blamed."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from fusiond.build import compiler
from fusiond.model.events import Events
from fusiond.model.outcomes import JobState, Outcome
from fusiond.model.system import memory
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.tuning import tuner
from tests.tuning.test_tuner_cpu import BODIES, Faulty, Plugin

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
@pytest.mark.sampled(8)
def test_a_compiler_that_is_killed_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    deaths, count, fake = 7, tmp_path / "count", tmp_path / "g++"
    fake.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec g++ --version\necho >> {count}\n'
        f'[ $(wc -l < {count}) -gt {deaths} ] && exec g++ "$@"\n{how}\n'
    )
    states, trials, problem = run(tmp_path, monkeypatch, fake, {name: BODIES[name] for name in EXPECTED})
    assert set(states[:-1]) == {JobState.WAITING}
    assert (states[-1], problem) == (JobState.DONE, None)
    assert trials == EXPECTED
    assert len(count.read_text().splitlines()) > deaths


@pytest.mark.slow
@pytest.mark.usefixtures("gxx_here")
def test_a_candidate_that_no_compiler_has_the_memory_for_is_a_trial_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "mostly_free", lambda: True)
    fake = tmp_path / "g++"
    fake.write_text(
        '#!/bin/sh\nfor each; do grep -sq hungry -- "$each" &&\n'
        "echo 'virtual memory exhausted: Cannot allocate memory' >&2 && exit 1; done\n"
        'exec g++ "$@"\n'
    )
    hungry = "/* hungry */ if (i < n) y[i] = 2 * x[i];"
    states, trials, problem = run(tmp_path, monkeypatch, fake, {"right": BODIES["right"], "hungry": hungry})
    assert (states, problem) == ([JobState.DONE], None)
    assert trials == {"right": Outcome.MEASURED, "hungry": Outcome.BUILD_FAILED}


def run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, compiler_there: Path, bodies: Mapping[str, str]
) -> tuple[list[JobState], dict[str, Outcome], str | None]:
    """A job over `bodies` to its end, waits included: its states, the outcomes, its problem."""
    compiler_there.chmod(0o755)
    monkeypatch.setenv("FUSIOND_CXX", str(compiler_there))
    monkeypatch.setenv("FUSIOND_CACHE", str(folder / "cache"))
    monkeypatch.setattr(compiler, "PAUSES_SECS", (0.0, 0.0))
    monkeypatch.setattr(Faulty, "bodies", bodies)
    monkeypatch.setattr(Faulty, "first", "right")
    registry = Registry()
    registry.add(Plugin(Faulty()), "faulty")
    states: list[JobState] = []
    with Store.open(folder / "store.sqlite") as store:
        (job,) = jobs.read("twice.yaml", "strategy: faulty\n")
        row = tuner.submit(store, registry, job)
        while not states or states[-1] is JobState.WAITING:
            assert store.claim("test", job=row.id) is not None
            states.append(tuner.Tuner(store, registry, Events()).run(row.id, lambda: False))
        trials = {each.config.text("body"): each.outcome for each in store.trials(row.id)}
        return states, trials, store._known(row.id).problem
