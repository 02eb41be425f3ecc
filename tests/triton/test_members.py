"""Kernels in Triton as members: what their PTX computes against Triton's own interpreter and NumPy, and what is said
where they cannot be one."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build import triton as compiler
from fusiond.devices.cpu.provider import LIMITS
from fusiond.model.errors import RequestError
from fusiond.model.inputs import documents
from fusiond.model.inputs.fills import initial
from fusiond.model.language import expressions
from fusiond.model.nouns import Analysis, Config, Job
from fusiond.model.program import Program
from fusiond.requests import jobs
from fusiond.requests.jobs import JobInputs
from fusiond.requests.planning import prepare
from fusiond.requests.registry import Registry
from fusiond.strategy import NO_ANSWERS, Target
from tests.conftest import ran_on_the_cpu
from tests.triton.members import EVERY, TritonMember

HERE = Path(__file__).parent
Interpreter = Callable[[list[tuple[Any, ...]]], list[dict[str, np.ndarray]]]
SEED = 5
CPU = Target(arch="cpu", limits=LIMITS, facts=lambda source: None)
needs_triton = pytest.mark.skipif(bool(compiler.problem()), reason=compiler.problem())


def yaml_of(member: TritonMember, folder: Path, **changed: Any) -> Path:
    """The member's YAML beside a copy of the kernels' file."""
    (folder / "kernels.py").write_text((HERE / "kernels.py").read_text())
    document = {"kernel": member.kernel, "source": "kernels.py", "entry": member.kernel, "sizes": dict(member.sizes)}
    document |= {**member.document, **changed}
    path = folder / f"{member.kernel}.yaml"
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))
    return path


def analysed(registry: Registry, text: str, folder: Path, target: Target = CPU) -> Analysis:
    (job,) = jobs.read(folder / "job.yaml", text)
    prepared = prepare(registry, job)
    return prepared.strategy.analyse(prepared.workload, target)


def alone(registry: Registry, member: TritonMember, folder: Path, **changed: Any) -> Analysis:
    yaml_of(member, folder, **changed)
    return analysed(registry, f"strategy: variants\nvariants: [./{member.kernel}.yaml]\n", folder)


def emitted(registry: Registry, found: Analysis, config: Config) -> Program:
    program = registry.strategies[found.workload.strategy].emit(found, config, NO_ANSWERS)
    assert isinstance(program, Program), program
    return program


def outputs(program: Program) -> dict[str, np.ndarray]:
    """What the arrays hold after a checked run."""
    loaded = ran_on_the_cpu(program, SEED)
    return {each.name: loaded.read(each.name) for each in program.buffers if each.role.compared}


def drawn(program: Program) -> dict[str, np.ndarray]:
    return {each.name: initial(each, SEED) for each in program.buffers if not each.name.startswith("triton_")}


def points(registry: Registry, found: Analysis) -> list[Config]:
    return list(registry.strategies[found.workload.strategy].space(found, NO_ANSWERS).points())


def launch(member: TritonMember, arrays: Mapping[str, np.ndarray], constants: Mapping[str, Any]) -> tuple[Any, ...]:
    """For Triton's interpreter."""
    sizes = {**member.sizes, **{name: value for name, value in constants.items() if isinstance(value, int)}}

    def worked_out(value: Any) -> Any:
        return expressions.parse(value).integer(sizes) if isinstance(value, str) else value

    grid = tuple(worked_out(each) for each in member.document["grid"])
    given = {each["name"]: worked_out(each["value"]) for each in member.document["arguments"] if "value" in each}
    copies = {name: each.copy() for name, each in arrays.items()}
    return member.kernel, grid, copies, {**given, **constants}


def constants_of(member: TritonMember, config: Config) -> dict[str, Any]:
    """The constants of a config, as numbers."""
    found: dict[str, Any] = {}
    for name, value in member.document["constants"].items():
        chosen = config.get(f"{member.kernel}.{name}", value[0] if isinstance(value, list) else value)
        if isinstance(chosen, str) and "next_power_of_2" in chosen:
            chosen = 1 << (member.sizes["n"] - 1).bit_length()
        found[name] = member.sizes.get(chosen, chosen)
    if member.kernel == "softmax":
        found["num_stages"] = config["softmax.stages"]
    return found


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    folder = tmp_path_factory.mktemp("interpreter")

    def run(asked: list[tuple[Any, ...]]) -> list[dict[str, np.ndarray]]:
        (folder / "asked").write_bytes(pickle.dumps(asked))
        command = [sys.executable, str(HERE / "interpreted.py"), str(folder / "asked"), str(folder / "answered")]
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        subprocess.run(command, check=True, capture_output=True, env=environment, timeout=100)
        found: list[dict[str, np.ndarray]] = pickle.loads((folder / "answered").read_bytes())
        return found

    return run


def check(member: TritonMember, name: str, ours: np.ndarray, right: np.ndarray) -> None:
    right = np.asarray(right).ravel()
    error = np.abs(ours.astype(np.float64) - right.astype(np.float64)).max()
    assert error <= member.tolerance * np.abs(right.astype(np.float64)).max(), f"{name} is off by {error}"


@needs_triton
@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("member", EVERY, ids=lambda each: each.kernel)
def test_values(member: TritonMember, real: Registry, tmp_path: Path, interpreter: Interpreter) -> None:
    """Of its first way and its last: by the PTX, by Triton's interpreter of the Python, and by NumPy."""
    found = alone(real, member, tmp_path)
    assert not found.rejections
    configs = points(real, found)
    tried = list(dict.fromkeys([configs[0], configs[-1]]))
    programs = [emitted(real, found, config) for config in tried]
    arrays = drawn(programs[0])
    interpreted = interpreter([launch(member, arrays, constants_of(member, config)) for config in tried])
    expected = member.expected(arrays, **member.sizes)
    for program, theirs in zip(programs, interpreted, strict=True):
        ours = outputs(program)
        assert expected.keys() == ours.keys()
        for name, right in expected.items():
            check(member, name, ours[name], right)
            check(member, name, theirs[name], right)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize(("arch", "instruction"), [("sm_80", "mma.sync.aligned"), ("sm_90", "wgmma.mma_async")])
def test_tensor_cores(arch: str, instruction: str, real: Registry, tmp_path: Path) -> None:
    """Of the GPU that the file names."""
    member = MATMUL
    found = alone(real, member, tmp_path, flags=[f"-arch={arch}"])
    program = emitted(real, found, points(real, found)[0])
    assert instruction in ptx_of(program)
    ours = outputs(program)
    for name, right in member.expected(drawn(program), **member.sizes).items():
        check(member, name, ours[name], right)


# --- what a member is ------------------------------------------------------------------------------------

ADD, SOFTMAX, MATMUL = (next(each for each in EVERY if each.kernel == name) for name in ("add", "softmax", "matmul"))


def ptx_of(program: Program) -> str:
    (source,) = program.sources
    return source.text


@needs_triton
def test_each_way_is_compiled_by_itself(real: Registry, tmp_path: Path) -> None:
    """Constants, warps and stages; the grid follows the constants."""
    found = alone(real, ADD, tmp_path)
    programs = {}
    for config in points(real, found):
        program = emitted(real, found, config)
        block, threads = config.integer("add.BLOCK"), config.integer("add.threads")
        (step,) = program.steps
        assert (int(step.grid[0]), step.block[0]) == (-(-3001 // block), threads)
        assert f".reqntid {threads}" in ptx_of(program)
        programs[block, threads] = ptx_of(program)
    assert len(programs) == 4
    assert len(set(programs.values())) == 4
    staged = points(real, alone(real, SOFTMAX, tmp_path))
    assert {config["softmax.stages"] for config in staged} == {2, 4}


@needs_triton
def test_arguments_are_specialised_as_by_a_launch(real: Registry, tmp_path: Path) -> None:
    """Divisible by 16: whole vectors; 1: no argument at all. What has been specialised for is part of the key."""
    vectors = [".v2.b32", ".v4.b32"]
    keys = []
    for n, wide_ in ((4096, True), (4095, False), (1, False)):
        document = {**ADD.document, "warps": 4, "constants": {"BLOCK": 1024}}
        member = TritonMember(kernel="add", document=document, sizes={"n": n}, expected=ADD.expected)
        found = alone(real, member, tmp_path)
        program = emitted(real, found, points(real, found)[0])
        assert any(each in ptx_of(program) for each in vectors) == wide_
        (step,) = program.steps
        assert len(step.arguments) == (5 if n == 1 else 6)
        assert program.fixed == ("n",)
        for name, right in member.expected(drawn(program), n=n).items():
            check(member, name, outputs(program)[name], right)
        keys.append(found.workload.key)
    assert len(set(keys)) == 3


@needs_triton
def test_helpers_and_constants_of_the_file_are_part_of_the_key(real: Registry, tmp_path: Path) -> None:
    def key(**changed: str) -> str:
        yaml_of(MATMUL, tmp_path)
        text = (tmp_path / "kernels.py").read_text()
        for old, new in changed.values():  # type: ignore[misc]
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "kernels.py").write_text(text)
        found: str = analysed(real, "strategy: variants\nvariants: [./matmul.yaml]\n", tmp_path).workload.key
        return found

    first = key()
    assert key(helper=("0.01 * x", "0.02 * x")) != first  # type: ignore[arg-type]
    assert key(another=("127.0", "63.0")) == first  # type: ignore[arg-type]


HISTOGRAM = """\
extern "C" __global__ void histogram(const int *x, int *counts, int n) {
    __shared__ int own[64];
    if (threadIdx.x < 64) own[threadIdx.x] = 0;
    __syncthreads();
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) atomicAdd(&own[x[at] & 63], 1);
    __syncthreads();
    if (threadIdx.x < 64) atomicAdd(&counts[threadIdx.x], own[threadIdx.x]);
}
"""


def histogram(folder: Path) -> None:
    """A kernel in CUDA C++ and its YAML."""
    (folder / "histogram.cu").write_text(HISTOGRAM)
    arguments = [
        {"name": "x", "dtype": "int32", "elements": "n", "role": "input", "fill": {"integers": [0, 999]}},
        {"name": "counts", "dtype": "int32", "elements": 64, "role": "inout", "fill": "zeros"},
        {"name": "n", "dtype": "int32", "value": "n"},
    ]
    document = {
        "kernel": "histogram", "source": "histogram.cu", "entry": "histogram", "sizes": {"n": 1000},
        "arguments": arguments, "block": {"shape": [128]}, "grid": ["ceil_div(n, block.x)"],
    }  # fmt: skip
    (folder / "histogram.yaml").write_text(json.dumps(document))


@needs_triton
@pytest.mark.needs_nvcc
@pytest.mark.parametrize("other", ["softmax", "matmul"])
def test_pairs(real: Registry, tmp_path: Path, other: str) -> None:
    """A kernel in Triton beside another one, and beside CUDA C++, in every way to fuse them, with other constants."""
    member = {"softmax": SOFTMAX, "matmul": MATMUL}[other]
    yaml_of(ADD, tmp_path, sizes={"n": 1000})
    yaml_of(member, tmp_path)
    histogram(tmp_path)
    for pair in (f"./add.yaml, ./{other}.yaml", f"./histogram.yaml, ./{other}.yaml"):
        found = analysed(real, f"strategy: hfuse\npair: [{pair}]\n", tmp_path)
        assert not found.rejections
        strategy = real.strategies["hfuse"]
        space = strategy.space(found, NO_ANSWERS)
        given = strategy.baselines(found)[0]
        right = outputs(given.emit(next(given.space.points())))
        names = {each.name: each.values for each in space.parameters}
        shapes = ("threads", "virtual", "cap")
        knobs = {name: each[-1] for name, each in names.items() if "." in name and not name.startswith(shapes)}
        assert knobs
        for _, seed in strategy.seeds(found, space, NO_ANSWERS):
            ours = outputs(emitted(real, found, Config.of({**seed, **knobs})))
            assert ours.keys() == right.keys()
            for name, array in right.items():
                np.testing.assert_allclose(ours[name], array, rtol=1e-5 if other == "softmax" else 2e-3, atol=2e-3)


@needs_triton
@pytest.mark.needs_nvcc
def test_three(real: Registry, tmp_path: Path) -> None:
    """A kernel in Triton that is launched alone is tuned, and so is one in a launch with all others."""
    yaml_of(ADD, tmp_path, sizes={"n": 1000})
    yaml_of(SOFTMAX, tmp_path)
    histogram(tmp_path)
    text = "strategy: hfuse\nkernels: [./add.yaml, ./softmax.yaml, ./histogram.yaml]\n"
    found = analysed(real, text, tmp_path)
    strategy = real.strategies["hfuse"]
    space = strategy.space(found, NO_ANSWERS)
    names = {each.name: each.values for each in space.parameters}
    assert len(names) == len(space.parameters)
    knobs = {name: each[-1] for name, each in names.items() if name in ("BLOCK.a", "stages.b")}
    given = strategy.baselines(found)[0]
    right = outputs(given.emit(next(given.space.points())))
    seen = set()
    for name, seed in strategy.seeds(found, space, NO_ANSWERS):
        for config in (seed, Config.of({**seed, **knobs})):
            assert not space.problems(config)
            program = emitted(real, found, config)
            seen.add((name == "apart", program.key))
            ours = outputs(program)
            for buffer, array in right.items():
                np.testing.assert_allclose(ours[buffer], array, rtol=1e-5, atol=2e-3)
        if name == "apart":
            same = strategy.unfused(found, config)
            assert {each.text for each in same.sources} == {each.text for each in program.sources}
    assert len([each for each in seen if each[0]]) == 2  # other constants are other programs


# --- drafts -----------------------------------------------------------------------------------------------


def drafted(real: Registry, path: Path, name: str = "") -> dict[str, Any]:
    job = Job(strategy="hfuse", request={}, sizes={}, path=str(path))
    text = real.strategies["hfuse"].draft(str(path), name, JobInputs(real, job))
    found: dict[str, Any] = documents.drafted(text, "draft")[0].plain()
    return found


TUNED = """\
import triton
import triton.language as tl
@triton.autotune(configs=[triton.Config({"BLOCK": 256, "FAST": True}, num_warps=4), triton.Config(
    {"BLOCK": 512, "FAST": True}, num_warps=8, num_stages=2)], key=["n"])
@triton.jit
def kernel(x, n, BLOCK: tl.constexpr, FAST: tl.constexpr, WIDE: tl.constexpr = 2):
    tl.store(x + tl.arange(0, BLOCK), n)
"""


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("x = (", "", r"k\.py:1: not Python"),
        ("x = 1", "", "contains no function with @triton.jit"),
        (TUNED + TUNED.replace("kernel", "other"), "", "there are 2 kernels in it: kernel, other; say which"),
        (TUNED, "kernl", "'kernl'.*kernel"),
    ],
)
def test_what_cannot_be_drafted(real: Registry, tmp_path: Path, text: str, name: str, said: str) -> None:
    (tmp_path / "k.py").write_text(text)
    with pytest.raises(RequestError, match=said):
        drafted(real, tmp_path / "k.py", name)


# --- what is said -----------------------------------------------------------------------------------------


@needs_triton
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"entry": "ad"}, r"add\.yaml:1: entry: .*'ad'.*add"),
        ({"entry": "silu", "constants": None, "arguments": [], "grid": [4]}, r"silu with 4 warps: 0 .* for 1 .*\(x\)"),
        ({"constants": {"BLOCK": 1000}}, r"add with BLOCK = 1000, .*arange's range must be a power of 2"),
        ({"constants": {"BLOK": 256}, "grid": [4]}, r"add has no parameter BLOK; its parameters are x, y, out, n"),
        ({"constants": None, "grid": [4]}, r"add needs BLOCK \(tl\.constexpr\)"),
        ({"arguments": ADD.document["arguments"][:3]}, r"3 arguments for 4 parameters \(x, y, out, n\)"),
        ({"warps": 3}, r"add\.yaml:1: warps: 3 warps; Triton takes powers of two"),
        ({"warps": []}, r"warps: is empty"),
        ({"stages": "two"}, r"stages: .*whole number"),
        ({"constants": {"BLOCK": [256, 0.5]}}, r"constants\.BLOCK: a list is of whole numbers, texts, true and false"),
        ({"constants": {"threads": [1, 2], "BLOCK": 256}}, r"constants\.threads: threads has a meaning already"),
        ({"constants": {"BLOCK": [2**k for k in range(5, 20)], "x": [*range(20)]}}, r"there are 600 ways to compile"),
        ({"block": {"shape": [128]}}, r"block: is for other sources"),
        ({"flags": ["-use_fast_math"]}, r"flags: a kernel in Triton takes -arch=sm_90"),
        ({"grid": ["ceil_div(n, BLOK)"]}, r"'BLOK' has no value"),
        ({"constants": {"BLOCK": "next_power_of_2(n // 0)"}}, r"constants: .*0"),
    ],
)  # fmt: skip
def test_mistakes(real: Registry, tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said) as problem:
        alone(real, ADD, tmp_path, **changed)
    assert "\n" not in str(problem.value)
