"""Graphs that Inductor really wrote for a GPU, run without one: combined, they give what eager torch gives."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'fusiond[torch]'")
pytest.importorskip("triton", reason="needs Triton: pip install triton")

from fusiond.cuda.recording import groups, machines  # noqa: E402
from fusiond.model.ptx import triton  # noqa: E402
from fusiond.service.frameworks.region_answers import Found, FusionOptions  # noqa: E402
from fusiond.torch import combining, explain  # noqa: E402
from fusiond.torch.backend import backend  # noqa: E402
from fusiond.torch.combining import CombinedGraph, LaunchRound  # noqa: E402
from fusiond.torch.explaining import CompiledGraphs  # noqa: E402
from tests.service.frameworks.answered import answer, measured  # noqa: E402

from . import interpreting, without_gpu  # noqa: E402
from .combined import adam, adams, norms  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
Function = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def a_gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        without_gpu.pretend(patch, tmp_path_factory.mktemp("compiled"))
        interpreting.instead_of_a_driver(patch)
        yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    groups.forget()
    torch.manual_seed(0)
    interpreting.launched.clear()
    yield
    groups.forget()


def graph_of(function: Function, inputs: list[Any], folder: Path) -> Any:
    (text,) = without_gpu.written(function, *inputs)
    return without_gpu.loaded(text, folder)


def handed(inputs: list[Any]) -> list[Any]:
    """Copies, which a graph may write to."""
    return [without_gpu.owned(each.detach().clone()) for each in inputs]


def check(function: Function, inputs: list[Any], graph: Any) -> None:
    given, expected = handed(inputs), [each.detach().clone() for each in inputs]
    found, wanted = graph(list(given)), function(*expected)
    for one, other in zip([*found, *given], [*wanted, *expected], strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)


def attention(x: Any, y: Any, w: Any, v: Any) -> Any:
    """Two projections, each with a norm of its own, and their product."""
    q, k = (torch.nn.functional.rms_norm(each @ weight, (8,)) for each, weight in ((x, w), (y, v)))
    return [torch.softmax(q @ k.T, -1)]


CASES: dict[str, tuple[Function, list[Any], list[int]]] = {
    "norms": (norms, [torch.empty(6, 100), torch.empty(4, 33), torch.empty(5, 70)], [4]),
    "adam": (adam, adams(), [6]),
    "attention": (attention, [torch.empty(*each) for each in ((12, 16), (10, 16), (16, 8), (16, 8))], [2]),
}
"""With how many launches come together."""


def filled(inputs: list[Any]) -> list[Any]:
    return [torch.rand_like(each) for each in inputs]


@pytest.mark.parametrize("name", CASES)
def test_it_gives_what_eager_torch_gives(
    name: str, monkeypatch: pytest.MonkeyPatch, options: FusionOptions, tmp_path: Path
) -> None:
    function, inputs, together = CASES[name]
    asked = answer(monkeypatch, measured)
    record = CompiledGraphs(None)
    graph = CombinedGraph("forward", graph_of(function, inputs, tmp_path), options, record)
    check(function, filled(inputs), graph)
    before = len(interpreting.launched)
    for _ in range(2):
        interpreting.launched.clear()
        check(function, filled(inputs), graph)
    assert [len(each.operators) for each in graph.regions()] == together
    assert {each.state for each in graph.regions()} == {"fused"}
    assert len(interpreting.launched) == before - sum(together) + len(together)
    assert not record.notes
    assert len(asked) == len(together)


def in_any_order(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Rounds run their launches in any order, and nothing is asked."""
    draw = random.Random(seed)

    def called(self: LaunchRound, *launches: Any) -> None:
        for number in draw.sample(range(len(launches)), len(launches)):
            self._kernels[number].run(*launches[number])

    monkeypatch.setattr(LaunchRound, "__call__", called)


def drawn(seed: int) -> tuple[Function, list[Any]]:
    """A function of small tensors, some of which it writes to."""
    draw = random.Random(seed)
    rows = draw.randint(2, 5)
    sizes = [draw.choice([3, 8]) for _ in range(draw.randint(2, 4))]
    steps = [(draw.randrange(7), draw.randrange(100), draw.randrange(100)) for _ in range(draw.randint(5, 12))]

    def function(*inputs: Any) -> Any:
        values = list(inputs)
        for kind, one, other in steps:
            a, b = values[one % len(values)], values[other % len(values)]
            if kind == 0:
                values.append(torch.nn.functional.layer_norm(a, a.shape[-1:]))
            elif kind == 1:
                values.append(a @ b.T if a.shape == b.shape else a * 0.5)
            elif kind == 2:
                inputs[one % len(inputs)].add_(a.mean())
            elif kind == 3:
                values.append(torch.softmax(a, -1) + b.sum())
            elif kind == 4:
                values.append(torch.cat([a, b], -1) if a.shape[0] == b.shape[0] else a.cumsum(0))
            elif kind == 5:
                values.append(a.T.contiguous() * 2)
            else:
                inputs[other % len(inputs)].copy_(torch.sigmoid(inputs[other % len(inputs)]) + a.amax())
        return values[len(inputs) :]

    return function, [torch.rand(rows, each) for each in sizes]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_launches_that_need_each_other_never_come_together(
    seed: int, monkeypatch: pytest.MonkeyPatch, options: FusionOptions, tmp_path: Path
) -> None:
    """To the last bit what Inductor's own order of the same launches gives."""
    in_any_order(monkeypatch, seed)
    function, inputs = drawn(seed)
    (text,) = without_gpu.written(function, *inputs)
    plain = without_gpu.loaded(text, tmp_path)
    graph = CombinedGraph("forward", without_gpu.loaded(text, tmp_path), options, CompiledGraphs(None))
    for _ in range(3):
        values = filled(inputs)
        one, other = handed(values), handed(values)
        for got, wanted in zip([*graph(list(one)), *one], [*plain(list(other)), *other], strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("before", [False, True])
def test_a_captured_graph_takes_up_an_answer(
    before: bool, monkeypatch: pytest.MonkeyPatch, options: FusionOptions, tmp_path: Path
) -> None:
    """A graph that replays what it did while it was captured, as a CUDA graph does, in place of running. An answer that
    is known `before`, too: nothing is loaded during a capture."""
    known: list[str] = ["an answer"] * before
    answer(monkeypatch, lambda question: measured(question) if known else Found(state="unknown"))
    wanted: list[Callable[[], None]] = []
    monkeypatch.setattr(combining.groups.Asker, "want", lambda self, question, changed: wanted.append(changed))
    monkeypatch.setattr(combining.groups.Asker, "problem", lambda self, question: "")
    inputs = adams(2)
    texts: list[Any] = []

    def compiled() -> Any:
        found = graph_of(adam, inputs, tmp_path)
        texts.append(Captured(found))
        return texts[-1]

    class Captured:
        def __init__(self, graph: Any) -> None:
            self.graph, self.compiled_fn_runner, self.calls = graph, graph.compiled_fn_runner, 0
            self.captured: list[str] = []

        def __call__(self, given: list[Any]) -> Any:
            """Runs, is captured, and is replayed: with other memory, which is left out here."""
            self.calls += 1
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(machines, "capturing", lambda stream, device: self.calls == 2)
                interpreting.launched.clear()
                self.graph(given)
                if self.calls == 2:
                    self.captured = list(interpreting.launched)

    graph = CombinedGraph("forward", compiled(), options, CompiledGraphs(None))
    graph.again = compiled
    for _ in range(2):
        graph(handed(inputs))
    assert len(texts) == 1
    assert len(texts[0].captured) == 2
    known.append("an answer")
    for changed in wanted:
        changed()
    for _ in range(5):
        graph(handed(inputs))
    assert len(texts) == 2
    assert texts[1].calls == 5
    assert len(texts[1].captured) == 1
    assert [each.state for each in graph.regions()] == ["fused"]


def test_a_fault_of_ours_leaves_the_launches(
    monkeypatch: pytest.MonkeyPatch, options: FusionOptions, tmp_path: Path
) -> None:
    def fails(*given: Any) -> Any:
        raise KeyError("something\nunforeseen")

    monkeypatch.setattr(combining.InductorKernel, "described", fails)
    inputs = adams(2)
    graph = CombinedGraph("forward", graph_of(adam, inputs, tmp_path), options, CompiledGraphs(None))
    for _ in range(3):
        check(adam, inputs, graph)
    (region,) = graph.regions()
    assert (region.state, region.reason) == ("refused", "'something\\nunforeseen'")


def test_a_kernel_whose_cubin_inductor_launches(tmp_path: Path) -> None:
    """Of Triton's object only files in its cache are left then."""
    from torch._inductor.runtime.runtime_utils import triton_hash_to_path_key
    from torch._inductor.runtime.triton_heuristics import StaticTritonCompileResult
    from triton.compiler import CompiledKernel

    graph = graph_of(adam, adams(1), tmp_path)
    graph(handed(adams(1)))
    scope = graph.compiled_fn_runner.call.__globals__
    (tuner,) = (each for name, each in scope.items() if name.startswith("triton_poi"))
    at_hand = combining.kernel(tuner)
    assert at_hand is not None
    assert isinstance(at_hand.compiled, CompiledKernel)
    (result,) = tuner.compile_results
    alone = StaticTritonCompileResult.can_statically_launch.__wrapped__(
        result.kernel, tuner.inductor_meta, tuner.triton_meta, tuner.heuristic_type
    )
    assert alone is not None
    alone.cubin_path = None  # as it is once it is loaded
    tuner.compile_results = [StaticTritonCompileResult(alone, result.config, result.compile_meta, tuner.inductor_meta)]
    tuner.launchers[0].cache_hash = triton_hash_to_path_key(alone.hash)
    left = combining.kernel(tuner)
    assert left is not None
    assert not isinstance(left.compiled, CompiledKernel)
    assert triton.of(left.compiled) == triton.of(at_hand.compiled)


def test_a_model_of_the_processor_has_no_launches_to_combine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By torch.compile itself: Inductor writes C++ there. Compiled once more, a graph gives the same."""
    graphs: list[CombinedGraph] = []
    made = CombinedGraph.__init__

    def kept(self: CombinedGraph, *given: Any) -> None:
        made(self, *given)
        graphs.append(self)

    monkeypatch.setattr(CombinedGraph, "__init__", kept)
    monkeypatch.setattr(combining, "_replayed", lambda named: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    torch._dynamo.reset()
    x = torch.rand(4, 5)
    compiled = torch.compile(
        lambda x: torch.softmax(x, -1) * 2, backend=backend, options={"combine": "measured", "db": tmp_path / "db"}
    )
    for _ in range(2):
        torch.testing.assert_close(compiled(x), torch.softmax(x, -1) * 2)
    assert not [each for each in explain(compiled).regions if "round" in each.name]
    assert not explain(compiled).notes
    (graph,) = graphs
    assert graph.again is not None
    (again,) = graph.again()([x])
    torch.testing.assert_close(again, compiled(x))
