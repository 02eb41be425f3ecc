"""Each operator of the table gives what NumPy, SciPy and JAX say; stitching reads what is written."""

import numpy as np
import pytest

pytest.importorskip("jax", reason="the oracle is XLA on the processor, from jax")

from fusiond.torch import importer
from fusiond.torch.graphs import FxGraph, FxNode, Ref, Tensor
from fusiond.torch.operators import PRODUCTS, TABLE
from fusiond_stitching.frontend import importer as stitching

from .conftest import computed
from .operators import CASES, Case


def written(graph: FxGraph) -> str:
    return importer.text("module", graph.nodes, graph.inputs, graph.outputs)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=lambda each: each.name)
def test_an_operator_gives_what_it_should(case: Case) -> None:
    tensors = case.graph.tensors()
    library = "a library's" if case.operator in PRODUCTS else ""
    assert importer.problem(case.graph.nodes[0], tensors) == library
    text = written(case.graph)
    assert library or not stitching.read(text, "module").foreign
    wanted = [each for each in case.wanted if each is not None]
    for got, expected in zip(computed(text, case.inputs), wanted, strict=True):
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        loose = expected.dtype.itemsize == 2
        np.testing.assert_allclose(
            got.astype(np.complex128), expected.astype(np.complex128), rtol=8e-3 if loose else 3e-5, atol=1e-6
        )


def test_every_operator_of_the_table_is_tried() -> None:
    assert set(TABLE) == {each.operator for each in CASES}


@pytest.mark.parametrize("places", [(2, 1, 0, 1, 2, 3, 4, 3), (0, 0, 0, 1, 2, 3, 4, 4), (4, 3, 2, 1, 0), (0, 2, -1, 1)])
def test_what_lies_at_fixed_places_is_slices(places: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).random((3, 5, 2), np.float32)
    fixed = FxNode(name="at", operator="constant", arguments=(places,), results=(Tensor((len(places),), "s64"),))
    wanted = x[:, np.array(places)]
    index = FxNode(name="y", operator="aten._unsafe_index.Tensor", arguments=(Ref("x"), (None, Ref("at"))),
                   results=(Tensor(wanted.shape, "f32"),))  # fmt: skip
    graph = FxGraph(inputs={"x": Tensor(x.shape, "f32")}, nodes=(fixed, index), outputs=("y",))
    text = written(graph)
    assert "gather" not in text
    assert "constant(" not in text
    np.testing.assert_array_equal(computed(text, [x])[0], wanted)


@pytest.mark.parametrize(
    ("tensor", "order"),
    [
        (Tensor((2, 3, 4), "f32", (12, 4, 1)), (0, 1, 2)),
        (Tensor((2, 3, 4), "f32", (12, 1, 3)), (0, 2, 1)),
        (Tensor((2, 1, 4), "f32", (1, 99, 2)), (1, 2, 0)),
        (Tensor((2, 3), "f32", (0, 1)), (0, 1)),  # expanded
        (Tensor((2, 3), "f32", (6, 2)), (0, 1)),  # with gaps
        (Tensor((), "f32", ()), ()),
    ],
)
def test_the_order_of_dimensions_in_memory(tensor: Tensor, order: tuple[int, ...]) -> None:
    assert tensor.order == order


FLOATS, LONG = Tensor((4, 6), "f32"), Tensor((4, 1), "s64")


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (FxNode(name="y", operator="aten.mm.default", results=(FLOATS,)), "a library's"),
        (FxNode(name="y", operator="aten.exp.default", arguments=(Ref("x"),), results=(None,)), "its result"),
        (FxNode(name="y", operator="aten.exp.default", arguments=(Ref("s"),), results=(FLOATS,)), "it reads what"),
        (FxNode(name="y", operator="aten.exp.default", arguments=(Ref("e"),), results=(Tensor((0, 6), "f32"),)),
         "a tensor is empty"),
        (FxNode(name="y", operator="aten.add.Tensor", arguments=(Ref("x"), Ref("g")), results=(FLOATS,)),
         "its tensors lie on several devices"),
        (FxNode(name="y", operator="aten.add_.Tensor", arguments=(Ref("x"), 1), results=(FLOATS,), effect="mutation"),
         "it writes into what it is given"),
        (FxNode(name="y", operator="aten.bernoulli.p", arguments=(Ref("x"),), results=(FLOATS,), effect="random"),
         "it draws random numbers"),
        (FxNode(name="y", operator="aten.sort.default", arguments=(Ref("l"),), results=(FLOATS, FLOATS)),
         "a sort of more than 128 elements a row"),
        (FxNode(name="y", operator="aten.sum.dim_IntList", arguments=(Ref("x"), (0,)), results=(FLOATS,)),
         "its arguments are not understood"),
        (FxNode(name="y", operator="aten.slice.Tensor", arguments=(Ref("x"), 0, Ref("s")), results=(FLOATS,)),
         "it reads"),
        (FxNode(name="y", operator="aten.exp.default", results=(FLOATS,)), "an argument is missing"),
        (FxNode(name="y", operator="aten.scatter.value", arguments=(Ref("x"), 1, Ref("i"), 1.0), results=(FLOATS,)),
         ""),
    ],
)  # fmt: skip
def test_what_is_left_to_torch_has_its_reason(node: FxNode, reason: str) -> None:
    on_gpu = Tensor((4, 6), "f32", device="cuda:0")
    tensors = {
        "x": (FLOATS,), "s": (None,), "e": (Tensor((0, 6), "f32"),), "g": (on_gpu,), "i": (LONG,),
        "l": (Tensor((4, 129), "f32"),),
    }  # fmt: skip
    found = importer.problem(node, tensors)
    assert bool(found) == bool(reason)
    assert found.startswith(reason)
