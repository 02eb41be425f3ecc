"""The nouns: keys of workloads and devices, configs, medians."""

import dataclasses
import enum
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusiond.model.keys import canonical, content_key, plain, text_key
from fusiond.model.nouns import Config, DeviceInfo, DeviceLimits, Job, Workload, frozen
from fusiond.model.outcomes import Outcome, median

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
        ("sizes", {"n": 4}, True, False), ("content", [2], True, True), ("name", "a,c", True, True),
        ("strategy_version", 2, True, True), ("strategy", "other", True, True), ("payload", 5, False, False),
        ("source_hashes", {"f": "h"}, False, False),
    ],
)  # fmt: skip
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


# --- content keys ---------------------------------------------------------------------------------------


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_a_json_value_is_its_own_plain_form(value: object) -> None:
    assert plain(value) == value
    assert json.loads(canonical(value)) == value


def test_types_are_told_apart() -> None:
    values = [1, 1.0, True, "1", None, [1], {"1": 1}]
    assert len({content_key(each) for each in values}) == len(values)


def test_enums_dataclasses_tuples_and_sets() -> None:
    class Number(enum.Enum):
        ONE = 1

    @dataclass(frozen=True)
    class Point:
        x: int
        kind: Outcome

    assert plain(Number.ONE) == 1
    assert plain(Point(3, Outcome.MEASURED)) == {"x": 3, "kind": "measured"}
    assert type(plain(Outcome.MEASURED)) is str
    assert plain((1, (2, 3))) == [1, [2, 3]]
    assert plain({3, 1, 2}) == [1, 2, 3]
    assert canonical(frozenset({"b", "a"})) == '["a","b"]'


@pytest.mark.parametrize("value", [object(), b"bytes", 1j, Outcome, lambda: 0])
def test_what_has_no_one_form_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="no canonical form"):
        content_key(value)


def test_text_key_is_blake2b() -> None:
    assert text_key("") == "cae66941d9efbd404e4d88758ea67670"
    assert text_key("é") == text_key("é".encode())
    assert len(content_key([1, 2])) == 32


def test_keys_are_equal_in_another_process() -> None:
    code = (
        "from fusiond.model.nouns import Config; from fusiond.model.keys import content_key;"
        "print(Config.of({'b': 1, 'a': 'x', 'c': None}).key, content_key({'s': {'q', 'w', 'e', 'r', 't', 'y'}}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == [Config.of({"c": None, "a": "x", "b": 1}).key, content_key({"s": {"y", "t", "r", "e", "w", "q"}})]
