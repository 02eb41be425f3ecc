"""Runs one launch in GPGPU-Sim, and reads its statistics."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

VARIABLE = "FUSIOND_GPGPUSIM"
CONFIGURATION = "SM7_QV100"
"""A V100: the newest GPU whose configuration comes with the simulator and is for compute capability 7.0."""
_OPTIONS = (
    "-gpgpu_ptx_use_cuobjdump 0",
    "-gpgpu_perf_sim_memcpy 0",  # copies to the device leave nothing in the L2
)
SMALL_L2_BYTES = 64 * 128
"""A line in each of the V100's 64 slices: what `l2_lines` of a call multiplies."""
_SMALL_L2 = ("-gpgpu_gmem_skip_L1D 1", "-gpgpu_cache:dl2 S:1:128:{},L:B:m:L:L,A:192:4,32:0,32")
_SECS = 300.0
_HOST = Path(__file__).parent / "host.cpp"
_STATISTICS = {
    "thread_instructions": r"^gpu_sim_insn = (\d+)",
    "warp_instructions": r"^gpgpu_n_tot_w_icount = (\d+)",
    "read_sectors": r"Total_core_cache_stats_breakdown\[GLOBAL_ACC_R\]\[TOTAL_ACCESS\] = (\d+)",
    "write_sectors": r"Total_core_cache_stats_breakdown\[GLOBAL_ACC_W\]\[TOTAL_ACCESS\] = (\d+)",
    "l1_misses": r"Total_core_cache_stats_breakdown\[GLOBAL_ACC_R\]\[(?:SECTOR_)?MISS\] = (\d+)",
    "l2_writes": r"L2_cache_stats_breakdown\[GLOBAL_ACC_W\]\[TOTAL_ACCESS\] = (\d+)",
    "l2_reads": r"L2_cache_stats_breakdown\[GLOBAL_ACC_R\]\[TOTAL_ACCESS\] = (\d+)",
    "bank_conflicts": r"^gpgpu_n_shmem_bkconflict = (\d+)",
    "dram_reads": r"^total dram reads = (\d+)",
}


class NotSimulated(Exception):
    """Why a launch was not simulated; one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A launch of a kernel that is alone in its PTX."""

    ptx: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: Sequence[NDArray[Any] | int]
    """Arrays, and integers of 4 bytes."""
    begins: int = 0
    """Bytes behind an array's start, to which its pointer points."""
    l2_lines: int | None = None
    """Lines in each slice of an L2 with no L1 before it; None: the V100's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    statistics: dict[str, int]
    arrays: tuple[NDArray[Any], ...]
    """As the kernel left them."""


def missing() -> str | None:
    """What to do where there is no simulator, in one line; None where there is one."""
    named = os.environ.get(VARIABLE)
    if not named:
        return f"no GPGPU-Sim: build one with tools/gpgpusim/build.sh DIR, and set {VARIABLE}=DIR"
    if _library(Path(named)) is None or not (Path(named) / "configs").is_dir():
        return f"{VARIABLE}={named} has no GPGPU-Sim in it (lib/*/*/release/libcudart.so and configs/)"
    return None if shutil.which("g++") else "no g++: install it (apt install g++)"


def _library(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("lib/*/*/release/libcudart.so"))), None)


class Simulator:
    """A GPGPU-Sim, and the program that launches in it, built into `work`. NotSimulated where it is missing."""

    def __init__(self, work: Path) -> None:
        line = missing()
        if line is not None:
            raise NotSimulated(line)
        self._root = Path(os.environ[VARIABLE])
        library = _library(self._root)
        assert library is not None
        self._libraries, self._host, self._work = library.parent, work / "host", work
        command = ["g++", "-std=c++17", "-O1", str(_HOST), "-o", str(self._host), f"-L{self._libraries}", "-lcudart"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NotSimulated(f"{_HOST.name} does not build against {library}: {done.stderr.strip()[:300]}")

    def run(self, call: Call) -> Simulated:
        """Simulate one launch in a process of its own. NotSimulated with the simulator's last words where it fails."""
        with tempfile.TemporaryDirectory(dir=self._work) as name:
            folder = Path(name)
            for each in (self._root / "configs" / "tested-cfgs" / CONFIGURATION).iterdir():
                if each.suffix in (".config", ".icnt"):
                    shutil.copy(each, folder)
            config = folder / "gpgpusim.config"
            small = [each.format(call.l2_lines) for each in _SMALL_L2] if call.l2_lines else []
            config.write_text("\n".join([config.read_text(), *_OPTIONS, *small, ""]))
            (folder / "kernel.ptx").write_text(call.ptx)
            lines = [" ".join(map(str, (call.kernel, *call.grid, *call.block, call.shared_bytes)))]
            places: list[tuple[Path, NDArray[Any]]] = []
            for k, each in enumerate(call.arguments):
                if isinstance(each, int):
                    lines.append(f"value {each}")
                    continue
                path = folder / f"array{k}"
                each.tofile(path)
                places.append((path, each))
                lines.append(f"array {each.nbytes} {call.begins} {path}")
            (folder / "launch.txt").write_text("\n".join(lines) + "\n")
            environment = {**os.environ, "LD_LIBRARY_PATH": str(self._libraries)}
            try:
                done = subprocess.run(
                    [self._host, folder], cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECS
                )
            except subprocess.TimeoutExpired:
                raise NotSimulated(f"{call.kernel} was not done after {_SECS:.0f} s") from None
            if done.returncode != 0:
                words = (done.stderr or done.stdout).strip().splitlines()
                raise NotSimulated(f"{call.kernel} ended with status {done.returncode}: {words[-1] if words else ''}")
            arrays = tuple(np.fromfile(path, each.dtype).reshape(each.shape) for path, each in places)
        return Simulated(statistics=statistics(done.stdout, l1=call.l2_lines is None), arrays=arrays)


def statistics(text: str, *, l1: bool = True) -> dict[str, int]:
    """What the simulator printed of the launch, summed over its cores; 0 for what it leaves out since there was none.

    `atomic_sectors` are the reads of the L2 that are not misses of an L1: atomic operations go past it. Without an L1
    all sectors are those of the L2."""
    found = {name: [int(each) for each in re.findall(pattern, text, re.M)] for name, pattern in _STATISTICS.items()}
    sums = {name: sum(values) for name, values in found.items()}
    reads, writes, misses = (sums.pop(name) for name in ("l2_reads", "l2_writes", "l1_misses"))
    if l1:
        return {**sums, "atomic_sectors": reads - misses}
    return {**sums, "read_sectors": reads, "write_sectors": writes, "atomic_sectors": 0}


def alone(text: str, kernel: str) -> str:
    """A PTX text with only one of its kernels: the simulator refuses a file for any instruction that it lacks."""
    head, *entries = re.split(r"(?=^\.visible \.entry )", text, flags=re.MULTILINE)
    (entry,) = (each for each in entries if each.startswith(f".visible .entry {kernel}("))
    return head + entry[: entry.index("\n}") + 3]
