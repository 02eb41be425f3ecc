"""The driver's version, from the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusiond.model.system import driver


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 2023\nGCC 11.4.0\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n", "580.65.06"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57  x\n", "470.57"),
        ("something else\n", None),
        ("", None),
    ],
)  # fmt: skip
def test_version(tmp_path: Path, text: str, version: str | None) -> None:
    path = tmp_path / "version"
    path.write_text(text)
    assert driver.version(str(path)) == version
