"""Where the disassembler is found, and what comes of files that it does not read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fusiond.build import nvdisasm
from fusiond.build.cache import BuildCache

find = nvdisasm._find.__wrapped__  # without its memory


def program(folder: Path, text: str = "#!/bin/sh\necho V1.0\n") -> Path:
    folder.mkdir(parents=True)
    (folder / "nvdisasm").write_text(text)
    (folder / "nvdisasm").chmod(0o755)
    return folder / "nvdisasm"


def test_the_places_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path, in_home = program(tmp_path / "a"), program(tmp_path / "b" / "bin")
    beside, of_wheels = program(tmp_path / "c"), program(tmp_path / "d" / "nvidia" / "cu13" / "bin")
    monkeypatch.setattr("sys.path", [str(tmp_path / "d")])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    home = str(in_home.parents[1])
    assert find(str(on_path.parent), home, "", str(beside.parent)) == on_path
    assert find("/nowhere", home, "", str(beside.parent)) == in_home
    assert find("/nowhere", "", home, str(beside.parent)) == in_home
    if not Path("/usr/local/cuda/bin/nvdisasm").exists():
        assert find("/nowhere", "", "", str(beside.parent)) == beside
        assert find("/nowhere", "", "", "") == of_wheels
        monkeypatch.setattr("sys.path", [])
        monkeypatch.delitem(sys.modules, "nvidia", raising=False)
        assert find("/nowhere", "", "", "") is None


def test_a_listing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is in the file, and the program's version."""
    runs = tmp_path / "runs"
    text = f'#!/bin/sh\ncase $1 in --version) echo V1.0;; *) echo run >> {runs}; cat "$3";; esac\n'
    tool = program(tmp_path / "bin", text)
    monkeypatch.setattr(nvdisasm, "find", lambda: tool)
    cache, cubin = BuildCache(tmp_path / "cache"), tmp_path / "a.cubin"
    cubin.write_text("first\n")
    assert [nvdisasm.listing(cubin, cache=cache) for _ in range(2)] == ["first\n"] * 2
    assert runs.read_text() == "run\n"
    cubin.write_text("second\n")
    assert nvdisasm.listing(cubin, cache=cache) == "second\n"
