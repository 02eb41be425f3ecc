"""The PTX in modules' images: those that nvcc makes, and containers made here."""

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import lz4.block
import pytest
import zstandard

from fusiond.build import gxx, nvcc
from fusiond.cuda.capture import driver_watcher, fatbin, origins, trace
from fusiond.cuda.capture.trace import CapturedKernel
from fusiond.model.errors import RequestError

from .writing import TraceWriter

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


# --- the PTX of cubins ----------------------------------------------------------------------------------


PROGRAM = Path(__file__).parent / "programs" / "compiles.cpp"


def ptx(*names: str) -> str:
    return ".version 8.0\n" + "".join(f".visible .entry {each}()\n{{ ret; }}\n" for each in names)


def captured(folder: Path, *modules: tuple[bytes, str]) -> list[CapturedKernel]:
    """A capture of one launch of a kernel of each module."""
    writer = TraceWriter(folder)
    for image, name in modules:
        writer.launch(writer.function(writer.module(image), name), (1,), (32,), ())
    (found,) = trace.read(writer.close())
    return list(found.kernels)


def test_ptx_that_is_embedded(tmp_path: Path) -> None:
    one, other = captured(tmp_path, (ptx("f", "g").encode() + b"\0", "g"), (b"\x7fELF", "h"))
    origins.keep(tmp_path, {"TRITON_CACHE_DIR": str(tmp_path / "no"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)})
    assert origins.ptx_of(one) == ptx("f", "g")
    assert origins.ptx_of(other) is None
    assert len(list((tmp_path / "modules").iterdir())) == 2


@pytest.mark.parametrize("cache", ["TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"])
def test_the_cubin_of_a_cache(tmp_path: Path, cache: str) -> None:
    """By its bytes: names are the same for all versions of a kernel."""
    for folder, image in (("a", b"\x7fELF one"), ("b", b"\x7fELF two"), ("c", b"\x7fELF three")):
        (tmp_path / "cache" / "0" / folder).mkdir(parents=True)
        (tmp_path / "cache" / "0" / folder / "k.cubin").write_bytes(image)
        (tmp_path / "cache" / "0" / folder / "k.ptx").write_text(ptx("k", folder))
    (tmp_path / "cache" / "0" / "c" / "k.ptx").unlink()
    two, three = captured(tmp_path / "run", (b"\x7fELF two", "k"), (b"\x7fELF three", "k"))
    empty = {"TRITON_CACHE_DIR": str(tmp_path / "no"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "no")}
    origins.keep(tmp_path / "run", {**empty, cache: str(tmp_path / "cache")})
    assert origins.ptx_of(two) == ptx("k", "b")
    assert origins.ptx_of(three) is None


def test_what_xla_dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names kernels alike in many modules."""
    monkeypatch.setattr(fatbin, "registers", lambda image: dict.fromkeys(image[5:].decode().split(), 1))
    (tmp_path / "xla").mkdir()
    texts = (ptx("fusion"), ptx("fusion", "fusion_1"), ptx("copy"), ptx("copy") + "// another")
    for number, text in enumerate(texts):
        (tmp_path / "xla" / f"module_{number}.ptx").write_text(text)
    one, other, either = captured(
        tmp_path, (b"\x7fELF fusion fusion_1", "fusion_1"), (b"\x7fELF fusion fusion_2", "fusion"),
        (b"\x7fELF copy", "copy"),
    )  # fmt: skip
    origins.keep(tmp_path, {"TRITON_CACHE_DIR": str(tmp_path / "no"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "no")})
    assert origins.ptx_of(one) == texts[1]
    assert origins.ptx_of(other) is None
    assert origins.ptx_of(either) is None


def test_what_compiled_it_in_the_program(fake_libcuda: Path, tmp_path: Path) -> None:
    """NVRTC and nvJitLink are asked when the cubin is handed over."""
    compiler = [gxx.find() or "", "-std=c++20", str(PROGRAM)]
    for name in ("libnvrtc.so.13", "libnvJitLink.so.13"):
        subprocess.run([*compiler, "-DCOMPILER", "-shared", "-fPIC", "-o", tmp_path / name], check=True)
    subprocess.run([*compiler, "-o", tmp_path / "program", "-ldl"], check=True)
    given = {"LD_LIBRARY_PATH": f"{fake_libcuda.parent}:{tmp_path}", "FUSIOND_CAPTURE_OUT": str(tmp_path / "run")}
    subprocess.run(
        [tmp_path / "program"], env=driver_watcher.environment({**os.environ, **given}, tmp_path), check=True
    )
    (found,) = trace.read(tmp_path / "run")
    texts = {each.name: origins.ptx_of(each) for each in found.kernels}
    assert texts == {
        name: f".version 8.0\n.visible .entry {name}() {{ ret; }}\n" for name in ("add", "double_it", "hungry")
    }
