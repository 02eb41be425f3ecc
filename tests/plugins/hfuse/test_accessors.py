"""Structs by value with pointers in them: an accessor with a base, as PyTorch hands tensors over, and a plain one."""

import ctypes
import json
from pathlib import Path

import numpy as np
import pytest

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Config
from fusiond.model.program import Bytes, Program, decode, problems, to_text

KERNELS = Path(__file__).parent / "kernels"
AFFINE = str(KERNELS / "affine.yaml")
BESIDE = Config.of(
    {"kind": "horizontal", "level": "warp", "map": "pad", "threads.a": 96, "threads.b": 64, "order": "ab"}
)
VERTICAL = Config.of({"kind": "vertical", "threads": 64, "order": "ba"})


@pytest.fixture
def pair(analyse):
    return analyse(AFFINE, AFFINE, sizes={"b.n": 33}, granularity=32)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('      "sizes_[0]": rows\n', "", "out does not give sizes_[0] of 'GenericPackedTensorAccessor"),
        ("data_: {dtype: float32, elements: rows * n, role: output, compare: equal}", "data_: 1",
         "data_ of 'GenericPackedTensorAccessor<scalar_t, 2, DefaultPtrTraits, int>' is a pointer; give a buffer"),
        ("scale: {dtype: float32", "scale: {dtype: int32", "scale is int32, but 'Opts' points to float32 there"),
        ("eps: 0.25", "eps: {dtype: float32, elements: 3, role: output}", "eps of 'Opts' is float32, not a pointer"),
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


def test_structs_at_other_sizes_are_what_they_are_there(analyse, strategy, pair):
    program = strategy.emit(pair, BESIDE, {})
    other = strategy.emit(analyse(AFFINE, AFFINE, sizes={"a.n": 55, "b.n": 33}, granularity=32), BESIDE, {})
    moved = program.at({"a.n": 55, "b.n": 33})
    assert moved.key == other.key
    for a, b in zip(moved.steps[0].arguments, other.steps[0].arguments, strict=True):
        if isinstance(a, Bytes):
            assert a.filled(lambda name: 64) == b.filled(lambda name: 64)
    assert any(isinstance(each, Bytes) and each.numbers for each in program.steps[0].arguments)
