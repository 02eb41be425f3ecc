"""What reference kernels give in double precision: against NumPy and SciPy, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.special

from fusiond.devices import precision
from fusiond.model.language.narrow import NARROW
from fusiond.model.program import Compare, Program
from fusiond.requests import jobs
from fusiond.strategy import Target
from fusiond.tuning.judging.doubled import HALF, NoTruth, in_double
from fusiond.tuning.judging.truth import in_double_precision, truth
from tests.plugins.hfuse.conftest import CPU
from tests.tuning.judging.references import CASES, buffer, bundled, data, program, single


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
    assert "computes something else" in made


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
    made = tmp_path / "out.npz"
    assert truth(bundled(of, tmp_path), made, seed=1, against=tmp_path / "float32.npz") == ""
    with np.load(made) as file:
        for name, array in in_double_precision(of, 1).items():
            np.testing.assert_array_equal(file[name], array)
            assert precision.judged(str(made), of.buffer("y"), single(of)["y"], single(of)["y"]) == ""
    lowered = single(of)["y"].astype(np.float16).astype(np.float32)
    assert precision.judged(str(made), of.buffer("y"), single(of)["y"], lowered).startswith("y: relative error")


# --- what tells lower precision from another order ------------------------------------------------------


def test_own_error() -> None:
    known = np.array([3.0, 4.0, np.inf, 1e300])
    assert precision.own_error(known[:2], np.array([3.0, 4.5])) == pytest.approx(0.1)
    assert precision.own_error(known, np.array([3.0, 4.0, 7.0, 1e300])) == 0.0
    assert precision.own_error(known, np.array([3.0, np.nan, np.inf, np.inf])) == 0.0
    assert precision.own_error(np.zeros(3), np.zeros(3, np.float32)) == 0.0
    assert precision.own_error(np.zeros(3), np.ones(3)) == np.inf
    assert precision.own_error(np.full(4, 1e300), np.full(4, 1.1e300)) == pytest.approx(0.1)


Rounded = dict[str, np.ndarray] | None


def _sequential(x: np.ndarray) -> np.ndarray:
    return np.add.accumulate(x, axis=-1, dtype=x.dtype)[..., -1]


def _tree(x: np.ndarray) -> np.ndarray:
    while x.shape[-1] > 1:
        x = x[..., ::2] + x[..., 1::2]
    return x[..., 0]


def _kahan(x: np.ndarray) -> np.ndarray:
    total, lost = np.zeros(x.shape[:-1], x.dtype), np.zeros(x.shape[:-1], x.dtype)
    for i in range(x.shape[-1]):
        y = x[..., i] - lost
        t = total + y
        total, lost = t, (t - total) - y
    return total


def problem(
    truth: np.ndarray, reference: np.ndarray, candidate: np.ndarray, dtype: str = "float32", of_rounded: Rounded = None
) -> str:
    of = buffer("y", truth.size, "output", dtype, compare=Compare(kind="close", rtol=1e-2, atol=1e-2))
    others = {name: array.ravel() for name, array in (of_rounded or {}).items()}
    return precision.precision_problem(of, truth.ravel(), reference.ravel(), candidate.ravel(), others)


def of_rounded(compute: Callable[..., np.ndarray], *inputs: np.ndarray) -> Rounded:
    """What a computation gives in double precision of rounded inputs."""
    return {
        name: compute(*(precision.narrowed(each, bits) for each in inputs)) for name, bits in precision.ROUNDED.items()
    }


def _tf32(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~np.uint32(0x1FFF)).view(np.float32)


def _half(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float32)


def _bfloat16(x: np.ndarray) -> np.ndarray:
    return NARROW["bfloat16"].values(NARROW["bfloat16"].bits(x))


DRAWS = {
    "uniform": lambda generator, *shape: generator.random(shape, dtype=np.float32),
    "normal": lambda generator, *shape: generator.standard_normal(shape).astype(np.float32),
}


@pytest.mark.slow
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("n", [64, 4096, 1 << 20])
def test_the_order_of_a_sum_is_not_lower_precision(draw: str, n: int) -> None:
    x = DRAWS[draw](np.random.default_rng(n), 4 if n > 4096 else 32, n)
    known = x.astype(np.float64).sum(axis=1)
    sums = [_sequential(x), _tree(x), x.sum(axis=1)] + ([_kahan(x)] if n <= 4096 else [])
    others = of_rounded(lambda x: x.sum(axis=1), x)
    for reference in sums:
        for candidate in sums:
            assert problem(known, reference, candidate, of_rounded=others) == ""


@pytest.mark.slow
@pytest.mark.parametrize("k", [64, 1024])
@pytest.mark.parametrize("lowered", [_tf32, _half, _bfloat16])
def test_lower_precision_in_a_matrix_product_is_seen(k: int, lowered: Callable[[np.ndarray], np.ndarray]) -> None:
    generator = np.random.default_rng(k)
    a, b = DRAWS["normal"](generator, 32, 1, k), DRAWS["normal"](generator, 1, 32, k)
    known = (a.astype(np.float64) * b).sum(axis=2)
    references = [_sequential(a * b), _tree(a * b)]
    contracted = np.zeros((32, 32), np.float32)
    added = np.zeros((32, 32), np.float32)
    for i in range(k):
        contracted = (a[..., i].astype(np.float64) * b[..., i] + contracted).astype(np.float32)
        added = lowered(added + a[..., i] * b[..., i])
    for reference in references:
        assert problem(known, reference, contracted) == ""
        assert problem(known, reference, _sequential(lowered(a) * lowered(b))).endswith("computed in lower precision")
        assert problem(known, reference, added) != ""


@pytest.mark.slow
def test_softmax_in_other_orders_and_in_half() -> None:
    x = 4 * DRAWS["normal"](np.random.default_rng(3), 16, 1024)
    known = scipy.special.softmax(x.astype(np.float64), axis=1)
    shifted = x - x.max(axis=1, keepdims=True)
    e = np.exp(shifted)
    reference = e / _sequential(e)[:, None]
    # The error that CUDA's guide states for __expf: 2 + floor(|1.173 x|) units in the last place.
    fast = e * (1 + (2 + abs(1.173 * shifted)) * 2.0**-24 * np.random.default_rng(4).uniform(-1, 1, x.shape))
    fast = fast.astype(np.float32)
    most, total = np.full(16, -np.inf, np.float32), np.zeros(16, np.float32)
    for i in range(x.shape[1]):
        following = np.maximum(most, x[:, i])
        total = total * np.exp(most - following) + np.exp(x[:, i] - following)
        most = following
    assert problem(known, reference, fast / _tree(fast)[:, None]) == ""
    assert problem(known, reference, np.exp(x - most[:, None]) / total[:, None]) == ""
    halved = _half(e)
    assert problem(known, reference, halved / _sequential(halved)[:, None]) != ""
    assert problem(known, reference, _half(reference)) != ""


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.float64) * b).sum(axis=2)


@pytest.mark.slow
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("k", [64, 1024, 4096])
def test_rounded_inputs_are_seen_where_their_errors_cancel_out(draw: str, k: int) -> None:
    generator = np.random.default_rng(k)
    a, b = DRAWS[draw](generator, 32, 1, k), DRAWS[draw](generator, 1, 32, k)
    known, others = _product(a, b), of_rounded(_product, a, b)
    honest = [_sequential(a * b), _tree(a * b), _product(a, b).astype(np.float32)]
    for reference in honest:
        for candidate in honest:
            assert problem(known, reference, candidate, of_rounded=others) == ""
        for lowered in (_tf32, _half, _bfloat16):
            assert problem(known, reference, _sequential(lowered(a) * lowered(b)), of_rounded=others) != ""
    if draw == "uniform" and k == 4096:
        said = problem(known, honest[0], _sequential(_tf32(a) * _tf32(b)), of_rounded=others)
        assert said.endswith("computed with inputs in float16 or tf32")


def test_few_outputs_say_nothing_of_rounded_inputs() -> None:
    x = np.random.default_rng(9).random((15, 4096), dtype=np.float32)
    known, others = x.astype(np.float64).sum(axis=1), of_rounded(lambda x: x.sum(axis=1), x)
    assert problem(known, _tree(x), _tree(_half(x)), of_rounded=others) == ""


def test_inputs_that_round_to_themselves_say_nothing() -> None:
    x = np.arange(64, dtype=np.float32)
    known = np.sqrt(x.astype(np.float64))
    others = of_rounded(np.sqrt, x)
    assert (
        problem(known, known.astype(np.float32), np.float32(1) * x**0.5 * np.float32(1 + 1e-6), of_rounded=others) == ""
    )


def test_outputs_in_half_are_rounded_by_everybody() -> None:
    generator = np.random.default_rng(5)
    a, b = DRAWS["normal"](generator, 32, 1, 64), DRAWS["normal"](generator, 1, 32, 64)
    known = (a.astype(np.float64) * b).sum(axis=2)
    reference = _sequential(a * b).astype(np.float16)
    assert problem(known, reference, _tree(a * b).astype(np.float16), "float16") == ""
    added = np.zeros((32, 32), np.float16)
    for i in range(64):
        added += (a[..., i] * b[..., i]).astype(np.float16)
    assert problem(known, reference, added, "float16") != ""


def test_single_precision_under_a_double_is_seen() -> None:
    x = np.random.default_rng(6).random((32, 1 << 12))
    known = _tree(x)
    assert problem(known, known, _sequential(x), "float64") == ""
    single_sums = _tree(x.astype(np.float32)).astype(np.float64)
    assert "the reference's own is 0.0e+00" in problem(known, known, single_sums, "float64")
    in_turn = _sequential(x.astype(np.float32)).astype(np.float64)
    assert problem(known, single_sums, in_turn, "float64") == ""


def test_rounded_inputs_must_explain_most_of_an_error() -> None:
    x = np.random.default_rng(8).random((64, 4096), dtype=np.float32)
    known, others = x.astype(np.float64).sum(axis=1), of_rounded(lambda x: x.sum(axis=1), x)
    off = others["float16 or tf32"] - known
    assert "inputs in float16" in problem(known, known, known + 0.7 * off, of_rounded=others)
    assert problem(known, known, known + 0.6 * off, of_rounded=others) == ""
    assert problem(known, known + off, known + 0.9 * off, of_rounded=others) == ""


def test_an_error_that_the_reference_has_as_well_is_allowed() -> None:
    generator = np.random.default_rng(7)
    known = generator.standard_normal(1000)
    reference, candidate = ((known * (1 + 1e-3 * generator.standard_normal(1000))).astype(np.float32) for _ in "ab")
    assert problem(known, reference, candidate) == ""
    assert problem(known, reference, (known * (1 + 2e-2 * generator.standard_normal(1000))).astype(np.float32)) != ""
