"""A writer that is killed at any moment leaves every row that it acknowledged, and no half of another."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fusiond.model.keys import text_key
from fusiond.store.database import Store

_WRITER = """
import sys
from fusiond.model.nouns import Config, Job, Workload
from fusiond.model.outcomes import Measurement, Outcome, Purpose, Trial
from fusiond.store.database import Store
from fusiond.store.process_identity import this_process

store = Store.open(sys.argv[1])
store.recover()
workload = Workload(strategy="s", strategy_version=1, name="n", members=(), sizes={}, content=0, payload=None)
job = store.submit(Job(strategy="s", request={}, sizes={}), workload).id
assert store.claim(this_process(), job=job), "the job of a dead process was not given back"
print(job, flush=True)
for sequence in range(len(store.trials(job)), 1_000_000):
    path = store.save_artifact(b"%d" % sequence * 5000, ".bin")
    measurement = Measurement(span_us=(1.0,) * 50, clock="device", purpose=Purpose.SEARCH)
    trial = Trial(sequence=sequence, config=Config.of({"n": sequence}), origin="grid", reason=str(path),
                  outcome=Outcome.MEASURED, measurement=measurement)
    store.add_trial(job, trial, device_key="d", gpu_uuid="", env_key="e", against=None)
    print(sequence, flush=True)
"""


def kill_writers(path: Path, rounds: int, seed: int) -> None:
    """Start a writer, kill it (while it opens the file, or after some rows), check all that it ever said; again."""
    draw = random.Random(seed)
    jobs: set[str] = set()
    acknowledged = -1
    for _ in range(rounds):
        command = [sys.executable, "-c", _WRITER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            said = []
            if draw.random() < 0.3:
                time.sleep(draw.uniform(0.1, 0.4))
            else:
                said = [child.stdout.readline() for _ in range(draw.randrange(1, 30))]
                time.sleep(draw.uniform(0, 0.004))
            child.kill()
            said += child.stdout.readlines()
        jobs.update(line.strip() for line in said[:1])
        acknowledged = max([acknowledged, *(int(line) for line in said[1:])])
        if jobs:
            (job,) = jobs  # one job for all of them: the same one is not submitted twice
            check(path, job, acknowledged)
    assert acknowledged > rounds


def check(path: Path, job: str, acknowledged: int) -> None:
    with Store.open(path, create=False) as store:
        trials = store.trials(job)
        assert [trial.sequence for trial in trials] == list(range(len(trials)))
        assert len(trials) in (acknowledged + 1, acknowledged + 2)  # one may be written and not yet acknowledged
        for trial in trials:
            assert trial.measurement is not None
            artifact = Path(trial.reason)
            assert artifact.stem == text_key(artifact.read_bytes())
        assert [row["integrity_check"] for row in store._rows("PRAGMA integrity_check")] == ["ok"]
        assert store._rows("PRAGMA foreign_key_check") == []
        (row,) = store._rows("SELECT COUNT(*) AS count FROM measurements")
        assert row["count"] == len(trials)
        assert len(store.collect_orphans(older_than_secs=-1)) <= 2  # a file without its row, or a part of one


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_many_killed_writers_lose_nothing(tmp_path: Path) -> None:
    kill_writers(tmp_path / "fusiond.sqlite", rounds=40, seed=2)
