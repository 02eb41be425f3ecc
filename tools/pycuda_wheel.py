"""PyCUDA in this environment: `python -m tools.pycuda_wheel`, which `make test` calls.

PyCUDA is on PyPI as source only. It is built once per Python, PyCUDA and CUDA release, and the wheel is kept in the
user's cache directory (fusiond/wheels) for other environments. The build needs the headers of a CUDA toolkit, and no
driver: it is linked with an empty libcuda, which a GPU's driver replaces when it runs (or, in tests, the stand-in of
tests/devices/cuda). Where it cannot be built, one line says why, and that is no error: the tests that need PyCUDA are
skipped.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from fusiond.build import gxx, nvcc
from fusiond.model.system import folders

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
BUILD_SECS = 1200.0
FLAGS = {"CXXFLAGS": "-O1 -g0 -w", "LDFLAGS": "-Wl,--no-as-needed"}  # debug information costs a third of the time


class CannotBuild(Exception):
    """Why there is no PyCUDA, in one line."""


def main() -> int:
    """Install PyCUDA, or say why not; always 0."""
    if importlib.util.find_spec("pycuda"):
        return 0
    try:
        pip("install", str(kept()))
    except CannotBuild as fault:
        say(f"PyCUDA cannot be installed here: {fault}; tests that need it are skipped")
    return 0


def say(line: str) -> None:
    """Beside what `make` prints."""
    sys.stderr.write(f"{line}\n")


def kept() -> Path:
    """The wheel, built where none is kept. CannotBuild."""
    toolkit = nvcc.find()
    if toolkit is None or gxx.find() is None:
        raise CannotBuild(nvcc.missing() or gxx.missing() or "")
    if not (toolkit.root / "include" / "cuda.h").is_file():
        raise CannotBuild(f"{toolkit.root}/include has no cuda.h (pip install 'fusiond[nvcc]' has it)")
    version = pinned()
    release = ".".join(toolkit.version.split(".")[:2])
    folder = Path(folders.cache()) / "wheels" / f"cuda-{release}"
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"
    for wheel in folder.glob(f"pycuda-{version}-*-{tag}-{sysconfig.get_platform().replace('-', '_')}.whl"):
        return wheel
    say(f"building PyCUDA {version}, once: one to three minutes")
    with tempfile.TemporaryDirectory() as scratch:
        made = built(toolkit, version, Path(scratch))
        folder.mkdir(parents=True, exist_ok=True)
        whole = folder / f".{made.name}.{os.getpid()}"
        shutil.copyfile(made, whole)
        return whole.replace(folder / made.name)


def pinned() -> str:
    """The version that constraints.txt names."""
    (version,) = re.findall(r"^pycuda==(\S+)$", CONSTRAINTS.read_text(), re.MULTILINE)
    return str(version)


def built(toolkit: nvcc.Toolkit, version: str, scratch: Path) -> Path:
    """A wheel in the scratch folder. CannotBuild."""
    environment = {**FLAGS, "PATH": f"{toolkit.nvcc.parent}:{os.environ['PATH']}"}  # its setup.py looks for nvcc
    pip("download", "--no-deps", "--no-binary=pycuda", f"--dest={scratch}", f"pycuda=={version}", more=environment)
    (archive,) = scratch.glob("pycuda-*")
    shutil.unpack_archive(archive, scratch, filter="data")
    (source,) = (each for each in scratch.iterdir() if each.is_dir())
    subprocess.run([gxx.find() or "", "-shared", "-x", "c++", "/dev/null", "-Wl,-soname,libcuda.so.1",
                    "-o", str(scratch / "libcuda.so")], check=True)  # fmt: skip
    (source / "siteconf.py").write_text(
        f"CUDA_ROOT = {str(toolkit.root)!r}\nCUDA_ENABLE_CURAND = False\nCUDADRV_LIB_DIR = [{str(scratch)!r}]\n"
    )
    pip("wheel", "--no-deps", f"--wheel-dir={scratch / 'out'}", str(source), more=environment)
    (wheel,) = (scratch / "out").iterdir()
    return wheel


def pip(*words: str, more: Mapping[str, str] | None = None) -> None:
    """Run pip at the pinned versions. CannotBuild, with pip's reason."""
    options = ("--disable-pip-version-check", "--quiet", "--constraint", str(CONSTRAINTS))
    command = [sys.executable, "-m", "pip", words[0], *options, *words[1:]]
    begun = time.monotonic()
    try:
        done = subprocess.run(
            command, env={**os.environ, **(more or {})}, capture_output=True, text=True, timeout=BUILD_SECS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotBuild(f"pip {words[0]} took longer than {time.monotonic() - begun:.0f} s") from None
    if done.returncode:
        lines = [each.strip() for each in done.stderr.splitlines() if re.search(r"\berror\b", each, re.IGNORECASE)]
        raise CannotBuild(f"pip {words[0]}: {lines[0] if lines else f'exit status {done.returncode}'}")


if __name__ == "__main__":
    sys.exit(main())
