"""What the box lacks, as wheels: everything that fusiond and its tests need there, fetched here by pip.

PyCUDA has no wheels on PyPI: one that was built for the box's Python is taken from a folder (`--wheels`), like any
other that is there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TESTS = ("hypothesis", "psutil", "pytest", "pytest-timeout")  #: What the tests on a GPU need, of the development tools
THERE = (
    "numpy", "pip", "scipy", "networkx", "pluggy", "pyyaml", "pytest", "hypothesis", "prometheus-client", "setuptools",
)  # fmt: skip
"""What a machine with PyTorch and JAX does not lack; NumPy and SciPy are the most of all."""
GLIBC = (39, 35, 34, 31, 28, 27, 24, 17, 12, 5)
PLATFORMS = (
    "linux_x86_64",
    *(f"manylinux_2_{minor}_x86_64" for minor in GLIBC),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
)
"""pip matches these to the letter. What is built here for this very machine (`linux_x86_64`) is PyCUDA."""


def fetch(folder: Path, *, own: Path | None, python: str, there: Sequence[str] = THERE) -> str:
    """Put the wheels into a folder, at the versions that constraints.txt names, but for those that are `there`
    already; what went wrong, in a line. The wheels in `own` are taken in any case."""
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in sorted(own.glob("*.whl")) if own else ():
        shutil.copyfile(wheel, folder / wheel.name)
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
        "--python-version", python, "--implementation", "cp", *(f"--platform={each}" for each in PLATFORMS),
        "--constraint", str(ROOT / "constraints.txt"), "--find-links", str(folder), "--dest", str(folder), *wanted(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for wheel in folder.glob("*.whl"):
        if name_of(wheel) in there:
            wheel.unlink()
    lines = [each for each in done.stderr.splitlines() if each.startswith("ERROR")]
    return "" if done.returncode == 0 else f"the wheels: {lines[0] if lines else f'pip ended with {done.returncode}'}"


def wanted() -> list[str]:
    """The requirements of fusiond, of its tests on a GPU, and of its GPU devices."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    tests = [each for each in extras["dev"] if re.split(r"[<>=\[]", each)[0] in TESTS]
    of_jax = [each for each in extras["jax"] if not each.startswith("jax")]  # that is there, with its libraries
    return [*project["dependencies"], *extras["cuda"], *of_jax, *tests]


def name_of(wheel: Path) -> str:
    """The name of what is in a wheel, as it is asked for."""
    return wheel.name.partition("-")[0].lower().replace("_", "-")
