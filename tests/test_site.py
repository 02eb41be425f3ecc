"""The documentation builds as a site without a warning, and its drawing is of the code as it is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="needs Sphinx: pip install 'fusiond[docs]'")
pytest.importorskip("grimp", reason="needs grimp: pip install 'fusiond[dev]'")

from tools import architecture

ROOT = Path(__file__).parents[1]


def test_the_drawing_is_of_the_imports_as_they_are() -> None:
    """Otherwise: python -m tools.architecture"""
    assert architecture.PICTURE.read_text(encoding="utf-8") == architecture.picture()


def test_a_new_import_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = architecture.layers()
    edges = architecture.imports(rows)
    lines = architecture.drawn(rows, edges, architecture.places(rows)).count("<path")
    edges.add_edge("fusiond.service", "fusiond.model")
    assert architecture.drawn(rows, edges, architecture.places(rows)).count("<path") == lines + 1
    assert not edges.has_edge("fusiond.model", "fusiond.service")


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "-q", "docs", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    commands = (tmp_path / "site" / "reference" / "commands.html").read_text(encoding="utf-8")
    front = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert [len(re.findall(rf'<div class="{each} docutils container">', front)) for each in ("use", "door")] == [4, 4]
    assert len(re.findall(r"<img [^>]*page-job", front)) == 1
    assert "fusiond submit" in commands
    assert "--priority" in commands
