"""`fusiond doctor`: says what works here, what does not, and how to fix it. Exit status 0 if at least one device
works."""

import argparse
import ctypes
import dataclasses
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fusiond import __version__
from fusiond.build import assemblers, nvcc, nvdisasm
from fusiond.build.cache import default_folder
from fusiond.cli import options, output
from fusiond.devices.calibration import FIGURES
from fusiond.model.english import counted
from fusiond.model.errors import FusiondError
from fusiond.model.nouns import COUNTED
from fusiond.model.outcomes import JobState
from fusiond.model.system import driver
from fusiond.requests.isolation import registry as plugins
from fusiond.requests.registry import Registry
from fusiond.service.daemon import lock
from fusiond.service.daemon import socket as sockets
from fusiond.store.database import Store
from fusiond.store.format import SCHEMA_VERSION
from fusiond.store.location import file_system

SHOWN = ("event_us", "empty_kernel_us", "steady_mhz", "settle_secs", "copy_gbs", "fp32_tflops")
"""Of a calibration; `fusiond calibrate --json` has all."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at. `state` is ok, missing (something is the less for it) or broken."""

    name: str
    state: str
    detail: str
    remedy: str = ""


def configure(parser: argparse.ArgumentParser) -> None:
    options.add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    database = options.database(arguments)
    registry = plugins.load(fresh=True)
    devices = list(_devices(registry))
    checks = [*_machine(), *devices, _cache(), *_store(database), *_daemon(database), *_plugins(registry)]
    works = any(check.state == "ok" for check in devices)
    if arguments.json:
        options.say_json({"works": works, "checks": [dataclasses.asdict(each) for each in checks]})
        return 0 if works else 1
    width = max(len(check.name) for check in checks)
    for check in checks:
        output.say(f"{check.state:<8} {check.name:<{width}}  {check.detail}")
        if check.remedy:
            output.say(f"{'':<8} {'':<{width}}  -> {check.remedy}")
    output.say("fusiond works here" if works else "no device works here: see what is missing above")
    return 0 if works else 1


# --- what is looked at ----------------------------------------------------------------------------------


def _machine() -> Iterator[Diagnosis]:
    yield Diagnosis("fusiond", "ok", f"{__version__}, Python {platform.python_version()} ({sys.executable})")
    gxx = shutil.which("g++")
    yield _program("g++", gxx, "the cpu device compiles with it", "install g++ 12 or newer (apt install g++)")
    toolkit, remedy = nvcc.find(), (nvcc.missing() or "").removeprefix("no nvcc: ")
    yield _program("nvcc", toolkit.nvcc if toolkit else None, "CUDA sources become PTX with it", remedy)
    there = assemblers.found()
    for each in there:
        isa, cuda = ".".join(map(str, each.isa)), ".".join(map(str, each.release[:2]))
        said = f"{each.path}: CUDA {cuda}, V{each.version}; takes PTX up to .version {isa}"
        yield Diagnosis("ptxas", "ok", said)
    if not there:
        use = "PTX becomes cubins, registers and spills become known"
        yield _program("ptxas", None, use, assemblers.MISSING.partition(": ")[2])
    use, remedy = "SASS is read with it, instructions that a GPU executes become known", nvdisasm.missing() or ""
    yield _program("nvdisasm", nvdisasm.find(), use, remedy.removeprefix("no nvdisasm: "))
    if _loads("libcuda.so.1"):
        detail = f"loads, driver {driver.version() or 'of unknown version'}"
        yield Diagnosis("libcuda", "ok", detail)
    else:
        remedy = "install the NVIDIA driver; without it only the cpu device works"
        yield Diagnosis("libcuda", "missing", "libcuda.so.1 does not load", remedy)
    yield _module("triton", "kernels in Triton are compiled with it", "pip install 'fusiond[triton]'")
    yield _module("pycuda", "GPUs are driven with it", "pip install 'fusiond[cuda]', with nvcc on PATH")
    nvml = _module("pynvml", "clocks, temperature and other users of a GPU", "pip install nvidia-ml-py")
    if nvml.state == "ok" and not _loads("libnvidia-ml.so.1"):
        nvml = Diagnosis("NVML", "missing", "libnvidia-ml.so.1 does not load", "it is part of the driver")
    yield nvml


def _program(name: str, path: str | Path | None, use: str, remedy: str) -> Diagnosis:
    if path is None:
        return Diagnosis(name, "missing", f"not found; {use}", remedy)
    try:
        result = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as problem:
        return Diagnosis(name, "broken", f"{path} does not run: {problem}", remedy)
    lines = result.stdout.strip().splitlines() or [""]
    shown = next((line for line in lines if "release" in line), lines[0])
    return Diagnosis(name, "ok", f"{path}: {shown.strip()}")


def _module(name: str, use: str, remedy: str) -> Diagnosis:
    if importlib.util.find_spec(name) is None:
        return Diagnosis(name, "missing", f"not installed; {use}", remedy)
    return Diagnosis(name, "ok", "installed")


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _devices(registry: Registry) -> Iterator[Diagnosis]:
    for kind, provider in registry.providers.items():
        try:
            found, missing = provider.devices(), provider.missing()
        except Exception as problem:  # a provider is a plugin's: it may raise anything
            yield Diagnosis(kind, "broken", f"{type(problem).__name__}: {problem}")
            continue
        for text in missing:
            yield Diagnosis(kind, "missing", text.removeprefix(f"{kind}: "))
        for info in found:
            state = "missing" if missing else "ok"
            is_here = info.evidence != COUNTED
            times = f"times are {info.evidence}" if is_here else "not here: bounds are counted, nothing is measured"
            detail = f"{info.model}, {info.arch}, {info.memory_bytes / 2**30:.0f} GiB, {times}"
            yield Diagnosis(info.name, state, detail)
    if not registry.providers:
        yield Diagnosis("devices", "broken", "no plugin brought a device", "reinstall fusiond")


def _cache() -> Diagnosis:
    folder = default_folder()
    made = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    if made.is_dir() and os.access(made, os.W_OK | os.X_OK):
        return Diagnosis("cache", "ok", f"builds are kept in {folder}")
    remedy = "name another folder in FUSIOND_CACHE"
    return Diagnosis("cache", "broken", f"{folder} cannot be written, so nothing builds", remedy)


def _store(database: Path) -> Iterator[Diagnosis]:
    kind = file_system(os.path.realpath(database), _mounts()) or "unknown file system"
    if not database.exists():
        yield Diagnosis("store", "ok", f"{database} ({kind}): not made yet")
        return
    try:
        with Store.open(database, create=False) as store:
            sick = [row for row in store.devices() if row.sick]
            known = store.count_jobs()
            calibrations = store.calibrations()
            names = {row.info.key: row.info.name or row.info.model for row in store.devices()}
            waiting = store.jobs([JobState.WAITING], limit=20)
    except FusiondError as problem:
        remedy = "name another file with --db or FUSIOND_DB"
        yield Diagnosis("store", "broken", str(problem), remedy)
        return
    yield Diagnosis("store", "ok", f"{database} ({kind}), schema {SCHEMA_VERSION}, {counted(known, 'job')}")
    for each in calibrations:
        shown = [f"{name} {each.figures[name]:.4g} {FIGURES[name][0]}" for name in SHOWN if name in each.figures]
        yield Diagnosis(
            f"calibration {names.get(each.device_key, each.device_key[:8])}",
            "ok",
            f"{each.at[:10]}, driver {each.driver or 'none'}: {', '.join(shown)}",
        )
    for job in waiting:
        yield Diagnosis(
            f"job {job.id}", "missing", f"waits: {job.waiting_for}", "it goes on by itself when the cause is gone"
        )
    for row in sick:
        yield Diagnosis(
            row.info.name or row.info.model,
            "broken",
            f"sick since {row.seen_at}: {row.sick}",
            f"look at it with nvidia-smi, then `fusiond devices --probe {row.info.name or row.info.uuid}`",
        )


def _mounts() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return ""


def _daemon(database: Path) -> Iterator[Diagnosis]:
    holder = lock.holder(database)
    if holder is None:
        yield Diagnosis("daemon", "missing", "none serves this store", "start one: `fusiond serve`")
    elif sockets.answers(holder.socket):
        yield Diagnosis("daemon", "ok", f"pid {holder.pid} on {holder.socket}")
    else:
        detail = f"pid {holder.pid} holds the store, but does not answer on {holder.socket}"
        yield Diagnosis("daemon", "broken", detail, f"stop it: kill {holder.pid}")


def _plugins(registry: Registry) -> Iterator[Diagnosis]:
    for state in registry.states:
        if state.problem:
            remedy = f"pip install --upgrade {state.distribution}, or uninstall it"
            yield Diagnosis(f"plugin {state.name}", "broken", state.problem, remedy)
    loaded = [state.name for state in registry.states if not state.problem]
    yield Diagnosis("plugins", "ok", ", ".join(loaded) or "none")
