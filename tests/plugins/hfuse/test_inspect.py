"""The last look: what the compiler made of a fused kernel must not touch what belongs to the whole block."""

from collections.abc import Callable

from fusiond.model.nouns import Analysis
from fusiond.model.program import Program
from fusiond_hfuse.strategy import Hfuse

GOOD = ".version 8.0\n.target sm_90\n.visible .entry fused_hist_maxpool(\n)\n{\n\tbar.sync \t1, 512;\n\tret;\n}\n"


def test_a_leak_in_the_ptx_is_a_refusal(strategy: Hfuse, analyse: Callable[..., Analysis]) -> None:
    analysis = analyse("hist", "maxpool")
    space = strategy.space(analysis, {})
    (_, config), *_ = strategy.seeds(analysis, space, {})
    program = strategy.emit(analysis, config, {})
    assert isinstance(program, Program)
    (source,) = program.sources
    assert strategy.inspect(program, {source.name: GOOD}) is None
    assert strategy.inspect(program, {}) is None  # a device without PTX
    for leak in ("bar.sync \t0;", "mov.u32 \t%r1, %ntid.x;", "mov.u32 \t%r1, %tid.y;"):
        found = strategy.inspect(program, {source.name: GOOD.replace("\tret;", f"\t{leak}\n\tret;")})
        assert found is not None
        assert found.rule == "leak"


def test_the_unfused_kernels_may_do_what_they_like(strategy: Hfuse, analyse: Callable[..., Analysis]) -> None:
    baseline = strategy.baselines(analyse("hist", "maxpool"))[0]
    program = baseline.emit(next(baseline.space.points()))
    whole = GOOD.replace("\tret;", "\tbar.sync \t0;\n\tret;")
    assert strategy.inspect(program, {source.name: whole for source in program.sources}) is None
