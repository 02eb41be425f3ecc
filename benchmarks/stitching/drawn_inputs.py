"""What the functions of `others` are given: numbers drawn from one seed, in the order of the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

_RANDOM = np.random.default_rng(2018)


def floats(*dims: int, scale: float = 1.0, dtype: Any = np.float32) -> np.ndarray:
    return (_RANDOM.normal(size=dims) * scale).astype(dtype)


def positive(*dims: int) -> np.ndarray:
    return (0.1 + np.abs(_RANDOM.normal(size=dims))).astype(np.float32)


def whole(most: int, *dims: int) -> np.ndarray:
    return _RANDOM.integers(0, most, dims).astype(np.int32)


def weights(*layers: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {f"w{at}": floats(*dims, scale=dims[0] ** -0.5) for at, dims in enumerate(layers)}


def zeros_like(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: positive(*each.shape) * np.float32(0.01) for name, each in weights.items()}
