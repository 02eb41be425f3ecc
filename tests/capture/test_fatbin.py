"""The PTX in modules' images: those that nvcc makes, and containers made here."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import lz4.block
import pytest
import zstandard

from fusiond.build import nvcc
from fusiond.cuda.capture import fatbin
from fusiond.model.errors import RequestError

KERNEL = ".version 8.0\n.target sm_{arch}\n.address_size 64\n.visible .entry {name}()\n{{\nret;\n}}\n"
SOURCE = "__global__ void store(float* x, int n) { x[n] = n; }"


COMPRESSED: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "lz4": lambda data: lz4.block.compress(data, store_size=False),
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
}


def text(arch: int, name: str = "k") -> str:
    return KERNEL.format(arch=arch, name=name)


def container(*entries: tuple[int, int, bytes, str]) -> bytes:
    """(kind, architecture, data, how it is compressed)"""
    body = b""
    for kind, arch, data, how in entries:
        flags = {"": 0x11, "lz4": 0x2011, "zstd": 0x8011}[how]
        payload = COMPRESSED[how](data)
        padded = payload + bytes(-len(payload) % 8)
        sizes = (len(payload), len(data)) if how else (0, 0)
        head = struct.pack("<HHIQIIHHIII", kind, 257, 64, len(padded), sizes[0], 64, 0, 9, arch, 0, 0)
        body += head + struct.pack("<QQQ", flags, 0, sizes[1]) + padded
    return struct.pack("<IHHQ", fatbin.MAGIC, 1, 16, len(body)) + body


@pytest.mark.parametrize("how", ["", "lz4", "zstd"])
def test_compressed(how: str) -> None:
    image = container((2, 90, b"\x7fELF-dev", ""), (1, 90, text(90).encode() + b"\0", how))
    assert fatbin.ptx(image) == (text(90),)
    assert fatbin.cubins(image) == (b"\x7fELF-dev",)


def test_the_newest_that_an_sm_90_runs_comes_first() -> None:
    image = container(*((1, arch, text(arch).encode(), "") for arch in (70, 100, 90, 80)))
    assert [f"sm_{arch}" in each for arch, each in zip((90, 80, 70, 100), fatbin.ptx(image), strict=True)] == [True] * 4


def test_of_a_kernel() -> None:
    image = container((1, 90, text(90, "first").encode(), "zstd"), (1, 80, text(80, "second").encode(), ""))
    assert fatbin.of_kernel(image, "second") == text(80, "second")
    assert fatbin.of_kernel(image, "fir") is None


def test_of_ptx_and_of_a_cubin() -> None:
    assert fatbin.ptx(text(90).encode() + b"\0") == (text(90),)
    assert fatbin.ptx(b"\x7fELF .version") == ()


def test_damaged_is_said() -> None:
    image = container((1, 90, text(90).encode() * 20, "zstd"))
    at = image.index(b"\x28\xb5\x2f\xfd") + 8
    with pytest.raises(RequestError, match="damaged"):
        fatbin.ptx(image[:at] + b"\xff" * 16 + image[at + 16 :])


def test_what_decompresses_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(RequestError, match=r"zstandard is not here: pip install 'fusiond\[capture\]'"):
        fatbin.ptx(container((1, 90, text(90).encode(), "zstd")))


@pytest.mark.needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "size", "speed", "balance", "none"])
def test_of_nvcc(mode: str, tmp_path: Path) -> None:
    toolkit = nvcc.find()
    assert toolkit is not None
    if int(toolkit.version.partition(".")[0]) < 13:
        pytest.skip("nvcc chooses between compressions from 13 on")
    (tmp_path / "a.cu").write_text(SOURCE)
    flags = ["-arch=sm_90", "-fatbin", "-Xfatbin", f"-compress-mode={mode}"]
    subprocess.run([toolkit.nvcc, *flags, tmp_path / "a.cu", "-o", tmp_path / "a"], check=True)
    image = (tmp_path / "a").read_bytes()
    found = fatbin.of_kernel(image, "_Z5storePfi")
    assert found is not None
    assert "cvt.rn.f32.s32" in found
    (cubin,) = fatbin.cubins(image)
    assert fatbin.registers(cubin)["_Z5storePfi"] > 0
