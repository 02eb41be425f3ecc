"""Exported CUDA C++ is compiled by g++ against a stand-in for the runtime, and run: its outputs are the device's."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusiond.build import gxx
from fusiond.fills import initial
from fusiond.model import Analysis, Config
from fusiond.program import Copy, CopyBatch, Memory, Program, Role
from fusiond_transfer.codegen import Names
from fusiond_transfer.strategy import Transfer

LAUNCH = re.compile(r"(\w+)<<<(dim3\(.*?\)), (dim3\(.*?\)), \d+, .*?>>>\((.*)\);")
WAYS = {
    "serial": {"grouping": "fewest", "send": "message", "memory": "pageable", "issue": "one_stream"},
    "overlapped": {"grouping": "fewest_tight", "send": "message", "memory": "pinned", "issue": "overlapped"},
    "batch": {"grouping": "fewest", "send": "batch", "memory": "pinned", "issue": "overlapped"},
    "pooled": {
        "grouping": "fewest_tight", "send": "message", "memory": "pageable", "issue": "overlapped",
        "allocation": "pooled",
    },
    "each": {
        "grouping": "separate", "when": "late", "memory": "pageable", "issue": "one_stream", "allocation": "each",
    },
}  # fmt: skip
CASES = [
    ("fig2", "overlapped"),
    ("cholesky_host_syrk", "batch"),
    pytest.param("fig2", "serial", marks=pytest.mark.slow),
    pytest.param("fig2", "pooled", marks=pytest.mark.slow),
    pytest.param("fig2", "each", marks=pytest.mark.slow),
    pytest.param("matmul", "overlapped", marks=pytest.mark.slow),
    pytest.param("cholesky", "serial", marks=pytest.mark.slow),
]


def main_of(program: Program, name: str) -> str:
    """Reads the inputs, runs the plan twice, writes the outputs and the number of copies of a run."""
    names = Names(program)
    lines = [f'#include "{name}.h"', "#include <cstdio>", "int main() {", f"    {name} plan;"]
    lines.append(f"    if ({name}_create(&plan) != cudaSuccess) return 2;")
    for role, call in ((Role.INPUT, "fread"), (Role.OUTPUT, "fwrite")):
        if role is Role.OUTPUT:
            lines.append(f"    for (int i = 0; i < 2; ++i) if ({name}_run(&plan) != cudaSuccess) return 3;")
        for each in program.buffers:
            if each.role is role and each.memory is not Memory.DEVICE:
                mode = "rb" if role is Role.INPUT else "wb"
                lines.append(f'    {{ FILE* f = std::fopen("{names.of[each.name]}.bin", "{mode}");')
                lines.append(
                    f"      std::{call}(plan.{names.of[each.name]}, 1, {each.size_bytes}, f); std::fclose(f); }}"
                )
    lines += ['    std::printf("%d", stub::copies / 2);', f"    {name}_destroy(&plan);", "    return 0;", "}"]
    return "\n".join(lines) + "\n"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), CASES)
def test_the_export_computes_what_the_plan_does(
    name: str, way: str, analyse: Callable[..., Analysis], strategy: Transfer, device: Any, tmp_path: Path
) -> None:
    sizes = {"fig2": "{elements: 301}", "matmul": "{n: 9}"}.get(name, "{n: 7}")
    counted = ["allocations: counted"] if "allocation" in WAYS[way] else []
    analysis = analyse(name, f"sizes: {sizes}", *counted)
    config = Config.of({**WAYS[way], **({"order": "given"} if name == "matmul" else {})})
    program = strategy.emit(analysis, config, {})
    assert isinstance(program, Program), program
    files = dict(strategy.export(analysis, config, program))
    (tmp_path / "cuda_runtime.h").write_text(Path(__file__).with_name("stub_runtime.h").read_text())
    launches = 0
    sources = []
    for file, text in files.items():
        if not file.endswith((".cu", ".cpp", ".h")):
            continue
        found, count = LAUNCH.subn(r"stub::launch(\2, \3, [&] { \1(\4); });", text)
        launches += count
        target = file.replace(".cu", ".cu.cpp")
        (tmp_path / target).write_text(('#include "cuda_runtime.h"\n' if file.endswith(".cu") else "") + found)
        sources += [target] if target.endswith(".cpp") else []
    (tmp_path / "main.cpp").write_text(main_of(program, name))
    done = subprocess.run(
        [gxx.find() or "g++", "-std=c++17", "-O1", "-Wall", "-Werror", "-I.", "-o", "run", "main.cpp",
         *sources], cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert launches > 0
    names = Names(program)
    for each in program.buffers:
        if each.role is Role.INPUT:
            (tmp_path / f"{names.of[each.name]}.bin").write_bytes(initial(each, 0).tobytes())
    ran = subprocess.run(["./run"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, (ran.returncode, ran.stderr)
    assert int(ran.stdout) == sum(isinstance(step, Copy | CopyBatch) and step.counted for step in program.steps)
    for output, values in device.run(program).items():
        data = np.frombuffer((tmp_path / f"{names.of[output]}.bin").read_bytes(), values.dtype)
        np.testing.assert_array_equal(data, values, err_msg=output)
