"""What is read equals what was written, for any value: the store decides nothing about a noun's content."""

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond import __version__
from fusiond.model.nouns import Config, DeviceInfo, Job, Rejection, Workload, frozen
from fusiond.model.outcomes import Ask, Measurement, Record, Trial
from fusiond.store import lookup
from fusiond.store.database import Store

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COUNTS = st.integers(min_value=0, max_value=2**62)
FLOATS = st.floats(allow_nan=False)
TIMES = st.floats(min_value=1e-3, max_value=1e9)
VALUES = st.none() | st.booleans() | st.integers() | FLOATS | TEXTS
SIZES = st.dictionaries(TEXTS, st.integers(), max_size=4).map(frozen)
YAML = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))

CONFIGS = st.dictionaries(TEXTS, VALUES, max_size=4).map(Config.of)
BY_TYPE: dict[object, st.SearchStrategy[Any]] = {
    str: TEXTS, int: COUNTS, float: TIMES, bool: st.booleans(), type(None): st.none(), Config: CONFIGS,
}  # fmt: skip


def nouns(kind: type, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Any value of a dataclass. Fields are drawn by their types, so that one added to a noun is tested unasked."""
    hints = typing.get_type_hints(kind)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return st.builds(kind, **{name: given[name] if name in given else _of_type(hint) for name, hint in fields.items()})


def _of_type(hint: Any) -> st.SearchStrategy[Any]:
    if hint in BY_TYPE:
        return BY_TYPE[hint]
    parts = typing.get_args(hint)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return st.one_of([_of_type(part) for part in parts])
    if typing.get_origin(hint) is tuple:
        if parts[1:] == (...,):
            return st.lists(_of_type(parts[0]), max_size=3).map(tuple)
        return st.tuples(*(_of_type(part) for part in parts))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    return nouns(hint)


MAPPINGS = {
    name: st.dictionaries(TEXTS, values, max_size=3).map(frozen)
    for name, values in {"texts": TEXTS, "lines": COUNTS, "values": VALUES, "yaml": YAML}.items()
}
JOBS = nouns(
    Job, request=MAPPINGS["yaml"], sizes=SIZES, lines=MAPPINGS["lines"], files=MAPPINGS["texts"],
    within=MAPPINGS["texts"],
)  # fmt: skip
MEASUREMENTS = nouns(Measurement, span_us=st.lists(TIMES, min_size=1, max_size=4).map(tuple))
TRIALS = nouns(
    Trial, role=st.just("candidate"), ratio=st.none() | FLOATS, resolved=MAPPINGS["values"],
    measurement=st.none() | MEASUREMENTS,
)  # fmt: skip

several = settings(max_examples=60, deadline=None)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("store") / "fusiond.sqlite") as store:
        yield store


def new_job(store: Store, job: Job, sizes: Mapping[str, int] | None = None) -> tuple[str, Workload]:
    """A job that no other example has, and its workload."""
    number = len(store.jobs(limit=1_000_000))
    workload = Workload(
        strategy="s", strategy_version=1, name="n", members=("b", "a"), sizes=sizes or {}, content=number, payload=None
    )
    return store.submit(job, workload).id, workload


@given(job=JOBS)
@several
def test_jobs(shared: Store, job: Job) -> None:
    id, _ = new_job(shared, job)
    assert shared.load_job(id) == job
    row = shared.job(id)
    assert row is not None
    assert (row.search, row.device) == (job.search, job.device)


@pytest.mark.slow
@given(trials=st.lists(TRIALS, unique_by=(lambda trial: trial.sequence, lambda trial: trial.config.key), max_size=4))
@several
def test_trials(shared: Store, trials: list[Trial]) -> None:
    id, _ = new_job(shared, Job(strategy="s", request={}, sizes={}))
    for trial in trials:
        shared.add_trial(id, trial, device_key="d", gpu_uuid="", env_key="e", against=None)
    found = shared.trials(id)
    assert found == sorted(trials, key=lambda trial: trial.sequence)
    assert [kinds(trial.config) for trial in found] == [
        kinds(trial.config) for trial in sorted(trials, key=lambda trial: trial.sequence)
    ]


@pytest.mark.slow
@given(
    asks=st.lists(nouns(Ask), unique_by=lambda ask: ask.sequence, max_size=4),
    rejections=st.lists(nouns(Rejection), unique=True, max_size=4),
    finals=st.lists(MEASUREMENTS, max_size=4),
)
@several
def test_the_rest_of_a_study(
    shared: Store, asks: list[Ask], rejections: list[Rejection], finals: list[Measurement]
) -> None:
    id, _ = new_job(shared, Job(strategy="s", request={}, sizes={}))
    shared.add_asks(id, asks)
    shared.add_rejections(id, rejections)
    for process, measurement in enumerate(finals):
        shared.add_finals(id, process, {"p": measurement})
    assert shared.asks(id) == sorted(asks, key=lambda ask: ask.sequence)
    assert shared.rejections(id) == rejections
    assert shared.finals(id).get("p", {}) == dict(enumerate(finals))


@pytest.mark.slow
@given(info=nouns(DeviceInfo, env=MAPPINGS["texts"]))
@several
def test_devices(shared: Store, info: DeviceInfo) -> None:
    shared.save_device(info)
    assert info in [row.info for row in shared.devices()]


@pytest.mark.slow
@given(data=st.data(), sizes=SIZES)
@several
def test_records(shared: Store, data: st.DataObject, sizes: Mapping[str, int]) -> None:
    id, workload = new_job(shared, Job(strategy="s", request={}, sizes={}), sizes)
    record: Record = data.draw(
        nouns(
            Record,
            strategy=st.just("s"),
            workload_name=st.just("n"),
            workload_key=st.just(workload.key),
            sizes=st.just(sizes),
            strategy_version=st.just(workload.strategy_version),
            content_key=st.just(workload.content_key),
            speedup=st.none() | FLOATS,
            figures=st.dictionaries(st.sampled_from(["fusable_ratio", "library_us"]), FLOATS),
            counted=st.lists(
                st.dictionaries(st.sampled_from(["launch", "dram_bytes"]), st.none() | st.integers() | st.text())
            ).map(tuple),
        )
    )
    shared.save_record(record, job=id, source_hashes={})
    assert shared.record(record.workload_key, record.device_key, record.cache) == record


@given(config=CONFIGS)
@several
def test_a_looked_up_config_is_the_config(shared: Store, config: Config, make: Any) -> None:
    record = make.known(shared, make.workload("looked,up"), make.device(), config=config)
    found = lookup.best(Path(shared.path), name="up,looked", driver=None, version=__version__)
    assert found is not None
    assert Config.of(found["config"]) == record.config
    json.dumps(found)


def kinds(config: Config) -> list[type]:
    return [type(value) for value in config.values()]
