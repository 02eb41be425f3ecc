"""PyCUDA is built once, kept, and never in the way of the other tests."""

import importlib.util
import sys
import sysconfig
from pathlib import Path

import pytest

from fusiond.build import nvcc
from tools import pycuda_wheel


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nvcc.Toolkit:
    """A toolkit of headers, an empty cache, and no PyCUDA."""
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda.h").touch()
    found = nvcc.Toolkit(nvcc=tmp_path / "nvcc", ptxas=tmp_path / "ptxas", version="13.0.88", root=tmp_path)
    monkeypatch.setattr(nvcc, "find", lambda: found)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return found


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The versions that were built."""
    made: list[str] = []

    def built(toolkit: nvcc.Toolkit, version: str, scratch: Path) -> Path:
        made.append(version)
        tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
        wheel = scratch / f"pycuda-{version}-{tag}-{tag}-{sysconfig.get_platform().replace('-', '_')}.whl"
        wheel.write_text("built")
        return wheel

    monkeypatch.setattr(pycuda_wheel, "built", built)
    return made


def test_it_is_built_once_for_a_version_and_a_toolkit(
    toolkit: nvcc.Toolkit, builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pycuda_wheel.kept()
    assert first == pycuda_wheel.kept()
    assert (first.read_text(), list(first.parent.iterdir())) == ("built", [first])
    monkeypatch.setattr(pycuda_wheel, "pinned", lambda: "2099.1")
    other = pycuda_wheel.kept()
    assert other != first
    monkeypatch.setattr(nvcc, "find", lambda: nvcc.Toolkit(nvcc=toolkit.nvcc, ptxas=toolkit.ptxas, version="12.8.1",
                                                           root=toolkit.root))  # fmt: skip
    assert pycuda_wheel.kept() not in (first, other)
    assert builds[1:] == ["2099.1", "2099.1"]


def test_where_it_cannot_be_built_a_line_says_why(
    toolkit: nvcc.Toolkit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def line() -> str:
        assert pycuda_wheel.main() == 0
        (only,) = capsys.readouterr().err.splitlines()
        return str(only)

    (toolkit.root / "include" / "cuda.h").unlink()
    assert "include has no cuda.h" in line()
    monkeypatch.setattr(nvcc, "find", lambda: None)
    monkeypatch.setattr(nvcc, "missing", lambda: "no nvcc: install it")
    assert line() == "PyCUDA cannot be installed here: no nvcc: install it; tests that need it are skipped"


@pytest.mark.slow
def test_the_reason_is_pips_own() -> None:
    with pytest.raises(pycuda_wheel.CannotBuild, match=r"^pip install: ERROR: .*no-such-package-of-fusiond"):
        pycuda_wheel.pip("install", "--no-index", "--no-deps", "no-such-package-of-fusiond")
