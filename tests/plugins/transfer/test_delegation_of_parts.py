"""Kernels over parts of vectors that other strategies make one launch of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.model.nouns import Analysis
from fusiond_transfer import delegation

from .test_delegation import ROOTS, all_of_them, analysed, answered, emitted, launches  # noqa: F401

GRAPH = """
graph: roots
sizes: {n: 640}
elements: 2 * n
dtype: float32
inputs: [x]
outputs: [roots, total]
vectors: {squares: {elements: n}, above: {elements: n}, total: {elements: 1}}
kernels:
  - {name: square, on: device, reads: ["x[:n]"], writes: [squares], body: x * x}
  - {name: add, on: device, reads: [squares], writes: [above], body: squares + 1}
  - {name: root, on: device, reads: [above], writes: ["roots[:n]"], body: sqrt(above)}
  - {name: twice, on: device, reads: ["x[n:]"], writes: ["roots[n:]"], body: 2 * x}
  - {name: sum, on: host, reads: [roots], writes: [total], body: sum(roots)}
regions:
  - {module: ./roots.hlo, reads: {in_0: "x[:n]"}, writes: {out_0: "roots[:n]"}}
"""
JOB = "strategy: transfer\ngraph: ./graph.yaml\ntogether: true\n"


@pytest.fixture
def analysis(analysed: Callable[..., Analysis], tmp_path: Path) -> Analysis:  # noqa: F811
    (tmp_path / "graph.yaml").write_text(GRAPH)
    (tmp_path / "roots.hlo").write_text(ROOTS)
    return analysed(tmp_path / "job.yaml", JOB)


def _same_as_numpy(device: Any, program: Any) -> None:
    x = np.random.default_rng(0).normal(size=1280).astype(np.float32)
    roots = np.concatenate([np.sqrt(x[:640].astype(np.float64) ** 2 + 1), 2.0 * x[640:]])
    for seed in range(3):
        found = device.run(program, seed=seed, inputs={"x": x})
        np.testing.assert_allclose(found["roots"], roots, rtol=1e-6)
        np.testing.assert_allclose(found["total"], roots.sum(), rtol=1e-4)


def test_a_region_over_a_part(analysis: Analysis, device: Any, gxx_here: None) -> None:
    program = emitted(analysis, delegation.EVERYTHING)
    assert launches(program) == ["square+add+root", "twice"]
    assert program.fixed == ("n",)
    _same_as_numpy(device, program)


def test_a_pair_over_parts_of_one_vector(analysis: Analysis, device: Any, gxx_here: None) -> None:
    """Both halves of the result in one launch, and squares and above apart."""
    answers = answered(analysis, {"root + twice": 5.0})
    assert answers
    program = emitted(analysis, "hfuse", answers)
    assert "root+twice" in launches(program)
    _same_as_numpy(device, program)
    assert emitted(analysis, delegation.APART).fixed == ()


def test_a_part_that_begins_at_an_odd_byte_stays_apart(
    analysed: Callable[..., Analysis],  # noqa: F811
    tmp_path: Path,
) -> None:
    text = GRAPH.replace("x[:n]", "x[1:n + 1]").replace("x[n:]", "x[n - 1:2 * n - 1]")
    (tmp_path / "graph.yaml").write_text(text)
    (tmp_path / "roots.hlo").write_text(ROOTS)
    known = analysed(tmp_path / "job.yaml", JOB).payload.other_strategies
    assert dict(known.refused)["roots"] == "x[1:641] begins at byte 4; its strategy counts on 256s"
