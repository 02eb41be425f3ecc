"""Launches of the PTX that Triton made of kernels.py: shapes, drawn arguments, and what NumPy says comes of them."""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
Array = NDArray[Any]
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    scratch_bytes: int
    """Of a block, in global memory; a pointer to it is the parameter behind `arguments`, and another one, which nothing
    reads, is the last."""
    arguments: tuple[Mapping[str, Any], ...]
    """Arrays (`dtype`, `shape`, `role`), scalars (`dtype`, `value`), maps (`tensor_map` of which array, its `box`)."""
    reference: str
    tolerance: float  #: Relative to the largest value of an output; 0.0: equal

    @property
    def text(self) -> str:
        return gzip.decompress((HERE / f"{self.name}.ptx.gz").read_bytes()).decode()

    def values(self, seed: int = 0) -> dict[str, Any]:
        """Arrays as drawn, outputs zeros, and scalars."""
        generator = np.random.default_rng(seed)
        found: dict[str, Any] = {}
        for each in self.arguments:
            if "shape" in each:
                dtype, shape = np.dtype(each["dtype"]), each["shape"]
                if each["role"] == "output":
                    found[each["name"]] = np.zeros(shape, dtype)
                elif dtype.kind == "i":
                    found[each["name"]] = generator.integers(each["low"], each["high"], shape, endpoint=True).astype(
                        dtype
                    )
                else:
                    found[each["name"]] = generator.uniform(each["low"], each["high"], shape).astype(dtype)
            elif "value" in each:
                found[each["name"]] = np.dtype(each["dtype"]).type(each["value"])
        for name, shape in MAPPED.items():
            if any(each.get("tensor_map") == name for each in self.arguments):
                output = name == "c"
                drawn = np.zeros(shape) if output else generator.uniform(-1, 1, shape)
                found[name] = drawn.astype(np.float16)
        return found

    def expected(self, values: Values) -> dict[str, Array]:
        """Of each output, in float64 or int64."""
        return REFERENCES[self.reference](values)

    def check(self, values: Values, outputs: Mapping[str, Array]) -> None:
        """AssertionError where an output is not what it should be."""
        for name, right in self.expected(values).items():
            ours = np.asarray(outputs[name]).astype(right.dtype).reshape(right.shape)
            error = np.abs(ours - right).max()
            assert error <= self.tolerance * np.abs(right).max(), f"{self.name}: {name} is off by {error}"


MAPPED = {"a": (112, 192), "b": (192, 104), "c": (112, 104)}  #: Arrays that are known by tensor maps only


def cases() -> dict[str, Case]:
    """By name."""
    found = {}
    for each in json.loads((HERE / "index.json").read_text()):
        of = {**each, "grid": tuple(each["grid"]), "block": tuple(each["block"]), "arguments": tuple(each["arguments"])}
        found[each["name"]] = Case(**of)
    return found


def _wide(values: Values, *names: str) -> list[Array]:
    return [np.asarray(values[each]).astype(np.float64) for each in names]


def _softmax(values: Values) -> dict[str, Array]:
    (x,) = _wide(values, "x")
    made = np.exp(x - x.max(1, keepdims=True))
    return {"y": made / made.sum(1, keepdims=True)}


def _layer_norm(values: Values) -> dict[str, Array]:
    x, weight, bias = _wide(values, "x", "weight", "bias")
    centred = x - x.mean(1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(1, keepdims=True) + float(values["epsilon"]))
    return {"y": centred * scale * weight + bias}


MASK = np.uint64(0xFFFFFFFF)


def _philox(seed: int, count: int) -> Array:
    """The first of the four words of Philox 4x32-10 (Salmon et al. 2011, section 3.3), counters (k, 0, 0, 0)."""
    zero = np.zeros(count, np.uint64)
    c, key = [np.arange(count, dtype=np.uint64), zero, zero, zero], [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        high, low = [each >> np.uint64(32) for each in (first, second)], [each & MASK for each in (first, second)]
        c = [high[1] ^ c[1] ^ np.uint64(key[0]), low[1], high[0] ^ c[3] ^ np.uint64(key[1]), low[0]]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0].astype(np.uint32)


def _dropout(values: Values) -> dict[str, Array]:
    (x,) = _wide(values, "x")
    bits = _philox(int(values["seed"]), x.size).view(np.int32).astype(np.int64)
    drawn = np.where(bits < 0, -bits - 1, bits) * 4.6566127342e-10
    p = float(values["p"])
    return {"y": np.where(drawn > p, x / (1 - p), 0.0)}


def _cumsum(values: Values) -> dict[str, Array]:
    return {"y": np.cumsum(values["x"].astype(np.int64), 1)}


def _histogram(values: Values) -> dict[str, Array]:
    return {"y": np.bincount(values["x"], minlength=64).astype(np.int64)}


def _gemm(values: Values) -> dict[str, Array]:
    a, b = _wide(values, "a", "b")
    return {"c": a @ b}


def _attention(values: Values) -> dict[str, Array]:
    q, k, v = _wide(values, "q", "k", "v")
    score = q @ k.transpose(0, 2, 1) * float(values["scale"])
    score = np.where(np.tri(score.shape[1], dtype=bool), score, -np.inf)
    weight = np.exp(score - score.max(2, keepdims=True))
    return {"o": weight / weight.sum(2, keepdims=True) @ v}


REFERENCES: Mapping[str, Callable[[Values], dict[str, Array]]] = {
    "softmax": _softmax, "layer_norm": _layer_norm, "dropout": _dropout, "cumsum": _cumsum, "histogram": _histogram,
    "attention": _attention,
    **dict.fromkeys(("gemm", "gemm_split", "gemm_descriptor", "gemm_host_descriptor"), _gemm),
}  # fmt: skip

__all__ = ["Case", "cases", "ml_dtypes"]
