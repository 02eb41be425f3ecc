"""`torch.compile(model, backend="fusiond")`, where torch is installed, gives what eager torch gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'fusiond[torch]'")

from fusiond.service.frameworks import region_answers  # noqa: E402
from fusiond.service.frameworks.region_answers import Found, Question  # noqa: E402
from fusiond.torch import explain  # noqa: E402
from fusiond.torch.backend import backend  # noqa: E402
from fusiond.torch.splicing import SplicedRegion  # noqa: E402
from tests.service.frameworks.answered import answer, emitted  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a, self.b = torch.nn.LayerNorm(16), torch.nn.Linear(16, 24), torch.nn.Linear(24, 5)

    def forward(self, x: Any, target: Any) -> Any:
        hidden = torch.nn.functional.silu(self.a(self.norm(x))) * 2
        return torch.nn.functional.cross_entropy(self.b(hidden), target)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Question]]:
    def make(find: Callable[[Question], Found]) -> list[Question]:
        return answer(monkeypatch, find)

    return make


def step(model: Any, parameters: Any, *arguments: Any) -> list[Any]:
    parameters.zero_grad()
    loss = model(*arguments)
    loss.backward()
    return [loss.detach().clone(), *(each.grad.clone() for each in parameters.parameters())]


def same(got: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("fallback", ["eager", "inductor"])
def test_a_model_gives_what_it_gave(answers: Callable[..., Any], tmp_path: Path, fallback: str) -> None:
    asked = answers(emitted)
    model, x, target = Model(), torch.randn(8, 16), torch.randint(0, 5, (8,))
    wanted = step(model, model, x, target)
    compiled = torch.compile(
        model, backend=backend, options={"always": True, "fallback": fallback, "db": tmp_path / "store.sqlite"}
    )
    for _ in range(2):
        same(step(compiled, model, x, target), wanted)
    states = [each.state for each in explain(compiled).regions]
    assert states.count("fused") >= 3
    assert not {"refused", "unknown", "kept"} & set(states)
    assert asked


def filtered(x: Any) -> Any:
    """As kornia writes it: taps computed from a sigma, a border, a filter for each channel; and a check of numbers."""
    torch._assert_async(torch.tensor(1.5) > 0)
    taps = torch.exp(-((torch.arange(5) - 2.0) ** 2) / torch.tensor([[2 * 1.5**2]]))
    taps = (taps / taps.sum(-1, keepdim=True)).expand(3, 1, 1, 5)
    wide = torch.nn.functional.pad(x, (2, 2, 0, 0), mode="reflect")
    blurred = torch.nn.functional.conv2d(wide, taps, groups=3)
    mean = torch.tensor([0.1, 0.2, 0.3]).view(1, 3, 1, 1)
    return (x + 0.7 * (x - blurred) - mean) / torch.tensor(0.25)


@pytest.mark.parametrize("fallback", ["eager", "inductor"])
def test_numbers_of_a_function_are_constants_of_its_region(
    answers: Callable[..., Any], tmp_path: Path, fallback: str
) -> None:
    programs: list[Any] = []

    def find(question: Question) -> Found:
        found = emitted(question)
        programs.append(found.program)
        return found

    asked = answers(find)
    x = torch.randn(2, 3, 9, 14)
    options = {"always": True, "fallback": fallback, "db": tmp_path / "store.sqlite"}
    compiled = torch.compile(filtered, backend=backend, options=options)
    with torch.no_grad():
        same([compiled(x)], [filtered(x)])
    (region,) = [each for each in explain(compiled).regions if each.state != "library"]
    assert region.state == "fused", region.reason
    assert asked[0].text.count("parameter(") == 1 + asked[0].text.split("ENTRY")[0].count("parameter(")
    assert "gather" not in asked[0].text
    assert "exponential" not in asked[0].text
    assert len(programs[0].steps) == 1
    assert "the pipeline images" in programs[0].sources[0].text


def test_an_answer_is_taken_up_between_two_calls(answers: Callable[..., Any], tmp_path: Path) -> None:
    known: list[bool] = []
    changed: list[Callable[[], None]] = []
    answers(lambda question: emitted(question) if known else Found(state="unknown", reason="nothing is known yet"))
    asker = region_answers.of(tmp_path / "store.sqlite")
    asker.want = lambda question, told: changed.append(told)  # type: ignore[method-assign, misc]
    model, x, target = Model(), torch.randn(8, 16), torch.randint(0, 5, (8,))
    wanted = step(model, model, x, target)
    options = {"always": True, "fallback": "eager", "db": tmp_path / "store.sqlite"}
    compiled = torch.compile(model, backend=backend, options=options)
    same(step(compiled, model, x, target), wanted)
    assert {each.state for each in explain(compiled).regions} == {"library", "unknown"}
    known.append(True)
    for each in changed:
        each()
    same(step(compiled, model, x, target), wanted)
    assert "fused" in {each.state for each in explain(compiled).regions}
    assert "unknown" not in {each.state for each in explain(compiled).regions}


def test_on_a_processor_nothing_runs_unasked(answers: Callable[..., Any], tmp_path: Path) -> None:
    asked = answers(emitted)
    model, x, target = Model(), torch.randn(8, 16), torch.randint(0, 5, (8,))
    compiled = torch.compile(model, backend=backend, options={"fallback": "eager", "db": tmp_path / "store.sqlite"})
    same(step(compiled, model, x, target), step(model, model, x, target))
    assert asked == []
    assert "kernels for a processor are for trying out: always=True" in str(explain(compiled))


def test_fusiond_off(monkeypatch: pytest.MonkeyPatch, answers: Callable[..., Any], tmp_path: Path) -> None:
    monkeypatch.setenv("FUSIOND", "off")
    asked = answers(emitted)
    function = torch.compile(lambda x: (x.exp() + 1).tanh(), backend=backend,
                             options={"always": True, "fallback": "eager"})  # fmt: skip
    x = torch.randn(8)
    torch.testing.assert_close(function(x), (x.exp() + 1).tanh())
    assert asked == []


def test_memory_that_lies_otherwise(answers: Callable[..., Any], tmp_path: Path) -> None:
    """Transposed, sliced and expanded inputs; transposed and broadcast outputs, with the strides of eager torch."""
    answers(emitted)

    def function(a: Any, b: Any, c: Any) -> Any:
        total = (a.t() * 2 + b).exp()
        return total, total.t(), (total + c).sum(0), a.t().tanh() * 3, (b + 1).expand(3, *b.shape)

    a, b, c = torch.randn(5, 12), torch.randn(13, 5)[1:], torch.randn(1, 5).expand(12, 5)
    options = {"always": True, "fallback": "eager", "db": tmp_path / "store.sqlite"}
    compiled = torch.compile(function, backend=backend, options=options)
    for got, wanted in zip(compiled(a, b, c), function(a, b, c), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=1e-6)
        assert got.stride() == wanted.stride()
    assert "fused" in {each.state for each in explain(compiled).regions}


@pytest.mark.parametrize("dynamic", [False, True, None])
def test_another_shape_is_another_question(answers: Callable[..., Any], tmp_path: Path, dynamic: bool | None) -> None:
    asked = answers(emitted)
    options = {"always": True, "fallback": "eager", "db": tmp_path / "store.sqlite"}

    def function(x: Any) -> Any:
        return (x.exp() + 1).tanh() * x.shape[0]

    compiled = torch.compile(function, backend=backend, options=options, dynamic=dynamic)
    for rows in (4, 6, 7, 6, 4):
        x = torch.randn(rows, 8, requires_grad=True)
        compiled(x).sum().backward()
        got, x.grad = x.grad, None
        function(x).sum().backward()
        torch.testing.assert_close(got, x.grad)
    shapes = {each.text for each in asked if "forward" in each.name}
    assert len(shapes) == 3
    assert {each.state for each in explain(compiled).regions} <= {"fused", "library"}


def test_what_is_written_into(answers: Callable[..., Any], tmp_path: Path) -> None:
    """A buffer that each call changes: the same state after the same calls."""
    answers(emitted)

    def function(seen: Any, x: Any) -> Any:
        seen.mul_(0.9).add_(x.mean(0))
        return (x * 2).tanh() * seen.exp()

    options = {"always": True, "fallback": "eager", "db": tmp_path / "store.sqlite"}
    compiled = torch.compile(function, backend=backend, options=options)
    one, other = torch.zeros(6), torch.zeros(6)
    for _ in range(3):
        x = torch.randn(4, 6)
        torch.testing.assert_close(compiled(one, x), function(other, x))
        torch.testing.assert_close(one, other)


def test_a_region_falls_back_by_itself() -> None:
    class Broken:
        problem = ""

        def __call__(self, tensors: Any) -> Any:
            raise ValueError("broken")

    region = SplicedRegion(Broken(), lambda x: (x + 1,))
    assert region(1) == (2,)
    assert region.code.problem == "broken"


@pytest.mark.parametrize("fallback", ["inductor", "eager"])
def test_complex_numbers_and_what_their_views_put_off(
    answers: Callable[..., list[Question]], tmp_path: Path, fallback: str
) -> None:
    """Conjugates and negatives that torch notes in place of computing them are computed before a kernel reads them."""
    answers(emitted)

    def turned(q: Any, turn: Any, scale: Any) -> Any:
        z = torch.view_as_complex(q.float().unflatten(-1, (-1, 2))) * turn
        return (torch.view_as_real(z).flatten(-2) * scale).type_as(q), z.abs() + (z.conj() * z).real

    options = {"always": True, "fallback": fallback, "db": tmp_path / "store.sqlite"}
    compiled = torch.compile(turned, backend=backend, options=options)
    turn = torch.polar(torch.ones(7, 5), torch.randn(7, 5))
    q = torch.randn(3, 7, 10).bfloat16().requires_grad_()
    lazy = torch.complex(torch.randn(7, 1), torch.randn(7, 1)).conj().imag
    for rows, scale in ((turn, torch.randn(7, 1)), (turn.conj(), lazy)):
        results = []
        for function in (compiled, turned):
            q.grad = None
            one, other = function(q, rows, scale)
            (one.float().square().sum() + other.sum()).backward()
            results.append([one.float(), other, q.grad.float()])
        for got, wanted in zip(*results, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-3)
    assert "fused" in str(explain(compiled))
