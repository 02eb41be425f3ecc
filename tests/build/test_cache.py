"""The build cache: whole files or none, failures, eviction, several processes at once."""

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fusiond.build.cache import BuildCache
from fusiond.model.errors import StoreError

KEY = "ab" + "0" * 30


def test_what_was_put_is_got(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    assert cache.get(KEY, ".ptx") is None
    path = cache.put(KEY, ".ptx", "text")
    assert path == cache.get(KEY, ".ptx")
    assert path.read_text() == "text"
    assert path.suffix == ".ptx"
    assert cache.get(KEY, ".cubin") is None


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"no space left.*FUSIOND_CACHE"):
        BuildCache(tmp_path).put(KEY, ".ptx", "text")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_those_not_used_for_longest_go(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path, limit_bytes=1000)
    old = time.time() - 5000
    paths = []
    for index in range(8):
        path = cache.put(f"{index:02x}" + "0" * 30, ".ptx", "x" * 100)
        os.utime(path, (old + index, old + index))
        paths.append(path)
    assert cache.get("00" + "0" * 30, ".ptx") is not None  # used just now
    cache.put("ff" + "0" * 30, ".ptx", "x" * 400)
    cache.sweep()
    assert paths[0].exists()
    assert not paths[1].exists()
    assert paths[7].exists()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.ptx")) <= 1000


def test_what_was_used_just_now_is_never_evicted(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path, limit_bytes=10)
    path = cache.put(KEY, ".ptx", "x" * 100)
    assert cache.sweep() == 0
    assert path.exists()


def _put_many(folder: Path) -> None:
    cache = BuildCache(folder)
    for index in range(30):
        cache.put(f"{index:02x}" + "0" * 30, ".ptx", f"{index}" * 10_000)
        path = cache.get(f"{index:02x}" + "0" * 30, ".ptx")
        assert path is not None
        assert path.read_text() == f"{index}" * 10_000


def test_several_processes_build_the_same_keys(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_put_many, args=(tmp_path,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(_put_many, tmp_path) for _ in range(4)]:
            done.result()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(list(tmp_path.rglob("*.ptx"))) == 30
    assert [path for path in tmp_path.rglob(".*") if path.is_file()] == []


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no sum"])
def test_what_is_damaged_is_not_there(tmp_path: Path, damage: str) -> None:
    path = BuildCache(tmp_path).put(KEY, ".so", b"\x7fELF and so on")
    if damage == "truncated":
        path.write_bytes(b"\x7fELF and")
    elif damage == "flipped":
        path.write_bytes(b"\x7fELF and so in")
    else:
        path.with_name(path.name + ".sum").unlink()
    cache = BuildCache(tmp_path)
    assert cache.get(KEY, ".so") is None
    assert not path.exists()
    assert cache.put(KEY, ".so", b"new") == cache.get(KEY, ".so")


def test_a_file_that_is_cut_while_it_is_known_is_seen(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    path = cache.put(KEY, ".so", b"0123456789")
    assert cache.get(KEY, ".so") == path
    with path.open("r+b") as file:
        file.truncate(4)
    assert cache.get(KEY, ".so") is None


def test_a_file_and_its_sum_belong_together_whoever_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A precompiled header is another one each time: who looks between two renames must not take it for damaged."""
    BuildCache(tmp_path).put(KEY, ".gch", b"one process's")
    between, on = threading.Event(), threading.Event()
    replace = os.replace

    def slowly(source: str, target: Path) -> None:
        replace(source, target)
        if target.suffix == ".sum":
            between.set()
            on.wait(10)

    monkeypatch.setattr(os, "replace", slowly)
    with ThreadPoolExecutor(2) as pool:
        written = pool.submit(BuildCache(tmp_path).put, KEY, ".gch", b"another one's, longer")
        assert between.wait(10)
        read = pool.submit(BuildCache(tmp_path).get, KEY, ".gch")
        with pytest.raises(TimeoutError):
            read.result(0.1)
        on.set()
        assert written.result(10) == read.result(10)
    assert written.result().read_bytes() == b"another one's, longer"


def test_what_takes_long_is_built_by_one_at_a_time(tmp_path: Path) -> None:
    built = []

    def build(_: int) -> bytes:
        cache = BuildCache(tmp_path / "builds")  # each its own, as other processes have
        with cache.turn("ab" * 16, ".so") as found:
            if found is None:
                built.append(1)
                time.sleep(0.1)
                found = cache.put("ab" * 16, ".so", b"object")
        return found.read_bytes()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(build, range(4))) == [b"object"] * 4
    assert len(built) == 1


def test_a_build_that_fails_leaves_its_turn_to_others(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path / "builds")
    with pytest.raises(ValueError, match="broken"), cache.turn("ab" * 16, ".so"):
        raise ValueError("broken")
    with cache.turn("ab" * 16, ".so") as found:
        assert found is None
