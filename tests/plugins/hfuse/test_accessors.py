"""Structs by value with pointers in them: an accessor with a base, as PyTorch hands tensors over, and a plain one."""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fusiond.devices.cpu import commands, native
from fusiond.devices.cpu.lower import lower
from fusiond.errors import RequestError
from fusiond.model import Config
from fusiond.program import Bytes, Pointer, Program, decode, problems, to_text
from fusiond.testing.commands import compiled
from fusiond_hfuse import verify

KERNELS = Path(__file__).parent / "kernels"
AFFINE = str(KERNELS / "affine.yaml")
BESIDE = Config.of(
    {"kind": "horizontal", "level": "warp", "map": "pad", "threads.a": 96, "threads.b": 64, "order": "ab"}
)
VERTICAL = Config.of({"kind": "vertical", "threads": 64, "order": "ba"})


@pytest.fixture
def pair(analyse):
    return analyse(AFFINE, AFFINE, sizes={"b.n": 33}, granularity=32)


@pytest.mark.parametrize("config", [BESIDE, VERTICAL], ids=str)
def test_addresses_stand_in_structs(pair, strategy, same, runner, config):
    program = strategy.emit(pair, config, {})
    assert isinstance(program, Program), program
    assert problems(program) == ()
    assert decode(json.loads(to_text(program))) == program
    same(program, strategy.unfused(pair, config))
    got = runner.run(program)
    for letter, n in (("a", 77), ("b", 33)):
        given = got[f"{letter}.in_.data_"].reshape(5, n)
        np.testing.assert_array_equal(got[f"{letter}.out.data_"].reshape(5, n), given * np.arange(n, dtype="f4"))
        hits = int((given > 0.25).sum())
        assert [got[f"{letter}.o.in[{at}].hits"][0] for at in (0, 1)] == [2 * hits, hits]


def test_the_places_are_the_sources(pair, strategy):
    """Against ctypes: what a base holds lies before the rest."""

    class Accessor(ctypes.Structure):
        _fields_ = (("data", ctypes.c_void_p), ("sizes", ctypes.c_int * 2), ("strides", ctypes.c_int * 2))

    class Options(ctypes.Structure):
        _fields_ = (("scale", ctypes.c_void_p), ("no", ctypes.c_void_p), ("hits", ctypes.c_void_p * 2),
                    ("eps", ctypes.c_float))  # fmt: skip

    structs = [each for each in strategy.emit(pair, BESIDE, {}).steps[0].arguments if isinstance(each, Bytes)]
    addresses = {"a.out.data_": 16, "a.o.scale": 32, "a.o.in[0].hits": 48, "a.o.in[1].hits": 64}
    wanted = Accessor(16, (5, 77), (77, 1)), Options(32, None, (48, 64), 0.25)
    assert structs[0].filled(addresses.__getitem__) == bytes(wanted[0])
    assert structs[2].filled(addresses.__getitem__)[:36] == bytes(wanted[1])[:36]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('      "sizes_[0]": rows\n', "", "out says nothing of sizes_[0] of 'GenericPackedTensorAccessor"),
        ("data_: {dtype: float32, elements: rows * n, role: output, compare: equal}", "data_: 1",
         "data_ of 'GenericPackedTensorAccessor<scalar_t, 2, DefaultPtrTraits, int>' is a pointer: wanted is a buffer"),
        ("scale: {dtype: float32", "scale: {dtype: int32", "scale is int32, but 'Opts' points to float32 there"),
        ("eps: 0.25", "eps: {dtype: float32, elements: 3, role: output}", "eps of 'Opts' is float32, and no pointer"),
        ("nothing: 0", "nothing: {elements: 3, role: output}", "the key 'dtype' is missing"),
        ("scale: {dtype: float32, elements: n, role: input", "scale: {dtype: float32, elements: n, role: output",
         "a buffer with the role output starts with poison"),
        ("elements: 1, role", "elements: rows - 5, role", "o.in[0].hits has 0 elements"),
    ],
)  # fmt: skip
def test_a_wrong_pointer_is_one_line(analyse, kernel_file, old, new, problem):
    yaml = (KERNELS / "affine.yaml").read_text()
    assert old in yaml
    name = kernel_file("affine", (KERNELS / "affine.cu").read_text(), yaml.replace(old, new, 1))
    with pytest.raises(RequestError) as caught:
        analyse(name, "hist")
    assert problem in str(caught.value)
    assert "affine.yaml:" in str(caught.value)
    assert "\n" not in str(caught.value)


HEADER_MAIN = """\
#include "fused.h"
#include <cstdio>
template <class T> void say(const T& record)
{
    for (unsigned char each : record.bytes) std::printf("%02x", each);
    std::printf(" %zu\\n", alignof(T));
}
int main()
{
    fused::Sizes sizes;
    sizes.a_n = 55;
    const fused::Shape found = fused::shape(sizes);
    say(found.a_out), say(found.a_in_), say(found.a_o), say(found.b_out);
    return 0;
}
"""


def test_the_header_fills_the_structs(analyse, strategy, pair, tmp_path):
    files = strategy.export(pair, BESIDE, strategy.emit(pair, BESIDE, {}))
    (tmp_path / "fused.h").write_text(files["fused.h"])
    (tmp_path / "main.cpp").write_text(HEADER_MAIN)
    said = compiled(tmp_path / "main.cpp")
    other = analyse(AFFINE, AFFINE, sizes={"a.n": 55, "b.n": 33}, granularity=32)
    structs = [each.hex for each in strategy.emit(other, BESIDE, {}).steps[0].arguments if isinstance(each, Bytes)]
    assert said == [part for text in structs[:4] for part in (text, "8")]


def test_the_launcher_hands_over_addresses(pair, strategy, runner, tmp_path):
    program = strategy.emit(pair, BESIDE, {})
    files = strategy.export(pair, BESIDE, program)
    module: dict = {"__name__": "launch"}
    exec(files["launch.py"], module)  # our own text; that it runs is what is tested
    cpp, library = tmp_path / "fused.cpp", tmp_path / "fused.so"
    cpp.write_text(commands.translation_unit(lower(files["fused.cu"]), {"fused": module["ENTRY"]}))
    subprocess.run(commands.kernel(cpp, library, precompiled=runner.folder), check=True, capture_output=True)
    entry = runner.runtime.load(library).entry("fused")
    packed: list[bytes] = []

    def kernel(*passed, grid, block, shared, stream):
        packed.extend(each.tobytes() for each in passed)
        arguments = [bytes(each.tobytes()) if each.dtype.kind == "V" else each for each in passed]
        launch = native.Launch(grid=grid, block=block, shared_bytes=shared, seed=3, checked=True)
        done = runner.runtime.launch(entry, launch, arguments)
        assert isinstance(done, native.Finished), done

    wanted = runner.run(program)
    arrays = {name: array.copy() for name, array in wanted.items()}
    for buffer in program.buffers:
        if buffer.role.compared:
            arrays[buffer.name][:] = 0
    module["launch"](kernel, {name: each.ctypes.data for name, each in arrays.items()}, {})
    for buffer in program.buffers:
        np.testing.assert_array_equal(arrays[buffer.name], wanted[buffer.name], err_msg=buffer.name)
    assert sum(map(len, packed)) == 2 * (24 + 40 + 40) + 2 * 4


def test_structs_are_aligned_behind_numbers(analyse, strategy):
    """PyCUDA aligns numbers only: a struct behind an int of four bytes needs a gap."""
    files_of = analyse(AFFINE, "hist", granularity=32)
    config = Config.of(
        {"kind": "horizontal", "level": "warp", "map": "pad", "threads.a": 64, "threads.b": 512, "order": "ab"}
    )
    module: dict = {"__name__": "launch"}
    exec(strategy.export(files_of, config, strategy.emit(files_of, config, {}))["launch.py"], module)
    module["_ORDER"] = ["number", "a.o", "tail", "a.out"]
    passed = [np.int32(1), np.void(bytes(40)), np.int32(2), np.void(bytes(24))]
    assert [each.dtype.itemsize for each in module["_padded"](passed)] == [4, 4, 40, 4, 4, 24]


CALL = """\
#include "fused.h"
cudaError_t call(float* data, const float* in, int* hits, unsigned int* counts)
{
    fused::Sizes sizes;
    sizes.a_n = 50;
    return fused::launch(data, in, in, hits, hits, counts, in, sizes, nullptr);
}
"""


@pytest.mark.needs_nvcc
@pytest.mark.slow
def test_nvcc_links_a_call_with_structs(analyse, strategy, tmp_path):
    """Two translation units: one knows the structs, the other only how large they are."""
    analysis = analyse(AFFINE, "hist", granularity=32)
    config = Config.of(
        {"kind": "horizontal", "level": "warp", "map": "pad", "threads.a": 64, "threads.b": 512, "order": "ab"}
    )
    program = strategy.emit(analysis, config, {})
    for file, text in strategy.export(analysis, config, program).items():
        (tmp_path / file).write_text(text)
    (tmp_path / "call.cu").write_text(CALL)
    done = subprocess.run(
        ["nvcc", "-arch=sm_90", "-shared", "-Xcompiler", "-fPIC", "--Werror", "all-warnings", "-Xcompiler", "-Wall",
         str(tmp_path / "fused.cu"), str(tmp_path / "call.cu"), "-o", str(tmp_path / "call.so")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    subprocess.run(
        ["nvcc", "-arch=sm_90", "-ptx", str(tmp_path / "fused.cu"), "-o", str(tmp_path / "fused.ptx")], check=True
    )
    assert verify.lint((tmp_path / "fused.ptx").read_text()) == ()
    assert any(isinstance(each, Bytes) and each.pointers for each in program.steps[0].arguments)
    assert any(isinstance(each, Pointer) for each in program.steps[0].arguments)
