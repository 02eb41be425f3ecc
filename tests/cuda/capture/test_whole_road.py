"""A program that runs, without a GPU, to a job that a plan is made of."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from fusiond.cli import main
from fusiond.requests import jobs, planning
from fusiond.requests.isolation import registry as plugins
from tests.cuda.capture.test_without_gpu import SOURCES, compiled


@pytest.mark.needs_nvcc
def test_from_a_program_to_a_plan(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program, folder = str(compiled(SOURCES / "memory.cu", tmp_path / "memory")), str(tmp_path / "capture")
    assert main(["capture", "--without-gpu", "--data", "--out", folder, "--", program]) == 0
    assert main(["capture", folder, "--pick", "1,3", "--to", str(tmp_path / "out")]) == 0
    scale = yaml.safe_load((tmp_path / "out" / "scale_1.yaml").read_text())
    factors, hits = scale["constants"]
    np.testing.assert_array_equal(np.load(tmp_path / "out" / factors["fill"]["file"]), np.array([1, 2, 3, 5], "f4"))
    assert (hits["symbol"], hits["role"]) == ("hits", "inout")
    x = np.load(tmp_path / "out" / scale["arguments"][1]["fill"]["file"])
    np.testing.assert_array_equal(x, np.arange(10000) % 17)
    (job,) = jobs.read(tmp_path / "out" / "job_1_3.yaml")
    found = planning.plan(plugins.load(), job)
    assert not found.refused
    assert not found.rejections
