"""Two programs at once, and a daemon that measures what they ask."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs Triton")

from fusiond.store.database import Store

PROGRAM = """
import sys, pytest, time
from pathlib import Path
from tests.triton import stand_in, test_autotune as t
folder, cache, db = map(Path, sys.argv[1:])
gpu = stand_in.installed(pytest.MonkeyPatch(), folder, cache)
kernel = t.tuned(t.configs(4, 1024), db, block=False)
assert t.launched(kernel, gpu) == "4"
end = time.monotonic() + 90
while t.launched(kernel, gpu) != "1024":
    assert time.monotonic() < end, t.explained()
    time.sleep(0.1)
"""


@pytest.mark.slow
def test_two_programs_and_a_daemon(tmp_path: Path, triton_cache: Path) -> None:
    root, db = Path(__file__).parent.parent.parent, tmp_path / "store.sqlite"
    environment = {**os.environ, "FUSIOND_DB": str(db)}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    daemon = subprocess.Popen([sys.executable, "-m", "fusiond", "serve"], env=environment, **quiet)
    programs = []
    try:
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            given = [str(tmp_path / name), str(triton_cache), str(db)]
            programs.append(subprocess.Popen([sys.executable, "-c", PROGRAM, *given], cwd=root, env=environment))
        assert [each.wait(120) for each in programs] == [0, 0]
    finally:
        for each in (*programs, daemon):
            each.terminate()
            each.wait(30)
    with Store.open(db) as store:
        jobs = store.jobs()
    assert sorted(each.workload_name.count(",") for each in jobs) == [0, 0, 1]
    assert {each.priority for each in jobs} == {-100}
