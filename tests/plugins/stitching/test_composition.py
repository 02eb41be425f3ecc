"""A plan in which each group runs as it was fastest by itself."""

from __future__ import annotations

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
from fusiond.model.inputs.fills import fill
from fusiond.model.nouns import Analysis, Config, Rejection
from fusiond.model.program import Launch, Program
from fusiond.requests.planning import prepare
from fusiond.strategy import Target
from fusiond_stitching import space
from fusiond_stitching.analysis import parts, planner, verify
from fusiond_stitching.analysis.composition import Composition, Way
from fusiond_stitching.analysis.policy import FusionPolicy
from fusiond_stitching.codegen import emit
from fusiond_stitching.frontend import importer
from fusiond_stitching.strategy import Stitching

from . import oracle
from .graphs import modules
from .jobs import H100, registry
from .policies import LIMITS
from .recorded_parts import FOUND, TWICE, analysed, known

BUFFER = re.compile(r"\b(?:in_|out_|t)\d+\b")


OTHER = Way(threads=128, grain=2048, exchange="shared", shared="paper", rows="shared")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("composition")
    (found / "twice.hlo").write_text(TWICE)
    return found


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
        ({"schedules": "some"}, "schedules is 'some'"),
        ({"schedules": "uniform"}, "schedules is 'uniform'"),
        ({"at.x": "128/2048/warp"}, "does not say how to compute a group"),
        ({"at.x": "128/2048/warp/all"}, "does not say how to compute a group"),
        ({"fusion": "paper"}, "does not apply"),
        ({"grain": 3}, "grain is 3"),
    ],
)
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
