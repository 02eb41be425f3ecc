"""The examples of docs/frameworks.md run, with answers that were not measured."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax", reason="needs JAX: pip install 'fusiond[jax]'")

from fusiond.cuda.recording import groups

EXAMPLES = Path(__file__).parents[2] / "configs" / "jax"
NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook"


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("llama_layer", marks=pytest.mark.campaign), "optimizer_step"])
def test_an_example(
    name: str, answered: Callable[..., Any], capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answered()
    monkeypatch.setenv("HOME", str(tmp_path))
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](True)
    said = capsys.readouterr().out
    apart = float(said.splitlines()[0].split("at most ")[1].split()[0])
    assert apart < 1e-5
    assert "  fused" in said
    assert "refused" not in said


@pytest.mark.slow
def test_the_notebook_prints_what_it_shows(answered: Callable[..., Any]) -> None:
    """Each cell once more, with answers that were not measured; a cell that prints something else has to be kept anew
    (`python examples/notebook/run.py`)."""
    answered()
    groups.forget()
    notebook = json.loads((NOTEBOOK / "from_a_program.ipynb").read_text(encoding="utf-8"))
    run = runpy.run_path(str(NOTEBOOK / "run.py"))["run"]
    for cell, shown in zip(run(notebook)["cells"], notebook["cells"], strict=True):
        assert cell == shown
    groups.forget()
