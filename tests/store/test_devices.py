"""Devices, and the boards that are sick."""

from typing import Any

import pytest

from fusiond.model.errors import StoreError
from fusiond.store.database import Store


def test_two_boards_of_one_model_are_two_rows_with_one_key(store: Store, make: Any) -> None:
    first, second = make.device("cuda:0"), make.device("cuda:1")
    assert first.key == second.key
    store.save_device(first)
    store.save_device(second)
    assert {row.info.name for row in store.devices()} == {"cuda:0", "cuda:1"}


def test_a_name_belongs_to_the_board_that_has_it_now(store: Store, make: Any) -> None:
    store.save_device(make.device("cuda:0", uuid="old"))
    store.save_device(make.device("cuda:0", uuid="new"))
    assert {row.info.uuid: row.info.name for row in store.devices()} == {"old": "", "new": "cuda:0"}


def test_a_board_is_sick_until_it_is_well(store: Store, make: Any) -> None:
    info = make.device()
    store.save_device(info)
    assert store.sick(info.key, info.uuid) is None
    store.set_sick(info.key, info.uuid, "three deaths on a known good baseline")
    store.save_device(info)
    assert store.sick(info.key, info.uuid) == "three deaths on a known good baseline"
    assert store.devices()[0].sick is not None
    store.set_sick(info.key, info.uuid, None)
    assert store.sick(info.key, info.uuid) is None
    store.set_sick(info.key, "GPU-never-seen", "why")
    assert {row.info.uuid: row.sick for row in store.devices()} == {info.uuid: None, "GPU-never-seen": "why"}
    with pytest.raises(StoreError, match="not stored"):
        store.set_sick("unknown", "", "why")
