"""One fusiond at a time on a device, across processes."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fusiond.devices import lock
from fusiond.devices.lock import device_lock, lock_path
from fusiond.errors import DeviceError, Interrupted
from fusiond.model import DeviceInfo
from fusiond.testing.fakes import FakeProvider


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> DeviceInfo:
    monkeypatch.setattr(lock, "POLL_SECS", 0.01)
    return FakeProvider().devices()[0]


HOLDER = """
import sys, time
from fusiond.devices.lock import device_lock
from fusiond.testing.fakes import FakeProvider
with device_lock(FakeProvider().devices()[0], stop=lambda: False, waiting=lambda: None):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_board_has_one_lock_whatever_it_is_called(device: DeviceInfo) -> None:
    assert lock_path(device) == lock_path(dataclasses.replace(device, name="cuda:3"))
    assert lock_path(device) != lock_path(dataclasses.replace(device, uuid="other"))
    assert lock_path(dataclasses.replace(device, uuid="", name="cuda:1")).name == "fusiond-cuda-1.lock"
    assert lock_path(device).parent == Path(os.environ["FUSIOND_LOCKS"])


def test_a_free_device_is_had_at_once_and_again(device: DeviceInfo) -> None:
    for _ in range(2):
        with device_lock(device, stop=lambda: True, waiting=lambda: pytest.fail("nobody has it")):
            pass


def test_others_wait_and_are_told_once(device: DeviceInfo) -> None:
    told: list[float] = []
    order: list[str] = []

    def second() -> None:
        with device_lock(device, stop=lambda: False, waiting=lambda: told.append(time.monotonic())):
            order.append("second")

    with device_lock(device, stop=lambda: False, waiting=lambda: None):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert len(told) == 1


def test_who_waits_can_be_stopped(device: DeviceInfo) -> None:
    calls = iter([False, False, True])
    with (
        device_lock(device, stop=lambda: False, waiting=lambda: None),
        pytest.raises(Interrupted, match="waiting for fake"),
        device_lock(device, stop=lambda: next(calls), waiting=lambda: None),
    ):
        pytest.fail("it is taken")


def test_a_holder_that_is_killed_leaves_nothing_locked(device: DeviceInfo) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        waited: list[bool] = []
        released = threading.Timer(0.3, holder.send_signal, [signal.SIGKILL])
        released.start()
        with device_lock(device, stop=lambda: False, waiting=lambda: waited.append(True)):
            assert waited == [True]
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_a_link_in_place_of_the_lock_is_refused(device: DeviceInfo, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lock_path(device).symlink_to(victim)
    with (
        pytest.raises(DeviceError, match="cannot open the lock"),
        device_lock(device, stop=lambda: False, waiting=lambda: None),
    ):
        pass
    assert victim.read_text() == "precious"


def test_a_folder_that_is_not_there_is_made(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FUSIOND_LOCKS", str(tmp_path / "none"))
    with device_lock(device, stop=lambda: False, waiting=lambda: None):
        assert (tmp_path / "none").is_dir()


def test_a_folder_that_cannot_be_made(device: DeviceInfo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FUSIOND_LOCKS", str(tmp_path / "file"))
    with (
        pytest.raises(DeviceError, match="cannot open the lock"),
        device_lock(device, stop=lambda: False, waiting=lambda: None),
    ):
        pass


def test_other_users_may_lock_it_too(device: DeviceInfo) -> None:
    with device_lock(device, stop=lambda: False, waiting=lambda: None):
        assert lock_path(device).stat().st_mode & 0o666 == 0o666
