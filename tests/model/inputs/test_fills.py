"""What buffers hold: drawn from seed and name, within bounds, and never the poison."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from fusiond.devices.compare import compare
from fusiond.model.errors import RequestError
from fusiond.model.inputs import fills
from fusiond.model.inputs.fills import fill, initial, poison, recipe
from fusiond.model.keys import text_key
from fusiond.model.language import narrow
from fusiond.model.language.dtypes import DTYPES as ALL_DTYPES
from fusiond.model.language.narrow import NARROW
from fusiond.model.program import Buffer, Compare, Fill, Role, default_compare

FLOATS = ("float16", "float32", "float64")
DTYPES = tuple(name for name in ALL_DTYPES if name not in NARROW)  # which have tests of their own
INTEGERS = tuple(name for name in DTYPES if "int" in name)

GOLDEN = {
    ("float16", "uniform"): "06913d6ec1763f3d56fa61b5239bcdbd",
    ("bfloat16", "uniform"): "1f704a87b4048539786b0f0750580e0e",
    ("float32", "uniform"): "c4ab4b954d381a036fa5a977493ec3de",
    ("float64", "uniform"): "f76e9e2c777d5119723d67b9715d4792",
    ("float32", "normal"): "8a5fb66776cdc3fb91c610887c59ce67",
    ("float64", "normal"): "68b5765f8559ea7ae9f0b2fb8349de63",
    ("int32", "integers"): "0fb2bb4fc1901258df342f5c457f438a",
    ("uint8", "integers"): "2ccb999d978620a29835b734438d44d4",
    ("int64", "integers"): "da0036b2fd1a8be5b52ee0c12816a3de",
}
QUANTILES = "42cd95a4446e1cd9483feaac5075af62"


def buffer(dtype: str = "float32", elements: int = 1000, role: Role = Role.INPUT, **spec: object) -> Buffer:
    return Buffer(name="x", dtype=dtype, elements=elements, role=role, fill=Fill(**spec))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["zeros", "constant", "iota", "integers"])
def test_shape_and_dtype_are_the_buffers(dtype: str, kind: str) -> None:
    data = fill(buffer(dtype, 100, kind=kind, low=0, high=1), 0)
    assert data.shape == (100,)
    assert data.dtype == np.dtype(dtype)
    if kind == "zeros":
        assert not data.any()
    if kind == "iota":
        np.testing.assert_array_equal(data, np.arange(100).astype(dtype))


@given(st.sampled_from(FLOATS), st.floats(-100, 100), st.floats(0.01, 100), st.integers(0, 2**32))
def test_uniform_is_half_open_in_every_float(dtype: str, low: float, width: float, seed: int) -> None:
    least, most = np.dtype(dtype).type(low), np.dtype(dtype).type(low + width)
    assume(least < most)  # else no value of this type lies between
    data = fill(buffer(dtype, 2000, kind="uniform", low=low, high=low + width), seed)
    assert data.min() >= least
    assert data.max() < most


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_include_both_ends(dtype: str) -> None:
    data = fill(buffer(dtype, 1000, kind="integers", low=3, high=6), 1)
    assert set(data.tolist()) == {3, 4, 5, 6}


def test_equal_name_and_seed_give_equal_data_whatever_the_role() -> None:
    one = buffer(kind="uniform")
    other = Buffer(name="x", dtype="float32", elements=1000, role=Role.INOUT, fill=Fill(kind="uniform"), arena="a")
    np.testing.assert_array_equal(fill(one, 3), fill(other, 3))
    assert not np.array_equal(fill(one, 3), fill(one, 4))
    renamed = Buffer(name="y", dtype="float32", elements=1000, role=Role.INPUT, fill=Fill(kind="uniform"))
    assert abs(np.corrcoef(fill(one, 3), fill(renamed, 3))[0, 1]) < 0.2


@pytest.mark.parametrize("role", Role)
def test_only_what_is_read_is_filled(role: Role) -> None:
    each = buffer("int32", role=role, kind="constant", low=7)
    data = initial(each, 0)
    assert bool((data == 7).all()) is (role in (Role.INPUT, Role.INOUT))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("role", [Role.OUTPUT, Role.SCRATCH])
def test_poison_is_nothing_that_a_kernel_would_write(dtype: str, role: Role) -> None:
    for seed in (0, 1):
        data = poison(buffer(dtype, 10, role), seed)
        assert data.shape == (10,)
        assert data.dtype == np.dtype(dtype)
        if dtype in FLOATS and seed == 0:
            assert np.isnan(data).all()
        elif dtype != "bool":
            assert not (data == 0).any()
    kinds = [poison(buffer(dtype, 10, role), kind) for kind in (0, 1)]
    assert not (kinds[0] == kinds[1]).any()


def test_scratch_has_a_poison_that_a_maximum_swallows_and_one_that_it_does_not() -> None:
    each = buffer("float32", 4, Role.SCRATCH)
    assert np.isnan(poison(each, 0)).all()
    assert (poison(each, 1) > 1e30).all()


def test_a_file_must_fit(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(6, dtype=np.float32).reshape(2, 3))
    digest = text_key(path.read_bytes())
    data = fill(buffer("float32", 6, kind="file", file=str(path), digest=digest), 0)
    np.testing.assert_array_equal(data, np.arange(6, dtype=np.float32))
    part = fill(buffer("float32", 4, kind="file", file=str(path), digest=digest), 0)  # at odd sizes
    np.testing.assert_array_equal(part, np.arange(4, dtype=np.float32))
    for wrong in (buffer("float32", 7, kind="file", file=str(path)), buffer("int32", 6, kind="file", file=str(path))):
        with pytest.raises(RequestError, match="are wanted"):
            fill(wrong, 0)
    path.write_bytes(b"not numpy")
    with pytest.raises(RequestError, match="cannot read"):
        fill(buffer("float32", 6, kind="file", file=str(path)), 0)
    with pytest.raises(RequestError, match="cannot read"):
        fill(buffer("float32", 6, kind="file", file=str(tmp_path / "none.npy")), 0)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(RequestError, match="cannot read"):
        fill(buffer("float32", 1, kind="file", file=str(path)), 0)


# --- the generator ---------------------------------------------------------------------------------------

VECTORS = (
    # Random123's kat_vectors, philox4x64 with 10 rounds: counter, key, result, lower words first.
    ((0, 0, 0, 0), (0, 0), "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b"),
    ((2**64 - 1,) * 4, (2**64 - 1,) * 2, "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0"),
    ((0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
     (0x452821E638D01377, 0xBE5466CF34E90C6C), "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6"),
)  # fmt: skip


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_numpy_s_philox_gives_the_published_vectors(
    counter: tuple[int, ...], key: tuple[int, int], expected: str
) -> None:
    before = (sum(each << 64 * place for place, each in enumerate(counter)) - 1) % 2**256
    words = np.random.Philox(key=np.array(key, np.uint64), counter=before).random_raw(4)
    assert [f"{each:016x}" for each in words.tolist()] == expected.split()


def test_equal_data_for_ever() -> None:
    """Golden values. Where they have to change, keys.GENERATOR has to change with them."""
    found = {
        (dtype, kind): text_key(fill(buffer(dtype, 100_003, kind=kind, low=low, high=high), 7).tobytes())
        for dtype, kind, low, high in (("float16", "uniform", -1, 1), ("bfloat16", "uniform", -1, 1),
                                       ("float32", "uniform", 0, 3), ("float64", "uniform", 0, 1),
                                       ("float32", "normal", 0, 1), ("float64", "normal", 5, 0.1),
                                       ("int32", "integers", -5, 9), ("uint8", "integers", 0, 255),
                                       ("int64", "integers", -(2**62), 2**61))
    }  # fmt: skip
    assert found == GOLDEN
    assert text_key(fills.quantiles().tobytes()) == QUANTILES


@pytest.mark.parametrize("kind", fills.DRAWN)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_an_element_does_not_depend_on_how_many_there_are(dtype: str, kind: str) -> None:
    whole = fill(buffer(dtype, 100_000, kind=kind, low=0, high=70_000), 5)
    for elements in (1, 7, 8, 9, 32_767, 65_537):
        np.testing.assert_array_equal(fill(buffer(dtype, elements, kind=kind, low=0, high=70_000), 5), whole[:elements])


@given(
    st.sampled_from(["int64", "uint64"]).flatmap(
        lambda name: st.tuples(
            st.just(name), *(st.integers(int(np.iinfo(name).min), int(np.iinfo(name).max)) for _ in range(2))
        )
    ),
    st.integers(0, 2**32),
)
def test_64_bit_integers_are_the_word_s_share_of_the_range(given_: tuple[str, int, int], seed: int) -> None:
    dtype, low, high = given_[0], min(given_[1:]), max(given_[1:])
    each = buffer(dtype, 50, kind="integers", low=low, high=high)
    how = recipe(each, seed)
    words = np.random.Philox(key=np.array(how.key, np.uint64), counter=2**256 - 1).random_raw(56)
    if not how.wide:
        words = words.view(np.uint32)
    bits = 64 if how.wide else 32
    expected = [low + (int(word) * (high - low + 1) >> bits) for word in words[:50]]
    assert fill(each, seed).tolist() == expected


def test_the_full_range_of_64_bits() -> None:
    signed = fill(buffer("int64", 100_000, kind="integers", low=-(2**63), high=2**63 - 1), 0)
    unsigned = fill(buffer("uint64", 100_000, kind="integers", low=0, high=2**64 - 1), 0)
    assert signed.min() < -(2**63) + 2**50
    assert signed.max() > 2**63 - 2**50
    np.testing.assert_array_equal(unsigned, signed.view(np.uint64) ^ np.uint64(1 << 63))


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_tails_of_a_normal_fill(dtype: str) -> None:
    data = fill(buffer(dtype, 1_000_000, kind="normal", low=0.0, high=1.0), 1).astype(np.float64)
    for bound in (0.5, 1.0, 2.0, 3.0, 4.0):
        expected = 2 * stats.norm.sf(bound) * data.size
        beyond = np.count_nonzero(np.abs(data) > bound + (1e-3 * bound if dtype == "float16" else 0))
        assert abs(beyond - expected) < 5 * expected**0.5 + (0.02 * expected if dtype == "float16" else 0)
    assert abs(data.mean()) < 5e-3
    assert abs(np.mean(data**3)) < 0.02
    assert np.abs(data).max() < 6.5


def test_quantiles_are_those_of_the_normal_distribution() -> None:
    """Over all orders of magnitude of a word: the interpolation is right to 4e-5 where the distribution is smooth."""
    p = np.unique(np.concatenate([np.arange(300), np.geomspace(300, 2**31 - 1, 5000).astype(np.int64)]))
    words = p.astype(np.uint32)
    z = fills._quantile(words) / 2**fills.QUANTILE_BITS
    exact = stats.norm.isf((p + 0.5) / 2**32)
    np.testing.assert_allclose(z[p >= 128], exact[p >= 128], atol=4e-5)
    np.testing.assert_allclose(z[(p < 128) & (p > 0)], exact[(p < 128) & (p > 0)], atol=0.03)
    assert z[0] == pytest.approx(exact[0], abs=1e-6)
    np.testing.assert_array_equal(fills._quantile(words | np.uint32(1 << 31)), -fills._quantile(words))


# --- bfloat16 and floats of 8 bits ----------------------------------------------------------------------


CLOSE = default_compare("bfloat16")
BFLOAT = narrow.NARROW["bfloat16"]
EIGHT = {"float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}


def narrow_buffer(kind: str = "zeros", elements: int = 1000, compare: Compare = CLOSE, **fill: float) -> Buffer:
    return Buffer(
        name="b",
        dtype="bfloat16",
        elements=elements,
        role=Role.OUTPUT,
        fill=Fill(kind=kind, **fill),  # type: ignore[arg-type]
        compare=compare,
    )


def test_every_value_there_and_back() -> None:
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    values = BFLOAT.values(bits)
    with np.errstate(invalid="ignore"):
        expected = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(values, expected)
    real = ~np.isnan(values)
    np.testing.assert_array_equal(BFLOAT.bits(values)[real], bits[real])
    assert set(BFLOAT.bits(values)[~real].tolist()) == {0x7FFF}


@given(st.lists(st.floats(width=32), max_size=50))
def test_floats_are_rounded_to_nearest_even(values: list[float]) -> None:
    x = np.array(values, np.float32)
    x = x[~np.isnan(x)]
    with np.errstate(over="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(BFLOAT.bits(x), expected)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 0.0), (0.99, 1.0), (-3.0, -2.0), (1.0, 1.004)])
def test_uniform_fills_stay_within_their_range(low: float, high: float) -> None:
    values = BFLOAT.values(fill(narrow_buffer("uniform", 20_000, low=low, high=high), 3))
    lowest = BFLOAT.values(BFLOAT.bits(np.array([low])))[0]
    assert values.min() >= min(lowest, low)
    assert values.max() < high
    assert values.mean() == pytest.approx((low + high) / 2, abs=0.01 * (high - low) + 0.004 * abs(high))


def test_other_fills() -> None:
    np.testing.assert_array_equal(fill(narrow_buffer(), 0), np.zeros(1000, np.uint16))
    np.testing.assert_array_equal(BFLOAT.values(fill(narrow_buffer("constant", 5, low=2.5), 0)), np.full(5, 2.5))
    np.testing.assert_array_equal(BFLOAT.values(fill(narrow_buffer("iota", 200), 0)), np.arange(200))
    drawn = BFLOAT.values(fill(narrow_buffer("integers", 5000, low=-3, high=4), 1))
    assert set(drawn.tolist()) == set(range(-3, 5))
    assert abs(BFLOAT.values(fill(narrow_buffer("normal", 20_000, low=1, high=2), 1)).mean() - 1) < 0.05


def test_poison_is_wrong_in_both_kinds() -> None:
    one, other = (BFLOAT.values(poison(narrow_buffer(), kind)) for kind in (0, 1))
    assert np.isnan(one).all()
    assert (other > 1e30).all()
    assert initial(narrow_buffer(), 0).dtype == np.uint16


def test_values_are_compared_and_not_bits() -> None:
    def bits(*values: float) -> np.ndarray:
        return BFLOAT.bits(np.array(values))

    def equal(a: np.ndarray, b: np.ndarray, how: Compare = CLOSE) -> bool:
        return compare(narrow_buffer(compare=how), a, b).equal

    assert equal(bits(1.0, np.nan, np.inf, 0.0), bits(1.0078125, np.nan, np.inf, -0.0))
    assert not equal(bits(1.0), bits(1.1))
    assert not equal(bits(1.0), bits(np.nan))
    assert not equal(bits(1.0), bits(1.0078125), Compare())
    assert equal(bits(0.0, np.nan), bits(-0.0, np.nan), Compare())
    found = compare(narrow_buffer(), bits(2.0, 1.0), bits(2.0, 3.0))
    assert found.detail == "b: 1 of 2 differ, first at [1]: 3.0 instead of 1.0"


# --- 8 bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", EIGHT)
def test_every_value_of_8_bits_there_and_back(dtype: str) -> None:
    bits = np.arange(256).astype(np.uint8)
    values = narrow.NARROW[dtype].values(bits)
    expected = bits.view(EIGHT[dtype]).astype(np.float32)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(np.signbit(values[~np.isnan(values)]), np.signbit(expected[~np.isnan(values)]))
    finite = np.isfinite(values)
    np.testing.assert_array_equal(narrow.NARROW[dtype].bits(values)[finite], bits[finite])


@pytest.mark.parametrize("dtype", EIGHT)
@given(
    st.lists(
        st.floats(width=32) | st.floats(-500, 500, width=32) | st.floats(-0.015625, 0.015625, width=32), max_size=50
    )
)
def test_8_bits_are_rounded_to_nearest_even_and_saturate(dtype: str, values: list[float]) -> None:
    x = np.array(values, np.float32)
    largest = float(ml_dtypes.finfo(EIGHT[dtype]).max)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = np.clip(x, -largest, largest).astype(EIGHT[dtype]).astype(np.float32)
    found = narrow.NARROW[dtype].values(narrow.NARROW[dtype].bits(x))
    np.testing.assert_array_equal(found, expected)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(expected[known]))


@pytest.mark.parametrize("dtype", EIGHT)
def test_8_bits_are_compared_as_what_they_are(dtype: str) -> None:
    made = Buffer(name="b", dtype=dtype, elements=4, role=Role.OUTPUT, compare=default_compare(dtype))
    of = narrow.NARROW[dtype].bits
    one = of(np.array([1.0, -0.0, np.nan, 100.0]))
    assert compare(made, one, of(np.array([1.0, 0.0, np.nan, 100.0]))).equal
    found = compare(made, one, of(np.array([1.0, 0.0, np.nan, 7.0])))
    assert not found.equal
    assert "first at [3]: 7.0 instead of" in found.detail
