"""The unit that captures programs on a GPU, over the driver that is not there."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from fusiond.build import gxx
from fusiond.cuda.capture import driver_watcher
from tools.gpu_box import captures

PROGRAM = Path(__file__).parent.parent / "cuda" / "capture" / "programs" / "calls_driver.cpp"


def test_a_program_beside_itself(fake_libcuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "SCRIPTS", {"plain": ("json", "print(1)\n"), "absent": ("no_such_module", "")})
    command = [gxx.find() or "", "-std=c++20", "-DLINKED", str(PROGRAM), f"-L{fake_libcuda.parent}", "-lcuda", "-ldl"]
    subprocess.run([*command, "-o", str(tmp_path / captures.PROGRAM)], check=True)
    shutil.copyfile(driver_watcher.library(), tmp_path / captures.LIBRARY)
    monkeypatch.setattr(gxx, "find", lambda: None)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_libcuda.parent))
    out = tmp_path / "capture.json"
    assert captures.main([str(tmp_path), "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    first = found[captures.PROGRAM]
    assert (first["same"], first["launches"], first["kernels"], first["with_parameters"]) == (True, 10, 2, 2)
    assert first["report"]["status"] == 0
    assert (found.keys(), found["plain"]["same"]) == ({captures.PROGRAM, "plain"}, False)
    assert "holds no capture" in found["plain"]["problem"]


@pytest.mark.needs_nvcc
def test_what_is_carried(tmp_path: Path) -> None:
    captures.write(tmp_path / "capture", "sm_90")
    assert {each.name for each in (tmp_path / "capture").iterdir()} == {captures.PROGRAM, captures.LIBRARY}
