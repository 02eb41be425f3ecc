"""The contract of all strategies, over pairs and groups; and which sizes of the kernels are free."""

import dataclasses
import struct
from pathlib import Path

import pytest

from fusiond.model.nouns import Job
from fusiond.model.program import Bytes, Launch, Program, Scalar, SizeError
from fusiond.requests import jobs
from fusiond.requests.registry import Registry
from fusiond.testing.strategies import StrategyContract
from fusiond_hfuse import plugin
from fusiond_hfuse.strategy import Hfuse

TEXTS = (
    "pair: [hist, maxpool]\nsizes: {hist.n: 60000, maxpool.channels: 2}",
    "pair: [hist, hist]\nsizes: {a.n: 1000, b.n: 70001, b.bins: 33}", "pair: [batchnorm, upsample]",
    "kernels: [blake256, hist, im2col]", "pair: [./square.yaml, hist]",
)  # fmt: skip
SQUARE = """\
kernel: square
source: square.cu
entry: square
sizes: {n: 4096, width: 3, most: 100}
odd: {n: 1001}
defines: {WIDTH: "width"}
arguments:
  - {name: x, dtype: float32, elements: "n", role: input, fill: {uniform: [0, 1]}}
  - {name: y, dtype: float32, elements: "n * width", role: output}
  - name: shape
    struct: {n: "n", scale: "n - 1", half: 0.5}
  - {name: limit, dtype: float32, value: "most"}
block: {shape: [128], tune: x}
grid: ["ceil_div(n, block.x)"]
"""
SOURCE = """\
struct Shape { int n; float scale; float half; };
__global__ void square(const float* x, float* y, Shape shape, float limit) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < shape.n)
        for (int k = 0; k < WIDTH; ++k) y[i * WIDTH + k] = fminf(x[i] * shape.scale * shape.half, limit);
}
"""


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "square.yaml").write_text(SQUARE)
    (tmp_path / "square.cu").write_text(SOURCE)


@pytest.mark.slow
class TestHfuse(StrategyContract):
    random_points = 2
    texts: tuple[str, ...] = TEXTS[:1] + TEXTS[3:]

    def strategy(self) -> Hfuse:
        return Hfuse()

    def registry(self) -> Registry:
        registry = Registry()
        registry.add(plugin, "hfuse")
        return registry

    def jobs(self) -> tuple[Job, ...]:
        path = Path.cwd() / "job.yaml"
        return tuple(job for text in self.texts for job in jobs.read(path, f"strategy: hfuse\n{text}\n"))

    @pytest.mark.slow  # nvcc reports on every kernel
    @pytest.mark.campaign
    def test_a_plan_can_be_shown(self) -> None:
        super().test_a_plan_can_be_shown()


@pytest.mark.campaign
class TestHfuseOthers(TestHfuse):
    texts = TEXTS[1:3]


# --- which sizes are free ---


def beside(analyse, strategy: Hfuse, *pair: str) -> Program:
    analysis = analyse(*pair)
    _, config = strategy.seeds(analysis, strategy.space(analysis, {}), {})[0]
    program = strategy.emit(analysis, config, {})
    assert isinstance(program, Program), program
    return program


@pytest.mark.parametrize(
    "name", ["batchnorm", "blake256", "blake2b", "ethash", "im2col", "maxpool", "sha256", "upsample"]
)
def test_all_sizes_of_the_catalogues_kernels_are_free(analyse, strategy, name):
    program = beside(analyse, strategy, name, "hist")
    assert program.fixed == ()
    assert len(program.sizes) > 3


def test_a_struct_and_a_float_follow_the_sizes_and_a_macro_does_not(analyse, strategy):
    program = beside(analyse, strategy, "./square.yaml", "hist")
    assert program.fixed == ("square.width",)
    with pytest.raises(SizeError, match=r"square\.width is 3 in the source itself; it cannot be 4"):
        program.at({"square.width": 4})
    moved = program.at({"square.n": 10, "square.most": 7})
    (launch,) = [each for each in moved.steps if isinstance(each, Launch)]
    (shape,) = [each for each in launch.arguments if isinstance(each, Bytes)]
    assert struct.unpack("<iff", shape.filled(lambda _: 0)) == (10, 9.0, 0.5)
    assert [each.value for each in launch.arguments if isinstance(each, Scalar) and each.dtype == "float32"] == [7]


def test_what_is_run_has_the_key_that_it_had_without_sizes(analyse, strategy):
    """A number in a struct is what its bytes say, and a float from the sizes is that float."""
    program = beside(analyse, strategy, "./square.yaml", "hist")
    plain = dataclasses.replace(program, sizes=(), fixed=(), steps=tuple(map(without_sizes, program.steps)))
    assert plain.work_key == program.work_key
    assert plain.key != program.key


def without_sizes(step):
    def plain(argument):
        if isinstance(argument, Bytes):
            return Bytes(hex=struct.pack("<iff", 4096, 4095.0, 0.5).hex())
        if isinstance(argument, Scalar):
            return Scalar(dtype=argument.dtype, value={"float32": float}.get(argument.dtype, int)(argument.value))
        return argument

    grid = tuple(int(each) for each in step.grid)
    arguments = tuple(map(plain, step.arguments))
    return dataclasses.replace(step, grid=grid, shared_bytes=int(step.shared_bytes), arguments=arguments)


def test_a_name_that_no_formula_can_have_fixes_its_sizes(analyse, strategy, tmp_path):
    (tmp_path / "square.yaml").write_text(SQUARE.replace("kernel: square", "kernel: square-it"))
    program = beside(analyse, strategy, "./square.yaml", "hist")
    assert program.fixed == ("square-it.most", "square-it.n", "square-it.width")
    assert dict(program.at({"hist.n": 77}).sizes)["hist.n"] == 77
