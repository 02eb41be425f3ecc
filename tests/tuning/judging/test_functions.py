"""References that are functions of NumPy and JAX, and a line for each mistake in them."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from fusiond.cli import main
from fusiond.devices import precision
from fusiond.model.errors import RequestError
from fusiond.model.inputs.fills import initial
from fusiond.model.language.narrow import NARROW, readable
from fusiond.model.outcomes import Outcome
from fusiond.store.database import Store
from fusiond.tuning.judging import functions
from fusiond.tuning.judging.truth import truth
from tests.tuning.judging.references import buffer, bundled, data, program, softmax, softmax_of

NUMPY_FILE = """
import numpy as np

def softmax(x, n):
    x = x.reshape(-1, n)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)

def both(x):
    return x * np.asarray(2, x.dtype), np.arange(x.size)

def named(x, *, shift=1):
    return {"count": np.zeros(x.size), "y": x + shift}

def three(x): return x, x, x
def other(x): return {"z": x, "y": x}
def short(x): return x[:-1], x
def strange(x, weight): return x
def rest(**everything): return everything["x"]
def words(x): return "no", x

def fails(x):
    return {}["key"]
"""
JAX_FILE = """
import jax
import jax.numpy as jnp

@jax.jit
def softmax(x, n: int = 65):
    return jax.nn.softmax(x.reshape(-1, 65), axis=1)
"""


@pytest.fixture
def numpy_file(tmp_path: Path) -> str:
    (tmp_path / "f.py").write_text(NUMPY_FILE)
    return str(tmp_path / "f.py")


def test_a_function_of_numpy(numpy_file: str) -> None:
    of = softmax(3, 65)
    found = functions.outputs(of, f"{numpy_file}:softmax", {"n": 65}, 1)
    expected = softmax_of(data(of), 3, 65)["y"].ravel()
    assert found["y"].dtype == np.float32
    np.testing.assert_allclose(found["y:float64"], expected, rtol=1e-14)
    assert 0 < precision.own_error(found["y:float64"], found["y"]) < 1e-6


@pytest.mark.slow
def test_a_function_of_jax_in_a_process_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    (tmp_path / "f.py").write_text(JAX_FILE)
    of = softmax(3, 65)
    made = tmp_path / "out.npz"
    assert truth(bundled(of, tmp_path), made, seed=1, function=f"{tmp_path}/f.py:softmax") == ""
    with np.load(made) as file:
        expected = softmax_of(data(of), 3, 65)["y"].ravel()
        np.testing.assert_allclose(file["y:float64"], expected, rtol=1e-13)
        assert file["y"].dtype == np.float32
        assert 0 < precision.own_error(file["y:float64"], file["y"]) < 1e-6
        assert 1e-3 < precision.own_error(expected, file["y:float64:bfloat16"]) < 1e-1


TWO = program("", "k", [buffer("x", 64, dtype="bfloat16"), buffer("y", 64, "output", "bfloat16"),
                        buffer("count", 64, "output", "int32")])  # fmt: skip


def test_narrow_floats_and_several_outputs(numpy_file: str) -> None:
    x = readable(initial(TWO.buffer("x"), 1), "bfloat16")
    found = functions.outputs(TWO, f"{numpy_file}:both", {}, 1)
    np.testing.assert_array_equal(found["y"], NARROW["bfloat16"].bits(2 * x))
    np.testing.assert_array_equal(found["y:float64"], 2 * x.astype(np.float64))
    assert found["count"].dtype == np.int32
    assert "count:float64" not in found
    sized = dataclasses.replace(TWO, sizes=(("shift", 3),))
    of_sizes = functions.outputs(sized, f"{numpy_file}:named", {}, 1)
    np.testing.assert_array_equal(of_sizes["y:float64"], x.astype(np.float64) + 3)
    named = functions.outputs(TWO, f"{numpy_file}:named", {"shift": 2.5}, 1)
    np.testing.assert_array_equal(named["y:float64"], x.astype(np.float64) + 2.5)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("three", "f.py: three() gives 3 arrays; the outputs are y, count"),
        ("other", "f.py: other() gives z, y; the outputs are y, count"),
        ("short", "f.py: short() gives 63 elements for y, which has 64"),
        ("strange", "f.py: unknown parameter of strange(): 'weight'; known: x"),
        ("rest", "f.py: rest() must take its arguments by name: **everything"),
        ("words", "f.py: words() gives str of <U2 for y, not numbers"),
        ("fails", "f.py:23: KeyError: 'key'"),
        ("soft", "f.py: unknown function 'soft'; did you mean 'softmax'?"),
    ],
)
def test_mistakes_in_a_function_are_a_line(numpy_file: str, name: str, problem: str) -> None:
    with pytest.raises(RequestError) as said:
        functions.outputs(TWO, f"{numpy_file}:{name}", {}, 1)
    assert str(said.value).endswith(problem)


@pytest.mark.slow
def test_a_functions_mistake_crosses_the_process_as_a_line(tmp_path: Path, numpy_file: str) -> None:
    with pytest.raises(RequestError, match=r"^\S*f\.py:23: KeyError: 'key'$"):
        truth(bundled(TWO, tmp_path), tmp_path / "out.npz", seed=1, function=f"{numpy_file}:fails")
    (tmp_path / "dies.py").write_text("import os\ndef f(x):\n    os.kill(os.getpid(), 11)\n")
    with pytest.raises(RequestError, match=r"dies\.py:f: it dies of SIGSEGV$"):
        truth(tmp_path / "bundle", tmp_path / "out.npz", seed=1, function=f"{tmp_path}/dies.py:f")
    (tmp_path / "slow.py").write_text("def f(x):\n    while True: pass\n")
    with pytest.raises(RequestError, match=r"slow\.py:f: no end after 3 s$"):
        truth(bundled(TWO, tmp_path), tmp_path / "out.npz", seed=1, function=f"{tmp_path}/slow.py:f", timeout_secs=3)


SHARES = """\
kernel: {name}
source: {name}.cu
entry: share
sizes: {{n: 2000}}
odd: {{n: 601}}
arguments:
  - {{name: x, dtype: float32, elements: n, role: input, fill: {{uniform: [0, 1]}}}}
  - {{name: y, dtype: float32, elements: n, role: output}}
  - {{name: count, dtype: int32, value: n}}
  - {{name: part, dtype: int32, value: n // 7}}
block: {{shapes: [[64], [128]]}}
grid: ["ceil_div(n, block.x)"]
"""
SHARE = """\
__global__ void share(const float* x, float* y, int count, int part)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = x[i] * part;
}
"""


@pytest.mark.slow
def test_a_function_is_given_the_scalars_of_odd_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "share.yaml").write_text(SHARES.format(name="share"))
    (tmp_path / "share.cu").write_text(SHARE)
    (tmp_path / "share.py").write_text("def share(x, part):\n    return x * part\n")
    (tmp_path / "job.yaml").write_text(
        "strategy: variants\nvariants: [./share.yaml]\nreference: ./share.py:share\ndevice: cpu\nsearch: {trials: 4}\n"
    )
    assert main(["run", "job.yaml", "--db", str(tmp_path / "db.sqlite"), "--json"]) == 0
    with Store.open(tmp_path / "db.sqlite") as store:
        (row,) = store.jobs(None, 5)
        trials = store.trials(row.id)
    assert {each.outcome for each in trials} == {Outcome.MEASURED}
