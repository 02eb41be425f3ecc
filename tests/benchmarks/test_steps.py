"""Steps a second of whole functions: what a process had said is kept when it is cut, and a tuning stops in time."""

from __future__ import annotations

import json
import math
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import steps
from benchmarks.steps import LARGE


def test_what_a_process_had_said_before_it_was_cut_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.dumps({"state": "unknown", "ratio": 1.0}) + '\n{"state": "tu'

    def cut(command: Any, timeout: float, **options: Any) -> Any:
        raise subprocess.TimeoutExpired(command, timeout, output=said.encode())

    monkeypatch.setattr(subprocess, "run", cut)
    found = steps.asked("llama_layer", Path("store"), "cuda:0", 30.0)
    assert found["unknown"] == {"ratio": 1.0}
    assert found["tune"] == found["known"] == {"problem": "did not end within its 30 s"}
    ended = SimpleNamespace(stdout="", stderr="Traceback\nImportError: no jax\n", returncode=1)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    assert steps.asked("llama_layer", Path("store"), "cuda:0", 30.0)["known"] == {
        "problem": "ended with status 1: ImportError: no jax"
    }


def test_a_tuning_is_stopped_in_time_and_one_that_ends_before_is_not() -> None:
    begun = time.monotonic()
    with steps.stopped_at(begun + 0.2):
        time.sleep(60)
    assert time.monotonic() - begun < 30
    done = []
    with steps.stopped_at(time.monotonic() + 600):
        done.append(True)
    assert done


@pytest.mark.parametrize("name", LARGE)
def test_results_are_compared(name: str) -> None:
    jax = pytest.importorskip("jax")
    function, given, static = steps.functions(name, tiny=True)
    results = jax.jit(function, **static)(*given)
    assert steps.difference(jax, results, results) == 0.0
    worse = jax.tree.map(lambda each: each * 1.5, results)
    assert steps.difference(jax, worse, results) == pytest.approx(0.5, rel=1e-3)
    assert steps.difference(jax, jax.tree.map(lambda each: each * math.nan, results), results) == math.inf
