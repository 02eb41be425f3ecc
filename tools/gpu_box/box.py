"""The machine with the GPU as the runner finds it: wheels, tools, modules. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CUDA = Path("/usr/local")
QUERY = ",".join((
    "name", "uuid", "driver_version", "memory.total", "persistence_mode", "clocks.sm", "clocks.max.sm", "clocks.mem",
    "power.limit", "temperature.gpu",
))  # fmt: skip


@dataclass(frozen=True)
class Box:
    """The folder that was carried there."""

    folder: Path

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def bundles(self) -> Path:
        return self.folder / "bundles"

    @property
    def site(self) -> Path:
        return self.folder / "site"

    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text())
        return found

    def unpack(self) -> None:
        """The wheels, into site/. By hand: a wheel is a zip file, and pip takes ten times as long."""
        wheels = sorted((self.folder / "wheels").glob("*.whl"))
        if self.site.exists() or not wheels:
            return
        unfinished = self.site.with_name(f"{self.site.name}.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unfinished)
        for part in [*unfinished.glob("*.data/purelib"), *unfinished.glob("*.data/platlib")]:
            shutil.copytree(part, unfinished, dirs_exist_ok=True)
        unfinished.replace(self.site)

    def environment(self, work: Path) -> dict[str, str]:
        """What the units run in; `work` is the folder of their stores and of the build cache. What they import can be
        looked for from here on."""
        places = [self.source, *sorted((self.source / "plugins").iterdir()), self.site]
        sys.path[:0] = map(str, places)
        older = os.environ.get("PYTHONPATH")
        work.mkdir(parents=True, exist_ok=True)
        return {
            **os.environ,
            "PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, toolkits())]),
            "PYTHONPATH": os.pathsep.join([*map(str, places), *([older] if older else [])]),
            "PYTHONUNBUFFERED": "1",
            "FUSIOND_DB": str(work / "fusiond.sqlite"),
            "FUSIOND_CACHE": str(work / "cache"),
        }

    def shown(self, command: Sequence[str]) -> str:
        """The command without the folders of this machine."""
        return " ".join(command).replace(sys.executable, "python").replace(str(self.folder), ".")


def toolkits() -> list[Path]:
    """Where CUDA's tools may be without being on PATH."""
    home = os.environ.get("CUDA_HOME")
    places = [Path(home) / "bin"] if home else []
    return [*places, CUDA / "cuda" / "bin", *sorted(CUDA.glob("cuda-*/bin"), reverse=True)]


def tool(name: str) -> str | None:
    """Where a tool of CUDA's is; None where it is not installed."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, toolkits())]))


def keep_awake() -> None:
    """Hold the GPUs' device files open, through NVML, until this process ends: without persistence mode, and between
    two units, the driver would else be taken down and be up again only after seconds. No setting is changed."""
    with contextlib.suppress(OSError, AttributeError):
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        nvml.nvmlInit_v2()
        for index in range(16):
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(ctypes.c_void_p())):
                break


def there(module: str) -> bool:
    importlib.invalidate_caches()
    return importlib.util.find_spec(module) is not None


def machine(device: str) -> dict[str, Any]:
    found: dict[str, Any] = {"device": device, "python": platform.python_version(), "system": platform.platform()}
    asked: dict[str, Callable[[], str]] = {
        "gpu": lambda: said(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]),
        "nvcc": lambda: said([tool("nvcc") or "nvcc", "--version"]).splitlines()[-1],
    }
    for name, ask in asked.items():
        try:
            found[name] = ask()
        except (OSError, subprocess.SubprocessError, IndexError) as problem:
            found[name] = f"not known: {problem}"
    return found


def said(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
