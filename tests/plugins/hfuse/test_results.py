"""Fused kernels give what NumPy gives, and what the unfused kernels give."""

import numpy as np
import pytest

from fusiond.model.inputs.fills import fill
from fusiond.model.nouns import Config
from fusiond.model.program import Program

SMALL = {"hist.n": 20_000, "maxpool.channels": 2, "maxpool.height": 200, "maxpool.width": 150}


def histogram(x, bins):
    """Counts in equal parts of [0, 1), in the kernel's single precision."""
    inside = x[(x >= 0) & (x < 1)]
    at = np.minimum((inside * np.float32(bins)).astype(np.int64), bins - 1)
    return np.bincount(at, minlength=bins).astype(np.uint32)


def max_pool(image, window, stride, pad):
    """Largest value and its place in the plane, for an array of planes x height x width."""
    planes, height, width = image.shape
    padded = np.full((planes, height + 2 * pad, width + 2 * pad), -np.inf, image.dtype)
    padded[:, pad : pad + height, pad : pad + width] = image
    windows = np.lib.stride_tricks.sliding_window_view(padded, (window, window), axis=(1, 2))[:, ::stride, ::stride]
    flat = windows.reshape(*windows.shape[:3], window * window)
    at = flat.argmax(axis=-1)
    rows = np.arange(windows.shape[1])[None, :, None] * stride - pad + at // window
    columns = np.arange(windows.shape[2])[None, None, :] * stride - pad + at % window
    return flat.max(axis=-1), rows * width + columns


def horizontal(a, b, order="ab"):
    return Config.of({"kind": "horizontal", "threads.a": a, "threads.b": b, "order": order})


def vertical(threads, order="ab"):
    return Config.of({"kind": "vertical", "threads": threads, "order": order})


def emitted(strategy, analysis, config):
    program = strategy.emit(analysis, config, {})
    assert isinstance(program, Program), program
    return program


CONFIGS = [
    horizontal(512, 512), horizontal(896, 128, "ba"), horizontal(128, 384), vertical(256), vertical(512, "ba"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_hist_beside_maxpool_matches_numpy(analyse, strategy, runner, config):
    program = emitted(strategy, analyse("maxpool", "hist", sizes=SMALL), config)
    got = runner.run(program, order=5)
    assert isinstance(got, dict), got
    np.testing.assert_array_equal(got["a.counts"], histogram(fill(program.buffer("a.x"), 1), 20))
    image = fill(program.buffer("b.image"), 1).reshape(2, 200, 150)
    largest, position = max_pool(image, 5, 10, 2)
    np.testing.assert_array_equal(got["b.largest"], largest.ravel())
    np.testing.assert_array_equal(got["b.position"], position.ravel())


@pytest.mark.parametrize("name", ["sequential", "streams_ab", "streams_ba"])
def test_every_baseline_matches_numpy(analyse, strategy, runner, name):
    analysis = analyse("maxpool", "hist", sizes=SMALL)
    baseline = next(each for each in strategy.baselines(analysis) if each.name == name)
    for config in list(baseline.space.points())[::15]:
        program = baseline.emit(config)
        got = runner.run(program)
        assert isinstance(got, dict), got
        np.testing.assert_array_equal(got["a.counts"], histogram(fill(program.buffer("a.x"), 1), 20))


def test_the_odd_sizes_of_the_catalogue(analyse, strategy, same, parse):
    odd = strategy.odd_sizes(parse("hist", "maxpool"))
    assert odd == {
        "hist.n": 12345, "hist.bins": 17, "maxpool.channels": 3, "maxpool.height": 211, "maxpool.width": 97,
    }  # fmt: skip
    analysis = analyse("hist", "maxpool", sizes=odd)
    config = horizontal(384, 640)
    same(emitted(strategy, analysis, config), strategy.unfused(analysis, config))


@pytest.mark.slow
@pytest.mark.parametrize("config", [horizontal(512, 128, "ba"), horizontal(256, 768), vertical(384)], ids=str)
def test_a_kernel_with_itself_on_different_data(analyse, strategy, same, runner, config):
    """7 and 13 blocks at 512 threads, coprime at others too; both sides have a part of the arena."""
    analysis = analyse("hist", "hist", sizes={"a.n": 3_500, "b.n": 6_600, "a.bins": 20, "b.bins": 33})
    program = emitted(strategy, analysis, config)
    same(program, strategy.unfused(analysis, config))
    got = runner.run(program)
    assert not np.array_equal(got["a.counts"][:20], got["b.counts"][:20])
    np.testing.assert_array_equal(got["b.counts"], histogram(fill(program.buffer("b.x"), 1), 33))


@pytest.mark.slow
@pytest.mark.parametrize("config", [horizontal(64, 128), horizontal(64, 512, "ba")], ids=str)
def test_shapes_templates_headers_macros_and_static_shared_memory(analyse, strategy, same, runner, zoo, config):
    """Two and three dimensions, grids of 15 and 12 blocks, one header and one macro name in both."""
    analysis = analyse(zoo["tiles"], zoo["reverse"])
    assert analysis.rejections == ()
    program = emitted(strategy, analysis, config)
    same(program, strategy.unfused(analysis, config))
    got = runner.run(program)
    cells = np.arange(12 * 64).reshape(12, 64)[:, ::-1] + 9 + 7
    z = np.arange(64) // 32
    np.testing.assert_array_equal(got["a.out"].reshape(12, 64), cells * 64 + z)
    x = fill(program.buffer("b.x"), 1)
    assert got["b.partial"].sum() == pytest.approx((x * x).sum() / 2)


@pytest.mark.slow
@pytest.mark.parametrize("config", [horizontal(256, 384), horizontal(768, 128, "ba"), vertical(640)], ids=str)
def test_helpers_that_see_the_block_are_handed_the_shadows(analyse, strategy, same, runner, zoo, config):
    """A reduction in helper functions, with a barrier, a file-wide dynamic array, and a forward declaration, twice."""
    analysis = analyse(zoo["sums"], zoo["sums"], sizes={"a.n": 4001, "b.n": 2999, "b.blocks": 7})
    assert analysis.rejections == ()
    program = emitted(strategy, analysis, config)
    same(program, strategy.unfused(analysis, config))
    got = runner.run(program)
    assert got["a.out"].sum() == fill(program.buffer("a.x"), 1).sum()
    assert got["b.out"].sum() == fill(program.buffer("b.x"), 1).sum()
