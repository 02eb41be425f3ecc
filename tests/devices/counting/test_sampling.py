"""Sampled launches against the same ones run whole: every count is off by no more than the error that is told."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusiond.devices.counting import layout, sampling
from fusiond.devices.counting.certainty import Traffic, traffic
from fusiond.devices.counting.kernels import CountedShape
from fusiond.devices.counting.library import Cache, CountingLibrary
from fusiond.devices.counting.model import H100, Gpu

from .conftest import DATA, Bench, Ran

SLIGHT = 0.005  #: Relative; of edges that no wave that was run has
TINY = dataclasses.replace(H100, multiprocessors=4, most_blocks=4, l2_bytes=16 << 10)
BUDGET = 60_000
N = 1 << 18
X, Y = np.ones(N + 64, np.float32), np.zeros(N + 64, np.float32)
ROOMY = np.ones(2 * N, np.float32)
"""More than is read of it: that no buffer has more sectors than it has is not help here."""
SIDE = 512
ROWS = 1024
CASES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "copy": ("copy_float", [X, Y, np.int32(1), np.int32(0)], {"grid": (N // 64,), "block": (64,)}),
    "copy, misaligned": ("copy_float", [X, Y, np.int32(1), np.int32(3)], {"grid": (N // 64,), "block": (64,)}),
    "broadcast": ("broadcast", [X, Y], {"grid": (N // 64,), "block": (64,)}),
    "stencil": ("stencil", [ROOMY, Y, np.int32(4)], {"grid": (N // 64,), "block": (64,), "begins": 128}),
    "rows": ("sum_rows", [X, Y, np.int32(256)], {"grid": (ROWS,)}),
    "three passes": ("passes", [X, Y, np.int32(256)], {"grid": (ROWS,)}),
    "transpose": ("transpose_tile", [X, Y, np.int32(SIDE)], {"grid": (16, 16), "block": (32, 8)}),
    "triangle": ("triangle", [X, Y], {"grid": (2048,)}),
    "image": ("image", [X, Y, np.int32(500), np.int32(510)], {"grid": (16, 128), "block": (32, 4)}),
    "product": ("product", [X, X, Y, np.int32(256)], {"grid": (16, 16), "block": (16, 16)}),
    "vector": ("vector", [ROOMY, ROOMY, Y, np.int32(256)], {"grid": (ROWS,)}),
}


@pytest.fixture
def benches(counting: CountingLibrary) -> dict[str, Bench]:
    """Kernel -> the bench that has it."""
    found = {}
    for name in ("truths", "sampled"):
        bench = Bench((DATA / f"{name}.ptx").read_text(), counting)
        found |= dict.fromkeys(bench.unit.module.kernels, bench)
    return found


def both(benches: dict[str, Bench], name: str, gpu: Gpu = TINY, budget: int = BUDGET) -> tuple[Ran, Ran]:
    kernel, arguments, more = CASES[name]
    sampled = benches[kernel].run(kernel, arguments, gpu=gpu, budget=budget, **more)
    return sampled, benches[kernel].run(kernel, arguments, gpu=gpu, **more)


def figures(ran: Ran) -> dict[str, int]:
    result = ran.result
    sectors = {"read": result.compulsory_read_sectors, "written": result.compulsory_write_sectors}
    return ran.sums | sectors | {"dram": sum(ran.dram)}


def told(ran: Ran, gpu: Gpu) -> Traffic:
    return traffic(ran.result, sum(ran.dram), gpu.l2_bytes, first=True, last=True, known=True)


def worst(sampled: Ran, whole: Ran, gpu: Gpu = TINY, counts: float = 0.03) -> tuple[float, str]:
    """The largest relative difference beyond the error that is told, and of which count. What is counted a block does
    not depend on the L2, and has to be near in any case. Where the error is unknown, the least DRAM bytes have to be
    that."""
    found, expected = told(sampled, gpu), figures(whole)
    ours = figures(sampled) | {"dram": found.bytes}
    if found.error is None:
        assert found.least <= expected["dram"]
    error = math.inf if found.error is None else found.error
    beyond = {
        name: abs(ours[name] - value) / value - (min(error, counts) if name in sampled.sums else error)
        for name, value in expected.items()
        if value
    }
    name = max(beyond, key=lambda each: beyond[each])
    return beyond[name], name


@pytest.mark.parametrize(("l2_kib", "readings"), [(384, 1), (16, 3)])
def test_rows_are_read_again_where_the_resident_ones_do_not_fit(
    benches: dict[str, Bench], l2_kib: int, readings: int
) -> None:
    """16 rows of 8 KiB are read three times over, and 16 written, by the blocks that are resident together."""
    gpu = dataclasses.replace(TINY, l2_bytes=l2_kib << 10)
    for budget in (100_000, None):
        ran = benches["passes"].run("passes", [ROOMY, ROOMY, np.int32(2048)], grid=(N // 1024,), gpu=gpu, budget=budget)
        assert (ran.result.sampled < 1.0) == (budget is not None and l2_kib == 16)  # else it takes most to fill the L2
        assert ran.dram == (readings * 8 * N, 8 * N)


@pytest.mark.parametrize("l2_kib", [32, 8192])
def test_the_next_launch_finds_what_it_would_find(benches: dict[str, Bench], l2_kib: int) -> None:
    """A copy, then one that reads what the first has written: all of it where the L2 holds both, else the end of it."""
    assert second_reads(benches, l2_kib, budget=BUDGET) == second_reads(benches, l2_kib, budget=None)


def second_reads(benches: dict[str, Bench], l2_kib: int, budget: int | None) -> list[tuple[int, int]]:
    bench = benches["copy_float"]
    x, y, z = (layout.aligned(4 * N) for _ in range(3))
    cache = Cache(bench.library, l2_kib << 10)
    shape = CountedShape(grid=(N // 64, 1, 1), block=(64, 1, 1))
    gpu = dataclasses.replace(TINY, l2_bytes=l2_kib << 10)
    corrections = []
    for source, target in ((x, y), (y, z)):
        pointers = [int(each.ctypes.data).to_bytes(8, "little") for each in (source, target)]
        numbers = [np.int32(1).tobytes(), np.int32(0).tobytes()]
        result = bench.unit.launch("copy_float", shape, pointers + numbers, [x, y, z], cache, gpu, budget=budget)
        assert result.failed is None
        assert (result.sampled < 1.0) == (budget is not None)
        corrections.append(result.dram_correction)
    cache.flush()
    found = [
        (read + more[0], written + more[1])
        for k, more in enumerate(corrections)
        for read, written in [cache.dram_bytes(k)]
    ]
    cache.close()
    return found


# --- mistakes that these tests must see ---


def _first_wave_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    class First(sampling._Sampler):
        def _begin(self) -> None:
            super()._begin()
            self._places = [[0]]

        def _place(self, start: int, *, thin: bool = False, to_end: bool = False) -> None:
            return

    monkeypatch.setattr(sampling, "_Sampler", First)


def _overlap_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wave by itself: as if it were the first to touch anything."""
    run = sampling.Runs.run

    def isolated(self: sampling.Runs, begin: int, end: int) -> sampling.Piece:
        self._request.footprint = self._library.footprint(self._allocations)
        return run(self, begin, end)

    monkeypatch.setattr(sampling.Runs, "run", isolated)


def _not_warmed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cache, "renewed", True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        (_first_wave_scaled, "triangle"), (_overlap_ignored, "vector"), (_overlap_ignored, "stencil"),
        (_not_warmed_up, "copy"),
    ],
)  # fmt: skip
def test_broken_sampling_is_found_out(
    benches: dict[str, Bench], monkeypatch: pytest.MonkeyPatch, mutant: Callable[[pytest.MonkeyPatch], None], name: str
) -> None:
    _, whole = both(benches, name)
    mutant(monkeypatch)
    sampled, _ = both(benches, name)
    expected, found = figures(whole), figures(sampled)
    # The DRAM traffic of the triangle is not exact without the mistake.
    names = [each for each in expected if expected[each] and (name != "triangle" or each in whole.sums)]
    assert any(abs(found[each] - expected[each]) / expected[each] > SLIGHT for each in names)


def test_what_is_not_held_is_read_again(benches: dict[str, Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cache, "hold", lambda *_, **__: None)
    assert second_reads(benches, 8192, budget=BUDGET) != second_reads(benches, 8192, budget=None)
