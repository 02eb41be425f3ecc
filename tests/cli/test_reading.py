"""The commands that only read, and work without a daemon."""

import dataclasses
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond import cli
from fusiond.cli import COMMANDS, examples
from fusiond.cli.explain import _efforts
from fusiond.model.outcomes import Effort, JobState, Measurement, Purpose
from fusiond.requests import jobs
from fusiond.requests.registry import PluginState, Registry
from fusiond.service.client.client import LOST, Client
from fusiond.service.remaining import duration
from fusiond.store.database import Store
from fusiond.store.process_identity import this_process
from tests import fake_daemon as daemon
from tests.conftest import run_job

Run = Callable[..., Any]
JOB = "strategy: toy\npair: [hist, maxpool]\nsizes: {a.n: 500}\nsearch: {trials: 3}\n"


def test_jobs(fusiond: Run, done_job: str) -> None:
    (row,) = fusiond("jobs", "--json").json
    assert (row["id"], row["state"], row["workload"], row["trials"]) == (done_job, "done", "hist,maxpool", 3)
    assert done_job in fusiond("jobs").out
    assert fusiond("jobs", "--state", "queued").out == "no jobs\n"


def test_show(fusiond: Run, done_job: str) -> None:
    assert fusiond("show", done_job, "--json").json == {
        "id": done_job, "state": "done", "trials": 3, "best": pytest.approx(1.02), "problem": None,
    }  # fmt: skip
    assert "trials      3 of 3" in fusiond("show", done_job[:4]).out


def test_what_was_thrown_away_is_explained() -> None:
    def batch(**effort: Any) -> Measurement:
        return Measurement(
            span_us=(1.0,), clock="device", purpose=Purpose.SEARCH, effort=Effort(half_width=0.004, **effort)
        )

    assert _efforts([batch()]) == "1 batch of samples, medians known to 0.40 % (the worst to 0.40 %)"
    bad = [batch(gate_failures=2, steady=False), batch(retries=1, thrown_away=("the device throttled (hw_thermal)",))]
    assert _efforts(bad).partition("; ")[2] == (
        "thrown away and taken again: 2 runs that began too early, 1 sample of no time, 1 batch"
        " (the device throttled (hw_thermal)); 1 began though the clock was not steady"
    )


def test_explain(fusiond: Run, done_job: str) -> None:
    found = fusiond("explain", done_job, "--json").json
    assert [each["config"] for each in found["trials"]] == [{"block": 0}, {"block": 1}, {"block": 2}]
    assert found["answer"]["verdict"] == "fuse"
    text = fusiond("explain", done_job).out
    assert "3 candidates: 3 measured" in text
    assert "verdict: fuse, against streams_ab: 1.230x, 95% interval 1.210 to 1.250" in text


def test_how_long_a_job_took_and_for_how_much_of_it_its_device_measured(
    fusiond: Run, database: Path, done_job: str
) -> None:
    assert fusiond("jobs", "--json").json[0]["device_share"] is None  # not known: nothing is said
    assert "measured for" not in fusiond("explain", done_job).out
    with Store.open(database) as store:
        store.add_time(done_job, wall_secs=20.0, device_secs=15.0)
        store.add_time(done_job, wall_secs=5.0, device_secs=4.0)
    (listed,) = fusiond("jobs", "--json").json
    assert (listed["wall_secs"], listed["device_share"]) == (25.0, 0.76)
    assert fusiond("explain", done_job, "--json").json["job"]["device_share"] == 0.76
    assert "25.0 s, the device measured for 76% of it" in fusiond("explain", done_job).out
    assert "device_share  76%" in fusiond("show", done_job).out
    assert fusiond("watch", done_job).out.endswith("is done (25.0 s; the device measured for 76% of it)\n")


@pytest.fixture
def registry(fakes: Registry, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The fake device and the toy strategy, and a plugin that did not load."""
    fakes.states.append(PluginState(name="broken", distribution="somebody", problem="ImportError: no such thing"))

    monkeypatch.setattr("fusiond.requests.isolation.registry.load", lambda **_: fakes)
    return fakes


def test_plugins(fusiond: Run, registry: Registry) -> None:
    found = {each["name"]: each for each in fusiond("plugins", "--json").json}
    assert found["fakes"]["strategies"] == ["toy"]
    assert found["broken"]["problem"] == "ImportError: no such thing"
    assert "ImportError: no such thing" in fusiond("plugins").out


def test_devices(fusiond: Run, registry: Registry, database: Path) -> None:
    (found,) = fusiond("devices", "--json").json["devices"]
    assert (found["name"], found["sick"]) == ("fake", None)
    info = registry.providers["fake"].devices()[0]
    with Store.open(database) as store:
        store.save_device(info)
        store.set_sick(info.key, info.uuid, "three deaths in a row")
    assert fusiond("devices", "--json").json["devices"][0]["sick"] == "three deaths in a row"
    assert "sick: three deaths in a row" in fusiond("devices").out
    checks = {each["name"]: each for each in fusiond("doctor", "--json").json["checks"] if each["state"] == "broken"}
    assert "three deaths in a row" in checks["fake"]["detail"]
    assert checks["fake"]["remedy"]


def test_doctor(fusiond: Run, registry: Registry, database: Path) -> None:
    said = fusiond("doctor", "--json")
    assert (said.status, said.json["works"]) == (0, True)
    checks = {each["name"]: each for each in said.json["checks"]}
    assert checks["fake"]["state"] == "ok"
    assert checks["daemon"]["remedy"] == "start one: `fusiond serve`"
    assert checks["plugin broken"]["state"] == "broken"
    assert not database.exists()
    registry.providers.clear()
    said = fusiond("doctor")
    assert said.status == 1
    assert "no device works here" in said.out


@pytest.mark.slow
def test_a_calibration_is_kept_and_shown(fusiond: Run, registry: Registry) -> None:
    said = fusiond("calibrate", "fake", "--json")
    assert (said.status, said.json["figures"]) == (0, {"event_us": 1.5, "steady_mhz": 1000.0})
    said = fusiond("calibrate")  # the only device
    assert "1000 MHz" in said.out
    assert "two events with nothing between them" in said.out
    checks = {each["name"]: each for each in fusiond("doctor", "--json").json["checks"]}
    assert checks["calibration fake"]["detail"].endswith("event_us 1.5 us, steady_mhz 1000 MHz")


def test_only_what_is_here_is_calibrated(fusiond: Run, registry: Registry, database: Path) -> None:
    said = fusiond("calibrate", "fike")
    assert said.status == 2
    assert "did you mean 'fake'?" in said.err
    assert not database.exists()


# --- what is not as it should be ------------------------------------------------------------------------


DEAD = "1:no-such-boot:1"


def claimed(database: Path, owner: str) -> str:
    with Store.open(database) as store:
        row = daemon.submit(store, jobs.read("/job.yaml", JOB)[0])
        store.claim(owner, job=row.id)
        return row.id


def test_a_job_whose_process_is_gone_does_not_run(fusiond: Run, database: Path) -> None:
    """`watch` ends with a line, since nobody goes on with it."""
    job = claimed(database, DEAD)
    assert fusiond("show", job, "--json").json["state"] == "queued"
    (entry,) = fusiond("jobs", "--json").json
    assert (entry["state"], entry["problem"]) == ("queued", LOST)
    assert fusiond("jobs", "--state", "running", "--json").json == []
    said = fusiond("watch", job)
    assert said.status == 1
    assert said.out.splitlines()[-1] == f"job {job} is queued: {LOST}"


def test_jobs_says_when_there_are_more(fusiond: Run, database: Path) -> None:
    with Store.open(database) as store:
        for index in range(4):
            daemon.submit(store, jobs.read("/job.yaml", JOB.replace("500", str(500 + index)))[0])
    said = fusiond("jobs", "--limit", 3, "--json")
    assert len(said.json) == 3
    last = said.json[-1]["id"]
    more = f"(--limit N shows more, --before {last} those that came before)"
    assert said.err == f"fusiond: the newest 3 of 4 jobs {more}\n"
    said = fusiond("jobs", "--before", last, "--json")
    assert (len(said.json), said.err) == (1, "")
    assert fusiond("jobs", "--before", "nobody").status == 2
    assert fusiond("jobs", "--limit", 4).err == ""
    said = fusiond("jobs", "--limit", 1, "--state", "queued", "--state", "done")
    assert said.err.startswith("fusiond: the newest 1 of 4 jobs (--limit N shows more, --before ")
    assert fusiond("jobs", "--limit", 1, "--state", "done").err == ""


@pytest.mark.slow
def test_a_reader_that_goes_away(database: Path, done_job: str) -> None:
    """`fusiond jobs | true`: the status of a program that SIGPIPE ended, and no complaint."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "fusiond", "jobs", "--db", str(database)],
        stdout=write, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_prune(fusiond: Run, database: Path, done_job: str) -> None:
    """Old bundles, what ended jobs left, and files that nobody names; not while a job runs, and not what is young."""
    artifacts = Path(f"{database.with_suffix('')}.artifacts")
    with Store.open(database) as store:
        artifacts = store.artifacts
        kept = store.save_artifact(b"source", ".cu")
    names = ("bundles/old/plan.json", "bundles/young/plan.json", f"work/{done_job}/x.npz", "ab/orphan.cu")
    paths = [artifacts / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000)
    for path in (paths[0].parent, paths[2].parent, paths[3], kept):
        os.utime(path, (1, 1))
    job = claimed(database, this_process())
    assert fusiond("prune", "--json").json["freed_bytes"]["bundles"] == 0
    with Store.open(database) as store:
        store.requeue(job)
    for path in (paths[0].parent, paths[2].parent):
        path.mkdir(exist_ok=True)
        os.utime(path, (1, 1))
    found = fusiond("prune", "--json").json["freed_bytes"]
    assert found["bundles"] == 1000
    assert [path.exists() for path in paths] == [False, True, False, False]
    assert kept.is_file()
    assert fusiond("prune", "--hours", 0).status == 0
    assert not paths[1].exists()


# --- what is known, what was known, and how it is given up ----------------------------------------------


def test_answers(fusiond: Run, done_job: str) -> None:
    (found,) = fusiond("answers", "--json").json
    assert (found["workload"], found["verdict"], found["evidence"]) == ("hist,maxpool", "fuse", "emulated")
    assert found["ci95"][0] <= found["speedup"] <= found["ci95"][1]
    assert "hist,maxpool" in fusiond("answers").out
    for words in (["--verdict", "keep"], ["--device", "cuda"], ["--strategy", "hfuse"], ["--since", "2999-01-01"]):
        assert fusiond("answers", *words).out == "no answers\n"
    assert len(fusiond("answers", "--since", "2026-01-01", "--device", "cpu", "--strategy", "toy", "--json").json) == 1


def test_status_with_and_without_a_store(fusiond: Run, database: Path) -> None:
    said = fusiond("status")
    assert (said.status, database.exists()) == (0, False)
    assert "no daemon answers" in said.out
    assert fusiond("status", "--json").json["daemon"]["state"] == "absent"


def test_status_of_a_store(fusiond: Run, done_job: str) -> None:
    said = fusiond("status").out
    assert "1 done job" in said
    assert re.search(r"hist,maxpool +cpu +fuse +1\.230x", said)
    assert fusiond("status", "--json").json["store"]["jobs"]["done"] == 1


def test_status_says_once_that_there_is_no_daemon(
    fusiond: Run, database: Path, done_job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(database) as store:
        running = dataclasses.replace(store.job(done_job), state=JobState.RUNNING)
    monkeypatch.setattr(Client, "jobs", lambda *_: (running,))  # by `fusiond run`
    assert fusiond("status").out.count("no daemon answers") == 1


@pytest.mark.parametrize(("secs", "said"), [(40, "40 s"), (720, "12 min"), (11520, "3.2 h"), (2592000, "30 d")])
def test_durations(secs: float, said: str) -> None:
    assert duration(secs) == said


def test_the_manual_has_every_command_and_option(fusiond: Run, tmp_path: Path) -> None:
    """Read by groff, as man does, where there is one: without a warning, and nothing is lost."""
    source = fusiond("help", "--man").out
    words = source.replace("\\-", "-")
    for name in cli.COMMANDS:
        assert f".SS fusiond {name}\n" in source
        for action in cli.command_of(name)[1]._actions:
            assert all(each in words for each in action.option_strings), (name, action)
    if shutil.which("groff") is None:
        pytest.skip("no groff to set the page with: apt install groff-base")
    page = tmp_path / "fusiond.1"
    page.write_text(source)
    made = subprocess.run(["groff", "-man", "-ww", "-Tutf8", page], capture_output=True, text=True, check=True)
    assert made.stderr == ""
    shown = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", made.stdout)
    assert "fusiond best" in shown
    assert "--tls-cert FILE" in shown.replace("\u2010", "-").replace("\u2212", "-")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes(fusiond: Run, shell: str, tmp_path: Path) -> None:
    script = fusiond("completion", shell).out
    assert all(command in script for command in COMMANDS)
    assert "--older-than" in script
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} to check the syntax with: apt install {shell}")
    subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_bash_completes_as_one_types(fusiond: Run, tmp_path: Path) -> None:
    path = tmp_path / "completion"
    path.write_text(fusiond("completion", "bash").out)
    typed = f"""source {path}; COMP_WORDS=(fusiond prune --old); COMP_CWORD=2
    $(complete -p fusiond | sed -E 's/.*-F (\\S+) .*/\\1/') fusiond --old prune; echo "${{COMPREPLY[@]}}" """
    found = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, check=True).stdout.split()
    assert found == ["--older-than"]


def test_examples_are_listed_and_copied(fusiond: Run, tmp_path: Path) -> None:
    listed = fusiond("examples", "--json").json
    assert {"hist-maxpool.yaml", "gpu/hist-maxpool.yaml", "softmax.hlo"} <= set(listed["files"])
    assert all(each.split()[0] in listed["files"] for each in fusiond("examples").out.splitlines())
    target = tmp_path / "mine"
    copied = fusiond("examples", target)
    assert "fusiond plan" in copied.out
    files = {str(path.relative_to(target)) for path in target.rglob("*.*")}
    assert files == {*listed["files"], *(f"{kind}.schema.json" for kind in ("job", "kernel", "pipeline", "graph"))}
    for each in target.rglob("*.yaml"):  # an editor finds the schema, and the rest is as it was
        first, _, rest = each.read_text().partition("\n")
        kind = {"image/graph": "graph", "image/sharpen": "pipeline"}.get(str(each.relative_to(target).with_suffix("")))
        schema = (each.parent / first.removeprefix("# yaml-language-server: $schema=")).resolve()
        assert schema == target / f"{kind or 'job'}.schema.json"
        assert rest == (examples.examples_folder() / each.relative_to(target)).read_text()
    for each in (target / "jax").glob("*.py"):
        compile(each.read_text(), str(each), "exec")
    assert fusiond("examples", target).status == 2
    assert examples.examples_folder().is_dir()


# --- `fusiond store` and `fusiond prune --older-than` as one types them ---------------------------------


@pytest.mark.slow
def test_what_is_damaged_is_named_and_can_be_forgotten(fusiond: Run, database: Path, done_job: str) -> None:
    damage(database)
    said = fusiond("store", "check")
    assert said.status == 1
    assert f"jobs '{done_job}': is damaged: it was a job; it is neither listed nor run\n    remedy: restore" in said.out
    (finding,) = fusiond("store", "check", "--json").json["findings"]
    assert finding["where"] == f"jobs '{done_job}'"
    command = [sys.executable, "-m", "fusiond", "jobs", "--db", str(database)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert listed.stdout == "no jobs\n"
    assert f"the row '{done_job}' of jobs is damaged" in listed.stderr
    shown = fusiond("show", done_job)
    assert (shown.status, len(shown.err.splitlines())) == (1, 1)
    assert "Traceback" not in fusiond("explain", done_job).err
    said = fusiond("store", "check", "--forget")
    assert said.status == 0
    assert "removed" in said.err
    assert (fusiond("jobs").err, fusiond("store", "check").status) == ("", 0)


def test_old_jobs_go_and_the_sizes_are_said(fusiond: Run, database: Path, done_job: str) -> None:
    found = fusiond("prune", "--json").json
    assert found["removed"] is None
    assert found["bytes"]["store"] > 0
    found = fusiond("prune", "--older-than", "0h", "--json").json
    assert found["removed"]["jobs"] == 0  # an answer is from it
    with Store.open(database) as store:
        store._database.execute("UPDATE records SET job_id = NULL")
    said = fusiond("prune", "--older-than", "0h")
    assert said.out.startswith("removed  1 job with ")
    assert fusiond("jobs").out == "no jobs\n"


def damage(database: Path) -> None:
    """A bit of a job's row, behind the triggers' back."""
    with sqlite3.connect(database) as connection:
        names = "jobs_changed", "jobs_sealed"
        query = "SELECT sql FROM sqlite_master WHERE name = ?"
        triggers = [connection.execute(query, [name]).fetchone()[0] for name in names]
        for name in names:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE jobs SET priority = priority + 1")
        for trigger in triggers:
            connection.execute(trigger)
    connection.close()


# --- a trial of a real job, run from its bundle with NumPy alone ----------------------------------------


SMALL_JOB = """
strategy: hfuse
pair: [sha256, blake256]
sizes: {sha256.blocks: 3, sha256.rounds: 4, blake256.blocks: 3, blake256.rounds: 4}
device: cpu
search: {trials: 1}
"""


@pytest.fixture
def ran(database: Path, gxx_here: None, short_measuring: None) -> str:
    """A store in which a small job has run; its id."""
    registry = Registry.load()
    with Store.open(database) as store:
        (job,) = jobs.read("/job.yaml", SMALL_JOB)
        row, _ = run_job(store, registry, job)
        return row.id


@pytest.mark.slow
def test_a_trial_runs_from_its_bundle(fusiond: Run, ran: str, tmp_path: Path) -> None:
    written = fusiond("explain", ran, "--bundle", tmp_path / "b", "--trial", 0, "--json").json["written"]
    assert written == [str(tmp_path / "b" / "candidate"), str(tmp_path / "b" / "baseline")]
    outputs = []
    for bundle in written:
        path = tmp_path / f"{Path(bundle).name}.npz"
        # Nothing but NumPy, the standard library and fusiond itself may be imported.
        code = (
            "import sys, importlib.abc\n"
            "absent = {'yaml', 'optuna', 'sqlite_utils', 'pluggy', 'rich'}\n"
            "class No(importlib.abc.MetaPathFinder):\n"
            "    def find_spec(self, name, path, target=None):\n"
            "        if name.partition('.')[0] in absent:\n"
            "            raise ImportError(name)\n"
            "sys.meta_path.insert(0, No())\n"
            "from fusiond.devices.cpu import run\n"
            "raise SystemExit(run.main(sys.argv[1:]))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, bundle, "--outputs", str(path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        outputs.append(dict(np.load(path)))
    assert outputs[0].keys() == outputs[1].keys()
    for name, found in outputs[0].items():
        np.testing.assert_array_equal(found, outputs[1][name])
    again = fusiond("explain", ran, "--bundle", tmp_path / "b", "--trial", 0)
    assert (again.status, again.out) == (2, "")
    assert "exists already" in again.err
