"""`explain --bundle`: a trial of a real job on the cpu device, run from its bundle with NumPy alone."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from tests.conftest import run_job

JOB = """
strategy: hfuse
pair: [sha256, blake256]
sizes: {sha256.blocks: 3, sha256.rounds: 4, blake256.blocks: 3, blake256.rounds: 4}
device: cpu
search: {trials: 1}
"""

Run = Callable[..., Any]


@pytest.fixture
def ran(database: Path, gxx_here: None, short_measuring: None) -> str:
    """A store in which a small job has run; its id."""
    registry = Registry.load()
    with Store.open(database) as store:
        (job,) = jobs.read("/job.yaml", JOB)
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
