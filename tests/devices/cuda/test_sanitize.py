"""compute-sanitizer as the last check, with an executable that says what it is told to say."""

import json
import sys
from pathlib import Path

import pytest

from fusiond.devices.cuda import sanitize

FAKE = """\
#!{python}
import sys
tool = sys.argv[sys.argv.index("--tool") + 1]
code = int(sys.argv[sys.argv.index("--error-exitcode") + 1])
bundle = sys.argv[sys.argv.index("fusiond.devices.cuda.run") + 1]
with open({log!r}, "a") as log:
    log.write(f"{{tool}} {{bundle.rpartition('/')[2]}}\\n")
print("========= COMPUTE-SANITIZER")
said = {said!r}.get(tool, "")
print(said)
sys.exit(3 if said == "broken" else code if said.startswith("=====") else 0)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Installs a sanitizer; `said`: tool -> what it prints. Gives the file in which its runs are logged."""

    def install(**said: str) -> Path:
        log, path = tmp_path / "log", tmp_path / "compute-sanitizer"
        path.write_text(FAKE.format(python=sys.executable, log=str(log), said=said))
        path.chmod(0o755)
        monkeypatch.setenv(sanitize.ENVIRONMENT, str(path))
        return log

    return install


def test_each_tool_runs_the_bundle_once(fake, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    log = fake()
    assert sanitize.sanitize(tmp_path / "bundle", "cuda:0") == ()
    assert log.read_text().splitlines() == ["memcheck bundle", "racecheck bundle", "synccheck bundle"]


def test_what_is_found_is_a_line_each(fake, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    wrong = "========= Invalid __global__ write of size 4 bytes\n=========     at add(float*)"
    race = "========= Error: Race reported between Write access at a and Read access at b [4 hazards]"
    fake(memcheck=f"{wrong}\n{wrong}", racecheck=race)
    assert sanitize.sanitize(tmp_path, "cuda:0") == (
        "memcheck: Invalid __global__ write of size 4 bytes",
        "racecheck: Race reported between Write access at a and Read access at b [4 hazards]",
    )


def test_a_run_that_fails_by_itself_is_told(fake, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    fake(synccheck="broken")
    assert sanitize.sanitize(tmp_path, "cuda:0") == ("synccheck: the run failed with status 3: broken",)


def test_where_there_is_none_the_reason_is_said(fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]  # fmt: skip
    fake(memcheck="========= Device not supported")
    with pytest.raises(LookupError, match="cannot look at this device"):
        sanitize.sanitize(tmp_path, "cuda:0")
    monkeypatch.setenv(sanitize.ENVIRONMENT, str(tmp_path / "nothing"))
    with pytest.raises(LookupError, match="compute-sanitizer is not on PATH"):
        sanitize.sanitize(tmp_path, "cuda:0")
    assert sanitize.main([str(tmp_path)]) == 2
    assert "compute-sanitizer is not on PATH" in capsys.readouterr().err


def test_a_folder_of_bundles(fake, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The first candidate of each entry; questions may hang, so they are left out."""
    log = fake(memcheck="========= Invalid __shared__ read of size 8 bytes")
    entries = [
        {"name": "one", "candidates": [{"path": "one/a"}, {"path": "one/b"}]},
        {"name": "none", "candidates": []},
        {"name": "asked", "candidates": [{"path": "asked/a"}], "expect": "any"},
    ]
    (tmp_path / "index.json").write_text(json.dumps({"entries": entries}))
    assert sanitize.main([str(tmp_path), "--out", str(tmp_path / "out.json")]) == 1
    assert set(log.read_text().splitlines()) == {"memcheck a", "racecheck a", "synccheck a"}
    found = json.loads((tmp_path / "out.json").read_text())["results"]
    assert found == {"one": ["memcheck: Invalid __shared__ read of size 8 bytes"]}


def test_several_at_once_are_kept_in_the_order_of_the_folder(fake, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    fake()
    names = [f"entry{number}" for number in range(6)]
    entries = [{"name": name, "candidates": [{"path": f"{name}/a"}]} for name in names]
    (tmp_path / "index.json").write_text(json.dumps({"entries": entries}))
    assert sanitize.main([str(tmp_path), "--jobs", "3", "--out", str(tmp_path / "out.json")]) == 0
    assert list(json.loads((tmp_path / "out.json").read_text())["results"]) == names
