"""Folders that nobody else may enter."""

from __future__ import annotations

import os
import resource
import stat
import threading
from pathlib import Path

import pytest

from fusiond.model.errors import RequestError
from fusiond.model.system import files


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_it_is_made_with_its_mode_whatever_the_umask_is(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        folder = files.private_folder(tmp_path / "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert files.private_folder(folder) == folder


def test_what_is_there_is_checked(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o750)
    (tmp_path / "file").write_text("")
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "private")
    for name, problem in (("open", "others may enter"), ("file", "expected a folder"), ("link", "expected a folder")):
        with pytest.raises(RequestError, match=problem):
            files.private_folder(tmp_path / name)
    with pytest.raises(RequestError, match="cannot be made"):
        files.private_folder(tmp_path / "file" / "x")


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user takes root")
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 65534, 65534)
    with pytest.raises(RequestError, match="belongs to another user"):
        files.private_folder(tmp_path / "theirs")


def test_the_runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert files.runtime_folder() == tmp_path / "fusiond"
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    for elsewhere in ("", str(tmp_path / "gone")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", elsewhere)
        assert files.runtime_folder() == tmp_path / "tmp" / f"fusiond-{os.geteuid()}"
        assert stat.S_IMODE(files.runtime_folder().stat().st_mode) == 0o700


def test_a_folder_is_removed_when_the_descriptors_are_there_again(tmp_path: Path) -> None:
    (tmp_path / "work" / "deep").mkdir(parents=True)
    (tmp_path / "work" / "deep" / "file").write_text("")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soon = threading.Timer(0.1, resource.setrlimit, (resource.RLIMIT_NOFILE, limits))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        soon.start()
        files.discard(tmp_path / "work")
    finally:
        soon.join()
    assert not (tmp_path / "work").exists()


def test_a_folder_that_is_not_there_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(files.time, "sleep", waits.append)
    files.discard(tmp_path / "none")
    assert sum(waits) == 0
