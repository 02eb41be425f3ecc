"""Issue-slot utilisation and memory stalls by Nsight Compute, of a Program that runs as a bundle.

    ncu --csv --metrics ... python -m fusiond.devices.cuda.run BUNDLE

The paper's are those of nvprof: issue_slot_utilization is smsp__issue_active, achieved_occupancy sm__warps_active;
stall_memory_dependency and stall_memory_throttle are, of the warps that are stalled, those at long_scoreboard,
lg_throttle and drain.

Where `ncu` is missing, or may not read the counters, every figure is null, with the reason.
"""

import csv
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fusiond.build.exporting.bundle import write_bundle
from fusiond.devices.base import DeviceProvider
from fusiond.model.nouns import DeviceInfo
from fusiond.model.outcomes import BuildFailed
from fusiond.model.program import Launch, Program

ISSUE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
CYCLES = "sm__cycles_elapsed.max"
WARPS = "smsp__average_warps_active_per_issue_active.ratio"
STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
SELECTED = STALLED.format("selected")
MEMORY = tuple(STALLED.format(each) for each in ("long_scoreboard", "lg_throttle", "drain"))
METRICS = (ISSUE, OCCUPANCY, CYCLES, WARPS, SELECTED, *MEMORY)

SECS = 600.0
FIELDS = ("issue_slot_pct", "memory_stall_pct", "occupancy_pct", "cycles")

Rows = Mapping[str, Mapping[str, float]]  #: Kernel -> metric -> value


def missing() -> str | None:
    """Why there are no counters; None where Nsight Compute is here."""
    return (
        None if shutil.which("ncu") else "there is no ncu on PATH (it comes with the CUDA toolkit, as Nsight Compute)"
    )


def nothing(reason: str) -> dict[str, Any]:
    return {**dict.fromkeys(FIELDS), "reason": reason}


def of_program(provider: DeviceProvider, device: DeviceInfo, program: Program) -> dict[str, Any]:
    """The counters of a program's last launch."""
    if device.evidence != "measured":
        return nothing(f"{device.name} has no hardware counters: its times are {device.evidence}")
    lacking = missing()
    if lacking is not None:
        return nothing(lacking)
    with tempfile.TemporaryDirectory(prefix="fusiond-ncu-") as folder:
        bundle = Path(folder) / "bundle"
        binaries = {}
        for source in program.sources:
            built = provider.build(source, device.arch)
            if isinstance(built, BuildFailed):
                return nothing(f"does not build: {built.reason}")
            binaries[source.name] = built.path
        write_bundle(bundle, program, binaries)
        try:
            done = subprocess.run(
                command("ncu", bundle, device.name, program.launches),
                env={**os.environ, "LC_ALL": "C"},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=SECS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            return nothing(f"ncu: {type(problem).__name__}")
    return read(done.stdout, done.stderr, program.launches[-1].entry, done.returncode)


def command(
    ncu: str, bundle: Path, device: str, launches: Iterable[Launch], metrics: Iterable[str] = METRICS
) -> list[str]:
    """Of the kernels of these launches only: a gate that is profiled spins in each pass until it gives up."""
    names = sorted({re.escape(function_name(each.entry)) for each in launches})
    return [
        ncu, "--csv", "--print-units", "base", "--kernel-name-base", "function", "--target-processes", "all",
        "--kernel-name", f"regex:^({'|'.join(names)})$",
        "--clock-control", "none",  # ncu would lock the clocks, and count at others than the times were taken at
        "--metrics", ",".join(metrics),
        sys.executable, "-m", "fusiond.devices.cuda.run", str(bundle), "--device", device,
    ]  # fmt: skip


def function_name(entry: str) -> str:
    """Of a kernel as its source or ncu names it: without namespaces and template arguments."""
    return entry.partition("<")[0].rpartition("::")[2]


def read(output: str, errors: str, entry: str, status: int) -> dict[str, Any]:
    """What one run of ncu said about one kernel, named as the source names it."""
    if "ERR_NVGPUCTRPERM" in output + errors:
        return nothing("this user may not read the GPU's counters (ERR_NVGPUCTRPERM): run as root, or let all users")
    rows = parse(output)
    name = function_name(entry)
    values = next((rows[each] for each in reversed(list(rows)) if function_name(each) == name), None)
    if values is None:
        said = next((line for line in reversed([*errors.splitlines(), *output.splitlines()]) if line.strip()), "")
        return nothing(f"ncu ended with status {status} and said nothing about {name}: {said.strip()}")
    return {**figures(values), "reason": None}


def parse(output: str) -> Rows:
    """Metrics by kernel, of the last launch of each, out of what `ncu --csv` prints between its own `==PROF==` lines
    and the program's."""
    lines = output.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        return {}
    table = [line for line in lines[start:] if line.startswith('"')]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(table))):
        value = _number(row.get("Metric Value") or "")
        name, metric = row.get("Kernel Name"), row.get("Metric Name")
        if name and metric and value is not None:
            kernel = name.partition("(")[0].removeprefix("void ").strip()
            found.setdefault(kernel, {}).setdefault(row.get("ID") or "", {})[metric] = value
    return {kernel: launches[list(launches)[-1]] for kernel, launches in found.items()}


def _number(text: str) -> float | None:
    """`12,345.6`; None for `n/a`, what a metric is called that this GPU does not have."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def figures(values: Mapping[str, float]) -> dict[str, float | None]:
    """The paper's four, in its units; None for what is missing."""
    stalls = None
    if WARPS in values and SELECTED in values and any(each in values for each in MEMORY):
        waiting = values[WARPS] - values[SELECTED]
        stalls = 100 * sum(values.get(each, 0.0) for each in MEMORY) / waiting if waiting > 0 else 0.0
    found = (values.get(ISSUE), stalls, values.get(OCCUPANCY), values.get(CYCLES))
    return {name: None if value is None else round(value, 2) for name, value in zip(FIELDS, found, strict=True)}
