"""The strategy: jobs, workloads, parts, the space that measured blocks make, and the contract of all strategies."""

import dataclasses
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Analysis, CompileFacts, Config, Job, Rejection, Workload
from fusiond.model.outcomes import Record, Verdict
from fusiond.model.program import Launch, Program, Source, problems
from fusiond.requests import jobs
from fusiond.requests.jobs import JobInputs
from fusiond.requests.registry import Registry
from fusiond.strategy import Target
from fusiond.testing.strategies import GPU, PROCESSOR, StrategyContract
from fusiond_mincut import plugin
from fusiond_mincut.codegen import block_configs, probes
from fusiond_mincut.strategy import Mincut

CPU = Target(arch="cpu", limits=PROCESSOR, facts=lambda source: None)
SM_90 = Target(arch="sm_90", limits=GPU, facts=lambda source: None)
STRATEGY = Mincut()
FILES = Path(__file__).parent / "files"


@pytest.fixture(scope="module")
def registry() -> Registry:
    registry = Registry()
    registry.add(plugin, "mincut")
    return registry


def job(text: str, path: Path | str = "job.yaml") -> Job:
    (found,) = jobs.read(path, f"strategy: mincut\n{text}")
    return found


def parsed(registry: Registry, text: str, path: Path | str = "job.yaml") -> Workload:
    given = job(text, path)
    jobs.check_keys(given, STRATEGY.job_keys)
    return STRATEGY.parse(given, JobInputs(registry, given))


def analysed(registry: Registry, text: str, target: Target = CPU) -> Analysis:
    return STRATEGY.analyse(parsed(registry, text), target)


@pytest.mark.slow
class TestMincut(StrategyContract):
    random_points = 3

    def strategy(self) -> Mincut:
        return Mincut()

    def registry(self) -> Registry:
        registry = Registry()
        registry.add(plugin, "mincut")
        return registry

    def jobs(self) -> tuple[Job, ...]:
        return (
            job("pipeline: harris\nblock: [sx, gx]\nsizes: {width: 1, height: 1}\n"),
            job("pipeline: unsharp\nblocks: 0\nmodel: published_code\n"),
            job("pipeline: ./mixed.yaml\nblocks: 2\nsizes: {width: 60, height: 300}\n", FILES / "job.yaml"),
        )

    @pytest.mark.slow  # nvcc reports on every kernel
    @pytest.mark.campaign
    def test_a_plan_can_be_shown(self) -> None:
        super().test_a_plan_can_be_shown()


@pytest.mark.parametrize("path", sorted(plugin.PIPELINES.glob("*.yaml")), ids=lambda path: path.stem)
def test_all_sizes_are_free(registry: Registry, path: Path) -> None:
    analysis = analysed(registry, f"pipeline: {path.stem}\nblocks: 0\n")
    offered = STRATEGY.space(analysis, {})
    made = [STRATEGY.emit(analysis, config, {}) for _, config in STRATEGY.seeds(analysis, offered, {})]
    made += [each.emit(next(each.space.points())) for each in STRATEGY.baselines(analysis)]
    for each in made:
        if isinstance(each, Program):
            assert [name for name, _ in each.sizes] == ["height", "width"]
            assert each.fixed == ()


# --- jobs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("blocks: 3\n", "expected the name of a pipeline, or the path of its YAML file"),
        ("pipeline: 7\n", "job.yaml:2: pipeline: expected the name of a pipeline"),
        ("pipeline: haris\n", "unknown pipeline 'haris'; did you mean 'harris'?"),
        ("pipeline: ./none.yaml\n", "there is no file"),
        ("pipeline: harris\nmodel: guess\n", "job.yaml:3: model: is 'guess'; it can be paper, published_code"),
        ("pipeline: harris\nblocks: -1\n", "job.yaml:3: blocks: is -1; it must be from 0 to 1000"),
        ("pipeline: harris\nblock: sx\n", "expected the names of the kernels of one block"),
        ("pipeline: harris\nblock: [sx, gz]\n", "unknown kernel 'gz'; did you mean 'g"),
        ("pipeline: harris\nblock: [sx, sx]\n", "a kernel stands twice"),
        ("pipeline: harris\nblock: [dx, sx, gx, hc, gxy]\n", "this block cannot be fused: gxy waits for sxy"),
        ("pipeline: harris\nsizes: {depth: 3}\n", "unknown size 'depth'"),
        ("pipeline: harris\nsizes: {width: 0}\n", "job.yaml:3: sizes.width: is 0; it must be at least 1"),
        ("pipeline: harris\nsizes: {width: 100000}\n", "expected a whole number from 1 to 65536"),
    ],
)
def test_a_job_that_is_wrong_is_one_line(registry: Registry, text: str, said: str) -> None:
    with pytest.raises(RequestError, match=re.escape(said)) as found:
        parsed(registry, text)
    assert len(str(found.value).splitlines()) == 1


def test_keys(registry: Registry) -> None:
    large, small = parsed(registry, "pipeline: harris\n"), parsed(registry, "pipeline: harris\nsizes: {width: 64}\n")
    assert large.key != small.key
    assert large.family_key == small.family_key
    assert dict(small.sizes) == {"width": 64, "height": 2048}
    # What is only planned differently is the same workload.
    assert parsed(registry, "pipeline: harris\nmodel: published_code\nblocks: 3\n").key == large.key
    block = parsed(registry, "pipeline: harris\nblock: [gx, sx]\n")
    assert block.name == "harris:sx+gx"
    assert block.members == ("sx", "gx")
    assert block.key not in (large.key, parsed(registry, "pipeline: harris\nblock: [sy, gy]\n").key)


# --- the analysis ---------------------------------------------------------------------------------------


def test_the_report_says_edges_cuts_and_blocks(registry: Registry) -> None:
    report = analysed(registry, "pipeline: harris\n").report
    assert {"from": "sx", "to": "gx", "scenario": "point_to_local", "weight": 328.0} in report["edges"]
    assert report["blocks"] == [["dx"], ["dy"], ["sx", "gx"], ["sxy", "gxy"], ["sy", "gy"], ["hc"]]
    assert report["cuts"][0]["weight"] == 2
    assert report["cuts"][0]["sides"][1] == ["sy", "gy"]
    assert report["benefit"] == 912
    assert report["optimum"]["gap"] == 0
    assert analysed(registry, "pipeline: sobel\n").report["optimum"]["gap"] == 652


@pytest.mark.parametrize(
    ("registers", "spilled", "rule"), [(40, 0, None), (255, 64, "spills"), (255, 0, None), (300, 0, "launch")]
)
def test_a_block_that_spills_or_cannot_be_launched_is_rejected(
    registry: Registry, registers: int, spilled: int, rule: str | None
) -> None:
    def facts(source: Source) -> dict[str, CompileFacts]:
        return {
            entry: CompileFacts(arch="sm_90", entry=entry, registers=registers, shared_bytes=0, barriers=1,
                                stack_bytes=0, spill_store_bytes=spilled, spill_load_bytes=spilled)
            for entry in source.entries
        }  # fmt: skip

    target = Target(arch="sm_90", limits=GPU, facts=facts)
    analysis = analysed(registry, "pipeline: harris\nblock: [sx, gx]\n", target)
    config = dict(STRATEGY.seeds(analysis, STRATEGY.space(analysis, {}), {}))["default"]
    found = STRATEGY.emit(analysis, config, {})
    assert (found.rule if isinstance(found, Rejection) else None) == rule
    if isinstance(found, Rejection):
        assert str(registers) in found.detail
    alone = analysed(registry, "pipeline: harris\nblock: [gx]\n", target)  # what is not fused is launched anyhow
    space = STRATEGY.space(alone, {})
    assert isinstance(STRATEGY.emit(alone, next(space.points()), {}), Program)


# --- parts and what becomes of them ---------------------------------------------------------------------


def answered(workload: Workload, time_us: float, config: Config | None, baseline_us: float) -> Record:
    return Record(
        strategy="mincut", workload_name=workload.name, workload_key=workload.key, sizes=workload.sizes,
        device_name="cpu", device_key="d", env_key="e", verdict=Verdict.FUSE, config=config, program_key=None,
        time_us=time_us,
        baseline="sequential", baseline_us=baseline_us, speedup=None, ci95=None, verified=True, evidence="emulated",
        trials=1, found_at="2026-01-01T00:00:00+00:00",
    )  # fmt: skip


def knowledge(registry: Registry, analysis: Analysis, costs: Mapping[str, float]) -> dict[str, Any]:
    """Records of all parts: microseconds by block, in one way for all."""
    known: dict[str, Any] = {}
    for part in STRATEGY.parts(analysis):
        workload = STRATEGY.parse(part, JobInputs(registry, part))
        inner = STRATEGY.space(STRATEGY.analyse(workload, CPU), {})
        names = {each.name for each in inner.parameters} - {"strip"}
        offered = next((each.values for each in inner.parameters if each.name == "local"), ())
        again = "recompute" if "recompute" in offered else "tile"
        config = {"shape": "64x4*2 tile", "threads": "64x4", "pixels": 2, "local": again}
        config = {key: value for key, value in config.items() if key in names}
        assert inner.problems(config) == ()
        name = "+".join(workload.members)
        known[workload.key] = answered(workload, costs.get(name, 1000.0), Config.of(config), 5000.0)
    return known


def test_parts_are_single_kernels_and_blocks(registry: Registry) -> None:
    analysis = analysed(registry, "pipeline: harris\nblocks: 5\nsizes: {width: 64, height: 32}\n")
    names = [list(part.request["block"]) for part in STRATEGY.parts(analysis)]
    assert [each for each in names if len(each) == 1] == [
        ["dx"], ["dy"], ["sx"], ["gx"], ["sxy"], ["gxy"], ["sy"], ["gy"], ["hc"],
    ]  # fmt: skip
    several = [each for each in names if len(each) > 1]
    assert len(several) == 5
    assert [each for each in (["sx", "gx"], ["sxy", "gxy"], ["sy", "gy"]) if each in several] == [
        ["sx", "gx"], ["sxy", "gxy"], ["sy", "gy"],
    ]  # fmt: skip
    assert all(part.sizes == {"width": 64, "height": 32} for part in STRATEGY.parts(analysis))
    assert analysis.report["to_measure"] == {"single": 9, "several": 5, "of": 119, "complete": True}
    assert STRATEGY.parts(analysed(registry, "pipeline: harris\nblocks: 0\n")) == ()
    assert STRATEGY.parts(analysed(registry, "pipeline: harris\nblock: [sx, gx]\n")) == ()


STENCILS = """
pipeline: stencils
image: {width: 64, height: 48, dtype: float32}
inputs: [src]
outputs: [k4]
masks: {box: [[1, 1, 1], [1, 1, 1], [1, 1, 1]]}
kernels:
"""


@pytest.mark.parametrize("most", [2, 3, 12])
def test_the_model_has_no_veto_over_measuring(registry: Registry, tmp_path: Path, most: int) -> None:
    """By equations 7 and 10 no two stencils behind one another are worth fusing; they are measured all the same."""
    names = ["src", *(f"k{number}" for number in range(5))]
    (tmp_path / "stencils.yaml").write_text(
        STENCILS
        + "".join(
            f"  {name}: {{pattern: local, mask: [3, 3], border: clamp, reads: [{before}],"
            f' body: "sum(box, {before}) / 9"}}\n'
            for before, name in itertools.pairwise(names)
        )
    )
    found = parsed(registry, f"pipeline: ./stencils.yaml\nblocks: {most}\n", tmp_path / "job.yaml")
    analysis = STRATEGY.analyse(found, CPU)
    assert [len(each) for each in analysis.report["blocks"]] == [1] * 5  # Algorithm 1 fuses nothing
    several = [tuple(part.request["block"]) for part in STRATEGY.parts(analysis) if len(part.request["block"]) > 1]
    untried = [each["block"] for each in analysis.report["not_tried"]]
    assert len(several) == min(most, 10)  # of the 10 that there are
    assert len(several) + len(untried) == 10
    assert tuple(names[1:]) in several
    assert any(len(each) == 2 for each in several)
    assert all(each["because"] and each["saves"] > 0 for each in analysis.report["not_tried"])
    shown = STRATEGY.describe(analysis)
    assert "k0+k1+k2+k3+k4" in shown
    assert all(f"  {each}  " in shown for each in untried)


def test_the_best_sums_of_measured_blocks_are_offered_first(registry: Registry) -> None:
    analysis = analysed(registry, "pipeline: sobel\n")
    costs = {"x_row": 10.0, "y_row": 10.0, "x_column": 10.0, "y_column": 10.0, "magnitude": 10.0,
             "x_row+x_column": 12.0, "x_column+y_column+magnitude": 15.0, "y_row+y_column": 21.0}  # fmt: skip
    known = knowledge(registry, analysis, costs)
    space = STRATEGY.space(analysis, known)
    names = {each.name: each.values for each in space.parameters}
    values = names["partition"]
    assert values[2] == "x_row|y_row|x_column+y_column+magnitude"  # 35; Algorithm 1's comes to 43
    assert values[3] == "x_row+x_column|y_row|y_column|magnitude"  # 42
    assert "measured" in names["shapes"]
    seeds = dict(STRATEGY.seeds(analysis, space, known))
    assert list(seeds)[:3] == ["algorithm1", "unfused", "composed_as_measured"]
    chosen = seeds["composed_as_measured"]
    assert chosen["partition"] == values[2]
    assert [seeds[f"composed_as_measured_{way}"]["launch"] for way in ("streams", "graph")] == ["streams", "graph"]
    assert chosen["at.x_row"] == "64x4*2 tile"
    assert "at.x_row+x_column" not in chosen
    program = STRATEGY.emit(analysis, chosen, {})  # the config holds all that it needs
    assert isinstance(program, Program)
    launches = [step for step in program.steps if isinstance(step, Launch)]
    assert [each.block for each in launches] == [(64, 4, 1)] * 3
    for config in seeds.values():
        assert space.problems(config) == ()
    sums = STRATEGY.sums(analysis, known)
    assert sums[:2] == ((values[2], 35.0), (values[3], 42.0))
    assert ("x_row+x_column|y_row+y_column|magnitude", 43.0) in sums
    assert ("x_row|x_column|y_row|y_column|magnitude", 50.0) in sums


def test_the_unfused_kernels_win_nothing_against_themselves(registry: Registry) -> None:
    """Each kernel at its own best is among the baselines; as a candidate it would be called a fusion."""
    analysis = analysed(registry, "pipeline: sobel\n", SM_90)
    known = knowledge(registry, analysis, {})
    space = STRATEGY.space(analysis, known)
    unfused = "x_row|y_row|x_column|y_column|magnitude"
    ways = {config["shapes"] for config in space.points() if sorted(str(config["partition"]).split("|")) == sorted(
        unfused.split("|"))}  # fmt: skip
    assert ways == set(block_configs.UNIFORM)
    knobs = STRATEGY.baselines(analysis)[0].space
    offered = {each.name: set(each.values) for each in knobs.parameters}
    part = next(part for part in STRATEGY.parts(analysis) if list(part.request["block"]) == ["x_row"])
    alone = STRATEGY.analyse(STRATEGY.parse(part, JobInputs(registry, part)), SM_90)
    (shape,) = STRATEGY.space(alone, {}).parameters
    assert set(shape.values) <= offered["at.x_row"]
    assert {each.replace("recompute", "tile") for each in block_configs.UNIFORM} <= offered["shapes"]


def test_a_kernel_that_is_fastest_as_given_is_launched_so(registry: Registry) -> None:
    analysis = analysed(registry, "pipeline: unsharp\n")
    known = {
        key: dataclasses.replace(record, baseline_us=1.0) if "+" not in record.workload_name else record
        for key, record in knowledge(registry, analysis, {"ratio+unsharp": 0.5}).items()
    }
    seeds = dict(STRATEGY.seeds(analysis, STRATEGY.space(analysis, known), known))
    assert seeds["composed_as_measured"]["partition"] == "gauss|sharp|ratio+unsharp"
    assert seeds["composed_as_measured"]["at.sharp"] == block_configs.DEFAULT


# --- probes ---------------------------------------------------------------------------------------------


def test_probes_calibrate_the_model(registry: Registry) -> None:
    analysis = analysed(registry, "pipeline: harris\n", SM_90)
    keys = {each.key.split("-")[1]: each.key for each in STRATEGY.probes(analysis)}
    assert set(keys) == {"copy", "shared", "alu", "sfu", "launch"}
    count = probes.pixels(GPU)
    spent = {"copy": 10.0, "shared": 100.0, "alu": 40.0, "sfu": 80.0, "launch": 2.0}
    known = {keys[name]: value for name, value in spent.items()}
    model = probes.calibrated(GPU, known, 1_000_000)
    assert model is not None
    assert model.t_g == pytest.approx(8000 / (2 * count))
    assert model.c_alu == pytest.approx(30_000 / (count * 256))
    assert model.gamma == pytest.approx(2000 / 1_000_000)
    assert model.shared_gain < model.register_gain == model.t_g
    assert probes.calibrated(GPU, dict(list(known.items())[1:]), 1_000_000) is None
    assert STRATEGY.space(analysis, known).hash == STRATEGY.space(analysis, known).hash
    assert STRATEGY.probes(analysed(registry, "pipeline: harris\nblock: [sx, gx]\n")) == ()


# --- emitting -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"partition": "dx|dy", "shapes": block_configs.DEFAULT},
        {"partition": "dx|dy|sx+gx|sxy+gxy|sy+gy|hc", "shapes": "huge"},
        {"shapes": block_configs.DEFAULT},
        {"partition": "dx+dy+hc|sx+gx|sxy+gxy|sy+gy", "shapes": block_configs.DEFAULT},
    ],
)
def test_what_is_no_config_is_a_rejection(registry: Registry, values: dict[str, str]) -> None:
    found = STRATEGY.emit(analysed(registry, "pipeline: harris\n"), Config.of(values), {})
    assert isinstance(found, Rejection)
    assert found.rule == "not_in_space"


def test_blocks_can_be_launched_on_streams_and_as_a_graph(registry: Registry) -> None:
    analysis = analysed(registry, "pipeline: harris\nsizes: {width: 64, height: 48}\n")
    config = {"partition": "dx|dy|sx+gx|sxy+gxy|sy+gy|hc", "shapes": block_configs.DEFAULT}
    programs = [
        STRATEGY.emit(analysis, Config.of({**config, "launch": way}), {}) for way in ("sequence", "streams", "graph")
    ]
    sequence, streams, graph = (each for each in programs if isinstance(each, Program))
    assert {step.stream for step in sequence.steps} == {0}
    assert len({step.stream for step in streams.steps}) > 1
    assert (streams.issue, graph.issue) == ("streams", "graph")
    assert problems(streams) == problems(graph) == ()
    assert isinstance(STRATEGY.emit(analysis, Config.of({**config, "launch": "twice"}), {}), Rejection)
    whole = STRATEGY.space(analysed(registry, "pipeline: unsharp\n"), {})
    assert all("launch" not in each for each in whole.points() if "|" not in str(each["partition"]))


def test_streams_order_readers_after_writers(registry: Registry) -> None:
    analysis = analysed(registry, "pipeline: harris\nsizes: {width: 64, height: 48}\n")
    by_name = {each.name: each for each in STRATEGY.baselines(analysis)}
    assert list(by_name) == ["sequential", "streams", "graph"]
    program = by_name["streams"].emit(next(by_name["streams"].space.points()))
    assert by_name["graph"].emit(next(by_name["graph"].space.points())).issue == "graph"
    steps = [step for step in program.steps if isinstance(step, Launch)]
    assert len({step.stream for step in steps}) > 1
    before: dict[str, set[str]] = {}
    for index, step in enumerate(steps):
        earlier = [each.name for each in steps[:index] if each.stream == step.stream] + list(step.after)
        before[step.name] = {name for each in earlier for name in (each, *before[each])}
    for producer, consumer in (("dx", "sx"), ("dx", "sxy"), ("dy", "sxy"), ("sx", "gx"), ("gx", "hc"), ("gxy", "hc")):
        assert f"{producer}_kernel" in before[f"{consumer}_kernel"]
    assert "dy_kernel" not in before["gx_kernel"]  # independent
