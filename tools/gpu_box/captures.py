"""Programs captured on a GPU, each beside itself without: `python -m tools.gpu_box.captures FOLDER --out FILE`.

FOLDER holds what was built where nvcc is: a program with NVIDIA's static runtime, and the library that notes launches
(built anew where there is a g++). Then Triton, PyTorch with Inductor, JAX and CuPy, where they are. Of each: whether it
says the same, how many launches and kernels were noted, of how many the parameters and the PTX are known, and what the
report of `fusiond capture` says; of the program also what a launch takes the host.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusiond.build import gxx, nvcc
from fusiond.cuda.capture import driver_watcher, origins, trace
from fusiond.cuda.capture.trace import CapturedKernel
from fusiond.model.errors import FusiondError

PROGRAM, LIBRARY = "captured", "watcher.so"
LAUNCHES = 3 + 2 * 3
"""Of the program, beside those that are timed: three by themselves, and a graph of two three times."""
SCRIPTS: Mapping[str, tuple[str, str]] = {
    # name: (module that it needs, script)
    "triton": ("torch", """
import torch, triton, triton.language as tl
@triton.jit
def bump(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < n) + 1, at < n)
x = torch.arange(100000, device="cuda", dtype=torch.float32); y = torch.empty_like(x)
for _ in range(3): bump[(98,)](x, y, 100000, BLOCK=1024)
print(y.sum().item())
"""),
    "jax": ("jax", """
import jax, jax.numpy as jnp
x = jnp.arange(100000, dtype=jnp.float32) / 1000
print(float(jax.jit(lambda x: (jnp.tanh(x) * 2 + x).sum())(x)))
"""),
    "cupy": ("cupy", """
import cupy
f = cupy.RawKernel('extern "C" __global__ void f(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x;'
                   ' if (i < n) x[i] += 1; }', "f")
x = cupy.arange(100000, dtype=cupy.float32)
f((391,), (256,), (x, cupy.int32(100000)))
print(float(x.sum()))
"""),
    "inductor": ("torch", """
import torch
x = torch.arange(100000, device="cuda", dtype=torch.float32) / 1000
print(torch.compile(lambda x: (torch.tanh(x) * 2 + x).relu())(x).sum().item())
"""),
}  # fmt: skip


def write(folder: Path, arch: str) -> None:
    """What is carried. FusiondError where it is not built."""
    toolkit = nvcc.find()
    if toolkit is None:
        raise FusiondError(nvcc.missing() or "no nvcc")
    folder.mkdir(parents=True)
    source = Path(__file__).with_name(f"{PROGRAM}.cu")
    command = [toolkit.nvcc, f"-arch={arch}", "--no-compress", "-o", str(folder / PROGRAM), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FusiondError(f"{source.name} does not build: {done.stderr.strip()[:300]}")
    shutil.copyfile(driver_watcher.library(), folder / LIBRARY)


def main(argv: Sequence[str]) -> int:
    """The exit status: 1 where the program was changed by being captured, or not all of it was noted."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_box.captures")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", help="taken for the other units' sake: programs take the first GPU")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=1.0)
    given = parser.parse_args(argv)
    until = time.monotonic() + 60 * given.minutes
    found: dict[str, Any] = json.loads(given.out.read_text()) if given.out.is_file() else {}
    library = driver_watcher.library() if gxx.find() else given.folder / LIBRARY
    with tempfile.TemporaryDirectory(prefix="fusiond-captures-") as place:
        for name, command in _commands(given.folder, Path(place).resolve()):
            left = until - time.monotonic()
            if name not in found and left > 5:
                found[name] = beside(command, library, Path(place).resolve() / f"run-{name}", left)
                given.out.write_text(json.dumps(found, indent=1) + "\n")
                print(name, found[name], flush=True)
    first = found.get(PROGRAM, {})
    return int(not first.get("same") or first["launches"] < LAUNCHES)


def _commands(folder: Path, scripts: Path) -> Iterator[tuple[str, list[str]]]:
    yield PROGRAM, [str(folder / PROGRAM), "timed"]
    for name, (needs, script) in SCRIPTS.items():
        if importlib.util.find_spec(needs):
            (scripts / f"{name}_script.py").write_text(script)  # Triton reads its source from the file
            yield name, [sys.executable, str(scripts / f"{name}_script.py")]


def beside(command: Sequence[str], library: Path, out: Path, secs: float) -> dict[str, Any]:
    """A command as it is, and captured."""
    try:
        plain = _run(command, dict(os.environ), secs / 2)
        given = {**os.environ, "FUSIOND_CAPTURE_OUT": str(out)}
        watched = _run(command, driver_watcher.environment(given, out, library), secs / 2)
        same = (plain["status"], _said(plain)) == (watched["status"], _said(watched))
        return {"same": same, "plain": plain, "captured": watched, **_noted(out)}
    except (FusiondError, OSError, subprocess.TimeoutExpired) as problem:
        return {"same": False, "problem": str(problem)[:500]}


def _run(command: Sequence[str], environment: Mapping[str, str], secs: float) -> dict[str, Any]:
    begun = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=secs, check=False)
    took = round(time.monotonic() - begun, 2)
    return {"status": done.returncode, "secs": took, "said": done.stdout[-500:], "complained": done.stderr[-500:]}


def _said(run: Mapping[str, Any]) -> list[str]:
    """Without the time."""
    return [line for line in run["said"].splitlines() if not line.startswith("launch_us")]


def _noted(out: Path) -> dict[str, Any]:
    origins.keep(out)
    traces = trace.read(out)
    kernels = [each for found in traces for each in found.kernels]
    launches = [each for found in traces for each in found.launches]
    listed = [sys.executable, "-m", "fusiond", "capture", str(out), "--list"]
    report = subprocess.run(listed, capture_output=True, text=True, timeout=60, check=False)
    return {
        "launches": len(launches),
        "timed": sum(each.elapsed_ns is not None for each in launches),
        "kernels": len(kernels),
        "with_parameters": sum(bool(each.parameters) for each in kernels),
        "with_ptx": sum(map(_has_ptx, kernels)),
        "notes": sorted({note for found in traces for note in found.notes}),
        "report": {"status": report.returncode, "said": report.stdout[:2000], "complained": report.stderr[-500:]},
    }


def _has_ptx(kernel: CapturedKernel) -> bool:
    try:
        return origins.ptx_of(kernel) is not None
    except FusiondError:  # what decompresses it is not there
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
