"""`fusiond capture -- COMMAND`: runs a program and records its launches."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import fusiond
from fusiond.cuda.capture import driver_watcher, libraries, origins, trace
from fusiond.cuda.capture.service import LaunchService
from fusiond.devices.counting.model import GPUS, H100, Gpu
from fusiond.model.errors import RequestError

_FACTS = "capture.json"
_BUILD_FLAGS = "-cudart shared -gencode arch=compute_90,code=sm_90 -gencode arch=compute_90,code=compute_90"


@dataclass(frozen=True, slots=True)
class Captured:
    """A program that has ended."""

    status: int  #: As a shell has it
    summary: str  #: One line


def run(words: Sequence[str], arguments: argparse.Namespace) -> Captured:
    """Captures a command. RequestError where it cannot be captured."""
    out = _emptied(Path(arguments.out))
    if arguments.build:
        _build(arguments.build)
    began = time.time()
    status = (_without_gpu if arguments.without_gpu else _on_gpu)(words, out, arguments)
    facts = {
        "command": list(words),
        "began": began,
        "seconds": time.time() - began,
        "status": status,
        "without_gpu": arguments.without_gpu,
        "kernels": arguments.kernels,
        "device": H100.name if arguments.without_gpu else driver_watcher.device(),
        "fusiond": fusiond.__version__,
    }
    (out / _FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    return Captured(status, _said(words, out, status))


def gpu(folder: Path) -> Gpu:
    """That on which a capture was made; an H100 where that is none that is known."""
    try:
        found = json.loads((folder / _FACTS).read_text()).get("device")
    except (OSError, ValueError):
        found = None
    return GPUS.get(found or "", H100)


def _emptied(out: Path) -> Path:
    """The folder, without an earlier capture."""
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]) and not (out / _FACTS).is_file():
        raise RequestError("is there, and is no capture: name another one (--out)", where=str(out))
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / _FACTS).write_text("{}\n")
    return out.resolve()


def _build(command: str) -> None:
    """With what nvcc needs beside its options."""
    flags = " ".join(filter(None, [os.environ.get("NVCC_APPEND_FLAGS"), _BUILD_FLAGS]))
    done = subprocess.run(command, shell=True, env={**os.environ, "NVCC_APPEND_FLAGS": flags})
    if done.returncode != 0:
        raise RequestError(f"ended with status {done.returncode}", where=f"--build {command}")


def _without_gpu(words: Sequence[str], out: Path, arguments: argparse.Namespace) -> int:
    """The program's exit status."""
    library, name = libraries.cudart()
    _check(words[0], name)
    with tempfile.TemporaryDirectory(prefix="fusiond-capture-") as place:
        folder = Path(place)
        (folder / name).symlink_to(library)
        with LaunchService(folder) as service:
            environment = {
                **_environment(out, arguments),
                "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")])),
                "FUSIOND_CAPTURE_SOCKET": str(service.path),
            }
            if arguments.kernels == "none":
                environment["FUSIOND_CAPTURE_ONLY_NOTE"] = "1"
            status = _ended(words, environment)
        if service.processes == 0:
            raise RequestError(
                f"ended with status {status}, and no process of it used {name}: build with nvcc -cudart shared",
                where=words[0],
            )
    return status


def _on_gpu(words: Sequence[str], out: Path, arguments: argparse.Namespace) -> int:
    """The program's exit status."""
    status = _ended(words, driver_watcher.environment(_environment(out, arguments), out))
    if not any(out.glob("*.trace")):
        raise RequestError(
            f"ended with status {status}, and no process of it used the CUDA driver; --without-gpu needs none",
            where=words[0],
        )
    origins.keep(out)
    return status


def _environment(out: Path, arguments: argparse.Namespace) -> dict[str, str]:
    """What both libraries read."""
    asked: Mapping[str, object] = {
        "FUSIOND_CAPTURE_OUT": out,
        "FUSIOND_CAPTURE_LAUNCHES": arguments.launches,
        "FUSIOND_CAPTURE_SECONDS": arguments.seconds,
        "FUSIOND_CAPTURE_DATA": 1 if arguments.data else None,
    }
    return {**os.environ, **{name: str(value) for name, value in asked.items() if value is not None}}


def _check(command: str, name: str) -> None:
    """RequestError for a program that cannot run on our runtime. A script may start one that can."""
    found = shutil.which(command)
    if found is None:
        raise RequestError("there is no such command", where=command)
    head, _, _ = name.rpartition(".")
    with open(found, "rb") as file:
        data = file.read() if file.read(4) == b"\x7fELF" else b""
    if b".nv_fatbin" in data and f"{head}.".encode() not in data:
        raise RequestError(
            "is built with the static runtime: build it with nvcc -cudart shared (--build CMD sees to that)",
            where=command,
        )
    if f"{head}.".encode() in data and name.encode() not in data:
        raise RequestError(f"is built for another CUDA toolkit than the one here, which has {name}", where=command)


def _ended(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """The exit status; of a signal what a shell would say."""
    sys.stdout.flush()
    try:
        program = subprocess.Popen(words, env=environment)
    except OSError as problem:
        raise RequestError(f"cannot be run: {problem.strerror}", where=words[0]) from None
    while True:
        try:
            status = program.wait()
            return status if status >= 0 else 128 - status
        except KeyboardInterrupt:  # the program has got it too
            continue


def _said(words: Sequence[str], out: Path, status: int) -> str:
    traces = trace.read(out)
    kernels = sum(len(each.kernels) for each in traces)
    launches = sum(1 for each in traces for _ in each.launches)
    ended = f"{words[0]} ended with status {status}; " if status else ""
    shown = os.path.relpath(out)
    return f"{ended}captured {kernels} kernels, {launches} launches in {shown}; fusiond capture {shown} --list"
