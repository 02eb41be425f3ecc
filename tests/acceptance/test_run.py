"""`fusiond run` as a process: the answer, Ctrl-C, and going on."""

import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusiond.store.database import Store

pytestmark = pytest.mark.slow
End = Callable[[subprocess.Popen[str], signal.Signals], int]


def test_run_prints_the_answer_that_best_prints(machine: Any) -> None:
    said = machine.fusiond("run", machine.job(trials=64), "--seed", 3)
    assert said.status == 0, said.err
    assert "verdict   fuse: " in said.out
    assert "x the speed of sequential (95% interval " in said.out
    assert "trial 64/64" in said.err
    assert machine.fusiond("best", "--workload", "job").out == said.out
    assert machine.fusiond("best", "job.yaml").out == said.out
    (machine.folder / "other.yaml").write_text((machine.folder / "job.yaml").read_text())  # another name, one content
    assert machine.fusiond("best", "other.yaml", "--json").json["match"] == "exact"
    assert machine.fusiond("best", "job.yaml", "--cache", "cold").status == 3


def test_run_with_json_prints_one_document(machine: Any) -> None:
    said = machine.fusiond("run", machine.job(), "--json", "--trials", 3, "--device", "fake")
    assert said.status == 0, said.err
    contract = {
        "workload", "device", "verdict", "config", "time_us", "baseline", "baseline_us", "speedup", "ci95",
        "verified", "evidence", "match", "trials", "source", "found_at",
    }  # fmt: skip
    assert contract <= set(said.json)
    assert said.json["trials"] == 3


@pytest.mark.campaign
def test_a_sweep_is_several_answers(machine: Any) -> None:
    said = machine.fusiond("run", machine.job(trials=2, more="sweep: {n: [64, 128]}\n"), "--json")
    assert [each["workload"]["sizes"] for each in said.json] == [{"n": 64}, {"n": 128}]


def test_ctrl_c_ends_the_search_and_measures_the_finals(machine: Any, end: End) -> None:
    job = machine.job(trials=60, side=40)
    process = machine.start("run", job)
    machine.wait_for(lambda: "trial 2/60" in machine.said("run"), about="the second trial")
    assert end(process, signal.SIGINT) == 0
    said = machine.said("run")
    assert "ending the search: the finals of what is measured come next" in said
    assert re.search(r"in 5 fresh processes, about \d+ s", said)
    found = machine.fusiond("best", "--workload", "job", "--json").json
    assert found["trials"] < 60
    assert machine.show(machine.fusiond("jobs", "--json").json[0]["id"])["state"] == "done"


def test_finish_ends_the_search_of_a_job_of_the_daemon(machine: Any) -> None:
    with machine.serving():
        id = machine.fusiond("submit", machine.job(trials=400, side=40), "--json").json["id"]
        machine.wait_for(lambda: machine.trials(id) > 2, about="the second trial")
        said = machine.fusiond("finish", id)
        assert (said.status, said.out) == (
            0,
            f"job {id} ends its search after the running trial; its finals come next\n",
        )
        machine.wait_for(lambda: machine.state(id) == "done", about="the end")
    assert machine.show(id)["trials"] < 400
    assert machine.fusiond("finish", id).out == f"job {id} is done\n"
    assert machine.fusiond("finish", "zzz").status == 2


@pytest.mark.campaign
def test_ctrl_c_twice_keeps_what_was_measured_and_says_how_to_go_on(machine: Any, end: End) -> None:
    job = machine.job(trials=60, side=40)
    process = machine.start("run", job)
    machine.wait_for(lambda: "trial 2/60" in machine.said("run"), about="the second trial")
    process.send_signal(signal.SIGINT)
    machine.wait_for(lambda: "ending the search" in machine.said("run"), about="the first Ctrl-C")
    assert end(process, signal.SIGINT) == 130
    said = machine.said("run")
    assert "Traceback" not in said
    (row,) = machine.fusiond("jobs", "--json").json
    assert row["state"] == "queued"
    assert f"stopped after {row['trials']} trials; `fusiond run {job}` goes on from there" in said
    again = machine.fusiond("run", job, "--trials", 30)
    assert again.status == 0, again.err
    assert f"{row['trials']} of 30 trials" in again.err
    assert [each["id"] for each in machine.fusiond("jobs", "--json").json] == [row["id"]]
    assert machine.show(row["id"])["trials"] == 30


def test_run_follows_a_job_that_the_daemon_runs(machine: Any) -> None:
    job = machine.job(trials=60, side=40)
    with machine.serving():
        id = machine.fusiond("submit", job, "--json").json["id"]
        machine.wait_for(lambda: machine.state(id) == "running", about="the beginning")
        said = machine.fusiond("run", job)
    assert said.status == 0
    assert f"job {id} is run by another process; following it" in said.err
    assert "verdict" in said.out


def test_a_failing_job_is_one_line_and_status_1(machine: Any) -> None:
    said = machine.fusiond("run", machine.job(more="unfused: .nan\n"), "--json")
    assert said.status == 1
    assert said.json["error"]["problem"]


@pytest.mark.campaign
def test_verify_measures_the_winner_again(machine: Any) -> None:
    before = machine.fusiond("run", machine.job(trials=64), "--json").json
    said = machine.fusiond("verify", "--workload", "job", "--json")
    assert said.status == 0, said.err
    assert said.json["config"] == before["config"]
    assert said.json["found_at"] >= before["found_at"]
    assert machine.fusiond("verify", "--workload", "none").status == 3


def test_explain_and_source_and_export(machine: Any) -> None:
    machine.fusiond("run", machine.job(trials=4, more='faults: {"0,0": wrong}\n'))
    (row,) = machine.fusiond("jobs", "--json").json
    found = machine.fusiond("explain", row["id"], "--json").json
    assert found["trials"][0]["outcome"] == "wrong_result"
    assert {each["role"] for each in found["baselines"]} == {"baseline:sequential", "baseline:graph"}
    text = machine.fusiond("explain", row["id"][:5]).out
    assert "wrong_result" in text
    assert machine.fusiond("best", "--workload", "job", "--source").out.startswith("cost_us")
    exported = machine.fusiond("best", "--workload", "job", "--export", "out")
    assert exported.status == 0, exported.err
    assert (machine.folder / "out" / "toy.cu").read_text().startswith("cost_us")


def test_plan_runs_nothing(machine: Any) -> None:
    said = machine.fusiond("plan", machine.job(), "--json")
    assert said.status == 0, said.err
    assert set(said.json) >= {
        "strategy", "workload", "analysis", "parts", "probes_missing", "space", "seeds", "rejections",
    }  # fmt: skip
    assert said.json["space"]["points"] == 64
    assert not machine.database.exists()
    emitted = machine.fusiond("plan", machine.job(), "--emit", "bundles", "--set", "x=3")
    assert emitted.status == 0, emitted.err
    assert (machine.folder / "bundles" / "native").is_dir()
    assert (machine.folder / "bundles" / "candidate").is_dir()
    assert machine.fusiond("plan", machine.job(), "--emit", "other", "--set", "z=3").status == 2


# --- the daemon is killed at random moments of one job ---------------------------------------------------


TRIALS = 48


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
