"""The Unix socket: private from its first moment, stale ones removed, live ones respected."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fusiond.model.errors import DaemonError, RequestError
from fusiond.service.daemon import socket as sockets


def test_only_its_user_can_open_it_whatever_the_umask_is(tmp_path: Path) -> None:
    path = tmp_path / "run" / "socket"
    before = os.umask(0)
    try:
        listener = sockets.listen(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert sockets.answers(path)
    listener.close()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run" / "socket"
    sockets.listen(path).close()
    assert path.exists()
    assert not sockets.answers(path)
    sockets.listen(path).close()


def test_a_live_socket_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "run" / "socket"
    first = sockets.listen(path)
    with pytest.raises(DaemonError, match="another daemon answers"):
        sockets.listen(path)
    assert sockets.answers(path)
    first.close()


def test_a_file_in_its_place_is_not_touched(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    (folder / "socket").write_text("precious")
    with pytest.raises(RequestError, match="not a socket"):
        sockets.listen(folder / "socket")
    assert (folder / "socket").read_text() == "precious"


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(RequestError, match="others may enter"):
        sockets.listen(folder / "socket")


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "run").symlink_to(tmp_path / "real")
    with pytest.raises(RequestError, match="expected a folder of your own"):
        sockets.listen(tmp_path / "run" / "socket")
