"""Mistakes that the truths must see: the library (or its input) is broken on purpose."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from fusiond.build.cache import BuildCache
from fusiond.devices.counting import library
from fusiond.devices.counting.library import RUNTIME, CountingLibrary
from fusiond.devices.counting.model import H100
from fusiond.model.ptx import flow

from .conftest import DATA, Bench
from .test_triton import CASES, launched


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
    "the oldest line is never moved up": ("cache.h", "            unlink(at);\n        } else if",
                                          "            return at;\n        } else if"),
    "barriers do not count": ("launch.cpp", "barrier.count += __builtin_popcount",
                              "barrier.count = __builtin_popcount"),
}  # fmt: skip


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


MATRICES = {
    "rows of A": ("matrices.cpp", "lane / 4 + 8 * (r % blocks)) * work.k", "lane / 4 + 8 * (r / blocks)) * work.k",
                  "gemm_f16_sm_80"),
    "rows of B": ("matrices.cpp", "4 * each * (r % blocks)) * work.n", "4 * each * (blocks - 1 - r % blocks)) * work.n",
                  "gemm_bf16_sm_80"),
    "elements of A": ("matrices.cpp", "double* row = &a[(lane / 4", "double* row = &a[(lane % 8", "gemm_s8_sm_80"),
    "columns of C": ("matrices.cpp", "2 * (lane % 4) + j % 2 + 8", "2 * (lane % 4) + 1 - j % 2 + 8", "gemm_tf32_sm_80"),
    "bits of tf32": ("matrices.cpp", "x & 0xffffe000u", "x & 0xfff00000u", "gemm_tf32_sm_80"),
    "no swizzle": ("matrices.cpp", "return at ^ ((at >> 7 & (width - 1)) << 4);", "return at;", "gemm_f16_sm_90"),
    "leading for stride": ("matrices.cpp", "row / 8 * stride + number % width * 16 + number / width * leading",
                           "row / 8 * leading + number % width * 16 + number / width * stride", "gemm_bf16_sm_90"),
    "all warps the same rows": ("matrices.cpp", "w.index % 4 * 16, room.a", "0, room.a", "gemm_f16_sm_90"),
    "eights of 8 bits": ("matrices.cpp", "table<E4m3>()", "table<E5m2>()", "gemm_fp8_sm_90"),
    "not transposed": ("matrices.cpp", "const bool turned = i.flags & 1;", "const bool turned = false;",
                       "gemm_f16_sm_80"),
    "boxes lie straight": (
        "transfers.cpp", "(place ^ ((place >> 7 & swizzled) << 4))", "place", "gemm_descriptor_sm_90",
    ),
    "the other parity": ("transfers.cpp", "at.read().parity() != waited", "at.read().parity() == waited",
                         "gemm_host_descriptor_sm_90"),
    "bytes never come": ("transfers.cpp", "completed(w, i, lane, bytes, blocks);", ";", "gemm_descriptor_sm_90"),
    "rows of tensors": ("transfers.cpp", "left % count[k] * map", "left / count[k] * map",
                        "gemm_host_descriptor_sm_90"),
    "what is outside": ("transfers.cpp", "at >= 0 && at < map.extent[k]", "at >= 0", "gemm_descriptor_sm_90"),
}  # fmt: skip


@pytest.mark.campaign
@pytest.mark.parametrize("name", MATRICES)
def test_matrices_that_lie_otherwise_are_found_out(
    gxx_here: None, shared_cache: Path, tmp_path: Path, name: str
) -> None:
    file, old, new, of = MATRICES[name]
    runtime = tmp_path / "runtime"
    shutil.copytree(RUNTIME, runtime)
    text = (runtime / file).read_text()
    assert text.count(old) == 1
    (runtime / file).write_text(text.replace(old, new))
    broken = library.load(cache=BuildCache(shared_cache), runtime=runtime)
    values = CASES[of].values()
    result, outputs = launched(broken, CASES[of], values)
    if result.failed is None:
        with pytest.raises(AssertionError):
            CASES[of].check(values, outputs)
