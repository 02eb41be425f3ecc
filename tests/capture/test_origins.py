"""The PTX of cubins: from caches, from what compiled them in the program, from XLA's dump."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fusiond.build import gxx
from fusiond.cuda.capture import driver_watcher, fatbin, origins, trace
from fusiond.cuda.capture.trace import CapturedKernel

from .writing import TraceWriter

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
        tmp_path,
        (b"\x7fELF fusion fusion_1", "fusion_1"),
        (b"\x7fELF fusion fusion_2", "fusion"),
        (b"\x7fELF copy", "copy"),
    )
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
