"""The daemon as a process: a job's whole life, signals, kills, restarts."""

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.slow
End = Callable[[subprocess.Popen[str], signal.Signals], int]


def test_a_job_from_submission_to_answer(machine: Any, end: End) -> None:
    with machine.serving() as daemon:
        submitted = machine.fusiond("submit", machine.job(), "--json")
        assert submitted.status == 0
        assert set(submitted.json) == {"id"}
        job = submitted.json["id"]
        watched = machine.fusiond("watch", job)
        assert watched.status == 0
        assert f"job {job} is done" in watched.out
        shown = machine.show(job)
        assert shown == {"id": job, "state": "done", "trials": 6, "best": shown["best"], "problem": None}
        best = machine.fusiond("best", "--workload", "job", "--json")
        assert best.status == 0
        assert best.json["workload"]["strategy"] == "toy"
        waited = machine.fusiond("submit", machine.job("other.yaml"), "--wait", "--json")
        assert (waited.status, waited.json["state"]) == (0, "done")
        assert "trial 6/6" in waited.err
        assert end(daemon, signal.SIGTERM) == 0
    assert not (machine.folder / "fusiond.sqlite.run" / "socket").exists()


def test_sigterm_in_the_middle_keeps_what_was_measured(machine: Any, end: End) -> None:
    with machine.serving() as daemon:
        job = machine.fusiond("submit", machine.job(trials=30, side=40), "--json").json["id"]
        machine.wait_for(lambda: machine.trials(job) >= 2, about="the second trial")
        assert end(daemon, signal.SIGTERM) == 0
    stopped = machine.show(job)
    assert stopped["state"] == "queued"
    assert 2 <= stopped["trials"] < 30
    with machine.serving() as daemon:
        assert machine.fusiond("watch", job).status == 0
        assert end(daemon, signal.SIGTERM) == 0
    assert machine.show(job)["trials"] == 30


@pytest.mark.campaign
def test_a_second_signal_kills(machine: Any, end: End) -> None:
    # A candidate that hangs keeps the worker busy, so that the first signal cannot end the daemon at once.
    hangs = machine.folder / "hangs"
    hangs.touch()
    machine.env["FUSIOND_FAKE_HANG"] = str(hangs)
    job = machine.job(trials=1, more='faults: {"0,0": hang}\n')
    with machine.serving() as daemon:
        id = machine.fusiond("submit", job, "--json").json["id"]
        machine.wait_for(lambda: machine.state(id) == "running", about="the beginning of the job")
        watch = machine.start("watch", id)
        machine.wait_for(lambda: "search" in machine.printed("watch"), about="the search")
        watch.kill()
        watch.wait()
        daemon.send_signal(signal.SIGTERM)
        machine.wait_for(lambda: "a second signal kills" in machine.said("serve"), about="the first signal")
        assert end(daemon, signal.SIGTERM) == -signal.SIGTERM
    assert machine.show(id)["state"] == "queued"  # nobody could write anything down, and nobody runs it
    hangs.unlink()
    with machine.serving():
        assert machine.fusiond("watch", id).status == 0


def test_a_bad_job_is_refused_and_not_stored(machine: Any) -> None:
    with machine.serving():
        for text, says in (
            ("strategy: toy\nsiede: 3\n", "job.yaml:2: unknown key 'siede'; did you mean 'side'?"),
            ("strategy: toi\n", "unknown strategy 'toi'; did you mean 'toy'?"),
            ("strategy: toy\ndevice: cuda:7\n", "cuda:7"),
            ("strategy: [\n", "not YAML"),
        ):
            (machine.folder / "job.yaml").write_text(text)
            said = machine.fusiond("submit", "job.yaml", "--json")
            assert says in said.err
            assert said.err.count("\n") == 1
            assert said.status in (1, 2)
            assert said.json["error"]["problem"]
        assert machine.fusiond("submit", "none.yaml").status == 2
        assert machine.fusiond("jobs", "--json").json == []


def test_two_daemons_on_one_store(machine: Any) -> None:
    with machine.serving() as daemon:
        second = machine.fusiond("serve")
        assert second.status == 1
        assert f"another daemon serves this store already (pid {daemon.pid}" in second.err
        assert daemon.poll() is None


def test_a_socket_path_too_long_is_one_line(machine: Any) -> None:
    said = machine.fusiond("serve", "--socket", machine.folder / ("x" * 120))
    assert said.status == 2
    assert "at most 107" in said.err


def test_a_configuration_file(machine: Any, end: End) -> None:
    (machine.folder / "fusiond.yaml").write_text("db: other.sqlite\ndevices: fake\n")
    said = machine.fusiond("serve", "--config", "fusiond.yaml")
    assert said.status == 2
    assert "fusiond.yaml:2: devices: is 'fake'" in said.err
    (machine.folder / "fusiond.yaml").write_text("db: other.sqlite\nlog_level: debug\n")
    process = machine.start("serve", "--config", "fusiond.yaml")
    machine.wait_for((machine.folder / "other.sqlite.run" / "socket").exists, about="the socket")
    assert end(process, signal.SIGINT) == 0
    assert "Z INFO MainThread: fusiond.service.daemon.service: serving" in machine.said("serve")


def test_cancelling(machine: Any) -> None:
    with machine.serving():
        job = machine.fusiond("submit", machine.job(trials=200, side=40), "--json").json["id"]
        machine.wait_for(lambda: machine.trials(job) >= 1, about="the first trial")
        assert machine.fusiond("cancel", job).status == 0
        watched = machine.fusiond("watch", job, "--json")
        assert (watched.status, watched.json["state"]) == (1, "cancelled")


def test_the_configuration_is_read_again(machine: Any, end: End) -> None:
    path = machine.folder / "fusiond.yaml"
    path.write_text("devices: [cpu]\npoll_secs: 5\n")
    with machine.serving("--config", path) as daemon:
        for text, said in (
            ("devices: [cpu]\npoll_secs: 0.1\nlog: json\n", "changed: poll_secs, log"),
            ("devices: [cpu]\npoll_secs: often\n", "fusiond.yaml:2: poll_secs: is 'often'; a number is wanted"),
            ("devices: [cuda]\npoll_secs: 0.1\nlog: json\n", "these keys ask for a new start: devices"),
        ):
            path.write_text(text)
            daemon.send_signal(signal.SIGHUP)
            machine.wait_for(lambda said=said: said in machine.said("serve"), about=said)  # type: ignore[misc]
        last = json.loads(machine.said("serve").splitlines()[-1])
        assert last["message"] == "these keys ask for a new start: devices"
        assert machine.fusiond("status", "--json").json["daemon"]["state"] == "serving"
        assert end(daemon, signal.SIGTERM) == 0


def test_the_pages_are_served_to_whoever_has_the_url(machine: Any, end: End) -> None:
    with machine.serving("--web", "127.0.0.1:0") as daemon:
        machine.wait_for(lambda: "?token=" in machine.printed("serve"), about="the URL")
        (url,) = machine.printed("serve").split()
        assert httpx.get(url.partition("?")[0]).status_code == 401
        with httpx.Client(follow_redirects=True) as browser:
            page = browser.get(url, headers={"accept": "text/html"})
            assert (page.status_code, "token" in str(page.url)) == (200, False)
            job = machine.fusiond("submit", machine.job(), "--wait", "--json").json["id"]
            assert job in browser.get(page.url).text
            shown = browser.get(page.url.join(f"/page/jobs/{job}"))
            assert "<dd>6 of 6" in shown.text
        taken = machine.fusiond("serve", "--web", url.split("/")[2], "--db", machine.folder / "other.sqlite")
        assert (taken.status, "cannot listen on 127.0.0.1:" in taken.err) == (2, True)
        assert machine.fusiond("serve", "--web", "here").status == 2
        assert end(daemon, signal.SIGTERM) == 0
