"""The examples of docs/frameworks.md run, with answers that were not measured."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax", reason="needs JAX: pip install 'fusiond[jax]'")

EXAMPLES = Path(__file__).parents[2] / "configs" / "jax"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama_layer", "optimizer_step"])
def test_an_example(
    name: str,
    answered: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    answered()
    monkeypatch.setenv("HOME", str(tmp_path))
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](True)
    said = capsys.readouterr().out
    apart = float(said.splitlines()[0].split("at most ")[1].split()[0])
    assert apart < 1e-5
    assert "  fused" in said
    assert "refused" not in said
