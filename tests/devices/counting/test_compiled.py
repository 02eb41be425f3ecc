"""What nvcc makes of tests/ptx_data/compiled.cu, against NumPy and plain Python: packed numbers, calls, wmma, ..."""

import gzip
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from fusiond.devices.counting.kernels import CountError
from fusiond.devices.counting.library import CountingLibrary
from tests.ptx_data.cases import HERE

from .conftest import Bench, Ran

Array = NDArray[Any]


@pytest.fixture(scope="module")
def compiled(counting: CountingLibrary) -> Bench:
    return Bench(gzip.decompress((HERE / "compiled.ptx.gz").read_bytes()).decode(), counting)


def good(ran: Ran) -> tuple[Array, ...]:
    assert ran.result.failed is None
    return ran.arrays


def rounded(values: Array, like: Any) -> Array:
    return values.astype(like).astype(np.float64)


def test_halves_by_two(compiled: Bench) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.uniform(-2, 2, (32, 2)).astype(np.float16) for _ in range(2))
    a[3], b[4] = [np.nan, 1], [0.5, np.nan]
    _, _, out, masks = good(
        compiled.run("halves", [a, b, np.zeros((20, 32, 2), np.float16), np.zeros((4, 32), np.uint32)])
    )
    x, y = a.astype(np.float64), b.astype(np.float64)
    clip = lambda v: np.where(np.isnan(v), 0.0, np.clip(v, 0, 1))  # noqa: E731
    with np.errstate(all="ignore"):
        wanted = [
            x + y, clip(x + y), clip(x - y), x * y, x * y + x, np.maximum(x * y + x, 0),
            clip(x * y + x), np.fmax(x, y), np.minimum(x, y), -x, np.abs(x), x > y, np.floor(x), np.ceil(x), np.rint(x),
            np.trunc(x),
        ]  # fmt: skip
        near = [np.exp2(x), np.sqrt(np.abs(x)), np.tanh(x), x / y]
    for k, each in enumerate(wanted):
        np.testing.assert_array_equal(out[k].astype(np.float64), rounded(each, np.float16), err_msg=str(k))
    for k, each in enumerate(near, len(wanted)):
        np.testing.assert_allclose(out[k].astype(np.float64), each, rtol=2e-3, err_msg=str(k))
    bits = np.where(x > y, 0xFFFF, 0)
    assert masks[0].tolist() == (bits[:, 0] | bits[:, 1] << 16).tolist()
    assert masks[1].tolist() == (x > y).all(1).tolist()
    assert masks[2].tolist() == (x[:, 0] < y[:, 1]).tolist()
    assert masks[3].view(np.int32).tolist() == np.nan_to_num(np.rint(x[:, 0])).tolist()


def test_brains_by_two(compiled: Bench) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.uniform(-2, 2, (32, 2)).astype(ml_dtypes.bfloat16) for _ in range(2))
    packed = [each.view(np.uint32) for each in (a, b)]
    out = good(compiled.run("brains", [*packed, np.zeros((8, 32), np.uint32)]))[2].view(ml_dtypes.bfloat16)
    x, y = a.astype(np.float64), b.astype(np.float64)
    wanted = [x + y, x * y, x * y + x, np.fmax(x, y), -x, np.abs(x), x > y, np.floor(x)]
    for k, each in enumerate(wanted):
        np.testing.assert_array_equal(
            out[k].reshape(32, 2).astype(np.float64),
            rounded(each.astype(np.float64), ml_dtypes.bfloat16),
            err_msg=str(k),
        )


def test_bytes_by_four(compiled: Bench) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 2**32, 32, dtype=np.uint32) for _ in range(2))
    a[0] = 0
    out = good(compiled.run("bytes", [a, b, np.zeros((21, 32), np.uint32)]))[2]
    u, v, p, q = (each.view(kind).reshape(32, 4).astype(np.int64) for kind in (np.uint8, np.int8) for each in (a, b))
    u2, v2, p2, q2 = (
        each.view(kind).reshape(32, 2).astype(np.int64) for kind in (np.uint16, np.int16) for each in (a, b)
    )
    x, y = a.view(np.int32).astype(np.int64), b.view(np.int32).astype(np.int64)

    def four(values: Array) -> Array:
        return np.ascontiguousarray(values.astype(np.int64) & 255).astype(np.uint8).view(np.uint32).reshape(32)

    def two(values: Array) -> Array:
        return np.ascontiguousarray(values.astype(np.int64) & 65535).astype(np.uint16).view(np.uint32).reshape(32)

    def nth(mask: int, base: int, n: int) -> int:
        found = [k for k in range(base, 32) if mask >> k & 1]
        return found[n - 1] if len(found) >= n else 0xFFFFFFFF

    added = np.array([7, 9])[::-1]  # 0x00070009: the lower half first
    wanted = [
        four(np.abs(u - v)), four(np.abs(p - q)), np.abs(u - v).sum(1), four(u + v), four(np.clip(p + q, -128, 127)),
        two(np.clip(u2 + v2, 0, 65535)), two(u2 - v2), four((u + v + 1) >> 1), four(np.maximum(p, q)),
        two(np.minimum(u2, v2)), four(np.where(u > v, 255, 0)), (u * v).sum(1) + a.astype(np.int64), (p * q).sum(1) + x,
        (u2 * v[:, :2]).sum(1) + a.astype(np.int64), (p2 * q[:, 2:]).sum(1) + 5,
        np.array([nth(int(each), 3, 2) for each in a]), np.maximum((x + y + 2**31) % 2**32 - 2**31, 3),
        np.maximum(np.maximum(x, y), -4),
        two(np.maximum(np.minimum((p2 + q2 + 2**15) % 2**16 - 2**15, added), 0)),
        np.array([int(each).bit_length() - 1 for each in a]), np.abs(a.astype(np.int64) - b) + 3,
    ]  # fmt: skip
    for k, each in enumerate(wanted):
        assert out[k].tolist() == (np.asarray(each, np.int64) % 2**32).tolist(), k


def test_calls_with_arrays_structs_and_divergence(compiled: Bench) -> None:
    a, n = np.linspace(0, 0.4, 64, dtype=np.float32), 5
    out = good(compiled.run("calls", [a, np.zeros(64, np.float32), np.int32(n)], block=(64,)))[1]
    for t in range(64):
        x = np.float32(sum(np.float32(a[t]) * (i * 7 & 7) for i in range(n + t)))
        if t & 1:
            x += sum(x + i % 6 for i in range(t & 7))
        assert out[t] == pytest.approx(x, rel=1e-5)


def test_an_assertion_says_itself(compiled: Bench) -> None:
    a = np.full(32, 1e6, np.float32)
    ran = compiled.run("calls", [a, np.zeros(32, np.float32), np.int32(5)])
    assert "assertion failed: x < 1000.0f (" in (ran.result.failed or "")
    assert "compiled.cu:" in (ran.result.failed or "")


def test_many_ways(compiled: Bench) -> None:
    a = np.random.default_rng(4).integers(0, 10, 32).astype(np.int32)
    out = np.arange(64, dtype=np.int32)
    found = good(compiled.run("switched", [a, out]))[1]
    for t in range(32):
        ways = [t * 3, t // 3, t ^ 77, t + (t + 1) % 32 + 32, t, -t, t % 5, 9 * t + a[0]]
        assert found[t] == (ways[a[t]] if a[t] < 8 else 1000) + 1


def test_products_of_tiles(compiled: Bench) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((16, 24)).astype(np.float16), rng.standard_normal((16, 16)).astype(np.float16)
    p, q = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((16, 32), (16, 16)))
    r = rng.integers(-999, 999, (8, 32)).astype(np.int32)
    x, y = rng.standard_normal((8, 4)), rng.standard_normal((4, 8))
    given = [a, b, np.zeros((16, 16), np.float32), p, q, r, x, y, np.zeros((8, 8))]
    ran = compiled.run("products", given)
    out = good(ran)
    left, right = a[:, :16].astype(np.float64), b.astype(np.float64)
    np.testing.assert_allclose(out[2], 2 * (left @ right.T + 1), rtol=1e-5, atol=1e-5)
    whole = p.T.astype(np.int64) @ q[:, :8].astype(np.int64) + r.T
    assert out[5].T.tolist() == whole.tolist()
    np.testing.assert_allclose(out[8], x @ y, rtol=1e-13)
    counts = {
        source.opcode: counts
        for counts, source in zip(ran.result.counts, ran.result.code.sources, strict=True)
        if source.opcode.startswith("wmma.load")
    }
    tile = counts["wmma.load.a.sync.aligned.row.m16n16k16.global.f16"]
    assert tile["read_bytes"] == 16 * 16 * 2
    assert tile["read_sectors"] == sum(2 if 48 * row % 32 else 1 for row in range(16))  # rows of 32 bytes, 48 apart


def test_pipelines_and_barriers_of_the_library(compiled: Bench) -> None:
    a = np.random.default_rng(6).standard_normal((5, 128)).astype(np.float32)
    out = good(compiled.run("pipelined", [a, np.zeros(128, np.float32), np.int32(5)], block=(128,)))[1]
    np.testing.assert_allclose(out, a[:, ::-1].sum(0), rtol=1e-5, atol=1e-6)
    out = good(compiled.run("waited", [a, np.zeros(128, np.float32)], block=(128,)))[1]
    assert out.tolist() == a.reshape(-1)[:256][::-1][:128].tolist()


def test_cooperative_groups(compiled: Bench) -> None:
    a = np.random.default_rng(7).integers(0, 128, 128).astype(np.int32)
    out = good(compiled.run("grouped", [a, np.zeros(512, np.int32)], block=(128,)))[1].reshape(4, 128)
    for warp in range(4):
        part = a[32 * warp : 32 * warp + 32]
        odd = np.flatnonzero(part & 1)
        for lane in range(32):
            found = part.sum() + 100000 * (part & 3 == part[lane] & 3).sum()
            found += 1000 * len(odd) + list(odd).index(lane) if lane in odd else 0
            assert out[0, 32 * warp + lane] == found
        assert set(out[2, 32 * warp : 32 * warp + 32].tolist()) == {part.max()}
    assert set(out[3].tolist()) == {2 + 4}


def test_blocks_of_a_cluster_know_their_places(compiled: Bench) -> None:
    grid = (4, 6)
    out = good(compiled.run("placed", [np.zeros(240, np.int32)], grid=grid))[0].reshape(6, 4, 10)
    for y, x in np.ndindex(6, 4):
        assert out[y, x].tolist() == [x % 2 + y % 3 * 2, 6, x % 2, y % 3, 2, 3, x // 2, y // 3, 2, 2]
    with pytest.raises(CountError, match=r"a grid of .* is no multiple"):
        compiled.run("placed", [np.zeros(240, np.int32)], grid=(4, 5))


@pytest.mark.parametrize("blocks", [4, 264, 1200])
def test_blocks_of_a_cluster_see_their_shared_memory(compiled: Bench, blocks: int) -> None:
    """More clusters than run together, too."""
    given = np.random.default_rng(blocks).integers(0, 256, 100_003).astype(np.int32)
    arrays = [given, np.int32(given.size), np.zeros(256, np.int32), np.zeros(blocks, np.int32)]
    _, bins, told = good(compiled.run("spread_histogram", arrays, grid=(blocks,), block=(64,)))
    assert bins.tolist() == np.bincount(given, minlength=256).tolist()
    assert told.tolist() == [10 * (k - k % 4 + (k - 1) % 4) + 3 for k in range(blocks)]
