"""How each kernel of kernels.py is launched, as a kernel's YAML says it, and what NumPy says comes of it.

The YAML of a member names arguments like the kernel's parameters, so that Triton's interpreter can be handed the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Values = Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonMember:
    kernel: str
    document: Mapping[str, Any]  #: Of its YAML, beside kernel, source and entry
    expected: Callable[..., Mapping[str, Array]]
    """The arrays that it writes, in float64 or as they are, from its arguments by name; arrays are flat."""
    tolerance: float = 1e-5  #: Relative to the largest value of an output
    sizes: Mapping[str, int] = field(default_factory=dict)


def normal(name: str, elements: str, dtype: str = "float32", role: str = "input") -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "elements": elements, "role": role, "fill": {"normal": [0, 1]}}


def whole(name: str, elements: str, low: int, high: int, dtype: str = "int32") -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "elements": elements, "role": "input", "fill": {"integers": [low, high]}}


def written(name: str, elements: str, dtype: str = "float32") -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "elements": elements, "role": "output"}


def summed(name: str, elements: str) -> dict[str, Any]:
    return {"name": name, "dtype": "float32", "elements": elements, "role": "inout", "fill": "zeros"}


def number(name: str, value: Any, dtype: str = "int32") -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "value": value}


def exp_rows(x: Array) -> Array:
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def wide(values: Values, *names: str) -> list[Array]:
    return [values[each].astype(np.float64) for each in names]


# --- the tutorials' --------------------------------------------------------------------------------------


def of_add(values: Values, n: int) -> dict[str, Array]:
    return {"out": values["x"] + values["y"]}


def of_softmax(values: Values, rows: int, n: int) -> dict[str, Array]:
    (x,) = wide(values, "x")
    return {"out": exp_rows(x.reshape(rows, n))}


def of_matmul(values: Values, M: int, N: int, K: int) -> dict[str, Array]:  # noqa: N803
    a, b = wide(values, "a", "b")
    c = a.reshape(M, K) @ b.reshape(N, K).T
    return {"c": np.where(c >= 0, c, 0.01 * c)}


def of_layer_norm(values: Values, rows: int, n: int) -> dict[str, Array]:
    x, w, b = wide(values, "x", "weight", "bias")
    x = x.reshape(rows, n)
    scale = 1 / np.sqrt(x.var(1) + 1e-5)
    mean = x.mean(1)
    return {"out": (x - mean[:, None]) * scale[:, None] * w + b, "mean": mean, "scale": scale}


def of_layer_norm_grad(values: Values, rows: int, n: int) -> dict[str, Array]:
    dy, x, w, mean, scale = wide(values, "dy", "x", "weight", "mean", "scale")
    dy, x = dy.reshape(rows, n), x.reshape(rows, n)
    normal_ = (x - mean[:, None]) * scale[:, None]
    scaled = w * dy
    inner = normal_ * (normal_ * scaled).mean(1, keepdims=True) + scaled.mean(1, keepdims=True)
    return {"dx": (scaled - inner) * scale[:, None], "dw": (dy * normal_).sum(0), "db": dy.sum(0)}


def of_attention(values: Values, heads: int, n: int) -> dict[str, Array]:
    q, k, v = (each.reshape(heads, n, 64) for each in wide(values, "q", "k", "v"))
    score = q @ k.transpose(0, 2, 1) * 0.125
    score = np.where(np.tril(np.ones((n, n), bool)), score, -np.inf)
    return {"out": exp_rows(score) @ v}


ROWS = {"rows": 5, "n": 700}
ROW, STRIDE = "rows * n", number("stride", "n")
CASES = (
    TritonMember(kernel="add", sizes={"n": 3001}, expected=of_add, tolerance=0.0, document={
        "constants": {"BLOCK": [256, 1024]}, "warps": [4, 8], "grid": ["ceil_div(n, BLOCK)"],
        "arguments": [normal("x", "n"), normal("y", "n"), written("out", "n"), number("n", "n")],
    }),
    TritonMember(kernel="softmax", sizes=ROWS, expected=of_softmax, document={
        "constants": {"BLOCK": "next_power_of_2(n)"}, "warps": [4, 8], "stages": [2, 4], "grid": [2],
        "arguments": [normal("x", ROW), written("out", ROW), number("row_stride", "n"), number("rows", "rows"),
                      number("n", "n")],
    }),
    TritonMember(kernel="matmul", sizes={"M": 100, "N": 72, "K": 80}, expected=of_matmul, tolerance=1e-3, document={
        "constants": {"BM": [64], "BN": [32, 64], "BK": 32, "GROUP": 2, "ACTIVATION": "leaky"}, "stages": 3,
        "arguments": [normal("a", "M * K", "float16"), normal("b", "K * N", "float16"),
                      written("c", "M * N", "float16"), *(number(each, each) for each in "MNK"),
                      number("am", "K"), number("ak", 1), number("bk", 1), number("bn", "K"), number("cm", "N"),
                      number("cn", 1)],
        "grid": ["ceil_div(M, BM) * ceil_div(N, BN)"],
    }),
    TritonMember(kernel="layer_norm", sizes=ROWS, expected=of_layer_norm, document={
        "constants": {"BLOCK": [256, 1024]}, "grid": ["rows"],
        "arguments": [normal("x", ROW), written("out", ROW), normal("weight", "n"), normal("bias", "n"),
                      written("mean", "rows"), written("scale", "rows"), STRIDE, number("n", "n"),
                      number("eps", 1e-5, "float32")],
    }),
    TritonMember(kernel="layer_norm_grad", sizes=ROWS, expected=of_layer_norm_grad, tolerance=2e-5, document={
        "constants": {"BLOCK": "next_power_of_2(n)"}, "warps": 8, "grid": ["rows"],
        "arguments": [written("dx", ROW), normal("dy", ROW), summed("dw", "n"), summed("db", "n"), normal("x", ROW),
                      normal("weight", "n"), normal("mean", "rows"), normal("scale", "rows"), STRIDE,
                      number("n", "n")],
    }),
    TritonMember(kernel="attention", sizes={"heads": 2, "n": 100}, expected=of_attention, tolerance=4e-3, document={
        "constants": {"BM": 64, "BN": [32, 64], "D": 64, "CAUSAL": True}, "stages": 2,
        "arguments": [*(normal(each, "heads * n * 64", "float16") for each in "qkv"),
                      written("out", "heads * n * 64", "float16"), number("scale", 0.125, "float32"),
                      number("n", "n")],
        "grid": ["ceil_div(n, BM)", "heads"],
    }),
)  # fmt: skip


# --- of serving and training -----------------------------------------------------------------------------


def of_rms_norm(values: Values, rows: int, n: int) -> dict[str, Array]:
    x, residual, w = wide(values, "x", "residual", "weight")
    total = (x + residual).reshape(rows, n)
    return {"residual": total, "out": total / np.sqrt((total**2).mean(1, keepdims=True) + 1e-6) * w}


def of_swiglu(values: Values, rows: int, n: int) -> dict[str, Array]:
    gate, up = wide(values, "gate", "up")
    return {"out": (gate / (1 + np.exp(-gate))).astype(np.float16) * up}


def of_geglu_grad(values: Values, rows: int, n: int) -> dict[str, Array]:
    dout, a, b = wide(values, "dout", "gate", "up")
    step = 1e-5

    def gelu(x: Array) -> Array:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    return {"up": dout * gelu(a), "gate": dout * b * (gelu(a + step) - gelu(a - step)) / (2 * step)}


def of_rope(values: Values, tokens: int) -> dict[str, Array]:
    q, cos, sin = wide(values, "q", "cos", "sin")
    pairs = q.reshape(tokens, 4, 2, 24).transpose(2, 0, 1, 3)
    turned = (pairs[0] + 1j * pairs[1]) * (cos + 1j * sin).reshape(tokens, 1, 24)
    return {"q": np.stack([turned.real, turned.imag], 2)}


def of_cross_entropy(values: Values, rows: int, n: int) -> dict[str, Array]:
    logits = values["logits"].astype(np.float64).reshape(rows, n)
    labels = values["labels"]
    counted = labels != 3
    share = exp_rows(logits)
    own = np.eye(n)[labels]
    losses = np.where(counted, -np.log((share * own).sum(1)), 0.0)
    return {"losses": losses, "logits": np.where(counted[:, None], share - 0.1 / n - 0.9 * own, 0.0)}


def of_quantise(values: Values, rows: int, n: int) -> dict[str, Array]:
    x = values["x"].astype(np.float32).reshape(rows, n)
    scales = np.maximum(np.abs(x).max(1), np.float32(1e-10)) / np.float32(127)
    return {"scales": scales, "out": np.floor(x / scales[:, None] + np.float32(0.5)).astype(np.int8)}


def of_dequantise(values: Values, n: int) -> dict[str, Array]:
    bits = (values["packed"].view(np.uint32)[:, None] >> (4 * np.arange(8, dtype=np.uint32))) & 15
    zeros, scales = (np.repeat(values[each], 32)[:n] for each in ("zeros", "scales"))
    return {"out": (bits.ravel()[:n].astype(np.int64) - zeros) * scales.astype(np.float64)}


def of_paged_decode(values: Values, sequences: int, heads: int) -> dict[str, Array]:
    q, keys, values_ = wide(values, "q", "keys", "values")
    keys, values_ = (each.reshape(8, 16, heads, 32) for each in (keys, values_))
    out = np.zeros((sequences, heads, 32))
    for s, length in enumerate(values["lengths"]):
        pages = values["table"].reshape(sequences, 4)[s]
        k, v = (each[pages].reshape(64, heads, 32)[:length] for each in (keys, values_))
        weight = exp_rows(np.einsum("hd,thd->ht", q.reshape(sequences, heads, 32)[s], k) * 0.25)
        out[s] = np.einsum("ht,thd->hd", weight, v)
    return {"out": out}


def of_into_cache(values: Values, tokens: int) -> dict[str, Array]:
    cache = np.zeros((16, 50), np.float32)
    for row, slot in zip(values["key"].reshape(tokens, 50), values["slots"], strict=True):
        if slot >= 0:
            cache[slot] = row
    return {"cache": cache}


def of_scan(values: Values, rows: int, n: int) -> dict[str, Array]:
    x, decay = (each.reshape(rows, n) for each in wide(values, "x", "decay"))
    state, found = np.zeros(rows), np.zeros((rows, n))
    for t in range(n):
        state = found[:, t] = decay[:, t] * state + x[:, t]
    return {"out": found}


def inout(argument: dict[str, Any]) -> dict[str, Any]:
    return {**argument, "role": "inout"}


BY_ROW = {"constants": {"n": "n", "BLOCK": "next_power_of_2(n)"}, "grid": ["rows"]}
NARROW = {"constants": {"BLOCK": "next_power_of_2(n)"}, "grid": ["rows"]}
KINDS = (
    TritonMember(kernel="rms_norm", sizes=ROWS, expected=of_rms_norm, document={
        "constants": {"BLOCK": [1024, 2048], "WITH_RESIDUAL": True}, "grid": ["rows"], "warps": [4, 8],
        "arguments": [normal("x", ROW), inout(normal("residual", ROW)), normal("weight", "n"), written("out", ROW),
                      STRIDE, number("n", "n"), number("eps", 1e-6, "float32")],
    }),
    TritonMember(kernel="swiglu", sizes=ROWS, expected=of_swiglu, tolerance=2e-3,
        document={**BY_ROW, "arguments": [*(normal(each, ROW, "float16") for each in ("gate", "up")),
                                          written("out", ROW, "float16"), STRIDE]}),
    TritonMember(kernel="geglu_grad", sizes=ROWS, expected=of_geglu_grad,
        document={**BY_ROW, "arguments": [normal("dout", ROW), inout(normal("gate", ROW)), inout(normal("up", ROW)),
                                          STRIDE]}),
    TritonMember(kernel="rope", sizes={"tokens": 7}, expected=of_rope, document={
        "constants": {"heads": 4, "width": 48, "BLOCK": 32}, "grid": ["tokens"],
        "arguments": [inout(normal("q", "tokens * 192")), normal("cos", "tokens * 24"),
                      normal("sin", "tokens * 24"), number("tokens", "tokens")],
    }),
    TritonMember(kernel="cross_entropy", sizes=ROWS, expected=of_cross_entropy, document={
        "constants": {"smoothing": 0.1, "BLOCK": [256, 512]}, "grid": ["rows"],
        "arguments": [inout(normal("logits", ROW)), whole("labels", "rows", 0, 5, "int64"),
                      written("losses", "rows"), STRIDE, number("n", "n"), number("ignored", 3)],
    }),
    TritonMember(kernel="quantise", sizes=ROWS, expected=of_quantise, tolerance=1 / 127,
        document={**NARROW, "arguments": [normal("x", ROW, "float16"), written("out", ROW, "int8"),
                                          written("scales", "rows"), STRIDE, number("n", "n")]}),
    TritonMember(kernel="dequantise", sizes={"n": 1000}, expected=of_dequantise, document={
        "constants": {"group": 32, "BLOCK": [256, 512]}, "grid": ["ceil_div(n, BLOCK)"],
        "arguments": [whole("packed", "n // 8", -(2**31), 2**31 - 1), normal("scales", "ceil_div(n, 32)"),
                      whole("zeros", "ceil_div(n, 32)", 0, 15), written("out", "n"), number("n", "n")],
    }),
    TritonMember(kernel="paged_decode", sizes={"sequences": 3, "heads": 2}, expected=of_paged_decode, document={
        "constants": {"PAGE": 16, "D": 32}, "grid": ["sequences", "heads"], "warps": [1, 2],
        "arguments": [normal("q", "sequences * heads * 32"),
                      *(normal(each, "128 * heads * 32", "float16") for each in ("keys", "values")),
                      whole("table", "sequences * 4", 0, 7), whole("lengths", "sequences", 1, 64),
                      written("out", "sequences * heads * 32"), number("scale", 0.25, "float32"),
                      number("pages", 4), number("heads", "heads")],
    }),
    TritonMember(kernel="into_cache", sizes={"tokens": 4}, expected=of_into_cache, tolerance=0.0, document={
        "constants": {"width": 50, "BLOCK": 64}, "grid": ["tokens"],
        "arguments": [normal("key", "tokens * 50"), summed("cache", "16 * 50"),
                      {**whole("slots", "tokens", 0, 0), "fill": "iota"}, number("tokens", "tokens")],
    }),
    TritonMember(
        kernel="greedy",
        sizes=ROWS,
        document={**NARROW, "arguments": [normal("logits", ROW), written("out", "rows", "int32"), number("n", "n")]},
        expected=lambda values, rows, n: {"out": values["logits"].reshape(rows, n).argmax(1)},
        tolerance=0.0,
    ),
    TritonMember(kernel="scan", sizes=ROWS, expected=of_scan,
        document={**NARROW, "arguments": [normal("x", ROW), {**normal("decay", ROW), "fill": {"uniform": [0, 1]}},
                                          written("out", ROW), number("n", "n")]}),
)  # fmt: skip
EVERY = (*CASES, *KINDS)
