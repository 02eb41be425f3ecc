"""A chain of kernels on both sides whose vectors lie in one memory, mapped or managed, and what NumPy makes of it."""

from typing import Any

import numpy as np

from fusiond.model.nouns import Config
from fusiond.model.program import Program

_CHAIN = """\
graph: chain
elements: 300
dtype: float64
memory: MEMORY
vectors: {c: {memory: copied}, total: {elements: 1}}
inputs: [a, b]
outputs: [d, total]
kernels:
  - {name: k0, on: device, reads: [a, b], writes: [c], body: a + b}
  - {name: k1, on: host, reads: [c], writes: [e], body: 2 * c}
  - {name: k2, on: device, reads: [e, b], writes: [d], body: e - b}
  - {name: k3, on: device, reads: [d], writes: [total], body: sum(d)}
"""


def chain(memory: str) -> str:
    return _CHAIN.replace("MEMORY", memory)


def config_with(**values: Any) -> Config:
    usual = {"grouping": "interval_stabbing", "memory": "pinned", "issue": "overlapped", "send": "message"}
    return Config.of({**usual, **values})


def same_as_numpy(device: Any, program: Program) -> None:
    draw = np.random.default_rng(4)
    inputs = {name: draw.uniform(-1, 1, 300) for name in "ab"}
    d = 2 * (inputs["a"] + inputs["b"]) - inputs["b"]
    for seed in range(6):
        out = device.run(program, seed=seed, inputs=inputs)
        np.testing.assert_allclose(out["d"], d, rtol=1e-12)
        np.testing.assert_allclose(out["total"], [d.sum()], rtol=1e-9, atol=1e-9)
