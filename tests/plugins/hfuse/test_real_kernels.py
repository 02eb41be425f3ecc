"""Kernels in the manner of CUDA's samples, PyTorch and Rodinia: fused with each other in random ways, they give what
they give by themselves, and nvcc takes what comes out.

Each kernel is followed by one other in a shuffled ring, so that each stands on both sides once.
"""

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fusiond.model.nouns import Config
from fusiond.model.program import Program, SourceLanguage

from .conftest import assembled

KERNELS = Path(__file__).parent / "kernels"
COMPILED = ("argmax", "dropout", "eights", "groups", "layernorm", "lud", "mandelbrot", "nbody", "reduce")
"""Those that the front end for C++ leaves to nvcc: early returns, methods that see the block, headers of libraries."""
NAMES = sorted(path.stem for path in KERNELS.glob("*.yaml") if path.stem not in COMPILED)


def ring(seed: int, among: Sequence[str] = NAMES) -> list[tuple[str, str]]:
    names = random.Random(seed).sample(among, len(among))
    return list(zip(names, [*names[1:], names[0]], strict=True))


@pytest.fixture
def pair(analyse):
    def pair(names):
        given = (str(KERNELS / f"{name}.yaml") for name in names)
        analysis = analyse(*given, granularity=32, compiled=not set(names).isdisjoint(COMPILED))
        assert analysis.rejections == ()
        return analysis

    return pair


def some(strategy, analysis, seed: int) -> Config:
    """A point of the space, every kind of fusion as likely as any."""
    points = list(itertools.islice(strategy.space(analysis, {}).points(), 20_000))
    kinds: dict[tuple[object, ...], list[Config]] = {}
    for each in points:
        kinds.setdefault(tuple(each.get(name) for name in ("kind", "level", "assign", "map")), []).append(each)
    choose = random.Random(seed)
    return choose.choice(kinds[choose.choice(list(kinds))])


def test_there_are_enough_of_them():
    assert len(NAMES) + len(COMPILED) >= 29


@pytest.mark.slow
@pytest.mark.parametrize("names", ring(1), ids="-".join)
@pytest.mark.sampled(8)
def test_a_pair_gives_what_it_gives_unfused(pair, strategy, same, names):
    analysis = pair(names)
    config = some(strategy, analysis, len(names[0]) * 100 + len(names[1]))
    program = strategy.emit(analysis, config, {})
    assert isinstance(program, Program), (config, program)
    same(program, strategy.unfused(analysis, config))


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("names", [*ring(3, COMPILED), ("lud", "softmax")], ids="-".join)
@pytest.mark.sampled(3)
def test_a_compiled_pair_gives_what_it_gives_unfused(pair, strategy, runner, names):
    """With one of C++, both are compiled."""
    analysis = pair(names)
    config = some(strategy, analysis, len(names[0]) * 100 + len(names[1]))
    program = strategy.emit(analysis, config, {})
    assert isinstance(program, Program), (config, program)
    assert {each.language for each in program.sources} == {SourceLanguage.PTX}
    wanted = runner.run(strategy.unfused(analysis, config))
    for name, array in runner.run(program).items():
        np.testing.assert_allclose(array, wanted[name], rtol=1e-5, err_msg=name)  # sums of atomic operations


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("names", ring(2)[::2], ids="-".join)
@pytest.mark.sampled(3)
def test_nvcc_takes_a_pair(pair, strategy, tmp_path, names):
    analysis = pair(names)
    program = strategy.emit(analysis, some(strategy, analysis, len(names[0])), {})
    assert isinstance(program, Program), program
    assert strategy.inspect(program, {"fused": assembled(program.sources[0], tmp_path)[0]}) is None
