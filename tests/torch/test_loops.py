"""Loops of torch through `torch.compile(backend="fusiond")`: what eager torch gives, at odd sizes, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'fusiond[torch]'")

from torch._higher_order_ops.associative_scan import associative_scan  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402

from fusiond.torch import explain  # noqa: E402
from fusiond.torch.backend import backend  # noqa: E402
from tests.frameworks.answered import answer  # noqa: E402

from ..jax.conftest import emitted  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    answer(monkeypatch, emitted)


def rand(*dims: int) -> Any:
    return torch.randn(dims, generator=torch.Generator().manual_seed(sum(dims)))


def smoothed(x: Any) -> Any:
    """With what stands before and behind the loop."""

    def step(h: Any, x: Any) -> Any:
        h = 0.9 * h + 0.1 * x
        return h, h.clone()

    last, every = scan(step, torch.zeros_like(x[0]), torch.nn.functional.silu(x))
    return every / (1 + every.abs().sum(1, keepdim=True)), last


def gated(x: Any, a: Any) -> Any:
    def step(state: Any, now: Any) -> Any:
        h, total = state
        x, gate = now
        h = torch.tanh(gate * h + a * x)
        return [h.clone(), total + h], [h * x]  # torch refuses to derive a step whose state is read by its results

    begin = [torch.zeros_like(x[:, 0]), torch.ones_like(x[:, 0])]
    return scan(step, begin, [x, torch.sigmoid(x)], dim=1, reverse=True)[1][0]


def recurrent(x: Any, u: Any) -> Any:
    """With a product of matrices in it."""

    def step(h: Any, x: Any) -> Any:
        h = torch.tanh(x + h @ u)
        return h, h.clone()

    return scan(step, torch.zeros_like(x[0]), x)[1]


def roots(x: Any) -> Any:
    def step(i: Any, y: Any) -> Any:
        return i + 1, 0.5 * (y + x / y)

    return while_loop(lambda i, y: i < 20, step, (0, torch.ones_like(x)))[1]


def counted(x: Any) -> Any:
    """By a tensor of one number; the counter is read."""
    return while_loop(lambda i, y: i < 9, lambda i, y: (i + 2, y * 0.5 + i), (torch.zeros((), dtype=torch.int64), x))[1]


def recurrence(a: Any, b: Any) -> Any:
    def combine(one: Any, other: Any) -> Any:
        return one[0] * other[0], other[0] * one[1] + other[1]

    return associative_scan(combine, (a, b), dim=0, combine_mode="generic")[1]


OPERATORS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], bool]] = {
    # Function, arguments, whether it has gradients that are fused.
    "smoothed": (smoothed, (rand(13, 37),), True),
    "gated": (gated, (rand(5, 11, 7), rand(7)), True),
    "recurrent": (recurrent, (rand(9, 3, 11), rand(11, 11) / 4), False),
    "roots": (roots, (rand(37, 3).abs() + 0.1,), False),
    "counted": (counted, (rand(37),), False),
    "recurrence": (recurrence, (rand(13, 37), rand(13, 37)), True),
}


def gradients(function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
    given = [each.clone().requires_grad_() for each in arguments]
    results = function(*given)
    results = results if isinstance(results, tuple) else (results,)
    sum((each * each).sum() for each in results).backward()
    return [*(each.detach() for each in results), *(each.grad for each in given)]


def compiled(function: Callable[..., Any], db: Path, **more: Any) -> Any:
    options = {"always": True, "fallback": "eager", "db": db / "store.sqlite", **more}
    return torch.compile(function, backend=backend, options=options, dynamic=False)


def fused(report: Any) -> list[tuple[str, ...]]:
    return [each.operators for each in report.regions if each.state == "fused"]


@pytest.mark.parametrize("name", OPERATORS)
def test_loops_of_torch_are_one_region_s(name: str, tmp_path: Path) -> None:
    function, arguments, _ = OPERATORS[name]
    fast = compiled(function, tmp_path)
    got, wanted = fast(*arguments), function(*arguments)
    torch.testing.assert_close(got, wanted, rtol=2e-5, atol=1e-6)
    report = explain(fast)
    left = {name for each in report.regions if each.state != "fused" for name in each.operators}
    assert not left & {"scan", "while_loop"}, str(report)
    assert len(fused(report)) == 1, str(report)


@pytest.mark.parametrize("name", [name for name, (_, _, graded) in OPERATORS.items() if graded])
def test_their_gradients_are_regions_too(name: str, tmp_path: Path) -> None:
    function, arguments, _ = OPERATORS[name]
    fast = compiled(function, tmp_path)
    torch.testing.assert_close(gradients(fast, arguments), gradients(function, arguments), rtol=2e-4, atol=1e-5)
    report = explain(fast)
    left = {name for each in report.regions if each.state != "fused" for name in each.operators}
    assert not left & {"scan", "while_loop"}, str(report)


def test_a_loop_that_stays_torch_s_says_why(tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        return while_loop(lambda x: x.sum() < 9, lambda x: (x * 2,), (x,))[0]

    fast = compiled(function, tmp_path)
    x = rand(37).abs()
    torch.testing.assert_close(fast(x), function(x))
    assert "how often it runs is not known" in str(explain(fast))
