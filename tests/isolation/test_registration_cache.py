"""What plugins registered is recalled as long as nothing of them has changed, and not longer."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from fusiond.build import cache
from fusiond.requests.isolation import registration_cache
from fusiond.requests.isolation.messages import Description
from fusiond.requests.registry import PluginState

POINTS = (EntryPoint("odd", "odd_plugin.hooks", "fusiond"),)


def described(*states: PluginState) -> Description:
    return Description(strategies=(), states=states, catalogue={}, listens=False)


FINE = described(PluginState(name="odd", distribution="odd", workloads=("one",)))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plugin that could be imported, and a cache of its own."""
    folder = tmp_path / "site" / "odd_plugin"
    (folder / "kernels").mkdir(parents=True)
    for name in ("__init__.py", "hooks.py", "kernels/one.yaml"):
        (folder / name).write_text("# first\n")
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    monkeypatch.setenv("FUSIOND_CACHE", str(tmp_path / "cache"))
    importlib.invalidate_caches()
    return folder


def test_it_is_recalled(package: Path) -> None:
    assert registration_cache.recall(POINTS) is None
    registration_cache.remember(POINTS, FINE)
    assert registration_cache.recall(POINTS) == FINE
    assert registration_cache.recall(()) is None


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file is written": lambda folder: (folder / "hooks.py").write_text("# second\n"),
    "a file is only newer": lambda folder: os.utime(folder / "hooks.py", ns=(1, 1)),
    "a file comes": lambda folder: (folder / "kernels" / "two.yaml").write_text(""),
    "a file goes": lambda folder: (folder / "kernels" / "one.yaml").unlink(),
    "the plugin goes": lambda folder: folder.rename(folder.parent / "elsewhere"),
    "another distribution comes": lambda folder: (folder.parent / "libfoo-1.0.dist-info").mkdir(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_not_recalled(package: Path, change: str) -> None:
    registration_cache.remember(POINTS, FINE)
    CHANGES[change](package)
    importlib.invalidate_caches()
    assert registration_cache.recall(POINTS) is None


def test_a_plugin_that_did_not_load_is_asked_again(package: Path) -> None:
    registration_cache.remember(POINTS, described(PluginState(name="odd", distribution="odd", problem="no libclang")))
    assert registration_cache.recall(POINTS) is None


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x80\x04N."])
def test_what_is_damaged_is_not_recalled(package: Path, content: bytes) -> None:
    registration_cache.remember(POINTS, FINE)
    folder = cache.of_folder(cache.default_folder())
    folder.put(registration_cache._key(POINTS, None), registration_cache.SUFFIX, content)
    assert registration_cache.recall(POINTS) is None


QUIET = """
import subprocess, sys
from fusiond.cli import main

def refused(*args, **more):
    raise AssertionError("a child was started")

subprocess.Popen = refused
status = main(["plugins", "--json"])
assert not {"numpy", "pynvml", "clang", "optuna"} & set(sys.modules), sorted(sys.modules)
sys.exit(status)
"""


@pytest.mark.slow
def test_the_second_command_starts_no_child(tmp_path: Path) -> None:
    """And says what the first one said. It needs neither NumPy nor a device's library."""
    environment = {**os.environ, "FUSIOND_CACHE": str(tmp_path / "cache")}

    def said(*command: str) -> Any:
        ran = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    assert said("-m", "fusiond", "plugins", "--json") == said("-c", QUIET)
