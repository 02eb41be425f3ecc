"""`best` against its rules written out in plain Python, over any contents of a store."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusiond.model.errors import RequestError
from fusiond.model.nouns import DeviceInfo, Workload
from fusiond.model.outcomes import Record
from fusiond.model.program import Program
from fusiond.store import lookup
from fusiond.store.database import Store

NAMES = ("a", "a,b", "b,b")
SIZES = (1, 2, 3, 8, 100)
DEVICES = ("cpu", "cuda:0", "cuda:1", "old")
DRIVERS = ("1", "2")
KEPT = Program(name="kept", buffers=(), sources=(), steps=())


@dataclass(frozen=True)
class Saved:
    """One call of save_record, by its choices."""

    name: str
    family: int
    version: int
    kept: bool  #: Its Program is in the store
    n: int
    m: int
    device: str
    driver: str
    cache: str
    day: int


@dataclass(frozen=True)
class Question:
    name: str
    device: str | None
    sizes: tuple[tuple[str, int], ...] | None
    driver: str | None
    cache: str


SAVED = st.builds(
    Saved, name=st.sampled_from(NAMES), family=st.sampled_from([0, 0, 0, 1]), version=st.sampled_from([1, 1, 1, 2]),
    kept=st.booleans(), n=st.sampled_from(SIZES), m=st.sampled_from(SIZES), device=st.sampled_from(DEVICES),
    driver=st.sampled_from(DRIVERS), cache=st.sampled_from(["warm", "warm", "cold"]), day=st.integers(1, 4),
)  # fmt: skip
QUESTIONS = st.builds(
    Question,
    name=st.sampled_from(["a", "a,b", "b,a", "b , b"]),
    device=st.sampled_from([None, None, "auto", *DEVICES, "cuda", "cuda:9", "Model cuda:1"]),
    sizes=st.none()
    | st.dictionaries(st.sampled_from(["n", "n", "m", "x"]), st.sampled_from([*SIZES, 5, 50]), max_size=2).map(
        lambda sizes: tuple(sizes.items())
    ),
    driver=st.none() | st.sampled_from(DRIVERS),
    cache=st.sampled_from(["warm", "warm", "cold"]),
)


# --- the rules ---


def expected(saved: list[Saved], question: Question) -> tuple[Saved, str] | str | None:
    """The record and its match; "request" for sizes that do not exist; "ambiguous" for a name of several contents; None
    when nothing is known."""
    parts = sorted(part.strip() for part in question.name.split(","))
    newest = max((each.version for each in saved), default=0)
    current: dict[tuple[object, ...], tuple[int, Saved]] = {}
    for index, each in enumerate(saved):
        key = (each.name, each.family, each.version, each.n, each.m, each.device, each.cache)
        current[key] = (index, each)
    of_name = [
        (each.day, index, each)
        for index, each in current.values()
        if each.name.split(",") == parts and (each.version == newest or each.kept)
    ]
    if len({each.family for *_, each in of_name}) > 1:
        return "ambiguous"
    found = [each for each in of_name if each[2].cache == question.cache and asks_for(question.device, each[2].device)]
    measured = [each for each in found if each[2].device != "cpu"]
    found = sorted(measured or found, key=lambda each: each[1])  # days are what a clock says, which may be moved
    if not found:
        return None
    last = found[-1][2]
    sizes = dict(question.sizes or ())
    if set(sizes) - {"n", "m"}:
        return "request"

    def stale(each: Saved) -> bool:
        return each.version != newest or (question.driver is not None and each.driver != question.driver)

    asked = {"n": last.n, "m": last.m, **sizes}
    if not sizes:
        return last, "stale" if stale(last) else "exact"
    everything = [each for _, _, each in found]
    exact = [each for each in everything if (each.n, each.m) == (asked["n"], asked["m"])]
    if exact:
        fresh = [each for each in exact if not stale(each)]
        return (fresh[-1], "exact") if fresh else (exact[-1], "stale")
    steps = {each: math.hypot(math.log2(each.n / asked["n"]), math.log2(each.m / asked["m"])) for each in everything}
    near = [each for each in everything if math.isclose(steps[each], min(steps.values()), abs_tol=1e-9)]
    fresh = [each for each in near if not stale(each)]
    return (fresh or near)[-1], "nearest"


def asks_for(asked: str | None, device: str) -> bool:
    if asked in (None, "auto"):
        return True
    if asked == "cuda":
        return device.startswith("cuda:")
    return asked in (device, f"Model {device}")


# --- the store ---


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("rules") / "fusiond.sqlite") as store:
        store.save_program(KEPT)
        yield store


def fill(store: Store, saved: list[Saved], make: Any) -> dict[tuple[str, str], list[Saved]]:
    """(workload_key, device_key) -> what was saved for it."""
    with store._transaction() as database:
        for table in ("records", "workloads", "boards", "devices", "envs"):
            database.execute(f"DELETE FROM {table}")
    keys: dict[tuple[str, str], list[Saved]] = {}
    with store._transaction():
        for each in saved:
            workload = make.workload(
                each.name, sizes={"n": each.n, "m": each.m}, content=each.family, strategy_version=each.version
            )
            device = make.device(each.device, model=f"Model {each.device}", env={"driver": each.driver})
            program = KEPT.key if each.kept else "lost"
            found_at = f"2026-01-0{each.day}T00:00:00.000+00:00"
            record = make.known(store, workload, device, cache=each.cache, found_at=found_at, program_key=program)
            keys.setdefault((record.workload_key, record.device_key), []).append(each)
    return keys


@pytest.mark.slow
@given(saved=st.lists(SAVED, max_size=12), questions=st.lists(QUESTIONS, min_size=5, max_size=12))
@settings(max_examples=120, deadline=None)
def test_best_follows_its_rules(shared: Store, make: Any, saved: list[Saved], questions: list[Question]) -> None:
    keys = fill(shared, saved, make)
    for question in questions:
        right = expected(saved, question)
        options = {"device": question.device, "driver": question.driver, "version": "1", "cache": question.cache}
        sizes = None if question.sizes is None else dict(question.sizes)
        if right == "request":
            with pytest.raises(RequestError, match="unknown size 'x'"):
                lookup.best(shared.path, name=question.name, sizes=sizes, **options)
            continue
        found = lookup.best(shared.path, name=question.name, sizes=sizes, **options)
        if right == "ambiguous":
            assert found is not None
            assert (found["match"], len(found["answers"])) == ("ambiguous", 2)
            continue
        if right is None or isinstance(right, str):
            assert found is None
            continue
        wanted, match = right
        assert found is not None
        assert wanted in keys[found["workload"]["key"], found["device"]["key"]]
        assert (found["match"], found["workload"]["sizes"]) == (match, {"n": wanted.n, "m": wanted.m})
        assert found["found_at"][8:10] == f"0{wanted.day}"
        others = [note for note in found["notes"] if "other sizes are known" in note]
        assert not question.sizes or not others
        departs = match != "exact" or bool(found["changed"])
        assert bool(set(found["notes"]) - set(others)) == departs


def test_the_keys_of_the_model_are_those_of_the_store(make: Any) -> None:
    """The model keeps records apart by their choices; the store by workload_key and device_key."""
    choices = list(itertools.product(NAMES, (0, 1), (1, 2), SIZES, SIZES))
    workloads: list[Workload] = [
        make.workload(name, sizes={"n": n, "m": m}, content=family, strategy_version=version)
        for name, family, version, n, m in choices
    ]
    devices: list[DeviceInfo] = [make.device(name, model=f"Model {name}") for name in DEVICES]
    record: Record = make.record(workloads[0], devices[0])
    assert len({workload.key for workload in workloads}) == len(choices)
    assert len({device.key for device in devices}) == len(DEVICES)
    assert record.workload_key == workloads[0].key
