"""Loops of torch through `torch.compile(backend="fusiond")`: what eager torch gives, at odd sizes, with gradients."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'fusiond[torch]'")

from torch._higher_order_ops.associative_scan import associative_scan, associative_scan_op  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from fusiond.service.frameworks import region_answers  # noqa: E402
from fusiond.service.frameworks.region_answers import Found  # noqa: E402
from fusiond.torch import explain, importer, recording, regions, rolling  # noqa: E402
from fusiond.torch.backend import backend  # noqa: E402
from fusiond.torch.graphs import Tensor  # noqa: E402
from tests.service.frameworks.answered import answer, emitted  # noqa: E402

from .conftest import computed  # noqa: E402

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


# --- unrolled ---


def advantages(rewards: Any, values: Any, done: Any) -> Any:
    """As CleanRL has it: backwards, written into a tensor."""
    found, last = torch.zeros_like(rewards), 0
    for t in reversed(range(len(rewards))):
        following = values[t + 1] * (1 - done[t])
        delta = rewards[t] + 0.99 * following - values[t]
        found[t] = last = delta + 0.99 * 0.95 * (1 - done[t]) * last
    return found, found + values[:-1]


def averaged(x: Any) -> Any:
    h, every = x[:, 0], []
    for each in x.unbind(1):
        h = 0.9 * h + 0.1 * each
        every.append(h)
    return torch.stack(every, dim=1) * 2


def integrated(x: Any, force: Any) -> Any:
    """Two states, of which only the last is read; what is given to each step has a dimension of 1."""
    v = torch.zeros_like(x)
    for t in range(force.shape[1]):
        v = v - 0.1 * torch.sin(x) + force[:, t : t + 1]
        x = x + 0.1 * v
    return x, v


def selective(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
    """Mamba's reference, with an einsum in each step."""
    decay = torch.exp(delta[..., None] * a)
    h, every = torch.zeros(x.shape[0], x.shape[2], a.shape[1]), []
    for i in range(x.shape[1]):
        h = decay[:, i] * h + delta[:, i, :, None] * b[:, i, None, :] * x[:, i, :, None]
        every.append(torch.einsum("bdn,bn->bd", h, c[:, i, :]))
    return torch.stack(every, 1)


def relaxed(x: Any) -> Any:
    """Nothing is given to the steps."""
    for _ in range(20):
        x = x - 0.1 * (x * x * x - x)
    return x


class Cell(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.own = torch.nn.Linear(11, 11, bias=False)

    def forward(self, x: Any) -> Any:
        h, every = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = torch.tanh(x[:, t] + self.own(h))
            every.append(h.unsqueeze(1))
        return torch.cat(every, 1)


UNROLLED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int, bool]] = {
    # Function, arguments, steps, whether its gradients are fused.
    "advantages": (advantages, (rand(13, 37), rand(14, 37), (rand(13, 37) > 1).float()), 12, True),
    "averaged": (averaged, (rand(3, 13, 7),), 13, True),
    "integrated": (integrated, (rand(37, 1), rand(37, 11)), 11, True),
    "selective": (selective, (rand(2, 9, 5), rand(2, 9, 5).abs(), -rand(5, 3).abs(), rand(2, 9, 3), rand(2, 9, 3)), 9,
                  True),
    "relaxed": (relaxed, (rand(37),), 20, True),
    "cell": (Cell(), (rand(3, 9, 11),), 9, True),
}  # fmt: skip


@pytest.mark.parametrize("name", UNROLLED)
def test_unrolled_loops_are_rolled_up(name: str, tmp_path: Path) -> None:
    function, arguments, _, _ = UNROLLED[name]
    fast = compiled(function, tmp_path)
    with torch.no_grad():
        got, wanted = fast(*arguments), function(*arguments)
    torch.testing.assert_close(got, wanted, rtol=2e-5, atol=1e-6)
    report = explain(fast)
    assert [each.count("scan") for each in fused(report)] == [1], str(report)


@pytest.mark.parametrize("name", [name for name, each in UNROLLED.items() if each[3]])
def test_their_gradients_are_rolled_up(name: str, tmp_path: Path) -> None:
    function, arguments, _, _ = UNROLLED[name]
    fast = compiled(function, tmp_path)
    torch.testing.assert_close(gradients(fast, arguments), gradients(function, arguments), rtol=2e-4, atol=1e-5)
    report = explain(fast)
    assert sum(each.count("scan") for each in fused(report)) == 2, str(report)


def test_a_loop_is_unrolled_until_its_answers_are_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known: list[bool] = []
    changed: list[Callable[[], None]] = []
    answer(monkeypatch, lambda question: emitted(question) if known else Found(state="unknown"))
    monkeypatch.setattr(region_answers.Asker, "want", lambda self, question, told: changed.append(told))
    fast = compiled(averaged, tmp_path)
    x = rand(3, 13, 7)
    wanted = gradients(averaged, (x,))
    torch.testing.assert_close(gradients(fast, (x,)), wanted, rtol=0, atol=0)  # eager torch's
    assert {each.state for each in explain(fast).regions} >= {"unknown"}
    assert len(changed) == 2  # forward and backward
    known.append(True)
    for each in changed:
        each()
    torch.testing.assert_close(gradients(fast, (x,)), wanted, rtol=2e-4, atol=1e-5)
    assert sum(each.count("scan") for each in fused(explain(fast))) == 2


def unequal(x: Any) -> Any:
    """Steps of which one is another, and what is handed on skips one."""
    a = b = x[0]
    for t in range(12):
        a, b = b, torch.tanh(a + x[t] if t != 6 else a - x[t])
    return b


def jumping(x: Any) -> Any:
    """The elements do not follow each other evenly."""
    h = x[0]
    for t in (0, 1, 2, 3, 5, 8, 9, 10, 11, 12, 4, 6):
        h = torch.tanh(h + x[t])
    return h


def overwritten(x: Any) -> Any:
    """Each step reads what the one before wrote into a tensor."""
    x = x.clone()
    for t in range(1, 13):
        x[t] = torch.tanh(x[t - 1]) + x[t]
    return x


def layers(x: Any) -> Any:
    """Short: four equal layers are no loop."""
    for _ in range(4):
        x = torch.tanh(x + 1)
    return x


@pytest.mark.parametrize("function", [unequal, jumping, overwritten, layers])
def test_steps_that_are_not_equal_stay_as_they_are(function: Callable[..., Any], tmp_path: Path) -> None:
    fast = compiled(function, tmp_path)
    x = rand(13, 37)
    torch.testing.assert_close(fast(x), function(x), rtol=2e-5, atol=1e-6)
    assert "scan" not in str(explain(fast))


def test_a_loop_that_cannot_be_one_launch_stays_unrolled(tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        for _ in range(9):
            x = torch.sort(torch.tanh(x)).values
        return x

    fast = compiled(function, tmp_path)
    x = rand(3, 1000)
    torch.testing.assert_close(fast(x), function(x), rtol=2e-5, atol=1e-6)
    assert "loops of 9 steps stay unrolled: scan: aten.sort.default is a sort of more than" in str(explain(fast))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_rolled_loop_is_the_same_to_the_last_bit(dtype: Any) -> None:
    """As eager torch has both: the operators are the same, in the same order."""
    for function, arguments in ((advantages, UNROLLED["advantages"][1]), (integrated, UNROLLED["integrated"][1])):
        given, found = tuple(each.to(dtype) for each in arguments), []

        def kept(module: Any, inputs: Any, found: list[Any] = found) -> Any:
            found.append(rolling.rolled(module))
            return found[-1][0].forward

        torch._dynamo.reset()
        got = torch.compile(function, backend=kept, dynamic=False)(*given)
        assert found[0][1]
        torch.testing.assert_close(got, function(*given), rtol=0, atol=0)


def projected(x: Any, w: Any, u: Any) -> Any:
    """With a product of what is given to a step, which can stand before the loop."""

    def step(h: Any, x: Any) -> Any:
        h = torch.tanh(x @ w + h @ u)
        return h.clone(), h.clone()

    return scan(step, torch.zeros_like(x[0] @ w), x)[1]


class Recurrent(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Any) -> Any:
        h, every = torch.zeros(x.shape[0], self.cell.hidden_size), []
        state = (h, torch.zeros_like(h)) if isinstance(self.cell, torch.nn.LSTMCell) else h
        for each in x.unbind(1):
            state = self.cell(each, state)
            every.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(every, 1)


RECURRENT: dict[str, tuple[Any, ...]] = {
    "projected": (projected, rand(9, 3, 11), rand(11, 13) / 4, rand(13, 13) / 4),
    **{
        kind.__name__: (Recurrent(kind(5, 11)), rand(3, 9, 5))
        for kind in (torch.nn.RNNCell, torch.nn.GRUCell, torch.nn.LSTMCell)
    },
}


@pytest.mark.parametrize("name", [name for name in RECURRENT if name != "projected"])
def test_products_that_are_summed_up_stand_behind_the_loop(name: str, tmp_path: Path) -> None:
    """Gradients of both matrices and of what is given, by one library call each; the LSTM's last step has its own."""
    function, x = RECURRENT[name]
    fast = compiled(function, tmp_path)

    def graded(called: Any) -> list[Any]:
        function.zero_grad()
        return [*gradients(called, (x,)), *(each.grad.clone() for each in function.parameters())]

    torch.testing.assert_close(graded(fast), graded(function), rtol=2e-4, atol=1e-5)
    report = explain(fast)
    assert sum(each.count("scan") for each in fused(report)) == 2, str(report)
    products = [name for each in report.regions for name in each.operators if "mm" in name]
    assert len(products) == (10 if name == "LSTMCell" else 4), str(report)


def test_an_associative_scan_on_a_gpu_is_a_loop() -> None:
    """There Dynamo keeps the operator (`combine_mode="pointwise"`); here its graph is written by hand."""
    pytest.importorskip("jax", reason="what is written is computed by XLA on the processor, from jax")

    def combine(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any]:
        return a * c, c * b + d

    mode, given = FakeTensorMode(allow_non_fake_inputs=True), (rand(13, 37), rand(13, 37))
    with mode:
        fakes = [mode.from_tensor(each) for each in given]
        root = torch.nn.Module()
        root.combine = make_fx(combine)(*(each[0] for each in (*fakes, *fakes)))
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(name) for name in "ab"]
    for each, fake in zip(inputs, fakes, strict=True):
        each.meta["val"] = fake
    scanned = graph.call_function(associative_scan_op, (graph.get_attr("combine"), inputs, ()))
    scanned.meta["val"] = tuple(fakes)
    second = graph.call_function(operator.getitem, (scanned, 1))
    second.meta["val"] = fakes[1]
    graph.output((second,))
    (region,) = regions.cut(recording.recorded(torch.fx.GraphModule(root, graph).graph))
    assert region.fusable
    text = importer.text("module", region.nodes, {name: Tensor((13, 37), "f32") for name in region.inputs}, ["getitem"])
    (got,) = computed(text, [each.numpy() for each in given])
    torch.testing.assert_close(torch.tensor(got), recurrence(*given), rtol=2e-5, atol=1e-5)
