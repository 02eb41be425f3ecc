"""What is published: a source distribution with all that the tests need, and a wheel for every Python that is here.

They are made from what git has, with build's own isolation, so the package index has to be reachable.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a clone: git does not say which files there are")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [each for each in listed.split("\0") if each]


@pytest.fixture(scope="module")
def built(tracked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that is made of it."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for each in tracked:
        if (ROOT / each).is_file():
            (source / each).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / each, source / each)
    ran = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(out), str(source)], capture_output=True, text=True, check=False
    )
    if ran.returncode and "No matching distribution" in ran.stdout + ran.stderr:
        pytest.skip("the package index cannot be reached")
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return out


def test_the_source_distribution_has_every_file(built: Path, tracked: list[str]) -> None:
    """So its tests are those of a clone."""
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        there = {each.name.partition("/")[2] for each in archive.getmembers()}
    assert sorted(set(tracked) - there) == []


def test_the_wheel_has_the_packages_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        tops = {each.split("/")[0] for each in archive.namelist()}
    packages = {each for each in tops if not each.startswith("fusiond-")}
    assert packages == {
        "fusiond", "fusiond_hfuse", "fusiond_mincut", "fusiond_replay", "fusiond_stitching", "fusiond_transfer",
        "fusiond_variants",
    }  # fmt: skip


@pytest.mark.parametrize("version", PYTHONS)
def test_the_wheel_works(built: Path, tmp_path: Path, version: str) -> None:
    python = _interpreter(version)
    if python is None:
        pytest.skip(f"Python {version} is not installed here")
    wheel = next(built.glob("*.whl"))
    subprocess.run([python, "-m", "venv", str(tmp_path / "env")], check=True)
    pip = [str(tmp_path / "env/bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), str(wheel)], check=True)
    home = {name: value for name, value in os.environ.items() if not name.startswith(("FUSIOND", "PYTHON"))}
    home |= {"HOME": str(tmp_path), "PATH": f"{tmp_path / 'env/bin'}:{os.environ['PATH']}"}

    def fusiond(*words: str) -> str:
        ran = subprocess.run(["fusiond", *words], capture_output=True, text=True, cwd=tmp_path, env=home, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    states = json.loads(fusiond("plugins", "--json"))
    assert [each["name"] for each in states if each["problem"]] == []
    fusiond("examples", "examples")
    assert json.loads(fusiond("plan", "examples/hist-maxpool.yaml", "--json"))


def _interpreter(version: str) -> str | None:
    """The path of a Python of that version that runs."""
    places = [shutil.which(f"python{version}"), *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    for each in filter(None, places):
        ran = subprocess.run([each, "-c", "import sys; print(*sys.version_info[:2], sep='.')"],
                             capture_output=True, text=True, check=False)  # fmt: skip
        if ran.stdout.strip() == version:
            return each
    return None
