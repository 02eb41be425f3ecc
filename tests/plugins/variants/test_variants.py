"""The strategy `variants`: what it reads, what it refuses, whose buffers a variant gets; and the contract of all."""

from pathlib import Path

import numpy as np
import pytest

from fusiond.devices.compare import compare
from fusiond.devices.cpu.provider import LIMITS
from fusiond.model.errors import RequestError
from fusiond.model.gpu.limits import limits
from fusiond.model.inputs.fills import initial
from fusiond.model.nouns import Analysis, Config, Job, Rejection
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program, Role
from fusiond.requests import jobs
from fusiond.requests.planning import prepare
from fusiond.requests.registry import Registry
from fusiond.strategy import NO_ANSWERS, Target
from fusiond.strategy.space import Parameter, Space, chooser
from fusiond.testing.strategies import StrategyContract
from fusiond_variants import space
from fusiond_variants.strategy import Variants
from tests.conftest import ran_on_the_cpu

TEXT = "strategy: variants\nvariants: [./plain.yaml, ./each.yaml]\n"
CPU = Target(arch="cpu", limits=LIMITS, facts=lambda source: None)


def analysed(registry: Registry, text: str = TEXT, target: Target = CPU) -> Analysis:
    (job,) = jobs.read(Path.cwd() / "job.yaml", text)
    prepared = prepare(registry, job)
    return prepared.strategy.analyse(prepared.workload, target)


def emitted(found: Analysis, **config: object) -> Program:
    program = Variants().emit(found, Config.of(config), NO_ANSWERS)  # type: ignore[arg-type]
    assert isinstance(program, Program), program
    return program


def outputs(program: Program, seed: int = 4) -> np.ndarray:
    return ran_on_the_cpu(program, seed).read("y")


# --- a space of all ---------------------------------------------------------------------------------------


def test_the_space_is_the_union_of_the_variants_own(files: Path, registry: Registry) -> None:
    found = analysed(registry)
    offered = Variants().space(found, NO_ANSWERS)
    points = list(offered.points())
    assert len(points) == 1 + 2 * 3
    assert Config.of({"variant": "plain", "plain.threads": 128}) in points
    assert Config.of({"variant": "each", "each.threads": 256, "each.EACH": 4}) in points
    assert chooser(points) == "variant"


def test_conditions_and_restrictions_keep_their_meaning() -> None:
    own = Space(
        parameters=(Parameter(name="kind", values=("a", "threads")),
                    Parameter(name="threads", values=(32, 64), when="kind == 'threads'"),
                    Parameter(name="cap.b", values=(1, 2))),
        restrictions=("cap.b == 1 or threads <= 32", "kind != 'a' or cap.b == 2"),
    )  # fmt: skip
    both = space.union({"one": own, "two": own})
    expected = {space.of_variant(name, config) for name in ("one", "two") for config in own.points()}
    assert set(both.points()) == expected
    assert {space.own_config(each)[1] for each in both.points()} == set(own.points())


def test_caps_of_registers_are_offered_for_a_gpu(files: Path, registry: Registry) -> None:
    target = Target(arch="sm_90", limits=limits("sm_90"), facts=lambda source: None)
    found = analysed(registry, target=target)
    names = {each.name for each in Variants().space(found, NO_ANSWERS).parameters}
    assert {"plain.cap", "each.cap"} <= names
    program = emitted(found, **{"variant": "plain", "plain.threads": 128, "plain.cap": "fit4"})
    assert program.sources[0].register_cap is not None


# --- whose arguments --------------------------------------------------------------------------------------


def test_what_a_variant_says_of_its_data_does_not_count(files: Path, registry: Registry) -> None:
    found = analysed(registry)
    program = emitted(found, **{"variant": "each", "each.threads": 64, "each.EACH": 2})
    reference = found.payload.reference
    for name in ("x", "y"):
        assert program.buffer(name) == reference.buffer(name)
    assert program.buffer("y").role is Role.OUTPUT
    assert dict(program.sizes) == {"n": 3000}


@pytest.mark.parametrize("each", [1, 2, 4])
@pytest.mark.parametrize("sizes", [{}, {"n": 1001}, {"n": 1}])
def test_every_variant_gives_the_same(files: Path, registry: Registry, each: int, sizes: dict[str, int]) -> None:
    found = analysed(registry)
    program = emitted(found, **{"variant": "each", "each.threads": 256, "each.EACH": each}).at(sizes)
    reference = emitted(found, **{"variant": "plain", "plain.threads": 128}).at(sizes)
    wanted = np.float32(3) * initial(reference.buffer("x"), 4)
    assert compare(program.buffer("y"), wanted, outputs(reference)).equal
    assert compare(program.buffer("y"), wanted, outputs(program)).equal


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("name: y, dtype: float32", "name: z, dtype: float32"), "'z', which the reference has not (it has x, y)"),
        (("name: y, dtype: float32", "name: y, dtype: float64"),
         "y is 3000 x float64, in the reference 3000 x float32"),
        (("name: x, dtype: float32, elements: n", "name: x, dtype: float32, elements: 2 * n"), "x is 6000 x float32"),
    ],
)  # fmt: skip
def test_other_arguments_are_refused(files: Path, registry: Registry, change: tuple[str, str], said: str) -> None:
    text = (files / "each.yaml").read_text()
    source = (files / "each.cu").read_text()
    (files / "each.yaml").write_text(text.replace(*change))
    if "float64" in change[1]:
        (files / "each.cu").write_text(source.replace("float* __restrict__ y", "double* __restrict__ y"))
    if "name: z" in change[1]:
        (files / "each.cu").write_text(
            source.replace("float* __restrict__ y", "float* __restrict__ z").replace("y[i]", "z[i]")
        )
    found = analysed(registry)
    assert [each.rule for each in found.rejections] == ["arguments"]
    assert said in found.rejections[0].detail
    assert list(found.payload.usable) == ["plain"]


def test_a_variant_that_writes_none_of_the_outputs_is_refused(files: Path, registry: Registry) -> None:
    (files / "each.yaml").write_text((files / "each.yaml").read_text().replace(
        "  - {name: y, dtype: float32, elements: n, role: inout, fill: zeros, compare: {rtol: 100}}\n",
        "  - {name: own, dtype: float32, elements: n, role: scratch}\n"))  # fmt: skip
    (files / "each.cu").write_text((files / "each.cu").read_text().replace(" y,", " own,").replace("y[i]", "own[i]"))
    (only,) = analysed(registry).rejections
    assert "it has no buffer 'y', which the reference writes" in only.detail


# --- which is the reference -------------------------------------------------------------------------------


def test_the_reference_may_be_named(files: Path, registry: Registry) -> None:
    found = analysed(registry, TEXT + "reference: ./each.yaml\n")
    assert next(iter(found.payload.usable)) == "each"
    assert dict(found.workload.sizes) == {"n": 64, "spare": 7}


def test_a_reference_need_not_be_a_variant(files: Path, registry: Registry) -> None:
    found = analysed(registry, "strategy: variants\nvariants: [./each.yaml]\nreference: ./plain.yaml\n")
    assert list(found.payload.usable) == ["plain", "each"]


def test_a_function_is_handed_on_with_the_scalars(files: Path, registry: Registry) -> None:
    found = analysed(registry, TEXT + "reference: ./scale.py:scale\nprecision: any\n")
    assert found.scrutiny is not None
    assert found.scrutiny.function is not None
    assert found.scrutiny.function.name == "scale"
    assert found.scrutiny.numbers["factor"] == 3
    assert not found.scrutiny.precision


def test_sizes_have_their_own_names(files: Path, registry: Registry) -> None:
    found = analysed(registry, TEXT + "sizes: {n: 70}\n")
    assert dict(found.workload.sizes) == {"n": 70}
    assert emitted(found, **{"variant": "each", "each.threads": 64, "each.EACH": 1}).buffer("x").elements == 70


def test_two_files_of_one_name_have_the_names_of_their_folders(files: Path, registry: Registry) -> None:
    (files / "new").mkdir()
    for name in ("plain.yaml", "plain.cu"):
        (files / "new" / name).write_text((files / name).read_text())
    found = analysed(registry, "strategy: variants\nvariants: [./plain.yaml, ./new/plain.yaml]\n")
    first, second = found.payload.usable
    assert first.endswith("_plain")
    assert second == "new_plain"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the key 'variants' is missing"),
        ("variants: []\n", "expected 1 to 64 variants; found 0"),
        ("variants: plain\n", "expected a list of names of kernels"),
        ("variants: [./gone.yaml]\n", "there is no file"),
        ("variants: [./plain.yaml]\nprecision: low\n", "is 'low'; it can be reference or any"),
        ("variants: [./plain.yaml]\nreference: ./scale.py\n", "name the function, too: ./scale.py:scale"),
        ("variants: [./plain.yaml]\nreference: ./gone.py:f\n", "there is no file"),
        ("variants: [./plain.yaml]\nreference: 3\n", "expected a kernel, or a function of a Python file"),
        ("variants: [./plain.yaml]\nsizes: {m: 3}\n", "unknown size 'm'"),
    ],
)
def test_a_wrong_job_is_one_line(files: Path, registry: Registry, text: str, said: str) -> None:
    with pytest.raises(RequestError) as raised:
        analysed(registry, f"strategy: variants\n{text}")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "job.yaml" in str(raised.value)


def test_a_reference_that_does_not_build_leaves_nothing(files: Path, registry: Registry) -> None:
    refused = Target(arch="sm_90", limits=limits("sm_90"), facts=lambda source: BuildFailed(reason="it is broken"))
    found = analysed(registry, target=refused)
    assert found.payload.reference is None
    assert "it is broken" in found.rejections[0].detail
    assert Variants().space(found, NO_ANSWERS).count() <= 1
    assert isinstance(Variants().emit(found, Config.of({"variant": "plain"}), NO_ANSWERS), Rejection)


def test_the_content_decides_the_key(files: Path, registry: Registry) -> None:
    before = analysed(registry).workload.key
    assert analysed(registry).workload.key == before
    (files / "each.cu").write_text((files / "each.cu").read_text().replace("x[i] * factor", "factor * x[i]"))
    assert analysed(registry).workload.key != before


@pytest.mark.slow
class TestVariants(StrategyContract):
    random_points = 2

    @pytest.fixture(autouse=True)
    def _files(self, files: Path, registry: Registry) -> None:
        self._registry = registry

    def strategy(self) -> Variants:
        return Variants()

    def registry(self) -> Registry:
        return self._registry

    def jobs(self) -> tuple[Job, ...]:
        path = Path.cwd() / "job.yaml"
        return (*jobs.read(path, TEXT), *jobs.read(path, TEXT + "reference: ./scale.py:scale\nsizes: {n: 77}\n"))


@pytest.mark.needs_nvcc
def test_ptx_is_compiled_with_the_sizes_of_the_job(files: Path, registry: Registry) -> None:
    """A macro that is a size stands in the PTX."""
    (files / "plain.cu").write_text(PLAIN_IN_MACROS)
    text = (files / "plain.yaml").read_text() + "form: ptx\ndefines: {N: n}\n"
    (files / "plain.yaml").write_text(text)
    job = "strategy: hfuse\nkernels: [./plain.yaml]\nsizes: {n: 77}\n"
    (read,) = jobs.read(Path.cwd() / "job.yaml", job)
    prepared = prepare(registry, read)
    found = prepared.strategy.analyse(prepared.workload, CPU)
    program = prepared.strategy.emit(found, Config.of({"threads": 128}), NO_ANSWERS)
    assert isinstance(program, Program)
    assert "n" in program.fixed
    assert compare(program.buffer("y"), np.float32(3) * initial(program.buffer("x"), 4), outputs(program)).equal


PLAIN_IN_MACROS = """\
__global__ void scale(const float* x, float* y, int n, float factor)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) y[i] = factor * x[i] + (N - n);
}
"""
