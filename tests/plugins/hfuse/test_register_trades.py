"""Registers that the sides of a fused block give each other (`setmaxnreg`), from sm_90 on."""

import dataclasses
import re

import pytest

from fusiond.build import nvcc
from fusiond.model.gpu.limits import limits
from fusiond.model.nouns import Config
from fusiond.model.program import Program
from fusiond.requests.planning import target_for_arch
from fusiond_hfuse.analysis import partition
from fusiond_hfuse.codegen import verify

from .conftest import facts_of

TRADING = """\
__global__ void heavy(float* p, int n)
{
    float a[96];
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
#pragma unroll
    for (int i = 0; i < 96; i++) a[i] = p[i * n + t];
    for (int k = 0; k < 8; k++) {
#pragma unroll
        for (int i = 0; i < 96; i++) a[i] = a[i] * a[(i + 1) % 96] + 1.0f;
    }
#pragma unroll
    for (int i = 0; i < 96; i++) p[i * n + t] = a[i];
}
__global__ void light(float* p, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) p[i] = p[i] * 2.0f + 1.0f;
}
"""
TRADING_YAML = """\
kernel: {0}
source: {0}.cu
entry: {0}
sizes: {{n: 700}}
arguments:
  - {{name: p, dtype: float32, elements: 96 * n, role: inout, fill: {{uniform: [0, 1]}}}}
  - {{name: n, dtype: int32, value: n}}
block: {{shape: [128], tune: x}}
grid: ["ceil_div(n, block.x)"]
"""
TRADED = facts_of(128, heavy=168, light=14)


@pytest.fixture
def trading(analyse, kernel_file):
    def trading(target, **changes):
        names = [kernel_file(name, TRADING, TRADING_YAML.format(name)) for name in ("heavy", "light")]
        return analyse(*names, target=dataclasses.replace(target, **changes))

    return trading


@pytest.mark.slow
def test_every_trade_that_is_offered_can_be(trading, strategy, h100):
    """Of batchnorm beside hist, two thirds of what was offered were refused when they were emitted."""
    analysis = trading(h100, facts=TRADED)
    offered = [each for each in strategy.space(analysis, {}).points() if each.get("taker", "none") != "none"]
    assert len(offered) > 1000
    for config in offered[::97]:
        found = strategy.emit(analysis, config, {})
        assert "none can be given" not in getattr(found, "detail", ""), config


def test_a_light_side_gives_registers(trading, strategy, h100):
    analysis = trading(h100, facts=TRADED)
    found = strategy.space(analysis, {})
    seed = dict(strategy.seeds(analysis, found, {}))["registers_traded"]
    assert (seed["taker"], seed["kept"], seed["cap"]) == ("a", 24, "fit2")
    assert "__launch_bounds__(256, 2)" in strategy.emit(analysis, seed, {}).sources[0].text
    fewer = trading(h100, facts=facts_of(96, heavy=168, light=14))
    assert strategy.emit(fewer, seed, {}).rule == "registers"  # who takes would wait for ever
    none = Config.of({**seed, "kept": 96, "cap": "fit6"})
    assert strategy.emit(analysis, none, {}).rule == "not_in_space"  # there are none to give


def test_who_may_not_trade(trading, strategy, h100, cpu_target):
    assert "taker" not in {each.name for each in strategy.space(trading(cpu_target), {}).parameters}
    older = strategy.space(trading(h100, arch="sm_80", limits=limits("sm_80")), {})
    assert "taker" not in {each.name for each in older.parameters}
    found = strategy.space(trading(h100), {})
    seed = dict(strategy.seeds(trading(h100), found, {}))["given_blocks"]
    assert found.problems(Config.of({**seed, "taker": "a", "kept": 24}))  # under a number that is not a step
    fine = Config.of({**seed, "taker": "a", "kept": 24, "cap": "fit2"})
    assert found.problems(fine) == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"a": {"registers": 24}, "b": {"registers": 232}}, ""),  # the other way round is a trade, too
        ({"a": {"registers": 240}}, "for more registers than the 128"),
        ({"b": {"registers": 32}}, "for more registers than the 128"),
        ({"b": {"registers": 0}}, "some sides trade"),
        ({"b": {"first": 64}}, "does not consist of whole warpgroups"),
        ({"b": {"registers": 20}}, "which no instruction gives"),
    ],
)
def test_trades_are_verified(trading, strategy, h100, changes, said):
    analysis = trading(h100, facts=TRADED)
    seed = dict(strategy.seeds(analysis, strategy.space(analysis, {}), {}))["registers_traded"]
    schedule = partition.schedule(analysis.payload.group, seed, 1)
    own = {"a": {"registers": 232}, "b": {"registers": 24}}
    sides = [
        dataclasses.replace(side, **{**own[side.slot.letter], **changes.get(side.slot.letter, {})})
        for side in schedule.sides
    ]
    found = verify.register_problems(dataclasses.replace(schedule, sides=tuple(sides)), 128)
    assert any(said in each for each in found) if said else found == ()
    assert verify.register_problems(schedule, 128) == ()


TRADE = re.compile(
    r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32 (\d+);(?:(?!setmaxnreg|fusiond_side|\}).)*fusiond_(\w)::fusiond_side\(",
    re.DOTALL,
)
"""A trade and the side whose work follows it, in the same block of statements or one within it."""


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_each_side_trades_before_its_own_work(trading, strategy, h100, order):
    """No device here has registers to trade: whoever takes what it should give would run with the other's."""
    analysis = trading(h100, facts=TRADED)
    seed = dict(strategy.seeds(analysis, strategy.space(analysis, {}), {}))["registers_traded"]
    text = strategy.emit(analysis, Config.of({**seed, "order": order}), {}).sources[0].text
    assert text.count("setmaxnreg.") == 2
    assert sorted(TRADE.findall(text)) == [("dec", "24", "b"), ("inc", "232", "a")]


@pytest.mark.parametrize("more", [{"map": "pad"}, {"map": "stride", "blocks": 2}])
@pytest.mark.parametrize("taker", ["a", "b"])
def test_sides_trade_however_blocks_are_mapped(trading, strategy, h100, more, taker):
    """Strided ones were refused as faults of our own: the loop stands between the trade and the work."""
    analysis = trading(h100, facts=TRADED)
    found = strategy.space(analysis, {})
    seed = dict(strategy.seeds(analysis, found, {}))["registers_traded"]
    config = Config.of({**seed, **more, "taker": taker})
    assert found.problems(config) == ()
    assert isinstance(strategy.emit(analysis, config, {}), Program)


@pytest.mark.needs_nvcc
def test_ptxas_gives_what_was_traded(trading, strategy):
    """No spills at twice the blocks, where the same bounds spill without the trade."""
    target = target_for_arch("sm_90")
    analysis = trading(target)
    seed = dict(strategy.seeds(analysis, strategy.space(analysis, {}), {}))["registers_traded"]
    traded = strategy.emit(analysis, seed, {})
    assert isinstance(traded, Program), traded
    facts = target.facts(traded.sources[0])["fused_heavy_light"]
    assert (facts.registers, facts.spill_store_bytes) == (128, 0)
    kept = Config.of({name: value for name, value in seed.items() if name != "kept"} | {"taker": "none"})
    assert target.facts(strategy.emit(analysis, kept, {}).sources[0])["fused_heavy_light"].spill_store_bytes > 0
    ptx = nvcc.ptx(traded.sources[0], "sm_90")
    assert ".target sm_90a" in ptx
    assert strategy.inspect(traded, {"fused": ptx}) is None
    assert verify.lint(ptx) != ()


@pytest.mark.slow
def test_the_processor_has_no_registers_to_trade(trading, strategy, same, h100):
    analysis = trading(h100, facts=TRADED)
    seed = dict(strategy.seeds(analysis, strategy.space(analysis, {}), {}))["registers_traded"]
    same(strategy.emit(analysis, seed, {}), strategy.unfused(analysis, seed))
