"""The nouns: keys of workloads and devices, configs, medians."""

from __future__ import annotations

import dataclasses
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.model.nouns import Config, DeviceInfo, DeviceLimits, Job, Workload, frozen
from fusiond.model.outcomes import median

LIMITS = DeviceLimits(
    multiprocessors=8, shared_bytes_per_sm=1, shared_bytes_per_block=1, threads_per_sm=2048, blocks_per_sm=32
)
WORKLOAD = Workload(
    strategy="toy", strategy_version=1, name="a,b", members=("a", "b"), sizes={"n": 3}, content=[1], payload=None
)
DEVICE = DeviceInfo(name="cuda:0", model="G", arch="sm_90", memory_bytes=80 << 30, uuid="u", limits=LIMITS)


def test_frozen_is_a_read_only_copy() -> None:
    source = {"a": 1}
    copy = frozen(source)
    source["a"] = 2
    assert copy["a"] == 1
    with pytest.raises(TypeError):
        copy["a"] = 3  # type: ignore[index]
    assert dict(frozen()) == {}


@pytest.mark.parametrize(
    ("field", "value", "key", "family"),
    [
        ("sizes", {"n": 4}, True, False),
        ("content", [2], True, True),
        ("name", "a,c", True, True),
        ("strategy_version", 2, True, True),
        ("strategy", "other", True, True),
        ("payload", 5, False, False),
        ("source_hashes", {"f": "h"}, False, False),
    ],
)
def test_what_changes_a_workloads_keys(field: str, value: object, key: bool, family: bool) -> None:
    other = dataclasses.replace(WORKLOAD, **{field: value})  # type: ignore[arg-type]
    assert (other.key != WORKLOAD.key) is key
    assert (other.family_key != WORKLOAD.family_key) is family


@pytest.mark.parametrize(
    ("field", "value", "same"),
    [
        ("uuid", "other", True),
        ("name", "cuda:1", True),
        ("env", {"driver": "2"}, True),
        ("memory_bytes", (80 << 30) + 12345, True),
        ("model", "H", False),
        ("mig", "1g.10gb", False),
        ("evidence", "emulated", False),
        ("limits", dataclasses.replace(LIMITS, multiprocessors=9), False),
    ],
)
def test_two_boards_of_one_model_share_a_key(field: str, value: object, same: bool) -> None:
    other = dataclasses.replace(DEVICE, **{field: value})  # type: ignore[arg-type]
    assert (other.key == DEVICE.key) is same
    assert (other.env_key == DEVICE.env_key) is (field != "env")


@given(st.dictionaries(st.text(min_size=1), st.integers() | st.text() | st.none() | st.booleans(), max_size=5))
def test_a_config_is_its_values_whatever_their_order(values: dict[str, object]) -> None:
    config = Config.of(values)  # type: ignore[arg-type]
    assert dict(config) == values
    assert list(config) == sorted(values)
    assert config == Config.of(dict(reversed(values.items())))  # type: ignore[arg-type]
    assert len(config) == len(values)
    assert hash(config) == hash(Config.of(dict(config)))


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=9))
def test_median_is_that_of_statistics(values: list[float]) -> None:
    assert median(tuple(values)) == pytest.approx(statistics.median(values))


def test_where_names_file_line_and_key() -> None:
    job = Job(strategy="toy", request={}, sizes={}, path="j.yaml", lines={"pair": 3})
    assert job.where("pair") == "j.yaml:3: pair"
    assert job.where("sizes") == "j.yaml: sizes"
