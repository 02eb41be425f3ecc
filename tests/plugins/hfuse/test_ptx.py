"""Fusion of PTX: what nvcc made of kernels, fused in every way, against the same kernels apart, in the interpreter."""

import dataclasses
import itertools
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fusiond.build import nvcc
from fusiond.devices.counting import run
from fusiond.model.errors import RequestError
from fusiond.model.gpu.limits import limits
from fusiond.model.inputs.fills import initial
from fusiond.model.nouns import CompileFacts, Config, Rejection
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Program
from fusiond.requests import jobs
from fusiond.strategy import Target
from fusiond_hfuse.analysis import partition
from fusiond_hfuse.analysis.registers import RegisterCap
from fusiond_hfuse.codegen import ptx_fuse, resources, verify

FOLDER = Path(__file__).parent / "ptx"
YAMLS = {
    "reduce": """\
arguments:
  - {name: x, dtype: float32, elements: n, role: input, fill: {integers: [-9, 9]}}
  - {name: y, dtype: float32, elements: "ceil_div(n, 128)", role: output}
  - {name: n, dtype: int32, value: n}
sizes: {n: 2000}
block: {shape: [128]}
grid: ["ceil_div(n, block.x)"]
""",
    "stencil": """\
arguments:
  - {name: x, dtype: float32, elements: 3010, role: input, fill: {integers: [-9, 9]}}
  - {name: y, dtype: float32, elements: 3010, role: output}
  - {name: width, dtype: int32, value: 70}
  - {name: height, dtype: int32, value: 43}
block: {shape: [32, 8]}
grid: [3, 6]
""",
    "leavers": """\
arguments:
  - {name: x, dtype: int32, elements: n, role: input, fill: {integers: [-9, 9]}}
  - {name: y, dtype: int32, elements: n, role: output}
  - {name: n, dtype: int32, value: n}
sizes: {n: 1210}
block: {shape: [128], tune: x}
grid: ["ceil_div(n, block.x)"]
shared: "4 * block.x"
""",
    "called": """\
arguments:
  - {name: x, dtype: int32, elements: 896, role: input, fill: {integers: [-9, 9]}}
  - {name: y, dtype: int32, elements: 896, role: output}
block: {shape: [128]}
grid: [7]
""",
    "named": """\
arguments:
  - {name: x, dtype: int32, elements: 320, role: input, fill: {integers: [-9, 9]}}
  - {name: y, dtype: int32, elements: 320, role: output}
block: {shape: [128]}
grid: [5]
""",
    "spread": """\
arguments:
  - {name: x, dtype: uint32, elements: 4096, role: input, fill: {integers: [0, 99]}}
  - {name: y, dtype: uint32, elements: "96 * deep * 6", role: output}
  - {name: total, dtype: uint32, elements: 1, role: inout, fill: zeros}
sizes: {deep: 2}
block: {shape: [4, 6, 4]}
grid: [3, 2, deep]
""",
    "gone": """\
arguments:
  - {name: x, dtype: int32, elements: 500, role: input, fill: {integers: [-9, 9]}}
  - {name: y, dtype: int32, elements: 500, role: output}
  - {name: n, dtype: int32, value: 500}
block: {shape: [128]}
grid: [4]
""",
    "scale": """\
arguments:
  - {name: x, dtype: float64, elements: 3000, role: input, fill: {uniform: [0, 1]}}
  - {name: y, dtype: float64, elements: 3000, role: output}
  - {name: n, dtype: int64, value: 3000}
  - {name: factor, dtype: float64, value: 1.5}
block: {shape: [256], tune: x}
grid: [8]
""",
}
NAMES = sorted(YAMLS)
PAIRS = list(itertools.combinations_with_replacement(NAMES, 2))
pytestmark = pytest.mark.needs_nvcc


@pytest.fixture(scope="module")
def ptx(tmp_path_factory) -> str:
    out = tmp_path_factory.mktemp("ptx") / "kernels.ptx"
    command = ["nvcc", "-ptx", "-arch=sm_90", "-std=c++17", "-o", str(out), str(FOLDER / "kernels.cu")]
    subprocess.run(command, check=True, capture_output=True)
    return out.read_text()


@pytest.fixture
def planned(registry, strategy, ptx, tmp_path):
    """The analysis of some of the kernels, for a GPU."""
    target = Target(arch="sm_90", limits=limits("sm_90"), facts=lambda source: None)

    def planned(*names: str):
        (tmp_path / "kernels.ptx").write_text(ptx)
        for name in names:
            heading = f"kernel: {name}\nsource: kernels.ptx\nentry: {name}\n"
            (tmp_path / f"{name}.yaml").write_text(heading + YAMLS[name])
        listed = ", ".join(f"./{name}.yaml" for name in names)
        (job,) = jobs.read(tmp_path / "job.yaml", f"strategy: hfuse\nkernels: [{listed}]\n")
        return strategy.analyse(strategy.parse(job, jobs.JobInputs(registry, job)), target)

    return planned


def computed(program: Program):
    counted = run.count(program, budget=None)
    assert counted.broke is None, counted.broke
    assert not any(row.failed for row in counted.rows), [row.failed for row in counted.rows]
    return counted.outputs


def fused(strategy, analysis, config: Config) -> Program:
    program = strategy.emit(analysis, config, {})
    assert not isinstance(program, Rejection), program
    return program


def configs(strategy, analysis, number: int, seed: int) -> list[Config]:
    """Points of the space, spread over its ways; caps mean nothing to the interpreter."""
    space = strategy.space(analysis, {})
    points = [each for each in space.points() if each.get("cap", "none") == "none"]
    ways: dict[tuple[object, ...], list[Config]] = {}
    for each in points:
        way = (each["kind"], each.get("level"), each.get("assign"), each.get("map"), each.get("virtual.a"))
        ways.setdefault(way, []).append(each)
    rng = random.Random(seed)
    chosen = [rng.choice(ways[way]) for way in sorted(ways, key=str)]
    rng.shuffle(chosen)
    return chosen[:number]


def same(found, wanted) -> None:
    assert found.keys() == wanted.keys()
    for name, each in wanted.items():
        np.testing.assert_array_equal(found[name], each, err_msg=name)


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_a_fused_pair_computes_what_the_kernels_compute(a, b, planned, strategy):
    analysis = planned(a, b)
    assert analysis.rejections == ()
    for config in configs(strategy, analysis, 4, seed=PAIRS.index((a, b))):
        program = fused(strategy, analysis, config)
        same(computed(program), computed(strategy.unfused(analysis, config)))
        text = program.sources[0].text
        assert verify.lint(text, barriers=tuple(range(16)), compiled=True) == ()


@pytest.mark.campaign
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_every_way_of_every_pair(a, b, planned, strategy):
    analysis = planned(a, b)
    for config in configs(strategy, analysis, 100, seed=1 + PAIRS.index((a, b))):
        same(computed(fused(strategy, analysis, config)), computed(strategy.unfused(analysis, config)))


def test_four_kernels_in_one_launch(planned, strategy):
    analysis = planned("called", "named", "reduce", "spread")
    assert analysis.rejections == ()
    apart = strategy.baselines(analysis)[0]
    wanted = computed(apart.emit(next(iter(apart.space.points()))))
    known = {each.name for each in strategy.space(analysis, {}).parameters}
    together = {"groups": "a+b+c+d", "kind": "horizontal", "cap": "none", "order": "given"}
    threads = {"threads.a": 128, "threads.b": 128, "threads.c": 128, "threads.d": 96}
    virtual = {name: 1 for name in known if name.startswith("virtual.")}
    for way in ({"level": "warp", "map": "pad"}, {"level": "block", "assign": "interleaved", **virtual}):
        same(computed(fused(strategy, analysis, Config.of({**together, **threads, **way}))), wanted)


@pytest.mark.parametrize(("a", "b"), PAIRS[::4])
def test_a_fused_pair_assembles_with_few_registers_more(a, b, planned, strategy):
    analysis = planned(a, b)
    most = 0
    for source in (
        strategy.baselines(analysis)[0].emit(next(iter(strategy.baselines(analysis)[0].space.points()))).sources
    ):
        built = nvcc.build(source, "sm_90")
        assert not isinstance(built, BuildFailed), built
        most = max(most, *(each.registers for each in built.facts.values()))
    for config in configs(strategy, analysis, 3, seed=7):
        program = fused(strategy, analysis, config)
        built = nvcc.build(program.sources[0], "sm_90")
        assert not isinstance(built, BuildFailed), built
        (facts,) = built.facts.values()
        assert facts.registers <= max(most, 26) + 6, (config, facts.registers, most)
        assert facts.spill_store_bytes == 0


def test_registers_that_cost_a_resident_block_are_taken_only_where_a_fused_kernel_spills(planned, strategy):
    def facts(source):
        cap, spills = source.register_cap, "fused" in source.entries[0]
        return {each: CompileFacts(
            arch="sm_90", entry=each, registers=cap or 32, shared_bytes=0, barriers=1, stack_bytes=0,
            spill_store_bytes=8 * (spills and spilling and cap == 32), spill_load_bytes=0,
        ) for each in source.entries}  # fmt: skip

    analysis = planned("named", "gone")
    about = dataclasses.replace(analysis.payload, target=Target(arch="sm_90", limits=limits("sm_90"), facts=facts))
    config = Config.of({"kind": "horizontal", "level": "block", "assign": "sequential", "threads.a": 128,
                        "threads.b": 128, "order": "ab"})  # fmt: skip
    schedule = partition.schedule(about.group, config, 132)
    found = []
    for spilling in (False, True):  # noqa: B007, read by `facts`
        found.append(resources.cap(about, about.group, schedule, Config.of({**config, "cap": "native"})).registers)
    assert found == [32, 38]
    given = resources.cap(about, about.group, schedule, Config.of({**config, "cap": "given"}))
    assert given.registers == 38  # one resident block asks for no bound, and ptxas would take whatever it may


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_each_side_trades_before_its_own_body(planned, order):
    """Whoever takes what it should give would run with the other's registers."""
    group = planned("named", "gone").payload.group
    config = Config.of({"kind": "horizontal", "level": "warp", "map": "pad", "threads.a": 128, "threads.b": 128,
                        "order": order})  # fmt: skip
    schedule = partition.schedule(group, config, 132)
    sides = (dataclasses.replace(each, registers={"a": 232, "b": 24}[each.slot.letter]) for each in schedule.sides)
    text = ptx_fuse.write(dataclasses.replace(schedule, sides=tuple(sides)), RegisterCap(blocks=2))
    parts = {part[0]: part for part in text.split("// --- ") if part[1:2] == ":" and "setmaxnreg" in part}
    for letter, trade in (("a", "inc.sync.aligned.u32 232;"), ("b", "dec.sync.aligned.u32 24;")):
        assert parts[letter].count("setmaxnreg") == 1
        before, _, behind = parts[letter].partition(f"setmaxnreg.{trade}")
        assert behind
        assert "{" not in before  # the body is a scope
    assert "sm_90a" in text


SORT = """\
#include <cub/block/block_radix_sort.cuh>
extern "C" __global__ void sort_blocks(const int* in, int* out)
{
    using Sort = cub::BlockRadixSort<int, 128, 2>;
    __shared__ typename Sort::TempStorage room;
    int keys[2] = {in[256 * blockIdx.x + 2 * threadIdx.x], in[256 * blockIdx.x + 2 * threadIdx.x + 1]};
    Sort(room).Sort(keys);
    for (int k = 0; k < 2; ++k) out[256 * blockIdx.x + 2 * threadIdx.x + k] = keys[k];
}
"""
SORT_YAML = """\
kernel: sort
source: sort.cu
entry: sort_blocks
arguments:
  - {name: in, dtype: int32, elements: 768, role: input, fill: {integers: [-99, 99]}}
  - {name: out, dtype: int32, elements: 768, role: output}
block: {shape: [128]}
grid: [3]
"""


def test_what_the_form_in_cpp_does_not_read_is_compiled(registry, strategy, tmp_path):
    (tmp_path / "sort.cu").write_text(SORT)
    (tmp_path / "sort.yaml").write_text(SORT_YAML)
    (job,) = jobs.read(tmp_path / "job.yaml", "strategy: hfuse\npair: [./sort.yaml, ./sort.yaml]\n")
    with pytest.raises(RequestError, match="undeclared identifier 'cub'"):  # without a compiler
        strategy.parse(job, jobs.JobInputs(registry, job))
    workload = strategy.parse(job, jobs.JobInputs(registry, job, compiler=nvcc.compiled))
    target = Target(arch="sm_90", limits=limits("sm_90"), facts=lambda source: None)
    analysis = strategy.analyse(workload, target)
    assert analysis.rejections == ()
    assert "'cub'" in analysis.report["kernels"][0]["compiled_because"]
    (config,) = configs(strategy, analysis, 1, seed=0)
    program = fused(strategy, analysis, config)
    outputs, given = computed(program), {each.name: each for each in program.buffers}
    for letter in "ab":
        wanted = np.sort(initial(given[f"{letter}.in"], 0).reshape(3, 256), axis=1).ravel()
        np.testing.assert_array_equal(outputs[f"{letter}.out"], wanted)


@pytest.mark.parametrize(
    ("text", "yaml", "said"),
    [
        ("{ ret", "arguments: []", "k.ptx:4: the text ends in the middle"),
        ("{ ret; }", "arguments: []", "0 arguments for 1 parameters"),
        ("{ ret; }", "arguments: [{name: n, dtype: int32, value: 1}]", "n is int32, 4 bytes"),
    ],
)
def test_a_mistake_in_ptx_or_about_it_is_one_line(text, yaml, said, registry, strategy, tmp_path):
    head = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p) "
    (tmp_path / "k.ptx").write_text(head + text + "\n")
    (tmp_path / "k.yaml").write_text(f"kernel: k\nsource: k.ptx\nentry: k\n{yaml}\nblock: {{shape: [32]}}\ngrid: [1]\n")
    (job,) = jobs.read(tmp_path / "job.yaml", "strategy: hfuse\npair: [./k.yaml, ./k.yaml]\n")
    with pytest.raises(RequestError) as problem:
        strategy.parse(job, jobs.JobInputs(registry, job))
    assert said in str(problem.value)
    assert "\n" not in str(problem.value)
