"""HLO modules over whole arrays: what they compute, what has no counterpart, and how they stand in for a Program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from jax import lax

from benchmarks.rivals import asking, stitching
from benchmarks.rivals.base import difference
from benchmarks.rivals.called import Called
from benchmarks.rivals.frameworks import Torch
from benchmarks.stitching import measure, modules
from benchmarks.stitching.array_names import Names, NoCounterpart, NumPyNames, TorchNames
from benchmarks.stitching.arrays import Arrays
from fusiond.inputs.fills import fill
from fusiond.program import Buffer, Launch, Program, Role, Source
from fusiond_stitching.frontend import fills, importer
from fusiond_stitching.frontend.graph import DTYPES, HloModule
from tests.plugins.stitching import cases, oracle

CLOSE = {"float16": 2e-3, "bfloat16": 2e-2}
QUICK = ("nmt_fig3", "w2v_step")
NO_COUNTERPART = {
    "unary_chain": "erf of f32",
    "whole_numbers": "shift-left of s32",
    "conversions": "reduce-precision of f32",
    "arguments": "reduce by a computation of its own",
    "own_computations": "reduce by a computation of its own",
    "scatters": "scatter by another computation than add",
    "sixty_four": "shift-right-arithmetic of s64",
    "narrow_integers": "popcnt of u32",
    "float8": "NumPy has no arithmetic of f8e5m2",
    "bfloat16": "NumPy has no arithmetic of bf16",
    "bfloat16_in_and_out": "NumPy has no arithmetic of bf16",
}
"""What NumPy cannot compute of the cases, by the first of its instructions."""
MAPPED = sorted(set(cases.cases()) - set(NO_COUNTERPART))


def torch_names() -> Names:
    return TorchNames(pytest.importorskip("torch", reason="needs PyTorch as the rival: pip install torch"), "cpu")


def inputs(module: HloModule) -> list[np.ndarray]:
    """As the strategy fills them, in the order of the parameters."""
    given = fills.read(module, None, lambda node: ("", ""))
    found = []
    for name in module.parameters:
        of, buffer = module[name], module.buffer_of(name)
        kind = DTYPES[of.dtype]
        made = Buffer(name=buffer, dtype=kind, elements=of.elements, role=Role.INPUT, fill=given[buffer])
        found.append(fill(made, 1).reshape(of.dims))
    return found


def run(text: str, given: Sequence[np.ndarray], names: Names) -> float:
    """The worst difference of the outputs from XLA's."""
    module = importer.read(text, "module")
    function = Arrays(module, names)
    flat = {module.buffer_of(name): each.reshape(-1) for name, each in zip(module.parameters, given, strict=True)}
    if not isinstance(names, NumPyNames):
        flat = {name: names.module.from_numpy(np.array(each)) for name, each in flat.items()}
    with np.errstate(all="ignore"):
        found = function(flat)
    worst = 0.0
    for name, right in zip(module.outputs, oracle.run(text, given), strict=True):
        buffer = Buffer(
            name=module.buffer_of(name), dtype=DTYPES[module[name].dtype], elements=right.size, role=Role.OUTPUT
        )
        bits = right.view(np.uint16) if buffer.dtype == "bfloat16" else right
        worst = max(worst, difference(buffer, bits, np.asarray(found[buffer.name])))
    return worst


# --- what they compute ----------------------------------------------------------------------------------


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in modules.names()]
)
def test_a_module_of_the_catalogue_is_what_xla_computes(name: str) -> None:
    assert run(modules.text(name), inputs(modules.module(name)), NumPyNames()) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", modules.names())
def test_pytorch_computes_the_same(name: str) -> None:
    assert run(modules.text(name), inputs(modules.module(name)), torch_names()) < 1e-5


def small(name: str) -> str:
    """A large module at a size for the processor."""
    text = modules.text(name)
    for size, less in (("131072", "640"), ("16384", "48"), ("4096", "96"), ("1024", "40")):
        text = text.replace(size, less)
    return text


@pytest.mark.parametrize("name", modules.large())
def test_the_large_modules_are_what_xla_computes(name: str) -> None:
    text = small(name)
    assert run(text, inputs(importer.read(text, name)), NumPyNames()) < 1e-5


@pytest.mark.slow
@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", MAPPED)
def test_operations_of_numpy_are_those_of_xla(name: str) -> None:
    case = cases.cases()[name]
    text = oracle.lowered(case.function, *case.inputs, x64=True)
    assert run(text, case.inputs, NumPyNames()) < CLOSE.get(name, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(each for each in MAPPED if each != "whole_dots"), "bfloat16"])
def test_operations_of_pytorch_are_those_of_xla(name: str) -> None:
    case = cases.cases()[name]
    text = oracle.lowered(case.function, *case.inputs, x64=True)
    assert run(text, case.inputs, torch_names()) < CLOSE.get(name, 1e-6)


def picked(table: Any, index: Any, wild: Any, new: Any) -> tuple[Any, ...]:
    """Additions at places that may be the same or outside, elements by batches, and what the ends of numbers are."""
    batches = lax.GatherDimensionNumbers((2,), (1,), (1,), operand_batching_dims=(0,), start_indices_batching_dims=(1,))
    return (
        table.at[wild].add(new, mode="drop"),
        table.at[wild, 1].add(new[:, 0], mode="drop"),
        lax.gather(table[None].repeat(3, 0), index, batches, (1, 1, 4), mode="clip"),
        lax.clamp(np.float32(-0.25), table, np.float32(0.5)),
        lax.reduce(table, np.float32(0.25), lax.max, (1,)),
        lax.reduce(table, np.float32(3.0), lax.add, (0,)),
    )


PICKED = (
    cases.rand(6, 4), cases.rand(5, 3, 1, dtype="int32", high=5.0, low=0.0), np.array([4, -9, 4, 7, 6, 0], np.int32),
    cases.rand(6, 4, seed=1),
)  # fmt: skip
TURNED = """\
HloModule turned

ENTRY main {
  x = f32[2,3] parameter(0)
  unread = f32[5] parameter(1)
  ROOT y = f32[3,4,2] broadcast(x), dimensions={2,0}
}
"""


def check_picked(names: Names) -> None:
    assert run(oracle.lowered(picked, *PICKED), PICKED, names) < 1e-6


def test_places_and_ends_are_those_of_xla() -> None:
    check_picked(NumPyNames())


@pytest.mark.slow
def test_places_and_ends_of_pytorch_are_those_of_xla() -> None:
    check_picked(torch_names())


def test_what_nobody_reads_needs_no_buffer_and_a_broadcast_may_turn() -> None:
    x = np.arange(6, dtype=np.float32)
    found = Arrays(importer.read(TURNED, "turned.hlo"), NumPyNames())({"in_0": x})
    expected = np.broadcast_to(x.reshape(2, 3).T[:, None, :], (3, 4, 2))
    assert np.array_equal(found["out_0"], expected.reshape(-1))


VECTOR_FIRST = """\
HloModule vector_first

ENTRY main {
  x = f32[3,6,4] parameter(0)
  at = s32[1,3,5] parameter(1)
  ROOT y = f32[3,5,4] gather(x, at), WINDOWS, slice_sizes={1,1,4}, index_vector_dim=0
}
"""
WINDOWS = (
    "offset_dims={2}, collapsed_slice_dims={1}, start_index_map={1}, operand_batching_dims={0}, "
    "start_indices_batching_dims={1}"
)


def test_the_dimension_of_index_vectors_may_come_before_the_batches() -> None:
    given = [cases.rand(3, 6, 4), cases.rand(1, 3, 5, dtype="int32", low=0.0, high=5.0)]
    assert run(VECTOR_FIRST.replace("WINDOWS", WINDOWS), given, NumPyNames()) == 0.0


LEFT = np.array([7, -7, 7, -7, -(2**31), -(2**31), 5, 0, 2**31 - 1], np.int32)
RIGHT = np.array([2, 2, -2, -2, 3, -1, 0, 0, -1], np.int32)
REAL = np.array([np.nan, np.inf, -np.inf, 2.0**31, -(2.0**31), 2147483520.0, -1.9, 1.9, 255.5, 127.9], np.float32)


def check_numbers(names: Names) -> None:
    """Integers divide towards zero, by zero as HLO says; floats become integers that saturate."""
    text = oracle.lowered(lambda a, b: (lax.div(a, b), lax.rem(a, b)), LEFT, RIGHT)
    assert run(text, [LEFT, RIGHT], names) == 0.0
    kinds = ("int8", "uint8", "int16", "int32", "int64", "bool")
    text = oracle.lowered(lambda x: tuple(lax.convert_element_type(x, each) for each in kinds), REAL, x64=True)
    assert run(text, [REAL], names) == 0.0


def test_integers_are_those_of_xla() -> None:
    check_numbers(NumPyNames())


def test_integers_of_pytorch_are_those_of_xla() -> None:
    check_numbers(torch_names())


# --- what has no counterpart ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(NO_COUNTERPART))
def test_what_has_no_counterpart_is_named(name: str) -> None:
    case = cases.cases()[name]
    module = importer.read(oracle.lowered(case.function, *case.inputs, x64=True), name)
    with pytest.raises(NoCounterpart, match=rf"^{NO_COUNTERPART[name]}.* \({name}:\d+\)$"):
        Arrays(module, NumPyNames())


LOOP = """\
HloModule loop

body {
  p = f32[4] parameter(0)
  ROOT n = f32[4] negate(p)
}

condition {
  p = f32[4] parameter(0)
  ROOT t = pred[] constant(true)
}

ENTRY main {
  x = f32[4] parameter(0)
  ROOT w = f32[4] while(x), condition=condition, body=body
}
"""


def test_a_loop_is_named() -> None:
    with pytest.raises(NoCounterpart, match=r"^while 'w': how often it runs is not known beforehand \(loop.hlo:15\)$"):
        Arrays(importer.read(LOOP, "loop.hlo"), NumPyNames())


def test_pytorch_lacks_wide_unsigned_integers() -> None:
    torch = MagicMock(float32="float32")
    names = TorchNames(torch, "cpu")
    assert names.type("f32") == "float32"
    with pytest.raises(NoCounterpart, match="PyTorch has no arithmetic of uint32"):
        names.type("u32")


# --- as rivals ------------------------------------------------------------------------------------------


def test_every_rival_can_be_asked_for_by_name() -> None:
    names = [each.name for each in asking.of("stitching")]
    assert names == ["torch.compile", "torch.compile, combo kernels", "torch.compile, max-autotune"]
    assert [asking.named(f"stitching:{each}").name for each in names] == names


def test_what_is_not_installed_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "triton" else True)
    found = {asking.row(each, ["/bin/false"])["problem"] for each in stitching.RIVALS}
    assert found == {"triton is not installed: pip install triton"}


def test_an_option_that_this_pytorch_does_not_know_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    inductor = SimpleNamespace(list_options=lambda: ["max_autotune"])
    monkeypatch.setattr("importlib.import_module", lambda name: inductor)
    torch = SimpleNamespace(torch=SimpleNamespace(__version__="2.0.1"), device="cpu")
    with pytest.raises(stitching.Unknown, match=r"PyTorch 2\.0\.1 has no Inductor option 'combo_kernels'"):
        stitching.compiled(modules.module("nmt_fig3"), torch, {"combo_kernels": True})  # type: ignore[arg-type]


class FakeBench:
    """On a GPU, where nothing is measured."""

    emulated = False

    @contextmanager
    def measurer(self) -> Iterator[None]:
        yield None


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the modules whose plans were measured, of a table whose rivals take 2 us beside 1 us of ours."""
    planned: list[str] = []

    def plans(bench: Any, measurer: Any, name: str) -> dict[str, Any]:
        planned.append(name)
        rivals = [{"name": "XLA", "ratio": 1.5}, *asking.without("stitching", measure.NOT_ASKED)]
        return {"module": name, "best": "packed", "rivals": rivals}

    def asked(*given: Any, only: Sequence[str]) -> Iterator[dict[str, Any]]:
        for name in only:
            yield {"name": name, "ratio": 2.0, "time_us": 2.0, "ours_us": 1.0, "clock": "device"}

    monkeypatch.setattr(measure, "_plans", plans)
    monkeypatch.setattr(measure, "_fastest", lambda bench, row: None)
    monkeypatch.setattr(asking, "asked", asked)
    return planned


def asked_of(row: dict[str, Any]) -> list[str]:
    return [each["name"] for each in row["rivals"] if "ratio" in each]


def test_a_row_is_there_before_its_rivals_and_comes_again_with_each(rows: list[str]) -> None:
    found = list(measure.table(FakeBench(), ["nmt_fig3"]))  # type: ignore[arg-type]
    assert [len(asked_of(each)) for each in found] == [1, 2, 3, 4]
    assert {each["portion"] for each in found[-1]["rivals"][1:]} == {"whole module"}  # it has a dot
    assert asking.cell(found[-1]["rivals"]) == "1.50 (XLA)"
    assert asking.cell(found[-1]["rivals"][1:]) == "2.00 (torch.compile, whole module)"
    (last,) = [each for each in measure.table(FakeBench(), ["softmax"]) if len(asked_of(each)) == 4]  # type: ignore[arg-type]
    assert all("portion" not in each for each in last["rivals"])


def test_a_run_that_goes_on_asks_only_the_rivals_that_are_left(rows: list[str]) -> None:
    stopped = list(measure.table(FakeBench(), ["nmt_fig3"]))[1]  # type: ignore[arg-type]
    found = list(measure.table(FakeBench(), ["nmt_fig3"], [stopped]))  # type: ignore[arg-type]
    assert rows == ["nmt_fig3"]
    assert [len(asked_of(each)) for each in found] == [2, 3, 4]
    refused = {key: each for key, each in stopped.items() if key != "best"}
    list(measure.table(FakeBench(), ["nmt_fig3"], [refused]))  # type: ignore[arg-type]
    assert rows == ["nmt_fig3", "nmt_fig3"]


def stand_in(module: HloModule) -> Program:
    """A Program with a module's buffers; its launch is never looked at."""
    buffers = [
        Buffer(name=module.buffer_of(each), dtype=DTYPES[module[each].dtype], elements=module[each].elements, role=role)
        for names, role in ((module.parameters, Role.INPUT), (module.outputs, Role.OUTPUT))
        for each in names
    ]
    step = Launch(name="k", source="k", entry="k", grid=(1, 1, 1), block=(32, 1, 1), arguments=())
    return Program(
        name="module", buffers=tuple(buffers), sources=(Source(name="k", text="", entries=("k",)),), steps=(step,)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch.compile", "torch.compile, combo kernels"])
def test_torch_compile_as_a_rival(gpu: Any, name: str) -> None:
    pytest.importorskip("torch", reason="needs PyTorch as the rival: pip install torch")
    module, framework = modules.module("nmt_fig3"), Torch("cpu")
    rival = next(each for each in stitching.RIVALS if each.name == name)
    assert isinstance(rival, stitching.Compiled)
    function = stitching.compiled(module, framework, rival.options)
    loaded = Called(gpu.cuda, gpu.executor.spans, stand_in(module), framework, function)
    given = inputs(module)
    for parameter, data in zip(module.parameters, given, strict=True):
        loaded.write(module.buffer_of(parameter), data.reshape(-1))
    loaded.run(seed=0, checked=False)
    assert loaded.sample_us(2) > 0
    for place, right in enumerate(oracle.run(modules.text("nmt_fig3"), given)):
        assert np.allclose(loaded.read(f"out_{place}"), right.reshape(-1), rtol=1e-5, atol=1e-6)
