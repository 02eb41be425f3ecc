"""Mistakes that the truths must see: the library (or its input) is broken on purpose."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from fusiond.build.cache import BuildCache
from fusiond.counting import flow, library
from fusiond.counting.library import RUNTIME, CountingLibrary
from fusiond.counting.model import H100

from .conftest import DATA, Bench


def test_without_reconvergence_warps_stay_apart(counting: CountingLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    def stores(bench: Bench) -> int:
        x = np.arange(64, dtype=np.int32)
        ran = bench.run("meet", [x, x, np.int32(9)])
        rows = zip(ran.result.counts, ran.result.code.sources, strict=True)
        return sum(int(counts["warps"]) for counts, source in rows if source.opcode.startswith("st.global"))

    text = (DATA / "truths.ptx").read_text()
    assert stores(Bench(text, counting)) == 1
    monkeypatch.setattr(flow, "meeting_points", lambda targets, falls: [-1] * len(targets))
    assert stores(Bench(text, counting)) > 1


MUTANTS = {
    "sectors of each lane by itself": (
        "access.cpp",
        "if (count && sectors[count - 1] == sector) continue;\n"
        "        ascending &= !count || sectors[count - 1] < sector;",
        "",
    ),
    "no order, no doubles found": ("access.cpp", "if (ascending) return count;", "return count;"),
    "a broadcast word is a conflict": ("access.cpp", "!atomic && k < used[bank] && words", "k < 0 && words"),
    "wide accesses in one phase": ("access.cpp", "size <= 4 ? 1 : size <= 8 ? 2 : 4", "1"),
    "the oldest line is never moved up": (
        "cache.h",
        "            unlink(at);\n        } else if",
        "            return at;\n        } else if",
    ),
    "barriers do not count": (
        "launch.cpp",
        "barrier.count += __builtin_popcount",
        "barrier.count = __builtin_popcount",
    ),
}


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("name", MUTANTS)
def test_broken_libraries_are_found_out(gxx_here: None, shared_cache: Path, tmp_path: Path, name: str) -> None:
    file, old, new = MUTANTS[name]
    runtime = tmp_path / "runtime"
    shutil.copytree(RUNTIME, runtime)
    text = (runtime / file).read_text()
    assert text.count(old) == 1
    (runtime / file).write_text(text.replace(old, new))
    cache, ptx = BuildCache(shared_cache), (DATA / "truths.ptx").read_text()
    broken = Bench(ptx, library.load(cache=cache, runtime=runtime))
    assert measured(broken) != measured(Bench(ptx, library.load(cache=cache)))


def measured(bench: Bench) -> list[object]:
    """Figures of a few truths, which test_truths.py holds against numbers by hand."""
    x, one = np.ones(4096, np.float32), np.int32(1)
    keys = np.array([5, 90] * 128, np.int32)
    small = dataclasses.replace(H100, l2_bytes=512)
    runs = [
        bench.run("copy_half", [x, x, one, np.int32(0)]),
        bench.run("histogram", [keys, np.zeros(2048, np.int32)], block=(32,)),
        bench.run("shared_wide", [np.zeros(128, np.float32), one], shared_bytes=512),
        bench.run("stencil_tile", [x, x, one], block=(64,), begins=128, shared_bytes=4 * 66),
        bench.run("transpose_tile", [x, x, np.int32(64)], grid=(2, 2), block=(32, 8), gpu=small),
        bench.run("histogram_shared", [keys, np.zeros(256, np.int32)], block=(256,)),
        bench.run("barriers", [np.arange(128, dtype=np.int32), np.zeros(128, np.int32)], block=(128,)),
        bench.run("broadcast", [x, x], grid=(4,), block=(256,)),
        bench.run("sum_rows", [x, x, np.int32(64)], grid=(8,), gpu=small),
        bench.run("sum_columns", [x, x, np.int32(8), np.int32(32)], gpu=dataclasses.replace(H100, l2_bytes=1024)),
        bench.run("stencil", [x, x, np.int32(4)], grid=(8,), block=(64,), begins=128, gpu=small),
    ]
    return [(each.sums, each.dram, [a.tolist() for a in each.arrays]) for each in runs]
