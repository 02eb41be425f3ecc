"""Every element type crosses and is computed with: on the cpu device, against NumPy and ml_dtypes."""

import ctypes
import math
import random
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fusiond.model.language.dtypes import DTYPES
from fusiond_transfer.analysis.schedules import Schedules
from fusiond_transfer.analysis.script import script
from fusiond_transfer.codegen import body, emit
from fusiond_transfer.frontend.graph import Graph
from fusiond_transfer.frontend.single_assignment import renamed

from .conftest import Parse, Read

MIXED = """\
graph: mixed
elements: 700
dtype: {dtype}
inputs: [a, b]
outputs: [c, d, e]
kernels:
  - {{name: k0, on: {one}, reads: [a, b], writes: [c]}}
  - {{name: k1, on: {other}, reads: [c, b], writes: [d]}}
  - {{name: k2, on: {one}, reads: [d, a], writes: [e]}}
"""


def _outputs(device: Any, graph: Graph, inputs: dict[str, Any] | None = None, seed: int = 0) -> dict[str, Any]:
    plan = script(Schedules(graph).grouping("interval_stabbing"))
    execution = emit.Execution(memory="pinned", issue="overlapped")
    found: dict[str, Any] = device.run(emit.program(plan, execution, name=graph.name), seed=seed, inputs=inputs)
    return found


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_sides_make_the_same_of_every_type(dtype: str, graph: Read, device: Any) -> None:
    """Only copies differ between the two: what is one's device is the other's host."""
    texts = [MIXED.format(dtype=dtype, one=one, other=other) for one, other in (("device", "host"), ("host", "device"))]
    first, second = (_outputs(device, graph(text), seed=seed) for seed, text in enumerate(texts))
    for name in ("c", "d", "e"):
        np.testing.assert_array_equal(first[name].view(np.uint8), second[name].view(np.uint8), err_msg=name)
        least = 2 if dtype == "bool" else 4
        assert len(np.unique(first[name])) >= least  # no constant, which a lost copy would leave as it is
        if DTYPES[dtype].floating:
            values = _floats(first[name], dtype)
            assert ((values >= 0) & (values < 1)).all()


FORMULAS = """\
graph: computed
elements: elements
sizes: {{elements: {count}}}
dtype: {dtype}
vectors: {{wide: {{dtype: float32}}, wider: {{dtype: float32}}, sums: {{elements: 1}}}}
inputs: [x, y, wide]
outputs: [z, narrow, wider, sums]
kernels:
  - {{name: k0, on: {on}, reads: [x, y], writes: [z], body: "x * y + 0.25 - min(x, y)"}}
  - {{name: k1, on: {on}, reads: [wide], writes: [narrow], body: wide}}
  - {{name: k2, on: {on}, reads: [x], writes: [wider], body: x}}
  - {{name: k3, on: {on}, reads: [y], writes: [sums], body: sum(y)}}
"""
NUMPY = {
    "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64), "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip


def _floats(values: Any, dtype: str) -> Any:
    """What a device handed over (of types that NumPy lacks: their bits), as doubles."""
    return np.asarray(values).view(NUMPY[dtype]).astype(np.float64)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN and of what overflows
@pytest.mark.parametrize("on", ["host", "device"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_floats_of_16_bits_are_computed_in_float_and_rounded_once(
    dtype: str, on: str, graph: Read, device: Any
) -> None:
    """All 65,536 of them are read; floats of all exponents, and those half way between two, are rounded."""
    count, kind = 1 << 16, NUMPY[dtype]
    bits = np.arange(count, dtype=np.uint16)
    x = bits.view(kind).astype(np.float32)
    draw = np.random.default_rng(5)
    wide = draw.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    known = np.sort(x[np.isfinite(x)]).astype(np.float64)
    middle = ((known[:-1] + known[1:]) / 2).astype(np.float32)[::2]
    wide[: len(middle)] = middle
    small = draw.uniform(-4, 4, count).astype(kind)
    y = small.astype(np.float32)
    quarter = np.float32(0.25)
    expected = {"z": x * y + quarter - np.minimum(x, y), "narrow": wide, "wider": x}
    own = small if dtype == "float16" else small.view(np.uint16)
    every = bits.view(kind) if dtype == "float16" else bits
    text = FORMULAS.format(dtype=dtype, on=on, count=count)
    found = _outputs(device, graph(text), {"x": every, "y": own, "wide": wide})
    usual = np.isfinite(x) & (np.abs(x) < 1e30)
    for name, values in expected.items():
        one = _floats(found[name], "float32" if name == "wider" else dtype)
        two = values.astype(np.float32 if name == "wider" else kind).astype(np.float64)
        keep = usual if name == "z" else np.ones(count, bool)
        np.testing.assert_array_equal(one[keep], two[keep], err_msg=name)
    np.testing.assert_allclose(_floats(found["sums"], dtype)[0], y.astype(np.float64).sum(), rtol=1e-2, atol=0.1)


# --- what formulas compute, as g++ builds them for the host, against Python's own arithmetic ------------


def _formula(draw: random.Random, depth: int) -> str:
    if depth == 0:
        return draw.choice(["a", "a", "b", "b", "3", "010", "0.1", "2.5e-1"])
    one, two = (_formula(draw, draw.randrange(depth)) for _ in range(2))
    kinds = [f"{one} + {two}", f"{one} - {two}", f"({one}) * ({two})", f"{one} - ({two})", f"{one} * {two}"]
    kinds += [f"min({one}, {two})", f"max({one}, {two})", f"-({one})", f"abs({one})", f"sqrt(abs({one}))"]
    return draw.choice([*kinds, f"({one}) / (3 + abs({two}))"])


def test_formulas_mean_what_python_reads(parse: Parse, tmp_path: Path, gxx_here: None) -> None:
    formulas = [_formula(random.Random(seed), 4) for seed in range(60)]
    names = [f"k{number}" for number in range(len(formulas))]
    vectors = "".join(f"  {name}: {{elements: 4, dtype: float64}}\n" for name in ("a", "b", *names))
    kernels = "".join(
        f'  - {{name: {name}, on: host, reads: [a, b], writes: [{name}], body: "{text}"}}\n'
        for name, text in zip(names, formulas, strict=True)
    )
    head = f"inputs: [a, b]\noutputs: [{', '.join(names)}]\n"
    graph = parse(f"graph: formulas\nvectors:\n{vectors}{head}kernels:\n{kernels}").payload.graph
    (source,) = body.code(graph).sources
    (tmp_path / "formulas.cpp").write_text(source.text)
    out = tmp_path / "formulas.so"
    flags = ["-O1", "-ffp-contract=off", "-shared", "-fPIC", "-Wall", "-Werror"]
    subprocess.run(["g++", *flags, str(tmp_path / "formulas.cpp"), "-o", str(out)], check=True)
    library = ctypes.CDLL(str(out))
    a, b = np.array([0.3, -7.25, 1e3, 0.0]), np.array([-2.0, 0.7, 3.0, -0.0])
    for name, text in zip(names, formulas, strict=True):
        found = np.empty(4)
        getattr(library, f"formula_{name}")(*(ctypes.c_void_p(each.ctypes.data) for each in (a, b, found)), 4)
        python = compile(text.replace("010", "10"), name, "eval")
        known = {"min": min, "max": max, "abs": abs, "sqrt": math.sqrt}
        values = [eval(python, known, {"a": x, "b": y}) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        np.testing.assert_array_equal(found, values, err_msg=text)


# --- vectors that are written again ---------------------------------------------------------------------


NAMES = ("u", "v", "w")
WRITTEN_AGAIN = ("{0} + 2 * {1}", "{0} * {1} - 1", "max({0}, {1})", "abs({1}) - {0}", "{0}")


def _statements(seed: int) -> list[tuple[str, str, tuple[str, ...], str]]:
    """(side, what is written, what is read, formula), over few names, so that most are written again."""
    draw = random.Random(seed)
    found = []
    for _ in range(draw.randrange(3, 9)):
        reads = (draw.choice(NAMES), draw.choice(NAMES))
        text = draw.choice(WRITTEN_AGAIN).format(*reads)
        found.append((draw.choice(["host", "device"]), draw.choice(NAMES), tuple(dict.fromkeys(reads)), text))
    return found


def _text(seed: int) -> str:
    kernels = "".join(
        f'  - {{name: k{number}, on: {on}, reads: [{", ".join(reads)}], writes: [{written}], body: "{text}"}}\n'
        for number, (on, written, reads, text) in enumerate(_statements(seed))
    )
    written = dict.fromkeys(each[1] for each in _statements(seed))
    head = "graph: again\nelements: 40\ndtype: float64\ninputs: [u, v, w]\n"
    return f"{head}outputs: [{', '.join(written)}]\nkernels:\n{kernels}"


@pytest.mark.slow
@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(12))
def test_the_last_value_of_each_name_comes_out(seed: int, graph: Read, device: Any) -> None:
    found = graph(_text(seed))
    draw = np.random.default_rng(seed)
    inputs = {name: draw.uniform(-2, 2, 40) for name in NAMES}
    values: dict[str, Any] = dict(inputs)
    for _, written, _, text in _statements(seed):
        names = {"max": np.maximum, "abs": np.abs, **values}
        values[written] = eval(text, {}, names)
    plan = script(Schedules(found).grouping("interval_stabbing"))
    program = emit.program(plan, emit.Execution(memory="pinned", issue="overlapped"), name="again")
    out = device.run(program, seed=seed, inputs=inputs)
    last = dict(zip(dict.fromkeys(each[1] for each in _statements(seed)), found.outputs, strict=True))
    for name, output in last.items():
        np.testing.assert_allclose(out[output], values[name], rtol=1e-12, atol=1e-12, err_msg=name)


def test_names_that_are_taken_are_passed_over(graph: Read) -> None:
    found = graph(
        "graph: g\nelements: 8\ninputs: [a, a_2]\noutputs: [a]\nkernels:\n"
        "  - {name: k0, on: device, reads: [a, a_2], writes: [a], body: a + a_2}\n"
    )
    assert (found.outputs, found.kernels[0].writes, found.kernels[0].reads) == (("a_3",), ("a_3",), ("a", "a_2"))
    assert renamed(found) is found
