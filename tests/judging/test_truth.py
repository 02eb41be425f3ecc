"""What reference kernels give in double precision: against NumPy and SciPy, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from fusiond.devices import precision
from fusiond.model.program import Program
from fusiond.requests import jobs
from fusiond.strategy import Target
from fusiond.tuning.judging.doubled import HALF, NoTruth, in_double
from fusiond.tuning.judging.truth import in_double_precision, truth
from tests.judging.references import CASES, buffer, bundled, data, program, single
from tests.plugins.hfuse.conftest import CPU


def exact(of: Program) -> dict[str, np.ndarray]:
    """The outputs in double precision, by names of buffers."""
    ending = precision.EXACT
    return {
        name.removesuffix(ending): array for name, array in in_double_precision(of, 1).items() if name.endswith(ending)
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_kernel_in_double_precision_gives_what_numpy_gives(case: str) -> None:
    of, oracle = CASES[case]
    found = exact(of)
    expected = oracle(data(of))
    assert set(found) == set(expected)
    for name in expected:
        assert found[name].dtype == np.float64
        np.testing.assert_allclose(found[name], expected[name].ravel(), rtol=1e-12, atol=1e-13)
        mine = single(of)[name]
        assert 0 < precision.own_error(found[name], mine) < 2e-6
        assert precision.precision_problem(of.buffer(name), found[name], mine, mine) == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["batchnorm", "upsample", "im2col", "maxpool", "hist"])
def test_the_catalogue_in_double_precision(name: str, tmp_path: Path, real) -> None:
    sizes = {
        "batchnorm": {"batch": 5, "features": 9, "length": 40},
        "upsample": {"channels": 2, "height": 20, "width": 30, "out_height": 45, "out_width": 70},
        "im2col": {}, "maxpool": {"channels": 2, "height": 50, "width": 45}, "hist": {"n": 5000},
    }[name]  # fmt: skip
    text = f"strategy: hfuse\nkernels: [{name}]\nsizes: {sizes}\n".replace("'", "")
    (job,) = jobs.read(tmp_path / "job.yaml", text)
    strategy = real.strategy("hfuse")
    workload = strategy.parse(job, jobs.JobInputs(real, job))
    analysis = strategy.analyse(workload, Target(arch="cpu", limits=CPU, facts=lambda source: None))
    baseline = strategy.baselines(analysis)[0]
    of = baseline.emit(next(baseline.space.points()))
    if name == "im2col":
        of = of.at(strategy.odd_sizes(workload))
    found, mine = exact(of), single(of)
    floats = [each.name for each in of.buffers if each.role.compared and each.dtype == "float32"]
    assert list(found) == floats
    for each in floats:
        assert precision.own_error(found[each], mine[each]) < 1e-6


def test_the_text_in_double_precision() -> None:
    assert (
        in_double("float2 a = make_float2(1.f, 2e-1f); // 1.0f")
        == "double2 a = make_double2(1.0, 0.20000000298023224); // 1.0f"
    )
    assert in_double('printf("%f 1.0f float", 0x1.8p1f);') == 'printf("%f 1.0f float", 3.0);'
    assert (
        in_double("#include <float.h>\nint of = 0xff; unsigned u = 1u;")
        == "#include <float.h>\nint of = 0xff; unsigned u = 1u;"
    )
    assert in_double("__expf(x) + __powf(a, b) + erff(x) + myf(x)") == "exp(x) + pow(a, b) + erf(x) + myf(x)"
    assert in_double("int half = n / 2;") == "int half = n / 2;"
    assert in_double("struct alignas(sizeof(T) * (N)) V;") == "struct alignas(fusiond_aligned(sizeof(T) * (N))) V;"
    assert in_double("alignas(16) float x; int y(sizeof(float));") == "alignas(16) double x; int y(sizeof(double));"


@pytest.mark.slow
def test_what_is_finite_in_one_precision_only_has_no_truth(tmp_path: Path) -> None:
    text = "__global__ void k(const float* x, float* y) { y[threadIdx.x] = 1e30f * x[threadIdx.x] * 1e10f; }"
    of = program(text, "k", [buffer("x", 128), buffer("y", 128, "output")])
    np.savez(tmp_path / "float32.npz", **single(of))
    made = truth(bundled(of, tmp_path), tmp_path / "out.npz", seed=1, against=tmp_path / "float32.npz")
    assert "computes something else" in made.reason


HEAD = "__global__ void k(const float* x, float* y)"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#include <cuda_fp16.h>\n" + HEAD + "{ y[0] = __half(x[0]); }", HALF),
        (HEAD + "{ y[0] = __float_as_int(x[0]); }", "it looks at the bits of floats"),
        (HEAD + '{ asm("exit;"); }', "it has inline assembly"),
        (HEAD + "{ y[0] = x; }", "in double precision it does not build: k.cu:1:"),
        (HEAD + "{ y[5000] = x[0]; }", "in double precision it writes out of bounds"),
    ],
)  # fmt: skip
def test_what_has_no_truth_says_why_in_a_line(text: str, reason: str) -> None:
    of = program(text, "k", [buffer("x", 64), buffer("y", 64, "output")])
    with pytest.raises(NoTruth) as said:
        in_double_precision(of, 1)
    assert str(said.value).startswith(reason)
    assert "\n" not in str(said.value)


@pytest.mark.slow
def test_the_truth_of_a_kernel_comes_from_a_process_of_its_own(tmp_path: Path) -> None:
    of = CASES["softmax 3x65"][0]
    np.savez(tmp_path / "float32.npz", **single(of))
    made = truth(bundled(of, tmp_path), tmp_path / "out.npz", seed=1, against=tmp_path / "float32.npz")
    assert made.path is not None
    with np.load(made.path) as file:
        for name, array in in_double_precision(of, 1).items():
            np.testing.assert_array_equal(file[name], array)
            assert precision.judged(str(made.path), of.buffer("y"), single(of)["y"], single(of)["y"]) == ""
    lowered = single(of)["y"].astype(np.float16).astype(np.float32)
    assert precision.judged(str(made.path), of.buffer("y"), single(of)["y"], lowered).startswith("y: relative error")
