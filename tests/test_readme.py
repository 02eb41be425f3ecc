"""The tutorial, done step by step as it stands, and what the README promises."""

import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
TUTORIAL = README.parent / "docs" / "tutorial.md"
LASTING = ("serve", "status --watch", "submit", "doctor")
"""Commands of the tutorial that are tested elsewhere: they need a daemon, do not end, or say that a GPU is missing."""


def block(path: Path, language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)
    assert len(found) == 1
    return found[0]


def typed(script: str, folder: Path) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["sh", "-e", "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("gxx_here")
def test_the_tutorial_can_be_followed(tmp_path: Path) -> None:
    commands = re.findall(r"^    (fusiond (?!plan |run jobs).*?)(?: +#.*)?$", TUTORIAL.read_text(), re.MULTILINE)
    commands = [each for each in commands if not each.removeprefix("fusiond ").startswith(LASTING)]
    assert len(commands) >= 6
    counted = {"fusiond best jobs/softmax-h100.yaml", "fusiond best --workload harris"}
    script = "\n".join([block(TUTORIAL, "sh"), *(each for each in commands if each not in counted)])
    said = typed(script, tmp_path)
    assert "rowmax,scale" in said
    assert "verdict" in said
    assert (tmp_path / "fused" / "launch.py").is_file()
    assert (tmp_path / "jobs" / "softmax-h100.yaml").is_file()


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("gxx_here")
@pytest.mark.needs_nvcc
def test_the_tutorial_can_be_followed_to_its_end(tmp_path: Path) -> None:
    """The jobs of the other strategies and the GPU that is not here."""
    commands = re.findall(r"^    (fusiond (?:plan|run|best) (?:jobs|--workload).*?)(?: +#.*)?$", TUTORIAL.read_text(),
                          re.MULTILINE)  # fmt: skip
    assert len(commands) == 7
    typed("\n".join(["fusiond examples jobs", *commands]), tmp_path)


def test_every_page_that_the_readme_names_is_there() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target


def test_the_transcript_is_one() -> None:
    text = block(README, "text")
    assert "$ fusiond best configs/jobs/softmax-h100.yaml" in text
    assert "verdict" in text


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 120


def test_no_folder_of_tests_is_left_out(request: pytest.FixtureRequest) -> None:
    """pytest passes over folders of some names, `build` among them, and says nothing."""
    tests = Path(__file__).parent
    folders = {folder for path in tests.rglob("test_*.py") for folder in path.relative_to(tests).parts[:-1]}
    assert not [each for each in folders if any(fnmatch(each, left) for left in request.config.getini("norecursedirs"))]
