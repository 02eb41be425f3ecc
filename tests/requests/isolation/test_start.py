"""A zygote that is forked from a command has nothing of the command but what is imported."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fusiond.requests.isolation import start
from fusiond.requests.registry import Registry

ROOT = Path(__file__).parents[3]
COMMAND = """
import atexit, json, os, signal, sys, threading
import fusiond.requests.isolation.zygote
from fusiond.requests.isolation import start
from fusiond.requests.isolation.planner import Planner

atexit.register(lambda: print("the command ends", flush=True))
secret = open("/proc/self/status")
wanted = start.arguments(source="tests.requests.isolation.test_start:telling")
assert start._alone()
start._early.append(start.Started(wanted, {}, fork=True))
forked = start._early[0].process
assert type(forked) is start.Forked and forked.poll() is None
with Planner(source="tests.requests.isolation.test_start:telling") as planner:
    planner.description
    running = planner._zygote
    assert running._process is forked
    if sys.argv[1] == "killed":
        forked.kill()
        assert forked.wait(10) == forked.poll() == -signal.SIGKILL
        planner.description
        assert planner._zygote is not running and type(planner._zygote._process) is not start.Forked
# One whose socket is closed ends by itself, where the signal does not come first.
assert forked.wait(10) in ({-signal.SIGKILL} if sys.argv[1] == "killed" else {0, -signal.SIGTERM})
forked.kill()
"""


def telling() -> Registry:
    """What a zygote says of itself, as it loads its plugins."""
    print("a plugin prints")
    told = {
        "pid": os.getpid(), "group": os.getpgid(0),
        "files": [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()],
        "read": os.read(0, 1).decode(), "environment": {name: os.environ.get(name) for name in start.ENVIRONMENT},
        "threads": threading.active_count(),
    }  # fmt: skip
    with Path(os.environ["TOLD"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(told) + "\n")
    return Registry()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_forked_zygote_is_as_one_that_was_started(tmp_path: Path, how: str) -> None:
    """Its group, files, environment and end; what the command does at its end it does once. One that is killed is
    replaced by one that is not forked, which says the same of itself."""
    told = tmp_path / "told"
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, how],
        cwd=ROOT, env={**os.environ, "TOLD": str(told)}, capture_output=True, text=True, stdin=subprocess.PIPE,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "the command ends\n", "")
    lines = [json.loads(each) for each in told.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == (2 if how == "killed" else 1)
    for each in lines:
        _as_promised(each)


def _as_promised(told: dict[str, Any]) -> None:
    assert told["group"] == told["pid"]
    assert told["environment"] == start.ENVIRONMENT
    assert (told["read"], told["threads"]) == ("", 1)
    kinds = sorted(each.partition(":")[0] for each in told["files"])
    assert kinds == ["/dev/null", "pipe", "pipe", "pipe", "socket"], (
        "the third pipe is stdout, held for the description"
    )


def test_a_process_with_another_thread_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = ["1"]
    monkeypatch.setattr(os, "listdir", lambda path: tasks)
    for name in start.BEFORE_A_FORK:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert start._alone()
    with monkeypatch.context() as changed:
        changed.setitem(sys.modules, "numpy", sys)
        assert not start._alone()
    with monkeypatch.context() as changed:
        changed.setattr(sys, "__stdin__", None)
        assert not start._alone()
    tasks.append("2")
    assert not start._alone()
