import pytest

from fusiond.model.errors import RequestError
from fusiond.model.gpu.limits import ARCHS, limits


def test_hopper_as_the_programming_guide_has_it() -> None:
    found = limits("sm_90")
    assert (found.threads_per_sm, found.blocks_per_sm, found.registers_per_sm) == (2048, 32, 65536)
    assert (found.shared_bytes_per_sm, found.shared_bytes_per_block) == (228 * 1024, 227 * 1024)
    assert found.multiprocessors == 132


def test_turing_reserves_no_shared_memory() -> None:
    found = limits("sm_75")
    assert (found.shared_bytes_per_block, found.shared_bytes_reserved) == (64 * 1024, 0)
    assert found.shared_granularity_bytes == 256


def test_multiprocessors_are_the_boards() -> None:
    assert limits("sm_90", multiprocessors=114).multiprocessors == 114


def test_variants_of_an_architecture_are_the_same_silicon() -> None:
    assert limits("sm_90a") == limits("sm_90")


@pytest.mark.parametrize("arch", ["sm_61", "90", "", "cpu"])
def test_an_unknown_architecture_is_answered_with_the_known_ones(arch: str) -> None:
    with pytest.raises(RequestError, match="sm_75, sm_80"):
        limits(arch)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_row_is_consistent(arch: str) -> None:
    found = limits(arch)
    assert found.shared_bytes_per_block + found.shared_bytes_reserved == found.shared_bytes_per_sm
    assert found.threads_per_sm % found.warp_size == 0
    assert found.barriers_per_sm == 0 or found.barriers_per_sm >= found.barriers
