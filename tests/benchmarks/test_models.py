"""The models in JAX and PyTorch against NumPy's float64, and what is counted and said of them on planted numbers."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.special

pytest.importorskip("jax", reason="needs jax")

import jax

from benchmarks import runs
from benchmarks.models import counted, in_jax, measured, models, page
from fusiond.jax import lowering
from fusiond.service.frameworks.region_answers import Question

Tree = Mapping[str, np.ndarray]


def normed(x: np.ndarray, centred: bool) -> np.ndarray:
    x = x - x.mean(axis=-1, keepdims=True) if centred else x
    return x / np.sqrt(np.einsum("...i,...i->...", x, x)[..., None] / x.shape[-1] + models.EPSILON)


def attended(query: np.ndarray, key: np.ndarray, value: np.ndarray, heads: int) -> np.ndarray:
    """Row by row and head by head; each (batch, length, width)."""
    out = np.zeros_like(query)
    for batch, row, head in np.ndindex(query.shape[0], query.shape[1], heads):
        own = slice(head * query.shape[2] // heads, (head + 1) * query.shape[2] // heads)
        scores = key[batch, : row + 1, own] @ query[batch, row, own] / math.sqrt(own.stop - own.start)
        out[batch, row, own] = scipy.special.softmax(scores) @ value[batch, : row + 1, own]
    return out


def turned(x: np.ndarray, heads: int) -> np.ndarray:
    """Pairs of coordinates as complex numbers, turned."""
    batch, length, width = x.shape
    pairs = x.reshape(batch, length, heads, 2, -1)
    numbers = pairs[..., 0, :] + 1j * pairs[..., 1, :]
    half = numbers.shape[-1]
    angles = np.arange(length)[:, None, None] * 1e4 ** (-np.arange(half) / half)
    numbers = numbers * np.exp(1j * angles)
    return np.stack([numbers.real, numbers.imag], axis=-2).reshape(batch, length, width)


def gpt2(s: models.Sizes, p: Tree, tokens: np.ndarray, targets: np.ndarray) -> float:
    x = np.stack([p["tokens"][row] for row in tokens]) + p["places"]
    for n in range(s.layers):
        h = normed(x, centred=True) * p[f"{n}.norm_1"] + p[f"{n}.shift_1"]
        query, key, value = np.split(h @ p[f"{n}.mixed"] + p[f"{n}.mixed_bias"], 3, axis=-1)
        x = x + attended(query, key, value, s.heads) @ p[f"{n}.out"] + p[f"{n}.out_bias"]
        h = (normed(x, centred=True) * p[f"{n}.norm_2"] + p[f"{n}.shift_2"]) @ p[f"{n}.up"] + p[f"{n}.up_bias"]
        h = h * scipy.special.expit(2 * math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))
        x = x + h @ p[f"{n}.down"] + p[f"{n}.down_bias"]
    logits = (normed(x, centred=True) * p["norm"] + p["shift"]) @ p["tokens"].T
    shares = scipy.special.softmax(logits, axis=-1).reshape(-1, s.vocabulary)
    return float(np.mean([-math.log(share[at]) for share, at in zip(shares, targets.ravel(), strict=True)]))


def llama(s: models.Sizes, p: Tree, x: np.ndarray) -> float:
    h = normed(x, centred=False) * p["norm_1"]
    query, key = (turned(h @ p[name], s.heads) for name in ("query", "key"))
    x = x + attended(query, key, h @ p["value"], s.heads) @ p["out"]
    h = normed(x, centred=False) * p["norm_2"]
    gate = h @ p["gate"]
    return float(np.mean((x + (gate / (1 + np.exp(-gate)) * (h @ p["up"])) @ p["down"]) ** 2))


ORACLES: Mapping[str, Callable[..., float]] = {"gpt2": gpt2, "llama": llama}


@pytest.fixture(params=list(models.TINY))
def name(request: Any) -> str:
    return str(request.param)


@pytest.mark.slow
def test_losses_and_gradients_are_those_of_numpy(name: str) -> None:
    """Gradients by finite differences of NumPy's, along a direction of each parameter."""
    s = models.TINY[name]
    p, *rest = models.arrays(s, 0)
    rest = [each for each in rest if not isinstance(each, dict)]
    oracle = ORACLES[name]
    wide = {each: value.astype(np.float64) for each, value in p.items()}
    value, gradients = jax.value_and_grad(models.loss(in_jax, s, "float32"))(p, *rest)
    assert float(value) == pytest.approx(oracle(s, wide, *rest), rel=1e-5)
    random = np.random.default_rng(1)
    for each in p:
        way = random.standard_normal(p[each].shape)
        ahead, behind = (oracle(s, {**wide, each: wide[each] + h * way}, *rest) for h in (1e-5, -1e-5))
        wanted, got = (ahead - behind) / 2e-5, float((gradients[each] * way).sum())
        assert got == pytest.approx(wanted, rel=2e-3, abs=2e-5), each


@pytest.mark.slow
def test_adamw_is_what_is_written_down_of_it() -> None:
    """Kingma and Ba's with decoupled decay, on one vector of everything."""
    p, state, *_ = models.arrays(models.TINY["gpt2"], 0)
    gradients = {name: 3 * each for name, each in models.arrays(models.TINY["gpt2"], 1)[0].items()}
    got, after = models.adamw(jax.numpy, p, gradients, state)

    def flat(tree: Any) -> np.ndarray:
        return np.concatenate([np.asarray(tree[each], np.float64).ravel() for each in p])

    g = flat(gradients) / np.linalg.norm(flat(gradients))  # longer than 1: clipped
    (b, c), t = models.BETAS, int(state["count"]) + 1
    m, v = b * flat(state["first"]) + (1 - b) * g, c * flat(state["second"]) + (1 - c) * g**2
    matrix = np.concatenate([np.full(each.size, each.ndim == 2) for each in p.values()])
    step = m / (1 - b**t) / (np.sqrt(v / (1 - c**t)) + models.TINIEST) + models.DECAY * matrix * flat(p)
    np.testing.assert_allclose(flat(got), flat(p) - models.RATE * step, rtol=2e-5, atol=1e-7)
    np.testing.assert_allclose(flat(after["first"]), m, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(flat(after["second"]), v, rtol=1e-5)
    assert after["count"] == t


@pytest.mark.slow
@pytest.mark.parametrize("dtype", models.DTYPES)
def test_pytorch_computes_what_jax_does(name: str, dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'fusiond[torch]'")
    from benchmarks.models import in_torch

    s = models.TINY[name]
    given = models.arrays(s, 0)
    wanted = jax.jit(in_jax.step(s, dtype))(*given)
    got = in_torch.step(s, dtype)(*torch.utils._pytree.tree_map(torch.from_numpy, given))
    assert measured.apart(wanted, got) < {"float32": 1e-5}.get(dtype, 5e-2)


# --- counting -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_a_step_is_cut_into(name: str) -> None:
    """Three products for each that a loss has. Layers ask the same: one more of them is no new question."""
    s = models.TINY[name]
    noting, segments = counted.cut_jax(s, "float32")
    times = {each.digest: 1 for each in noting.questions}
    row = counted.totals(times, dict.fromkeys(times, PLANTED), segments)
    assert row["calls"] == 3 * (6 * s.layers + 1 if s.layers else 9)
    assert {each.state for each in segments} == {"library", "unknown"}
    if s.layers:
        more, most = (counted.cut_jax(dataclasses.replace(s, layers=n), "float32")[0].questions for n in (4, 5))
        assert len(most) > len(more) > len(noting.questions)
        assert len({each.digest for each in most}) == len({each.digest for each in more})


PLANTED = {"refused": "", "kernels": 2, "failed": None, "dram_bytes": 70, "planned_bytes": 60, "least_bytes": 50,
           "plan_secs": 0.1, "name": "step_0"}  # fmt: skip


def test_totals_of_planted_rows() -> None:
    kept = {"a": PLANTED, "b": {**PLANTED, "failed": "too large"}, "c": {"refused": "no kernel"}}
    library = [SimpleNamespace(state="library", reason="", primitives=("dot_general", "sort"))]
    small = [SimpleNamespace(state="library", reason="too little to fuse", primitives=("add",))]
    refused = [SimpleNamespace(state="refused", reason="no kernel", primitives=("add", "mul"))]
    row = counted.totals({"a": 12, "b": 1, "c": 3}, kept, [*library, *small, *refused])
    assert row == {
        "calls": 2, "small": 1, "refused": {"no kernel": 4}, "regions": 13, "different": 2, "launches": 26,
        "uncounted": 1, "dram_bytes": 12 * 70 + 60, "least_bytes": 650, "plan_secs": 0.2,
        "digests": {"a": 12, "b": 1, "c": 3},
    }  # fmt: skip


@pytest.mark.slow
def test_a_region_is_planned_without_its_arrays() -> None:
    """64 GiB in, 64 GiB out: one kernel that reads and writes each once."""
    x = jax.ShapeDtypeStruct((4096, 4096, 1024), np.float32)
    text = lowering.hlo("grown", jax.make_jaxpr(lambda x: jax.numpy.exp(x) * 2 + x)(x))
    program, row = counted.region(Question("grown", text, "cuda:0"))
    assert program is not None
    assert (row["kernels"], row["least_bytes"], row["planned_bytes"]) == (1, 2**37, 2**37)
    program, row = counted.region(Question("broken", "HloModule broken\n", "cuda:0"))
    assert program is None
    assert row["refused"]


# --- measuring, and the page ----------------------------------------------------------------------------


def test_ways_take_turns_in_both_orders() -> None:
    order: list[str] = []
    slow = {name: (lambda name=name: (order.append(name), measured.time.sleep(0.06))) for name in "ab"}
    assert measured.samples(slow, 3, -math.inf) == {"a": [], "b": []}
    order.clear()
    measured.samples(slow, 2, math.inf)
    assert "".join(order) == "aabb" + "abba"


def test_a_planted_gain_comes_back() -> None:
    noise = np.random.default_rng(0).normal(1, 0.01, 60)
    median, low, high = measured.gain(1.25 * noise, np.full(60, 1.0))
    assert 1.24 < low < median < high < 1.26
    assert measured.apart([np.ones(2), np.asarray([4.0, 2.0])], [np.ones(2), np.asarray([4.0, 1.0])]) == 0.25
    assert measured.apart([np.ones(2)], [np.asarray([1.0, np.nan])]) == math.inf


def test_the_page_is_what_is_kept() -> None:
    kept = list(runs.kept("models"))
    (run,) = [each for each in kept if each["evidence"] == "counted"]
    assert list(run["steps"]) == [each for each in models.STEPS if each in run["steps"]]
    assert page.PAGE.read_text(encoding="utf-8") == page.render(kept)


def test_the_page_of_a_measured_run() -> None:
    row = {"name": "gpt2/float32/jax", "batch": 8, "regions": {"fused": 99, "kept": 2, "library": 5}, "failed": "",
           "ms": {"jax.jit": 100.0, "fusiond": 80.0}, "gain": {"fusiond": [1.25, 1.2, 1.3]}}  # fmt: skip
    run = {
        "evidence": "measured", "vouched": True, "device": {"model": "NVIDIA X"}, "command": "planted", "driver": "580",
        "date": "2030-01-01", "steps": [row, {**row, "name": "llama/float32/torch", "failed": "out of memory"}],
    }  # fmt: skip
    text = page.render([run])
    planted = (
        "| gpt2/float32/jax | 99 fused, 2 kept | jax.jit 100.00 ms | fusiond 80.00 ms | **1.250** (1.200 to 1.300)"
    )
    assert all(each in text for each in (planted, "out of memory", "### NVIDIA X"))
    assert page.UNMEASURED not in text
    assert page.UNMEASURED in page.render([{**run, "vouched": False}])
