"""What is said of work that grows faster than its data."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fusiond_stitching.analysis.superlinear_work import more_than_linear
from fusiond_stitching.frontend import importer

from . import oracle


def wide(*dims: int, dtype: Any = np.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


@pytest.mark.parametrize(
    ("function", "shapes", "evaluated"),
    [
        (lambda x: jax.nn.softmax(x, -1), (wide(16, 4096),), []),
        (lambda x: jnp.sort(x, -1), (wide(16, 8),), []),  # eight comparisons for each element
        (lambda x: jnp.sort(x, -1), (wide(16, 128),), [16 * 128 * 128] * 2),
        (lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 49), (1, 1), "SAME"), (wide(8, 4096),), [8 * 4096 * 49]),
        (lambda x, at, y: x.at[at].set(y), (wide(512, 4), wide(300, 1, dtype=np.int32), wide(300, 1, 4)),
         [512 * 4 * 300]),
        (lambda x, at, y: x.at[at].add(y), (wide(512, 4), wide(300, 1, dtype=np.int32), wide(300, 1, 4)), []),
        (lambda x, y: x @ y, (wide(64, 64), wide(64, 64)), []),
    ],
)  # fmt: skip
def test_what_evaluates_many_times_its_data_is_named(function: Any, shapes: Any, evaluated: list[int]) -> None:
    module = importer.read(oracle.lowered(function, *shapes), "m.hlo")
    found = more_than_linear(module)
    assert [each.elements for each in found] == evaluated
    data = sum(module[name].elements for name in (*module.parameters, *module.outputs))
    for each in found:
        assert each.times == pytest.approx(each.elements / data)
