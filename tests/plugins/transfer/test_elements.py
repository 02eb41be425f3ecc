"""Every element type crosses and is computed with: on the cpu device, against NumPy and ml_dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fusiond.model.language.dtypes import DTYPES
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import emit
from fusiond_transfer.frontend.graph import Graph

MIXED = """\
graph: mixed
elements: 700
dtype: {dtype}
inputs: [a, b]
outputs: [c, d, e]
kernels:
  - {{name: k0, on: {one}, reads: [a, b], writes: [c]}}
  - {{name: k1, on: {other}, reads: [c, b], writes: [d]}}
  - {{name: k2, on: {one}, reads: [d, a], writes: [e]}}
"""


def _outputs(device: Any, graph: Graph, inputs: dict[str, Any] | None = None, seed: int = 0) -> dict[str, Any]:
    plan = script(Schedules(graph).grouping("interval_stabbing"))
    execution = emit.Execution(memory="pinned", issue="overlapped")
    found: dict[str, Any] = device.run(emit.program(plan, execution, name=graph.name), seed=seed, inputs=inputs)
    return found


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_sides_make_the_same_of_every_type(
    dtype: str, graph: Callable[..., Graph], device: Any, gxx_here: None
) -> None:
    """Only copies differ between the two: what is one's device is the other's host."""
    texts = [MIXED.format(dtype=dtype, one=one, other=other) for one, other in (("device", "host"), ("host", "device"))]
    first, second = (_outputs(device, graph(text), seed=seed) for seed, text in enumerate(texts))
    for name in ("c", "d", "e"):
        np.testing.assert_array_equal(first[name].view(np.uint8), second[name].view(np.uint8), err_msg=name)
        least = 2 if dtype == "bool" else 4
        assert len(np.unique(first[name])) >= least  # no constant, which a lost copy would leave as it is
        if DTYPES[dtype].floating:
            values = _floats(first[name], dtype)
            assert ((values >= 0) & (values < 1)).all()


FORMULAS = """\
graph: computed
elements: elements
sizes: {{elements: {count}}}
dtype: {dtype}
vectors: {{wide: {{dtype: float32}}, wider: {{dtype: float32}}, sums: {{elements: 1}}}}
inputs: [x, y, wide]
outputs: [z, narrow, wider, sums]
kernels:
  - {{name: k0, on: {on}, reads: [x, y], writes: [z], body: "x * y + 0.25 - min(x, y)"}}
  - {{name: k1, on: {on}, reads: [wide], writes: [narrow], body: wide}}
  - {{name: k2, on: {on}, reads: [x], writes: [wider], body: x}}
  - {{name: k3, on: {on}, reads: [y], writes: [sums], body: sum(y)}}
"""
NUMPY = {
    "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64), "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip


def _floats(values: Any, dtype: str) -> Any:
    """What a device handed over (of types that NumPy lacks: their bits), as doubles."""
    return np.asarray(values).view(NUMPY[dtype]).astype(np.float64)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN and of what overflows
@pytest.mark.parametrize("on", ["host", "device"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_floats_of_16_bits_are_computed_in_float_and_rounded_once(
    dtype: str, on: str, graph: Callable[..., Graph], device: Any, gxx_here: None
) -> None:
    """All 65,536 of them are read; floats of all exponents, and those half way between two, are rounded."""
    count, kind = 1 << 16, NUMPY[dtype]
    bits = np.arange(count, dtype=np.uint16)
    x = bits.view(kind).astype(np.float32)
    draw = np.random.default_rng(5)
    wide = draw.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    known = np.sort(x[np.isfinite(x)]).astype(np.float64)
    middle = ((known[:-1] + known[1:]) / 2).astype(np.float32)[::2]
    wide[: len(middle)] = middle
    small = draw.uniform(-4, 4, count).astype(kind)
    y = small.astype(np.float32)
    quarter = np.float32(0.25)
    expected = {"z": x * y + quarter - np.minimum(x, y), "narrow": wide, "wider": x}
    own = small if dtype == "float16" else small.view(np.uint16)
    every = bits.view(kind) if dtype == "float16" else bits
    text = FORMULAS.format(dtype=dtype, on=on, count=count)
    found = _outputs(device, graph(text), {"x": every, "y": own, "wide": wide})
    usual = np.isfinite(x) & (np.abs(x) < 1e30)
    for name, values in expected.items():
        one = _floats(found[name], "float32" if name == "wider" else dtype)
        two = values.astype(np.float32 if name == "wider" else kind).astype(np.float64)
        keep = usual if name == "z" else np.ones(count, bool)
        np.testing.assert_array_equal(one[keep], two[keep], err_msg=name)
    np.testing.assert_allclose(_floats(found["sums"], dtype)[0], y.astype(np.float64).sum(), rtol=1e-2, atol=0.1)
