"""Groups as parts: one text for equal groups, jobs of their own, and the plan that is composed of what they found."""

import dataclasses
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import fusiond_stitching.plugin as plugin
from fusiond.devices.cpu.provider import CpuProvider
from fusiond.model.errors import RequestError
from fusiond.model.inputs.fills import fill
from fusiond.model.nouns import Analysis, Config, Job, Rejection
from fusiond.model.outcomes import JobState
from fusiond.model.program import Buffer, Launch, Program, Role
from fusiond.requests import jobs
from fusiond.requests.planning import prepare
from fusiond.requests.registry import Registry
from fusiond.store.database import Store
from fusiond.strategy import Target
from fusiond.strategy.hookspecs import hookimpl
from fusiond.testing.strategies import StrategyContract
from fusiond_stitching import space
from fusiond_stitching.analysis import parts, planner, verify
from fusiond_stitching.analysis.composition import Composition, Way
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.codegen import emit, probes
from fusiond_stitching.frontend import fills, importer, printer
from fusiond_stitching.frontend.graph import HloInstruction, HloModule, topological
from fusiond_stitching.strategy import Stitching
from tests.conftest import run_job

from . import oracle
from .graphs import modules
from .jobs import H100, job, registry
from .policies import LIMITS
from .recorded_parts import FOUND, TWICE, Split, analysed, known


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("parts")
    (found / "twice.hlo").write_text(TWICE)
    return found


# --- a group as a text ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lr_step", "speech_fwd", "w2v_step", "nmt_attn", "lstm_step"])
def test_each_group_by_itself_is_planned_as_it_lies_in_the_module(name):
    """The same instructions stored, in the same stages, under the same schedule."""
    whole = Split.of(name)
    offered = space.policy(Config.of({**space.alone_seeds(H100)[0][1], "fusion": "packed"}), H100, dots="library")
    found = whole.parts()
    assert found
    for root, part in found.items():
        program = parts.only(parts.planned(importer.read(part.text, part.name), offered, H100))
        theirs = whole.planned.programs[root]
        assert not isinstance(program, str), program
        mine = [(part.names[each.instruction], len(each.homes)) for each in program.results]
        wanted = Counter((each.instruction, len(each.homes)) for each in theirs.results)
        assert not wanted - Counter(mine)
        if wanted != Counter(mine):  # what several groups compute again, one by itself may keep
            assert name == "w2v_step"
            continue
        assert (program.schedule, program.blocks, program.shared_bytes) == (
            theirs.schedule, theirs.blocks, theirs.shared_bytes,
        )  # fmt: skip


def shuffled(module: HloModule, random_: random.Random) -> HloModule:
    """The same module under other names, its instructions, parameters and outputs in another order."""
    new = {
        each.name: f"n{number}" for number, each in enumerate(random_.sample(module.instructions, len(module.number)))
    }
    parameters = [each for each in module.instructions if each.opcode == "parameter"]
    rest = [each for each in module.instructions if each.opcode != "parameter"]
    ordered = topological(random_.sample([*parameters, *rest], len(module.number)))
    count = iter(range(len(parameters)))

    def renamed(each: HloInstruction) -> HloInstruction:
        attributes = {"number": next(count)} if each.opcode == "parameter" else each.attributes
        operands = tuple(new[name] for name in each.operands)
        return dataclasses.replace(each, name=new[each.name], operands=operands, attributes=attributes)

    found = [renamed(each) for each in ordered]
    return HloModule(
        name="other",
        instructions=tuple(found),
        parameters=tuple(each.name for each in found if each.opcode == "parameter"),
        outputs=tuple(new[name] for name in random_.sample(module.outputs, len(module.outputs))),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lr_step", "speech_fwd", "w2v_step", "lstm_step"])
def test_equal_groups_are_one_text_whatever_their_names_and_order(name):
    whole = Split.of(name)
    random_ = random.Random(5)
    for root, alone in parts.groups(whole.module, whole.planned).items():
        part = parts.part(alone, {}, **FOUND)
        if part is None:
            continue
        for _ in range(3):
            other = parts.part(shuffled(alone, random_), {}, **FOUND)
            assert other is not None
            assert other.text == part.text, root


def ran(module: HloModule, values: dict[str, np.ndarray], names: dict[str, str]) -> dict[str, np.ndarray]:
    """A module through XLA: the outputs, under the names of the whole one."""
    inputs = [values[names[each]].reshape(module[each].dims) for each in module.parameters]
    results = oracle.run(printer.written(module, "one").translate({ord("~"): "_", ord("/"): "_"}), inputs)
    return {names[each]: result for each, result in zip(module.outputs, results, strict=True)}


@pytest.mark.parametrize(
    "name", ["nmt_attn", *(pytest.param(each, marks=pytest.mark.slow) for each in ("w2v_step", "speech_fwd"))]
)
def test_the_groups_one_after_the_other_are_the_module(name):
    """XLA runs the text of every group and of every library call on what those before gave, and gets what it gets from
    the whole text."""
    whole = Split.of(name)
    program = emit.program(whole.module, whole.planned.plan, fills=whole.fills)
    assert isinstance(program, Program)
    values = {}
    for each in whole.module.parameters:
        buffer = program.buffer(whole.module.buffer_of(each))
        values[each] = fill(buffer, 0).reshape(whole.module[each].dims)
    inputs = [values[each] for each in whole.module.parameters]
    alone = parts.groups(whole.module, whole.planned)
    for step in whole.planned.plan.steps:
        if hasattr(step, "instruction"):
            one = probes.isolated(whole.module, whole.module[step.instruction])
            for each in one.parameters:  # behind reshapes, perhaps
                source = each
                while source not in values:
                    (source,) = whole.module[source].operands
                values[each] = values[source]
            values |= ran(one, values, {each: each for each in one.by_name})
            continue
        for group in step.programs:
            made = parts.part(alone[group.root], {}, **FOUND)
            assert made is not None, group.root
            values |= ran(importer.read(made.text, made.name), values, dict(made.names))
    wanted = oracle.run((plugin.MODULES / f"{name}.hlo").read_text(), inputs)
    for output, theirs in zip(whole.module.outputs, wanted, strict=True):
        np.testing.assert_allclose(values[output].reshape(theirs.shape), theirs, rtol=2e-3, atol=2e-4)


# --- parts are jobs -------------------------------------------------------------------------------------


@pytest.mark.slow
class TestParts(StrategyContract):
    """A part is a job like any other, and a module with parts too."""

    random_points = 2

    def strategy(self) -> Stitching:
        return Stitching()

    def jobs(self) -> tuple[Job, ...]:
        whole = job(f"groups: 3\nmodule: |\n  {TWICE.replace(chr(10), chr(10) + '  ')}")
        return (whole, *Stitching().parts(analysed("module: lr_step\ninputs: {in_1: {uniform: [0, 1]}}")))

    def registry(self) -> Registry:
        return registry()


SUM = """HloModule sum

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}

ENTRY main {
  a = f32[64,64] parameter(0)
  z = f32[] constant(0)
  ROOT b = f32[64] reduce(a, z), dimensions={1}, to_apply=add
}
"""


def test_a_group_of_one_instruction_is_alone():
    """There is nothing to fuse in it, and a better shape of it may win; no module is that."""
    more = SUM.replace("ROOT b", "b").replace("=add\n", "=add\n  ROOT c = f32[64] tanh(b)\n")

    def said(text: str) -> str:
        return f"module: |\n  {text.replace(chr(10), chr(10) + '  ')}"

    assert analysed(f"group: true\n{said(SUM)}").alone
    assert not analysed(f"group: true\n{said(more)}").alone
    assert not analysed(said(SUM)).alone


def test_what_an_input_of_the_module_holds_an_input_of_the_part_holds_too():
    """Indices stay in their range, a distribution stays what it is; what another group computes is filled afresh."""
    whole = analysed("module: w2v_step\ninputs: {in_0: {normal: [0, 2]}}\ngroups: 50")
    module, given = whole.payload.forms("split"), whole.payload.request.fills
    seen: set[str] = set()
    for part, _ in whole.payload.parts:
        for name in part.module.parameters:
            origin, own = part.names[name], part.fills[part.module.buffer_of(name)]
            if module[origin].opcode == "parameter":
                assert own == given[module.buffer_of(origin)]
                seen.add(module.buffer_of(origin))
            else:
                assert own == fills.default(part.module, name)
    assert "in_0" in seen
    assert any(given[each].kind == "integers" for each in seen)


@pytest.mark.parametrize(
    ("text_", "count"),
    [
        ("module: twice.hlo", 1), ("module: twice.hlo\ngroups: 0", 0), ("module: speech_fwd\ngroups: 2", 2),
        ("module: nmt_fig3", 0), ("module: nmt_fig3\ndots: stitched", 0),
    ],
)  # fmt: skip
def test_how_many_groups_are_measured_is_asked_for(text_, count, folder):
    """A module that is one group has no parts, and a part is one group."""
    analysis = analysed(text_, folder)
    found = Stitching().parts(analysis)
    assert len(found) == count == len(analysis.report["parts"])
    for each in found:
        inner = Stitching().analyse(
            prepare(registry(), each).workload, Target(arch="sm_90", limits=H100, facts=lambda source: None)
        )
        assert Stitching().parts(inner) == ()
        assert inner.rejections == ()
        assert inner.report["kernels"]["stitched"] == 1


@pytest.mark.parametrize(
    ("text_", "said"),
    [
        ("module: lr_step\ngroups: -1", "groups: is -1"),
        ("module: lr_step\ngroups: many", "a whole number is wanted"),
        ("module: lr_step\ngroup: 3", "write true or false"),
        ("module: lr_step\ngroup: true\ngroups: 3", "groups: a job with `group: true` is one group"),
        ("module: 'HloModule m'", "there is no ENTRY"),
    ],
)
def test_a_mistake_about_groups_is_one_line_that_says_where(text_, said):
    with pytest.raises(RequestError) as caught:
        prepare(registry(), job(text_))
    assert said in str(caught.value)
    assert "job.yaml" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


# --- from the job to the record -------------------------------------------------------------------------


class Devices:
    @hookimpl
    def register_devices(self, register) -> None:
        register(CpuProvider())


BEHIND = """HloModule behind

add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[32,128] parameter(0)
  w = f32[128,128] parameter(1)
  zero = f32[] constant(0)
  e = f32[32,128] exponential(x)
  s = f32[32] reduce(e, zero), dimensions={1}, to_apply=add
  b = f32[32,128] broadcast(s), dimensions={0}
  y = f32[32,128] divide(e, b)
  narrow = bf16[32,128] convert(y)
  v = bf16[128,128] convert(w)
  h = bf16[32,128] dot(narrow, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  back = f32[32,128] convert(h)
  root = f32[32,128] exponential(back)
  sum = f32[32] reduce(root, zero), dimensions={1}, to_apply=add
  wide = f32[32,128] broadcast(sum), dimensions={0}
  ROOT z = f32[32,128] divide(root, wide)
}
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("short_measuring", "gxx_here")
def test_a_part_reads_what_the_whole_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a library call: h, in bfloat16, which inputs of the part's own would not resemble."""
    monkeypatch.setenv("FUSIOND_CACHE", str(tmp_path / "cache"))
    found = registry()
    found.add(Devices(), "devices")
    (tmp_path / "behind.hlo").write_text(BEHIND)
    text_ = "strategy: stitching\nmodule: behind.hlo\ndevice: cpu\nsearch: {trials: 1, timeout: 2m, seed: 1}\n"
    (asked,) = jobs.read(tmp_path / "job.yaml", text_)
    with Store.open(tmp_path / "store.sqlite") as store:
        row, state = run_job(store, found, asked, least_patience_secs=3)
        assert state is JobState.DONE, store.job(row.id).problem
        read = {}
        for part in store.parts(row.id):
            keys = [each["config_key"] for each in store._rows("SELECT * FROM emitted WHERE job_id = ?", [part.id])]
            program = store.emitted(part.id, keys[0])
            assert isinstance(program, Program)
            read |= {each.dtype: each for each in program.buffers if each.role is Role.INPUT and each.dtype != "bool"}
            inputs = prepare(found, jobs.read(tmp_path / "job.yaml", text_)[0]).workload.payload.fills
    x, w = (fill(Buffer(name=f"in_{each}", dtype="float32", elements=n, role=Role.INPUT, fill=inputs[f"in_{each}"]), 0)
            for each, n in ((0, 32 * 128), (1, 128 * 128)))  # fmt: skip
    e = np.exp(x.reshape(32, 128))
    h = (e / e.sum(axis=1, keepdims=True)) @ w.reshape(128, 128)
    given = fill(read["bfloat16"], 0)
    assert read["bfloat16"].fill.kind == "file"
    wide = (given.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(32, 128)
    np.testing.assert_allclose(wide, h, rtol=0.02, atol=2e-3)  # of 0.1, from operands in bfloat16


# --- a plan in which each group runs as it was fastest by itself ----------------------------------------


BUFFER = re.compile(r"\b(?:in_|out_|t)\d+\b")


OTHER = Way(threads=128, grain=2048, exchange="shared", shared="paper", rows="shared")


def measured(analysis: Analysis, found: dict, seed: str = "packed_as_measured") -> tuple[Config, Program]:
    strategy = Stitching()
    offered = strategy.space(analysis, found)
    config = dict(strategy.seeds(analysis, offered, found))[seed]
    assert offered.problems(config) == ()
    program = strategy.emit(analysis, config, found)
    assert isinstance(program, Program), program
    return config, program


def threads(program: Program) -> list[int]:
    return [step.block[0] for step in program.steps if isinstance(step, Launch) and not emit.is_library(step)]


def test_nothing_is_composed_before_something_is_known(folder):
    analysis = analysed("module: twice.hlo", folder)
    strategy = Stitching()
    for found in ({}, known(analysis, {strategy.parts(analysis)[0].request["module"].split()[1]: None})):
        offered = strategy.space(analysis, found)
        assert "schedules" not in {each.name for each in offered.parameters}
        assert len(strategy.seeds(analysis, offered, found)) == 6
    found = known(analysis, {}, rest=OTHER)
    names = [name for name, _ in strategy.seeds(analysis, strategy.space(analysis, found), found)]
    assert names[:4] == ["packed", "packed_as_measured", "barriers", "barriers_as_measured"]


def test_each_group_takes_its_own_way_wherever_it_stands(folder):
    analysis = analysed("module: twice.hlo", folder)
    found = known(analysis, {}, rest=OTHER)
    config, program = measured(analysis, found)
    assert threads(program) == [128, 128]
    # What is stored says all of it: no record is needed to make the same Program again.
    assert dict(config)[f"at.{analysis.report['parts'][0]['name']}"] == "128/2048/shared/paper/shared"
    again = Stitching().emit(analysis, config, {})
    assert isinstance(again, Program)
    assert again.key == program.key
    shown = [Stitching().resolved(analysis, config, each)["schedules"] for each in ({}, found)]
    assert shown == [
        "measured: 2 of 2 groups; launches: 2 at 128 threads",
        "measured: 2 of 2 groups, 20.0 us by themselves; launches: 2 at 128 threads",
    ]
    # It is what the part's own job measured, under the names of the module.
    inner = prepare(registry(), Stitching().parts(analysis)[0]).workload
    alone = Stitching().emit(
        Stitching().analyse(inner, Target(arch="sm_90", limits=H100, facts=lambda source: None)),
        Config.of(dataclasses.asdict(OTHER)),
        {},
    )
    assert isinstance(alone, Program)
    inside = re.findall(r"^    (.*?)(?://.*)?$", BUFFER.sub("B", alone.sources[0].text), re.M)
    whole = BUFFER.sub("B", program.sources[0].text)
    assert len(inside) > 10
    assert all(line in whole for line in inside)


def test_a_launch_has_the_threads_that_its_groups_agree_on_else_those_of_the_config():
    analysis = analysed("module: w2v_step\ngroups: 50")
    names = [each["name"] for each in analysis.report["parts"]]
    strategy = Stitching()
    base = dict(strategy.seeds(analysis, strategy.space(analysis, {}), {}))["packed"]
    plainly = strategy.emit(analysis, base, {})
    planned = planner.plan(analysis.payload.forms("split"), space.policy(base, H100, dots="library"), H100)
    where = {}
    own = parts.of_plan(analysis.payload.forms("split"), planned, analysis.payload.request.fills, dots="library")
    for number, kernel in enumerate(planned.plan.kernels):
        for each in kernel.programs:
            if each.root in own:  # no part: what is laid down for a scatter, and the scatter
                where[own[each.root].name] = number
    shared = next(number for number, count in Counter(where.values()).items() if count > 1)
    together = sorted(name for name in names if where[name] == shared)
    # One of several was measured: the others follow. All agree: so be it. They differ: the config decides, and the seed
    # has what those want that take longest.
    for ways, times, wanted in (
        ({together[0]: OTHER}, {}, 128),
        (dict.fromkeys(together, OTHER), {}, 128),
        ({together[0]: OTHER, together[1]: dataclasses.replace(OTHER, threads=512)}, {together[1]: 90.0}, 512),
        ({together[0]: OTHER, together[1]: dataclasses.replace(OTHER, threads=512)}, {together[0]: 90.0}, 128),
    ):
        config, program = measured(analysis, known(analysis, ways, **times))
        assert threads(program)[shared] == wanted, ways
        assert len(threads(program)) == len(threads(plainly))
        assert config.integer("threads") in (wanted, 256)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"schedules": "some"}, "schedules is 'some'"), ({"schedules": "uniform"}, "schedules is 'uniform'"),
        ({"at.x": "128/2048/warp"}, "does not say how to compute a group"),
        ({"at.x": "128/2048/warp/all"}, "does not say how to compute a group"),
        ({"fusion": "paper"}, "does not apply"), ({"grain": 3}, "grain is 3"),
    ],
)  # fmt: skip
def test_a_config_that_says_what_cannot_be_is_rejected(change, rule, folder):
    analysis = analysed("module: twice.hlo", folder)
    config, _ = measured(analysis, known(analysis, {}, rest=OTHER))
    refused = Stitching().emit(analysis, Config.of({**config, **change}), {})
    assert isinstance(refused, Rejection)
    assert refused.rule == "not_in_space"
    assert rule in refused.detail


RULES = FusionPolicy(
    layers=False, merge=True, recompute=True, middle=True, spill=True, warp=True, lift=True, packing=True, grain=64,
    threads=64, shared_limit=4096, multiprocessors=4,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(modules(), st.integers(0, 2**30))
def test_any_graph_can_be_taken_apart_and_put_together(written, seed):
    """Every group is one part, and says so in its text; in whatever ways the parts run, the plan is proved."""
    module = importer.read(written, "random")
    assume(not any("~out" in name for name in module.outputs))  # one value returned often: its copies are groups alone
    random_ = random.Random(seed)
    planned = planner.plan(module, RULES, LIMITS)
    assert planned.problems == ()
    ways = {}
    for root, alone in parts.groups(module, planned).items():
        each = parts.part(alone, {}, **FOUND)
        if each is None:  # a constant that is stored for a library call: read again, it needs no reshape
            assert not alone.parameters
            continue
        program = parts.only(parts.planned(importer.read(each.text, each.name), RULES, LIMITS))
        assert not isinstance(program, str), program
        mine = {each.names[result.instruction] for result in program.results}
        assert mine == {result.instruction for result in planned.programs[root].results}
        ways[each.name] = Way(
            threads=random_.choice((32, 64, 128)), grain=random_.choice((16, 64, 512)),
            exchange=random_.choice(("warp", "shared")), shared=random_.choice(("device", "paper")),
            rows=random_.choice(("16", "4", "shared")),
        )  # fmt: skip
    for rules in (RULES, dataclasses.replace(RULES, barriers=True)):
        found = planner.plan(module, rules, LIMITS)
        again = {root: parts.part(alone, {}, **FOUND) for root, alone in parts.groups(module, found).items()}
        again = {root: each for root, each in again.items() if each is not None}
        own = {root: ways[each.name] for root, each in again.items() if each.name in ways}
        made = Composition(
            module=module, found=found, parts=again, ways=own, rules=rules, limits=LIMITS,
            shared_limits={"device": 4096, "paper": 1024},
        )  # fmt: skip
        assert verify.problems(module, made.plan, shared_limit=4096) == ()
        assert len(made.plan.steps) == len(found.plan.steps)


@pytest.mark.slow
def test_what_is_composed_is_right(runner, folder):
    """On the processor against XLA: every group in a way of its own, drawn anew for each seed."""
    for number, name in enumerate(("lr_step", "speech_fwd")):
        target = Target(arch="cpu", limits=LIMITS, facts=lambda source: None)
        analysis = analysed(f"module: {name}\ngroups: 50", target=target)
        random_ = random.Random(number)
        ways = {}
        for each in analysis.report["parts"]:
            ways[each["name"]] = Way(
                threads=random_.choice((128, 512, 1024)), grain=random_.choice(space.GRAINS),
                exchange=random_.choice(("warp", "shared")), shared=random_.choice(("device", "paper")),
            rows=random_.choice(("16", "4", "shared")),
            )  # fmt: skip
        seed = ("packed_as_measured", "barriers_as_measured")[number]
        _, program = measured(analysis, known(analysis, ways), seed)
        module = analysis.payload.request.module
        given = {each: fill(program.buffer(each), 0) for each in map(module.buffer_of, module.parameters)}
        got = runner.run(program, given, seed=number)
        inputs = [given[module.buffer_of(each)].reshape(module[each].dims) for each in module.parameters]
        wanted = oracle.run((plugin.MODULES / f"{name}.hlo").read_text(), inputs)
        for place, theirs in enumerate(wanted):
            np.testing.assert_allclose(got[f"out_{place}"], theirs.reshape(-1), rtol=2e-3, atol=2e-4)
