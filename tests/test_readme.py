"""The README's own-kernels section, copied literally, and what else it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def block(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(found) == 1
    return found[0]


@pytest.mark.slow
@pytest.mark.usefixtures("gxx_here")
def test_the_own_kernels_section_works_as_it_stands(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e", "-c", block("sh")],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rowmax,scale" in done.stdout
    assert "verdict" in done.stdout


def test_every_page_that_the_readme_names_is_there() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target


def test_the_transcript_is_one() -> None:
    text = block("text")
    assert "$ fusiond best configs/jobs/softmax-h100.yaml" in text
    assert "verdict" in text
