"""The kernels of the paper's evaluation: each gives what an oracle gives, and all its sixteen pairs fuse."""

import dataclasses
import hashlib
import itertools

import numpy as np
import pytest

from fusiond.model.errors import RequestError
from fusiond.model.nouns import Config
from fusiond.model.program import Program
from fusiond_hfuse.codegen import emit, verify
from fusiond_hfuse.frontend.fusion_group import SLOTS
from fusiond_hfuse.frontend.launch_shapes import shape_of
from fusiond_hfuse.frontend.source_kernel import volume
from fusiond_hfuse.plugin import KERNELS

from . import oracle_blake, oracle_ethash, oracle_layers
from .conftest import STRICT, assembled

LAYERS = ("batchnorm", "hist", "im2col", "maxpool", "upsample")
HASHES = ("blake256", "blake2b", "ethash", "sha256")
PAIRS = [*itertools.combinations(LAYERS, 2), *itertools.combinations(HASHES, 2)]
NEW = ("batchnorm", "upsample", "im2col", *HASHES)

TINY = {
    "batchnorm": {"batch": 3, "features": 5, "length": 40},
    "hist": {"n": 3000},
    "im2col": {"channels": 2, "height": 29, "width": 23},
    "maxpool": {"channels": 2, "height": 90, "width": 70},
    "upsample": {"channels": 2, "height": 9, "width": 7, "out_height": 31, "out_width": 45},
    "blake256": {"blocks": 2, "rounds": 2},
    "blake2b": {"blocks": 3, "rounds": 2},
    "ethash": {"blocks": 2, "rounds": 1, "pages": 101},
    "sha256": {"blocks": 3, "rounds": 2},
}


def of_slots(pair, sizes):
    """Sizes by kernel -> a job's sizes for a pair."""
    return {f"{name}.{size}": value for name in pair for size, value in sizes[name].items()}


@pytest.fixture(scope="module")
def read():
    """The kernels that have been read, by what a job calls them."""
    return {}


@pytest.fixture
def slots(parse, read):
    """Two slots of one kernel, as read from its YAML file; the second is as large as the paper's."""

    def slots(name, sizes):
        here = name.startswith(".")
        pair = read.get(name) or parse(name, name).payload.group
        if not here:
            read[name] = pair
        a, b = pair.slots
        a = dataclasses.replace(a, sizes={**a.sizes, **sizes})
        assert a.kernel.parsed.rejections == ()
        return dataclasses.replace(pair, slots=(a, b))

    return slots


@pytest.fixture
def alone(slots, runner):
    """Runs one kernel by itself: its buffers, by their names in the YAML file, after one launch.

    `threads` is the block's size, `blocks` a grid other than the YAML file's.
    """

    def alone(kernel, sizes, threads=None, *, blocks=None, order=0):
        pair = slots(kernel, sizes)
        given = volume(pair.slot("a").kernel.block.shapes[0])
        program = emit.unfused(pair, {"a": threads or given, "b": given}, dict.fromkeys(SLOTS))
        step = next(step for step in program.steps if step.name == "a")
        if blocks is not None:
            step = dataclasses.replace(step, grid=(blocks, 1, 1))
        buffers = tuple(buffer for buffer in program.buffers if buffer.name.startswith("a."))
        got = runner.run(dataclasses.replace(program, buffers=buffers, steps=(step,)), order=order)
        assert isinstance(got, dict), got
        return {name.removeprefix("a."): array for name, array in got.items()}

    return alone


# --- the deep-learning kernels --------------------------------------------------------------------------


def check_batchnorm(got, batch, features, length):
    mean, inverse_std = oracle_layers.batch_norm_statistics(got["x"].reshape(batch, features, length))
    np.testing.assert_allclose(got["mean"], mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(got["inverse_std"], inverse_std, rtol=3e-6)


def check_upsample(got, channels, height, width, out_height, out_width):
    wanted = oracle_layers.upsample(got["small"].reshape(channels, height, width), out_height, out_width)
    np.testing.assert_allclose(got["large"].reshape(wanted.shape), wanted, rtol=1e-6, atol=1e-6)


def check_im2col(got, channels, height, width, window_height=13, window_width=1, stride=1, dilation=1):
    wanted = oracle_layers.image_to_columns(
        got["image"].reshape(channels, height, width), (window_height, window_width), stride, dilation
    )
    np.testing.assert_array_equal(got["columns"].reshape(wanted.shape), wanted)


CHECKS = {"batchnorm": check_batchnorm, "upsample": check_upsample, "im2col": check_im2col}
LAYER_SIZES = [
    ("batchnorm", TINY["batchnorm"]),
    ("batchnorm", {"batch": 13, "features": 7, "length": 43}),
    ("batchnorm", {"batch": 33, "features": 3, "length": 1}),
    ("batchnorm", {"batch": 1, "features": 2, "length": 1}),
    ("upsample", TINY["upsample"]),
    ("upsample", {"channels": 1, "height": 37, "width": 53, "out_height": 111, "out_width": 97}),
    ("upsample", {"channels": 3, "height": 5, "width": 8, "out_height": 5, "out_width": 8}),
    ("upsample", {"channels": 1, "height": 20, "width": 3, "out_height": 7, "out_width": 1}),
    ("upsample", {"channels": 2, "height": 1, "width": 1, "out_height": 3, "out_width": 2}),
    ("im2col", TINY["im2col"]),
    ("im2col", {"channels": 3, "height": 31, "width": 67}),
    ("im2col", {"channels": 2, "height": 17, "width": 14, "window_height": 3, "window_width": 4, "stride": 2}),
    ("im2col", {"channels": 1, "height": 9, "width": 9, "window_height": 3, "window_width": 2, "dilation": 4}),
    ("im2col", {"channels": 1, "height": 13, "width": 1}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "sizes"), LAYER_SIZES)
def test_a_layer_matches_numpy_at_every_block_size(alone, kernel, sizes):
    for threads in (None, 32, 96, 128, 896, 1024):
        CHECKS[kernel](alone(kernel, sizes, threads), **sizes)


@pytest.mark.parametrize("kernel", CHECKS)
def test_a_layer_does_not_depend_on_its_grid(alone, kernel):
    """Fewer blocks do the work in more steps, in any order of threads."""
    for blocks, order in ((1, 0), (3, 5)):
        CHECKS[kernel](alone(kernel, TINY[kernel], 128, blocks=blocks, order=order), **TINY[kernel])


@pytest.mark.parametrize("kernel", CHECKS)
def test_a_layer_is_right_at_its_odd_sizes(alone, slots, kernel):
    odd = slots(kernel, {}).slot("a").kernel.odd
    CHECKS[kernel](alone(kernel, odd, 384), **odd)


def test_windows_larger_than_their_plane_are_refused(parse):
    """In both directions: the number of windows would come out positive."""
    sizes = {"im2col.height": 5, "im2col.width": 3, "im2col.window_height": 13, "im2col.window_width": 9}
    with pytest.raises(RequestError, match="does not fit uint32"):
        parse("hist", "im2col", sizes=sizes)


def test_statistics_of_values_far_from_zero(alone, tmp_path):
    """The sum of squares minus the square of the sum would have no digit left."""
    for suffix in ("cu", "yaml"):
        text = (KERNELS / f"batchnorm.{suffix}").read_text()
        (tmp_path / f"batchnorm.{suffix}").write_text(text.replace("{normal: [1, 2]}", "{normal: [5000, 1]}"))
    sizes = {"batch": 8, "features": 3, "length": 100}
    got = alone("./batchnorm.yaml", sizes)
    mean, inverse_std = oracle_layers.batch_norm_statistics(got["x"].reshape(8, 3, 100))
    assert mean.min() > 4990
    np.testing.assert_allclose(got["mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(got["inverse_std"], inverse_std, rtol=1e-3)


# --- the hash kernels -----------------------------------------------------------------------------------


def tried(first, sizes):
    """The nonces that each thread tries: rounds x threads."""
    threads = 128 * sizes["blocks"]
    return first + np.arange(sizes["rounds"] * threads, dtype=first.dtype).reshape(sizes["rounds"], threads)


def check_search(got, nonces, value):
    """`value` of a nonce is what a thread keeps the lowest of."""
    values = np.array([value(nonce) for nonce in nonces.ravel()], np.uint64).reshape(nonces.shape)
    at = values.argmin(axis=0)[None]
    np.testing.assert_array_equal(got["lowest"], np.take_along_axis(values, at, axis=0)[0])
    np.testing.assert_array_equal(got["nonce"], np.take_along_axis(nonces, at, axis=0)[0])


def little_endian(digest):
    """The highest 64 bits of a digest that is read as a little-endian number."""
    return int.from_bytes(digest[-8:], "little")


def big_endian(digest):
    return int.from_bytes(digest[:8], "big")


SEARCHES = [{"blocks": 1, "rounds": 1}, {"blocks": 5, "rounds": 3}]


@pytest.mark.parametrize("sizes", SEARCHES, ids=str)
def test_sha256_matches_hashlib(alone, sizes):
    got = alone("sha256", sizes)
    header = got["header"].astype("<u4").tobytes()

    def value(nonce):
        once = hashlib.sha256(header[:76] + int(nonce).to_bytes(4, "little")).digest()
        return little_endian(hashlib.sha256(once).digest())

    check_search(got, tried(got["header"][19:], sizes), value)


@pytest.mark.parametrize("sizes", SEARCHES, ids=str)
def test_blake2b_matches_hashlib(alone, sizes):
    got = alone("blake2b", sizes)
    message = got["message"].astype("<u4").tobytes()

    def value(nonce):
        text = message[:32] + int(nonce).to_bytes(8, "little") + message[40:]
        return big_endian(hashlib.blake2b(text, digest_size=32).digest())

    check_search(got, tried(np.frombuffer(message, "<u8")[4:5], sizes), value)


def test_the_oracle_of_blake256_has_the_published_digests():
    """SHA-3 proposal BLAKE, appendix: one zero byte, and 72 of them, which take two blocks."""
    for length, digest in (
        (1, "0ce8d4ef4dd7cd8d62dfded9d4edb0a774ae6a41929a74da23109e8f11139c87"),
        (72, "d419bad32d504fb7d44d460c42c5593fe544fa4c135dec31e21bd9abdcc22d41"),
    ):
        assert oracle_blake.blake256(np.zeros((1, length), np.uint8)).tobytes().hex() == digest


@pytest.mark.parametrize("sizes", SEARCHES, ids=str)
def test_blake256_matches_its_definition(alone, sizes):
    got = alone("blake256", sizes)
    nonces = tried(got["header"][19:], sizes)
    headers = np.tile(got["header"].astype("<u4"), (nonces.size, 1))
    headers[:, 19] = nonces.ravel()
    digests = dict(zip(nonces.ravel(), oracle_blake.blake256(headers.view(np.uint8)), strict=True))
    check_search(got, nonces, lambda nonce: little_endian(digests[nonce].tobytes()))


def test_the_oracle_of_keccak_is_sha3_but_for_its_padding():
    for length in (0, 1, 40, 71, 72, 96, 135, 136, 300):
        text = bytes(range(256))[:length] + bytes(max(0, length - 256))
        message = np.frombuffer(text, np.uint8)[None]
        for bits, standard in ((256, hashlib.sha3_256), (512, hashlib.sha3_512)):
            digest = oracle_ethash.keccak(message, bits, oracle_ethash.SHA3)
            assert digest.tobytes() == standard(text).digest()
    nothing = oracle_ethash.keccak(np.zeros((1, 0), np.uint8), 256)
    assert nothing.tobytes().hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [{"blocks": 1, "rounds": 1, "pages": 1}, {"blocks": 3, "rounds": 3, "pages": 1009}], ids=str
)
def test_ethash_matches_its_specification(alone, sizes):
    got = alone("ethash", sizes)
    header = got["header"].astype("<u4").tobytes()
    nonces = tried(np.frombuffer(header, "<u8")[4:], sizes)
    _, results = oracle_ethash.hashimoto(header[:32], nonces.ravel(), got["dag"].reshape(-1, 32))
    digests = dict(zip(nonces.ravel(), results, strict=True))
    check_search(got, nonces, lambda nonce: big_endian(digests[nonce].tobytes()))


@pytest.mark.slow
def test_ethash_on_a_dag_of_its_own(alone, tmp_path):
    """The digests that the reference clients publish for a cache of 1 KB and a data set of 32 KB."""
    header = bytes.fromhex("c9149cc0386e689d789a1c2f3d5d169a61a6218ed30e74414dc736e442ef3d1f")
    dag = oracle_ethash.make_dag(bytes(32), cache_rows=16, pages=256)
    mix_digest, result = oracle_ethash.hashimoto(header, np.array([0], np.uint64), dag)
    assert mix_digest.tobytes().hex() == "e4073cffaef931d37117cefd9afd27ea0f1cad6a981dd2605c4a1ac97c519800"
    assert result.tobytes().hex() == "d3539235ee2e6f8db665c0a72169f55b7f6c605712330b778ec3944f0eb5a557"

    np.save(tmp_path / "header.npy", np.frombuffer(header + bytes(8), "<u4"))
    np.save(tmp_path / "dag.npy", dag.ravel())
    filled = (KERNELS / "ethash.yaml").read_text()
    for name in ("header", "dag"):
        filled = filled.replace("{integers: [0, 4294967295]}", f"{{file: {name}.npy}}", 1)
    (tmp_path / "ethash.yaml").write_text(filled)
    (tmp_path / "ethash.cu").write_text((KERNELS / "ethash.cu").read_text())
    got = alone("./ethash.yaml", {"blocks": 1, "rounds": 1, "pages": 256})
    assert (got["lowest"][0], got["nonce"][0]) == (big_endian(result.tobytes()), 0)


# --- the pairs ------------------------------------------------------------------------------------------


def fusion(pair):
    """One way to fuse a pair: uneven where the kernels can be stretched."""
    a, b = (384, 256) if pair[0] in LAYERS else (128, 128)
    return Config.of({"kind": "horizontal", "threads.a": a, "threads.b": b, "order": "ba"})


def emitted(strategy, analysis, config):
    assert analysis.rejections == ()
    program = strategy.emit(analysis, config, {})
    assert isinstance(program, Program), program
    return program


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_pair_gives_the_same_bits_fused(analyse, strategy, same, pair):
    analysis = analyse(*pair, sizes=of_slots(pair, TINY))
    config = fusion(pair)
    same(emitted(strategy, analysis, config), strategy.unfused(analysis, config))


@pytest.mark.parametrize("name", NEW)
def test_the_launch_of_the_paper(slots, name):
    """Grids of 10000 blocks at the block sizes of section IV; 8192 x 128 threads for the hashes."""
    slot = slots(name, {}).slot("a")
    (block,) = slot.kernel.block.shapes
    launch = shape_of(slot, block)
    wanted = {"batchnorm": (32, 16, 1), **dict.fromkeys(HASHES, (128, 1, 1))}.get(name, (512, 1, 1))
    assert (block, launch.blocks) == (wanted, 8192 if name in HASHES else 10_000)
    assert (slot.kernel.block.tune is None) == (name in HASHES)
    assert slot.kernel.odd


# --- nvcc -----------------------------------------------------------------------------------------------


ARCHITECTURES = [(pair, "sm_90") for pair in PAIRS]
ARCHITECTURES += [(pair, arch) for pair in (PAIRS[0], PAIRS[-1]) for arch in ("sm_80", "sm_100")]


@pytest.mark.needs_nvcc
@pytest.mark.parametrize(("pair", "arch"), ARCHITECTURES, ids=str)
@pytest.mark.sampled(8)
def test_nvcc_compiles_a_pair_into_registers(analyse, strategy, tmp_path, pair, arch):
    program = emitted(strategy, analyse(*pair), fusion(pair))
    ptx, said = assembled(program.sources[0], tmp_path, arch, *STRICT, "-Xcompiler", "-Wextra")
    assert verify.lint(ptx) == ()
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said
