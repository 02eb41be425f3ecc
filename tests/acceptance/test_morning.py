"""The operator's morning of docs/operating.md, line by line as it stands there: two boxes and one upstream.

What differs from the page: the port is a free one, `fusiond` is `python -m fusiond`, and job.yaml is the toy's.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import PATIENCE_SECS, Machine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.campaign,  # three daemons and some thirty commands, each of which starts Python
    pytest.mark.timeout(300),
    pytest.mark.skipif(not all(map(shutil.which, ("openssl", "curl", "hostname"))), reason="needs openssl and curl"),
]
PAGE = Path(__file__).parents[2] / "docs" / "operating.md"


def blocks() -> list[list[str]]:
    """The section's blocks of commands, continued lines joined."""
    section = PAGE.read_text().partition("\n## A morning\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    lines = [each.replace("\\\n", " ").strip().splitlines() for each in found]
    # What a line gives a name to, the next one needs.
    return [re.sub(r"(?m)^(\w+=\S+)\n", r"\1; ", "\n".join(each)).splitlines() for each in lines]


class Box:
    """A machine of its own as far as paths go: a home, a folder to work in."""

    def __init__(self, machine: Machine, home: Path, port: int) -> None:
        self.home, self._port, self._machine = home, port, machine
        self.home.mkdir()
        tools = self.home / "bin"
        tools.mkdir()
        (tools / "fusiond").write_text(f'#!/bin/sh\nexec {sys.executable} -m fusiond "$@"\n')
        (tools / "fusiond").chmod(0o755)
        own = {"HOME": str(self.home), "FUSIOND_CACHE": str(self.home / "cache")}
        self.env = {**machine.env, **own, "PATH": f"{tools}:{machine.env['PATH']}"}
        del self.env["FUSIOND_DB"]

    def run(self, line: str) -> str:
        """One line of the page; what it prints. One that ends with `&` goes on beside the others."""
        line = line.replace("8443", str(self._port))
        if line.rstrip().endswith("&"):
            with open(self.home / "serve.log", "w") as log:
                words = ["bash", "-c", f"exec {line.rstrip()[:-1]}"]
                process = subprocess.Popen(words, cwd=self.home, env=self.env, stdout=log, stderr=log, text=True)
            self._machine.started.append(process)
            self.wait_for("fusiond status --json", lambda text: json.loads(text)["daemon"]["state"] == "serving")
            return ""
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], cwd=self.home, env=self.env, capture_output=True, text=True,
            timeout=PATIENCE_SECS,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stdout, done.stderr, self.log())
        assert "Traceback" not in done.stderr
        return done.stdout

    def wait_for(self, line: str, done: Any) -> str:
        limit = time.monotonic() + PATIENCE_SECS
        while not done(text := self.run(line)):
            assert time.monotonic() < limit, (line, text, self.log())
            time.sleep(0.1)
        return text

    def log(self) -> str:
        path = self.home / "serve.log"
        return path.read_text()[-2000:] if path.exists() else ""


@pytest.fixture
def port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def homes() -> Iterator[Path]:
    """A short path: where a socket's has more than 107 bytes, it lies elsewhere than the page says."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_a_morning(homes: Path, machine: Machine, port: int) -> None:
    upstream, once, morning, elsewhere, upkeep = blocks()
    up, box7, box8 = (Box(machine, homes / name, port) for name in ("up", "box7", "box8"))
    for line in upstream:
        up.run(line)
    for box, name in ((box7, "box7"), (box8, "box8")):
        shutil.copy(machine.job(side=4, trials=16), box.home / "job.yaml")
        for file in (f"{name}.token", "upstream.pem"):
            shutil.copy(up.home / file, box.home)
        for line in once:
            box.run(line.replace("box7", name))
    said = {line.partition("#")[0].strip(): box7.run(line) for line in morning}
    assert "serving" in said["fusiond status"]
    assert said["fusiond jobs --state failed"] == "no jobs\n"
    assert "done" in said["fusiond submit job.yaml --wait"]
    assert "fuse" in said["fusiond best job.yaml"]
    key = re.search(r"signs with ([0-9a-f]{64})", said["fusiond keys"])
    assert key is not None
    up.wait_for("fusiond answers --imported --json", lambda text: len(json.loads(text)) == 1)  # it was pushed

    first, imported, trust, again, listed = (line.replace("KEY", key[1], 1) for line in elsewhere)
    assert "imported" in box8.run(first)
    assert box8.run("fusiond jobs") == "no jobs\n"  # nothing of it was run
    assert key[1][:12] in box8.run(imported)
    box8.run(trust)
    assert "box7" in box8.run(again)
    assert "job" in box8.run(listed)
    own = "fusiond best job.yaml --json"
    checked = json.loads(box8.wait_for(own, lambda text: not json.loads(text).get("imported")))
    assert (checked["verdict"], checked["evidence"]) == ("fuse", "measured")  # measured again here

    for box in (box7, box8):
        said = [box.run(line) for line in upkeep][-1]
        assert re.search(r"^fusiond_upstream_up\{.*\} 1\.0$", said, re.MULTILINE)
    box8.wait_for(upkeep[-1], lambda text: re.search(r"^fusiond_upstream_behind\{.*\} 0\.0$", text, re.MULTILINE))
    assert "fusiond_exchange_requests_total" in up.run(upkeep[-1].replace("grep upstream", "grep exchange"))
