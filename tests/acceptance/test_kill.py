"""`kill -9` of the daemon at twenty random moments of one job, on a device that answers the same every time: nothing
acknowledged is lost, nothing recorded is run again, and the trials are those of a job that nobody disturbed."""

import random
import time
from pathlib import Path
from typing import Any

import pytest

from fusiond.store.database import Store

TRIALS = 48


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 2), *(pytest.param(seed, 20, marks=pytest.mark.campaign) for seed in (2, 3))]
)
def test_killed_many_times_the_job_ends_as_if_nothing_had_happened(machine: Any, seed: int, kills: int) -> None:
    options = f"seed: {seed}, timeout: 1h"
    # In a store of its own: a search learns from what is known of other workloads.
    alone = machine.folder / "calm.sqlite"
    calm = machine.fusiond("run", job(machine, "calm", options), "--json", "--db", alone, timeout=120)
    assert calm.status == 0, calm.err
    shaken = job(machine, "shaken", options)
    moments = random.Random(seed)
    recorded: dict[str, int] = {}
    name = None
    for _ in range(kills):
        with machine.serving() as daemon:
            name = name or machine.fusiond("submit", shaken, "--json").json["id"]
            time.sleep(moments.uniform(0.0, 0.7))
            daemon.kill()
            daemon.wait()
        found = rows(machine, name)
        # What was on disk stays as it was, down to the row.
        assert recorded.items() <= found.items()
        recorded = found
    with machine.serving():
        assert machine.fusiond("watch", name, timeout=120).status == 0
    assert recorded.items() <= rows(machine, name).items()
    assert trials(machine.database, name) == trials(alone, last(alone, "calm"))
    shaken_best = machine.fusiond("best", "--workload", "shaken", "--json").json
    calm_best = machine.fusiond("best", "--workload", "calm", "--json", "--db", alone).json
    assert (shaken_best["config"], shaken_best["verdict"]) == (calm_best["config"], calm_best["verdict"])


def job(machine: Any, label: str, options: str) -> Any:
    path = machine.folder / f"{label}.yaml"
    path.write_text(f"strategy: toy\nlabel: {label}\nside: 30\nsearch: {{trials: {TRIALS}, {options}}}\n")
    return path


def last(database: Path, label: str) -> str:
    with Store.open(database) as store:
        return next(row.id for row in store.jobs() if row.workload_name == label)


def rows(machine: Any, name: str) -> dict[str, int]:
    """Config of every recorded trial -> its row number, which a trial that is run again would not keep."""
    with Store.open(machine.database) as store:
        found = store._rows("SELECT id, role, config FROM trials WHERE job_id = ?", [name])
    return {f"{row['role']} {row['config']}": row["id"] for row in found}


def trials(database: Path, name: str) -> list[tuple[int, str]]:
    with Store.open(database) as store:
        return [(each.sequence, str(each.config)) for each in store.trials(name)]
